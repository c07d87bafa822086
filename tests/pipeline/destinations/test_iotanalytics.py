"""IoT Analytics, against an endpoint with the service's old interface."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.model import ExportKind
from penstock.pipeline.destinations import answers
from pipeline.destinations.aws_endpoint import Answer, ModelEndpoint, refusal, serving
from pipeline.destinations.recording import NONCE, Recording, deliver


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[ModelEndpoint, str]]:
    endpoint = ModelEndpoint("iotanalytics", "BatchPutMessage")
    with serving(endpoint) as url:
        yield endpoint, url


@pytest.fixture
def analytics(served: tuple[ModelEndpoint, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelEndpoint]:
    endpoint, url = served
    endpoint.reset()
    monkeypatch.setenv("AWS_ENDPOINT_URL_IOTANALYTICS", url)
    monkeypatch.setattr(answers, "RETRY_WAITS_S", (0.01, 0.01))
    yield endpoint
    assert not endpoint.problems


def put(payloads: list[bytes], **settings: Any) -> tuple[Recording, Any]:
    return deliver(ExportKind.IOT_ANALYTICS, payloads, iotChannel="channel_1", **settings)


def failing(code: str, *suffixes: str) -> Any:
    """An answer that refuses the messages whose ids end so."""

    def answer(request: dict[str, Any]) -> Answer:
        entries = [
            {"messageId": message["messageId"], "errorCode": code, "errorMessage": "arranged"}
            for message in request["messages"]
            if message["messageId"].endswith(suffixes)
        ]
        return 200, {"batchPutMessageErrorEntries": entries}

    return answer


def test_messages_with_unique_ids(analytics: ModelEndpoint) -> None:
    payloads = [b"%d \xff" % number for number in range(250)]
    progress, error = put(payloads, first=5, iotMsgIdPrefix="plant-" * 5)
    assert error is None
    assert (progress.next, progress.messages) == (255, 250)
    assert [len(request["messages"]) for request in analytics.requests] == [100, 100, 50]
    messages = [message for request in analytics.requests for message in request["messages"]]
    assert [base64.b64decode(message["payload"]) for message in messages] == payloads
    assert len({message["messageId"] for message in messages}) == 250
    assert messages[0]["messageId"] == "plant-" * 5 + NONCE + "-5"
    assert {request["channelName"] for request in analytics.requests} == {"channel_1"}


def test_a_repeat_has_the_same_ids(analytics: ModelEndpoint) -> None:
    put([b"a", b"b"])
    put([b"a", b"b"])
    assert analytics.requests[0] == analytics.requests[1]


def test_batch_size_of_the_export(analytics: ModelEndpoint) -> None:
    put([b"x"] * 5, batchSize=2)
    assert [len(request["messages"]) for request in analytics.requests] == [2, 2, 1]


def test_only_failed_messages_are_sent_again(analytics: ModelEndpoint) -> None:
    analytics.arranged.append(failing("ThrottlingException", "-1", "-3"))
    progress, error = put([b"%d" % number for number in range(5)])
    assert (progress.messages, error) == (5, None)
    sent = [[base64.b64decode(m["payload"]) for m in request["messages"]] for request in analytics.requests]
    assert sent == [[b"0", b"1", b"2", b"3", b"4"], [b"1", b"3"]]


def test_only_the_beginning_without_a_hole_is_confirmed(analytics: ModelEndpoint) -> None:
    analytics.arranged.extend([failing("InternalFailureException", "-3")] * 3)
    progress, error = put([b"x"] * 5)
    assert (progress.next, progress.messages) == (3, 3)
    assert str(error) == "channel channel_1: InternalFailureException: arranged"


def test_invalid_messages_are_skipped(analytics: ModelEndpoint) -> None:
    analytics.arranged.append(failing("InvalidRequestException", "-1"))
    progress, error = put([b"x"] * 3)
    assert error is None
    assert (progress.messages, progress.skips) == (2, {1: "InvalidRequestException: arranged"})


def test_a_missing_channel(analytics: ModelEndpoint) -> None:
    analytics.arrange(refusal("ResourceNotFoundException", 404))
    progress, error = put([b"x"])
    assert progress.calls == 0
    assert "channel channel_1: ResourceNotFoundException" in str(error)


def test_a_throttled_call_is_tried_again(analytics: ModelEndpoint) -> None:
    analytics.arrange(*[refusal("ServiceUnavailableException", 503)] * 3)
    progress, error = put([b"x"])
    assert (progress.messages, error) == (1, None)


def test_the_general_endpoint_serves_too(
    served: tuple[ModelEndpoint, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint, url = served
    endpoint.reset()
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    progress, error = put([b"x"])
    assert (progress.messages, error) == (1, None)


def test_without_an_endpoint_the_export_says_what_to_do() -> None:
    progress, error = put([b"x"])
    assert progress.calls == 0
    assert error is not None
    assert error.permanent
    assert "AWS_ENDPOINT_URL_IOTANALYTICS" in str(error)
