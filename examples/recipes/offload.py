"""CPU offload: the optimizer steps copies of the weights in the host's memory, so its states are not on the GPU."""

import torch
from small_gpt import GPT, log_probability, tokens_of


def make(batch_size=4, sequence_length=512):
    model = GPT().cuda()
    copies = [weight.detach().to("cpu").requires_grad_() for weight in model.parameters()]
    optimizer = torch.optim.AdamW(copies)

    def step():
        loss = -log_probability(model, tokens_of(batch_size, sequence_length).cuda()).mean()
        loss.backward()
        for weight, copy in zip(model.parameters(), copies, strict=True):
            copy.grad, weight.grad = weight.grad.to("cpu"), None
        optimizer.step()
        with torch.no_grad():
            for weight, copy in zip(model.parameters(), copies, strict=True):
                weight.copy_(copy)

    return model, optimizer, step
