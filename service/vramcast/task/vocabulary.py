"""The annotations that a pod may carry, as one table.

Parsing, messages, `vramcast annotations`, `--help`, the docs page and the JSON Schema are all made from it, so they
cannot drift apart. The same goes for the defaults, which forecasts list as assumptions, and for contradictions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from vramcast.task.forms import Form, Value, count, dimensions, flag, memory, names_of, one_of, risk, slowdown, words
from vramcast.task.framework import libraries

PREFIX = "vramcast.dev/"

# Kubernetes allows 256 KiB of annotations in total. Only a profile needs to be long.
MAX_VALUE_LENGTH = 256
MAX_PROFILE_LENGTH = 64 * 1024


class Level(StrEnum):
    """How a task is described, from least to most detail."""

    GIVEN = "given"
    SUMMARY = "summary"
    NAME = "name"
    PROFILE = "profile"


class Kind(StrEnum):
    TRAINING = "training"
    FINE_TUNING = "fine-tuning"
    INFERENCE = "inference"


class Architecture(StrEnum):
    MLP = "mlp"
    CNN = "cnn"
    TRANSFORMER = "transformer"
    RNN = "rnn"
    DIFFUSION = "diffusion"
    GNN = "gnn"


class Precision(StrEnum):
    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    AMP_FP16 = "amp-fp16"
    AMP_BF16 = "amp-bf16"
    FP8 = "fp8"
    INT8 = "int8"


class Optimizer(StrEnum):
    SGD = "sgd"
    SGD_MOMENTUM = "sgd-momentum"
    ADAM = "adam"
    ADAMW = "adamw"
    RMSPROP = "rmsprop"
    ADAGRAD = "adagrad"
    ADAFACTOR = "adafactor"
    LION = "lion"
    ADAM8BIT = "adam8bit"


class Quantization(StrEnum):
    NONE = "none"
    INT8 = "int8"
    INT4 = "int4"
    NF4 = "nf4"


class Attention(StrEnum):
    FLASH = "flash"
    SDPA = "sdpa"  # torch chooses: its flash kernel in 16 bits, the memory-efficient one in fp32
    EAGER = "eager"  # the matrix of every head is written and kept


class Offload(StrEnum):
    """What is kept in the host's memory."""

    NONE = "none"
    OPTIMIZER = "optimizer"
    PARAMETERS = "parameters"  # and the optimizer


class Kernels(StrEnum):
    NONE = "none"
    FUSED = "fused"  # norms, rotary positions and activations
    LIGER = "liger"  # those, and a loss that never writes the logits


class Length(StrEnum):
    """What the sequence length of a task is."""

    FIXED = "fixed"  # that of every sample
    LONGEST = "longest"  # samples differ, and none is longer
    PADDED = "padded"  # samples differ: the mean, padding included, of batches that are padded to their longest sample
    PACKED = "packed"  # samples differ: the mean, and nothing is padded


class Allocator(StrEnum):
    DEFAULT = "default"
    EXPANDABLE_SEGMENTS = "expandable-segments"


class Cap(StrEnum):
    """Whether runtimes get a limit at bind, so that a run which outgrows its promise fails instead of its neighbour."""

    SOFT = "soft"  # the promise and some slack
    OFF = "off"


class LoraTargets(StrEnum):
    """Words for the modules that get adapters. A task may also name the modules."""

    QV = "qv"
    ATTENTION = "attention"
    ALL_LINEAR = "all-linear"


@dataclass(frozen=True, slots=True)
class Key:
    """One annotation: how its value is read, and its documentation."""

    name: str
    form: Form
    meaning: str
    example: str
    levels: tuple[Level, ...] = ()  # of description that it belongs to; empty: always allowed
    max_length: int = MAX_VALUE_LENGTH
    default: str = ""
    told: bool = True  # a forecast that assumes the default lists it; False: usual, or only told where it matters

    @property
    def annotation(self) -> str:
        return PREFIX + self.name

    @property
    def parse(self) -> Callable[[str], Value]:
        return self.form.parse


