from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.fake_apiserver import FakeApiServer


@pytest.fixture
def server() -> Iterator[FakeApiServer]:
    with FakeApiServer() as running:
        yield running
