"""Flushes that need Spark SQL, from a real server through Spark to objects."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import boto3
import duckdb
import msgspec
import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

from harness import ServerProcess
from penstock.delivery.view import DeliveryView
from penstock.flush import Flush, LeaseRequest, Outcome
from penstock.http_client import HttpClient
from penstock.pipeline.delivery import Task
from penstock.pipeline.destinations.base import PipelineSettings
from penstock.pipeline.grouping import Group, grouped
from penstock.pipeline.objects import ObjectStore, store_for
from penstock.pipeline.records.sql_job import SqlJobs
from penstock.pipeline.records.sql_rows import SinkTask, SourceTask
from penstock.pipeline.records.sql_sink import write_flushes
from penstock.pipeline.records.sql_source import read_flushes
from penstock.pipeline.server_client import ServerClient
from pipeline.conftest import wait_until

ROLE = "arn:aws:iam::123456789012:role/firehose"
PIPELINE = "test"
DDL = "id BIGINT, name STRING, at TIMESTAMP, tags ARRAY<STRING>"
Config = dict[str, Any]


class Site:
    """A server with delivery streams, and this test as their pipeline."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.folder = folder
        self.server = ServerProcess(folder / "data").start()
        token = (self.server.data_dir / "http-token").read_text().strip()
        self.url = f"http://127.0.0.1:{self.server.http_port}"
        self.firehose = boto3.client(
            "firehose",
            endpoint_url=self.url,
            region_name="eu-west-1",
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
        )
        self.http = HttpClient(self.url, token)
        self.client = ServerClient(self.url, token)
        self.settings = PipelineSettings(
            object_store=f"file://{folder}/objects", schemas=str(self.server.data_dir / "schemas")
        )
        self.table("db", "clicks", DDL)
        self.task = Task(self.url, token, PIPELINE, threads=1, settings=self.settings)
        self.jobs = SqlJobs(spark, self.settings.schemas)
        self._streams = 0

    def table(self, database: str, name: str, ddl: str) -> None:
        path = Path(self.settings.schemas) / database / f"{name}.ddl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(ddl)

    def stream(self, *, sql: str = "", **config: Any) -> Stream:
        self._streams += 1
        return Stream(self, f"s{self._streams}", sql, config)

    @property
    def store(self) -> ObjectStore:
        return store_for(self.settings)

    def close(self) -> None:
        self.firehose.close()
        self.http.close()
        self.client.close()
        self.server.stop()


class Stream:
    def __init__(self, site: Site, name: str, sql: str, config: Config) -> None:
        self.site, self.name, self.bucket = site, name, f"bucket-{name}"
        created = site.firehose.create_delivery_stream(
            DeliveryStreamName=name,
            ExtendedS3DestinationConfiguration={
                "RoleARN": ROLE,
                "BucketARN": f"arn:aws:s3:::{self.bucket}",
                "BufferingHints": {"SizeInMBs": 64, "IntervalInSeconds": 900},
                **config,
            },
        )
        self.arn = created["DeliveryStreamARN"]
        wait_until(lambda: self.description["DeliveryStreamStatus"] == "ACTIVE")
        if sql:
            site.http.set_delivery_sql(self.arn, sql)

    @property
    def description(self) -> Config:
        answer = self.site.firehose.describe_delivery_stream(DeliveryStreamName=self.name)
        described: Config = answer["DeliveryStreamDescription"]
        return described

    def put(self, *records: bytes | Config) -> None:
        data = [record if isinstance(record, bytes) else json.dumps(record).encode() for record in records]
        answer = self.site.firehose.put_record_batch(
            DeliveryStreamName=self.name, Records=[{"Data": each} for each in data]
        )
        assert answer["FailedPutCount"] == 0

    def lease(self) -> list[Flush]:
        self.site.http.flush_delivery(self.arn, 0)
        leases = self.site.client.lease(LeaseRequest(PIPELINE, wait_ms=10_000))
        assert [flush.stream for flush in leases.flushes] == [self.arn] * len(leases.flushes)
        return leases.flushes

    def deliver(self, *records: bytes | Config) -> None:
        """Put and deliver: the server has heard that all is well."""
        self.put(*records)
        assert self.site.jobs.run(self.lease(), self.site.task) == []
        assert (self.view.error, self.view.waiting_records) == ("", 0)

    @property
    def view(self) -> DeliveryView:
        found = self.site.http.delivery(self.arn).listing.progress
        assert found is not None
        return found

    @property
    def keys(self) -> list[str]:
        return self.site.store.keys(self.bucket)

    def body(self, key: str) -> bytes:
        return self.site.store.get(self.bucket, key).body

    def text(self) -> str:
        [key] = self.keys
        return self.body(key).decode()

    def rows(self) -> list[Config]:
        [body] = [self.body(key) for key in self.keys if key.endswith(".parquet")]
        rows: list[Config] = pyarrow.parquet.read_table(BytesIO(body)).to_pylist()
        return rows

    def errors(self, output_type: str) -> list[Config]:
        [body] = [self.body(key) for key in self.keys if f"{output_type}/" in key]
        return [json.loads(line) for line in body.splitlines()]


