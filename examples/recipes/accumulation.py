"""Gradient accumulation: two micro-batches take as much memory as any larger number of them."""

import torch
from small_gpt import GPT, log_probability, tokens_of

MICRO_BATCHES = 2


def make(batch_size=4, sequence_length=512):
    model = GPT().cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        for _ in range(MICRO_BATCHES):
            loss = -log_probability(model, tokens_of(batch_size, sequence_length).cuda()).mean()
            (loss / MICRO_BATCHES).backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, step
