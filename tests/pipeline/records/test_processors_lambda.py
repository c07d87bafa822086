"""The Lambda processor: events, outcomes, retries, batches. Functions answer over HTTP, as real ones do."""

from __future__ import annotations

import base64
import json
import logging
import threading
import uuid
from typing import Any

import pytest

from penstock.pipeline.destinations.base import PipelineSettings
from penstock.pipeline.records.processors import lambda_function, processed
from penstock.pipeline.records.processors.deaggregation import DeAggregation
from penstock.pipeline.records.processors.lambda_event import PAYLOAD_BYTES_MAX
from penstock.pipeline.records.processors.lambda_function import LambdaFunction
from penstock.pipeline.records.record import Failed, Record
from pipeline.records.functions import (
    ARN,
    DELIVERY_ARN,
    Event,
    Functions,
    Reply,
    answered,
    delivery_settings,
    function_error,
    records_of,
    upper,
)

MIB = 1024 * 1024
FUNCTION_ERROR = "The Lambda function was successfully invoked but it returned an error result."


class Pauses(list[float]):
    """Instead of waiting."""

    def __call__(self, seconds: float) -> None:
        self.append(seconds)


def processor(
    functions: Functions,
    pause: Pauses | None = None,
    partitioned: bool = False,
    delivery_arn: str = DELIVERY_ARN,
    **parameters: str,
) -> LambdaFunction:
    settings = PipelineSettings(lambdas={ARN: f"{functions.url}/f"}, lambda_timeout_s=10)
    delivery = delivery_settings(arn=delivery_arn)
    pause = Pauses() if pause is None else pause
    return LambdaFunction({"LambdaArn": ARN, **parameters}, delivery, settings, partitioned, pause)


def outcome_of(
    functions: Functions, handler: Any, *payloads: bytes, **options: Any
) -> tuple[list[Record], list[Failed]]:
    functions.handlers["/f"] = handler
    return processor(functions, **options).process(records_of(*payloads))


def test_the_event_is_firehoses(functions: Functions) -> None:
    done, failed = outcome_of(functions, upper, b"one", b"")
    assert ([record.data for record in done], failed) == ([b"ONE", b""], [])
    [event] = functions.events
    assert event.keys() == {"invocationId", "deliveryStreamArn", "region", "records"}
    assert str(uuid.UUID(event["invocationId"])) == event["invocationId"]
    assert (event["deliveryStreamArn"], event["region"]) == (DELIVERY_ARN, "eu-west-1")
    [first, second] = event["records"]
    assert first == {
        "recordId": first["recordId"],
        "approximateArrivalTimestamp": 1_700_000_000_000,
        "data": base64.b64encode(b"one").decode(),
    }
    assert second["data"] == ""
    assert isinstance(first["recordId"], str)
    assert first["recordId"] < second["recordId"]


# -- outcomes ---------------------------------------------------------------------------------------

MISSING = (
    "Lambda.MissingRecordId",
    "One or more record Ids were not returned. Ensure that the Lambda function returns all received record Ids.",
)


def changing(number: int, change: Any) -> Any:
    """A function that does well but for one record."""

    def handler(event: Event) -> dict[str, Any]:
        records = upper(event)["records"]
        records[number : number + 1] = change(records[number])
        return {"records": records}

    return handler


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (
            lambda r: [{**r, "result": "ProcessingFailed"}],
            "Lambda.ProcessingFailedStatus",
            "ProcessingFailed status set for record",
        ),
        (lambda r: [], *MISSING),
        (lambda r: [{**r, "recordId": "of nobody"}], *MISSING),
        (lambda r: [{**r, "recordId": 5}], *MISSING),
        (lambda r: ["not a record"], *MISSING),
        (
            lambda r: [r, r],
            "Lambda.DuplicatedRecordId",
            "Multiple records were returned with the same record Id. "
            "Ensure that the Lambda function returns a unique record Id for each record.",
        ),
        (
            lambda r: [r, {**r, "result": "Dropped"}],
            "Lambda.DuplicatedRecordId",
            "Multiple records were returned",
        ),
        (
            lambda r: [{"recordId": r["recordId"], "result": "Ok"}],
            "Lambda.InvalidReturnFormat",
            "The data field cannot be null when the SourceType is DirectPut or KinesisStreamAsSource",
        ),
        (lambda r: [{**r, "data": None}], "Lambda.InvalidReturnFormat", "The data field cannot be null"),
        (lambda r: [{**r, "data": "%%%"}], "Lambda.InvalidReturnFormat", "The data is not base64"),
        (lambda r: [{**r, "data": "é"}], "Lambda.InvalidReturnFormat", "The data is not base64"),
        (lambda r: [{**r, "data": 7}], "Lambda.InvalidReturnFormat", "The data must be text in base64."),
        (
            lambda r: [{**r, "result": "ok"}],
            "Lambda.InvalidReturnFormat",
            "The result must be Ok, Dropped or",
        ),
        (
            lambda r: [{**r, "result": None}],
            "Lambda.InvalidReturnFormat",
            "The result must be Ok, Dropped or",
        ),
    ],
)
def test_a_record_that_fails_alone(functions: Functions, change: Any, code: str, message: str) -> None:
    done, [failure] = outcome_of(functions, changing(1, change), b"a", b"b", b"c")
    assert [record.data for record in done] == [b"A", b"C"]
    assert failure.record.raw == b"b"
    assert (failure.output_type, failure.code) == ("processing-failed", code)
    assert failure.message.startswith(message)
    assert (failure.attempts, failure.lambda_arn) == (1, ARN)
    assert len(functions.events) == 1


