"""5,000 nodes with 8 GPUs each: the page keeps only what is on the screen."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import watched
from tests.controlplane import PATIENCE_SECONDS, eventually, free_port

BIG_CLUSTER = Path(__file__).parents[2] / "bench/big_cluster.py"
NODES = 5000
# Rows on a screen of 800 pixels, and those just outside of it, with 8 GPUs of 4 elements each.
MOST_ELEMENTS = 3000


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    port = free_port()
    command = [sys.executable, str(BIG_CLUSTER), str(port), str(NODES)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def ready() -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=PATIENCE_SECONDS).status_code == 200
        except httpx.TransportError:
            return False

    eventually(ready, what="the service to be ready")
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait()


def test_five_thousand_nodes_render_scroll_and_are_searched(browser: Browser, url: str) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    watch = watched(page, url)
    page.goto(url)
    expect(page.locator(".node .gpu").first).to_be_visible()
    expect(page.locator(".found")).to_have_text("5,000 nodes")
    expect(page.locator(".tile").first).to_contain_text("40,000")
    names = page.locator(".node .name")
    nodes = page.get_by_role("list", name="Nodes")
    for share, number in ((0.5, 2500), (1.0, 4999), (0.0, 0)):
        nodes.evaluate(f"list => list.scrollTop = {share} * list.scrollHeight")
        expect(names.get_by_text(f"gpu-worker-{number:05d}.cluster.example")).to_be_visible()
        assert page.locator("main *").count() < MOST_ELEMENTS
    page.get_by_label("Search nodes and pods").fill("worker-00042")
    expect(page.locator(".found")).to_have_text("1 of 5,000 nodes")
    expect(names.first).to_have_text("gpu-worker-00042.cluster.example")
    context.close()
    assert watch.errors == []