def conversion(serializer: Config | None = None, table: str = "clicks", **deserializer: Any) -> Config:
    return {
        "DataFormatConversionConfiguration": {
            "Enabled": True,
            "SchemaConfiguration": {"RoleARN": ROLE, "DatabaseName": "db", "TableName": table},
            "InputFormatConfiguration": {"Deserializer": deserializer or {"OpenXJsonSerDe": {}}},
            "OutputFormatConfiguration": {"Serializer": serializer or {"ParquetSerDe": {}}},
        }
    }


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("sql"), spark)
    yield made
    made.close()


def clicks(count: int) -> list[Config]:
    return [
        {"id": n, "name": f"n{n}", "at": 1_783_951_500_000 + n, "tags": ["a", str(n)]} for n in range(count)
    ]


# -- format conversion ------------------------------------------------------------------------------


def test_parquet_for_pyarrow_duckdb_and_spark(site: Site, spark: SparkSession, tmp_path: Path) -> None:
    stream = site.stream(**conversion(), Prefix="clicks/", ErrorOutputPrefix="errors/")
    stream.deliver(*clicks(500))
    [key] = stream.keys
    assert re.fullmatch(r"clicks/\d{4}/\d\d/\d\d/\d\d/s\d+-1-[\d-]{19}-[0-9a-f-]{36}\.parquet", key)
    last = {"id": 499, "name": "n499", "at": datetime(2026, 7, 13, 14, 5, 0, 499000), "tags": ["a", "499"]}
    assert stream.rows()[-1] == last
    path = tmp_path / "clicks.parquet"
    path.write_bytes(stream.body(key))
    with duckdb.connect() as connection:
        question = f"SELECT count(*), sum(id), max(\"at\"), max(len(tags)) FROM '{path}'"
        assert connection.execute(question).fetchall() == [(500, 124_750, last["at"], 2)]
    [row] = spark.read.parquet(str(path)).where("id = 499").collect()
    assert row.asDict() == last


def test_orc_for_pyarrow_and_spark(site: Site, spark: SparkSession, tmp_path: Path) -> None:
    stream = site.stream(**conversion({"OrcSerDe": {"Compression": "ZLIB"}}))
    stream.deliver(*clicks(10))
    [key] = stream.keys
    assert key.endswith(".orc")
    file = pyarrow.orc.ORCFile(BytesIO(stream.body(key)))
    assert file.compression == "ZLIB"
    rows = file.read().to_pylist()
    assert [row["id"] for row in rows] == list(range(10))
    path = tmp_path / "clicks.orc"
    path.write_bytes(stream.body(key))
    assert spark.read.orc(str(path)).orderBy("id").collect()[3].asDict() == rows[3]


def test_records_that_cannot_be_converted(site: Site) -> None:
    stream = site.stream(**conversion(), ErrorOutputPrefix="failed/")
    stream.deliver({"id": 1}, b"not json", {"id": "oops"}, {"id": "2", "name": {"A": 1}}, b'{"id":3}{"id":4}')
    assert sorted((row["id"], row["name"]) for row in stream.rows()) == [
        (1, None),
        (2, '{"a":1}'),
        (3, None),
        (4, None),
    ]
    parse, malformed = stream.errors("format-conversion-failed")
    assert parse["lastErrorCode"] == "DataFormatConversion.ParseError"
    assert parse["lastErrorMessage"].startswith("Encountered malformed JSON. ")
    assert base64.b64decode(parse["rawData"]) == b"not json"
    assert malformed["lastErrorCode"] == "DataFormatConversion.MalformedData"
    assert malformed["lastErrorMessage"] == 'Data does not match the schema. For input string: "oops"'
    assert malformed["dataCatalogTable"]["tableName"] == "clicks"
    assert malformed["sequenceNumber"] == "2"
    assert stream.view.failed_records == 2