def test_ok_and_dropped(functions: Functions) -> None:
    dropping = changing(1, lambda r: [{"recordId": r["recordId"], "result": "Dropped"}])
    done, failed = outcome_of(functions, dropping, b"a", b"b", b"c")
    assert [(r.sequence, r.data, r.raw) for r in done] == [(0, b"A", b"a"), (2, b"C", b"c")]
    assert not failed


def test_records_that_nobody_asked_for_are_ignored_and_order_does_not_matter(functions: Functions) -> None:
    def handler(event: Event) -> dict[str, Any]:
        strange = {"recordId": "more", "result": "Ok", "data": "QQ=="}
        return {"records": [strange, strange, *reversed(upper(event)["records"])]}

    done, failed = outcome_of(functions, handler, b"a", b"b")
    assert ([record.data for record in done], failed) == ([b"A", b"B"], [])


@pytest.mark.parametrize(
    "body",
    [b"", b"not JSON", b"null", b"[]", b"{}", b'{"records": null}', b'{"records": {}}', b"\xff", b"[" * 5000],
)
def test_an_answer_without_records_is_not_tried_again(functions: Functions, body: bytes) -> None:
    done, failed = outcome_of(functions, lambda event: Reply(200, body), b"a", b"b")
    assert not done
    assert [(f.record.raw, f.code, f.message, f.attempts) for f in failed] == [
        (b"a", *MISSING, 1),
        (b"b", *MISSING, 1),
    ]
    assert len(functions.events) == 1


# -- partition keys ---------------------------------------------------------------------------------


def with_keys(keys: Any) -> Any:
    return lambda event: {
        "records": [answered(r, data=b"x", metadata={"partitionKeys": keys}) for r in event["records"]]
    }


def test_partition_keys(functions: Functions) -> None:
    keys = {"customer": "c/1", "year": 2026, "beta": True, "ratio": 0.5}
    [record], failed = outcome_of(functions, with_keys(keys), b"a", partitioned=True)
    assert record.lambda_keys == {"customer": "c/1", "year": "2026", "beta": "true", "ratio": "0.5"}
    assert (record.query_keys, failed) == ({}, [])


@pytest.mark.parametrize("keys", [{"a": "1"}, {"a": None}, "nonsense"])
def test_partition_keys_are_ignored_without_dynamic_partitioning(functions: Functions, keys: Any) -> None:
    [record], failed = outcome_of(functions, with_keys(keys), b"a")
    assert (record.lambda_keys, failed) == ({}, [])


@pytest.mark.parametrize("metadata", [None, {}, {"partitionKeys": None}, {"partitionKeys": {}}, "text"])
def test_no_partition_keys(functions: Functions, metadata: Any) -> None:
    handler = changing(0, lambda r: [{**r, "metadata": metadata}])
    [record], failed = outcome_of(functions, handler, b"a", partitioned=True)
    assert (record.lambda_keys, failed) == ({}, [])


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"a": None}, "partitionKeys values must not be null or empty: a"),
        ({"a": ""}, "partitionKeys values must not be null or empty: a"),
        ({"a": "x\ny"}, "control characters: a"),
        ({"a": []}, "must be strings, numbers or booleans: a"),
        ({f"k{n}": "v" for n in range(51)}, "51 partitionKeys, and 50 is the most"),
        ("text", "the partitionKeys must be an object"),
    ],
)
def test_partition_keys_that_cannot_be(functions: Functions, keys: Any, problem: str) -> None:
    done, [failure] = outcome_of(functions, with_keys(keys), b"a", partitioned=True)
    assert not done
    assert failure.code == "DynamicPartitioning.MetadataExtractionFailed"
    assert problem in failure.message
    assert (failure.output_type, failure.lambda_arn) == ("processing-failed", ARN)


