"""How fast exports go through Spark: draining a backlog, the age of single messages, many exports at once."""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import processes
from bench.appends import Progress
from bench.clients import Load
from bench.figures import Figure
from bench.peers import Server
from bench.sink import STAMP_DIGITS
from bench.stores import IN_FLIGHT, PENSTOCK, open_store

DRAIN_PER_S_MIN = 73_000.0
DRAIN_STREAMS = 4
PAYLOAD_BYTES = 1024
AGE_P50_S_MAX = 0.3
AGE_P99_S_MAX = 1.5
MANY = 200
MANY_P99_S_MAX = 5.0
IDLE_CORE_SHARE_MAX = 0.02
WAIT_S = 120.0


class Pipeline:
    """A server, a pipeline on local[2], and a sink that counts."""

    def __init__(self, server: Server, address: tuple[str, int], pipeline: Server, sink: Server) -> None:
        self.server, self.address, self.pipeline = server, address, pipeline
        assert sink.ready_match is not None
        self.uri = f"http://127.0.0.1:{sink.ready_match[1]}/"
        self.control = PENSTOCK.protocol.connect(address)

    def define(self, operation: int, stream: str, http: dict[str, Any]) -> None:
        definition = {
            "name": stream,
            "maxSize": 2**40,
            "streamSegmentSize": 16 * 1024 * 1024,
            "strategyOnFull": 0,
            "exportDefinition": {"http": [{"identifier": "sink", "uri": self.uri, **http}]},
        }
        protocol = PENSTOCK.protocol
        self.control.sendall(protocol._frame(operation, {"definition": definition}))
        protocol._answer(self.control)

    def append(self, stream: str, payload: bytes) -> None:
        self.control.sendall(PENSTOCK.protocol.append(stream, 0, payload))
        PENSTOCK.protocol._answer(self.control)

    def counted(self) -> dict[str, Any]:
        with urllib.request.urlopen(self.uri) as answer:
            figures: dict[str, Any] = json.load(answer)
        return figures

    def wait_for(self, messages: int) -> dict[str, Any]:
        deadline = time.monotonic() + WAIT_S
        while (figures := self.counted())["messages"] < messages:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the sink has {figures['messages']} of {messages} messages")
            time.sleep(0.05)  # the sink has no way to call us
        return figures

    def cpu_s(self) -> float:
        return sum(processes.snapshot(process.pid).server_cpu_s for process in (self.server, self.pipeline))


@contextmanager
def pipeline_of(work_dir: Path) -> Iterator[Pipeline]:
    directory = work_dir / "exports"
    with open_store(directory) as (server, address, http):
        sink = Server([sys.executable, "-m", "bench.sink"], r"sink ready (\d+)")
        command = [sys.executable, "-m", "penstock", "pipeline", "--data-dir", str(directory)]
        command += ["--server", f"http://{http[0]}:{http[1]}", "--master", "local[2]"]
        pipeline = Server(command, "pipeline ready")
        running = Pipeline(server, address, pipeline, sink)
        try:
            yield running
        finally:
            running.control.close()
            pipeline.stop()
            sink.kill()


def _stamped() -> bytes:
    return str(time.time_ns()).zfill(STAMP_DIGITS).encode()


def _share(ages_s: list[float], share: float) -> float:
    return sorted(ages_s)[min(len(ages_s) - 1, int(len(ages_s) * share))]


