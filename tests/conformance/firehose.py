"""A Firehose client on bare HTTP: signs and sends any bytes, and holds every answer against botocore's model."""

from __future__ import annotations

import base64
import http.client
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import botocore.parsers
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest, HeadersDict
from botocore.credentials import Credentials

from doors.firehose_model import MODEL, broken_rules
from harness import ServerProcess

CONTENT_TYPE = "application/x-amz-json-1.1"
TARGET_PREFIX = "Firehose_20150804."
TIMEOUT_S = 30
POLL_S = 0.05

ROLE_ARN = "arn:aws:iam::123456789012:role/delivery"
BUCKET_ARN = "arn:aws:s3:::bucket"
S3 = {"RoleARN": ROLE_ARN, "BucketARN": BUCKET_ARN}
KEY_ID, SECRET, ACCOUNT = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "123456789012"

# Errors that no operation lists, and that any may answer with.
COMMON_ERRORS = {
    "ValidationException": 400,
    "InvalidParameterValueException": 400,
    "ThrottlingException": 400,
    "SerializationException": 400,
    "UnknownOperationException": 400,
    "MissingAuthenticationTokenException": 400,
    "InvalidSignatureException": 400,
    "UnrecognizedClientException": 400,
    "IncompleteSignatureException": 400,
    "RequestTimeoutException": 408,
    "RequestEntityTooLargeException": 413,
}

_parser = botocore.parsers.create_parser("json")


