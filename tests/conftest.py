"""Server processes for every test that needs one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import ServerProcess


def _finish(process: ServerProcess) -> None:
    """A test may stop or kill its server; one that still runs must end cleanly."""
    if process.is_running:
        process.stop()
    assert "Traceback" not in process.log_text, process.log_text


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Starts servers with settings of the test's own, by default each on a data directory of its own."""
    started: list[ServerProcess] = []
    numbers = itertools.count()

    def start(data_dir: Path | None = None, **settings: Any) -> ServerProcess:
        process = ServerProcess(data_dir or tmp_path / f"data-{next(numbers)}", **settings)
        started.append(process)
        return process.start()

    yield start
    for process in started:
        _finish(process)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path / "data").start()
    yield process
    _finish(process)


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests that use streams of their own and never stop it."""
    process = ServerProcess(tmp_path_factory.mktemp("shared") / "data").start()
    yield process
    _finish(process)