def drain(work_dir: Path, messages: int, progress: Progress) -> tuple[list[Figure], str]:
    create, update = PENSTOCK.protocol.CREATE, 15
    streams = [f"drain-{index}" for index in range(DRAIN_STREAMS)]
    with pipeline_of(work_dir) as running:
        for stream in streams:
            running.define(create, stream, {"exportFormat": 1, "disabled": True})
        progress(f"drain: filling {messages:,} messages of {PAYLOAD_BYTES} B")
        load = Load(PENSTOCK.protocol, running.address, streams, IN_FLIGHT, PAYLOAD_BYTES)
        load.run_until(messages)
        load.drain()
        held = load.acks
        load.close()
        before_cpu_s, started = running.cpu_s(), time.monotonic()
        for stream in streams:
            running.define(update, stream, {"exportFormat": 1})
        running.wait_for(held)
        elapsed_s = time.monotonic() - started
        cpu_s = running.cpu_s() - before_cpu_s
    rate = held / elapsed_s
    figures = [
        Figure(f"{held:,} messages to an HTTP sink, JSON arrays of 500", rate, "messages/s", DRAIN_PER_S_MIN),
        Figure("the same in payload", rate * PAYLOAD_BYTES / 1e6, "MB/s"),
        Figure("server and pipeline CPU", cpu_s / held * 1e6, "µs/message"),
    ]
    return (
        figures,
        f"processor: server and pipeline took {cpu_s / elapsed_s:.0%} of a core, the sink the rest",
    )


def ages(work_dir: Path, messages: int, progress: Progress) -> tuple[list[Figure], str]:
    with pipeline_of(work_dir) as running:
        running.define(PENSTOCK.protocol.CREATE, "age", {"batchSize": 1})
        for _ in range(10):  # the first few find everything cold
            running.append("age", b"cold")
            time.sleep(0.3)  # or they would go out together
        cold = running.wait_for(10)["messages"]
        progress(f"export-age: {messages} messages, one every 0.2 s")
        for _ in range(messages):
            running.append("age", _stamped())
            time.sleep(0.2)  # the rate is the load
        ages_s = running.wait_for(cold + messages)["ages_s"]
    figures = [
        Figure(
            "append to delivered, batch size 1, half of the messages",
            _share(ages_s, 0.5),
            "s",
            at_most=AGE_P50_S_MAX,
        ),
        Figure("append to delivered, 99 % of the messages", _share(ages_s, 0.99), "s", at_most=AGE_P99_S_MAX),
    ]
    return figures, "the round of a Spark job: plan, schedule, task, and two reports to the server"


def many(work_dir: Path, seconds: int, progress: Progress) -> tuple[list[Figure], str]:
    streams = [f"many-{index:03d}" for index in range(MANY)]
    with pipeline_of(work_dir) as running:
        progress(f"exports-{MANY}: a message a second each, for {seconds} s")
        for stream in streams:
            running.define(PENSTOCK.protocol.CREATE, stream, {})
        time.sleep(2)  # settle, so that the idle figure is one
        before_cpu_s = running.cpu_s()
        time.sleep(seconds / 2)  # what is measured is that nothing happens
        idle_share = (running.cpu_s() - before_cpu_s) / (seconds / 2)
        before_cpu_s, started = running.cpu_s(), time.monotonic()
        for second in range(seconds):
            for stream in streams:
                running.append(stream, _stamped())
            time.sleep(max(0.0, started + second + 1 - time.monotonic()))
        busy_share = (running.cpu_s() - before_cpu_s) / (time.monotonic() - started)
        ages_s = running.wait_for(MANY * seconds)["ages_s"]
        resident_mb = sum(processes.resident_bytes(p.pid) for p in (running.server, running.pipeline)) / 1e6
    figures = [
        Figure(
            f"{MANY} exports, a message a second each, 99 %",
            _share(ages_s, 0.99),
            "s",
            at_most=MANY_P99_S_MAX,
        ),
        Figure("half of the messages", _share(ages_s, 0.5), "s"),
        Figure("server and pipeline, share of a core", busy_share, "cores"),
        Figure(f"{MANY} idle exports, share of a core", idle_share, "cores", at_most=IDLE_CORE_SHARE_MAX),
        Figure("server and pipeline with Spark, resident", resident_mb, "MB"),
    ]
    return figures, "jobs of Spark one after the other, each for all exports that are due"
