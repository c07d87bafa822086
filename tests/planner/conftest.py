"""A server's planner for every test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from planner.rig import DeliveryRig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[DeliveryRig]:
    made = DeliveryRig(tmp_path / "data")
    yield made
    made.dispose()
