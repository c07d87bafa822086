"""The Spark data source, first what reads and writes without Spark, then through a session of two cores."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from conformance.raw_client import RawClient
from conformance.wire import Op
from harness import ServerProcess
from penstock.log import frame as frames
from penstock.log.store import Store
from penstock.model import StreamDefinition
from penstock.pipeline.source import (
    OPTIONS,
    WRITE_BYTES_MAX,
    Appender,
    BadOption,
    BadRows,
    DamagedMessages,
    DataLost,
    MessageRange,
    Options,
    StreamRanges,
    batch_of,
    client_of,
    register,
)

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "spark_streams.py"
PAGE = ROOT / "docs" / "spark.md"


class Site:
    """A server with streams, as a test talks about them."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.options = {
            "server": f"http://127.0.0.1:{server.http_port}",
            "tokenFile": str(server.data_dir / "http-token"),
        }
        self.client = client_of(self.options_of("any").server)

    def create(self, name: str, payloads: list[bytes] | None = None, **definition: Any) -> None:
        with RawClient(self.server.port) as client:
            client.create(name, **definition)
        if payloads:
            self.client.append(name, payloads)

    def delete(self, name: str) -> None:
        with RawClient(self.server.port) as client:
            client.succeed(Op.DELETE, name=name)

    def options_of(self, stream: str, **more: object) -> Options:
        return Options({**self.options, "stream": stream, **{k: str(v) for k, v in more.items()}}, {})

    def ranges(self, stream: str, *, fail_on_data_loss: bool = True, **more: object) -> StreamRanges:
        return StreamRanges(self.options_of(stream, **more), fail_on_data_loss=fail_on_data_loss)

    def payloads(self, stream: str) -> list[bytes]:
        ranges = self.ranges(stream)
        state = ranges.state()
        wanted = MessageRange(state.key, state.oldest_sequence_number, state.end_sequence_number)
        return [payload for batch in ranges.read(wanted) for payload in batch.column("payload").to_pylist()]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    server = ServerProcess(tmp_path_factory.mktemp("source") / "data").start()
    yield Site(server)
    server.stop()


def rows_of(ranges: StreamRanges, first: int, behind: int) -> list[tuple[int, bytes]]:
    wanted = MessageRange(ranges.state().key, first, behind)
    return [
        (row["sequence_number"], row["payload"]) for batch in ranges.read(wanted) for row in batch.to_pylist()
    ]


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"message %d" % number for number in range(start, start + count)]


# -- options ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "the option stream is missing"),
        ({"stream": "s", "tokenFile": "nowhere"}, "nowhere cannot be read on the driver"),
        ({"stream": "s", "tokenFile": "f"}, "either the option token or"),
        ({"stream": "s", "startingSequenceNumbr": "1"}, "did you mean startingSequenceNumber"),
    ],
)
def test_options_that_are_wrong(given: dict[str, str], message: str) -> None:
    token = {} if given.get("tokenFile") == "nowhere" else {"token": "t"}
    with pytest.raises(BadOption, match=message):
        Options({**token, **given}, {})


def test_options_of_spark_are_none_of_our_business() -> None:
    assert Options({"stream": "s", "token": "t", "checkpointLocation": "x", "path": "y"}, {}).stream == "s"


def test_where_the_token_comes_from(tmp_path: Path) -> None:
    def token_of(given: dict[str, str], env: dict[str, str]) -> str:
        return Options({"stream": "s", **given}, env).server.token

    (tmp_path / "http-token").write_text("from the file\n")
    env = {"PENSTOCK_HTTP_TOKEN": "from env", "PENSTOCK_DATA_DIR": str(tmp_path)}
    assert token_of({"token": "given"}, env) == "given"
    assert token_of({"tokenFile": str(tmp_path / "http-token")}, env) == "from the file"
    assert token_of({}, env) == "from env"
    assert token_of({}, {"PENSTOCK_DATA_DIR": str(tmp_path)}) == "from the file"


def test_page_lists_the_options() -> None:
    listed = re.findall(
        r"^\| `(\w+)` \|", PAGE.read_text().split("## Options")[1].split("\n## ")[0], re.MULTILINE
    )
    assert tuple(listed) == OPTIONS


# -- reading without Spark --------------------------------------------------------------------------


