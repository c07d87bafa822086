"""Error output: the members that AWS writes, in each of its dialects."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from penstock.pipeline.records.error_output import error_line
from penstock.pipeline.records.record import Failed, Record
from pipeline.records.deliveries import delivery_settings

PUT = b"\x00\xffas it was put\n"
RECORD = Record(41, 1_700_000_000_123, b"as it became", PUT)
ENDED_MS = 1_700_000_060_000
FUNCTION = "arn:aws:lambda:us-east-1:123456789012:function:clean"


def told(failed: Failed, *, members: dict[str, object] | None = None, **config: Any) -> dict[str, Any]:
    line = error_line(failed, ENDED_MS, delivery_settings(**config), members or {})
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    decoded: dict[str, Any] = json.loads(line)
    return decoded


def test_a_function_that_failed() -> None:
    failed = Failed(RECORD, "processing-failed", "Lambda.FunctionError", "it threw\nat line 3", 4, FUNCTION)
    assert list(told(failed).items()) == [
        ("rawData", base64.b64encode(PUT).decode()),
        ("errorCode", "Lambda.FunctionError"),
        ("errorMessage", "it threw\nat line 3"),
        ("attemptsMade", 4),
        ("arrivalTimestamp", 1_700_000_000_123),
        ("attemptEndingTimestamp", ENDED_MS),
        ("lambdaARN", FUNCTION),
        ("lambdaArn", FUNCTION),
    ]


@pytest.mark.parametrize(
    "output_type", ["processing-failed", "format-conversion-failed", "http-endpoint-failed"]
)
def test_a_message_that_is_no_text_is_told_all_the_same(output_type: str) -> None:
    """JSON may quote half a character. An error that cannot be written down would hold up its flush for ever."""
    members = told(Failed(RECORD, output_type, "Code", 'For input string: "\ud800"'))
    assert 'For input string: "?"' in members.values()


@pytest.mark.parametrize("output_type", ["decompression-failed", "activePartitionExceeded"])
def test_without_a_function_none_is_named(output_type: str) -> None:
    line = told(Failed(RECORD, output_type, "Some.Code", "why"))
    assert (line["errorCode"], line["attemptsMade"]) == ("Some.Code", 1)
    assert not line.keys() & {"lambdaARN", "lambdaArn"}


def test_format_conversion() -> None:
    schema = {"RoleARN": "arn:role", "DatabaseName": "db", "TableName": "clicks", "CatalogId": "123456789012"}
    conversion = {"Enabled": True, "SchemaConfiguration": schema}
    failed = Failed(RECORD, "format-conversion-failed", "DataFormatConversion.ParseError", "no JSON")
    assert list(told(failed, DataFormatConversionConfiguration=conversion).items()) == [
        ("attemptsMade", 1),
        ("arrivalTimestamp", 1_700_000_000_123),
        ("lastErrorCode", "DataFormatConversion.ParseError"),
        ("lastErrorMessage", "no JSON"),
        ("attemptEndingTimestamp", ENDED_MS),
        ("rawData", base64.b64encode(PUT).decode()),
        ("sequenceNumber", "41"),
        ("subSequenceNumber", None),
        (
            "dataCatalogTable",
            {
                "catalogId": "123456789012",
                "databaseName": "db",
                "tableName": "clicks",
                "region": "us-east-1",
                "versionId": "LATEST",
                "roleArn": "arn:role",
            },
        ),
    ]


def test_delivery_adds_what_the_destination_knows() -> None:
    failed = Failed(RECORD, "splunk-failed", "Splunk.AckTimeout", "no ack", 7)
    assert list(told(failed, members={"EventId": "41.0"}).items()) == [
        ("attemptsMade", 7),
        ("arrivalTimestamp", 1_700_000_000_123),
        ("errorCode", "Splunk.AckTimeout"),
        ("errorMessage", "no ack"),
        ("attemptEndingTimestamp", ENDED_MS),
        ("rawData", base64.b64encode(PUT).decode()),
        ("EventId", "41.0"),
    ]
