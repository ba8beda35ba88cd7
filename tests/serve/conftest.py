from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.serve.running import Serve


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Shared by the tests that only send requests. The environment has an unknown variable, to be logged."""
    with Serve(tmp_path_factory.mktemp("serve"), environ={"VRAMCAST_NO_SETTING": "1"}) as running:
        yield running
