"""Models by name: found in any spelling, at any size, with suggestions for unknown names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.forecast.parameters import pinned
from vramcast.errors import InvalidTask
from vramcast.forecast.catalog import Catalog, CatalogUnusable, builtin_catalog, read_catalog
from vramcast.forecast.forecast import Forecast
from vramcast.forecast.forecaster import PhysicsForecaster
from vramcast.names import Product
from vramcast.task.task import parse_task
from vramcast.task.vocabulary import PREFIX

A100 = Product("NVIDIA-A100-SXM4-40GB")


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return builtin_catalog()


def forecast(**settings: str) -> Forecast:
    task = parse_task({PREFIX + name.replace("_", "-"): value for name, value in settings.items()})
    assert task is not None
    return PhysicsForecaster(0.05).forecast(task, A100)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("timm/resnet50", 25_557_032),
        ("timm/resnet50.a1_in1k", 25_557_032),
        ("timm/vit_base_patch16_224", 86_567_656),
        ("torchvision/resnet18", 11_689_512),
        ("hf/bert-base-uncased", 109_514_298),
        ("hf/google-bert/bert-base-uncased", 109_514_298),
        ("hf/gpt2", 124_439_808),
        ("hf/meta-llama/Meta-Llama-3-8B", 8_030_261_248),
        ("hf/Qwen/Qwen2.5-7B", 7_615_616_512),
        ("hf/t5-small", 60_506_624),
        ("diffusers/stable-diffusion-v1-5", 859_520_964),
        ("meta-llama/Llama-3.1-8B-Instruct", 8_030_261_248),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", 8_030_261_248),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", 46_702_792_704),
        ("openai/gpt-oss-20b", 20_914_757_184),
        ("black-forest-labs/FLUX.1-dev", 11_901_408_320),
        ("tf_efficientnet_b0_ns", 5_288_548),
        ("yolov8n.pt", 3_157_200),
    ],
)
def test_a_model_is_found_as_its_source_spells_it(catalog: Catalog, name: str, parameters: int) -> None:
    line = catalog.find(name)
    assert line is not None
    assert line.parameters == parameters


@pytest.mark.parametrize(
    "part",
    ["hf/bert-", "hf/roberta-", "hf/distilbert-", "hf/gpt2", "hf/opt-", "hf/gpt-neo-", "hf/t5-", "hf/llama-2-",
     "hf/llama-3", "hf/qwen2-", "hf/qwen2.5-", "hf/qwen3-", "hf/mistral-", "hf/gemma-", "hf/phi-", "hf/vit-",
     "hf/clip-", "hf/whisper-", "hf/mixtral-", "hf/qwen3-30b-a3b", "hf/gpt-oss-", "hf/deepseek-v2-lite",
     "hf/gemma-3-", "hf/qwen2.5-vl-", "hf/qwen3-vl-", "hf/llava-", "hf/llama-3.2-11b-vision", "hf/smollm",
     "hf/modernbert-", "hf/siglip-", "hf/dinov2-", "hf/dinov3-", "hf/sam-", "hf/wav2vec2-",
     "diffusers/stable-diffusion-", "diffusers/stable-diffusion-3", "diffusers/flux.1-", "diffusers/flux.2-",
     "diffusers/wan", "diffusers/cogvideox-", "diffusers/ltx-video", "diffusers/hunyuanvideo", "diffusers/qwen-image",
     "diffusers/pixart-", "diffusers/sana", "diffusers/auraflow", "diffusers/chroma", "hf/internlm2-", "hf/glm-4-",
     "hf/granite-", "ultralytics/yolov8", "torchvision/fcn_", "torchvision/maskrcnn_",
     "timm/convnext_"],
)  # fmt: skip
def test_every_documented_family_is_in_the_catalog(catalog: Catalog, part: str) -> None:
    assert any(line.name.lower().startswith(part) for line in catalog.lines())


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("timm/resnet5O", "timm/resnet50"),
        ("resnet50", "timm/resnet50"),
        ("hf/bert-base-uncase", "hf/bert-base-uncased"),
        ("torchvision/gpt2", "hf/gpt2"),
    ],
)
def test_an_unknown_name_gets_suggestions(name: str, near: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        forecast(model=name, batch_size="8")
    message = str(caught.value)
    assert f"{PREFIX}model: {name!r} is not valid" in message
    assert near in message
    assert "`vramcast catalog`" in message
    assert "`vramcast profile`" in message


def test_a_default_size_is_listed_as_an_assumption() -> None:
    assert "input-size 3x224x224" in forecast(model="timm/resnet50", batch_size="8").assumptions
    assert "sequence-length 512" in forecast(model="hf/gpt2", batch_size="8").assumptions
    assumptions = forecast(model="hf/gpt2", batch_size="8", sequence_length="256").assumptions
    assert not any(assumption.startswith("sequence-length") for assumption in assumptions)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"model": "hf/gpt2", "input_size": "3x224x224"},
            "reads tokens: set vramcast.dev/sequence-length instead, for example 512",
        ),
        (
            {"model": "timm/resnet50", "sequence_length": "64"},
            "reads images: set vramcast.dev/input-size instead, for example",
        ),
        ({"model": "timm/resnet50", "input_size": "224"}, "expected an image size for timm/resnet50"),
    ],
)
def test_a_size_of_the_wrong_kind_is_refused_with_the_right_annotation(settings: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidTask, match=words):
        forecast(batch_size="8", **settings)


@pytest.mark.parametrize(
    ("model", "pixels", "latents"),
    [
        ("diffusers/stable-diffusion-xl-base-1.0", "3x1024x1024", "4x128x128"),
        ("diffusers/stable-diffusion-v1-5", "3x512x768", "4x64x96"),
        ("black-forest-labs/FLUX.1-dev", "3x1024x1024", "16x128x128"),
        ("diffusers/FLUX.2-klein-4B", "3x512x512", "32x64x64"),
        ("diffusers/Wan2.1-T2V-1.3B", "3x81x480x832", "16x21x60x104"),
        ("Lightricks/LTX-Video", "3x49x512x768", "128x7x16x24"),
        ("Wan-AI/Wan2.2-TI2V-5B", "3x121x704x1280", "48x31x44x80"),
        ("stabilityai/stable-cascade-prior", "3x1024x1024", "16x24x24"),
    ],
)
def test_the_pixels_of_a_denoiser_are_taken_for_their_latents_and_told(model: str, pixels: str, latents: str) -> None:
    seen = forecast(model=model, batch_size="2", input_size=pixels)
    assert f"input-size {latents}, the latents of {pixels}" in seen.assumptions
    assert seen.median_bytes == forecast(model=model, batch_size="2", input_size=latents).median_bytes


@pytest.mark.parametrize("size", ["3x1000x1025", "1x128x128", "8x128x128", "3x4x4"])
def test_a_size_that_is_neither_pixels_nor_latents_of_a_denoiser_is_refused(size: str) -> None:
    with pytest.raises(InvalidTask, match="expected latents such as 4x128x128, or pixels such as 3x1024x1024"):
        forecast(model="diffusers/stable-diffusion-xl-base-1.0", batch_size="2", input_size=size)


def test_an_image_of_twice_the_side_saves_four_times_as_much(catalog: Catalog) -> None:
    line = catalog.find("timm/resnet50")
    assert line is not None
    once, twice = (catalog.profile(line, (3, side, side), None) for side in (224, 448))
    assert twice["saved_bytes_per_sample"] == pytest.approx(4 * once["saved_bytes_per_sample"], rel=0.01)
    assert twice["layers"][0][1] == 4 * once["layers"][0][1]
    assert twice["layers"][-1][:8] == once["layers"][-1][:8]


def test_attention_grows_quadratically_with_the_tokens_and_the_rest_linearly(catalog: Catalog) -> None:
    line = catalog.find("hf/gpt2")
    assert line is not None
    short, long = (catalog.profile(line, None, tokens) for tokens in (512, 1024))
    fused = "fused_attention_bytes_per_sample"
    rest = [profile["saved_bytes_per_sample"] - profile[fused] for profile in (short, long)]
    assert rest[1] == pytest.approx(2 * rest[0], rel=0.01)
    assert 3.5 < long[fused] / short[fused] < 4.5


def test_more_pixels_and_more_tokens_never_need_less() -> None:
    images = [
        forecast(model="timm/vit_base_patch16_224", batch_size="16", input_size=f"3x{s}x{s}")
        for s in (128, 224, 256, 384, 512)
    ]
    texts = [forecast(model="hf/gpt2", batch_size="4", sequence_length=str(n)) for n in (64, 128, 300, 512, 800, 1024)]
    for sizes in (images, texts):
        needs = [result.median_bytes for result in sizes]
        assert needs == sorted(needs)


def test_a_search_matches_all_words_in_any_name_of_a_model(catalog: Catalog) -> None:
    assert [line.name for line in catalog.lines("hf/ qwen2.5-v 7b")] == ["hf/Qwen2.5-VL-7B-Instruct"]
    assert [line.name for line in catalog.lines("hf/ llama-3.1 8b instruct")] == ["hf/Llama-3.1-8B"]


def test_every_models_size_is_pinned(catalog: Catalog) -> None:
    counts = pinned()
    assert {line.name: line.parameters for line in catalog.lines()} == {
        name: one.parameters for name, one in counts.items()
    }
    assert sum(one.published for one in counts.values()) >= 226


def test_a_damaged_or_missing_catalog_is_a_clear_error(tmp_path: Path) -> None:
    damaged = tmp_path / "catalog.bin"
    damaged.write_bytes(b"not a catalog")
    with pytest.raises(CatalogUnusable, match="is not a catalog of this version"):
        read_catalog(damaged)
    with pytest.raises(CatalogUnusable, match="no catalog at"):
        read_catalog(tmp_path / "nowhere.bin")
