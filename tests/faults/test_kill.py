"""A real server killed under load, again and again, with the official SDK as the judge."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import stream_manager as sdk

from harness import SERVER_PYTHON, ServerProcess

# The SDK leaves its sockets to the garbage collector when a connection dies.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

SOAK = os.environ.get("PENSTOCK_SOAK") == "1"
THREADS_PER_STREAM = 3
REQUEST_TIMEOUT_S = 2  # a killed server resets connections, on which this SDK waits in vain
STREAMS: dict[str, dict[str, Any]] = {
    "durable": {"flush_on_write": True},
    "durable small": {"flush_on_write": True, "stream_segment_size": 16 * 1024},
    "relaxed": {"stream_segment_size": 64 * 1024},
}


class Ledger:
    """What writers tried to append to one stream, and what they were told."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.attempts: set[bytes] = set()
        self.acknowledged: dict[int, bytes] = {}
        self._lock = threading.Lock()

    def attempt(self, payload: bytes) -> None:
        with self._lock:
            self.attempts.add(payload)

    def acknowledge(self, number: int, payload: bytes) -> None:
        with self._lock:
            assert number not in self.acknowledged, f"{self.name}: number {number} was given out twice"
            self.acknowledged[number] = payload

    def check(self, client: Any) -> None:
        found = read_everything(client, self.name)
        for number, payload in self.acknowledged.items():
            assert found.get(number) == payload, f"{self.name}: acknowledged message {number} is not there"
        assert len(set(found.values())) == len(found), f"{self.name}: a message is there twice"
        assert set(found.values()) <= self.attempts, f"{self.name}: nobody sent some of the messages"
        # Each writer waits for an answer before it goes on, so its messages are in its order.
        by_writer: dict[bytes, list[int]] = {}
        for payload in found.values():
            writer, count, _ = payload.split(b" ", 2)
            by_writer.setdefault(writer, []).append(int(count))
        for writer, counts in by_writer.items():
            assert counts == sorted(counts), f"{self.name}: messages of writer {writer!r} changed places"


def read_everything(client: Any, name: str) -> dict[int, bytes]:
    newest = client.describe_message_stream(name).storage_status.newest_sequence_number
    found: dict[int, bytes] = {}
    start = 0
    while start <= newest:
        options = sdk.ReadMessagesOptions(
            desired_start_sequence_number=start,
            min_message_count=1,
            max_message_count=50_000,
            read_timeout_millis=0,
        )
        for message in client.read_messages(name, options):
            assert message.sequence_number >= start
            found[message.sequence_number] = message.payload
            start = message.sequence_number + 1
    return found


class Load:
    """Writers on all streams, until the server is gone."""

    writer_numbers = itertools.count()

    def __init__(self, port: int, ledgers: list[Ledger], seed: int) -> None:
        self._stop = threading.Event()
        self._clients = [new_client(port) for _ in ledgers]
        self._threads = [
            threading.Thread(target=self._write, args=(client, ledger, next(self.writer_numbers), seed))
            for client, ledger in zip(self._clients, ledgers, strict=True)
            for _ in range(THREADS_PER_STREAM)
        ]
        for thread in self._threads:
            thread.start()

    def _write(self, client: Any, ledger: Ledger, writer: int, seed: int) -> None:
        rng = random.Random(seed + writer)
        for count in itertools.count():
            if self._stop.is_set():
                return
            payload = b"%d %d " % (writer, count) + rng.randbytes(rng.choice([10, 100, 1000, 5000]))
            ledger.attempt(payload)
            try:
                number = client.append_message(ledger.name, payload)
            except (sdk.StreamManagerException, OSError, TimeoutError):
                return
            ledger.acknowledge(number, payload)

    def finish(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()
        for client in self._clients:
            with contextlib.suppress(Exception):  # whatever state the server's end has left it in
                client.close()


def new_client(port: int) -> Any:
    return sdk.StreamManagerClient(port=port, request_timeout=REQUEST_TIMEOUT_S)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path / "data", env={"PENSTOCK_BACKGROUND_SYNC_INTERVAL_MS": "50"}).start()
    yield process
    if process.is_running:
        process.stop()
    assert "Traceback" not in process.log_text, process.log_text


@pytest.fixture
def ledgers(process: ServerProcess) -> list[Ledger]:
    with new_client(process.port) as client:
        for name, fields in STREAMS.items():
            strategy = sdk.StrategyOnFull.RejectNewData
            client.create_message_stream(
                sdk.MessageStreamDefinition(name=name, strategy_on_full=strategy, **fields)
            )
    return [Ledger(name) for name in STREAMS]


def rounds(process: ServerProcess, ledgers: list[Ledger], count: int) -> None:
    rng = random.Random(os.getpid())
    for seed in range(count):
        load = Load(process.port, ledgers, seed)
        time.sleep(rng.uniform(0.05, 0.8))  # the moment of death is the point
        process.kill()
        load.finish()
        process.start()
        with new_client(process.port) as client:
            for ledger in ledgers:
                ledger.check(client)
    assert all(ledger.acknowledged for ledger in ledgers)


def test_killed_again_and_again(process: ServerProcess, ledgers: list[Ledger]) -> None:
    rounds(process, ledgers, 6)


@pytest.mark.soak
@pytest.mark.skipif(not SOAK, reason="long: set PENSTOCK_SOAK=1")
@pytest.mark.timeout(3600)
def test_killed_for_long(process: ServerProcess, ledgers: list[Ledger]) -> None:
    rounds(process, ledgers, 300)


def test_stopped_under_load(process: ServerProcess, ledgers: list[Ledger]) -> None:
    for seed in range(2):
        load = Load(process.port, ledgers, 1000 + seed)
        time.sleep(0.5)  # any moment will do, as long as clients are at it
        process.stop()  # asserts exit status 0
        load.finish()
        assert " ERROR " not in process.log_text, process.log_text
        process.start()
        with new_client(process.port) as client:
            for ledger in ledgers:
                ledger.check(client)


def test_a_second_server_is_refused(process: ServerProcess, ledgers: list[Ledger]) -> None:
    ports = ("--stream-manager-port", "0", "--http-port", "0")
    second = subprocess.run(
        [SERVER_PYTHON, "-m", "penstock", "server", "--data-dir", str(process.data_dir), *ports],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert second.returncode != 0
    assert "in use by another penstock server" in second.stderr
    assert str(process.pid) in second.stderr, "it says which process to stop"
    assert "Traceback" not in second.stderr
    assert second.stdout == ""
    with new_client(process.port) as client:
        assert client.append_message("durable", b"0 0 still here") == 0
