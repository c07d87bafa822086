"""Definitions of streams as clients send them, for the tests of what becomes of them."""

from __future__ import annotations

from typing import Any

from stream_manager import data as sdk

from penstock.doors.streammanager.definitions import parse_definition
from penstock.model import ExportKind, ExportStatus, StreamDefinition, StreamInfo

SMALLEST = {"name": "s", "strategyOnFull": 0}

# For each kind: the SDK's class, its attribute in ExportDefinition, and the settings it cannot do without.
KINDS: dict[ExportKind, tuple[Any, str, dict[str, Any]]] = {
    ExportKind.HTTP: (sdk.HTTPConfig, "http", {"identifier": "e", "uri": "http://x"}),
    ExportKind.IOT_ANALYTICS: (
        sdk.IoTAnalyticsConfig,
        "iot_analytics",
        {"identifier": "e", "iotChannel": "c"},
    ),
    ExportKind.KINESIS: (sdk.KinesisConfig, "kinesis", {"identifier": "e", "kinesisStreamName": "k"}),
    ExportKind.IOT_SITEWISE: (sdk.IoTSiteWiseConfig, "iot_sitewise", {"identifier": "e"}),
    ExportKind.S3_TASK_EXECUTOR: (sdk.S3ExportTaskExecutorConfig, "s3_task_executor", {"identifier": "e"}),
}


def parsed(value: object) -> StreamDefinition:
    definition, problems = parse_definition(value)
    assert problems == []
    assert definition is not None
    return definition


def problems_of(value: object) -> list[str]:
    definition, problems = parse_definition(value)
    assert definition is None
    assert problems
    return problems


def with_export(kind: ExportKind, *settings: dict[str, Any]) -> dict[str, Any]:
    return {**SMALLEST, "exportDefinition": {kind.value: list(settings)}}


def info(
    definition: StreamDefinition, *statuses: ExportStatus, newest: int = -1, total: int = 0
) -> StreamInfo:
    return StreamInfo(definition, 0, newest, total, statuses)
