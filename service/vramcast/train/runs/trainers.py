"""What trainers call the models that they train, as names of the catalog.

SimpleTuner's tables name a family and a flavour; without a flavour the family's default one is meant. llm-foundry's
name the shape in another column.
"""

from __future__ import annotations

_SIMPLE_TUNER = {
    "sd3": "stable-diffusion-3.5-medium",
    "pixart": "pixart-900m-1024-ft-v0.6",
    "wan t2v-480p-1.3b-2.1": "Wan2.1-T2V-1.3B",
    "wan t2v-480p-14b-2.1": "Wan2.1-T2V-14B",
    "z_image turbo": "Z-Image-Turbo",
    "chroma": "Chroma1-HD",
    "qwen_image v1.0": "Qwen-Image",
    "kolors 1.0": "Kolors",
    "kandinsky5_video": "Kandinsky-5.0-T2V-Lite",
    "kandinsky5_image": "Kandinsky-5.0-T2I-Lite",
    "longcat_image": "LongCat-Image",
    "ernie base": "ERNIE-Image",
    "auraflow v0.3": "AuraFlow-v0.3",
    "lumina2": "Lumina-Image-2.0",
    "sdxl": "stable-diffusion-xl-base-1.0",
    "stable_cascade": "stable-cascade-prior",
    "cosmos": "Cosmos-Predict2-2B-Text2Image",
    "krea2 (simpletuner model_family krea2)": "Krea-2-Raw",
}
_FOUNDRY = "mosaicml/llm-foundry"


def catalog_name(reference: str, model: str) -> str:
    """Empty for a reference that is no trainer's word for a model."""
    if reference.startswith(_FOUNDRY):
        return f"hf/llm-foundry-{model.lower()}"
    known = _SIMPLE_TUNER.get(reference.lower())
    return f"diffusers/{known}" if known else ""