def test_batch_of_a_frame_is_its_columns() -> None:
    payloads = [b"", b"a", b"bb" * 1000, b"\x00\xff"]
    _, buffers = frames.encode(7, 40, [1_000, 2_001, 3_000, 4_999], payloads)
    frame = frames.decode(b"".join(buffers))
    for start in range(4):
        for stop in range(start + 1, 5):
            batch = batch_of(frame, start, stop)
            batch.validate(full=True)
            assert batch.column("payload").to_pylist() == payloads[start:stop]
            assert batch.column("sequence_number").to_pylist() == list(range(40 + start, 40 + stop))
    arrivals = batch_of(frame, 0, 4).column("arrival").to_pylist()
    assert arrivals[1] == datetime(1970, 1, 1, 0, 0, 2, 1000, tzinfo=timezone.utc)


def test_ranges_are_cut_at_their_edges(site: Site) -> None:
    site.create("edges")
    for start in range(0, 30, 10):
        site.client.append("edges", numbered(10, start))
    ranges = site.ranges("edges")
    expected = list(enumerate(numbered(30)))
    for first, behind in [(0, 30), (0, 1), (9, 11), (10, 20), (5, 25), (29, 30), (30, 30), (25, 99)]:
        assert rows_of(ranges, first, behind) == expected[first:behind]


def test_a_large_range_comes_in_batches(site: Site) -> None:
    payloads = [b"%07d" % number * 200 for number in range(20_000)]
    site.create("large")
    for start in range(0, len(payloads), 2000):
        site.client.append("large", payloads[start : start + 2000])
    ranges = site.ranges("large")
    batches = list(ranges.read(MessageRange(ranges.state().key, 0, 20_000)))
    assert len(batches) > 3
    assert [payload for batch in batches for payload in batch.column("payload").to_pylist()] == payloads


def test_ranges_are_split(site: Site) -> None:
    site.create("split", [bytes(100_000)] * 100)
    key = site.ranges("split").state().key
    assert len(site.ranges("split").split(key, 0, 10)) == 1  # too little for two tasks
    parts = site.ranges("split", partitions=7).split(key, 3, 97)
    assert (len(parts), parts[0].first, parts[-1].behind) == (7, 3, 97)
    assert all(before.behind == after.first for before, after in pairwise(parts))


# -- gaps and losses --------------------------------------------------------------------------------


@pytest.fixture
def prepared(tmp_path: Path, start_server: Callable[..., ServerProcess]) -> Callable[..., Site]:
    """A server on streams that were made, and perhaps damaged, before it started."""

    def prepare(damage: Callable[[Path], None] | None = None) -> Site:
        store = Store(tmp_path / "data", free_space_floor_bytes=0)
        stream = store.create_stream(StreamDefinition("s", segment_size_bytes=4096))
        stream.write(0, numbered(10), 0)
        stream.skip_to(100)
        stream.write(100, numbered(10, 100), 0)
        store.seal_segments()
        directory = stream.directory
        store.close()
        if damage is not None:
            damage(directory)
        return Site(start_server(tmp_path / "data"))

    return prepare


def test_numbers_that_no_message_has_are_passed_over(prepared: Callable[..., Site]) -> None:
    ranges = prepared().ranges("s")
    expected = [*enumerate(numbered(10)), *enumerate(numbered(10, 100), 100)]
    assert rows_of(ranges, 0, 110) == expected
    assert rows_of(ranges, 50, 105) == expected[10:15]
    assert rows_of(ranges, 20, 60) == []


def test_damaged_messages_are_never_handed_out(prepared: Callable[..., Site]) -> None:
    def damage(directory: Path) -> None:
        segment = directory / "00000000000000000000.seg"
        content = bytearray(segment.read_bytes())
        content[content.index(b"message 3")] ^= 1
        segment.write_bytes(content)

    with pytest.raises(DamagedMessages, match=r"messages from 0 on are damaged .*'penstock log verify'"):
        rows_of(prepared(damage).ranges("s"), 0, 110)


@pytest.fixture
def overwritten(site: Site, request: pytest.FixtureRequest) -> str:
    """The name of a stream whose oldest messages had to make room."""
    name = f"overwritten {request.node.name}"
    site.create(name, maxSize=8192, streamSegmentSize=1024, strategyOnFull=1)
    for _ in range(20):
        site.client.append(name, [bytes(900)])
    return name


