"""Where functions are: an address, a Python callable, Lambda's own API; and which of them it is."""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.pipeline.destinations.base import DeliveryFailed, PipelineSettings
from penstock.pipeline.records.processors.lambda_event import Event as LambdaEvent
from penstock.pipeline.records.processors.lambda_event import EventRecord, InvocationFailed
from penstock.pipeline.records.processors.lambda_function import LambdaFunction
from penstock.pipeline.records.processors.lambda_table import check_target, find_target, function_for
from pipeline.records import functions as callables
from pipeline.records.functions import (
    ARN,
    Event,
    Functions,
    Handler,
    LambdaApi,
    Reply,
    answered,
    delivery_settings,
    function_error,
    records_of,
    refusal,
    upper,
)

EVENT = LambdaEvent("id", "arn", "eu-west-1", [EventRecord("1", 2, b"abc")])


def invoke(target: str | None, arn: str = ARN, timeout_s: float = 10.0) -> object:
    lambdas = {} if target is None else {arn: target}
    return function_for(arn, PipelineSettings(lambdas=lambdas, lambda_timeout_s=timeout_s)).invoke(EVENT)


def problem_of(target: str | None, **options: Any) -> str:
    with pytest.raises(InvocationFailed) as raised:
        invoke(target, **options)
    return str(raised.value)


def waiting() -> tuple[Handler, threading.Event]:
    """A function that does not answer until the event is set."""
    release = threading.Event()

    def handler(event: Event) -> dict[str, Any]:
        release.wait(10)
        return upper(event)

    return handler, release


# -- the table --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "target"),
    [
        ({f"{ARN}:live": "1", ARN: "2", "upper": "3"}, "1"),
        ({ARN: "2", "upper": "3"}, "2"),
        ({"upper": "3"}, "3"),
        ({"other": "4", f"{ARN}:old": "5"}, None),
        ({}, None),
    ],
)
def test_the_most_exact_name_wins(table: dict[str, str], target: str | None) -> None:
    assert find_target(f"{ARN}:live", table) == target


def test_a_lambda_arn_that_is_none_can_still_stand_in_the_table() -> None:
    assert find_target("my-function", {"my-function": "x"}) == "x"


@pytest.mark.parametrize(
    "target",
    ["https://f.example/a?b=c", "http://user:secret@127.0.0.1:9000/", "python:m:f", "python:a.b.c:D.e"],
)
def test_targets_that_may_be(target: str) -> None:
    check_target("f", target)


NO_ADDRESSES = ["f.example", "ftp://f.example", "https://", "http://h:x", "http://user:secret@h:99999"]
NO_FUNCTIONS = ["python:m", "python::f", "python:m:", "python:m:f()", "python:m f:g"]


@pytest.mark.parametrize("target", [*NO_ADDRESSES, *NO_FUNCTIONS])
def test_targets_that_may_not_be(target: str) -> None:
    with pytest.raises(
        ConfigError, match=r"the function for enrich .* python:package\.module:function"
    ) as raised:
        check_target("enrich", target)
    assert "secret" not in str(raised.value)


def test_the_pipeline_does_not_start_with_a_target_that_may_not_be(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock", "pipeline", "--lambdas", '{"enrich": "functions.enrich"}']
    finished = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False)
    assert finished.returncode != 0
    assert "the function for enrich is neither an address nor a Python function" in finished.stderr
    assert "Traceback" not in finished.stderr


# -- an address -------------------------------------------------------------------------------------


def test_the_event_is_posted_and_the_connection_kept(functions: Functions) -> None:
    functions.handlers["/path/f?x=1"] = upper
    url = functions.url.replace("http://", "http://me:pass%20word@") + "/path/f?x=1"
    for _ in range(3):
        assert invoke(url) == {"records": [{"recordId": "1", "result": "Ok", "data": "QUJD"}]}
    assert functions.events[0] == {
        "invocationId": "id",
        "deliveryStreamArn": "arn",
        "region": "eu-west-1",
        "records": [{"recordId": "1", "approximateArrivalTimestamp": 2, "data": "YWJj"}],
    }
    assert functions.authorizations[0] == "Basic " + base64.b64encode(b"me:pass word").decode()


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (Reply(500, b"<html>"), "answered 500 Internal Server Error"),
        (Reply(404, b'{"errorMessage": "no such thing"}'), "answered 404 Not Found: no such thing"),
        (Reply(302, b"", {"location": "/elsewhere"}), "answered 302 Found"),
        (function_error("boom", "ValueError"), "ValueError: boom"),
        (Reply(200, b'{"errorMessage": "boom", "errorType": "E", "stackTrace": []}'), "E: boom"),
        (Reply(200, b"x", {"X-Amz-Function-Error": "Unhandled"}), ""),
    ],
)
def test_answers_that_are_failures(functions: Functions, reply: Reply, problem: str) -> None:
    functions.handlers["/f"] = lambda event: reply
    address = functions.url.replace("http://", "http://me:secret@")
    found = problem_of(f"{address}/f")
    assert problem in found
    assert "secret" not in found


