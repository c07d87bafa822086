"""PutRecordBatch and PutRecord side by side with moto and ministack, which keep records in memory.

Each client is a thread with a plain socket that sends the same prepared request again and again: nothing is built,
signed or parsed for a record.
"""

from __future__ import annotations

import base64
import http.client
import itertools
import json
import os
import shutil
import socket
import statistics
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import boto3

from bench import processes
from bench.appends import AppendResult, Appends, Bar, Progress, Round, WrongCount
from bench.clients import Stalled
from bench.figures import Figure
from bench.peers import PeerError, Penstock, Server, free_port, package_version
from bench.protocols import Address

RECORD_BYTES = 1024
BATCH_RECORDS = 500
WARM_UP_S = 1.0
ANSWER_TIMEOUT_S = 30.0
ACTIVE_TIMEOUT_S = 10.0
NAME, BUCKET = "bench", "bench"
MINISTACK = Path(".venvs/ministack/bin/ministack")
RECEIVE_BYTES = 64 * 1024


class Puts(NamedTuple):
    operation: str
    scenario: Appends
    batch_records: int
    per_s_min: float | None = None  # of Penstock, whatever the peers do
    per_s_aim: float | None = None

    @property
    def title(self) -> str:
        records = f"{self.batch_records} × " if self.batch_records > 1 else ""
        return (
            f"{self.operation} of {records}{RECORD_BYTES} B, {self.scenario.clients} clients, one delivery stream; "
            "an append is a record"
        )


BATCHES = Puts(
    "PutRecordBatch",
    Appends("put-batch-4x500", 4, 1, True, (Bar("moto", 10.0),)),
    BATCH_RECORDS,
    per_s_aim=250_000,
)
RECORDS = Puts("PutRecord", Appends("put-record-8", 8, 1, True, ()), 1, per_s_min=3_000)
SCENARIOS = (BATCHES, RECORDS)


class FirehosePeer(ABC):
    name: str
    settings: str
    needs_bucket = True  # it delivers when records are put

    @abstractmethod
    def start(self, directory: Path) -> tuple[Server, Address]: ...

    def stored(self, directory: Path, address: Address) -> int | None:
        """How many records it holds, where that can be asked."""
        return None


class PenstockFirehose(FirehosePeer):
    name = "penstock"
    settings = "acknowledged after fdatasync"
    needs_bucket = False

    def start(self, directory: Path) -> tuple[Server, Address]:
        server, _stream_manager, address = Penstock().start_with_http(directory)
        return server, address

    def stored(self, directory: Path, address: Address) -> int | None:
        connection = http.client.HTTPConnection(*address, timeout=ANSWER_TIMEOUT_S)
        token = (directory / "http-token").read_text().strip()
        arn = _client("firehose", address).describe_delivery_stream(DeliveryStreamName=NAME)
        stream = arn["DeliveryStreamDescription"]["DeliveryStreamARN"]
        headers = {"Authorization": f"Bearer {token}"}
        connection.request("GET", f"/v1/frames?stream={stream}&max_bytes=1", headers=headers)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return int(answer.headers["penstock-end-sequence"])


class Moto(FirehosePeer):
    name = "moto"

    @property
    def settings(self) -> str:  # type: ignore[override]
        return f"{package_version('moto')}, in memory, one connection a request"

    def start(self, directory: Path) -> tuple[Server, Address]:
        port = free_port()
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        return Server(command, r"Running on http"), ("127.0.0.1", port)


class Ministack(FirehosePeer):
    """Pins another botocore than ours, so it has a virtualenv of its own."""

    name = "ministack"
    settings = "in memory"

    def start(self, directory: Path) -> tuple[Server, Address]:
        if not MINISTACK.exists():
            raise PeerError(f"{MINISTACK} is not there; run: scripts/setup-bench.sh")
        port = free_port()
        command = ["env", f"GATEWAY_PORT={port}", "BIND_HOST=127.0.0.1", str(MINISTACK)]
        return Server(command, r"Running on http"), ("127.0.0.1", port)


