"""Peak arithmetic of GPU products: what a step's time is forecast from.

Dense TFLOPS at boost clock. Tensor cores add up in fp32, as PyTorch's kernels do: GeForce cards run that at half rate.
`None`: the product has no tensor cores for the format, and PyTorch computes in fp32.

What each figure rests on: arithmetic is SMs times units times boost clock, and bandwidth is bus times memory clock;
`tests/hardware/test_peak_rates.py` has the clocks and derives every entry within 2 %. Two fp32 figures are the vendors'
and do not follow from their clocks: A10G (AWS's variant of the A10) and H20. Tensor cores that are made slower than the
chip's have their published rates: GeForce, the 2080 Ti, A10G, L40, H20. Hopper's and Blackwell's tensor figures are
stated at a lower clock than their fp32 ones. About fifteen products were also compared with published datasheets and
whitepapers (those with sparsity halved, those of cards with several GPUs divided), and the clocks of the A100, A10, A2,
A30, RTX 3090, 4090 and 5090 with published tables. PRO 6000 Max-Q: 2,288 MHz, which its 3,511 TOPS in sparse fp4 make.
"""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.hardware.products import PRODUCTS
from vramcast.names import Product


@dataclass(frozen=True, slots=True)
class PeakRates:
    fp32_tflops: float
    tf32_tflops: float | None
    fp16_tflops: float | None  # bf16 too, where the GPU knows it
    sms: int
    bandwidth_gb_per_second: int
    compute_capability: float


# product: fp32, tf32, fp16
_TFLOPS: dict[str, tuple[float, float | None, float | None]] = {
    "NVIDIA-A100-SXM4-40GB": (19.5, 156.0, 312.0),
    "NVIDIA-A100-PCIE-40GB": (19.5, 156.0, 312.0),
    "NVIDIA-A100-SXM4-80GB": (19.5, 156.0, 312.0),
    "NVIDIA-A100-80GB-PCIe": (19.5, 156.0, 312.0),
    "NVIDIA-A800-SXM4-80GB": (19.5, 156.0, 312.0),
    "NVIDIA-A30": (10.3, 82.0, 165.0),
    "NVIDIA-A40": (37.4, 74.8, 149.7),
    "NVIDIA-A10": (31.2, 62.5, 125.0),
    "NVIDIA-A10G": (31.5, 35.0, 70.0),
    "NVIDIA-A16": (4.5, 9.0, 17.9),
    "NVIDIA-A2": (4.5, 9.0, 18.0),
    "NVIDIA-RTX-A4000": (19.2, 38.3, 76.7),
    "NVIDIA-RTX-A5000": (27.8, 55.6, 111.1),
    "NVIDIA-RTX-A6000": (38.7, 77.4, 154.8),
    "NVIDIA-H100-80GB-HBM3": (67.0, 494.7, 989.4),
    "NVIDIA-H100-PCIe": (51.2, 378.0, 756.0),
    "NVIDIA-H100-NVL": (60.0, 417.5, 835.5),
    "NVIDIA-H800": (67.0, 494.7, 989.4),
    "NVIDIA-H20": (44.0, 74.0, 148.0),
    "NVIDIA-H200": (67.0, 494.7, 989.4),
    "NVIDIA-GH200-480GB": (67.0, 494.7, 989.4),
    "NVIDIA-B200": (75.0, 1100.0, 2250.0),
    "NVIDIA-L4": (30.3, 60.0, 121.0),
    "NVIDIA-L40": (90.5, 90.5, 181.0),
    "NVIDIA-L40S": (91.6, 183.0, 362.0),
    "NVIDIA-RTX-6000-Ada-Generation": (91.1, 182.1, 364.2),
    "Tesla-T4": (8.1, None, 65.0),
    "Tesla-V100-SXM2-16GB": (15.7, None, 125.0),
    "Tesla-V100-SXM2-32GB": (15.7, None, 125.0),
    "Tesla-V100-SXM3-32GB": (15.7, None, 125.0),
    "Tesla-V100-PCIE-16GB": (14.0, None, 112.0),
    "Tesla-V100-PCIE-32GB": (14.0, None, 112.0),
    "Tesla-P100-PCIE-16GB": (9.3, None, 18.7),
    "Tesla-P100-SXM2-16GB": (10.6, None, 21.2),
    "Tesla-P40": (11.8, None, None),
    "Tesla-P4": (5.5, None, None),
    # One of the two GPUs of a card, 2,496 cores each, at the base clock of 562 MHz: they share 300 W, and the boost
    # clock of 875 MHz (4.4 TFLOPS) is for one that is busy alone.
    "Tesla-K80": (2.8, None, None),
    "NVIDIA-GeForce-RTX-2080-Ti": (13.4, None, 53.8),
    "NVIDIA-GeForce-RTX-3060": (12.7, 12.7, 25.5),
    "NVIDIA-GeForce-RTX-3080": (29.8, 29.8, 59.5),
    "NVIDIA-GeForce-RTX-3090": (35.6, 35.6, 71.0),
    "NVIDIA-GeForce-RTX-4060": (15.1, 15.1, 30.2),
    "NVIDIA-GeForce-RTX-4080": (48.7, 48.7, 97.5),
    "NVIDIA-GeForce-RTX-4090": (82.6, 82.6, 165.2),
    "NVIDIA-GeForce-RTX-5090": (104.8, 104.8, 209.5),
}

PEAKS: dict[str, PeakRates] = {
    name: PeakRates(*tflops, spec.sms, spec.bandwidth_gb_per_second, spec.compute_capability)
    for name, tflops in _TFLOPS.items()
    for spec in [PRODUCTS[name]]
} | {
    # Timed, but its overheads were never measured, so it is not in the table of products.
    "NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation-Edition": PeakRates(110.0, 219.5, 438.9, 188, 1792, 12.0),
}


def peaks_of(product: Product) -> PeakRates | None:
    return PEAKS.get(product)