def test_nothing_converts(site: Site) -> None:
    stream = site.stream(**conversion())
    stream.deliver(b"no", b"json")
    [key] = stream.keys
    assert "format-conversion-failed/" in key


def test_hive_is_strict(site: Site) -> None:
    stream = site.stream(
        **conversion(HiveJsonSerDe={"TimestampFormats": ["yyyy-MM-dd'T'HH:mm:ss", "millis"]})
    )
    stream.deliver({"ID": 1, "at": "2026-07-13T14:05:00"}, {"id": 2, "at": 1_783_951_500_000}, {"id": "3"})
    assert [row["at"] for row in stream.rows()] == [datetime(2026, 7, 13, 14, 5)] * 2
    [error] = stream.errors("format-conversion-failed")
    assert "Current token (VALUE_STRING) not numeric" in error["lastErrorMessage"]


def test_other_spellings_of_keys_are_learned(site: Site) -> None:
    """Whether the pipeline has expected them or not, the rows are the same."""
    stream = site.stream(**conversion())
    stream.deliver({"Id": 0, "name": "w"})
    assert site.jobs._spellings[stream.arn] == {"id": "Id", "name": "name"}
    records = [{"ID": 1, "Name": "x", "at": None}, {"ID": 2, "Name": "y"}, {"id": 3, "NAME": "z"}]
    for _ in range(2):
        stream.deliver(*records)
        assert site.jobs._spellings[stream.arn] == {"id": "ID", "name": "Name", "at": "at"}
    bodies = [pyarrow.parquet.read_table(BytesIO(stream.body(key))).to_pylist() for key in stream.keys]
    found = sorted(sorted((row["id"], row["name"]) for row in rows) for rows in bodies)
    assert found == [[(0, "w")], *[[(1, "x"), (2, "y"), (3, "z")]] * 2]


def test_converted_partitions(site: Site) -> None:
    query = {"ParameterName": "MetadataExtractionQuery", "ParameterValue": "{site:.site}"}
    engine = {"ParameterName": "JsonParsingEngine", "ParameterValue": "JQ-1.6"}
    stream = site.stream(
        **conversion(),
        Prefix="site=!{partitionKeyFromQuery:site}/",
        ErrorOutputPrefix="errors/!{firehose:error-output-type}/",
        DynamicPartitioningConfiguration={"Enabled": True},
        ProcessingConfiguration={
            "Enabled": True,
            "Processors": [{"Type": "MetadataExtraction", "Parameters": [query, engine]}],
        },
    )
    stream.deliver(*({"id": n, "site": "ab"[n % 2]} for n in range(10)), {"id": 10}, {"id": "x", "site": "a"})
    rows = {
        key.partition("/")[0]: [
            row["id"] for row in pyarrow.parquet.read_table(BytesIO(stream.body(key))).to_pylist()
        ]
        for key in stream.keys
        if key.endswith(".parquet")
    }
    assert rows == {"site=a": [0, 2, 4, 6, 8], "site=b": [1, 3, 5, 7, 9]}
    [unplaced] = stream.errors("processing-failed")
    assert base64.b64decode(unplaced["rawData"]) == b'{"id": 10}'
    assert len(stream.errors("format-conversion-failed")) == 1


def test_backup_and_encryption(site: Site) -> None:
    backup = {"RoleARN": ROLE, "BucketARN": "arn:aws:s3:::kept", "Prefix": "raw/"}
    stream = site.stream(**conversion(), S3BackupMode="Enabled", S3BackupConfiguration=backup)
    site.firehose.start_delivery_stream_encryption(DeliveryStreamName=stream.name)
    wait_until(lambda: stream.description["DeliveryStreamEncryptionConfiguration"]["Status"] == "ENABLED")
    stream.deliver(*clicks(5), b"not json")
    assert [row["id"] for row in stream.rows()] == [0, 1, 2, 3, 4]
    [key] = site.store.keys("kept")
    raw = b"".join([*(json.dumps(record).encode() for record in clicks(5)), b"not json"])
    assert site.store.get("kept", key).body == raw


def test_the_same_flush_makes_the_same_objects(site: Site) -> None:
    stream = site.stream(**conversion())
    stream.put(*clicks(10), b"not json")
    flushes = stream.lease()
    for _ in range(2):
        assert site.jobs.run(flushes, site.task) == []
        keys = stream.keys
    assert len(keys) == 2
    assert stream.keys == keys
    assert len(stream.rows()) == 10