PEERS: tuple[FirehosePeer, ...] = (PenstockFirehose(), Moto(), Ministack())


def measure(
    puts: Puts, work_dir: Path, rounds: int, seconds: float, progress: Progress
) -> list[AppendResult]:
    """As with appends: rounds go from peer to peer, each with a new server."""
    measured: dict[str, list[Round]] = {peer.name: [] for peer in PEERS}
    for number in range(rounds):
        first = number % len(PEERS)
        for peer in itertools.islice(itertools.cycle(PEERS), first, first + len(PEERS)):
            result = _measure_round(peer, puts, work_dir, seconds)
            progress(
                f"{puts.scenario.name} round {number + 1}/{rounds} {peer.name}: {result.appends_per_s:,.0f}/s"
            )
            measured[peer.name].append(result)
    return [_summary(peer, measured[peer.name]) for peer in PEERS]


def figures(puts: Puts, results: list[AppendResult]) -> list[Figure]:
    reached_per_s = next(result.median.appends_per_s for result in results if result.peer == "penstock")
    found = [Figure("penstock", reached_per_s, "records/s", at_least=puts.per_s_min)]
    if puts.per_s_aim is not None:
        found.append(
            Figure(f"of the aim of {puts.per_s_aim:,.0f} records/s", reached_per_s / puts.per_s_aim, "×")
        )
    return found


def _measure_round(peer: FirehosePeer, puts: Puts, work_dir: Path, seconds: float) -> Round:
    directory = work_dir / f"firehose-{peer.name}"
    server, address = peer.start(directory)
    try:
        _create(address, peer.needs_bucket)
        load = Load(address, puts)
        with load.running():
            time.sleep(WARM_UP_S)  # the clients put meanwhile
            result = _timed(load, server, seconds)
        stored = peer.stored(directory, address)
        if stored not in (None, load.records):
            raise WrongCount(f"{peer.name} acknowledged {load.records} records and holds {stored}")
        return result
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)


