"""Names as people write them, and what is suggested for those that nobody knows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.forecast.model_names import SOURCES, ModelNames

KNOWN = {
    "timm/resnet50": (),
    "timm/tf_efficientnet_b0": ("tf_efficientnet_b0_ns", "tf_efficientnet_b0_ap"),
    "timm/vit_base_patch16_224": ("vit_base_patch16_224_in21k",),
    "torchvision/resnet50": (),
    "torchvision/vit_b_16": (),
    "hf/gpt2": (),
    "hf/gpt2-medium": (),
    "hf/Llama-3.1-8B": ("Llama-3.1-8B-Instruct", "Meta-Llama-3-8B"),
    "hf/phi-1": (),
    "hf/phi-1_5": (),
    "diffusers/stable-diffusion-v1-5": (),
    "diffusers/FLUX.1-dev": (),
    "ultralytics/yolov8n": ("yolov8n.pt",),
}
NAMES = ModelNames(KNOWN.items())


@pytest.mark.parametrize(
    ("written", "full"),
    [
        ("timm/resnet50", "timm/resnet50"),
        ("timm/resnet50.a1_in1k", "timm/resnet50"),
        ("hf-hub:timm/resnet50.a1_in1k", "timm/resnet50"),
        ("timm/tf_efficientnet_b0_ns", "timm/tf_efficientnet_b0"),
        ("tf_efficientnet_b0_ns", "timm/tf_efficientnet_b0"),
        ("tf_efficientnet_b0.ns_jft_in1k", "timm/tf_efficientnet_b0"),
        ("vit_base_patch16_224", "timm/vit_base_patch16_224"),
        ("torchvision.models.resnet50", "torchvision/resnet50"),
        ("hf/meta-llama/Llama-3.1-8B", "hf/Llama-3.1-8B"),
        ("meta-llama/Llama-3.1-8B", "hf/Llama-3.1-8B"),
        ("Llama-3.1-8B", "hf/Llama-3.1-8B"),
        (" meta-llama/llama-3.1-8b-instruct ", "hf/Llama-3.1-8B"),
        ("https://huggingface.co/meta-llama/Meta-Llama-3-8B", "hf/Llama-3.1-8B"),
        ("openai-community/gpt2", "hf/gpt2"),
        ("gpt2", "hf/gpt2"),
        ("microsoft/phi-1_5", "hf/phi-1_5"),
        ("black-forest-labs/FLUX.1-dev", "diffusers/FLUX.1-dev"),
        ("runwayml/stable-diffusion-v1-5", "diffusers/stable-diffusion-v1-5"),
        ("yolov8n.pt", "ultralytics/yolov8n"),
        ("TheBloke/Llama-3.1-8B-GPTQ", "hf/Llama-3.1-8B"),
        ("unsloth/Llama-3.1-8B-bnb-4bit", "hf/Llama-3.1-8B"),
        ("unsloth/Llama-3.1-8B-Instruct-unsloth-bnb-4bit", "hf/Llama-3.1-8B"),
    ],
)
def test_a_name_is_found_in_every_usual_spelling(written: str, full: str) -> None:
    assert NAMES.find(written) == full


@pytest.mark.parametrize(
    ("written", "suggested"),
    [
        ("resnet50", ["timm/resnet50", "torchvision/resnet50"]),
        ("torchvision/gpt2", ["hf/gpt2"]),
        ("facebook/resnet50", ["timm/resnet50", "torchvision/resnet50"]),
        ("timm/resnet5O", ["timm/resnet50"]),
        ("hf/gpt-2", ["hf/gpt2"]),
        ("meta-llama/Llama-3.1-9B", ["hf/Llama-3.1-8B"]),
        ("hf/Llama", ["hf/Llama-3.1-8B"]),
    ],
)
def test_a_name_of_two_networks_or_of_none_gets_suggestions(written: str, suggested: list[str]) -> None:
    assert NAMES.find(written) is None
    assert NAMES.nearest(written)[: len(suggested)] == suggested


def test_a_name_unlike_any_other_gets_no_suggestion() -> None:
    assert NAMES.nearest("zzzzzzzz") == []


def test_an_alias_never_hides_a_networks_own_name() -> None:
    names = ModelNames([("hf/a", ("b", "c")), ("hf/b", ()), ("hf/d", ("c",))])
    assert (names.find("b"), names.find("c")) == ("hf/b", "hf/a")


@given(st.sampled_from(sorted(KNOWN)), st.sampled_from(["", "org/", "ORG/"]), st.booleans())
def test_case_and_organization_do_not_matter(full: str, organization: str, upper: bool) -> None:
    source, _, bare = full.partition("/")
    assert NAMES.find(f"{source}/{organization}{bare.upper() if upper else bare}") == full


@given(st.text(max_size=300))
def test_any_text_is_a_name_or_gets_suggestions_that_are(text: str) -> None:
    found = NAMES.find(text)
    assert found is None or found in KNOWN
    assert all(name in KNOWN and name.partition("/")[0] in SOURCES for name in NAMES.nearest(text))
