"""DPO: a policy that is trained, a frozen reference, and pairs of answers."""

import torch
from small_gpt import GPT, log_probability, tokens_of
from torch.nn import functional


def make(batch_size=4, sequence_length=512):
    policy, reference = GPT().cuda(), GPT().cuda().requires_grad_(False)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6)

    def step():
        pairs = tokens_of(2 * batch_size, sequence_length).cuda()  # the chosen answers, then the rejected ones
        with torch.no_grad():
            expected = log_probability(reference, pairs).sum(1)
        chosen, rejected = (log_probability(policy, pairs).sum(1) - expected).chunk(2)
        loss = -functional.logsigmoid(0.1 * (chosen - rejected)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return policy, optimizer, step
