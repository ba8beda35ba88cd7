"""Every recipe of docs/recipes.md can be recorded, and the page says what its forecast says."""

from __future__ import annotations

from functools import cache

import pytest
import yaml

from tests.docs.pages import blocks, commands
from tests.profiling.recipes import FOLDER, PAGE, RECIPES, Recipe, forecast, recorded, row, written_table
from vramcast.forecast.forecast import Forecast
from vramcast.forecast.storage import MOST_EVENTS
from vramcast.profile.recording.without_gpu import MOST_COPIED
from vramcast.task.task import parse_task
from vramcast.task.vocabulary import PREFIX, Level

BY_NAME = {recipe.name: recipe for recipe in RECIPES}


@cache
def forecast_of(name: str) -> Forecast:
    return forecast(recorded(BY_NAME[name]))


def part(name: str, part_name: str) -> int:
    return sum(one.size_bytes for one in forecast_of(name).parts if one.name == part_name)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_the_page_says_what_the_forecast_says(recipe: Recipe) -> None:
    assert row(recipe) in written_table().splitlines(), "run: python -m tests.profiling.recipes"


def test_the_page_has_no_other_figures() -> None:
    assert len(written_table().splitlines()) == 2 + len(RECIPES)


def test_every_recipe_is_on_the_page_with_its_command() -> None:
    shown = commands(PAGE)
    for recipe in RECIPES:
        assert any(command.startswith(f"vramcast profile {recipe.target}") for command in shown), recipe.name
    loops = {path.stem for path in FOLDER.glob("*.py")} - {"small_gpt"}
    assert loops == {recipe.target.partition(":")[0] for recipe in RECIPES}


def test_the_loops_of_the_page_are_those_of_the_files() -> None:
    sources = [path.read_text() for path in FOLDER.glob("*.py")]
    for block in blocks(PAGE, "python"):
        assert any(block.strip("\n") in source for source in sources), block


def test_the_page_has_the_codes_limits_and_the_models_size() -> None:
    page = PAGE.read_text()
    weights = part("plain training", "weights") / 4
    assert f"{weights / 1e6:.0f} million weights" in page
    assert f"{MOST_EVENTS:,} times" in page
    assert f"above {MOST_COPIED / 1e6:.0f} million elements" in page


def test_the_annotations_of_a_server_are_its_own_number() -> None:
    (server,) = (block for block in blocks(PAGE, "yaml") if "gpu-memory-utilization" in block)
    task = parse_task(yaml.safe_load(server))
    assert task is not None
    assert (task.level, task.gpu_memory_mib, task.share) == (Level.GIVEN, 19 * 1024, True)


def test_a_second_model_adds_its_weights() -> None:
    assert part("DPO", "frozen weights") == part("DPO", "weights") == part("plain training", "weights")


def test_an_offloaded_optimizer_leaves_no_states() -> None:
    assert part("CPU offload", "optimizer states") == 0
    assert part("plain training", "optimizer states") == 2 * part("plain training", "weights")


def test_four_gpus_add_gradient_buckets() -> None:
    buckets = part("DDP on four GPUs", "library workspaces") - part("plain training", "library workspaces")
    assert buckets == part("plain training", "weights")


def test_eight_bit_states_take_a_byte_each() -> None:
    states, weights = part("8-bit Adam, bf16", "optimizer states"), part("8-bit Adam, bf16", "weights")
    assert states == pytest.approx(weights, rel=0.05)  # two states of a byte for a weight of two


def test_a_fused_loss_saves_the_logits() -> None:
    assert forecast_of("fused loss").median_bytes < forecast_of("plain training").median_bytes


def test_one_recording_answers_other_batches() -> None:
    annotations = recorded(BY_NAME["DPO"])
    larger = forecast({**annotations, f"{PREFIX}batch-size": "8"})
    assert larger.median_bytes > forecast_of("DPO").median_bytes