def test_messages_deleted_before_they_were_read(site: Site, overwritten: str) -> None:
    oldest = site.ranges(overwritten).state().oldest_sequence_number
    assert oldest > 0
    with pytest.raises(DataLost, match=f"messages 0 to {oldest - 1} were deleted before"):
        rows_of(site.ranges(overwritten), 0, 20)
    with pytest.raises(DataLost, match="messages 0 to 1 were deleted before"):
        rows_of(site.ranges(overwritten), 0, 2)
    assert len(rows_of(site.ranges(overwritten), oldest, 20)) == 20 - oldest
    assert len(rows_of(site.ranges(overwritten, fail_on_data_loss=False), 0, 20)) == 20 - oldest


def test_a_stream_that_was_created_again_is_another_one(site: Site) -> None:
    site.create("again", numbered(5))
    before = site.ranges("again").state()
    site.delete("again")
    site.create("again", numbered(9))
    wanted = MessageRange(before.key, 0, 5)
    with pytest.raises(DataLost, match="was deleted and created again"):
        list(site.ranges("again").read(wanted))
    assert list(site.ranges("again", fail_on_data_loss=False).read(wanted)) == []


# -- writing without Spark --------------------------------------------------------------------------


def schema_of(**columns: str) -> StructType:
    schema = StructType()
    for name, kind in columns.items():
        schema.add(name, kind)
    return schema


def test_payloads_are_appended_in_order_whatever_their_size(site: Site) -> None:
    site.create("sizes")
    payloads = [b"small", bytes(WRITE_BYTES_MAX), b"x" * (WRITE_BYTES_MAX - 4), *numbered(40_000), b"end"]
    column = pa.array(payloads, pa.binary())
    batches = [pa.record_batch([column[:3]], ["payload"]), pa.record_batch([column[3:]], ["payload"])]
    appended = Appender(site.options_of("sizes"), schema_of(payload="binary"), False).append(iter(batches))
    assert appended.messages == len(payloads)
    assert site.payloads("sizes") == payloads


@pytest.mark.parametrize(
    ("schema", "overwrite", "message"),
    [
        ({"payload": "binary"}, True, "cannot be overwritten"),
        ({"value": "binary"}, False, "no column payload among value"),
        ({"payload": "integer"}, False, "must be binary or string, not int"),
        ({"payload": "string", "sensor": "integer", "unit": "string"}, False, "no place for sensor, unit"),
    ],
)
def test_what_cannot_be_written(site: Site, schema: dict[str, str], overwrite: bool, message: str) -> None:
    with pytest.raises(BadRows, match=message):
        Appender(site.options_of("any"), schema_of(**schema), overwrite)


# -- through Spark ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        session = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.log.level", "ERROR")
            .config("spark.python.authenticate.socketTimeout", "60s")  # for a busy machine
            .getOrCreate()
        )
        register(session)
        yield session
        session.stop()


def test_read(site: Site, spark: SparkSession) -> None:
    site.create("read", numbered(1000))
    reader = spark.read.format("penstock").options(**site.options, stream="read", partitions=3)
    messages = reader.load()
    assert messages.dtypes == [("sequence_number", "bigint"), ("arrival", "timestamp"), ("payload", "binary")]
    assert [(row.sequence_number, row.payload) for row in messages.collect()] == [*enumerate(numbered(1000))]
    used = messages.select(F.spark_partition_id()).distinct().count()
    newest = messages.agg(F.max(F.unix_millis("arrival"))).collect()[0][0]
    with RawClient(site.server.port) as client:
        [last] = client.read("read", desiredStartSequenceNumber=999, minMessageCount=1)
    assert (used, newest) == (3, last["ingestTime"])
    site.client.append("read", [b"later"])
    assert (messages.count(), reader.load().count()) == (1000, 1001)


def test_read_a_range(site: Site, spark: SparkSession) -> None:
    site.create("range", numbered(50))

    def numbers(**options: object) -> list[int]:
        reader = spark.read.format("penstock").options(**site.options, stream="range", **options)
        return [row.sequence_number for row in reader.load().collect()]

    assert numbers(startingSequenceNumber=10, endingSequenceNumber=13) == [10, 11, 12]
    assert numbers(startingSequenceNumber="latest") == []


