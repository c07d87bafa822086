"""Whatever a delivery stream is told to do: what is stored, what failed and what was dropped is what was put."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import tempfile
import zipfile
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from object_stores import TestStore, folder_store
from pipeline.destinations.test_s3objects import bodies, deliver, processing
from pipeline.records.deliveries import delivery_settings

MARK = re.compile(rb"#\d+#")
GOES = ["on", "on", "on", "dropped", "failed", "nowhere"]


@pytest.fixture
def aws_environment() -> None:
    """There is no AWS here."""


def judge(event: dict[str, Any], context: object) -> dict[str, Any]:
    """Does with each record what that says. What it does not say goes on."""
    answers = []
    for record in event["records"]:
        data = base64.b64decode(record["data"])
        if b"nowhere" in data:
            continue
        result = "Dropped" if b"dropped" in data else "ProcessingFailed" if b"failed" in data else "Ok"
        keys = {"partitionKeys": {"goes": "far"}}
        answers.append(
            {"recordId": record["recordId"], "result": result, "data": record["data"], "metadata": keys}
        )
    return {"records": answers}


def entries() -> st.SearchStrategy[dict[str, Any]]:
    places = st.sampled_from(["a", "b", "c/d", "", None, 7, "x" * 600, "\n"])
    return st.fixed_dictionaries({"goes": st.sampled_from(GOES), "place": places})


@st.composite
def flushes(draw: st.DrawFn) -> list[bytes]:
    """Records of one or several marked entries, some of them broken, some compressed."""
    records = []
    number = 0
    for group in draw(st.lists(st.lists(entries(), min_size=1, max_size=3), max_size=12)):
        texts = []
        for entry in group:
            texts.append(json.dumps({**entry, "mark": f"#{number}#"}).encode())
            number += 1
        record = draw(st.sampled_from([b"", b"\n", b"~~"])).join(texts)
        broken, packed = draw(st.booleans()) and draw(st.booleans()), draw(st.booleans())
        record = record[:-1] if broken else record
        records.append(gzip.compress(record, mtime=0) if packed else record)
    return records


DELIMITER = base64.b64encode(b"~~").decode()
LAMBDA = {"LambdaArn": "judge", "NumberOfRetries": "0"}
QUERY = {"JsonParsingEngine": "JQ-1.6"}
OPTIONAL = [
    ("Decompression", {"CompressionFormat": "GZIP"}),
    ("Lambda", LAMBDA),
    ("AppendDelimiterToRecord", {}),
]
SPLITS = [[], [("RecordDeAggregation", {"SubRecordType": "JSON"})]]
SPLITS += [[("RecordDeAggregation", {"SubRecordType": "DELIMITED", "Delimiter": DELIMITER})]]
PARTITIONS: list[tuple[str, list[Any]]] = [
    ("", []),
    (
        "p=!{partitionKeyFromQuery:place}/",
        [("MetadataExtraction", {**QUERY, "MetadataExtractionQuery": "{place: .place}"})],
    ),
    ("g=!{partitionKeyFromLambda:goes}/", [("Lambda", LAMBDA)]),
]


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    prefix, needed = draw(st.sampled_from(PARTITIONS))
    chosen = [*draw(st.sampled_from(SPLITS)), *needed]
    for option in OPTIONAL:
        if draw(st.booleans()) and option not in chosen:
            chosen.append(option)
    block = {"BucketARN": "arn:aws:s3:::kept", "CompressionFormat": "GZIP"}
    return {
        "Prefix": prefix,
        "ErrorOutputPrefix": "errors/",
        "CompressionFormat": draw(st.sampled_from(["UNCOMPRESSED", "GZIP", "ZIP"])),
        "DynamicPartitioningConfiguration": {"Enabled": bool(needed)},
        "S3BackupMode": draw(st.sampled_from(["Disabled", "Enabled"])),
        "S3BackupDescription": block,
        **processing(*chosen),
    }


def unpacked(body: bytes, compression: str) -> bytes:
    if compression == "GZIP":
        return gzip.decompress(body)
    if compression == "ZIP":
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            return b"".join(map(archive.read, archive.namelist()))
    return body


def marks(data: bytes) -> list[bytes]:
    """As they were put, or compressed."""
    return MARK.findall(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)


def marks_within(text: bytes) -> list[bytes]:
    """Of records one behind the other, some of them compressed."""
    plain = b""
    while b"\x1f\x8b\x08" in text:
        before, _, _ = text.partition(b"\x1f\x8b\x08")
        plain += before
        member = zlib.decompressobj(31)
        plain += member.decompress(text[len(before) :])
        text = member.unused_data
    return MARK.findall(plain + text)


@settings(max_examples=150, deadline=None)
@given(flushes(), configurations())
def test_nothing_is_lost_and_nothing_is_there_twice(records: list[bytes], config: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder, folder_store(Path(folder)) as stores:
        lambdas = {"judge": f"python:{__name__}:judge"}
        where = msgspec.structs.replace(stores.settings, lambdas=lambdas, active_partitions=2)
        for _ in range(2):  # nobody heard of the first attempt
            progress = deliver(stores, delivery_settings(**config), records, settings=where, frame_records=5)
        check(stores, records, config)
        assert progress.messages == len(records)


def check(stores: TestStore, records: list[bytes], config: dict[str, Any]) -> None:
    found = bodies(stores, "landing")
    failed: list[bytes] = []
    delivered: Counter[bytes] = Counter()
    for key, body in found.items():
        if key.startswith("errors/"):
            failed += [base64.b64decode(json.loads(line)["rawData"]) for line in body.splitlines()]
        else:
            delivered.update(marks_within(unpacked(body, config["CompressionFormat"])))
    assert all(count == 1 for count in delivered.values())
    types = {one["Type"] for one in config["ProcessingConfiguration"]["Processors"]}
    in_errors = {mark for record in failed for mark in marks(record)}
    assert set(failed) <= set(records)
    for record in records:
        put = marks(record)
        missing = [mark for mark in put if mark not in delivered and mark not in in_errors]
        if missing:
            assert "Lambda" in types
            assert b"dropped" in (gzip.decompress(record) if record.startswith(b"\x1f\x8b") else record)
        if not types & {"RecordDeAggregation"}:
            assert not (set(put) & set(delivered) and set(put) & in_errors), "in both places"
    kept = bodies(stores, "kept")
    if config["S3BackupMode"] == "Enabled" and records:
        [backup] = kept.values()
        assert gzip.decompress(backup) == b"".join(records)
    else:
        assert not kept
