"""IoT SiteWise, against an endpoint that holds each request against the service model."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.model import ExportKind
from penstock.pipeline.destinations import answers
from penstock.pipeline.destinations.base import PipelineSettings
from pipeline.destinations.aws_endpoint import SiteWiseEndpoint, refusal, serving
from pipeline.destinations.recording import Recording, deliver

ASSET = "11111111-2222-3333-4444-555555555555"
PROPERTY = "66666666-7777-8888-9999-aaaaaaaaaaaa"
NOW_S = int(time.time())
SKIPPING = PipelineSettings(sitewise_skip_refused=True)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[SiteWiseEndpoint, str]]:
    endpoint = SiteWiseEndpoint()
    with serving(endpoint) as url:
        yield endpoint, url


@pytest.fixture
def sitewise(
    served: tuple[SiteWiseEndpoint, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[SiteWiseEndpoint]:
    endpoint, url = served
    endpoint.reset()
    monkeypatch.setenv("AWS_ENDPOINT_URL_IOTSITEWISE", url)
    monkeypatch.setattr(answers, "RETRY_WAITS_S", (0.01, 0.01))
    yield endpoint
    assert not endpoint.problems


def value(seconds: int = NOW_S, content: Any = 1.5, kind: str = "doubleValue", **more: Any) -> dict[str, Any]:
    return {"value": {kind: content}, "timestamp": {"timeInSeconds": seconds}, **more}


def entry(number: int, *values: dict[str, Any], alias: str | None = None, **changes: Any) -> bytes:
    fields = {
        "entryId": f"entry-{number}",
        "propertyAlias": alias or f"/line/{number}",
        "propertyValues": list(values) or [value()],
        **changes,
    }
    return json.dumps({name: field for name, field in fields.items() if field is not ...}).encode()


def put(payloads: list[bytes], **settings: Any) -> tuple[Recording, Any]:
    return deliver(ExportKind.IOT_SITEWISE, payloads, **settings)


def sizes(sitewise: SiteWiseEndpoint) -> list[int]:
    return [len(request["entries"]) for request in sitewise.requests]


def ids(sitewise: SiteWiseEndpoint) -> list[list[str]]:
    return [[entry["entryId"][6:] for entry in request["entries"]] for request in sitewise.requests]


def test_every_message_is_an_entry(sitewise: SiteWiseEndpoint) -> None:
    payloads = [entry(number, value(content=number)) for number in range(25)]
    progress, error = put(payloads, first=3)
    assert error is None
    assert (progress.next, progress.messages) == (28, 25)
    assert progress.payload_bytes == sum(map(len, payloads))
    assert sizes(sitewise) == [10, 10, 5]
    assert sitewise.values == {(f"/line/{n}", NOW_S, 0, None): n for n in range(25)}


def test_batch_size_of_the_export(sitewise: SiteWiseEndpoint) -> None:
    put([entry(number) for number in range(5)], batchSize=2)
    assert sizes(sitewise) == [2, 2, 1]


def test_the_client_s_json_arrives_unchanged_but_for_nulls(sitewise: SiteWiseEndpoint) -> None:
    whole = {
        "entryId": "a_b-9",
        "assetId": ASSET,
        "propertyId": PROPERTY,
        "propertyValues": [
            value(kind="stringValue", content="größe"),
            value(NOW_S + 1, -7, "integerValue", quality="BAD"),
            value(NOW_S + 2, True, "booleanValue", quality="UNCERTAIN"),
            value(NOW_S + 3, 0.1),
            value(NOW_S + 4, {"valueType": "D"}, "nullValue", quality="BAD"),
        ],
    }
    whole["propertyValues"][0]["timestamp"]["offsetInNanos"] = 999_999_999
    payload = json.dumps({**whole, "propertyAlias": None}).encode()
    progress, error = put([payload])
    assert (progress.next, error) == (1, None)
    assert sitewise.requests[0]["entries"] == [whole]


def test_members_newer_than_the_model_are_passed_on(
    sitewise: SiteWiseEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress, _ = put([entry(0, {**value(), "novelty": {"x": 1}})])
    assert sitewise.requests[0]["entries"][0]["propertyValues"][0]["novelty"] == {"x": 1}
    assert progress.skips.keys() == {0}, "the endpoint's model does not know it"
    assert any("novelty" in problem for problem in sitewise.problems)
    sitewise.problems.clear()


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"not JSON", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "must be a JSON object"),
        (entry(0, entryId=...), "entryId"),
        (entry(0, entryId=""), "entryId"),
        (entry(0, entryId="a" * 65), "entryId"),
        (entry(0, entryId="a b"), "entryId"),
        (entry(0, entryId="a\n"), "entryId"),
        (entry(0, entryId=1), "entryId"),
        (entry(0, propertyAlias=...), "propertyAlias"),
        (entry(0, propertyAlias=None), "propertyAlias"),
        (entry(0, propertyAlias=..., assetId=ASSET), "propertyAlias"),
        (entry(0, propertyAlias="a" * 2049), "propertyAlias"),
        (entry(0, propertyAlias="a\tb"), "propertyAlias"),
        (entry(0, propertyAlias=..., assetId=1, propertyId=PROPERTY), "assetId"),
        (entry(0, propertyValues=...), "propertyValues"),
        (entry(0, propertyValues=[]), "propertyValues"),
        (entry(0, propertyValues=[1]), "propertyValues"),
        (entry(0, *[value(NOW_S + n) for n in range(11)]), "propertyValues"),
        (entry(0, {"timestamp": {"timeInSeconds": 1}}), "value"),
        (entry(0, {**value(), "value": {"doubleValue": 1, "integerValue": 1}}), "exactly one"),
        (entry(0, {**value(), "value": {}}), "exactly one"),
        (entry(0, value(content="", kind="stringValue")), "stringValue"),
        (entry(0, value(content="a" * 1025, kind="stringValue")), "stringValue"),
        (entry(0, value(content="a\x7f", kind="stringValue")), "stringValue"),
        (entry(0, value(content=2**31, kind="integerValue")), "integerValue"),
        (entry(0, value(content=1.5, kind="integerValue")), "integerValue"),
        (entry(0, value(content=True, kind="integerValue")), "integerValue"),
        (entry(0, value(content="1.5")), "doubleValue"),
        (entry(0, value(content=True)), "doubleValue"),
        (entry(0, value(content=1, kind="booleanValue")), "booleanValue"),
        (entry(0, {"value": {"doubleValue": 1}}), "timestamp"),
        (entry(0, {**value(), "timestamp": {}}), "timeInSeconds"),
        (entry(0, value(0)), "timeInSeconds"),
        (entry(0, value(31_556_889_864_403_200)), "timeInSeconds"),
        (
            entry(0, {**value(), "timestamp": {"timeInSeconds": NOW_S, "offsetInNanos": 10**9}}),
            "offsetInNanos",
        ),
        (entry(0, {**value(), "quality": "FINE"}), "quality"),
        (entry(0, {**value(), "quality": ["GOOD"]}), "quality"),
    ],
)
def test_what_is_no_entry_is_skipped(sitewise: SiteWiseEndpoint, payload: bytes, reason: str) -> None:
    progress, error = put([entry(1), payload, entry(2)])
    assert error is None
    assert (progress.next, progress.messages) == (3, 2)
    assert progress.skips.keys() == {1}
    assert reason in progress.skips[1]
    assert ids(sitewise) == [["1", "2"]]


def test_nothing_but_wrong_messages_makes_no_call(sitewise: SiteWiseEndpoint) -> None:
    progress, error = put([b"1"] * 25)
    assert error is None
    assert (progress.next, len(progress.skips), sitewise.requests) == (25, 25, [])


def test_the_same_entry_id_is_not_sent_twice_in_a_call(sitewise: SiteWiseEndpoint) -> None:
    progress, error = put([entry(0, alias=f"/{n}", entryId="entry-x") for n in range(3)] + [entry(4)])
    assert (progress.messages, error) == (4, None)
    assert ids(sitewise) == [["x"], ["x"], ["x", "4"]]


def test_the_same_instant_of_a_property_is_not_sent_twice_in_a_call(sitewise: SiteWiseEndpoint) -> None:
    by_id = {"propertyAlias": ..., "assetId": ASSET, "propertyId": PROPERTY}
    payloads = [
        entry(0, value(content=0), alias="/same"),
        entry(1, value(NOW_S + 1, content=1), alias="/same"),
        entry(2, value(NOW_S + 2), value(content=2), alias="/same"),
        entry(3, value(content=3), alias="/other"),
        entry(4, value(content=4), **by_id),
        entry(5, value(content=5), **by_id),
    ]
    progress, error = put(payloads)
    assert (progress.messages, error) == (6, None)
    assert ids(sitewise) == [["0", "1"], ["2", "3", "4"], ["5"]]
    assert sitewise.values["/same", NOW_S, 0, None] == 2
    assert sitewise.values[(ASSET, PROPERTY), NOW_S, 0, None] == 5


def test_two_values_for_one_instant_in_a_message_are_sent_in_turn(sitewise: SiteWiseEndpoint) -> None:
    twice = entry(1, value(content=1, quality="GOOD"), value(content=2, quality="BAD"), alias="/twice")
    progress, error = put([entry(0), twice, entry(2)])
    assert (progress.messages, error) == (3, None)
    assert ids(sitewise) == [["0", "1"], ["1", "2"]]
    assert sitewise.values["/twice", NOW_S, 0, "GOOD"] == 1
    assert sitewise.values["/twice", NOW_S, 0, "BAD"] == 2


@pytest.mark.parametrize("code", ["InvalidRequestException", "TimestampOutOfRangeException"])
def test_entries_that_the_service_calls_wrong_are_skipped(sitewise: SiteWiseEndpoint, code: str) -> None:
    sitewise.errors = {"entry-1": [code]}
    progress, error = put([entry(number) for number in range(3)])
    assert error is None
    assert (progress.next, progress.messages, progress.skips) == (3, 2, {1: f"{code}: arranged"})
    assert sizes(sitewise) == [3]


def test_values_out_of_the_range_of_time_leave_the_others_be(sitewise: SiteWiseEndpoint) -> None:
    week_s = 7 * 86_400
    progress, error = put([entry(0), entry(1, value(NOW_S - week_s - 60), value(NOW_S)), entry(2)])
    assert error is None
    assert progress.messages == 2
    assert "TimestampOutOfRange" in progress.skips[1]
    assert all(request["enablePartialEntryProcessing"] for request in sitewise.requests)
    assert sitewise.values.keys() == {(f"/line/{number}", NOW_S, 0, None) for number in range(3)}


@pytest.mark.parametrize(
    "code",
    [
        "InternalFailureException",
        "ServiceUnavailableException",
        "ThrottlingException",
        "LimitExceededException",
        "ConflictingOperationException",
    ],
)
def test_only_failed_entries_are_sent_again(sitewise: SiteWiseEndpoint, code: str) -> None:
    sitewise.errors = {"entry-1": [code], "entry-3": [code, code]}
    progress, error = put([entry(number) for number in range(5)])
    assert error is None
    assert progress.messages == 5
    sent = [number for call in ids(sitewise) for number in call]
    assert [sent.count(str(number)) for number in range(5)] == [1, 2, 1, 3, 1]


def test_conflicting_entries_are_sent_apart_the_next_time(sitewise: SiteWiseEndpoint) -> None:
    code = "ConflictingOperationException"
    sitewise.errors = {"entry-1": [code], "entry-2": [code]}
    progress, error = put([entry(number) for number in range(4)])
    assert (progress.messages, error) == (4, None)
    assert ids(sitewise) == [["0", "1", "2", "3"], ["1"], ["2"]]


@pytest.mark.parametrize("code", ["ResourceNotFoundException", "AccessDeniedException"])
def test_what_needs_help_waits_with_the_planner(sitewise: SiteWiseEndpoint, code: str) -> None:
    sitewise.errors = {"entry-2": [code] * 9}
    progress, error = put([entry(number) for number in range(15)])
    assert (progress.next, progress.messages) == (2, 2)
    assert error is not None
    assert not error.permanent
    assert str(error) == f"entry entry-2: {code}: arranged"
    assert sizes(sitewise) == [10]


@pytest.mark.parametrize("code", ["ResourceNotFoundException", "AccessDeniedException"])
def test_what_needs_help_is_skipped_if_so_set(sitewise: SiteWiseEndpoint, code: str) -> None:
    sitewise.errors = {"entry-2": [code] * 9}
    progress, error = put([entry(number) for number in range(15)], options=SKIPPING)
    assert error is None
    assert (progress.next, progress.messages, progress.skips) == (15, 14, {2: f"{code}: arranged"})
    assert sizes(sitewise) == [10, 5]


def test_a_call_that_is_denied_is_not_skipped_even_so(sitewise: SiteWiseEndpoint) -> None:
    """It is about the credentials, and would take every message with it."""
    sitewise.arrange(refusal("AccessDeniedException", 403))
    progress, error = put([entry(0)], options=SKIPPING)
    assert progress.calls == 0
    assert "AccessDeniedException" in str(error)


def test_only_the_beginning_without_a_hole_is_confirmed(sitewise: SiteWiseEndpoint) -> None:
    sitewise.errors = {"entry-4": ["ThrottlingException"] * 9}
    progress, error = put([b"wrong" if number == 1 else entry(number) for number in range(8)])
    assert (progress.next, progress.messages, list(progress.skips)) == (4, 3, [1])
    assert "ThrottlingException" in str(error)
    assert sizes(sitewise) == [7, 1, 1]


def test_a_call_that_is_refused_is_taken_apart(sitewise: SiteWiseEndpoint) -> None:
    def refuse_bad(request: dict[str, Any]) -> tuple[int, dict[str, Any]] | None:
        bad = any(entry["entryId"] == "entry-2" for entry in request["entries"])
        return refusal("InvalidRequestException") if bad else None

    sitewise.arranged.extend([refuse_bad] * 5)
    progress, error = put([entry(number) for number in range(4)])
    assert error is None
    assert (progress.messages, list(progress.skips)) == (3, [2])
    assert ids(sitewise) == [["0", "1", "2", "3"], ["0"], ["1"], ["2"], ["3"]]


def test_a_throttled_call_is_tried_again(sitewise: SiteWiseEndpoint) -> None:
    sitewise.arrange(*[refusal("ThrottlingException", 429)] * 3)
    progress, error = put([entry(0), entry(1)])
    assert (progress.messages, error) == (2, None)


def test_messages_before_a_failed_call_of_the_same_batch_are_confirmed(sitewise: SiteWiseEndpoint) -> None:
    sitewise.arrange(None, refusal("AccessDeniedException", 403), refusal("AccessDeniedException", 403))
    progress, error = put([entry(number, alias="/same") for number in range(3)])
    assert (progress.next, progress.messages) == (1, 1)
    assert "AccessDeniedException" in str(error)


def test_a_message_of_which_a_part_failed_is_not_confirmed(sitewise: SiteWiseEndpoint) -> None:
    sitewise.arrange(None, refusal("AccessDeniedException", 403), refusal("AccessDeniedException", 403))
    progress, error = put([entry(0), entry(1, value(content=1), value(content=2)), entry(2)])
    assert (progress.next, progress.messages) == (1, 1)
    assert "AccessDeniedException" in str(error)


def test_endpoint_that_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    progress, error = put([entry(0)])
    assert progress.calls == 0
    assert error is not None
    assert not error.permanent
