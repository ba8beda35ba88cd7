"""The models of POST /advise in the OpenAPI description."""

from __future__ import annotations

from pydantic import Field

from vramcast.api.models import Answer, Bytes, Mib
from vramcast.forecast.forecast import Source


class ProposedChange(Answer):
    """A change with which the task fits: it was forecast again."""

    change: str = Field(examples=["batch-size 2 with gradient-accumulation 2"])
    product: str
    gpus: int = Field(ge=1, description="that train together")
    need_mib: Mib
    median_bytes: Bytes
    source: Source
    room_mib: Mib
    cost: float = Field(ge=0, description="percent of a step's time: time that it takes, and trouble")
    step_time: float = Field(ge=0, description="time per step, relative to now")
    why: list[str] = Field(description="where the cost comes from")
    annotations: dict[str, str] = Field(description="to change on the pod template")
    pytorch: list[str] = Field(description="lines in plain PyTorch")
    trainer: list[str] = Field(description="arguments of the Hugging Face Trainer, and lines beside it")


class ProductAdvice(Answer):
    """What would make the task fit one GPU when it is empty."""

    product: str
    room_mib: Mib
    need_mib: Mib
    median_bytes: Bytes
    risk: float
    fits: bool
    fits_at_risk: float | None = Field(description="the lowest usual risk at which it fits as it is")
    proposals: list[ProposedChange] = Field(description="the cheapest first; empty if it fits, or if nothing helps")
    smallest: str = Field(description="what needs least of all that was tried")
    smallest_need_mib: Mib
    short_mib: Mib = Field(description="by how much the smallest misses")
    tried: int
    complete: bool = Field(description="false: the search was cut short, and something cheaper may exist")


class AdviseAnswer(Answer):
    pod: str = Field(examples=["ml/resnet50"])
    level: str = Field(description="of description", examples=["name"])
    advice: list[ProductAdvice] = Field(description="for the GPU that was asked for, or the cluster's three largest")