# Names used by Lightning, the HF Trainer and torch.
_PRECISIONS = {
    "float32": "fp32", "32": "fp32", "32-true": "fp32", "float16": "fp16", "half": "fp16", "16-true": "fp16",
    "bfloat16": "bf16", "bf16-true": "bf16", "16": "amp-fp16", "16-mixed": "amp-fp16", "amp": "amp-fp16",
    "mixed": "amp-fp16", "bf16-mixed": "amp-bf16",
}  # fmt: skip
_OPTIMIZERS = {
    "adamw_torch": "adamw", "adamw_torch_fused": "adamw", "adamw_hf": "adamw", "adamw_8bit": "adam8bit",
    "adamw_bnb_8bit": "adam8bit", "paged_adamw_8bit": "adam8bit", "momentum": "sgd-momentum",
    "nesterov": "sgd-momentum",
}  # fmt: skip
_KINDS = {"train": "training", "pretraining": "training", "finetune": "fine-tuning", "sft": "fine-tuning",
          "predict": "inference", "serving": "inference", "eval": "inference"}  # fmt: skip
_ARCHITECTURES = {"convnet": "cnn", "resnet": "cnn", "vit": "transformer", "llm": "transformer", "bert": "transformer",
                  "lstm": "rnn", "gru": "rnn", "unet": "diffusion"}  # fmt: skip

_ATTENTIONS = {"flash_attention_2": "flash", "flash_attention_3": "flash", "fa2": "flash", "xformers": "sdpa",
               "efficient": "sdpa", "math": "eager"}  # fmt: skip
_KERNELS = {"foak": "fused", "apex": "fused", "liger-kernel": "liger", "use_liger_kernel": "liger", "unsloth": "liger"}
_OFFLOADS = {"cpu": "optimizer", "offload_optimizer": "optimizer", "offload_param": "parameters",
             "params": "parameters"}  # fmt: skip
_ALLOCATORS = {"expandable_segments:true": "expandable-segments", "native": "default"}
_ATTENTION_MODULES = frozenset({"q_proj", "k_proj", "v_proj", "o_proj"})
# Lists that mean the same as a word, in the spelling of Llama and its relatives.
_SPELT_OUT = {
    frozenset({"q_proj", "v_proj"}): LoraTargets.QV,
    _ATTENTION_MODULES: LoraTargets.ATTENTION,
    _ATTENTION_MODULES | {"gate_proj", "up_proj", "down_proj"}: LoraTargets.ALL_LINEAR,
}

_SUMMARY = (Level.SUMMARY,)
_DESCRIBED = (Level.SUMMARY, Level.NAME, Level.PROFILE)
# Of the usual optimizers AdamW needs the most memory, so the default errs on the safe side.
_OPTIMIZER = "adamw"
# Of torch, transformers and diffusers. A task that does not say keeps None: a forecast tells it where it matters.
DEFAULT_ATTENTION = Attention.SDPA

