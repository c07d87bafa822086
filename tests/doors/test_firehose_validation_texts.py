"""What layer 1 of the checks of the Firehose door says, word by word as AWS."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from firehose_model import S3, STRICT, create, refused, violations

EXTENDED = "extendedS3DestinationConfiguration"
SERIALIZER = f"{EXTENDED}.dataFormatConversionConfiguration.outputFormatConfiguration.serializer"
MAPPINGS = (
    f"{EXTENDED}.dataFormatConversionConfiguration.inputFormatConfiguration.deserializer.openXJsonSerDe"
    ".columnToJsonKeyMappings"
)
MAP_RULES = (
    "[Member must have length less than or equal to 1024, Member must have length greater than or equal to 1, "
    "Member must satisfy regular expression pattern: "
)


def serializer(name: str, **members: Any) -> dict[str, Any]:
    output = {"OutputFormatConfiguration": {"Serializer": {name: members}}}
    return create({**S3, "DataFormatConversionConfiguration": output})


def mappings(entries: dict[str, Any]) -> dict[str, Any]:
    deserializer = {"OpenXJsonSerDe": {"ColumnToJsonKeyMappings": entries}}
    conversion = {"InputFormatConfiguration": {"Deserializer": deserializer}}
    return create({**S3, "DataFormatConversionConfiguration": conversion})


def processors(*items: Any, **more: Any) -> dict[str, Any]:
    return create({**S3, "ProcessingConfiguration": {"Processors": list(items), **more}})


TEXTS: list[tuple[str, dict[str, Any], str]] = [
    (
        "CreateDeliveryStream",
        create({**S3, "CompressionFormat": "SNAPPY"}),
        f"Value at '{EXTENDED}.compressionFormat' failed to satisfy constraint: Member must satisfy enum value set: "
        "[ZIP, HADOOP_SNAPPY, Snappy, GZIP, UNCOMPRESSED]",
    ),
    (
        "CreateDeliveryStream",
        create({**S3, "CompressionFormat": "SNAPPY"}, "S3DestinationConfiguration"),
        "Value at 's3DestinationConfiguration.compressionFormat' failed to satisfy constraint: Member must satisfy "
        "enum value set: [ZIP, HADOOP_SNAPPY, Snappy, GZIP, UNCOMPRESSED]",
    ),
    (
        "CreateDeliveryStream",
        processors({"Type": "Bogus"}, Enabled=False),
        f"Value at '{EXTENDED}.processingConfiguration.processors.1.member.type' failed to satisfy constraint: Member "
        "must satisfy enum value set: [Decompression, Lambda, RecordDeAggregation, MetadataExtraction, "
        "AppendDelimiterToRecord, CloudWatchLogProcessing]",
    ),
    (
        "CreateDeliveryStream",
        processors({"Type": "Lambda", "Parameters": [{"ParameterName": "A", "ParameterValue": "v"}]}),
        f"Value at '{EXTENDED}.processingConfiguration.processors.1.member.parameters.1.member.parameterName' failed "
        "to satisfy constraint: Member must satisfy enum value set: [DataMessageExtraction, NumberOfRetries, "
        "Delimiter, "
        "RoleArn, JsonParsingEngine, SubRecordType, MetadataExtractionQuery, BufferIntervalInSeconds, LambdaArn, "
        "BufferSizeInMBs, CompressionFormat]",
    ),
    (
        "CreateDeliveryStream",
        serializer("ParquetSerDe", Compression="ZSTD"),
        f"Value at '{SERIALIZER}.parquetSerDe.compression' failed to satisfy constraint: Member must satisfy enum "
        "value set: [SNAPPY, GZIP, UNCOMPRESSED]",
    ),
    (
        "CreateDeliveryStream",
        serializer("OrcSerDe", Compression="ZSTD"),
        f"Value at '{SERIALIZER}.orcSerDe.compression' failed to satisfy constraint: Member must satisfy enum value "
        "set: [ZLIB, SNAPPY, NONE]",
    ),
    (
        "CreateDeliveryStream",
        create({**S3, "FileExtension": "nodot"}),
        f"Value at '{EXTENDED}.fileExtension' failed to satisfy constraint: Member must satisfy regular expression "
        r"pattern: ^(|\.[0-9a-z!\-_.*'()]+)$",
    ),
    (
        "CreateDeliveryStream",
        mappings({"has space": "v", "also space": "w"}),
        f"Value at '{MAPPINGS}' failed to satisfy constraint: Map keys must satisfy constraint: {MAP_RULES}^\\S+$]",
    ),
    (
        "CreateDeliveryStream",
        mappings({"a": " ", "b": None}),
        f"Value at '{MAPPINGS}' failed to satisfy constraint: Map value must satisfy constraint: "
        f"{MAP_RULES}^(?!\\s*$).+]",
    ),
    (
        "UpdateDestination",
        {
            "DeliveryStreamName": "s",
            "CurrentDeliveryStreamVersionId": "1",
            "DestinationId": "destinationId-000000000001",
            "ExtendedS3DestinationUpdate": {"BufferingHints": {"SizeInMBs": 129, "IntervalInSeconds": 1}},
        },
        "Value at 'extendedS3DestinationUpdate.bufferingHints.sizeInMBs' failed to satisfy constraint: Member must "
        "have value less than or equal to 128",
    ),
    (
        "TagDeliveryStream",
        {"DeliveryStreamName": "s", "Tags": [{"Key": "foo!"}]},
        "Value 'foo!' at 'tags.1.member.key' failed to satisfy constraint: Member must satisfy regular expression "
        r"pattern: ^(?!aws:)[\p{L}\p{Z}\p{N}_.:\/=+\-@%]*$",
    ),
    (
        "TagDeliveryStream",
        {"DeliveryStreamName": "s", "Tags": [{"Key": "k"}, {"Key": "k", "Value": "v" * 257}]},
        f"Value '{'v' * 257}' at 'tags.2.member.value' failed to satisfy constraint: Member must have length less than "
        "or equal to 256",
    ),
    (
        "PutRecordBatch",
        {"DeliveryStreamName": "s", "Records": [{"Data": ""}] * 501},
        "Value at 'records' failed to satisfy constraint: Member must have length less than or equal to 500",
    ),
    (
        "PutRecordBatch",
        {
            "DeliveryStreamName": "s",
            "Records": [{"Data": ""}, {"Data": base64.b64encode(bytes(1_024_001)).decode()}],
        },
        "Value at 'records.2.member.data' failed to satisfy constraint: Member must have length less than or equal to "
        "1024000",
    ),
    (
        "PutRecord",
        {"DeliveryStreamName": "s"},
        "Value at 'record' failed to satisfy constraint: Member must not be null",
    ),
]


@pytest.mark.parametrize(("operation", "body", "text"), TEXTS)
def test_text_of_one_violation(operation: str, body: dict[str, Any], text: str) -> None:
    assert refused(operation, body).message == f"1 validation error detected: {text}"


def test_all_violations_are_told() -> None:
    parameter = {"ParameterName": "LambdaArn", "ParameterValue": ""}
    error = refused("CreateDeliveryStream", processors({"Type": "Lambda", "Parameters": [parameter]}))
    value_at = (
        f"Value at '{EXTENDED}.processingConfiguration.processors.1.member.parameters.1.member.parameterValue' failed "
        "to satisfy constraint: "
    )
    assert error.message == (
        f"2 validation errors detected: {value_at}Member must have length greater than or equal to 1; "
        rf"{value_at}Member must satisfy regular expression pattern: ^(?!\s*$).+"
    )
    error = refused("CreateDeliveryStream", serializer("ParquetSerDe", PageSizeBytes=1, WriterVersion="V3"))
    assert [path.rpartition(".")[2] for path, _ in violations(error)] == ["pageSizeBytes", "writerVersion"]


def test_keys_of_a_map_are_told_before_its_values() -> None:
    rules = [
        rule.partition(" must")[0]
        for _, rule in violations(refused("CreateDeliveryStream", mappings({" ": ""})))
    ]
    assert rules == ["Map keys", "Map value"]


@pytest.mark.parametrize(
    "entry", [("ticker", "\u3000"), ("a\u00a0b", "v"), ("k" * 1024, "v" * 1024), ("t", "unit price")]
)
def test_maps_that_aws_accepts(entry: tuple[str, str]) -> None:
    STRICT.check("CreateDeliveryStream", mappings(dict([entry])))


@pytest.mark.parametrize("key", ["größe", "日本 語", "a/b=c+d-e@f%g", "²", " "])
def test_tags_with_letters_of_all_scripts(key: str) -> None:
    STRICT.check("TagDeliveryStream", {"DeliveryStreamName": "s", "Tags": [{"Key": key, "Value": key}]})
