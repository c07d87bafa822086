"""The official SDK as the judge: it takes and refuses the same definitions as we do."""

from __future__ import annotations

from typing import Any

import pytest
from sm_definitions import KINDS, SMALLEST, parsed, with_export
from stream_manager import data as sdk
from stream_manager.utilinternal import UtilInternal

from penstock.doors.streammanager.definitions import parse_definition
from penstock.model import INT64_MAX, ExportKind


def camel(snake: str) -> str:
    head, *rest = snake.split("_")
    return head + "".join(word.capitalize() for word in rest)


def boundary_values(rules: dict[str, Any]) -> list[Any]:
    values: list[Any] = []
    for key, beyond in (("minimum", -1), ("maximum", 1)):
        if key in rules:
            values += [rules[key], rules[key] + beyond]
    for key, beyond in (("minLength", -1), ("maxLength", 1)):
        if key in rules:
            values += ["x" * rules[key], "x" * (rules[key] + beyond)]
    if "pattern" in rules:
        values += ["a/b", "a b,c.d-e_f"]
    return values


def boundaries(sdk_class: Any) -> list[tuple[str, Any]]:
    return [
        (attribute, value)
        for attribute, rules in sdk_class._validations_map.items()
        for value in boundary_values(rules)
    ]


def judged_alike(theirs: Any, ours: list[str], value: Any) -> bool:
    if value == INT64_MAX + 1:
        return ours == []  # clamped, for JavaScript's sake
    return bool(UtilInternal.is_invalid(theirs)) == bool(ours)


@pytest.mark.parametrize(("attribute", "value"), boundaries(sdk.MessageStreamDefinition))
def test_stream_limits_are_those_of_the_sdk(attribute: str, value: Any) -> None:
    definition = sdk.MessageStreamDefinition(name="s", strategy_on_full=sdk.StrategyOnFull.RejectNewData)
    setattr(definition, attribute, value)
    assert judged_alike(definition, parse_definition(definition.as_dict())[1], value)


@pytest.mark.parametrize(
    ("kind", "attribute", "value"),
    [(kind, *boundary) for kind, (sdk_class, _, _) in KINDS.items() for boundary in boundaries(sdk_class)],
)
def test_export_limits_are_those_of_the_sdk(kind: ExportKind, attribute: str, value: Any) -> None:
    sdk_class, list_name, settings = KINDS[kind]
    export = sdk_class.from_dict(settings)
    setattr(export, attribute, value)
    definition = sdk.MessageStreamDefinition(
        name="s",
        strategy_on_full=sdk.StrategyOnFull.RejectNewData,
        export_definition=sdk.ExportDefinition(**{list_name: [export]}),
    )
    assert judged_alike(definition, parse_definition(definition.as_dict())[1], value)


@pytest.mark.parametrize("kind", KINDS)
def test_keys_of_exports_are_those_of_the_sdk(kind: ExportKind) -> None:
    sdk_class, _, settings = KINDS[kind]
    samples = {"disabled": True, "statusConfig": {}, "uri": "u", "iotMsgIdPrefix": "p", "exportFormat": 1}
    samples |= {"batchIntervalMillis": 60000, "sizeThresholdForMultipartUploadBytes": 5242880}
    everything = {
        camel(attribute): settings.get(camel(attribute), samples.get(camel(attribute), 1))
        for attribute in sdk_class._types_map
    }
    assert parsed(with_export(kind, everything)).exports[0].settings == everything


def test_enums_are_those_of_the_sdk() -> None:
    for value in sdk.Persistence:
        parsed({**SMALLEST, "persistence": value.value})
    for value in sdk.StrategyOnFull:
        parsed({**SMALLEST, "strategyOnFull": value.value})
    for value in sdk.ExportFormat:
        parsed(with_export(ExportKind.HTTP, {"identifier": "e", "uri": "u", "exportFormat": value.value}))
    for value in sdk.StatusLevel:
        config = {"statusLevel": value.value}
        parsed(with_export(ExportKind.S3_TASK_EXECUTOR, {"identifier": "e", "statusConfig": config}))
