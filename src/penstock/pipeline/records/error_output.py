"""Error output: a line of JSON for each record that failed, in the dialect of what it failed at."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.delivery.settings import DeliverySettings
from penstock.pipeline.records.record import Failed

FORMAT_CONVERSION_FAILED = "format-conversion-failed"
PROCESSING_FAILED = "processing-failed"
DECOMPRESSION_FAILED = "decompression-failed"
ACTIVE_PARTITION_EXCEEDED = "activePartitionExceeded"

# Failures before delivery; those of format conversion and of delivery itself are told in other words.
PROCESSING_TYPES = frozenset({PROCESSING_FAILED, DECOMPRESSION_FAILED, ACTIVE_PARTITION_EXCEEDED})
NO_MEMBERS: Mapping[str, object] = {}

_encoder = msgspec.json.Encoder()


def error_line(
    failed: Failed,
    ended_ms: int,
    delivery: DeliverySettings,
    destination_members: Mapping[str, object] = NO_MEMBERS,
) -> bytes:
    """The record as it was put and why it failed. `destination_members` are what failures of delivery tell besides."""
    if failed.output_type in PROCESSING_TYPES:
        members = _processing(failed, ended_ms)
    elif failed.output_type == FORMAT_CONVERSION_FAILED:
        members = _format_conversion(failed, ended_ms, delivery)
    else:
        members = {**_delivery(failed, ended_ms), **destination_members}
    return _encoder.encode(members) + b"\n"


def _processing(failed: Failed, ended_ms: int) -> dict[str, object]:
    members: dict[str, object] = {
        "rawData": _raw(failed),
        "errorCode": failed.code,
        "errorMessage": _message(failed),
        "attemptsMade": failed.attempts,
        "arrivalTimestamp": failed.record.arrival_ms,
        "attemptEndingTimestamp": ended_ms,
    }
    if failed.lambda_arn is not None:
        # AWS writes the first today and wrote the second before; readers look for either.
        members |= {"lambdaARN": failed.lambda_arn, "lambdaArn": failed.lambda_arn}
    return members


def _format_conversion(failed: Failed, ended_ms: int, delivery: DeliverySettings) -> dict[str, object]:
    return {
        "attemptsMade": failed.attempts,
        "arrivalTimestamp": failed.record.arrival_ms,
        "lastErrorCode": failed.code,
        "lastErrorMessage": _message(failed),
        "attemptEndingTimestamp": ended_ms,
        "rawData": _raw(failed),
        "sequenceNumber": str(failed.record.sequence),
        "subSequenceNumber": None,
        "dataCatalogTable": _catalog_table(delivery),
    }


def _catalog_table(delivery: DeliverySettings) -> dict[str, object]:
    conversion: Mapping[str, Any] = delivery.config.get("DataFormatConversionConfiguration") or {}
    schema: Mapping[str, Any] = conversion.get("SchemaConfiguration") or {}
    return {
        "catalogId": schema.get("CatalogId"),
        "databaseName": schema.get("DatabaseName"),
        "tableName": schema.get("TableName"),
        "region": schema.get("Region") or delivery.region,
        "versionId": schema.get("VersionId") or "LATEST",
        "roleArn": schema.get("RoleARN"),
    }


def _delivery(failed: Failed, ended_ms: int) -> dict[str, object]:
    return {
        "attemptsMade": failed.attempts,
        "arrivalTimestamp": failed.record.arrival_ms,
        "errorCode": failed.code,
        "errorMessage": _message(failed),
        "attemptEndingTimestamp": ended_ms,
        "rawData": _raw(failed),
    }


def _message(failed: Failed) -> str:
    """JSON and functions may quote half a character, which no text can hold."""
    return failed.message.encode(errors="replace").decode()


def _raw(failed: Failed) -> str:
    return b64encode(failed.record.raw).decode()