# -- retries ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameter", "attempts"),
    [(None, 4), ("0", 1), ("1", 2), ("-5", 1), ("nonsense", 4), ("2147483647", 301)],
)
def test_a_function_that_fails_is_called_again(
    functions: Functions, parameter: str | None, attempts: int, caplog: pytest.LogCaptureFixture
) -> None:
    parameters = {} if parameter is None else {"NumberOfRetries": parameter}
    pauses = Pauses()
    with caplog.at_level(logging.WARNING):
        done, failed = outcome_of(
            functions,
            lambda event: function_error("no customer", "KeyError"),
            b"a",
            b"b",
            pause=pauses,
            **parameters,
        )
    assert not done
    assert [(f.record.raw, f.code, f.attempts, f.lambda_arn) for f in failed] == [
        (b"a", "Lambda.FunctionError", attempts, ARN),
        (b"b", "Lambda.FunctionError", attempts, ARN),
    ]
    assert failed[0].message == f"{FUNCTION_ERROR} KeyError: no customer"
    assert len(functions.events) == attempts
    assert pauses == [min(2.0**n, 30.0) for n in range(attempts - 1)]
    [logged] = [record.getMessage() for record in caplog.records if record.name.startswith("penstock")]
    assert f"2 records of orders failed after {attempts} attempts: KeyError: no customer" in logged


def test_a_function_that_recovers(functions: Functions) -> None:
    answers = iter([function_error("not yet"), Reply(500, b"no"), Reply(503, b"")])
    done, failed = outcome_of(functions, lambda event: next(answers, None) or upper(event), b"a")
    assert ([record.data for record in done], failed) == ([b"A"], [])
    asked = [event["records"] for event in functions.events]
    assert len(asked) == 4
    assert asked == [asked[0]] * 4  # the same records with the same ids
    assert len({event["invocationId"] for event in functions.events}) == 4


def test_attempts_count_those_that_failed_before(functions: Functions) -> None:
    answers = iter([function_error("not yet"), {"records": []}])
    _, [failure] = outcome_of(functions, lambda event: next(answers), b"a")
    assert (failure.code, failure.attempts) == ("Lambda.MissingRecordId", 2)


# -- ids --------------------------------------------------------------------------------------------


def ids_of(functions: Functions, batches: list[list[Record]]) -> list[str]:
    functions.handlers["/f"] = upper
    functions.events.clear()
    chain = [DeAggregation({}), processor(functions)]
    failed: list[Failed] = []
    for _ in processed(chain, batches, failed.extend):
        pass
    assert not failed
    return [record["recordId"] for event in functions.events for record in event["records"]]


def test_ids_depend_on_the_stored_records_only(functions: Functions) -> None:
    records = records_of(b'{"a":1}{"a":2}', b'{"a":3}', b'{"a":4}{"a":5}{"a":6}', first=9)
    ids = ids_of(functions, [records])
    assert len(set(ids)) == 6
    assert ids == sorted(ids)
    assert ids_of(functions, [[record] for record in records]) == ids
    assert ids_of(functions, [records[1:]]) == ids[2:]


def test_sub_records_that_come_apart_have_ids_of_their_own(functions: Functions) -> None:
    functions.handlers["/f"] = upper
    made = processor(functions)
    record = records_of(b"whole")[0]
    made.process([record._replace(data=b"a"), record._replace(data=b"b")])
    made.process([record._replace(data=b"c")])
    ids = [record["recordId"] for event in functions.events for record in event["records"]]
    assert len(set(ids)) == 3