def test_several_flushes_in_one_job(site: Site) -> None:
    stream = site.stream(**conversion())
    flushes = []
    for n in range(3):
        stream.put({"id": n})
        flushes += stream.lease()
    assert list(grouped(flushes, 2)) == [Group(flushes, spark_sql=True, functions=False)]
    assert site.jobs.run(flushes, site.task) == []
    ids = [pyarrow.parquet.read_table(BytesIO(stream.body(key)))["id"].to_pylist() for key in stream.keys]
    assert sorted(ids) == [[0], [1], [2]]


def test_a_table_that_is_gone(site: Site) -> None:
    site.table("db", "going", "id BIGINT")
    stream = site.stream(**conversion(table="going"))
    (Path(site.settings.schemas) / "db" / "going.ddl").unlink()
    stream.put({"id": 1})
    [outcome] = site.jobs.run(stream.lease(), site.task)
    assert outcome.permanent
    assert outcome.done
    assert "records cannot be converted: EntityNotFoundException: Table going not found" in outcome.error


# -- queries ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "records", "expected"),
    [
        ("SELECT upper(data) AS data FROM records WHERE data <> 'b'", [b"a", b"b", b"c"], "AC"),
        ("SELECT concat(r.data, '|') value FROM records r", [b"a", b"b"], "a|b|"),
        ("SELECT reverse(payload) AS data FROM records", [b"ab"], "ba"),
        ("SELECT split(data, ',') AS data FROM records", [b"a,b", b"c"], "abc"),
        (
            "SELECT length(data) AS n, data, cast(data AS INT) AS number FROM records",
            [b"12", b"x"],
            '{"n":2,"data":"12","number":12}\n{"n":1,"data":"x"}\n',
        ),
        ("SELECT get_json_object(data, '$.a') AS a FROM records", [b'{"a":1}'], '{"a":"1"}\n'),
        (
            "SELECT sequence_number FROM records WHERE year(arrival) > 2000",
            [b"", b""],
            '{"sequence_number":0}\n',
        ),
    ],
)
def test_queries(site: Site, sql: str, records: Sequence[bytes], expected: str) -> None:
    stream = site.stream(sql=sql)
    stream.deliver(*records)
    assert stream.text().startswith(expected)


def test_records_that_a_query_drops_leave_nothing_behind(site: Site) -> None:
    stream = site.stream(sql="SELECT data FROM records WHERE data = 'never'")
    stream.deliver(b"a", b"b")
    assert stream.keys == []


def test_a_record_that_becomes_null_has_failed(site: Site) -> None:
    stream = site.stream(sql="SELECT get_json_object(data, '$.a') AS data FROM records")
    stream.deliver(b'{"a":1}', b"not json")
    [error] = stream.errors("processing-failed")
    assert (error["errorCode"], base64.b64decode(error["rawData"])) == ("SparkSQL.NullResult", b"not json")
    assert [stream.body(key) for key in stream.keys if "processing-failed" not in key] == [b"1"]


def test_delimiters_stand_behind_what_the_query_gives(site: Site) -> None:
    processors = [{"Type": "AppendDelimiterToRecord", "Parameters": []}]
    stream = site.stream(
        sql="SELECT concat(data, length(data)) AS data FROM records",
        ProcessingConfiguration={"Enabled": True, "Processors": processors},
        CompressionFormat="UNCOMPRESSED",
    )
    stream.deliver(b"a", b"bb")
    assert stream.text() == "a1\nbb2\n"


def test_a_query_before_conversion(site: Site) -> None:
    sql = """
      SELECT sequence_number AS ID, concat(get_json_object(data, '$.n'), '!') AS name, array('x') AS tags
      FROM records WHERE data <> 'drop'
    """
    stream = site.stream(sql=sql, **conversion())
    stream.deliver({"n": "a"}, b"drop", {"n": "b"})
    assert [(row["id"], row["name"], row["tags"]) for row in stream.rows()] == [
        (0, "a!", ["x"]),
        (2, "b!", ["x"]),
    ]


