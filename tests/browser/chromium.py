"""Debian's Chromium, driven by Playwright. `python -m tests.browser.chromium` installs it if it is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page, sync_playwright

_FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--font-render-hinting=none",
]  # fmt: skip
_NAMES = ("chromium", "chromium-browser", "google-chrome")


def find() -> str | None:
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


def install() -> str:
    """The path of Chromium. Installs Debian's package if it is missing and this user may."""
    if (found := find()) is not None:
        return found
    # Another process may be installing it too: wait for its lock.
    apt = ["apt-get", "-o", "DPkg::Lock::Timeout=600"]
    if os.geteuid() != 0:
        apt = ["sudo", "--non-interactive", *apt]
    print("installing chromium, for the browser tests", file=sys.stderr)
    for command in (["install", "--yes", "--no-install-recommends", "chromium"], ["update"]) * 2:
        if shutil.which(apt[0]):
            subprocess.run([*apt, *command], stdout=subprocess.DEVNULL, check=False)
        if (found := find()) is not None:
            return found
    sys.exit(
        "the browser tests need Chromium, and `apt-get install chromium` is not possible here: "
        "install it so that `chromium` is on the PATH"
    )


@contextmanager
def launched() -> Iterator[Browser]:
    path = install()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_FLAGS)
        try:
            yield browser
        finally:
            browser.close()


def refuse_other_hosts(page: Page, url: str) -> list[str]:
    """The list of requests to other hosts, which are not answered."""
    left: list[str] = []

    def judge(route: object) -> None:
        asked = route.request.url  # type: ignore[attr-defined]
        if asked.startswith((url, "data:", "blob:")):
            route.continue_()  # type: ignore[attr-defined]
        else:
            left.append(asked)
            route.abort()  # type: ignore[attr-defined]

    page.route("**/*", judge)
    return left


if __name__ == "__main__":
    print(install())