class Load:
    """All clients of one measurement."""

    def __init__(self, address: Address, puts: Puts) -> None:
        self._request = _prepared(address, puts)
        self._address = address
        self._batch_records = puts.batch_records
        self._counts = [0] * puts.scenario.clients
        self._ending = threading.Event()
        self._failure: BaseException | None = None

    @property
    def records(self) -> int:
        return sum(self._counts) * self._batch_records

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._run, args=(index,)) for index in range(len(self._counts))]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ending.set()
            for thread in threads:
                thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self, index: int) -> None:
        try:
            self._put_until_the_end(index)
        except BaseException as error:
            self._failure = error

    def _put_until_the_end(self, index: int) -> None:
        connection: socket.socket | None = None
        received = bytearray(RECEIVE_BYTES)
        while not self._ending.is_set():
            connection = connection or self._connect()
            connection.sendall(self._request)
            if _answer_closes(connection, received):
                connection.close()
                connection = None
            self._counts[index] += 1
        if connection is not None:
            connection.close()

    def _connect(self) -> socket.socket:
        connection = socket.create_connection(self._address, timeout=ANSWER_TIMEOUT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


def _answer_closes(connection: socket.socket, received: bytearray) -> bool:
    """Read one answer, which must be a success; returns whether the server closes the connection behind it."""
    size_bytes = connection.recv_into(received)
    while (head_end := received.find(b"\r\n\r\n", 0, size_bytes)) < 0:
        more_bytes = connection.recv_into(memoryview(received)[size_bytes:])
        if not more_bytes:
            raise Stalled("the server closed the connection")
        size_bytes += more_bytes
    head = bytes(received[:head_end]).lower()
    if not head.startswith(b"http/1.1 200"):
        raise Stalled(f"a put failed: {bytes(received[:500])!r}")
    left_bytes = int(head.partition(b"content-length: ")[2].partition(b"\r")[0]) - (size_bytes - head_end - 4)
    body_start = bytes(received[head_end + 4 : size_bytes])
    while left_bytes > 0:
        more_bytes = connection.recv_into(received)
        if not more_bytes:
            raise Stalled("the server closed the connection")
        left_bytes -= more_bytes
    if b"FailedPutCount" in body_start and not any(
        zero in body_start for zero in (b'"FailedPutCount":0,', b'"FailedPutCount": 0,')
    ):
        raise Stalled(f"records of a batch failed: {body_start[:300]!r}")
    return b"connection: close" in head


def _prepared(address: Address, puts: Puts) -> bytes:
    record = {"Data": base64.b64encode(os.urandom(RECORD_BYTES)).decode()}
    body: dict[str, object] = {"DeliveryStreamName": NAME}
    if puts.operation == "PutRecordBatch":
        body["Records"] = [record] * puts.batch_records
    else:
        body["Record"] = record
    encoded = json.dumps(body).encode()
    head = [
        "POST / HTTP/1.1",
        f"Host: {address[0]}:{address[1]}",
        f"X-Amz-Target: Firehose_20150804.{puts.operation}",
        "Content-Type: application/x-amz-json-1.1",
        # Not signed, but moto and ministack find the service by it.
        "Authorization: AWS4-HMAC-SHA256 Credential=bench/20260101/us-east-1/firehose/aws4_request, "
        f"SignedHeaders=host, Signature={'0' * 64}",
        f"Content-Length: {len(encoded)}",
    ]
    return "\r\n".join([*head, "", ""]).encode() + encoded


def _client(service: str, address: Address) -> Any:
    return boto3.session.Session("bench", "bench", region_name="us-east-1").client(
        service, endpoint_url=f"http://{address[0]}:{address[1]}"
    )


def _create(address: Address, needs_bucket: bool) -> None:
    firehose = _client("firehose", address)
    destination = {"BucketARN": f"arn:aws:s3:::{BUCKET}", "RoleARN": "arn:aws:iam::000000000000:role/bench"}
    if needs_bucket:
        _client("s3", address).create_bucket(Bucket=BUCKET)
    firehose.create_delivery_stream(DeliveryStreamName=NAME, ExtendedS3DestinationConfiguration=destination)
    deadline_s = time.monotonic() + ACTIVE_TIMEOUT_S
    while time.monotonic() < deadline_s:
        answer = firehose.describe_delivery_stream(DeliveryStreamName=NAME)
        if answer["DeliveryStreamDescription"]["DeliveryStreamStatus"] == "ACTIVE":
            return
        time.sleep(0.05)  # the API has no way to call us
    raise PeerError(f"the delivery stream was not ACTIVE after {ACTIVE_TIMEOUT_S:.0f} s")


def _timed(load: Load, server: Server, seconds: float) -> Round:
    records_before, before, started_s = load.records, processes.snapshot(server.pid), time.monotonic()
    time.sleep(seconds)  # the clients put meanwhile
    records = max(1, load.records - records_before)
    after, elapsed_s = processes.snapshot(server.pid), time.monotonic() - started_s
    server_cpu_s = after.server_cpu_s - before.server_cpu_s
    client_cpu_s = after.client_cpu_s - before.client_cpu_s
    busy_s = after.machine_busy_s - before.machine_busy_s
    return Round(
        appends_per_s=records / elapsed_s,
        server_cpu_us_per_append=server_cpu_s / records * 1e6,
        server_share=server_cpu_s / elapsed_s,
        busiest_thread_share=processes.busiest_thread_s(before, after) / elapsed_s,
        client_share=client_cpu_s / elapsed_s,
        other_share=max(0.0, busy_s - server_cpu_s - client_cpu_s) / elapsed_s,
    )


def _summary(peer: FirehosePeer, rounds: list[Round]) -> AppendResult:
    rates = [each.appends_per_s for each in rounds]
    median = Round(*(statistics.median(column) for column in zip(*rounds, strict=True)))
    return AppendResult(peer.name, peer.settings, median, min(rates), max(rates))
