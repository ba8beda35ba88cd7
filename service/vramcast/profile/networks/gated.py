"""Llama and its relatives: gated layers, rotary positions, key-value heads that query heads share.

Figures of the models that litgpt supports are checked against its table (Lightning-AI/litgpt, Apache-2.0).
"""

from __future__ import annotations

from typing import Any

from vramcast.profile.networks.huggingface import Published, gated
from vramcast.profile.networks.related import RELATED

_TIED: dict[str, Any] = {"tie_word_embeddings": True}
_H128: dict[str, Any] = {"head_dim": 128}
_H256: dict[str, Any] = {"head_dim": 256}

_LLAMAS = {
    "llama-7b": gated("Llama", 32000, 4096, 32, (32, 32), 11008, 2048,
        "open_llama_7b open_llama_7b_v2 vicuna-7b-v1.3 llama-7b-hf"),
    "llama-13b": gated("Llama", 32000, 5120, 40, (40, 40), 13824, 2048, "open_llama_13b vicuna-13b-v1.3 llama-13b-hf"),
    "llama-30b": gated("Llama", 32000, 6656, 60, (52, 52), 17920, 2048,
        "Platypus-30B vicuna-33b-v1.3 llama-30b-hf"),
    "llama-65b": gated("Llama", 32000, 8192, 80, (64, 64), 22016, 2048, "llama-65b-hf"),
    "open_llama_3b": gated("Llama", 32000, 3200, 26, (32, 32), 8640, 2048, "open_llama_3b_v2"),
    "Llama-2-7b-hf": gated(
        "Llama", 32000, 4096, 32, (32, 32), 11008, 4096,
        "Llama-2-7b Llama-2-7b-chat-hf Llama-2-7b-chat LLaMA-2-7B-32K Platypus2-7B vicuna-7b-v1.5 "
        "Llama-2-7b-chat-hf-function-calling-v2 CodeLlama-7b-Python-hf"),
    "Llama-2-13b-hf": gated(
        "Llama", 32000, 5120, 40, (40, 40), 13824, 4096,
        "Llama-2-13b Llama-2-13b-chat-hf Llama-2-13b-chat Platypus2-13B Camel-Platypus2-13B Stable-Platypus2-13B "
        "vicuna-13b-v1.5 CodeLlama-13b-Python-hf"),
    "Llama-2-70b-hf": gated(
        "Llama", 32000, 8192, 80, (64, 8), 28672, 4096,
        "Llama-2-70b Llama-2-70b-chat-hf Llama-2-70b-chat FreeWilly2 StableBeluga2 Platypus2-70B Camel-Platypus2-70B "
        "Platypus2-70B-instruct"),
    "CodeLlama-7b-hf": gated("Llama", 32016, 4096, 32, (32, 32), 11008, 16384, "CodeLlama-7b-Instruct-hf"),
    "CodeLlama-13b-hf": gated("Llama", 32016, 5120, 40, (40, 40), 13824, 16384, "CodeLlama-13b-Instruct-hf"),
    "CodeLlama-34b-hf": gated(
        "Llama", 32000, 8192, 48, (64, 8), 22016, 16384, "CodeLlama-34b-Python-hf CodeLlama-34b-Instruct-hf"),
    "CodeLlama-70b-hf": gated(
        "Llama", 32016, 8192, 80, (64, 8), 28672, 16384, "CodeLlama-70b-Python-hf CodeLlama-70b-Instruct-hf"),
    "TinyLlama-1.1B": gated(
        "Llama", 32000, 2048, 22, (32, 4), 5632, 2048,
        "TinyLlama-1.1B-Chat-v1.0 TinyLlama-1.1B-intermediate-step-1431k-3T TinyLlama_v1.1"),
    "MicroLlama": gated("Llama", 32000, 1024, 12, (16, 4), 5632, 2048),
    "Llama-3.1-8B": gated(
        "Llama", 128256, 4096, 32, (32, 8), 14336, 131072,
        "Llama-3.1-8B-Instruct Meta-Llama-3.1-8B Meta-Llama-3.1-8B-Instruct Meta-Llama-3-8B Meta-Llama-3-8B-Instruct "
        "Llama-3-8B Llama-3-8B-Instruct DeepSeek-R1-Distill-Llama-8B Hermes-3-Llama-3.1-8B "
        "Llama-3.1-Nemotron-Nano-8B-v1 Llama-Guard-3-8B"),
    "Llama-3.1-70B": gated(
        "Llama", 128256, 8192, 80, (64, 8), 28672, 131072,
        "Llama-3.1-70B-Instruct Meta-Llama-3.1-70B Meta-Llama-3.1-70B-Instruct Meta-Llama-3-70B "
        "Meta-Llama-3-70B-Instruct Llama-3-70B Llama-3-70B-Instruct Llama-3.3-70B-Instruct "
        "Llama-3.1-Nemotron-70B-Instruct-HF DeepSeek-R1-Distill-Llama-70B"),
    "Llama-3.1-405B": gated(
        "Llama", 128256, 16384, 126, (128, 8), 53248, 131072,
        "Llama-3.1-405B-Instruct Meta-Llama-3.1-405B Meta-Llama-3.1-405B-Instruct"),
    "Llama-3.2-1B": gated("Llama", 128256, 2048, 16, (32, 8), 8192, 131072, "Llama-3.2-1B-Instruct", **_TIED),
    "Llama-3.2-3B": gated("Llama", 128256, 3072, 28, (24, 8), 8192, 131072, "Llama-3.2-3B-Instruct", **_TIED),
    "SmolLM2-135M": gated(
        "Llama", 49152, 576, 30, (9, 3), 1536, 8192,
        "SmolLM2-135M-Instruct SmolLM-135M SmolLM-135M-Instruct", **_TIED),
    "SmolLM2-360M": gated(
        "Llama", 49152, 960, 32, (15, 5), 2560, 8192,
        "SmolLM2-360M-Instruct SmolLM-360M SmolLM-360M-Instruct", **_TIED),
    "SmolLM2-1.7B": gated(
        "Llama", 49152, 2048, 24, (32, 32), 8192, 8192,
        "SmolLM2-1.7B-Instruct SmolLM-1.7B SmolLM-1.7B-Instruct", **_TIED),
    "SmolLM3-3B": gated("SmolLM3", 128256, 2048, 36, (16, 4), 11008, 65536, "SmolLM3-3B-Base", **_TIED),
    "Falcon3-1B-Base": gated("Llama", 131072, 2048, 18, (8, 4), 8192, 4096, "Falcon3-1B-Instruct", **_H256),
    "Falcon3-3B-Base": gated("Llama", 131072, 3072, 22, (12, 4), 9216, 32768, "Falcon3-3B-Instruct", **_H256),
    "Falcon3-7B-Base": gated("Llama", 131072, 3072, 28, (12, 4), 23040, 32768, "Falcon3-7B-Instruct", **_H256),
    "Falcon3-10B-Base": gated("Llama", 131072, 3072, 40, (12, 4), 23040, 32768, "Falcon3-10B-Instruct", **_H256),
    "salamandra-2b": gated("Llama", 256000, 2048, 24, (16, 16), 5440, 8192, "salamandra-2b-instruct"),
    "salamandra-7b": gated("Llama", 256000, 4096, 32, (32, 8), 11008, 8192, "salamandra-7b-instruct"),
    "Yi-6B": gated("Llama", 64000, 4096, 32, (32, 4), 11008, 4096, "Yi-6B-Chat Yi-1.5-6B Yi-1.5-6B-Chat"),
    "Yi-34B": gated("Llama", 64000, 7168, 60, (56, 8), 20480, 4096, "Yi-34B-Chat Yi-1.5-34B Yi-1.5-34B-Chat"),
    "deepseek-llm-7b-base": gated("Llama", 102400, 4096, 30, (32, 32), 11008, 4096,
        "deepseek-llm-7b-chat deepseek-math-7b-base deepseek-math-7b-instruct"),
    "deepseek-coder-6.7b-base": gated(
        "Llama", 32256, 4096, 32, (32, 32), 11008, 16384, "deepseek-coder-6.7b-instruct"),
}  # fmt: skip

