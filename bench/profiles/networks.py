"""Networks that need more than a class and its arguments."""

from __future__ import annotations

from torch import nn

from vramcast.profile.sources import all_sources


def sdxl_unet() -> nn.Module:
    name = "diffusers/stable-diffusion-xl-base-1.0"
    source = next(source for source in all_sources() if source.name == name)
    return source.make(source.base)
