"""Which processors run, in which order, and how records are handed from one to the next."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.destinations.base import PipelineSettings
from penstock.pipeline.records.processors import processed, processors_for
from penstock.pipeline.records.processors.base import Processed, Processor
from penstock.pipeline.records.record import Failed, Record
from pipeline.records.functions import ARN, delivery_settings, records_of

SETTINGS = PipelineSettings(lambdas={"upper": "python:pipeline.records.functions:upper"})


def processor(kind: str, **parameters: str) -> dict[str, Any]:
    listed = [{"ParameterName": name, "ParameterValue": value} for name, value in parameters.items()]
    return {"Type": kind, "Parameters": listed}


ALL = [
    processor("AppendDelimiterToRecord"),
    processor("MetadataExtraction", MetadataExtractionQuery="{a:.a}", JsonParsingEngine="JQ-1.6"),
    processor("Lambda", LambdaArn=ARN),
    processor("RecordDeAggregation", SubRecordType="JSON"),
    processor("CloudWatchLogProcessing", DataMessageExtraction="true"),
    processor("Decompression", CompressionFormat="GZIP"),
]


def names_of(config: dict[str, Any]) -> list[str]:
    return [type(made).__name__ for made in processors_for(config, delivery_settings(config), SETTINGS)]


def enabled(*processors: dict[str, Any]) -> dict[str, Any]:
    return {"ProcessingConfiguration": {"Enabled": True, "Processors": list(processors)}}


@given(st.permutations(ALL))
def test_the_order_is_that_of_the_pipeline_whatever_the_configuration_says(shuffled: list[Any]) -> None:
    assert names_of(enabled(*shuffled)) == [
        "Decompression",
        "CloudWatchLogs",
        "DeAggregation",
        "LambdaFunction",
        "MetadataExtraction",
        "AppendDelimiter",
    ]


@pytest.mark.parametrize(
    "processing",
    [{}, None, {"Enabled": False, "Processors": ALL}, {"Enabled": True}, {"Enabled": True, "Processors": []}],
)
def test_nothing_runs_unless_it_is_enabled(processing: Any) -> None:
    assert names_of({"ProcessingConfiguration": processing}) == []
    assert names_of({}) == []


def test_files_of_a_converted_format_have_no_delimiters() -> None:
    converted = {**enabled(*ALL), "DataFormatConversionConfiguration": {"Enabled": True}}
    assert "AppendDelimiter" not in names_of(converted)
    converted["DataFormatConversionConfiguration"] = {"Enabled": False}
    assert "AppendDelimiter" in names_of(converted)


class Marking(Processor):
    """Fails what begins with its own mark, passes on the rest, and remembers how much it got at a time."""

    def __init__(self, mark: bytes, batch_bytes: int) -> None:
        self.mark = mark
        self.batch_bytes = batch_bytes
        self.sizes: list[list[int]] = []

    def process(self, records: list[Record]) -> Processed:
        self.sizes.append([len(record.data) for record in records])
        failed = [
            Failed(r, "processing-failed", "Marked", "") for r in records if r.data.startswith(self.mark)
        ]
        return [r for r in records if not r.data.startswith(self.mark)], failed


@given(
    st.lists(st.lists(st.binary(max_size=8), max_size=6), max_size=6),
    st.integers(1, 20),
    st.integers(1, 20),
)
def test_every_record_passes_all_processors_in_order(
    payloads: list[list[bytes]], first_bytes: int, second_bytes: int
) -> None:
    flat = records_of(*[data for batch in payloads for data in batch])
    numbers = iter(flat)
    batches = [[next(numbers) for _ in batch] for batch in payloads]
    chain = [Marking(b"\x00", first_bytes), Marking(b"\x01", second_bytes)]
    failed: list[Failed] = []
    done = [record for batch in processed(chain, batches, failed.extend) for record in batch]
    assert done == [record for record in flat if not record.data.startswith((b"\x00", b"\x01"))]
    assert sorted(failure.record for failure in failed) == [
        record for record in flat if record.data.startswith((b"\x00", b"\x01"))
    ]
    for marking in chain:
        assert all(sum(sizes[:-1]) < marking.batch_bytes for sizes in marking.sizes)
        assert all(sum(sizes) >= marking.batch_bytes for sizes in marking.sizes[:-1])
