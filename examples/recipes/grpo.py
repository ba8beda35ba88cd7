"""GRPO: the policy answers each prompt several times, and learns from which answers are better than the others."""

import torch
from small_gpt import GPT, log_probability, tokens_of

ANSWERS, NEW_TOKENS = 4, 16


def make(batch_size=2, sequence_length=512):
    policy, reference = GPT().cuda(), GPT().cuda().requires_grad_(False)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6)

    def step():
        tokens = tokens_of(batch_size, sequence_length).cuda().repeat_interleave(ANSWERS, dim=0)
        with torch.no_grad():
            for _ in range(NEW_TOKENS):
                chances = policy(tokens)[:, -1].softmax(-1)
                tokens = torch.cat([tokens, torch.multinomial(chances, 1)], dim=1)
            expected = log_probability(reference, tokens)
        rewards = torch.rand(batch_size, ANSWERS, device="cuda")  # stands for a verifier
        advantage = (rewards - rewards.mean(1, keepdim=True)).view(-1, 1)
        now = log_probability(policy, tokens)
        drift = (expected - now).exp() - (expected - now) - 1
        loss = (0.04 * drift - advantage * (now - now.detach()).exp()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return policy, optimizer, step
