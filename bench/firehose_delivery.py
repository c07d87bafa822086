"""What stands behind Firehose's API: backlogs into gzip and Parquet objects, the age of objects, many streams."""

from __future__ import annotations

import base64
import http.client
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bench import processes
from bench.appends import Progress
from bench.figures import Figure
from bench.peers import Server
from bench.stores import open_store

RECORD_BYTES = 1024
PUT_RECORDS = 500
GZIP_PER_S_MIN = 73_000.0
PARQUET_PER_S_MIN = 60_000.0
PARQUET_LONGER = 2.5  # Java compiles for the first million or so
VISIBLE_S_MAX = 1.5
STREAMS = 500
BUSY = 50
GROWTH_MAX = 1.5
WAIT_S = 300.0
ACCOUNT, REGION = "000000000000", "us-east-1"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/bench"
TABLE_DDL = "id BIGINT, device STRING, temperature DOUBLE, seen TIMESTAMP, note STRING"


class Firehose:
    """The few calls that are needed, on one kept connection, unsigned."""

    def __init__(self, address: tuple[str, int], token: str) -> None:
        self._connection = http.client.HTTPConnection(*address, timeout=60)
        self._token = token

    def call(self, operation: str, body: bytes) -> dict[str, Any]:
        headers = {
            "X-Amz-Target": f"Firehose_20150804.{operation}",
            "Content-Type": "application/x-amz-json-1.1",
        }
        return self._send("POST", "/", body, headers)

    def create(self, name: str, bucket: str, **config: Any) -> None:
        destination = {"RoleARN": ROLE, "BucketARN": f"arn:aws:s3:::{bucket}", **config}
        body = {"DeliveryStreamName": name, "ExtendedS3DestinationConfiguration": destination}
        self.call("CreateDeliveryStream", json.dumps(body).encode())
        deadline_s = time.monotonic() + WAIT_S
        while self._status(name) != "ACTIVE":
            assert time.monotonic() < deadline_s, f"{name} does not become ACTIVE"
            time.sleep(0.01)  # the API has no way to call us

    def _status(self, name: str) -> str:
        answer = self.call("DescribeDeliveryStream", json.dumps({"DeliveryStreamName": name}).encode())
        return str(answer["DeliveryStreamDescription"]["DeliveryStreamStatus"])

    def progress(self, name: str) -> dict[str, Any]:
        streams = self._send("GET", "/v1/delivery", None, {"Authorization": f"Bearer {self._token}"})
        return next(dict(stream["progress"]) for stream in streams if stream["name"] == name)

    def _send(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Any:
        self._connection.request(method, path, body, headers)
        answer = self._connection.getresponse()
        content = answer.read()
        assert answer.status == 200, content[:500]
        return json.loads(content)


def _records(count: int) -> list[bytes]:
    """JSON of a kilobyte each, about as compressible as device data is."""
    chance = random.Random(7)
    words = [f"{chance.getrandbits(64):x}" for _ in range(400)]
    records = []
    for number in range(count):
        record = {
            "id": number,
            "device": f"device-{chance.randrange(1000):04d}",
            "temperature": round(chance.uniform(-20, 90), 3),
            "seen": "2026-11-15T12:00:00Z",
            "note": "",
        }
        room = RECORD_BYTES - len(json.dumps(record)) - 1
        record["note"] = " ".join(chance.choices(words, k=room // 17 + 1))[:room]
        records.append(json.dumps(record).encode() + b"\n")
    return records


def _batch(name: str, records: list[bytes]) -> bytes:
    entries = [{"Data": base64.b64encode(record).decode()} for record in records]
    return json.dumps({"DeliveryStreamName": name, "Records": entries}).encode()


def _fill(firehose: Firehose, name: str, records: int) -> int:
    bodies = [_batch(name, _records(PUT_RECORDS)) for _ in range(4)]
    puts = records // PUT_RECORDS
    for number in range(puts):
        firehose.call("PutRecordBatch", bodies[number % len(bodies)])
    return puts * PUT_RECORDS


@contextmanager
def _pipeline(directory: Path, address: tuple[str, int]) -> Iterator[Server]:
    command = [sys.executable, "-m", "penstock", "pipeline", "--data-dir", str(directory)]
    command += ["--server", f"http://{address[0]}:{address[1]}", "--master", "local[2]"]
    pipeline = Server(command, "pipeline ready")
    try:
        yield pipeline
    finally:
        pipeline.stop()


@contextmanager
def _firehose(directory: Path) -> Iterator[tuple[Firehose, Server, tuple[str, int]]]:
    with open_store(directory) as (server, _address, http):
        yield Firehose(http, (directory / "http-token").read_text().strip()), server, http


class Drained(NamedTuple):
    per_s: float
    first_part_per_s: float  # of the first records, while Java still compiles
    cpu_us: float  # of server and pipeline, for each record


def _drain(
    directory: Path, records: int, first_part: int, progress: Progress, name: str, **config: Any
) -> Drained:
    with _firehose(directory) as (firehose, server, http):
        firehose.create(name, name, BufferingHints={"SizeInMBs": 64, "IntervalInSeconds": 1}, **config)
        progress(f"{name}: filling {records:,} records of {RECORD_BYTES} B")
        held = _fill(firehose, name, records)
        with _pipeline(directory, http) as pipeline:
            before_cpu_s, started_s = _cpu_s(server, pipeline), time.monotonic()
            first_part_per_s = 0.0
            while waiting := int(firehose.progress(name)["waiting_records"]):
                elapsed_s = time.monotonic() - started_s
                assert elapsed_s < WAIT_S, "the backlog does not drain"
                if not first_part_per_s and held - waiting >= first_part:
                    first_part_per_s = (held - waiting) / elapsed_s
                time.sleep(0.05)  # the API has no way to call us
            elapsed_s = time.monotonic() - started_s
            cpu_s = _cpu_s(server, pipeline) - before_cpu_s
    return Drained(held / elapsed_s, first_part_per_s or held / elapsed_s, cpu_s / held * 1e6)


def _cpu_s(*servers: Server) -> float:
    return sum(processes.snapshot(server.pid).server_cpu_s for server in servers)


def drain(work_dir: Path, records: int, progress: Progress) -> tuple[list[Figure], str]:
    gzipped = _drain(
        work_dir / "firehose-gzip", records, records, progress, "firehose-gzip", CompressionFormat="GZIP"
    )
    directory = work_dir / "firehose-parquet"
    (directory / "schemas" / "bench").mkdir(parents=True)
    (directory / "schemas" / "bench" / "readings.ddl").write_text(TABLE_DDL)
    conversion = {"DataFormatConversionConfiguration": _conversion()}
    long = round(records * PARQUET_LONGER)
    converted = _drain(directory, long, records, progress, "firehose-parquet", **conversion)
    figures = [
        Figure(f"{records:,} records to gzip objects", gzipped.per_s, "records/s", GZIP_PER_S_MIN),
        Figure("the same in payload", gzipped.per_s * RECORD_BYTES / 1e6, "MB/s"),
        Figure("server and pipeline CPU", gzipped.cpu_us, "µs/record"),
        Figure(f"{long:,} records to Parquet, SNAPPY", converted.per_s, "records/s", PARQUET_PER_S_MIN),
        Figure(f"the first {records:,} of them", converted.first_part_per_s, "records/s"),
        Figure("all of them in payload", converted.per_s * RECORD_BYTES / 1e6, "MB/s"),
        Figure("server and pipeline CPU", converted.cpu_us, "µs/record"),
    ]
    return figures, "both cores: gzip; for Parquet the parsing of JSON in Spark, and Java's compiler at first"


def _conversion() -> dict[str, Any]:
    return {
        "Enabled": True,
        "InputFormatConfiguration": {"Deserializer": {"OpenXJsonSerDe": {}}},
        "OutputFormatConfiguration": {"Serializer": {"ParquetSerDe": {}}},
        "SchemaConfiguration": {"RoleARN": ROLE, "DatabaseName": "bench", "TableName": "readings"},
    }


def visible(work_dir: Path, rounds: int, progress: Progress) -> tuple[list[Figure], str]:
    """From the put that fills the buffer to the object in the store."""
    directory = work_dir / "firehose-visible"
    name = "firehose-visible"
    with _firehose(directory) as (firehose, _server, http), _pipeline(directory, http):
        firehose.create(name, name, BufferingHints={"SizeInMBs": 1, "IntervalInSeconds": 900})
        bodies = [_batch(name, _records(PUT_RECORDS)) for _ in range(3)]
        bucket = directory / "objects" / name
        ages_s = []
        progress(f"firehose-visible: {rounds} buffers")
        for _ in range(rounds + 3):
            before = _objects(bucket)
            for body in bodies:
                firehose.call("PutRecordBatch", body)
            full_s = time.monotonic()
            while _objects(bucket) <= before:
                assert time.monotonic() < full_s + WAIT_S, "no object"
                time.sleep(0.005)  # a folder is looked at
            ages_s.append(time.monotonic() - full_s)
            deadline_s = time.monotonic() + WAIT_S
            while firehose.progress(name)["flushes"]:
                assert time.monotonic() < deadline_s, "the buffer does not drain"
                time.sleep(0.01)  # the API has no way to call us
    ages_s = sorted(ages_s[3:])  # the first few find everything cold
    figures = [
        Figure("buffer full to object visible, half of them", statistics.median(ages_s), "s"),
        Figure("the slowest", ages_s[-1], "s", at_most=VISIBLE_S_MAX),
    ]
    return figures, "the round of a Spark job: plan, schedule, task, and two reports to the server"


def _objects(bucket: Path) -> int:
    return sum(1 for path in bucket.rglob("*") if path.is_file() and "-1-" in path.name)


def many(work_dir: Path, puts: int, progress: Progress) -> tuple[list[Figure], str]:
    """Puts to a few busy streams, alone and beside hundreds of idle ones."""
    with _firehose(work_dir / "firehose-many") as (firehose, server, _http):
        names = [f"busy-{number:03d}" for number in range(BUSY)]
        for name in names:
            firehose.create(name, "many")
        progress(f"firehose-{STREAMS}: {BUSY} busy streams, then {STREAMS - BUSY} idle ones beside them")
        alone_s, alone_mb = _latency_s(firehose, names, puts), processes.resident_bytes(server.pid) / 1e6
        for number in range(STREAMS - BUSY):
            firehose.create(f"idle-{number:03d}", "many")
        crowded_s, crowded_mb = _latency_s(firehose, names, puts), processes.resident_bytes(server.pid) / 1e6
    figures = [
        Figure(f"PutRecord, {BUSY} streams, half of them", alone_s * 1e3, "ms"),
        Figure(f"the same beside {STREAMS - BUSY} idle streams", crowded_s * 1e3, "ms"),
        Figure("growth", crowded_s / alone_s, "×", at_most=GROWTH_MAX),
        Figure(f"server with {BUSY} streams, resident", alone_mb, "MB"),
        Figure(f"server with {STREAMS} streams, resident", crowded_mb, "MB"),
    ]
    return figures, "one fdatasync for each put of a single client"


def _latency_s(firehose: Firehose, names: list[str], puts: int) -> float:
    data = base64.b64encode(b"x" * RECORD_BYTES).decode()
    bodies = [json.dumps({"DeliveryStreamName": name, "Record": {"Data": data}}).encode() for name in names]
    latencies_s = []
    for number in range(puts):
        started_s = time.monotonic()
        firehose.call("PutRecord", bodies[number % len(bodies)])
        latencies_s.append(time.monotonic() - started_s)
    return statistics.median(latencies_s)
