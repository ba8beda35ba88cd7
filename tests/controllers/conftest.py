from __future__ import annotations

import pytest
from tests.controllers.observed import World


@pytest.fixture
def world() -> World:
    return World()