class Answer(NamedTuple):
    status: int
    headers: HeadersDict
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of the error; empty if there is none."""
        return "" if self.status == 200 else str(self.json["__type"])

    @property
    def message(self) -> str:
        return str(self.json["message"])


class FirehoseClient:
    """`region` and `host` go into the signature; the latter is sent as it is, with a port or without."""

    def __init__(self, port: int, *, region: str = "us-east-1", host: str | None = None) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        self._host = host or f"127.0.0.1:{port}"
        self._region = region

    def __enter__(self) -> FirehoseClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    # -- any bytes ----------------------------------------------------------------------------------

    def signed(self, operation: str, body: bytes) -> dict[str, str]:
        """The headers of a correct request."""
        headers = {
            "Host": self._host,
            "X-Amz-Target": TARGET_PREFIX + operation,
            "Content-Type": CONTENT_TYPE,
        }
        request = AWSRequest("POST", f"http://{self._host}/", headers, body)
        SigV4Auth(Credentials(KEY_ID, SECRET), "firehose", self._region).add_auth(request)
        return dict(request.headers.items())

    def send(self, operation: str, body: bytes, changes: Mapping[str, str] | None = None) -> Answer:
        return self.request("POST", "/", body, {**self.signed(operation, body), **(changes or {})})

    def request(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        try:
            self._connection.request(method, path, body, dict(headers))
            response = self._connection.getresponse()
            return Answer(response.status, HeadersDict(response.getheaders()), response.read())
        except (http.client.HTTPException, OSError):
            self._connection.close()
            raise

    # -- operations ---------------------------------------------------------------------------------

    def call(self, operation: str, body: Mapping[str, Any]) -> Answer:
        answer = self.send(operation, json.dumps(body).encode())
        check_answer(operation, answer)
        return answer

    def succeed(self, operation: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """What the operation answers, as botocore understands it."""
        answer = self.call(operation, body)
        assert answer.status == 200, answer.body
        return parsed(operation, answer)

    def create(self, name: str, block: Mapping[str, Any] | None = None, **members: Any) -> str:
        """The ARN of an extended S3 stream that takes records."""
        body = {"DeliveryStreamName": name, "ExtendedS3DestinationConfiguration": {**S3, **(block or {})}}
        arn = self.succeed("CreateDeliveryStream", {**body, **members})["DeliveryStreamARN"]
        self.wait_for(name, lambda shown: shown["DeliveryStreamStatus"] == "ACTIVE")
        return str(arn)

    def describe(self, name: str) -> dict[str, Any]:
        answer = self.succeed("DescribeDeliveryStream", {"DeliveryStreamName": name})
        return dict(answer["DeliveryStreamDescription"])

    def wait_for(self, name: str, reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline_s = time.monotonic() + TIMEOUT_S
        while not reached(shown := self.describe(name)):
            assert time.monotonic() < deadline_s, shown
            time.sleep(POLL_S)  # the API has no way to call us
        return shown

    def put_batch(self, name: str, records: list[bytes]) -> Answer:
        return self.call("PutRecordBatch", batch(name, records))


def batch(name: str, records: list[bytes]) -> dict[str, Any]:
    return {"DeliveryStreamName": name, "Records": [record(data) for data in records]}


def record(data: bytes) -> dict[str, str]:
    return {"Data": base64.b64encode(data).decode()}


def access_keys_env(directory: Path) -> dict[str, str]:
    """Settings of a server that lets in who signs with KEY_ID and SECRET, and nobody else."""
    path = directory / "access-keys.json"
    path.write_text(json.dumps({KEY_ID: {"secret": SECRET, "account": ACCOUNT}}))
    path.chmod(0o600)
    return {"PENSTOCK_ACCESS_KEYS_FILE": str(path)}


def stored_records(server: ServerProcess, arn: str) -> list[bytes]:
    """All that was put into a delivery stream, read by another door."""
    token = (server.data_dir / "http-token").read_text().strip()
    records: list[bytes] = []
    with closing(http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=TIMEOUT_S)) as connection:
        more = True
        while more:
            path = f"/v1/delivery/records?arn={arn}&from={len(records)}"
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
            page = json.loads(connection.getresponse().read())
            records += [base64.b64decode(entry["data"]) for entry in page["records"]]
            more = page["next"] < page["end"]
    return records


# -- what every answer must be ----------------------------------------------------------------------


def check_answer(operation: str, answer: Answer) -> None:
    """The envelope, and what is in it."""
    check_envelope(answer)
    if answer.status == 200:
        shape = MODEL.operation_model(operation).output_shape
        problems = list(mismatches(shape, answer.json))
        assert not problems, (problems, answer.body)
        parsed(operation, answer)
    else:
        check_error(operation, answer)


def check_envelope(answer: Answer) -> None:
    assert answer.headers["Content-Type"] == CONTENT_TYPE, answer
    assert uuid.UUID(answer.headers["x-amzn-RequestId"])
    assert int(answer.headers["Content-Length"]) == len(answer.body) > 0
    compact = json.dumps(answer.json, separators=(",", ":"), ensure_ascii=False)
    assert answer.body.decode() == compact, "the JSON has spaces or a member twice"


def check_error(operation: str, answer: Answer) -> None:
    code = answer.code
    assert answer.headers["x-amzn-ErrorType"] == code
    modelled = {shape.name: shape for shape in MODEL.operation_model(operation).error_shapes}
    statuses = COMMON_ERRORS | {
        name: 503 if shape.metadata.get("fault") else 400 for name, shape in modelled.items()
    }
    assert code in statuses, f"{operation} does not fail with {code}: {answer.message}"
    assert answer.status == statuses[code]
    error = _parse(answer, MODEL.operation_model(operation).output_shape)["Error"]
    assert (error["Code"], error["Message"]) == (code, answer.message)
    assert answer.message
    if code in modelled:
        assert _parse(answer, modelled[code])["message"] == answer.message
        members = {name: value for name, value in answer.json.items() if name != "__type"}
        assert not list(mismatches(modelled[code], members))


def parsed(operation: str, answer: Answer) -> dict[str, Any]:
    result = _parse(answer, MODEL.operation_model(operation).output_shape)
    del result["ResponseMetadata"]
    return result


def _parse(answer: Answer, shape: Any) -> dict[str, Any]:
    response = {"status_code": answer.status, "headers": answer.headers, "body": answer.body}
    return dict(_parser.parse(response, shape))


_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "structure": (dict,),
    "map": (dict,),
    "list": (list,),
    "string": (str,),
    "blob": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "double": (int, float),
    "timestamp": (int, float),
}


def mismatches(shape: Any, value: Any, path: str = "") -> Iterator[str]:
    """Where a JSON value is not what the model says, down to members that it does not know."""
    kind = shape.type_name
    if type(value) not in _JSON_TYPES[kind]:
        yield f"{path}: {value!r} is no {kind}"
    elif kind == "structure":
        yield from (f"{path}.{name} is missing" for name in shape.required_members if name not in value)
        for name, member in value.items():
            if name in shape.members:
                yield from mismatches(shape.members[name], member, f"{path}.{name}")
            else:
                yield f"{path}.{name} is not in the model"
    elif kind == "map":
        for name, member in value.items():
            yield from mismatches(shape.key, name, f"{path}.{name}")
            yield from mismatches(shape.value, member, f"{path}.{name}")
    else:
        yield from (f"{path}: {value!r}: {rule}" for rule in broken_rules(shape, value))
        if kind == "list":
            for number, item in enumerate(value):
                yield from mismatches(shape.member, item, f"{path}[{number}]")
