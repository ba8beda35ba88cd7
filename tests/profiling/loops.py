"""Loops as users write them, good and bad."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import HashStore, init_device_mesh, init_process_group
from torch.nn import functional

WIDTH = 64


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))


def training(model: nn.Module, optimizer: Any, batch: Tensor) -> Any:
    model.cuda()

    def step() -> None:
        optimizer.zero_grad()
        loss = functional.mse_loss(model(batch.cuda()), torch.zeros_like(batch, device="cuda"))
        loss.backward()
        optimizer.step()

    return model, optimizer, step


def make_fixed() -> Any:
    model = perceptron()
    return training(model, torch.optim.AdamW(model.parameters()), torch.zeros(32, WIDTH))


def make(batch_size: int = 8) -> Any:
    model = perceptron()
    return training(model, torch.optim.AdamW(model.parameters()), torch.zeros(batch_size, WIDTH))


def make_tokens(batch_size: int, sequence_length: int) -> Any:
    model = perceptron()
    batch = torch.zeros(batch_size, sequence_length, WIDTH)
    return training(model, torch.optim.SGD(model.parameters(), momentum=0.9), batch)


def make_images(batch_size: int = 4, image_size: int = 64) -> Any:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1))
    return training(model, torch.optim.AdamW(model.parameters()), torch.zeros(batch_size, 3, image_size, image_size))


class Adapted(nn.Module):
    def __init__(self, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down, self.up = nn.Linear(WIDTH, rank, bias=False), nn.Linear(rank, WIDTH, bias=False)

    def forward(self, given: Tensor) -> Tensor:
        return self.base(given) + self.up(self.down(given))  # type: ignore[no-any-return]


def make_adapters(batch_size: int = 4, lora_rank: int = 8) -> Any:
    model = Adapted(lora_rank)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    return training(model, torch.optim.AdamW(trained), torch.zeros(batch_size, WIDTH))


def make_unrolled(batch_size: int = 4, sequence_length: int = 64) -> Any:
    """Runs its network once for each token, so the number of events depends on the length."""
    model = perceptron().cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        hidden = torch.zeros(batch_size, WIDTH, device="cuda")
        for _ in range(sequence_length):
            hidden = model(hidden)
        hidden.sum().backward()
        optimizer.step()

    return model, optimizer, step


def make_asking() -> Any:
    """Prints what it runs on, and how long its steps take."""
    device = torch.cuda.current_device()
    model = perceptron().to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.zeros(32, WIDTH).pin_memory()

    def step() -> None:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        optimizer.zero_grad()
        loss = functional.mse_loss(model(batch.to(device, non_blocking=True)), torch.zeros(32, WIDTH, device=device))
        loss.backward()
        optimizer.step()
        end.record()
        torch.cuda.synchronize()
        print(
            torch.cuda.get_device_name(), torch.cuda.get_device_capability(), torch.cuda.max_memory_allocated(),
            begin.elapsed_time(end), torch.cuda.memory_summary(),
        )  # fmt: skip

    return model, optimizer, step


def make_two_optimizers() -> Any:
    model = perceptron().cuda()
    optimizers = torch.optim.AdamW(model[0].parameters()), torch.optim.SGD(model[2].parameters())

    def step() -> None:
        model(torch.zeros(4, WIDTH, device="cuda")).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return model, optimizers, step


# ---------------------------------------------------------------------- what is no loop


@dataclass
class Bundle:
    model: nn.Module
    optimizer: Any


def make_pair() -> Any:
    return make()[:2]


def make_dict() -> Any:
    return dict(zip(("model", "optimizer", "step"), make(), strict=True))


def make_dataclass() -> Any:
    return Bundle(*make()[:2])


def make_wrong_order() -> Any:
    model, optimizer, step = make()
    return optimizer, model, step


def make_step_with_arguments() -> Any:
    model, optimizer, _ = make()
    return model, optimizer, lambda batch, labels: model(batch).sum().backward()


def make_generator() -> Any:
    model, optimizer, step = make()

    def steps() -> Any:
        step()
        yield

    return model, optimizer, steps


# ---------------------------------------------------------------------- what cannot be recorded


def _around(forward: Any) -> Any:
    """A loop whose loss is computed by `forward(model, batch)`."""
    model = perceptron().cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        forward(model, torch.zeros(4, WIDTH, device="cuda")).backward()
        optimizer.step()

    return model, optimizer, step


class Choosing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, given: Tensor) -> Tensor:
        hidden: Tensor = self.linear(given)
        return hidden if hidden.sum().item() > 0 else hidden.relu()


def make_item_in_forward() -> Any:
    model = Choosing()
    return training(model, torch.optim.AdamW(model.parameters()), torch.zeros(4, WIDTH))


def make_dynamic_shapes() -> Any:
    return _around(lambda model, batch: model(batch)[batch.sum(1) > 0].sum())


@torch.library.custom_op("vramcast_tests::only_cuda", mutates_args=(), device_types="cuda")
def only_cuda(given: Tensor) -> Tensor:
    return given.clone()


def make_custom_kernel() -> Any:
    return _around(lambda model, batch: only_cuda(model(batch)).sum())


def make_nccl() -> Any:
    torch.distributed.init_process_group("nccl", init_method="tcp://127.0.0.1:1", rank=0, world_size=1)
    return make()


def make_nccl_by_its_own_name() -> Any:
    init_process_group("nccl", store=HashStore(), rank=0, world_size=1)
    return make()


def make_nccl_in_step() -> Any:
    def forward(model: nn.Module, batch: Tensor) -> Tensor:
        init_device_mesh("cuda", (2,))
        return model(batch).sum()  # type: ignore[no-any-return]

    return _around(forward)


def make_choosing_its_batch() -> Any:
    free, _ = torch.cuda.mem_get_info()
    return make(batch_size=free >> 20)


class Rounding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor) -> Tensor:
        return given.round()


def make_without_backward() -> Any:
    return _around(lambda model, batch: Rounding.apply(model(batch)).sum())


def make_detached() -> Any:
    return _around(lambda model, batch: model(batch).detach().sum())


def make_only_forward() -> Any:
    model = perceptron().cuda()
    return model, None, lambda: model(torch.zeros(4, WIDTH, device="cuda"))


def make_raising() -> Any:
    def forward(model: nn.Module, batch: Tensor) -> Tensor:
        raise KeyError("labels")

    return _around(forward)


def make_exiting() -> Any:
    sys.exit(2)


def make_endless() -> Any:
    def forward(model: nn.Module, batch: Tensor) -> Tensor:
        while True:
            batch = model(batch).detach()

    return _around(forward)


def make_endless_in_place() -> Any:
    def forward(model: nn.Module, batch: Tensor) -> Tensor:
        while True:
            batch.add_(1)

    return _around(forward)
