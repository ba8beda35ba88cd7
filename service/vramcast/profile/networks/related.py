"""More language models with gated layers: InternLM, Baichuan, Aquila, GLM, Granite, and small ones for code."""

from __future__ import annotations

from typing import Any

from vramcast.profile.networks.huggingface import Published, gated

_TIED: dict[str, Any] = {"tie_word_embeddings": True}
_H128: dict[str, Any] = {"head_dim": 128}
# Half of each head is rotated; queries, keys and values have a bias.
_GLM: dict[str, Any] = {"attention_bias": True, "partial_rotary_factor": 0.5, **_H128}

RELATED: dict[str, Published] = {
    "internlm-7b": gated(
        "Llama", 103168, 4096, 32, (32, 32), 11008, 2048, "internlm-chat-7b", attention_bias=True),
    "internlm-20b": gated("Llama", 103168, 5120, 60, (40, 40), 13824, 4096, "internlm-chat-20b"),
    "internlm2-1_8b": gated("Llama", 92544, 2048, 24, (16, 8), 8192, 32768, "internlm2-chat-1_8b internlm2_5-1_8b"),
    "internlm2-7b": gated(
        "Llama", 92544, 4096, 32, (32, 8), 14336, 32768,
        "internlm2-base-7b internlm2-chat-7b internlm2_5-7b internlm2_5-7b-chat"),
    "internlm2-20b": gated(
        "Llama", 92544, 6144, 48, (48, 8), 16384, 32768,
        "internlm2-base-20b internlm2-chat-20b internlm2_5-20b internlm2_5-20b-chat"),
    "Baichuan2-7B-Base": gated(
        "Llama", 125696, 4096, 32, (32, 32), 11008, 4096, "Baichuan2-7B-Chat"),
    "Aquila2-7B": gated("Llama", 100008, 4096, 32, (32, 32), 11008, 2048, "AquilaChat2-7B"),
    "chatglm2-6b": gated(
        "Glm", 65024, 4096, 28, (32, 2), 13696, 32768, "chatglm3-6b chatglm3-6b-base chatglm3-6b-32k", **_GLM),
    "glm-4-9b": gated(
        "Glm", 151552, 4096, 40, (32, 2), 13696, 131072, "glm-4-9b-hf glm-4-9b-chat glm-4-9b-chat-hf", **_GLM),
    "GLM-4-9B-0414": gated(
        "Glm4", 151552, 4096, 40, (32, 2), 13696, 32768, "GLM-Z1-9B-0414", **_GLM),
    "GLM-4-32B-0414": gated(
        "Glm4", 151552, 6144, 61, (48, 2), 23040, 32768, "GLM-4-32B-Base-0414 GLM-Z1-32B-0414",
        **{**_GLM, "attention_bias": False}),
    "granite-3.0-2b-base": gated(
        "Granite", 49155, 2048, 40, (32, 8), 8192, 4096,
        "granite-3.0-2b-instruct granite-3.1-2b-base granite-3.1-2b-instruct granite-3.2-2b-instruct", **_TIED),
    "granite-3.0-8b-base": gated(
        "Granite", 49155, 4096, 40, (32, 8), 12800, 4096,
        "granite-3.0-8b-instruct granite-3.1-8b-base granite-3.1-8b-instruct granite-3.2-8b-instruct", **_TIED),
    "deepseek-coder-1.3b-base": gated(
        "Llama", 32256, 2048, 24, (16, 16), 5504, 16384, "deepseek-coder-1.3b-instruct"),
    "deepseek-coder-33b-base": gated(
        "Llama", 32256, 7168, 62, (56, 8), 19200, 16384, "deepseek-coder-33b-instruct"),
}  # fmt: skip
