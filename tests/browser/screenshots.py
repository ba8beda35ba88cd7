"""Takes the screenshots of docs/page.md from the demo: `make screenshots`."""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
from PIL import Image
from playwright.sync_api import Browser, Page, expect

from tests.browser.chromium import launched
from tests.controlplane import PATIENCE_SECONDS, eventually, free_port

SIZES = {"wide": (1280, 800), "phone": (390, 780)}
# View, address, and what must be there before the picture is taken.
VIEWS = {
    "cluster": ("", ".part.used"),
    "pods": ("#pods/llm/mistral-full", ".detail .advice"),
    "forecast": ("#forecast", ".result svg .largest"),
    "accuracy": ("#accuracy", ".accuracy .dot.oom"),
}


def shoot(browser: Browser, url: str, out: Path) -> None:
    for size, (width, height) in SIZES.items():
        for scheme in ("light", "dark"):
            _shoot_all(browser, url, out, size, width, height, scheme)


def _shoot_all(browser: Browser, url: str, out: Path, size: str, width: int, height: int, scheme: Any) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
    )
    page = context.new_page()
    for view, (address, there) in VIEWS.items():
        page.goto(f"{url}/{address}")
        expect(page.locator(there).first).to_be_attached(timeout=PATIENCE_SECONDS * 1000)
        _settle(page, view, size)
        save(page.screenshot(), out / f"{view}-{size}-{scheme}.png")
    context.close()


def save(picture: bytes, path: Path) -> None:
    """With few colours, which makes the file a third as large."""
    few = Image.open(io.BytesIO(picture)).convert("RGB").quantize(96, dither=Image.Dither.NONE)
    few.save(path, "PNG", optimize=True)


def _settle(page: Page, view: str, size: str) -> None:
    if view == "cluster" and size == "wide":
        page.locator(".gpu", has=page.locator(".part.unmanaged")).first.hover()
    if view == "forecast" and size == "wide":
        page.get_by_role("heading", name="As it grows").scroll_into_view_if_needed()
    page.evaluate("document.fonts.ready")


def learned(url: str) -> bool:
    """Every view has something to show: a pod waits, runs were measured, and an OOM was learned from."""
    try:
        shown = httpx.get(f"{url}/accuracy", timeout=PATIENCE_SECONDS).raise_for_status().json()
    except httpx.TransportError:
        return False
    return bool(shown["ooms"]) and shown["status"]["pods"]["waiting"] > 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    demo = subprocess.Popen(
        [sys.executable, "-m", "vramcast", "demo", "--port", str(port), "--speed", "2"], stdout=subprocess.DEVNULL
    )
    try:
        eventually(lambda: learned(url), what="the demo to learn from an OOM", interval_seconds=0.5)
        with launched() as browser:
            shoot(browser, url, out)
    finally:
        demo.terminate()
        demo.wait()


if __name__ == "__main__":
    main()