def test_the_error_output_holds_what_was_put_not_what_the_query_made(site: Site) -> None:
    stream = site.stream(sql="SELECT concat(data, '?') AS data FROM records", **conversion())
    stream.deliver({"id": 1})
    [error] = stream.errors("format-conversion-failed")
    assert base64.b64decode(error["rawData"]) == b'{"id": 1}'


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT nothing FROM records", "UNRESOLVED_COLUMN"),
        ("SELECT upper(data AS data FROM records", "parentheses"),
        ("SELECT data data data FROM records", "PARSE_SYNTAX_ERROR"),
        ("SELECT data FROM records WHERE data ==", "PARSE_SYNTAX_ERROR"),
        ("SELECT nosuch(data) AS data FROM records", "UNRESOLVED_ROUTINE"),
        ("SELECT max(data) AS data FROM records", "aggregates bring several records together"),
        ("SELECT explode(split(data, ',')) AS data FROM records", "give data an array"),
        ("SELECT data AS a, data AS a FROM records", "rename one with AS"),
    ],
)
def test_queries_that_cannot_be_used(site: Site, sql: str, reason: str) -> None:
    stream = site.stream()
    stream.put(b"a")
    [flush] = stream.lease()
    flush.settings["sql"] = sql
    [outcome] = site.jobs.run([flush], site.task)
    assert outcome.permanent
    assert re.search(reason, outcome.error), outcome.error
    assert stream.keys == []


def test_a_query_that_fails_while_it_runs(site: Site) -> None:
    """Its records go to the error output; those of other flushes do not suffer."""
    stream = site.stream(sql="SELECT if(data = 'bad', raise_error('no good'), data) AS data FROM records")
    stream.put(b"good")
    flushes = stream.lease()
    stream.put(b"bad")
    flushes += stream.lease()
    assert site.jobs.run(flushes, site.task) == []
    [error] = stream.errors("processing-failed")
    assert (error["errorCode"], base64.b64decode(error["rawData"])) == ("SparkSQL.QueryFailed", b"bad")
    assert "no good" in error["errorMessage"]
    assert [stream.body(key) for key in stream.keys if "processing-failed" not in key] == [b"good"]


# -- the two ends, without Spark --------------------------------------------------------------------


def ends(site: Site, flush: Flush) -> tuple[list[pa.RecordBatch], bytes]:
    """What the reading end gives, in the form that the writing end takes for records as they are."""
    source = msgspec.json.encode(SourceTask(site.task))
    row = pa.RecordBatch.from_pylist([{"flush": msgspec.json.encode(flush)}])
    batches = [batch.rename_columns({"payload": "data"}) for batch in read_flushes(source, iter([row]))]
    return batches, msgspec.json.encode(SinkTask(site.task, [flush]))


def test_without_the_end_nothing_is_stored(site: Site) -> None:
    """So it is when an executor dies in the middle: Arrow's streams may just end."""
    stream = site.stream(sql="SELECT data FROM records")
    stream.put(b"a", b"b")
    [flush] = stream.lease()
    batches, task = ends(site, flush)
    assert list(write_flushes(task, iter(batches[:-1]))) == []
    assert stream.keys == []
    [told] = write_flushes(task, iter(batches))
    assert told.to_pylist() == [{"flush": flush.id, "outcome": None, "spellings": b"{}"}]
    assert stream.text() == "ab"


def test_a_store_that_refuses(site: Site) -> None:
    stream = site.stream(sql="SELECT data FROM records")
    stream.put(b"a")
    [flush] = stream.lease()
    (site.folder / "objects").mkdir(exist_ok=True)
    (site.folder / "objects" / stream.bucket).write_bytes(b"in the way")
    batches, task = ends(site, flush)
    list(write_flushes(task, iter(batches)))
    assert stream.view.error


def test_a_server_that_is_gone(site: Site, tmp_path: Path) -> None:
    """The reading end says so, the writing end stores nothing, and the driver gets to tell."""
    stream = site.stream(sql="SELECT data FROM records")
    stream.put(b"a")
    [flush] = stream.lease()
    gone = msgspec.structs.replace(site.task, server_url="http://127.0.0.1:9")
    row = pa.RecordBatch.from_pylist([{"flush": msgspec.json.encode(flush)}])
    batches = list(read_flushes(msgspec.json.encode(SourceTask(gone)), iter([row])))
    [told] = write_flushes(msgspec.json.encode(SinkTask(gone, [flush])), iter(batches))
    outcome = msgspec.json.decode(told.to_pylist()[0]["outcome"], type=Outcome)
    assert outcome.done
    assert "does not answer" in outcome.error
    assert stream.keys == []
