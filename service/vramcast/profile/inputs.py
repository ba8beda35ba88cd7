"""The inputs of a forward pass: from shapes, a sequence length, a callable, or what the model's library expects."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

# Heads trained on tokens: their loss keeps a copy of the logits.
_TOKEN_HEADS = ("CausalLM", "LMHead", "MaskedLM", "ConditionalGeneration", "DoubleHeads")
_UNET = "UNet2DConditionModel"
_TEXT_TOKENS = 77


@dataclass(frozen=True, slots=True)
class Inputs:
    """One sample's shapes, without the batch. `make(n)` returns a batch of n and takes precedence."""

    shapes: tuple[tuple[int, ...], ...] = ()
    sequence_length: int | None = None
    make: Callable[[int], Any] | None = None
    read: frozenset[str] = frozenset()  # arguments whose values the pass needs: they stay on the CPU

    def __str__(self) -> str:
        if self.make is not None:
            return f"--inputs {getattr(self.make, '__name__', self.make)}"
        shown = [f"--input {'x'.join(map(str, shape))}" for shape in self.shapes]
        return " ".join([*shown, *([f"--sequence-length {self.sequence_length}"] if self.sequence_length else [])])


Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def make_call(inputs: Inputs, samples: int, device: str) -> Callable[[nn.Module], object]:
    """Runs the forward pass on a batch of `samples`."""

    def call(model: nn.Module) -> object:
        args, kwargs = arguments(model, inputs, samples, device)
        return model(*args, **kwargs)

    return call


def arguments(model: nn.Module, inputs: Inputs, samples: int, device: str) -> Arguments:
    if inputs.make is not None:
        return _given(inputs.make(samples), device, inputs.read)
    parameters = inspect.signature(model.forward).parameters
    if "targets" in parameters and "images" in parameters:
        return _detection(model, inputs.shapes[0], samples, device)
    if type(model).__name__ == _UNET:
        return _denoising(model, inputs.shapes[0], samples, device)
    if hasattr(model, "main_input_name") and hasattr(model, "config"):
        return (), _transformers(model, parameters, inputs, samples, device)
    tensors: list[Tensor] = [torch.zeros(samples, *shape, device=device) for shape in inputs.shapes]
    if inputs.sequence_length:
        tensors.append(_tokens(samples, inputs.sequence_length, device))
    return tuple(tensors), {}


def _given(value: Any, device: str, read: frozenset[str]) -> Arguments:
    moved = torch.utils._pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), value)
    if isinstance(moved, dict):
        return (), {name: value[name] if name in read else tensor for name, tensor in moved.items()}
    return (tuple(moved) if isinstance(moved, tuple | list) else (moved,)), {}


def _tokens(samples: int, length: int, device: str) -> Tensor:
    return torch.zeros(samples, length, dtype=torch.long, device=device)


def _detection(model: nn.Module, shape: tuple[int, ...], samples: int, device: str) -> Arguments:
    """Training needs targets: one object in the middle of each image."""
    height, width = shape[-2:]
    box = torch.tensor([[width * 0.25, height * 0.25, width * 0.75, height * 0.75]], device=device)
    target = {"boxes": box, "labels": torch.ones(1, dtype=torch.long, device=device)}
    heads = getattr(model, "roi_heads", None)
    if getattr(heads, "mask_predictor", None) is not None:
        target["masks"] = torch.ones(1, height, width, dtype=torch.uint8, device=device)
    if getattr(heads, "keypoint_predictor", None) is not None:
        keypoint = torch.tensor([width * 0.5, height * 0.5, 1.0], device=device)
        target["keypoints"] = keypoint.repeat(1, 17, 1)
    images = [torch.rand(*shape, device=device) for _ in range(samples)]
    return (images, [target] * samples), {}


def _denoising(model: nn.Module, shape: tuple[int, ...], samples: int, device: str) -> Arguments:
    """A diffusion step: latents, time step and prompt embedding."""
    config: Any = model.config
    width = config.cross_attention_dim
    kwargs: dict[str, Any] = {
        "sample": torch.zeros(samples, *shape, device=device),
        "timestep": torch.zeros(samples, dtype=torch.long, device=device),
        "encoder_hidden_states": torch.zeros(
            samples, _TEXT_TOKENS, width if isinstance(width, int) else width[0], device=device
        ),
    }
    if config.addition_embed_type == "text_time":
        pooled = config.projection_class_embeddings_input_dim - 6 * config.addition_time_embed_dim
        kwargs["added_cond_kwargs"] = {
            "text_embeds": torch.zeros(samples, pooled, device=device),
            "time_ids": torch.zeros(samples, 6, device=device),
        }
    return (), kwargs


def _transformers(model: nn.Module, parameters: Any, inputs: Inputs, samples: int, device: str) -> dict[str, Any]:
    """A Hugging Face model: its main input, and labels if its loss is over tokens."""
    config: Any = model.config
    main = str(model.main_input_name)
    length = inputs.sequence_length or 128
    kwargs: dict[str, Any] = {}
    if main == "input_ids" or "input_ids" in parameters:
        kwargs["input_ids"] = _tokens(samples, length, device)
    if main == "pixel_values" or ("pixel_values" in parameters and main != "input_ids"):
        kwargs["pixel_values"] = torch.zeros(samples, *_image_shape(config, inputs), device=device)
    elif "pixel_values" in parameters and hasattr(config, "vision_config"):
        kwargs["pixel_values"] = torch.zeros(samples, *_image_shape(config.vision_config, inputs), device=device)
        kwargs |= {"return_loss": True} if "return_loss" in parameters else {}
    if main == "input_values":
        kwargs["input_values"] = torch.zeros(samples, inputs.shapes[0][-1], device=device)
    if main == "input_features":
        frames = 2 * config.max_source_positions
        kwargs["input_features"] = torch.zeros(samples, config.num_mel_bins, frames, device=device)
    token_head = any(part in type(model).__name__ for part in _TOKEN_HEADS)
    if token_head and "labels" in parameters:
        kwargs["labels"] = _tokens(samples, length, device)
    elif getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in parameters:
        kwargs["decoder_input_ids"] = _tokens(samples, length, device)
    if "interpolate_pos_encoding" in parameters and "pixel_values" in kwargs:
        kwargs["interpolate_pos_encoding"] = True
    return kwargs


def _image_shape(config: Any, inputs: Inputs) -> tuple[int, ...]:
    if inputs.shapes:
        return inputs.shapes[0]
    size = config.image_size
    height, width = (size, size) if isinstance(size, int) else size
    return (config.num_channels, height, width)