_QWENS = {
    "Qwen1.5-0.5B": gated("Qwen2", 151936, 1024, 24, (16, 16), 2816, 32768, "Qwen1.5-0.5B-Chat", **_TIED),
    "Qwen1.5-1.8B": gated("Qwen2", 151936, 2048, 24, (16, 16), 5504, 32768, "Qwen1.5-1.8B-Chat"),
    "Qwen1.5-4B": gated("Qwen2", 151936, 2560, 40, (20, 20), 6912, 32768, "Qwen1.5-4B-Chat"),
    "Qwen1.5-7B": gated("Qwen2", 151936, 4096, 32, (32, 32), 11008, 32768, "Qwen1.5-7B-Chat"),
    "Qwen1.5-14B": gated("Qwen2", 152064, 5120, 40, (40, 40), 13696, 32768, "Qwen1.5-14B-Chat"),
    "Qwen2.5-0.5B": gated(
        "Qwen2", 151936, 896, 24, (14, 2), 4864, 32768,
        "Qwen2.5-0.5B-Instruct Qwen2.5-Coder-0.5B Qwen2.5-Coder-0.5B-Instruct Qwen2-0.5B Qwen2-0.5B-Instruct", **_TIED),
    "Qwen2.5-1.5B": gated(
        "Qwen2", 151936, 1536, 28, (12, 2), 8960, 131072,
        "Qwen2.5-1.5B-Instruct Qwen2.5-Coder-1.5B Qwen2.5-Coder-1.5B-Instruct Qwen2.5-Math-1.5B "
        "Qwen2.5-Math-1.5B-Instruct Qwen2-1.5B Qwen2-1.5B-Instruct", **_TIED),
    "Qwen2.5-3B": gated(
        "Qwen2", 151936, 2048, 36, (16, 2), 11008, 32768,
        "Qwen2.5-3B-Instruct Qwen2.5-Coder-3B Qwen2.5-Coder-3B-Instruct", **_TIED),
    "Qwen2.5-7B": gated(
        "Qwen2", 152064, 3584, 28, (28, 4), 18944, 131072,
        "Qwen2.5-7B-Instruct Qwen2.5-7B-Instruct-1M Qwen2.5-Coder-7B Qwen2.5-Coder-7B-Instruct Qwen2.5-Math-7B "
        "Qwen2.5-Math-7B-Instruct Qwen2-7B Qwen2-7B-Instruct DeepSeek-R1-Distill-Qwen-7B"),
    "Qwen2.5-14B": gated(
        "Qwen2", 152064, 5120, 48, (40, 8), 13824, 131072,
        "Qwen2.5-14B-Instruct Qwen2.5-14B-Instruct-1M Qwen2.5-Coder-14B Qwen2.5-Coder-14B-Instruct "
        "DeepSeek-R1-Distill-Qwen-14B"),
    "Qwen2.5-32B": gated(
        "Qwen2", 152064, 5120, 64, (40, 8), 27648, 131072,
        "Qwen2.5-32B-Instruct Qwen2.5-Coder-32B Qwen2.5-Coder-32B-Instruct QwQ-32B QwQ-32B-Preview "
        "DeepSeek-R1-Distill-Qwen-32B"),
    "Qwen2.5-72B": gated(
        "Qwen2", 152064, 8192, 80, (64, 8), 29568, 131072,
        "Qwen2.5-72B-Instruct Qwen2.5-Math-72B Qwen2.5-Math-72B-Instruct Qwen2-72B Qwen2-72B-Instruct"),
    "DeepSeek-R1-Distill-Qwen-1.5B": gated("Qwen2", 151936, 1536, 28, (12, 2), 8960, 131072),
    "Qwen3-0.6B": gated("Qwen3", 151936, 1024, 28, (16, 8), 3072, 40960, "Qwen3-0.6B-Base", **_TIED, **_H128),
    "Qwen3-1.7B": gated("Qwen3", 151936, 2048, 28, (16, 8), 6144, 40960, "Qwen3-1.7B-Base", **_TIED, **_H128),
    "Qwen3-4B": gated(
        "Qwen3", 151936, 2560, 36, (32, 8), 9728, 40960,
        "Qwen3-4B-Base Qwen3-4B-Instruct-2507 Qwen3-4B-Thinking-2507", **_TIED, **_H128),
    "Qwen3-8B": gated(
        "Qwen3", 151936, 4096, 36, (32, 8), 12288, 40960, "Qwen3-8B-Base DeepSeek-R1-0528-Qwen3-8B", **_H128),
    "Qwen3-14B": gated("Qwen3", 151936, 5120, 40, (40, 8), 17408, 40960, "Qwen3-14B-Base", **_H128),
    "Qwen3-32B": gated("Qwen3", 151936, 5120, 64, (64, 8), 25600, 40960, **_H128),
}  # fmt: skip

