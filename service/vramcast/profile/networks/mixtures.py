"""Mixtures of experts. Every token is computed by a few experts, but all of them are weights."""

from __future__ import annotations

from typing import Any

from vramcast.profile.networks.huggingface import Published, gated


def _qwen3(width: int, layers: int, heads: int, inner: int, expert: int, also: str) -> Published:
    return gated(
        "Qwen3Moe", 151936, width, layers, (heads, 4), inner, 40960, also, head_dim=128, num_experts=128,
        num_experts_per_tok=8, moe_intermediate_size=expert, norm_topk_prob=True, decoder_sparse_step=1,
    )  # fmt: skip


def _gpt_oss(layers: int, experts: int) -> Published:
    return gated(
        "GptOss", 201088, 2880, layers, (64, 8), 2880, 131072, head_dim=64, num_local_experts=experts,
        num_experts_per_tok=4, sliding_window=128,
    )  # fmt: skip


def _granite(width: int, layers: int, heads: int, experts: int, also: str) -> Published:
    return gated(
        "GraniteMoe", 49155, width, layers, (heads, 8), 512, 4096, also, num_local_experts=experts,
        num_experts_per_tok=8, tie_word_embeddings=True,
    )  # fmt: skip


_DEEPSEEK_LITE: dict[str, Any] = {
    "moe_intermediate_size": 1408, "n_shared_experts": 2, "n_routed_experts": 64, "num_experts_per_tok": 6,
    "first_k_dense_replace": 1, "kv_lora_rank": 512, "q_lora_rank": None, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128, "v_head_dim": 128, "n_group": 1, "topk_group": 1, "topk_method": "greedy",
}  # fmt: skip
_DEEPSEEK_3: dict[str, Any] = {
    "moe_intermediate_size": 2048, "n_shared_experts": 1, "n_routed_experts": 256, "num_experts_per_tok": 8,
    "first_k_dense_replace": 3, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128, "v_head_dim": 128, "n_group": 8, "topk_group": 4,
}  # fmt: skip

MIXTURES: dict[str, Published] = {
    "Mixtral-8x7B-v0.1": gated(
        "Mixtral", 32000, 4096, 32, (32, 8), 14336, 32768, "Mixtral-8x7B-Instruct-v0.1", num_local_experts=8,
        num_experts_per_tok=2, sliding_window=None),
    "Mixtral-8x22B-v0.1": gated(
        "Mixtral", 32768, 6144, 56, (48, 8), 16384, 65536, "Mixtral-8x22B-Instruct-v0.1", num_local_experts=8,
        num_experts_per_tok=2, sliding_window=None),
    "Qwen3-30B-A3B": _qwen3(
        2048, 48, 32, 6144, 768,
        "Qwen3-30B-A3B-Base Qwen3-30B-A3B-Instruct-2507 Qwen3-30B-A3B-Thinking-2507 Qwen3-Coder-30B-A3B-Instruct"),
    "Qwen3-235B-A22B": _qwen3(
        4096, 94, 64, 12288, 1536, "Qwen3-235B-A22B-Instruct-2507 Qwen3-235B-A22B-Thinking-2507"),
    "Qwen1.5-MoE-A2.7B": gated(
        "Qwen2Moe", 151936, 2048, 24, (16, 16), 5632, 8192, "Qwen1.5-MoE-A2.7B-Chat", num_experts=60,
        num_experts_per_tok=4, moe_intermediate_size=1408, shared_expert_intermediate_size=5632, decoder_sparse_step=1),
    "granite-3.0-1b-a400m-base": _granite(
        1024, 24, 16, 32, "granite-3.0-1b-a400m-instruct granite-3.1-1b-a400m-base granite-3.1-1b-a400m-instruct"),
    "granite-3.0-3b-a800m-base": _granite(
        1536, 32, 24, 40, "granite-3.0-3b-a800m-instruct granite-3.1-3b-a800m-base granite-3.1-3b-a800m-instruct"),
    "Moonlight-16B-A3B": gated(
        "DeepseekV3", 163840, 2048, 27, (16, 16), 11264, 8192, "Moonlight-16B-A3B-Instruct",
        **{**_DEEPSEEK_LITE, "topk_method": "noaux_tc"}),
    "gpt-oss-20b": _gpt_oss(24, 32),
    "gpt-oss-120b": _gpt_oss(36, 128),
    "DeepSeek-V2-Lite": gated(
        "DeepseekV2", 102400, 2048, 27, (16, 16), 10944, 163840,
        "DeepSeek-V2-Lite-Chat DeepSeek-Coder-V2-Lite-Base DeepSeek-Coder-V2-Lite-Instruct", **_DEEPSEEK_LITE),
    "DeepSeek-V3": gated(
        "DeepseekV3", 129280, 7168, 61, (128, 128), 18432, 163840,
        "DeepSeek-V3-Base DeepSeek-R1 DeepSeek-R1-0528 DeepSeek-V3-0324", **_DEEPSEEK_3),
}  # fmt: skip
