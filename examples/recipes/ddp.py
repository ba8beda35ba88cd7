"""DistributedDataParallel: record the loop of one GPU; the annotation adds the gradient buckets."""

import torch
from small_gpt import GPT, log_probability, tokens_of


def make(batch_size=4, sequence_length=512):
    model = GPT().cuda()
    if torch.distributed.is_initialized():  # by torchrun, not while it is recorded
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        loss = -log_probability(model, tokens_of(batch_size, sequence_length).cuda()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return model, optimizer, step
