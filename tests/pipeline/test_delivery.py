"""What runs on an executor, without Spark: one flush from a real server to a real destination."""

from __future__ import annotations

import json
import re
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow
import pyarrow.compute
import pytest

from harness import ServerProcess
from penstock.client import StreamManagerClient
from penstock.flush import Flush, LeaseRequest, Outcome
from penstock.model import ExportKind
from penstock.pipeline import delivery as delivery_module
from penstock.pipeline.delivery import Reporter, Task, deliver_flush, deliver_partition, frame_parts
from penstock.pipeline.destinations import http as http_destination
from penstock.pipeline.destinations.base import Cancelled, PipelineSettings
from penstock.pipeline.object_folder import FolderStore
from penstock.pipeline.records.processors.lambda_function import CONCURRENT_INVOCATIONS_MAX
from penstock.pipeline.records.sql_rows import Ended, SinkTask, SourceTask, decode_note
from penstock.pipeline.records.sql_sink import write_flushes
from penstock.pipeline.records.sql_source import read_flushes
from penstock.pipeline.server_client import ServerClient
from pipeline.records.deliveries import delivery_settings
from pipeline.sink import Sink

PIPELINE = "test"
MIB = 1024 * 1024


class ByHand:
    """A server with a stream 's', and this test as its pipeline."""

    def __init__(self, server: ServerProcess, sink: Sink, path: str) -> None:
        self.server, self.sink, self.path = server, sink, path
        self.connect()

    def connect(self) -> None:
        token = (self.server.data_dir / "http-token").read_text().strip()
        url = f"http://127.0.0.1:{self.server.http_port}"
        self.task = Task(url, token, PIPELINE, threads=1, settings=PipelineSettings())
        self.client = ServerClient(url, token)
        self.streams = StreamManagerClient(self.server.host, self.server.port)

    def close(self) -> None:
        self.streams.close()
        self.client.close()
        http_destination._idle_connections.close()

    def create(self, export: dict[str, Any] | None = None, **fields: Any) -> None:
        config = {"identifier": "e", "uri": self.sink.url(self.path), "exportFormat": 1, **(export or {})}
        definition = {"name": "s", "strategyOnFull": 0, "exportDefinition": {"http": [config]}}
        self.streams.create({**definition, **fields})

    def append(self, count: int, start: int = 0) -> list[bytes]:
        payloads = [b"message %d" % number for number in range(start, start + count)]
        for payload in payloads:
            self.streams.append("s", payload)
        return payloads

    def lease(self, *, probing: bool = False) -> Flush:
        leases = self.client.lease(LeaseRequest(PIPELINE, wait_ms=10_000, probing=probing))
        [flush] = leases.flushes
        return flush

    def deliver(self, flush: Flush) -> Outcome | None:
        return deliver_flush(flush, self.task, self.client)

    @property
    def status(self) -> dict[str, Any]:
        [status] = self.streams.describe("s")["exportStatuses"]
        return dict(status)

    @property
    def arrived(self) -> list[bytes]:
        return self.sink.messages(self.path)


@pytest.fixture
def by_hand(server: ServerProcess, sink: Sink, request: pytest.FixtureRequest) -> Iterator[ByHand]:
    made = ByHand(server, sink, re.sub(r"\W", "-", request.node.name))
    yield made
    made.close()


@pytest.mark.parametrize("persistence", [0, 1], ids=["file", "memory"])
def test_a_flush_is_delivered_and_reported(by_hand: ByHand, persistence: int) -> None:
    by_hand.create(persistence=persistence)
    payloads = by_hand.append(20)
    assert by_hand.deliver(by_hand.lease()) is None
    assert by_hand.arrived == payloads
    assert by_hand.status["exportedMessagesCount"] == 20
    assert by_hand.status["exportedBytesFromStream"] == sum(map(len, payloads))


def test_messages_larger_than_a_bulk_read(by_hand: ByHand) -> None:
    by_hand.create({"exportFormat": 0})
    large = [bytes([number]) * 20 * 2**20 for number in range(2)]
    for payload in large:
        by_hand.streams.append("s", payload)
    by_hand.deliver(by_hand.lease())
    bodies = by_hand.sink.bodies(by_hand.path)
    assert [len(body) for body in bodies] == [20 * 2**20] * 2
    assert bodies == large, "the same sizes, but other bytes"


def test_progress_is_reported_after_each_batch(by_hand: ByHand) -> None:
    """So that a kill repeats one batch: what the sink has seen, the server knows, but for the last batch."""
    by_hand.create({"batchSize": 5})
    by_hand.append(50)
    seen: list[tuple[int, int]] = []
    known = by_hand.client.report

    def report(pipeline: str, outcomes: list[Outcome]) -> Any:
        answer = known(pipeline, outcomes)
        seen.append((len(by_hand.arrived), outcomes[0].next))
        return answer

    by_hand.client.report = report  # type: ignore[method-assign]
    by_hand.deliver(by_hand.lease())
    assert seen[:-1] == [(count, count) for count in range(0, 55, 5)]


