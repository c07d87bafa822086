"""docs/firehose-processors.md: its example runs, and what it states is what the code does."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.pipeline.destinations.base import PipelineSettings
from penstock.pipeline.records import processors
from penstock.pipeline.records.processors import (
    cloudwatch_logs,
    deaggregation,
    decompression,
    jq_apart,
    keys,
    lambda_answer,
    lambda_function,
    processed,
    processors_for,
)
from penstock.pipeline.records.processors.jq_program import Patience
from penstock.pipeline.records.processors.lambda_table import check_target
from penstock.pipeline.records.record import Failed
from pipeline.records.functions import delivery_settings, records_of

PAGE = (Path(__file__).parents[3] / "docs" / "firehose-processors.md").read_text()


def block(language: str) -> str:
    [found] = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


@pytest.fixture
def lambdas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The table of the page, with the function of the page where it says."""
    table: dict[str, str] = msgspec.toml.decode(block("toml"))["lambdas"]
    [python] = [target for target in table.values() if target.startswith("python:")]
    module = tmp_path.joinpath(*python.split(":")[1].split("."))
    module.parent.mkdir(parents=True)
    module.with_suffix(".py").write_text(block("python"))
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    return table


def test_the_example(lambdas: dict[str, str]) -> None:
    config: dict[str, Any] = {"ProcessingConfiguration": json.loads(block("json"))}
    chain = processors_for(config, delivery_settings(config), PipelineSettings(lambdas=lambdas))
    orders = [
        {"customer": "c-1", "price": 2, "count": 3, "ts": 1_700_000_000},
        {"customer": "c-2", "price": 2, "count": 3, "test": True},
        {"customer": "", "price": 1, "count": 1, "ts": 1_700_000_000},
    ]
    failed: list[Failed] = []
    put = records_of("\n".join(map(json.dumps, orders)).encode(), b"not JSON")
    [[record]] = processed(chain, [put], failed.extend)
    assert record.data.endswith(b"}\n")
    assert json.loads(record.data) == {**orders[0], "total": 6}
    assert record.query_keys == {"customer": "c-1", "day": "2023-11-14"}
    assert [(failure.record.sequence, failure.code) for failure in failed] == [
        (1, deaggregation.FAILURE_CODE),
        (0, keys.FAILURE_CODE),
    ]


def test_the_table_of_functions(lambdas: dict[str, str]) -> None:
    for name, target in lambdas.items():
        check_target(name, target)
    assert len(lambdas) == 3


def test_every_processor_and_code_is_named() -> None:
    [order] = [part for part in PAGE.split("\n\n") if part.startswith("| processor |")]
    named = re.findall(r"^\| `(\w+)` \|", order, re.MULTILINE)
    assert named == list(processors._CLASSES)
    codes = {
        decompression.FAILURE_CODE,
        cloudwatch_logs.FAILURE_CODE,
        deaggregation.FAILURE_CODE,
        keys.FAILURE_CODE,
    }
    source = Path(lambda_answer.__file__).read_text()
    codes |= set(re.findall(r'"(Lambda\.\w+)"', source))
    assert len(codes) == 3 + 5
    assert [code for code in codes if f"`{code}`" not in PAGE] == []


def test_figures() -> None:
    buffer = (
        lambda_function.BUFFER_MIB_MIN,
        lambda_function.BUFFER_MIB_MAX,
        lambda_function.BUFFER_MIB_DEFAULT,
    )
    assert "({:g} to {:g}, by default {:g})".format(*buffer) in PAGE
    assert f"(0 to {lambda_function.RETRIES_MAX}, by default {lambda_function.RETRIES_DEFAULT})" in PAGE
    assert f"at most {lambda_function.CONCURRENT_INVOCATIONS_MAX} calls at a time" in PAGE
    seconds, memory_bytes = jq_apart.TEXT_CPU_S, jq_apart.MEMORY_BYTES_MAX
    assert f"gets {seconds:g} seconds of a processor for a\nrecord, and {memory_bytes >> 30} GiB" in PAGE
    assert Patience().texts == 5
    assert f"up to {decompression.DECOMPRESSED_BYTES_MAX >> 20} MiB a record" in PAGE
    assert PipelineSettings().lambda_timeout_s == 5 * 60