def test_mistakes_are_explained(site: Site, spark: SparkSession) -> None:
    reader = spark.read.format("penstock").options(**site.options)
    with pytest.raises(Exception, match="the message stream nobody does not exist"):
        reader.load(stream="nobody").count()


def test_write(site: Site, spark: SparkSession) -> None:
    site.create("written")

    def write(rows: DataFrame) -> None:
        rows.write.format("penstock").mode("append").options(**site.options, stream="written").save()

    write(spark.range(100).repartition(1).select(F.concat(F.lit("ä"), "id").alias("payload")))
    write(spark.range(100, 200, 1, 1).select(F.concat(F.lit("ä"), "id").cast("binary").alias("payload")))
    assert site.payloads("written") == [f"ä{number}".encode() for number in range(200)]
    with pytest.raises(Exception, match="a row has no payload"):
        write(spark.range(1).select(F.lit(None).cast("string").alias("payload")))


@pytest.fixture
def follow(site: Site, spark: SparkSession, tmp_path: Path) -> Callable[..., list[int]]:
    """Run a stream query up to the end of its source; returns how many messages each micro-batch had."""

    def run(source: str, target: str, **options: object) -> list[int]:
        query = (
            spark.readStream.format("penstock")
            .options(**site.options, stream=source, **options)
            .load()
            .writeStream.format("penstock")
            .options(**site.options, stream=target)
            .option("checkpointLocation", str(tmp_path / f"checkpoint of {source}"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    return run


def test_stream_query_goes_on_where_it_was(site: Site, follow: Callable[..., list[int]]) -> None:
    site.create("followed", numbered(25))
    site.create("copy")
    assert follow("followed", "copy", maxMessagesPerTrigger=10, startingSequenceNumber=2) == [10, 10, 3]
    assert follow("followed", "copy", maxMessagesPerTrigger=10) == []
    site.client.append("followed", numbered(5, 25))
    assert follow("followed", "copy") == [5]
    assert site.payloads("copy") == numbered(28, 2)


def test_stream_query_notices_a_loss(site: Site, follow: Callable[..., list[int]], overwritten: str) -> None:
    site.create("rest")
    with pytest.raises(Exception, match="were deleted before they were read"):
        follow(overwritten, "rest", startingSequenceNumber=0)
    oldest = site.ranges(overwritten).state().oldest_sequence_number
    follow(overwritten, "rest", startingSequenceNumber=0, failOnDataLoss="false")
    assert len(site.payloads("rest")) == 20 - oldest


def test_example(
    site: Site, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site.create("readings")
    site.create("alarms")
    monkeypatch.setenv("PENSTOCK_SERVER_URL", site.options["server"])
    monkeypatch.setenv("PENSTOCK_DATA_DIR", str(site.server.data_dir))
    runpy.run_path(str(EXAMPLE))
    shown = capsys.readouterr().out
    assert re.search(r"\|\s*3\|\s*250\|\s*99\.9\|", shown)
    alarms = site.payloads("alarms")
    assert len(alarms) == 50
    assert b'{"sequence_number":' in alarms[0]


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.skipif("PENSTOCK_SOAK" not in os.environ, reason="starts a JVM of its own: make soak")
def test_example_over_spark_connect(start_server: Callable[..., ServerProcess]) -> None:
    site = Site(start_server())
    site.create("readings")
    site.create("alarms")
    settings = (
        "--conf spark.ui.enabled=false --conf spark.connect.grpc.binding.address=127.0.0.1 pyspark-shell"
    )
    env = {
        **os.environ,
        "SPARK_REMOTE": "local[2]",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_SUBMIT_ARGS": settings,
        "PYSPARK_PYTHON": sys.executable,
        "PENSTOCK_SERVER_URL": site.options["server"],
        "PENSTOCK_DATA_DIR": str(site.server.data_dir),
    }
    program = (
        f"import runpy; spark = runpy.run_path({str(EXAMPLE)!r})['spark']; print(type(spark)); spark.stop()"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=300
    )
    assert finished.returncode == 0, finished.stderr
    assert "pyspark.sql.connect.session.SparkSession" in finished.stdout
    assert len(site.payloads("alarms")) == 50


def test_page_shows_the_example() -> None:
    [shown] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert shown == EXAMPLE.read_text()
