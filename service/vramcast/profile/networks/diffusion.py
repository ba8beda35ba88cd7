"""Denoisers of diffusers. Sizes are those of the latents."""

from __future__ import annotations

from collections.abc import Iterator

from vramcast.profile.networks import diffusion_images, diffusion_videos
from vramcast.profile.networks.denoising import denoiser_source
from vramcast.profile.sources import ModelSource


def sources() -> Iterator[ModelSource]:
    for family in (diffusion_images.UNETS, diffusion_images.TRANSFORMERS, diffusion_videos.TRANSFORMERS):
        for name, denoiser in family.items():
            yield denoiser_source(name, denoiser)
