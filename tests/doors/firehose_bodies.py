"""Bodies of CreateDeliveryStream for layer 2 of the checks, and what is said of them."""

from __future__ import annotations

from typing import Any

import pytest
from firehose_model import ROLE, S3, STRICT, create

from penstock.delivery.errors import ApiError
from penstock.doors.firehose.rules import check_create

ON = {"Enabled": True}
OFF = {"Enabled": False}
LAMBDA_ARN = "arn:aws:lambda:eu-west-1:123456789012:function:f"
ERRORS = "errors/!{firehose:error-output-type}/"
PREFIX_RULE = "Ths supplied prefix(es) do not satisfy the following constraint: "


def refusal(body: dict[str, Any], **switches: bool) -> str:
    """Why a body, which layer 1 passes, is refused."""
    with pytest.raises(ApiError) as caught:
        check_create(STRICT.check("CreateDeliveryStream", body), **switches)
    assert (caught.value.code, caught.value.http_status) == ("InvalidArgumentException", 400)
    return caught.value.message


def accept(body: dict[str, Any], **switches: bool) -> None:
    check_create(STRICT.check("CreateDeliveryStream", body), **switches)


def extended(**members: Any) -> dict[str, Any]:
    return create({**S3, **members})


def processor(kind: str, **parameters: str) -> dict[str, Any]:
    return {
        "Type": kind,
        "Parameters": [
            {"ParameterName": name, "ParameterValue": value} for name, value in parameters.items()
        ],
    }


def processing(*processors: dict[str, Any], **members: Any) -> dict[str, Any]:
    return extended(ProcessingConfiguration={"Enabled": True, "Processors": list(processors)}, **members)


def partitioned(
    query: str | None = "{a:.a}",
    prefix: str = "!{partitionKeyFromQuery:a}/",
    more: tuple[dict[str, Any], ...] = (),
    **members: Any,
) -> dict[str, Any]:
    metadata = [] if query is None else [processor("MetadataExtraction", **metadata_parameters(query))]
    block = {
        "Prefix": prefix,
        "ErrorOutputPrefix": ERRORS,
        "DynamicPartitioningConfiguration": ON,
        "ProcessingConfiguration": {"Enabled": bool(metadata or more), "Processors": [*metadata, *more]},
        **members,
    }
    return extended(**block)


def metadata_parameters(query: str) -> dict[str, str]:
    return {"MetadataExtractionQuery": query, "JsonParsingEngine": "JQ-1.6"}


LAMBDA = processor("Lambda", LambdaArn=LAMBDA_ARN)


SCHEMA = {"RoleARN": ROLE, "DatabaseName": "d", "TableName": "t"}
OPENX = {"Deserializer": {"OpenXJsonSerDe": {}}}
PARQUET = {"Serializer": {"ParquetSerDe": {}}}


def conversion(enabled: bool | None = True, **blocks: Any) -> dict[str, Any]:
    members: dict[str, Any] = {
        "InputFormatConfiguration": OPENX,
        "OutputFormatConfiguration": PARQUET,
        "SchemaConfiguration": SCHEMA,
        **blocks,
    }
    outer = {name: members.pop(name) for name in ("CompressionFormat", "BufferingHints") if name in members}
    return extended(DataFormatConversionConfiguration={"Enabled": enabled, **members}, **outer)