def test_an_answer_that_is_not_json_is_none(functions: Functions) -> None:
    functions.handlers["/f"] = lambda event: Reply(200, b"<html>")
    assert invoke(f"{functions.url}/f") is None


def test_nobody_there_is_a_function_that_fails_without_a_word_of_the_secret() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        target = f"http://me:secret@127.0.0.1:{port}/f?token=hidden"
        problem = problem_of(target)
        assert problem.startswith(f"cannot post to http://127.0.0.1:{port}/f: ")
        assert "hidden" not in problem
        settings = PipelineSettings(lambdas={ARN: target})
        parameters = {"LambdaArn": ARN, "NumberOfRetries": "2"}
        made = LambdaFunction(parameters, delivery_settings(), settings, pause=lambda seconds: None)
        done, [failure] = made.process(records_of(b"a"))
    assert (done, failure.code, failure.attempts) == ([], "Lambda.FunctionError", 3)


def test_an_answer_that_does_not_come(functions: Functions) -> None:
    functions.handlers["/f"], release = waiting()
    assert "ReadTimeoutError" in problem_of(f"{functions.url}/f", timeout_s=0.2)
    release.set()


def test_an_answer_in_chunks() -> None:
    body = json.dumps({"records": []}).encode()
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:5], body[5:], b""))

    def answer(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(
                b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n" + chunks
            )

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        assert invoke(f"http://127.0.0.1:{listener.getsockname()[1]}/f") == {"records": []}
        thread.join()


def test_an_answer_that_trickles_in_is_given_up() -> None:
    stop = threading.Event()

    def trickle(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
            while not stop.wait(0.05):
                connection.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=trickle, args=(listener,))
        thread.start()
        try:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/f"
            assert problem_of(url, timeout_s=0.5).endswith("took longer than 0.5 s")
        finally:
            stop.set()
            thread.join()


# -- a Python callable ------------------------------------------------------------------------------

MODULE = "python:pipeline.records.functions"


def test_a_python_function_gets_event_and_context() -> None:
    callables.contexts.clear()
    assert invoke(f"{MODULE}:remembering_context", f"{ARN}:live") == {
        "records": [{"recordId": "1", "result": "Ok", "data": "QUJD"}]
    }
    [(event, context, remaining_ms)] = callables.contexts
    assert event == json.loads(
        '{"invocationId": "id", "deliveryStreamArn": "arn", "region": "eu-west-1", '
        '"records": [{"recordId": "1", "approximateArrivalTimestamp": 2, "data": "YWJj"}]}'
    )
    assert (context.function_name, context.invoked_function_arn) == ("upper", f"{ARN}:live")
    assert context.aws_request_id == "id"
    assert 9_000 < remaining_ms <= 10_000


@pytest.mark.parametrize(
    ("name", "problem"),
    [("raising", "KeyError: 'customer'"), ("exiting", "3"), ("timing_out", "TimeoutError: the database")],
)
def test_whatever_a_python_function_raises_is_its_failure(name: str, problem: str) -> None:
    assert problem in problem_of(f"{MODULE}:{name}")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("answering_bytes", "Object of type bytes is not JSON serializable"),
        ("answering_what_is_no_text", "surrogates not allowed"),
        ("answering_too_much", "is larger than 6291456 bytes"),
    ],
)
def test_a_python_function_answers_with_json_or_fails(name: str, problem: str) -> None:
    """As it would on AWS, and not later, where its records are named or written down."""
    assert problem in problem_of(f"{MODULE}:{name}")


def test_what_a_python_function_says_can_be_told_for_each_record() -> None:
    settings = PipelineSettings(lambdas={ARN: f"{MODULE}:raising_what_is_no_text"})
    parameters = {"LambdaArn": ARN, "NumberOfRetries": "0"}
    _, failed = LambdaFunction(parameters, delivery_settings(), settings).process(records_of(b"a", b"b"))
    assert [failure.message.encode().count(b"?xxx") for failure in failed] == [1, 1]
    assert max(len(failure.message) for failure in failed) < 500


def test_a_python_function_that_takes_too_long_is_left_behind() -> None:
    assert problem_of(f"{MODULE}:sleeping", timeout_s=0.1) == f"{MODULE}:sleeping took longer than 0.1 s"


@pytest.mark.parametrize(
    "target",
    ["python:no.such.module:f", f"{MODULE}:nothing", f"{MODULE}:not_a_function", f"{MODULE}:Reply.nothing"],
)
def test_a_python_function_that_is_not_there_fails_the_delivery_not_the_records(target: str) -> None:
    with pytest.raises(DeliveryFailed, match="correct PENSTOCK_LAMBDAS") as raised:
        invoke(target)
    assert raised.value.permanent