_LAYER_NORMS: dict[str, Any] = {"partial_rotary_factor": 0.25, "use_qkv_bias": False}
_OTHERS = {
    "Mistral-7B-v0.1": gated(
        "Mistral", 32000, 4096, 32, (32, 8), 14336, 32768, "Mistral-7B-Instruct-v0.1 zephyr-7b-beta zephyr-7b-alpha",
        sliding_window=4096),
    "Mistral-7B-v0.2": gated(
        "Mistral", 32000, 4096, 32, (32, 8), 14336, 32768, "Mistral-7B-Instruct-v0.2", sliding_window=None),
    "Mistral-7B-v0.3": gated(
        "Mistral", 32768, 4096, 32, (32, 8), 14336, 32768, "Mistral-7B-Instruct-v0.3 mathstral-7B-v0.1",
        sliding_window=None),
    "Ministral-8B-Instruct-2410": gated(
        "Mistral", 131072, 4096, 36, (32, 8), 12288, 32768, **_H128, sliding_window=None),
    "Mistral-Nemo-Base-2407": gated(
        "Mistral", 131072, 5120, 40, (32, 8), 14336, 131072, "Mistral-Nemo-Instruct-2407", **_H128,
        sliding_window=None),
    "Codestral-22B-v0.1": gated("Mistral", 32768, 6144, 56, (48, 8), 16384, 32768, sliding_window=None),
    "Mistral-Small-24B-Base-2501": gated(
        "Mistral", 131072, 5120, 40, (32, 8), 32768, 32768, "Mistral-Small-24B-Instruct-2501", **_H128,
        sliding_window=None),
    "Mistral-Large-Instruct-2407": gated(
        "Mistral", 32768, 12288, 88, (96, 8), 28672, 131072, "Mistral-Large-Instruct-2411", **_H128,
        sliding_window=None),
    "gemma-2b": gated("Gemma", 256000, 2048, 18, (8, 1), 16384, 8192, "gemma-2b-it codegemma-2b", **_H256),
    "gemma-7b": gated(
        "Gemma", 256000, 3072, 28, (16, 16), 24576, 8192, "gemma-7b-it codegemma-7b codegemma-7b-it", **_H256),
    "gemma-2-2b": gated("Gemma2", 256000, 2304, 26, (8, 4), 9216, 8192, "gemma-2-2b-it", **_H256, sliding_window=4096),
    "gemma-2-9b": gated(
        "Gemma2", 256000, 3584, 42, (16, 8), 14336, 8192, "gemma-2-9b-it", **_H256, sliding_window=4096),
    "gemma-2-27b": gated(
        "Gemma2", 256000, 4608, 46, (32, 16), 36864, 8192, "gemma-2-27b-it", **_H128, sliding_window=4096),
    "gemma-3-270m": gated(
        "Gemma3", 262144, 640, 18, (4, 1), 2048, 32768, "gemma-3-270m-it", **_H256, sliding_window=512),
    "gemma-3-1b-pt": gated(
        "Gemma3", 262144, 1152, 26, (4, 1), 6912, 32768, "gemma-3-1b-it", **_H256, sliding_window=512),
    "phi-1": gated("Phi", 51200, 2048, 24, (32, 32), 8192, 2048),
    "phi-1_5": gated("Phi", 51200, 2048, 24, (32, 32), 8192, 2048),
    "phi-2": gated("Phi", 51200, 2560, 32, (32, 32), 10240, 2048, partial_rotary_factor=0.4),
    "Phi-3-mini-4k-instruct": gated(
        "Phi3", 32064, 3072, 32, (32, 32), 8192, 4096, "Phi-3-mini-128k-instruct Phi-3.5-mini-instruct"),
    "Phi-3-medium-4k-instruct": gated(
        "Phi3", 32064, 5120, 40, (40, 10), 17920, 4096, "Phi-3-medium-128k-instruct"),
    "phi-4": gated("Phi3", 100352, 5120, 40, (40, 10), 17920, 16384, "Phi-4-reasoning Phi-4-reasoning-plus"),
    "Phi-4-mini-instruct": gated(
        "Phi3", 200064, 3072, 32, (24, 8), 8192, 131072, "Phi-4-mini-reasoning", **_TIED, partial_rotary_factor=0.75),
    "OLMo-1B-hf": gated("Olmo", 50304, 2048, 16, (16, 16), 8192, 2048, **_TIED),
    "OLMo-7B-hf": gated("Olmo", 50304, 4096, 32, (32, 32), 11008, 2048, "OLMo-7B-Instruct-hf"),
    "OLMo-2-1124-7B": gated(
        "Olmo2", 100352, 4096, 32, (32, 32), 11008, 4096,
        "OLMo-2-1124-7B-SFT OLMo-2-1124-7B-DPO OLMo-2-1124-7B-Instruct"),
    "OLMo-2-1124-13B": gated(
        "Olmo2", 100352, 5120, 40, (40, 40), 13824, 4096,
        "OLMo-2-1124-13B-SFT OLMo-2-1124-13B-DPO OLMo-2-1124-13B-Instruct"),
    "stablelm-3b-4e1t": gated(
        "StableLm", 50304, 2560, 32, (32, 32), 6912, 4096, "stablelm-zephyr-3b stable-code-3b", **_LAYER_NORMS),
    "starcoder2-3b": gated("Starcoder2", 49152, 3072, 30, (24, 2), 12288, 16384),
    "starcoder2-7b": gated("Starcoder2", 49152, 4608, 32, (36, 4), 18432, 16384),
    "starcoder2-15b": gated(
        "Starcoder2", 49152, 6144, 40, (48, 4), 24576, 16384, "starcoder2-15b-instruct-v0.1",
        tie_word_embeddings=False),
}  # fmt: skip

GATED: dict[str, Published] = _LLAMAS | _QWENS | _OTHERS | RELATED
