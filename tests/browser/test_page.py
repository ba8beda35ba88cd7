"""The page in a real browser: what it shows is what the service knows, for every reader and on every screen."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Route, expect

from tests.browser.conftest import Stage, watched
from tests.controlplane import PATIENCE_SECONDS, eventually, free_port
from vramcast.task.quantity import human_mib

VIEWS = ("cluster", "pods", "forecast", "accuracy")
PATIENCE_MS = PATIENCE_SECONDS * 1000
expect.set_options(timeout=PATIENCE_MS)


def shared(name: str, memory: str) -> dict[str, Any]:
    annotations = {"vramcast.dev/share": "true", "vramcast.dev/gpu-memory": memory}
    return {
        "metadata": {"name": name, "namespace": "ml", "uid": f"uid-{name}", "annotations": annotations},
        "spec": {"containers": [{"name": "main", "resources": {"limits": {}}}]},
    }


def line(page: Page, pod: str) -> Any:
    return page.locator(".pod", has=page.locator(".name", has_text=re.compile(f"^{re.escape(pod)}$")))


def test_a_pod_waits_with_its_reason_and_moves_when_room_comes_free(page: Page, stage: Stage) -> None:
    assert stage.send(create=shared("first", "40Gi")) == "share-1"
    page.goto("/#pods")
    late = shared("late", "30Gi")
    assert stage.send(create=late) == ""
    expect(line(page, "ml/late")).to_contain_text("waiting")
    expect(line(page, "ml/late")).to_contain_text("30.0 GiB needed")
    line(page, "ml/late").click()
    expect(page.locator(".advice")).to_contain_text("It fits when ml/first ends.")
    expect(page.locator(".detail h2")).to_have_text("ml/late")
    stage.send(end="ml/first")
    assert stage.send(**{"try": late}) == "share-1"
    expect(line(page, "ml/late")).to_contain_text("running")
    expect(page.locator(".detail")).to_contain_text("Promised30.0 GiB")
    expect(page.locator(".detail")).to_contain_text("Peak so far")
    # Long enough to be measured.
    expect(page.locator(".detail")).to_contain_text(re.compile(r"Since(([5-9]|\d\d) s|\d+ min)"))
    stage.send(end="ml/late")
    # The accuracy view shows the run.
    page.goto("/#accuracy")
    expect(page.locator(".accuracy")).to_contain_text("ml/late")
    counters = page.get_by_role("region", name="Utilization")
    expect(counters.get_by_role("row", name=re.compile("^gpu_util"))).to_contain_text("DCGM_FI_DEV_GPU_UTIL")
    # The simulated exporter is as installed: somebody has to switch the others on.
    expect(counters).to_contain_text("not compared: telemetry shows no DCGM_FI_PROF_SM_ACTIVE")


def test_the_cluster_shows_each_gpu_and_who_holds_it(page: Page, stage: Stage) -> None:
    assert stage.send(create=shared("holder", "20Gi")) == "share-1"
    page.goto("/")
    button = page.get_by_role("button", name=re.compile(r"share-1, GPU \d, .*20\.0 GiB|share-1, GPU \d, .*promised"))
    expect(button.first).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("18.0 GiB unmanaged")).first).to_be_visible()
    page.get_by_label("Search nodes and pods").fill("holder")
    expect(page.locator(".found")).to_have_text("1 of 2 nodes")
    # By keyboard: the card opens with the focus and closes with Escape.
    page.get_by_role("list", name="Nodes").focus()
    card = page.locator("#holders")
    for _ in range(2):
        page.keyboard.press("Tab")
        expect(card).to_be_visible()
        if "ml/holder" in card.inner_text():
            break
    expect(card).to_contain_text("ml/holder")
    expect(card).to_contain_text("promised 20.0 GiB")
    page.keyboard.press("Escape")
    expect(card).to_be_hidden()
    stage.send(end="ml/holder")


def test_the_forms_figures_are_those_of_post_forecast(page: Page, stage: Stage) -> None:
    page.goto("/#forecast")
    page.get_by_label("Model").fill("timm/resnet18")
    page.get_by_role("spinbutton", name="Batch size").fill("96")
    page.get_by_label("Precision").select_option("fp32")
    shown = page.locator(".code pre")
    expect(shown).to_contain_text('vramcast.dev/model: "timm/resnet18"')
    expect(shown).to_contain_text('vramcast.dev/batch-size: "96"')
    expect(shown).to_contain_text('vramcast.dev/precision: "fp32"')
    annotations = dict(re.findall(r'^(\S+): "(.*)"$', shown.inner_text(), re.MULTILINE))
    pod = {"metadata": {"name": "same", "annotations": annotations}}
    answer = httpx.post(f"{stage.url}/forecast", json=pod, timeout=PATIENCE_SECONDS).raise_for_status().json()
    assert len(answer["forecasts"]) == 2
    for forecast in answer["forecasts"]:
        cell = page.locator(f'tr[data-product="{forecast["product"]}"] [data-need]')
        expect(cell).to_have_attribute("data-need", str(forecast["need_mib"]))
        expect(cell).to_have_text(human_mib(forecast["need_mib"]))
    expect(page.locator(".result svg.plot")).to_be_visible()
    page.get_by_label("Model").fill("timm/no-such-network")
    expect(page.locator(".result .notice")).to_contain_text("no-such-network")


def test_the_model_is_chosen_by_typing(page: Page) -> None:
    page.goto("/#forecast")
    page.get_by_label("Model").fill("convnext_tin")
    expect(page.locator('#names option[value="timm/convnext_tiny"]')).to_have_count(1)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_no_view_has_a_serious_accessibility_fault_or_scrolls_sideways(
    browser: Browser, stage: Stage, scheme: Any, width: int
) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme=scheme, base_url=stage.url, reduced_motion="reduce",
        bypass_csp=True,  # axe is injected into the page
    )  # fmt: skip
    page = context.new_page()
    watch = watched(page, stage.url)
    for view in VIEWS:
        page.goto(f"/#{view}")
        expect(page.locator("#live")).to_contain_text("live")
        expect(page.locator(".tile, .podlist, .headline").first).to_be_visible()
        found = Axe().run(page).response["violations"]
        serious = [
            (fault["id"], [node["html"][:200] for node in fault["nodes"]][:3])
            for fault in found
            if fault["impact"] in ("serious", "critical")
        ]
        assert serious == [], view
        assert page.evaluate("document.documentElement.scrollWidth") <= width, view
    context.close()
    assert watch.other_hosts == []
    assert watch.errors == []


def test_markup_and_control_characters_in_names_are_shown_as_text(page: Page, stage: Stage) -> None:
    evil = shared("<img src=x onerror=document.title='broken'>\u202etxt\x07", "300Gi")
    stage.send(create=evil)
    page.goto("/#pods?state=waiting")
    name = page.locator(".pod .name", has_text="<img src=x")
    expect(name).to_be_visible()
    assert "\u202e" not in name.inner_text()
    name.click()
    expect(page.locator(".detail h2")).to_contain_text("<img src=x")
    assert page.locator("main img").count() == 0
    expect(page).to_have_title("Pods · vramcast")


def test_times_are_the_services_own_whatever_the_readers_clock_says(page: Page, stage: Stage) -> None:
    assert stage.send(create=shared("young", "4Gi")) == "share-1"
    page.clock.set_system_time("2001-01-01T00:00:00Z")
    page.goto("/#pods")
    expect(line(page, "ml/young").locator(".much")).to_contain_text(re.compile(r"· \d+ (s|min)$"))
    stage.send(end="ml/young")


def test_without_javascript_the_same_is_a_table(browser: Browser, stage: Stage) -> None:
    context = browser.new_context(java_script_enabled=False, base_url=stage.url)
    page = context.new_page()
    page.goto("/")
    page.wait_for_url("**/table")
    expect(page.locator("tbody tr")).to_have_count(4)
    expect(page.locator("body")).to_contain_text("share-1")
    context.close()


def test_the_page_says_that_the_service_is_away_and_goes_on_when_it_is_back(browser: Browser) -> None:
    own = Stage(free_port())
    own.start()
    context = browser.new_context(base_url=own.url)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto("/")
    expect(page.locator("#live")).to_contain_text("live")
    own.stop()
    expect(page.locator("#live")).to_contain_text("The service does not answer. Trying again.")
    expect(page.locator(".node").first).to_be_visible()
    own.start()
    expect(page.locator("#live")).to_contain_text("live")
    context.close()
    own.stop()


def test_over_a_slow_link_one_request_is_under_way_at_a_time_and_the_next_waits_longer(page: Page) -> None:
    slow: list[Route] = []

    def hold(route: Route) -> None:
        slow.append(route)

    page.clock.install()
    page.route("**/cluster?*", hold)
    page.goto("/")
    page.wait_for_function("() => document.querySelector('#live')")
    _until(page, lambda: len(slow) == 1)
    page.clock.run_for(20_000)
    assert len(slow) == 1, "it asks again although the first answer is not there"
    slow[0].continue_()
    expect(page.locator("#live")).to_contain_text("live")
    page.clock.run_for(5_000)
    assert len(slow) == 1, "it asks every second although an answer takes 20"
    page.clock.run_for(60_000)
    _until(page, lambda: len(slow) == 2)
    slow[1].continue_()


def _until(page: Page, condition: Callable[[], bool]) -> None:
    """Requests are seen only while the page is asked something."""

    def met() -> bool:
        page.evaluate("0")
        return condition()

    eventually(met, what="the page to ask")


def test_docs_work_without_another_host(browser: Browser, stage: Stage) -> None:
    context = browser.new_context(base_url=stage.url)
    page = context.new_page()
    watch = watched(page, stage.url)
    page.goto("/docs")
    expect(page.get_by_text("Which nodes fit the pod, and why the others do not")).to_be_visible()
    context.close()
    assert watch.other_hosts == []
    assert watch.errors == []
