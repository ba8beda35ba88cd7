"""The page of `vramcast recommend -o html` in a real browser: opened as a file, in both schemes, on wide and narrow
screens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from tests.browser.conftest import watched
from tests.recommend.samples import sample_report
from vramcast.cli.recommend.page import to_html

REPORT = sample_report()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_shows_everything_to_everyone_and_fetches_nothing(
    browser: Browser, tmp_path: Path, scheme: Any, width: int
) -> None:
    file = tmp_path / "report.html"
    file.write_text(to_html(REPORT))
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    watch = watched(page, file.as_uri())
    page.goto(file.as_uri())
    expect(page.get_by_role("heading", level=1)).to_have_text("What GPUs could be freed")
    plots = page.get_by_role("img")
    expect(plots).to_have_count(2)
    assert all(plot.bounding_box() for plot in plots.all())
    rows = page.get_by_role("region", name="Workloads, the most spare GPU-hours first").locator("tbody tr")
    expect(rows).to_have_count(len(REPORT.recommendations))
    expect(page.locator(".tile b").first).to_have_text(str(REPORT.as_it_was.most))
    # Only the tables scroll sideways.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("polyline.shared").count() == 2
    problems = Axe().run(page)
    assert problems.violations_count == 0, problems.generate_report()
    context.close()
    assert watch.other_hosts == []
    assert watch.errors == []
