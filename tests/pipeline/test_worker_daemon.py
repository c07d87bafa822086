"""The process that Spark forks its Python workers from."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from tempfile import TemporaryDirectory

import pytest

DAEMON = "penstock.pipeline.worker_daemon"


@pytest.fixture
def socket_folder() -> Iterator[str]:
    """A path to a socket has room for about a hundred characters, less than pytest's folders take."""
    with TemporaryDirectory() as folder:
        yield folder


def test_a_worker_that_is_let_go_says_nothing(socket_folder: str) -> None:
    """What Spark does after a minute without work: it hangs up."""
    environment = {
        **os.environ,
        "SPARK_REUSE_WORKER": "1",
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": socket_folder,
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "true",
    }
    daemon = subprocess.Popen(
        [sys.executable, "-m", DAEMON, "pyspark.worker"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert daemon.stdout is not None
    assert daemon.stdin is not None
    path = daemon.stdout.read(int.from_bytes(daemon.stdout.read(4), "big"))
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        worker = int.from_bytes(connection.recv(4), "big")
        let_go = os.pidfd_open(worker)
    # The worker finds that nobody is there, and ends. Its end is an event of its pidfd.
    assert select.select([let_go], [], [], 30)[0]
    os.close(let_go)
    _, said = daemon.communicate(timeout=30)  # closes its input: the daemon ends too
    assert said == b""