def test_without_the_server_the_attempt_ends_and_what_it_did_is_told_later(
    by_hand: ByHand, sink: Sink
) -> None:
    by_hand.create({"batchSize": 5})
    payloads = by_hand.append(50)
    flush = by_hand.lease()
    known = by_hand.client.report

    def report(pipeline: str, outcomes: list[Outcome]) -> Any:
        if outcomes[0].next >= 20 and by_hand.server.is_running:
            by_hand.server.kill()
        return known(pipeline, outcomes)

    by_hand.client.report = report  # type: ignore[method-assign]
    outcome = by_hand.deliver(flush)
    assert outcome is not None
    assert (outcome.next, outcome.done) == (20, True)
    assert by_hand.arrived == payloads[:20], "it goes no further than it can report"
    by_hand.close()
    by_hand.server.start()
    by_hand.connect()
    assert by_hand.client.report(PIPELINE, [outcome]).cancelled == [flush.id]
    assert by_hand.status["lastExportedSequenceNumber"] == 19
    assert by_hand.deliver(by_hand.lease()) is None
    assert by_hand.arrived == payloads, "nothing came twice"
    assert by_hand.status["exportedMessagesCount"] == 50


def test_a_partition_tells_the_server_itself(by_hand: ByHand) -> None:
    """As Spark calls it: rows of flushes come in, and no row goes out if the server has heard everything."""
    by_hand.create()
    payloads = by_hand.append(5)
    rows = pyarrow.array([msgspec.json.encode(by_hand.lease())], pyarrow.binary())
    batch = pyarrow.RecordBatch.from_arrays([rows], ["flush"])
    assert list(deliver_partition(msgspec.json.encode(by_hand.task), iter([batch]))) == []
    assert by_hand.arrived == payloads
    assert by_hand.status["exportedMessagesCount"] == 5


def test_a_partition_gives_back_what_the_server_has_not_heard(by_hand: ByHand) -> None:
    by_hand.create()
    by_hand.append(5)
    flush = by_hand.lease()
    by_hand.server.kill()
    rows = pyarrow.array([msgspec.json.encode(flush)], pyarrow.binary())
    batch = pyarrow.RecordBatch.from_arrays([rows], ["flush"])
    [answer] = deliver_partition(msgspec.json.encode(by_hand.task), iter([batch]))
    [row] = answer.column("outcome").to_pylist()
    outcome = msgspec.json.decode(row, type=Outcome)
    assert (outcome.flush, outcome.next, outcome.done) == (flush.id, 0, True)
    assert "does not answer" in outcome.error
    assert by_hand.arrived == []


def test_a_flush_that_nobody_wants_any_more_is_not_delivered(by_hand: ByHand) -> None:
    by_hand.create()
    by_hand.append(5)
    flush = by_hand.lease()
    by_hand.streams.delete("s")
    assert by_hand.deliver(flush) is None
    assert by_hand.arrived == []


calls: list[str] = []
when_called: Callable[[], object] = list


def watched_function(event: dict[str, Any], context: object) -> dict[str, Any]:
    calls.append(event["invocationId"])
    when_called()
    records = [{"recordId": r["recordId"], "result": "Ok", "data": r["data"]} for r in event["records"]]
    return {"records": records}


def watched_work(by_hand: ByHand, tmp_path: Path) -> tuple[Flush, Task]:
    """A flush of all there is whose records go through `watched_function`, and where it is delivered."""
    parameters = [{"ParameterName": "LambdaArn", "ParameterValue": "watched"}]
    processors = [{"Type": "Lambda", "Parameters": parameters}]
    delivery = delivery_settings(ProcessingConfiguration={"Enabled": True, "Processors": processors})
    settings = msgspec.to_builtins(delivery)
    flush = msgspec.structs.replace(by_hand.lease(), kind=ExportKind.DELIVERY, settings=settings)
    lambdas = {"watched": f"python:{__name__}:watched_function"}
    where = PipelineSettings(object_store=f"file://{tmp_path}", lambdas=lambdas)
    return flush, msgspec.structs.replace(by_hand.task, settings=where)


