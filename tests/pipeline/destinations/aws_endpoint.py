"""Loopback endpoints that stand for AWS: requests are held against the service model, answers can be arranged."""

from __future__ import annotations

import base64
import http.client
import json
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import botocore.session
from botocore.model import ListShape, Shape, StructureShape
from botocore.validate import ParamValidator

from penstock.pipeline.aws import MODELS

Answer = tuple[int, dict[str, Any]]


def refusal(code: str, status: int = 400, text: str = "as the test wants it") -> Answer:
    return status, {"__type": code, "message": text}


class Endpoint:
    """A server in a thread. `arranged` answers come first, in order; None among them means: as usual."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.problems: list[str] = []
        self.arranged: deque[Callable[[dict[str, Any]], Answer | None]] = deque()

    def reset(self) -> None:
        """Forget everything: endpoints outlive tests, because clients take long to make."""
        self.requests.clear()
        self.problems.clear()
        self.arranged.clear()

    def arrange(self, *answers: Answer | None) -> None:
        self.arranged.extend((lambda body, answer=answer: answer) for answer in answers)

    def answer(self, path: str, headers: dict[str, str], body: bytes) -> Answer:
        raise NotImplementedError

    def _next_arranged(self, body: dict[str, Any]) -> Answer | None:
        return self.arranged.popleft()(body) if self.arranged else None


class ModelEndpoint(Endpoint):
    """One operation of a service with a REST-JSON model."""

    def __init__(self, service: str, operation: str) -> None:
        super().__init__()
        session = botocore.session.get_session()
        session.get_component("data_loader").search_paths.append(str(MODELS))
        self.operation = session.get_service_model(service).operation_model(operation)
        self.service = service

    def answer(self, path: str, headers: dict[str, str], body: bytes) -> Answer:
        assert path == self.operation.http["requestUri"], path
        assert f"/{self.service}/aws4_request" in headers["authorization"]
        request = json.loads(body)
        self.requests.append(request)
        wrong = problems_of(request, self.operation.input_shape)
        self.problems += wrong
        if wrong:
            return refusal("InvalidRequestException", text="; ".join(wrong))
        return self._next_arranged(request) or self.serve(request)

    def serve(self, request: dict[str, Any]) -> Answer:
        return 200, {}


class SiteWiseEndpoint(ModelEndpoint):
    """Keeps values like the service: by property, instant and quality."""

    def __init__(self) -> None:
        super().__init__("iotsitewise", "BatchPutAssetPropertyValue")
        self.reset()

    def reset(self) -> None:
        super().reset()
        self.values: dict[tuple[object, ...], object] = {}
        self.errors: dict[str, list[str]] = {}  # codes to answer for an entry, one a call

    def serve(self, request: dict[str, Any]) -> Answer:
        entries = request["entries"]
        if not 1 <= len(entries) <= 10 or any(len(entry["propertyValues"]) > 10 for entry in entries):
            return refusal("InvalidRequestException", text="too many entries or values")
        ids = [entry["entryId"] for entry in entries]
        instants = [key[:-1] for entry in entries for key in self._keyed(entry)]
        if len(set(ids)) < len(ids) or len(set(instants)) < len(instants):
            return refusal("ConflictingOperationException", 409)
        found = [self._serve_entry(entry) for entry in entries]
        return 200, {"errorEntries": [errors for errors in found if errors]}

    def _serve_entry(self, entry: dict[str, Any]) -> dict[str, Any] | None:
        arranged = self.errors.get(entry["entryId"])
        errors = []
        if arranged:
            errors.append({"errorCode": arranged.pop(0), "errorMessage": "arranged", "timestamps": []})
        else:
            for value in entry["propertyValues"]:
                age_s = time.time() - value["timestamp"]["timeInSeconds"]
                if -600 <= age_s <= 7 * 86_400:
                    self.values |= self._keyed({**entry, "propertyValues": [value]})
                else:
                    code = "TimestampOutOfRangeException"
                    errors.append({"errorCode": code, "errorMessage": "", "timestamps": [value["timestamp"]]})
        return {"entryId": entry["entryId"], "errors": errors} if errors else None

    def _keyed(self, entry: dict[str, Any]) -> dict[tuple[object, ...], object]:
        name = entry.get("propertyAlias") or (entry["assetId"], entry["propertyId"])
        return {
            (
                name,
                value["timestamp"]["timeInSeconds"],
                value["timestamp"].get("offsetInNanos", 0),
                value.get("quality"),
            ): next(iter(value["value"].values()))
            for value in entry["propertyValues"]
        }


class FaultyKinesis(Endpoint):
    """In front of a real emulator: passes everything on, unless the test has arranged something else."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._address = urlsplit(url).netloc
        self.reset()

    def reset(self) -> None:
        super().reset()
        self.list_shards_answer: Answer | None = None
        self.records_refused: Callable[[dict[str, Any]], str | None] = lambda record: None

    def answer(self, path: str, headers: dict[str, str], body: bytes) -> Answer:
        operation = headers["x-amz-target"].rpartition(".")[2]
        request = json.loads(body)
        if operation == "ListShards" and self.list_shards_answer is not None:
            return self.list_shards_answer
        if operation != "PutRecords":
            return self._pass_on(path, headers, request)
        self.requests.append(request)
        arranged = self._next_arranged(request)
        if arranged is not None:
            return arranged
        codes = [self.records_refused(record) for record in request["Records"]]
        taken = [record for record, code in zip(request["Records"], codes, strict=True) if code is None]
        status, answer = 200, {"Records": []}
        if taken:
            status, answer = self._pass_on(path, headers, {**request, "Records": taken})
        if status != 200:
            return status, answer
        answers = iter(answer["Records"])
        merged = [
            {"ErrorCode": code, "ErrorMessage": "arranged"} if code else next(answers) for code in codes
        ]
        return 200, {"FailedRecordCount": len(codes) - len(taken), "Records": merged}

    def _pass_on(self, path: str, headers: dict[str, str], request: dict[str, Any]) -> Answer:
        connection = http.client.HTTPConnection(self._address, timeout=30)
        kept = {name: headers[name] for name in ("authorization", "content-type", "x-amz-target")}
        try:
            connection.request("POST", path, json.dumps(request), kept)
            response = connection.getresponse()
            return response.status, json.loads(response.read() or b"{}")
        finally:
            connection.close()


