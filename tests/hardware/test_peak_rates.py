"""Peak rates follow from a product's clocks: arithmetic from SMs, units and boost clock, bandwidth from bus and memory
clock. What does not is published so, and says why."""

from __future__ import annotations

import pytest

from vramcast.hardware.peaks import PEAKS
from vramcast.hardware.products import PRODUCTS

MAX_Q = "NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation-Edition"

# product: boost clock in MHz, bus in bits, transfers per second on each line in 10^9
CLOCKS = {
    "NVIDIA-A100-SXM4-40GB": (1410, 5120, 2.43),
    "NVIDIA-A100-PCIE-40GB": (1410, 5120, 2.43),
    "NVIDIA-A100-SXM4-80GB": (1410, 5120, 3.186),
    "NVIDIA-A100-80GB-PCIe": (1410, 5120, 3.024),
    "NVIDIA-A800-SXM4-80GB": (1410, 5120, 3.186),
    "NVIDIA-A30": (1440, 3072, 2.43),
    "NVIDIA-A40": (1740, 384, 14.5),
    "NVIDIA-A10": (1695, 384, 12.5),
    "NVIDIA-A10G": (1710, 384, 12.5),
    "NVIDIA-A16": (1755, 128, 12.5),
    "NVIDIA-A2": (1770, 128, 12.5),
    "NVIDIA-RTX-A4000": (1560, 256, 14.0),
    "NVIDIA-RTX-A5000": (1695, 384, 16.0),
    "NVIDIA-RTX-A6000": (1800, 384, 16.0),
    "NVIDIA-H100-80GB-HBM3": (1980, 5120, 5.24),
    "NVIDIA-H100-PCIe": (1755, 5120, 3.186),
    "NVIDIA-H100-NVL": (1785, 6016, 5.24),
    "NVIDIA-H800": (1980, 5120, 5.24),
    "NVIDIA-H20": (1980, 6144, 5.24),
    "NVIDIA-H200": (1980, 6144, 6.4),
    "NVIDIA-GH200-480GB": (1980, 6144, 5.24),
    "NVIDIA-B200": (1965, 8192, 7.8),
    "NVIDIA-L4": (2040, 192, 12.5),
    "NVIDIA-L40": (2490, 384, 18.0),
    "NVIDIA-L40S": (2520, 384, 18.0),
    "NVIDIA-RTX-6000-Ada-Generation": (2505, 384, 20.0),
    "Tesla-T4": (1590, 256, 10.0),
    "Tesla-V100-SXM2-16GB": (1530, 4096, 1.752),
    "Tesla-V100-SXM2-32GB": (1530, 4096, 1.752),
    "Tesla-V100-SXM3-32GB": (1530, 4096, 1.916),
    "Tesla-V100-PCIE-16GB": (1380, 4096, 1.752),
    "Tesla-V100-PCIE-32GB": (1380, 4096, 1.752),
    "Tesla-P100-PCIE-16GB": (1303, 4096, 1.43),
    "Tesla-P100-SXM2-16GB": (1480, 4096, 1.43),
    "Tesla-P40": (1531, 384, 7.2),
    "Tesla-P4": (1063, 256, 6.0),
    "Tesla-K80": (562, 384, 5.0),
    "NVIDIA-GeForce-RTX-2080-Ti": (1545, 352, 14.0),
    "NVIDIA-GeForce-RTX-3060": (1777, 192, 15.0),
    "NVIDIA-GeForce-RTX-3080": (1710, 320, 19.0),
    "NVIDIA-GeForce-RTX-3090": (1695, 384, 19.5),
    "NVIDIA-GeForce-RTX-4060": (2460, 128, 17.0),
    "NVIDIA-GeForce-RTX-4080": (2505, 256, 22.4),
    "NVIDIA-GeForce-RTX-4090": (2520, 384, 21.0),
    "NVIDIA-GeForce-RTX-5090": (2407, 512, 28.0),
    MAX_Q: (2288, 512, 28.0),
}
# By compute capability: fp32 lanes of an SM, and half-precision multiply-accumulates of its tensor cores per clock.
UNITS = {
    3.7: (192, 0), 6.0: (64, 0), 6.1: (128, 0), 7.0: (64, 512), 7.5: (64, 512), 8.0: (64, 1024), 8.6: (128, 512),
    8.9: (128, 512), 9.0: (128, 2048), 10.0: (128, 4096), 12.0: (128, 512),
}  # fmt: skip
PUBLISHED = {
    "NVIDIA-A10G": "AWS states 31.5 TFLOPS; 80 SMs at this clock would make 35.0",
    "NVIDIA-H20": "NVIDIA states 44 TFLOPS; 78 SMs at the H100's clock make 39.5",
}
# The clock that their tensor figures are stated at is lower than the one of their fp32 figures.
TENSOR_MHZ = {
    "NVIDIA-H100-80GB-HBM3": 1830, "NVIDIA-H800": 1830, "NVIDIA-H200": 1830, "NVIDIA-GH200-480GB": 1830,
    "NVIDIA-H100-PCIe": 1620, "NVIDIA-H100-NVL": 1545, "NVIDIA-B200": 1855,
}  # fmt: skip
# Made slower than the chip: for GeForce and the 2080 Ti half the rate where sums are in fp32, otherwise by the vendor.
TENSOR_SHARE = {
    **{name: 0.5 for name in PEAKS if "GeForce" in name},
    "NVIDIA-A10G": 0.5,
    "NVIDIA-L40": 0.5,
    "NVIDIA-H20": 148.0 / 632.6,
}


def test_every_product_has_its_clocks() -> None:
    assert set(CLOCKS) == set(PEAKS)


@pytest.mark.parametrize("product", sorted(set(PEAKS) - set(PUBLISHED)))
def test_arithmetic_follows_from_sms_lanes_and_boost_clock(product: str) -> None:
    peaks, (mhz, _, _) = PEAKS[product], CLOCKS[product]
    assert peaks.fp32_tflops == pytest.approx(2e-6 * peaks.sms * UNITS[peaks.compute_capability][0] * mhz, rel=0.015)


@pytest.mark.parametrize("product", sorted(name for name, peaks in PEAKS.items() if peaks.compute_capability >= 7.0))
def test_tensor_cores_follow_from_sms_and_clock(product: str) -> None:
    peaks = PEAKS[product]
    mhz = TENSOR_MHZ.get(product, CLOCKS[product][0])
    derived = 2e-6 * peaks.sms * UNITS[peaks.compute_capability][1] * mhz * TENSOR_SHARE.get(product, 1.0)
    assert peaks.fp16_tflops == pytest.approx(derived, rel=0.02)


@pytest.mark.parametrize("product", sorted(PEAKS))
def test_bandwidth_follows_from_bus_and_memory_clock(product: str) -> None:
    _, bits, rate = CLOCKS[product]
    assert PEAKS[product].bandwidth_gb_per_second == pytest.approx(bits / 8 * rate, rel=0.01)


@pytest.mark.parametrize("product", sorted(PRODUCTS))
def test_a_product_has_the_same_sms_wherever_they_are_told(product: str) -> None:
    assert PEAKS[product].sms == PRODUCTS[product].sms