KEYS: dict[str, Key] = {
    key.name: key
    for key in (
        Key("gpu-memory", memory, "memory needed on each GPU, everything included; no forecast is made", "16Gi"),
        Key("share", flag, "may share a GPU with other pods; the pod then asks for no GPU device", '"true"'),
        Key("gpus", count(1, 64, "2"), "number of GPUs, for a pod that shares them", '"1"'),
        Key("cap", one_of(Cap, {"hard": "soft", "none": "off", "false": "off", "true": "soft"}),
            "limit for the pod's runtimes: soft (what is reserved, and some slack; usual for a pod that shares) or off",
            '"off"'),
        Key("max-oom-risk", risk, "largest accepted probability of running out of GPU memory", "0.01"),
        Key("max-slowdown", slowdown, "longest that a run beside others may take, as a multiple of its time alone; "
            "keeps pods off a GPU that would slow each other more", "1.3"),
        Key("architecture", one_of(Architecture, _ARCHITECTURES), "family of the network", "cnn", _SUMMARY),
        Key("parameters", count(1, 10**13, "25.6M"), "weights in the network", "25.6M", _SUMMARY),
        Key("layers", count(1, 10**5, "50"), "layers in the network", '"50"', _SUMMARY),
        Key("activations", count(1, 10**13, "21.5M"),
            "elements that one sample keeps alive at the peak (printed by `vramcast profile` and `vramcast catalog`)",
            "21.5M", _SUMMARY),
        Key("model", words("a name such as timm/resnet50"), "a model known by name", "timm/resnet50", (Level.NAME,)),
        Key("profile", words("what `vramcast profile` printed"), "a layer profile of your own module", "v1:…",
            (Level.PROFILE,), MAX_PROFILE_LENGTH),
        Key("batch-size", count(1, 10**7, "32"), "samples in a step on each GPU", '"32"', _DESCRIBED, default="1"),
        Key("input-size", dimensions, "size of one sample", "3x224x224", _DESCRIBED),
        Key("sequence-length", count(1, 10**7, "512"), "tokens in one sample", '"512"', _DESCRIBED),
        Key("length", one_of(Length),
            "where samples differ, what `sequence-length` is: the `longest`, or the mean of `padded` or `packed` ones",
            "longest", _DESCRIBED, default=Length.FIXED, told=False),
        Key("precision", one_of(Precision, _PRECISIONS), "number format of the run", "amp-bf16", _DESCRIBED,
            default="fp32"),
        Key("optimizer", one_of(Optimizer, _OPTIMIZERS), "optimizer of the run", "adamw", _DESCRIBED,
            default=_OPTIMIZER),
        Key("task", one_of(Kind, _KINDS), "what is run", "training", _DESCRIBED, default="training"),
        Key("gradient-checkpointing", flag, "activations are recomputed in the backward pass", '"true"', _DESCRIBED,
            default="false", told=False),
        Key("gradient-accumulation", count(1, 10**5, "4"), "batches whose gradients add up to one update", '"4"',
            _DESCRIBED, default="1", told=False),
        Key("attention", one_of(Attention, _ATTENTIONS), "how attention is computed", "flash", _DESCRIBED,
            default=DEFAULT_ATTENTION, told=False),
        Key("kernels", one_of(Kernels, _KERNELS), "fused kernels for norms, rotary positions and the loss", "liger",
            _DESCRIBED, default=Kernels.NONE, told=False),
        Key("lora-rank", count(1, 10**5, "16"), "rank of LoRA adapters; the base is frozen", '"16"', _DESCRIBED),
        Key("lora-targets", names_of(tuple(LoraTargets), _SPELT_OUT), "modules that get LoRA adapters", "attention",
            _DESCRIBED, default=LoraTargets.ALL_LINEAR),
        Key("quantization", one_of(Quantization), "format of frozen base weights", "nf4", _DESCRIBED,
            default=Quantization.NONE, told=False),
        Key("upcast", flag,
            "norms, embeddings and head of a quantized network are fp32, as PEFT's `prepare_model_for_kbit_training` "
            "makes them; usual for nf4 and int8, unless sharded", '"false"', _DESCRIBED, told=False),
        Key("zero-stage", count(0, 3, "2"), "ZeRO/FSDP sharding stage", '"2"', _DESCRIBED, default="0", told=False),
        Key("data-parallel-size", count(1, 10**5, "8"),
            "GPUs that train together; a sharding stage divides states among them", '"8"', _DESCRIBED, default="1",
            told=False),
        Key("master-weights", flag,
            "sharded 16-bit weights have fp32 copies; `\"false\"`: none, as in FSDP of a model cast to 16 bits",
            '"false"', _DESCRIBED, default="true", told=False),
        Key("offload", one_of(Offload, _OFFLOADS), "what is kept in the host's memory", "optimizer", _DESCRIBED,
            default=Offload.NONE, told=False),
        Key("allocator", one_of(Allocator, _ALLOCATORS), "how torch's caching allocator asks for memory",
            "expandable-segments", _DESCRIBED, default=Allocator.DEFAULT, told=False),
        Key("framework", libraries, "libraries of the job and their versions; `fsdp` or `deepspeed`: which one shards",
            "transformers==4.44,torch==2.4", _DESCRIBED, told=False),
    )
}  # fmt: skip

# What a forecast needs at each level. If several are complete the first counts: the user's own number above all.
ENOUGH: dict[Level, tuple[str, ...]] = {
    Level.GIVEN: ("gpu-memory",),
    Level.PROFILE: ("profile",),
    Level.NAME: ("model",),
    Level.SUMMARY: ("parameters", "activations", "batch-size"),
}

# Keys with the values that match; an empty tuple matches any value.
Condition = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Rule:
    """If `when` holds and `unless` does not, none of `forbids` may be present and all of `needs` must be."""

    when: Condition
    why: str
    forbids: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    unless: Condition = field(default_factory=dict)

    def broken(self, values: Mapping[str, Value], unreadable: Collection[str] = ()) -> list[str]:
        """The keys that break the rule. A key with an unreadable value is not missing."""
        if not _holds(self.when, values) or (self.unless and _holds(self.unless, values)):
            return []
        missing = [name for name in self.needs if name not in values and name not in unreadable]
        return [name for name in self.forbids if name in values] + (list(self.when)[:1] if missing else [])


def _holds(condition: Condition, values: Mapping[str, Value]) -> bool:
    return all(
        name in values and (not meant or _text(values[name]) in meant)
        for name, meant in condition.items()
    )  # fmt: skip