def test_work_that_nobody_wants_any_more_ends_before_it_is_done(
    by_hand: ByHand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function that hangs would be called for hours, and its flush take the place of others."""
    by_hand.create()
    for _ in range(12):
        by_hand.streams.append("s", bytes(MIB))
    flush, task = watched_work(by_hand, tmp_path)
    monkeypatch.setattr(delivery_module, "REPORT_INTERVAL_S", 0.0)
    calls.clear()
    first = iter([by_hand.streams.delete])
    monkeypatch.setitem(globals(), "when_called", lambda: next(first, len)("s"))
    assert deliver_flush(flush, task, by_hand.client) is None
    assert len(calls) == CONCURRENT_INVOCATIONS_MAX, "the first few at a time, and no more"
    assert FolderStore(tmp_path).keys("landing") == []


@pytest.mark.parametrize("how", ["cancelled", "lost"])
@pytest.mark.parametrize("spark_sql", [False, True], ids=["plain", "sql"])
def test_a_function_that_hangs_does_not_hold_an_attempt_that_nobody_wants(
    by_hand: ByHand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, spark_sql: bool
) -> None:
    by_hand.create()
    by_hand.append(5)
    flush, task = watched_work(by_hand, tmp_path)
    released = threading.Event()

    def hang() -> None:
        by_hand.streams.delete("s") if how == "cancelled" else by_hand.server.kill()
        released.wait(30)

    monkeypatch.setitem(globals(), "when_called", hang)
    began_s = time.monotonic()
    if spark_sql:
        rows = pyarrow.array([msgspec.json.encode(flush)], pyarrow.binary())
        flushes = iter([pyarrow.RecordBatch.from_arrays([rows], ["flush"])])
        *_, last = read_flushes(msgspec.json.encode(SourceTask(task)), flushes)
        ended = decode_note(last.column("note")[0].as_py())
        assert isinstance(ended, Ended)
        assert (ended.cancelled, bool(ended.error)) == (how == "cancelled", how == "lost")
    else:
        outcome = deliver_flush(flush, task, by_hand.client)
        assert (outcome is None) == (how == "cancelled")
    assert time.monotonic() - began_s < 10
    released.set()
    assert FolderStore(tmp_path).keys("landing") == []


def test_damaged_messages_are_left_out(by_hand: ByHand) -> None:
    """In the middle of a flush, on the disk of a server that runs: it is found, told, and gone around."""
    by_hand.create({"batchSize": 500})
    payloads = by_hand.append(10)
    [segment] = by_hand.server.data_dir.glob("streams/*/*.open")
    flip(segment, b"message 4")
    first = by_hand.lease()
    assert by_hand.deliver(first) is None
    assert "damaged" in by_hand.status["errorMessage"]
    assert by_hand.deliver(by_hand.lease(probing=True)) is None
    assert by_hand.arrived == [payload for payload in payloads if payload != b"message 4"]
    assert by_hand.status["lastExportedSequenceNumber"] == 9


def test_an_attempt_that_comes_too_late_does_not_take_what_is_left_for_the_whole(by_hand: ByHand) -> None:
    """Another attempt has delivered the flush, and the log has let go of its messages: to store what is still
    there, under the same name, would replace an object that has them all."""
    by_hand.create(maxSize=8192, streamSegmentSize=1024, strategyOnFull=1)
    by_hand.append(20)
    flush = by_hand.lease()
    late = Reporter(flush, by_hand.client, PIPELINE)
    first = late.begin()
    assert by_hand.deliver(flush) is None
    for _ in range(30):
        by_hand.streams.append("s", bytes(1000))
    with pytest.raises(Cancelled):
        list(frame_parts(by_hand.client, flush, first, late.begin))


def flip(path: Path, text: bytes) -> None:
    """One bit, in place: the server has the file open."""
    position = path.read_bytes().index(text)
    with path.open("r+b") as file:
        file.seek(position)
        file.write(bytes([text[0] ^ 1]))


# -- the two ends of a Spark SQL job ----------------------------------------------------------------


def without_result(batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    """What a query leaves of rows for which it gives NULL."""
    kept = {name: batch.column(name) for name in ("flush", "sequence", "arrival_ms", "place", "note")}
    raw = pyarrow.compute.coalesce(batch.column("raw"), batch.column("payload"))
    nothing = pyarrow.nulls(batch.num_rows, pyarrow.binary())
    return pyarrow.RecordBatch.from_pydict({**kept, "data": nothing, "raw": raw})


def test_a_record_that_was_many_does_not_travel_with_each_of_its_parts(
    by_hand: ByHand, tmp_path: Path
) -> None:
    """A megabyte of small parts would be gigabytes. If parts fail, the record is told of as it was put all the same."""
    by_hand.create()
    together, alone = b'{"n":1}' * 10_000, b'{"n":2}'
    for payload in (together, alone, together):
        by_hand.streams.append("s", payload)
    parameters = [{"ParameterName": "SubRecordType", "ParameterValue": "JSON"}]
    processors = [{"Type": "RecordDeAggregation", "Parameters": parameters}]
    delivery = delivery_settings(ProcessingConfiguration={"Enabled": True, "Processors": processors})
    settings = {**msgspec.to_builtins(delivery), "sql": "SELECT NULL AS data FROM records"}
    flush = msgspec.structs.replace(by_hand.lease(), kind=ExportKind.DELIVERY, settings=settings)
    store = f"file://{tmp_path}"
    task = msgspec.structs.replace(by_hand.task, settings=PipelineSettings(object_store=store))
    rows = pyarrow.array([msgspec.json.encode(flush)], pyarrow.binary())
    flushes = iter([pyarrow.RecordBatch.from_arrays([rows], ["flush"])])
    batches = list(read_flushes(msgspec.json.encode(SourceTask(task)), flushes))
    assert sum(batch.column("note").null_count for batch in batches) == 20_001
    assert sum(batch.nbytes for batch in batches) < 100 * len(together)
    list(write_flushes(msgspec.json.encode(SinkTask(task, [flush])), map(without_result, batches)))
    [errors] = tmp_path.glob("landing/processing-failed/**/clicks-*")
    raw = [b64decode(json.loads(line)["rawData"]) for line in errors.read_bytes().splitlines()]
    assert raw == [together, alone, together]