# -- Lambda's own API -------------------------------------------------------------------------------


def api_outcome(
    lambda_api: LambdaApi, handler: Any, arn: str = ARN, **parameters: str
) -> tuple[list[Any], list[Any]]:
    lambda_api.handlers["upper"] = handler
    settings = PipelineSettings(lambda_timeout_s=10)
    made = LambdaFunction(
        {"LambdaArn": arn, **parameters}, delivery_settings(), settings, pause=lambda seconds: None
    )
    return made.process(records_of(b"a", b"b"))


@pytest.mark.parametrize("arn", [ARN, f"{ARN}:live", f"{ARN}:$LATEST", ARN.replace("eu-west-1", "us-east-2")])
def test_lambda_is_invoked_in_the_region_of_the_function(lambda_api: LambdaApi, arn: str) -> None:
    done, failed = api_outcome(lambda_api, upper, arn)
    assert ([record.data for record in done], failed) == ([b"A", b"B"], [])
    assert lambda_api.problems == []
    assert lambda_api.regions == [arn.split(":")[3]]
    [event] = lambda_api.events
    assert event.keys() == {"invocationId", "deliveryStreamArn", "region", "records"}


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (function_error("boom", "ValueError"), "ValueError: boom"),
        (
            refusal(429, "TooManyRequestsException", "Rate Exceeded."),
            "TooManyRequestsException: Rate Exceeded.",
        ),
        (refusal(403, "AccessDeniedException", "not authorized"), "AccessDeniedException: not authorized"),
        (refusal(500, "ServiceException", "internal"), "ServiceException: internal"),
    ],
)
def test_lambda_that_fails_or_refuses_is_retried_as_often_as_configured(
    lambda_api: LambdaApi, reply: Reply, message: str
) -> None:
    done, failed = api_outcome(lambda_api, lambda event: reply, NumberOfRetries="2")
    assert not done
    assert [(f.code, f.attempts, f.lambda_arn) for f in failed] == [("Lambda.FunctionError", 3, ARN)] * 2
    assert message in failed[0].message
    # botocore's own retries would call the function more often than anybody wanted.
    assert len(lambda_api.events) == 3
    assert lambda_api.problems == []


def test_a_function_that_does_not_exist(lambda_api: LambdaApi) -> None:
    settings = PipelineSettings()
    parameters = {"LambdaArn": f"{ARN}s", "NumberOfRetries": "0"}
    made = LambdaFunction(parameters, delivery_settings(), settings)
    done, [failure] = made.process(records_of(b"a"))
    assert (done, failure.code, failure.attempts) == ([], "Lambda.FunctionError", 1)
    assert "ResourceNotFoundException" in failure.message


def test_lambda_without_credentials_follows_the_same_rule(
    lambda_api: LambdaApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    done, failed = api_outcome(lambda_api, upper, NumberOfRetries="1")
    assert not done
    assert [(f.code, f.attempts) for f in failed] == [("Lambda.FunctionError", 2)] * 2
    assert "no usable AWS credentials" in failed[0].message


def test_lambda_that_cannot_be_reached(lambda_api: LambdaApi, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", f"http://127.0.0.1:{unused.getsockname()[1]}")
        done, failed = api_outcome(lambda_api, upper, NumberOfRetries="1")
    assert (done, [failure.attempts for failure in failed]) == ([], [2, 2])
    assert "Could not connect" in failed[0].message


def test_lambda_that_answers_too_late(lambda_api: LambdaApi) -> None:
    lambda_api.handlers["upper"], release = waiting()
    assert "Read timeout" in problem_of(None, timeout_s=0.3)
    release.set()


def test_lambda_whose_answer_is_too_large_is_asked_in_parts(lambda_api: LambdaApi) -> None:
    def limited(event: Event) -> Any:
        if len(event["records"]) > 1:
            return function_error(
                "Response payload size exceeded maximum allowed payload size (6291556 bytes).",
                "Function.ResponseSizeTooLarge",
            )
        return {"records": [answered(record, data=b"x") for record in event["records"]]}

    done, failed = api_outcome(lambda_api, limited)
    assert ([record.data for record in done], failed) == ([b"x", b"x"], [])
    assert [len(event["records"]) for event in lambda_api.events] == [2, 1, 1]


def test_an_answer_beyond_the_limit_is_not_read(lambda_api: LambdaApi) -> None:
    lambda_api.handlers["upper"] = lambda event: Reply(200, b" " * (7 << 20) + b"{}")
    assert "larger than" in problem_of(None)


def test_lambda_that_answers_no_json(lambda_api: LambdaApi) -> None:
    _, failed = api_outcome(lambda_api, lambda event: Reply(200, b""))
    assert [(f.code, f.attempts) for f in failed] == [("Lambda.MissingRecordId", 1)] * 2
