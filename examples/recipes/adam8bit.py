"""8-bit Adam: its kernels need a GPU, so the network is recorded alone and the annotation names the optimizer."""

from small_gpt import GPT


def build():
    return GPT()
