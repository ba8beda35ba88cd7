"""A reward model: one score for each answer, and a loss over pairs. There are no logits over the vocabulary."""

import torch
from small_gpt import GPT, tokens_of
from torch.nn import functional


def make(batch_size=4, sequence_length=512):
    model = GPT(outputs=1).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step():
        pairs = tokens_of(2 * batch_size, sequence_length).cuda()
        chosen, rejected = model(pairs)[:, -1, 0].chunk(2)
        loss = -functional.logsigmoid(chosen - rejected).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return model, optimizer, step
