"""Functions that transform records: as Python callables, behind an address, and behind Lambda's own API."""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import unquote

import botocore.session
from botocore.validate import ParamValidator

from penstock.delivery.settings import DeliverySettings
from penstock.pipeline.records.record import Record
from pipeline.destinations.aws_endpoint import limits_broken

ARN = "arn:aws:lambda:eu-west-1:123456789012:function:upper"
DELIVERY_ARN = "arn:aws:firehose:eu-west-1:123456789012:deliverystream/orders"

Event = dict[str, Any]
Handler = Callable[[Event], Any]


def delivery_settings(config: dict[str, Any] | None = None, arn: str = DELIVERY_ARN) -> DeliverySettings:
    name = arn.rpartition("/")[2]
    return DeliverySettings(
        arn, name, "123456789012", "eu-west-1", "1", 5 << 20, 60_000, "ExtendedS3", config or {}
    )


def records_of(*payloads: bytes, first: int = 0) -> list[Record]:
    return [
        Record(number, 1_700_000_000_000 + number, data, data) for number, data in enumerate(payloads, first)
    ]


def answered(record: Event, result: str = "Ok", data: bytes | None = None, **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = {"recordId": record["recordId"], "result": result, **more}
    if data is not None:
        answer["data"] = base64.b64encode(data).decode()
    return answer


def upper(event: Event, context: object = None) -> dict[str, Any]:
    """The usual shape of a function."""
    records = [answered(record, data=base64.b64decode(record["data"]).upper()) for record in event["records"]]
    return {"records": records}


class Reply(NamedTuple):
    """An answer other than a plain 200."""

    status: int
    body: bytes
    headers: dict[str, str] = {}  # noqa: RUF012


class Functions:
    """A server whose functions the test sets, by path. Takes events as they are posted."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {}
        self.events: list[Event] = []
        self.authorizations: list[str | None] = []
        self.url = ""
        self._lock = threading.Lock()
        self.running = 0
        self.running_most = 0

    def answer(self, path: str, headers: dict[str, str], body: bytes) -> Reply:
        event = json.loads(body)
        with self._lock:
            self.events.append(event)
            self.authorizations.append(headers.get("authorization"))
        return self._call(self.handlers[path], event)

    def _call(self, handler: Handler, event: Event) -> Reply:
        with self._lock:
            self.running += 1
            self.running_most = max(self.running, self.running_most)
        try:
            answer = handler(event)
        finally:
            with self._lock:
                self.running -= 1
        return answer if isinstance(answer, Reply) else Reply(200, json.dumps(answer).encode())


class LambdaApi(Functions):
    """Lambda's Invoke, every request held against the service model. Handlers by function name."""

    def __init__(self) -> None:
        super().__init__()
        service = botocore.session.get_session().get_service_model("lambda")
        self.operation = service.operation_model("Invoke")
        self.problems: list[str] = []
        self.regions: list[str] = []

    def answer(self, path: str, headers: dict[str, str], body: bytes) -> Reply:
        pattern = re.escape(self.operation.http["requestUri"]).replace(r"\{FunctionName\}", "([^/]+)")
        match = re.fullmatch(pattern, path)
        assert match is not None, path
        request: dict[str, Any] = {"FunctionName": unquote(match[1]), "Payload": body}
        for header, member in (
            ("x-amz-invocation-type", "InvocationType"),
            ("x-amz-log-type", "LogType"),
        ):
            if header in headers:
                request[member] = headers[header]
        self._check(request, headers)
        event = json.loads(body)
        name = request["FunctionName"].split(":function:")[-1].partition(":")[0]
        with self._lock:
            self.events.append(event)
        if name not in self.handlers:
            return refusal(404, "ResourceNotFoundException", f"Function not found: {request['FunctionName']}")
        return self._call(self.handlers[name], event)

    def _check(self, request: dict[str, Any], headers: dict[str, str]) -> None:
        report = ParamValidator().validate(request, self.operation.input_shape)
        self.problems += [report.generate_report()] if report.has_errors() else []
        self.problems += limits_broken(request, self.operation.input_shape)
        scope = re.search(r"Credential=[^/]+/\d{8}/([\w-]+)/lambda/aws4_request", headers["authorization"])
        assert scope is not None, headers["authorization"]
        self.regions.append(scope[1])
        if len(request["Payload"]) > 6 * 1024 * 1024:
            self.problems.append("the payload is too large")


def function_error(message: str, kind: str = "RuntimeError") -> Reply:
    body = json.dumps({"errorMessage": message, "errorType": kind}).encode()
    return Reply(200, body, {"X-Amz-Function-Error": "Unhandled"})


def refusal(status: int, code: str, message: str) -> Reply:
    return Reply(status, json.dumps({"Message": message}).encode(), {"x-amzn-errortype": code})


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


@contextmanager
def serving(functions: Functions) -> Iterator[str]:
    class HttpHandler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = functions.answer(self.path, headers, body)
            self.send_response(reply.status)
            self.send_header("content-length", str(len(reply.body)))
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply.body)

        def handle(self) -> None:
            try:
                super().handle()
            except OSError:  # whoever asked did not wait for the answer
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = _Server(("127.0.0.1", 0), HttpHandler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    functions.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield functions.url
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


# -- Python callables for the table -----------------------------------------------------------------

contexts: list[Any] = []


def remembering_context(event: Event, context: Any) -> dict[str, Any]:
    contexts.append((event, context, context.get_remaining_time_in_millis()))
    return upper(event)


def raising(event: Event, context: object) -> None:
    raise KeyError("customer")


def exiting(event: Event, context: object) -> None:
    raise SystemExit(3)


def sleeping(event: Event, context: Any) -> None:
    time.sleep(context.get_remaining_time_in_millis() / 1000 + 1)


def timing_out(event: Event, context: object) -> None:
    raise TimeoutError("the database")


def raising_what_is_no_text(event: Event, context: object) -> None:
    raise ValueError("\ud800" + "x" * 1_000_000)


def answering_bytes(event: Event, context: object) -> dict[str, Any]:
    return {
        "records": [
            {"recordId": record["recordId"], "result": "Ok", "data": b""} for record in event["records"]
        ]
    }


def answering_what_is_no_text(event: Event, context: object) -> dict[str, Any]:
    keys = {"partitionKeys": {"\ud800": "x"}}
    return {"records": [answered(record, data=b"", metadata=keys) for record in event["records"]]}


def answering_too_much(event: Event, context: object) -> dict[str, Any]:
    return {"records": [answered(record, data=bytes(5 * 1024 * 1024)) for record in event["records"]]}


not_a_function = "text"
