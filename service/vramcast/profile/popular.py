"""Models in the order in which they are recorded: what people run most comes first."""

from __future__ import annotations

_TEXT = (
    "Llama-3.1-8B", "Mistral-7B-v0.1", "Llama-3.2-1B", "Qwen2.5-7B", "Llama-2-7b-hf", "Qwen3-8B", "Llama-3.2-3B",
    "Llama-3.1-70B", "Mistral-7B-v0.3", "Qwen2.5-0.5B", "Qwen2.5-1.5B", "TinyLlama-1.1B", "gpt2", "Qwen2.5-3B",
    "Qwen2.5-14B", "Qwen2.5-32B", "Qwen3-0.6B", "Qwen3-4B", "Qwen3-1.7B", "Qwen3-14B", "Qwen3-32B", "Llama-2-13b-hf",
    "bert-base-uncased", "roberta-base", "gemma-2-2b", "gemma-2-9b", "gemma-3-1b-pt", "Phi-3-mini-4k-instruct", "phi-4",
    "phi-2", "distilbert-base-uncased", "Llama-2-70b-hf", "Qwen2.5-72B", "SmolLM2-135M", "SmolLM2-1.7B",
    "Mixtral-8x7B-v0.1", "Mistral-Nemo-Base-2407", "bert-large-uncased", "roberta-large", "ModernBERT-base",
    "SmolLM2-360M", "DeepSeek-R1-Distill-Qwen-1.5B", "Mistral-7B-v0.2", "pythia-1b", "pythia-70m", "pythia-160m",
    "pythia-410m", "pythia-1.4b", "pythia-2.8b", "pythia-6.9b", "opt-125m", "opt-1.3b", "opt-6.7b", "falcon-7b",
    "gpt2-medium", "gpt2-large", "gpt2-xl", "distilgpt2", "ModernBERT-large", "xlm-roberta-base", "bert-base-cased",
    "distilroberta-base", "xlm-roberta-large", "gemma-2b", "gemma-7b", "Phi-4-mini-instruct", "Qwen3-30B-A3B",
    "Mistral-Small-24B-Base-2501", "bert-base-multilingual-cased", "distilbert-base-cased", "CodeLlama-7b-hf",
    "Qwen1.5-0.5B", "santacoder", "opt-350m", "mpt-7b", "mpt-30b", "llama-7b", "llama-13b", "Qwen1.5-1.8B",
    "Qwen1.5-7B", "Qwen1.5-14B", "Yi-6B", "Yi-34B",
)  # fmt: skip
# Recorded too, although they have no repeated blocks of tokens.
_IMAGES = (
    "torchvision/resnet50", "timm/resnet50", "timm/vit_base_patch16_224", "torchvision/resnet18",
    "torchvision/resnet101", "torchvision/vit_b_16", "hf/vit-base-patch16-224", "timm/convnext_base",
    "timm/efficientnet_b0", "timm/swin_base_patch4_window7_224", "timm/vit_large_patch16_224", "torchvision/resnet152",
    "torchvision/convnext_tiny", "torchvision/efficientnet_b0", "torchvision/swin_t", "torchvision/vgg16",
    "torchvision/mobilenet_v2", "torchvision/mobilenet_v3_large", "torchvision/densenet121", "torchvision/resnet34",
    "timm/resnet18", "timm/resnet101", "timm/resnet152", "timm/resnet34", "timm/vit_small_patch16_224",
    "timm/vit_tiny_patch16_224", "timm/vit_large_patch14_clip_224", "timm/convnext_tiny", "timm/convnext_small",
    "timm/convnext_large", "timm/convnextv2_base", "timm/convnextv2_tiny", "timm/swin_tiny_patch4_window7_224",
    "timm/swin_small_patch4_window7_224", "timm/swin_large_patch4_window7_224", "timm/efficientnet_b1",
    "timm/efficientnet_b2", "timm/efficientnet_b3", "timm/efficientnet_b4", "timm/tf_efficientnet_b0",
    "timm/tf_efficientnet_b4", "timm/tf_efficientnet_b7", "timm/tf_efficientnetv2_s", "timm/tf_efficientnetv2_m",
    "timm/tf_efficientnetv2_l", "timm/deit_base_patch16_224", "timm/deit_small_patch16_224",
    "timm/mobilenetv3_large_100", "timm/resnext50_32x4d", "timm/wide_resnet50_2", "timm/seresnext50_32x4d",
    "timm/regnety_032", "timm/eva02_base_patch14_448", "timm/beit_base_patch16_224", "timm/maxvit_tiny_tf_224",
    "torchvision/convnext_base", "torchvision/convnext_large", "torchvision/convnext_small", "torchvision/vit_l_16",
    "torchvision/swin_b", "torchvision/swin_s", "torchvision/swin_v2_b", "torchvision/efficientnet_b4",
    "torchvision/efficientnet_v2_s", "torchvision/efficientnet_v2_m", "torchvision/efficientnet_v2_l",
    "torchvision/resnext50_32x4d", "torchvision/wide_resnet50_2", "torchvision/regnet_y_16gf",
    "torchvision/inception_v3", "torchvision/alexnet", "torchvision/deeplabv3_resnet50", "torchvision/fcn_resnet50",
    "hf/clip-vit-base-patch32", "hf/clip-vit-large-patch14", "hf/siglip-base-patch16-224",
    "hf/siglip-so400m-patch14-384", "hf/vit-large-patch16-224", "hf/dinov2-base", "hf/dinov2-large",
    "hf/dinov2-small", "hf/whisper-small", "hf/whisper-medium", "hf/whisper-large-v3", "hf/whisper-large-v3-turbo",
    "hf/whisper-base", "hf/whisper-tiny", "hf/wav2vec2-base", "hf/t5-small", "hf/t5-base", "hf/t5-large",
    "hf/flan-t5-base", "hf/flan-t5-large", "diffusers/stable-diffusion-v1-5",
    "diffusers/stable-diffusion-xl-base-1.0", "diffusers/stable-diffusion-2-1",
)  # fmt: skip
_FIRST_TEXTS = 40  # before the first image

POPULAR = (
    *(f"hf/{name}" for name in _TEXT[:_FIRST_TEXTS]),
    *_IMAGES,
    *(f"hf/{name}" for name in _TEXT[_FIRST_TEXTS:]),
)

# How the names of families begin, behind the library's name.
_FAMILIES = (
    "resnet", "vit_", "convnext", "efficientnet", "swin", "deit", "tf_efficientnet", "regnet", "mobilenet", "resnext",
    "seresnet", "densenet", "maxvit", "eva", "beit", "vgg", "nfnet", "coatnet", "mixer", "xcit", "inception", "hrnet",
)  # fmt: skip


def family_place(name: str) -> int:
    """Of a network that is not on the list: the most used families come first."""
    own = name.partition("/")[2]
    return next((place for place, family in enumerate(_FAMILIES) if own.startswith(family)), len(_FAMILIES))
