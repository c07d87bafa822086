"""Which flushes share a Spark job."""

from __future__ import annotations

from typing import Any

from penstock.flush import Flush
from penstock.model import ExportKind
from penstock.pipeline.grouping import GROUP_MESSAGES_MIN, Group, grouped, pack

CONVERSION = {"DataFormatConversionConfiguration": {"Enabled": True}}


def flush_of(number: int, messages: int) -> Flush:
    return Flush(number, "s", "e", ExportKind.HTTP, {}, 0, messages, 0, "nonce")


def test_little_work_is_one_group() -> None:
    flushes = [flush_of(number, 10) for number in range(5)]
    assert pack(flushes, 4) == [flushes]
    assert pack([], 4) == []


def test_much_work_is_spread_evenly_and_in_order() -> None:
    flushes = [flush_of(number, GROUP_MESSAGES_MIN) for number in range(9)]
    groups = pack(flushes, 4)
    assert sorted(len(group) for group in groups) == [2, 2, 2, 3]
    assert all(group == sorted(group, key=lambda flush: flush.id) for group in groups)
    assert sorted(flush.id for group in groups for flush in group) == list(range(9))
    assert [group[0].id for group in groups] == [0, 1, 2, 3]


def test_one_long_flush_does_not_take_the_others_with_it() -> None:
    long, *short = [flush_of(0, 100 * GROUP_MESSAGES_MIN), *(flush_of(number, 1) for number in range(1, 6))]
    assert pack([long, *short], 2) == [[long], short]


# -- kinds of jobs ----------------------------------------------------------------------------------


def delivery_flush(number: int, sql: str = "", **config: Any) -> Flush:
    settings = {"sql": sql, "config": config}
    return Flush(number, "arn", "delivery", ExportKind.DELIVERY, settings, 0, 10, 0, "nonce")


def processing(*types: str, enabled: bool = True) -> dict[str, Any]:
    return {"Enabled": enabled, "Processors": [{"Type": type_} for type_ in types]}


def test_flushes_that_only_need_a_place_to_run_share_a_job() -> None:
    flushes = [
        flush_of(0, 10),
        delivery_flush(1),
        delivery_flush(2, CompressionFormat="GZIP"),
        delivery_flush(3, ProcessingConfiguration=processing("MetadataExtraction")),
        delivery_flush(4, ProcessingConfiguration=processing("Lambda", enabled=False)),
        delivery_flush(5, DataFormatConversionConfiguration={"Enabled": False}),
    ]
    assert list(grouped(flushes, 2)) == [Group(flushes, spark_sql=False, functions=False)]


def test_flushes_for_spark_sql_share_a_job_with_their_like_only() -> None:
    first, plain, other, second = (
        delivery_flush(0, sql="SELECT data FROM records"),
        delivery_flush(1),
        delivery_flush(2, **CONVERSION),
        delivery_flush(3, sql="SELECT data FROM records"),
    )
    second.settings["data_keys"] = [{"first_sequence": 7, "key": "new"}]
    assert list(grouped([first, plain, other, second], 2)) == [
        Group([first, second], spark_sql=True, functions=False),
        Group([plain], spark_sql=False, functions=False),
        Group([other], spark_sql=True, functions=False),
    ]


def test_a_function_holds_up_nobody_but_its_own_stream() -> None:
    called = [
        delivery_flush(number, Prefix=f"stream-{number}/", ProcessingConfiguration=processing("Lambda"))
        for number in range(2)
    ]
    both = delivery_flush(2, ProcessingConfiguration=processing("Lambda"), **CONVERSION)
    assert list(grouped([*called, both, flush_of(3, 10)], 2)) == [
        Group([called[0]], spark_sql=False, functions=True),
        Group([called[1]], spark_sql=False, functions=True),
        Group([both], spark_sql=True, functions=True),
        Group([flush_of(3, 10)], spark_sql=False, functions=False),
    ]
