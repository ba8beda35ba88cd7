"""GPU products by name, and what a forecast and a fit need to know about them.

`memory_mib` is the total that the driver reports; `reserve_mib` is the part it keeps for itself, once per GPU;
`context_mib` is what each process takes before its first tensor.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from vramcast.hardware.vendors import vendor_of
from vramcast.names import Product


@dataclass(frozen=True, slots=True)
class GpuSpec:
    product: Product
    memory_mib: int
    reserve_mib: int
    context_mib: int
    sms: int
    bandwidth_gb_per_second: int
    compute_capability: float


def _spec(name: str, memory: int, reserve: int, context: int, sms: int, bandwidth: int, cc: float) -> GpuSpec:
    return GpuSpec(Product(name), memory, reserve, context, sms, bandwidth, cc)


PRODUCTS: dict[str, GpuSpec] = {
    spec.product: spec
    for spec in (
        #     product                       memory  reserve  context  SMs  GB/s   cc
        _spec("NVIDIA-A100-SXM4-40GB",       40960,  450,     430,     108, 1555, 8.0),
        _spec("NVIDIA-A100-PCIE-40GB",       40960,  450,     430,     108, 1555, 8.0),
        _spec("NVIDIA-A100-SXM4-80GB",       81920,  640,     430,     108, 2039, 8.0),
        _spec("NVIDIA-A100-80GB-PCIe",       81920,  640,     430,     108, 1935, 8.0),
        _spec("NVIDIA-A800-SXM4-80GB",       81920,  640,     430,     108, 2039, 8.0),
        _spec("NVIDIA-A30",                  24576,  340,     420,     56,  933,  8.0),
        _spec("NVIDIA-A40",                  46068,  620,     400,     84,  696,  8.6),
        _spec("NVIDIA-A10",                  23028,  500,     380,     72,  600,  8.6),
        _spec("NVIDIA-A10G",                 23028,  500,     380,     80,  600,  8.6),
        _spec("NVIDIA-A16",                  15356,  370,     340,     10,  200,  8.6),
        _spec("NVIDIA-A2",                   15356,  370,     340,     10,  200,  8.6),
        _spec("NVIDIA-RTX-A4000",            16376,  340,     360,     48,  448,  8.6),
        _spec("NVIDIA-RTX-A5000",            24564,  340,     380,     64,  768,  8.6),
        _spec("NVIDIA-RTX-A6000",            49140,  620,     400,     84,  768,  8.6),
        _spec("NVIDIA-H100-80GB-HBM3",       81559,  640,     540,     132, 3352, 9.0),
        _spec("NVIDIA-H100-PCIe",            81559,  640,     540,     114, 2039, 9.0),
        _spec("NVIDIA-H100-NVL",             95830,  650,     540,     132, 3938, 9.0),
        _spec("NVIDIA-H800",                 81559,  640,     540,     132, 3352, 9.0),
        _spec("NVIDIA-H20",                  97871,  650,     540,     78,  4022, 9.0),
        _spec("NVIDIA-H200",                 143771, 740,     540,     132, 4917, 9.0),
        _spec("NVIDIA-GH200-480GB",          97871,  650,     560,     132, 4022, 9.0),
        _spec("NVIDIA-B200",                 183359, 900,     620,     148, 8000, 10.0),
        _spec("NVIDIA-L4",                   23034,  480,     400,     58,  300,  8.9),
        _spec("NVIDIA-L40",                  46068,  620,     440,     142, 864,  8.9),
        _spec("NVIDIA-L40S",                 46068,  620,     440,     142, 864,  8.9),
        _spec("NVIDIA-RTX-6000-Ada-Generation", 49140, 620,   440,     142, 960,  8.9),
        _spec("Tesla-T4",                    15360,  440,     320,     40,  320,  7.5),
        _spec("Tesla-V100-SXM2-16GB",        16384,  230,     340,     80,  900,  7.0),
        _spec("Tesla-V100-SXM2-32GB",        32768,  270,     340,     80,  900,  7.0),
        _spec("Tesla-V100-SXM3-32GB",        32768,  270,     340,     80,  981,  7.0),
        _spec("Tesla-V100-PCIE-16GB",        16384,  230,     340,     80,  900,  7.0),
        _spec("Tesla-V100-PCIE-32GB",        32768,  270,     340,     80,  900,  7.0),
        _spec("Tesla-P100-PCIE-16GB",        16384,  110,     300,     56,  732,  6.0),
        _spec("Tesla-P100-SXM2-16GB",        16384,  110,     300,     56,  732,  6.0),
        _spec("Tesla-P40",                   24576,  150,     260,     30,  346,  6.1),
        _spec("Tesla-P4",                    8192,   80,      240,     20,  192,  6.1),
        _spec("Tesla-K80",                   11441,  60,      120,     13,  240,  3.7),
        _spec("NVIDIA-GeForce-RTX-2080-Ti",  11264,  240,     330,     68,  616,  7.5),
        _spec("NVIDIA-GeForce-RTX-3060",     12288,  240,     340,     28,  360,  8.6),
        _spec("NVIDIA-GeForce-RTX-3080",     10240,  230,     360,     68,  760,  8.6),
        _spec("NVIDIA-GeForce-RTX-3090",     24576,  320,     380,     82,  936,  8.6),
        _spec("NVIDIA-GeForce-RTX-4060",     8188,   220,     340,     24,  272,  8.9),
        _spec("NVIDIA-GeForce-RTX-4080",     16376,  340,     400,     76,  717,  8.9),
        _spec("NVIDIA-GeForce-RTX-4090",     24564,  380,     430,     128, 1008, 8.9),
        _spec("NVIDIA-GeForce-RTX-5090",     32607,  500,     500,     170, 1792, 12.0),
    )
}  # fmt: skip

# For a product that is not in the table: the largest reserve seen, so that an unknown GPU is never overfilled.
UNKNOWN_RESERVE_MIB = 900

# Products on which nothing was ever measured: their size is known, their overheads are those of an unknown product.
# An MI250X is two GPUs. MI300A is missing on purpose: it shares its memory with the host.
UNCALIBRATED_MIB: dict[str, int] = {
    "AMD-Instinct-MI210": 65520,
    "AMD-Instinct-MI250X": 65520,
    "AMD-Instinct-MI300X": 196592,
    "AMD-Instinct-MI308X": 196592,
    "AMD-Instinct-MI325X": 262128,
    "AMD-Instinct-MI350X": 294896,
    "AMD-Instinct-MI355X": 294896,
}

_SUFFIXES = re.compile(r"(-SHARED)?(-MIG-[0-9a-z.+]+)?(-SHARED)?$")
# AMD_Instinct_MI300X_OAM, AMD_INSTINCT_MI250_MCM_OAM_AC_MBA, AMD_Instinct_MI325_OAM
_INSTINCT = re.compile(r"AMD[-_ ]Instinct[-_ ](MI[0-9]{3})([AX]?)(?![A-Z0-9]).*", re.IGNORECASE)


def base_product(label: str) -> Product:
    """`NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED` is still an A100: sharing and slicing do not change the chip."""
    if instinct := _INSTINCT.fullmatch(label):
        name = f"AMD-Instinct-{instinct[1].upper()}"
        letter = instinct[2].upper() or ("X" if name + "X" in UNCALIBRATED_MIB else "")
        return Product(name + letter)
    return Product(_SUFFIXES.sub("", label))


def memory_mib(product: Product) -> int | None:
    spec = PRODUCTS.get(product)
    return spec.memory_mib if spec else UNCALIBRATED_MIB.get(product)


def reserve_mib(product: Product) -> int:
    spec = PRODUCTS.get(product)
    return spec.reserve_mib if spec else UNKNOWN_RESERVE_MIB


def calibration_note(product: Product) -> str | None:
    """What a forecast for this product must say about itself. None: the product's vendor is calibrated."""
    vendor = vendor_of(product)
    return None if vendor.calibrated else f"not calibrated on {vendor.name} GPUs: no run on one was ever measured"
