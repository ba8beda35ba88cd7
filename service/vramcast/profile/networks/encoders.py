"""Networks that read a whole text: encoders, and encoders with a decoder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vramcast.profile.networks.huggingface import SHORT, Published, text_source, widths
from vramcast.profile.sources import ModelSource


def sources() -> Iterator[ModelSource]:
    for name, published in _ENCODERS.items():
        yield text_source(name, published, "ForMaskedLM", SHORT)
    for name, published in _ENCODER_DECODERS.items():
        yield text_source(name, published, "ForConditionalGeneration", (128, 1024))


def _bert(vocabulary: int, width: int, layers: int, heads: int, also: str = "") -> Published:
    return Published("Bert", widths(vocabulary, width, layers, heads), tuple(also.split()))


def _albert(width: int, layers: int, heads: int, dropout: float) -> Published:
    """All blocks are one."""
    fields = widths(30000, width, layers, heads, embedding_size=128)
    chances = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return Published("Albert", fields | chances)


def _roberta(kind: str, vocabulary: int, width: int, layers: int, heads: int, also: str = "") -> Published:
    fields = widths(vocabulary, width, layers, heads, max_position_embeddings=514, type_vocab_size=1)
    return Published(kind, fields, tuple(also.split()))


def _small_bert(layers: int, also: str) -> Published:
    return _bert(30522, 384, layers, 12, also)


def _distil(vocabulary: int) -> Published:
    fields = {"vocab_size": vocabulary, "dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072}
    return Published("DistilBert", fields)


def _modern(width: int, layers: int, heads: int, inner: int) -> Published:
    fields = widths(50368, width, layers, heads, max_position_embeddings=8192)
    return Published("ModernBert", {**fields, "intermediate_size": inner})


def _deberta(vocabulary: int, width: int, layers: int, heads: int) -> Published:
    more: dict[str, Any] = {
        "relative_attention": True, "position_buckets": 256, "norm_rel_ebd": "layer_norm", "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"], "max_relative_positions": -1, "position_biased_input": False,
        "type_vocab_size": 0,
    }  # fmt: skip
    return Published("DebertaV2", widths(vocabulary, width, layers, heads, **more))


def _electra(embedding: int, width: int, layers: int, heads: int) -> Published:
    return Published("Electra", widths(30522, width, layers, heads, embedding_size=embedding))


_ENCODERS = {
    "bert-tiny": _bert(30522, 128, 2, 2),
    "bert-mini": _bert(30522, 256, 4, 4),
    "bert-small": _bert(30522, 512, 4, 8),
    "bert-medium": _bert(30522, 512, 8, 8),
    "bert-base-uncased": _bert(
        30522, 768, 12, 12, "bge-base-en-v1.5 e5-base-v2 e5-base gte-base msmarco-bert-base-dot-v5"
    ),
    "bert-base-cased": _bert(28996, 768, 12, 12),
    "bert-base-chinese": _bert(21128, 768, 12, 12),
    "bert-base-multilingual-cased": _bert(119547, 768, 12, 12),
    "bert-large-uncased": _bert(30522, 1024, 24, 16, "bge-large-en-v1.5 e5-large-v2 e5-large gte-large"),
    "bert-large-cased": _bert(28996, 1024, 24, 16),
    "roberta-base": _roberta("Roberta", 50265, 768, 12, 12),
    "roberta-large": _roberta("Roberta", 50265, 1024, 24, 16),
    "distilroberta-base": _roberta("Roberta", 50265, 768, 6, 12),
    "xlm-roberta-base": _roberta("XLMRoberta", 250002, 768, 12, 12, "multilingual-e5-base"),
    "xlm-roberta-large": _roberta("XLMRoberta", 250002, 1024, 24, 16, "multilingual-e5-large"),
    "distilbert-base-uncased": _distil(30522),
    "distilbert-base-cased": _distil(28996),
    "distilbert-base-multilingual-cased": _distil(119547),
    "ModernBERT-base": _modern(768, 22, 12, 1152),
    "ModernBERT-large": _modern(1024, 28, 16, 2624),
    "deberta-v3-small": _deberta(128100, 768, 6, 12),
    "deberta-v3-base": _deberta(128100, 768, 12, 12),
    "deberta-v3-large": _deberta(128100, 1024, 24, 16),
    "albert-base-v1": _albert(768, 12, 12, 0.1),
    "albert-base-v2": _albert(768, 12, 12, 0.0),
    "bge-small-en-v1.5": _small_bert(12, "e5-small-v2 gte-small all-MiniLM-L12-v2"),
    "all-MiniLM-L6-v2": _small_bert(6, "multi-qa-MiniLM-L6-cos-v1 ms-marco-MiniLM-L6-v2"),
    "electra-small-generator": _electra(128, 256, 12, 4),
    "electra-base-generator": _electra(768, 256, 12, 4),
}


def _t5(width: int, layers: int, heads: int, inner: int, key: int = 64, also: str = "", **more: Any) -> Published:
    return Published("T5", {
        "vocab_size": 32128, "d_model": width, "num_layers": layers, "num_heads": heads, "d_ff": inner,
        "d_kv": key, "decoder_start_token_id": 0, **more,
    }, tuple(also.split()))  # fmt: skip


def _bart(width: int, layers: int, heads: int) -> Published:
    return Published("Bart", {
        "vocab_size": 50265, "d_model": width, "encoder_layers": layers, "decoder_layers": layers,
        "encoder_attention_heads": heads, "decoder_attention_heads": heads, "encoder_ffn_dim": 4 * width,
        "decoder_ffn_dim": 4 * width, "max_position_embeddings": 1024,
    })  # fmt: skip


_FLAN: dict[str, Any] = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
_ENCODER_DECODERS = {
    "t5-small": _t5(512, 6, 8, 2048),
    "t5-base": _t5(768, 12, 12, 3072),
    "t5-large": _t5(1024, 24, 16, 4096),
    "t5-3b": _t5(1024, 24, 32, 16384, 128),
    "t5-11b": _t5(1024, 24, 128, 65536, 128),
    "flan-t5-small": _t5(512, 8, 6, 1024, also="t5-v1_1-small", **_FLAN),
    "flan-t5-base": _t5(768, 12, 12, 2048, also="t5-v1_1-base", **_FLAN),
    "flan-t5-large": _t5(1024, 24, 16, 2816, also="t5-v1_1-large", **_FLAN),
    "flan-t5-xl": _t5(2048, 24, 32, 5120, also="t5-v1_1-xl T0_3B", **_FLAN),
    "flan-t5-xxl": _t5(4096, 24, 64, 10240, also="t5-v1_1-xxl T0 T0pp", **_FLAN),
    "bart-base": _bart(768, 6, 12),
    "bart-large": _bart(1024, 12, 16),
}