@contextmanager
def serving(endpoint: Endpoint) -> Iterator[str]:
    """The address of an endpoint while it is served."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, answer = endpoint.answer(self.path, headers, body)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            if "__type" in answer:
                self.send_header("x-amzn-errortype", answer["__type"])
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def problems_of(request: dict[str, Any], shape: StructureShape) -> list[str]:
    """What the service model has against a request, unknown members and limits included."""
    request = with_blobs(request, shape)
    report = ParamValidator().validate(request, shape)
    return ([report.generate_report()] if report.has_errors() else []) or limits_broken(request, shape)


def with_blobs(value: Any, shape: Shape) -> Any:
    if shape.type_name == "blob":
        return base64.b64decode(value, validate=True)
    if isinstance(shape, StructureShape) and isinstance(value, dict):
        members = shape.members
        return {name: with_blobs(member, members[name]) if name in members else member
                for name, member in value.items()}  # fmt: skip
    if isinstance(shape, ListShape) and isinstance(value, list):
        return [with_blobs(member, shape.member) for member in value]
    return value


def limits_broken(value: Any, shape: Shape, name: str = "request") -> list[str]:
    """botocore checks types and lower limits only."""
    if isinstance(shape, StructureShape):
        unknown = [f"{name}.{key} is unknown" for key in value if key not in shape.members]
        return unknown + [
            problem
            for key, member in value.items()
            if key in shape.members
            for problem in limits_broken(member, shape.members[key], f"{name}.{key}")
        ]
    if isinstance(shape, ListShape):
        return [problem for member in value for problem in limits_broken(member, shape.member, f"{name}[]")]
    size = len(value) if isinstance(value, (str, bytes)) else value
    broken = []
    if shape.metadata.get("max") is not None and size > shape.metadata["max"]:
        broken.append(f"{name} is above {shape.metadata['max']}")
    if "pattern" in shape.metadata and not re.search(shape.metadata["pattern"], value):
        broken.append(f"{name} does not match {shape.metadata['pattern']}")
    if getattr(shape, "enum", None) and value not in shape.enum:
        broken.append(f"{name} is none of {shape.enum}")
    return broken
