"""A plain client of Firehose's protocol, which holds every answer to botocore's service model."""

from __future__ import annotations

import base64
import http.client
import json
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple

import botocore.parsers

from doors.firehose_model import MODEL

ROLE_ARN = "arn:aws:iam::123456789012:role/firehose"
BUCKET_ARN = "arn:aws:s3:::bucket"
S3: dict[str, Any] = {"RoleARN": ROLE_ARN, "BucketARN": BUCKET_ARN}
TIMEOUT_S = 30
DEADLINE_S = 10

_parser = botocore.parsers.create_parser("json")


class Answer(NamedTuple):
    status: int
    code: str  # empty if there is no error
    message: str
    json: dict[str, Any]


def record(data: bytes) -> dict[str, str]:
    return {"Data": base64.b64encode(data).decode()}


class FirehoseClient:
    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)

    def __enter__(self) -> FirehoseClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def call(self, operation: str, body: dict[str, Any]) -> Answer:
        headers = {
            "X-Amz-Target": f"Firehose_20150804.{operation}",
            "Content-Type": "application/x-amz-json-1.1",
        }
        self._connection.request("POST", "/", json.dumps(body).encode(), headers)
        response = self._connection.getresponse()
        content = response.read()
        assert response.headers["Content-Type"] == "application/x-amz-json-1.1"
        assert response.headers["x-amzn-RequestId"]
        decoded = json.loads(content)
        if response.status != 200:
            assert response.headers["x-amzn-ErrorType"] == decoded["__type"]
            return Answer(response.status, decoded["__type"], decoded["message"], decoded)
        _check_answer(operation, response, content, decoded)
        return Answer(200, "", "", decoded)

    def succeed(self, operation: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self.call(operation, body)
        assert answer.status == 200, (operation, body, answer)
        return answer.json

    def create(self, name: str) -> None:
        """The server must be one whose new streams are ACTIVE at once."""
        body = {"DeliveryStreamName": name, "ExtendedS3DestinationConfiguration": S3}
        self.succeed("CreateDeliveryStream", body)
        assert self.describe(name)["DeliveryStreamStatus"] == "ACTIVE"

    def describe(self, name: str) -> dict[str, Any]:
        answer = self.succeed("DescribeDeliveryStream", {"DeliveryStreamName": name})
        return dict(answer["DeliveryStreamDescription"])

    def put_batch(self, name: str, records: Sequence[bytes]) -> Answer:
        body = {"DeliveryStreamName": name, "Records": [record(data) for data in records]}
        answer = self.call("PutRecordBatch", body)
        assert answer.status == 200, answer
        return answer

    def wait_for(self, name: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline_s = time.monotonic() + DEADLINE_S
        while not condition(shown := self.describe(name)):
            assert time.monotonic() < deadline_s, shown
            time.sleep(0.02)
        return shown


def _check_answer(
    operation: str, response: http.client.HTTPResponse, content: bytes, decoded: dict[str, Any]
) -> None:
    """What botocore's parser finds in an answer is all there is in it, and what must be there is."""
    shape = MODEL.operation_model(operation).output_shape
    headers = {name.lower(): value for name, value in response.headers.items()}
    parsed = _parser.parse({"status_code": 200, "headers": headers, "body": content}, shape)
    assert parsed.pop("ResponseMetadata")["HTTPStatusCode"] == 200
    _check_shape(decoded, shape, operation)


def _check_shape(value: Any, shape: Any, path: str) -> None:
    if shape.type_name == "structure":
        unknown = value.keys() - shape.members.keys()
        missing = set(shape.required_members) - value.keys()
        assert not unknown | missing, (path, unknown, missing)
        for name, member in value.items():
            _check_shape(member, shape.members[name], f"{path}.{name}")
    elif shape.type_name == "list":
        assert isinstance(value, list), path
        for item in value:
            _check_shape(item, shape.member, f"{path}[]")
    elif shape.type_name == "map":
        assert isinstance(value, dict), path
    elif shape.type_name == "string":
        assert isinstance(value, str), path
        assert not shape.enum or value in shape.enum, (path, value)
    elif shape.type_name == "boolean":
        assert isinstance(value, bool), path
    else:
        assert isinstance(value, int | float), (path, shape.type_name)
        assert not isinstance(value, bool), path
