"""A fused loss: the logits are computed in chunks, and again in the backward pass, and never exist as a whole."""

import torch
from small_gpt import GPT, tokens_of
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

CHUNKS = 8


def make(batch_size=4, sequence_length=512):
    model = GPT().cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def loss_of(hidden, wanted):
        return functional.cross_entropy(model.head(hidden).flatten(0, 1), wanted.flatten(), reduction="sum")

    def step():
        tokens = tokens_of(batch_size, sequence_length).cuda()
        pieces = zip(model.hidden(tokens).chunk(CHUNKS, 1), tokens.roll(-1, 1).chunk(CHUNKS, 1), strict=True)
        loss = sum(checkpoint(loss_of, *piece, use_reentrant=False) for piece in pieces) / tokens.numel()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return model, optimizer, step