def _text(value: Value) -> str:
    """As an annotation has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


RULES: tuple[Rule, ...] = (
    Rule({"input-size": ()}, f"contradicts {PREFIX}input-size: give the one that the model reads",
         forbids=("sequence-length",)),
    Rule({"task": ("inference",)}, f"contradicts {PREFIX}task: inference trains nothing",
         forbids=("optimizer", "lora-rank", "gradient-checkpointing", "gradient-accumulation")),
    Rule({"task": ("inference",), "offload": ("optimizer",)}, f"contradicts {PREFIX}task: inference has no optimizer",
         forbids=("offload",)),
    Rule({"zero-stage": ("1", "2", "3")}, f"sharding needs {PREFIX}data-parallel-size to say over how many GPUs",
         needs=("data-parallel-size",)),
    Rule({"master-weights": ()}, f"only sharded weights have masters: give {PREFIX}zero-stage too",
         needs=("zero-stage",)),
    Rule({"master-weights": ("false",), "zero-stage": ("0", "1")},
         f"contradicts {PREFIX}zero-stage: FSDP, which has no masters, shards as stages 2 and 3 do",
         forbids=("master-weights",)),
    Rule({"quantization": ("int8", "int4", "nf4")}, f"quantized weights are not trained: give {PREFIX}lora-rank too",
         needs=("lora-rank",), unless={"task": ("inference",)}),
    Rule({"upcast": ()}, f"only the rest of a quantized network is upcast: give {PREFIX}quantization too",
         needs=("quantization",)),
    Rule({"upcast": ("true",), "quantization": ("none", "int4")},
         f"contradicts {PREFIX}quantization: PEFT upcasts the rest of nf4 and int8 networks only", forbids=("upcast",)),
    Rule({"lora-targets": ()}, f"modules get adapters only with {PREFIX}lora-rank", needs=("lora-rank",)),
    Rule({"attention": ("flash",)}, f"flash attention computes in 16 bits: give {PREFIX}precision, such as bf16",
         needs=("precision",)),
    Rule({"attention": ("flash",), "precision": ("fp32", "tf32")},
         f"contradicts {PREFIX}precision: flash attention computes in 16 bits, so this run has sdpa",
         forbids=("attention",)),
    Rule({"offload": ("parameters",)}, f"only sharded parameters are offloaded: give {PREFIX}zero-stage: 3 too",
         needs=("zero-stage",), unless={"task": ("inference",)}),
    Rule({"offload": ("parameters",), "zero-stage": ("0", "1", "2")},
         f"contradicts {PREFIX}zero-stage: parameters are offloaded in stage 3", forbids=("offload",),
         unless={"task": ("inference",)}),
)  # fmt: skip


def assumed(level: Level, values: Mapping[str, Value]) -> dict[str, str]:
    """The defaults that a forecast assumes and tells: those that are not given and break no rule."""
    return {
        key.name: key.default
        for key in KEYS.values()
        if key.default and key.told and level in key.levels and key.name not in values
        and not any(key.name in rule.broken({**values, key.name: key.default}) for rule in RULES)
    }  # fmt: skip


class Written(StrEnum):
    """Annotations that vramcast writes onto a pod together with its Binding."""

    FORECAST_MEMORY = PREFIX + "forecast-memory"
    RESERVED_MEMORY = PREFIX + "reserved-memory"
    FORECAST_UTILIZATION = PREFIX + "forecast-utilization"  # gpu_util
    FORECAST_SM_ACTIVE = PREFIX + "forecast-sm-active"
    FORECAST_SM_OCCUPANCY = PREFIX + "forecast-sm-occupancy"
    FORECAST_STEP_SECONDS = PREFIX + "forecast-step-seconds"
    GPU_INDICES = PREFIX + "gpu-indices"
    MODEL_VERSION = PREFIX + "model-version"
    CALIBRATION = PREFIX + "calibration"
    # In the forms that runtimes read. Variables of the containers refer to them.
    LIMIT_TORCH = PREFIX + "limit-torch"
    LIMIT_JAX = PREFIX + "limit-jax"
    LIMIT_TENSORFLOW = PREFIX + "limit-tensorflow"
    LIMIT_MPS = PREFIX + "limit-mps"
    LIMIT_HAMI_CORE = PREFIX + "limit-hami-core"


# Written by the webhook: what it added to the pod.
INJECTED = PREFIX + "injected"
