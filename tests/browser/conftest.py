"""A stage (the service on a cluster in memory) and a page that may reach nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page

from tests.browser.chromium import launched, refuse_other_hosts
from tests.controlplane import PATIENCE_SECONDS, free_port


@dataclass(slots=True)
class Stage:
    port: int
    process: subprocess.Popen[str] = field(init=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.browser.stage", str(self.port)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.read() == "ready"

    def read(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def send(self, **command: Any) -> str:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return self.read()

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with launched() as running:
        yield running


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    running = Stage(free_port())
    running.start()
    yield running
    running.stop()


@dataclass
class Watch:
    """What went wrong in a page while a test used it."""

    other_hosts: list[str]
    errors: list[str] = field(default_factory=list)

    def note(self, message: ConsoleMessage) -> None:
        # The browser reports a refused form as an error; the page shows its text.
        if message.type == "error" and "status of 400" not in message.text:
            self.errors.append(message.text)


def watched(page: Page, url: str) -> Watch:
    page.set_default_timeout(PATIENCE_SECONDS * 1000)
    watch = Watch(refuse_other_hosts(page, url))
    page.on("console", watch.note)
    page.on("pageerror", lambda error: watch.errors.append(str(error)))
    return watch


@pytest.fixture
def page(browser: Browser, stage: Stage) -> Iterator[Page]:
    """A wide page. Whatever the test does, no request leaves the host and no script or policy fails."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, base_url=stage.url)
    opened = context.new_page()
    watch = watched(opened, stage.url)
    yield opened
    context.close()
    assert watch.other_hosts == []
    assert watch.errors == []