# -- batches ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameter", "mib"), [(None, 1), ("0.5", 0.5), ("3", 3), ("0.01", 0.2), ("99", 3), ("x", 1)]
)
def test_batches_are_as_large_as_the_buffer(functions: Functions, parameter: str | None, mib: float) -> None:
    parameters = {} if parameter is None else {"BufferSizeInMBs": parameter}
    payloads = [bytes([65 + number % 20]) * 100_000 for number in range(40)]
    done, failed = outcome_of(functions, upper, *payloads, **parameters)
    assert ([record.data for record in done], failed) == (payloads, [])
    counts = sorted(len(event["records"]) for event in functions.events)
    whole, rest = divmod(40, int(mib * MIB) // 100_000)
    assert counts == sorted([int(mib * MIB) // 100_000] * whole + [rest] * bool(rest))


def test_many_small_records_stay_below_the_payload_limit(functions: Functions) -> None:
    sizes: list[int] = []

    def handler(event: Event) -> dict[str, Any]:
        sizes.append(len(json.dumps(event, separators=(",", ":"))))
        return {"records": [{"recordId": r["recordId"], "result": "Dropped"} for r in event["records"]]}

    outcome = outcome_of(functions, handler, *[b"x"] * 100_000, BufferSizeInMBs="3")
    assert outcome == ([], [])
    assert len(sizes) == 2
    assert PAYLOAD_BYTES_MAX * 0.9 < max(sizes) <= PAYLOAD_BYTES_MAX


def test_a_record_that_fits_no_payload_fails_alone(functions: Functions) -> None:
    large = bytes(5 * MIB)
    done, [failure] = outcome_of(functions, upper, b"a", large, b"b")
    assert [record.data for record in done] == [b"A", b"B"]
    assert failure.record.raw == large
    assert (failure.code, failure.attempts) == ("Lambda.FunctionError", 1)
    assert f"too large for a payload of {PAYLOAD_BYTES_MAX} bytes: {5 * MIB} bytes" in failure.message


def test_a_record_larger_than_the_buffer_goes_alone(functions: Functions) -> None:
    payloads = [b"a", b"B" * (4 * MIB), b"c"]
    done, failed = outcome_of(functions, upper, *payloads, BufferSizeInMBs="0.2")
    assert ([len(record.data) for record in done], failed) == ([1, 4 * MIB, 1], [])
    assert sorted(len(event["records"]) for event in functions.events) == [1, 1, 1]


def test_answers_that_are_too_large_are_asked_for_in_parts(functions: Functions) -> None:
    def swelling(event: Event) -> dict[str, Any]:
        return {"records": [answered(r, data=b"x" * 2 * MIB) for r in event["records"]]}

    done, failed = outcome_of(functions, swelling, *[b"a"] * 8)
    assert ([len(record.data) for record in done], failed) == ([2 * MIB] * 8, [])
    assert [record.sequence for record in done] == list(range(8))
    assert sorted(len(event["records"]) for event in functions.events) == [2, 2, 2, 2, 4, 4, 8]


def test_one_record_whose_answer_is_too_large(functions: Functions) -> None:
    def swelling(event: Event) -> dict[str, Any]:
        return {"records": [answered(r, data=b"x" * 5 * MIB) for r in event["records"]]}

    done, failed = outcome_of(functions, swelling, b"a", b"b", NumberOfRetries="1")
    assert not done
    assert [(f.code, f.attempts) for f in failed] == [("Lambda.FunctionError", 2)] * 2
    assert "larger than" in failed[0].message


def meeting(count: int) -> Any:
    """A function that answers only when it runs so many times at once."""
    together = threading.Barrier(count)

    def handler(event: Event) -> dict[str, Any]:
        together.wait(10)
        return upper(event)

    return handler


def process_at_once(processors: list[LambdaFunction], batches: int) -> None:
    payloads = [bytes(200_000)] * batches  # each a batch of its own
    threads = [threading.Thread(target=made.process, args=(records_of(*payloads),)) for made in processors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_five_invocations_at_a_time_for_all_flushes_of_a_stream(functions: Functions) -> None:
    most = lambda_function.CONCURRENT_INVOCATIONS_MAX
    functions.handlers["/f"] = meeting(most)
    process_at_once([processor(functions, BufferSizeInMBs="0.2") for _ in range(2)], 2 * most)
    assert len(functions.events) == 4 * most
    assert functions.running_most == most


def test_streams_do_not_wait_for_each_other(functions: Functions) -> None:
    most = lambda_function.CONCURRENT_INVOCATIONS_MAX
    functions.handlers["/f"] = meeting(2 * most)
    arns = [f"{DELIVERY_ARN}-{number}" for number in range(2)]
    process_at_once([processor(functions, BufferSizeInMBs="0.2", delivery_arn=arn) for arn in arns], most)
    assert len(functions.events) == functions.running_most == 2 * most


def test_nothing_to_do(functions: Functions) -> None:
    assert outcome_of(functions, upper) == ([], [])
    assert not functions.events
