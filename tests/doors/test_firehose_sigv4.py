from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from penstock.delivery.errors import ApiError
from penstock.doors.firehose.sigv4 import AccessKey, Caller, Signatures, load_access_keys
from penstock.errors import ConfigError

KEYS = {"AKIDONE": AccessKey("one's secret/+", "111111111111"), "AKIDTWO": AccessKey("two", "222222222222")}
DEFAULT = Caller("000000000000", "us-east-1")
TARGET = "Firehose_20150804.ListDeliveryStreams"


class Sent:
    """A request as the server gets it, signed by botocore."""

    def __init__(
        self,
        body: bytes = b"{}",
        *,
        key_id: str = "AKIDONE",
        secret: str | None = None,
        token: str | None = None,
        region: str = "eu-west-1",
        service: str = "firehose",
        url: str = "http://127.0.0.1:8080/",
        headers: dict[str, str] | None = None,
    ) -> None:
        request = AWSRequest("POST", url, {"X-Amz-Target": TARGET, **(headers or {})}, body)
        credentials = Credentials(key_id, KEYS[key_id].secret if secret is None else secret, token)
        SigV4Auth(credentials, service, region).add_auth(request)
        self.headers = {name.lower(): value for name, value in request.headers.items()}
        self.headers.setdefault("host", urlsplit(url).netloc)
        self.query = urlsplit(url).query
        self.body = body

    def check(self, signatures: Signatures) -> Caller:
        raw = [(name.encode(), value.encode("latin-1")) for name, value in self.headers.items()]
        return signatures.check("POST", "/", self.query, raw, self.body)

    def refusal(self, signatures: Signatures) -> ApiError:
        with pytest.raises(ApiError) as caught:
            self.check(signatures)
        assert caught.value.http_status == 400
        return caught.value


@pytest.fixture
def signatures() -> Signatures:
    return Signatures(KEYS, DEFAULT)


# -- let in -------------------------------------------------------------------------------------------


def test_the_key_decides_the_account_and_the_scope_the_region(signatures: Signatures) -> None:
    assert Sent().check(signatures) == Caller("111111111111", "eu-west-1")
    assert Sent(key_id="AKIDTWO", region="local").check(signatures) == Caller("222222222222", "local")


def test_a_security_token_is_accepted(signatures: Signatures) -> None:
    assert Sent(token="session//token==").check(signatures).account == "111111111111"


def test_the_host_is_taken_as_sent(signatures: Signatures) -> None:
    """aws-erlang signs and sends it without the port."""
    assert Sent(url="http://localhost/").check(signatures).region == "eu-west-1"
    moved = Sent()
    moved.headers["host"] = "127.0.0.1"
    assert moved.refusal(signatures).code == "InvalidSignatureException"


def test_spaces_in_headers_do_not_count(signatures: Signatures) -> None:
    sent = Sent(headers={"X-Amz-Note": "a  b   c"})
    sent.headers["x-amz-note"] = "  a b c "
    sent.check(signatures)


def test_a_query_is_signed_too(signatures: Signatures) -> None:
    sent = Sent(url="http://127.0.0.1:8080/?b=2&a=x%20y&c")
    sent.check(signatures)
    sent.query = "b=2&a=x%20z&c"
    assert sent.refusal(signatures).code == "InvalidSignatureException"


@pytest.mark.parametrize("claimed", ["UNSIGNED-PAYLOAD", hashlib.sha256(b"{}").hexdigest()])
def test_the_hash_of_the_body_may_be_sent(signatures: Signatures, claimed: str) -> None:
    Sent(headers={"X-Amz-Content-SHA256": claimed}).check(signatures)


def test_no_commas_or_more_spaces_in_the_header(signatures: Signatures) -> None:
    sent = Sent()
    sent.headers["authorization"] = sent.headers["authorization"].replace(", ", ",")
    sent.check(signatures)
    sent.headers["authorization"] = sent.headers["authorization"].replace(",", " ,  ")
    sent.check(signatures)


# -- refused ------------------------------------------------------------------------------------------


def test_without_a_signature(signatures: Signatures) -> None:
    sent = Sent()
    del sent.headers["authorization"]
    assert sent.refusal(signatures).code == "MissingAuthenticationTokenException"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("AWS4-HMAC-SHA256", "AWS4-ECDSA-P256-SHA256"),
        ("AWS4-HMAC-SHA256", "Bearer"),
        ("Credential=", "Credentials="),
        ("/aws4_request", "/aws4"),
        ("SignedHeaders=", "Signed="),
        ("Signature=", "Signature=Z"),
    ],
)
def test_half_a_signature(signatures: Signatures, old: str, new: str) -> None:
    sent = Sent()
    sent.headers["authorization"] = sent.headers["authorization"].replace(old, new)
    assert sent.refusal(signatures).code == "IncompleteSignatureException"


def test_an_unknown_key(signatures: Signatures) -> None:
    refusal = Sent(key_id="AKIDTWO").refusal(Signatures({"AKIDONE": KEYS["AKIDONE"]}, DEFAULT))
    assert refusal.code == "UnrecognizedClientException"


def test_a_wrong_secret(signatures: Signatures) -> None:
    assert Sent(secret="guess").refusal(signatures).code == "InvalidSignatureException"


def test_a_changed_body(signatures: Signatures) -> None:
    sent = Sent(b'{"Limit": 1}')
    sent.body = b'{"Limit": 2}'
    assert sent.refusal(signatures).code == "InvalidSignatureException"


def test_a_changed_target(signatures: Signatures) -> None:
    sent = Sent()
    sent.headers["x-amz-target"] = "Firehose_20150804.DeleteDeliveryStream"
    assert sent.refusal(signatures).code == "InvalidSignatureException"


def test_a_target_added_behind_the_signature(signatures: Signatures) -> None:
    sent = Sent(headers={"X-Amz-Target": ""})
    sent.headers["authorization"] = sent.headers["authorization"].replace(";x-amz-target", "")
    assert "'x-amz-target' must be a 'SignedHeader'" in sent.refusal(signatures).message


def test_a_hash_that_is_not_the_body_s(signatures: Signatures) -> None:
    sent = Sent(headers={"X-Amz-Content-SHA256": hashlib.sha256(b"other").hexdigest()})
    assert "x-amz-content-sha256" in sent.refusal(signatures).message


def test_another_service(signatures: Signatures) -> None:
    assert "'firehose'" in Sent(service="s3").refusal(signatures).message


@pytest.mark.parametrize(
    ("late_s", "words"), [(301, "Signature expired"), (-301, "Signature not yet current")]
)
def test_a_clock_that_is_wrong(late_s: int, words: str) -> None:
    sent = Sent()
    signed_at = datetime.strptime(sent.headers["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    refusal = sent.refusal(Signatures(KEYS, DEFAULT, lambda: signed_at.timestamp() + late_s))
    assert (refusal.code, refusal.message.partition(":")[0]) == ("InvalidSignatureException", words)
    almost = 300 if late_s > 0 else -300
    sent.check(Signatures(KEYS, DEFAULT, lambda: signed_at.timestamp() + almost))


def test_a_date_that_is_none(signatures: Signatures) -> None:
    sent = Sent()
    sent.headers["x-amz-date"] = "yesterday"
    assert sent.refusal(signatures).code == "IncompleteSignatureException"


def test_a_scope_of_another_day(signatures: Signatures) -> None:
    sent = Sent()
    day = sent.headers["x-amz-date"][:8]
    sent.headers["authorization"] = sent.headers["authorization"].replace(f"/{day}/", "/20010203/")
    assert "Credential scope" in sent.refusal(signatures).message


@given(st.binary(max_size=300))
def test_whatever_is_sent_is_refused_in_words(header: bytes) -> None:
    for value in (header, b"AWS4-HMAC-SHA256 " + header):
        with pytest.raises(ApiError):
            Signatures(KEYS, DEFAULT).check("POST", "/", "", [(b"authorization", value)], b"{}")


# -- without keys -------------------------------------------------------------------------------------


def test_without_keys_everybody_is_let_in() -> None:
    signatures = Signatures(None, DEFAULT)
    assert Sent(secret="whatever", region="ap-south-1").check(signatures) == Caller(
        "000000000000", "ap-south-1"
    )
    assert signatures.check("POST", "/", "", [], b"{}") == DEFAULT
    assert signatures.check("POST", "/", "", [(b"authorization", b"Bearer x")], b"{}") == DEFAULT


# -- a real client ------------------------------------------------------------------------------------


class _Handler(BaseHTTPRequestHandler):
    server: Any

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in self.headers.items()]
        try:
            self.server.callers.append(self.server.signatures.check("POST", "/", "", headers, body))
            status, answer = 200, {"DeliveryStreamNames": [], "HasMoreDeliveryStreams": False}
        except ApiError as error:
            status, answer = error.http_status, {"__type": error.code, "message": error.message}
        encoded = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)

    def log_message(self, *args: Any) -> None:
        """Quiet."""


@pytest.fixture
def endpoint(signatures: Signatures) -> Iterator[HTTPServer]:
    server: Any = HTTPServer(("127.0.0.1", 0), _Handler)
    server.signatures, server.callers = signatures, []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def firehose(endpoint: Any, key_id: str, secret: str) -> Any:
    return boto3.session.Session(key_id, secret, region_name="eu-central-1").client(
        "firehose",
        endpoint_url=f"http://127.0.0.1:{endpoint.server_port}",
        config=Config(retries={"total_max_attempts": 1}),
    )


def test_boto3_is_let_in(endpoint: Any) -> None:
    firehose(endpoint, "AKIDTWO", "two").list_delivery_streams(Limit=3)
    assert endpoint.callers == [Caller("222222222222", "eu-central-1")]


@pytest.mark.parametrize(
    ("key_id", "code"),
    [("AKIDTWO", "InvalidSignatureException"), ("AKIDNONE", "UnrecognizedClientException")],
)
def test_boto3_hears_why_not(endpoint: Any, key_id: str, code: str) -> None:
    client = firehose(endpoint, key_id, "wrong")
    with pytest.raises(client.exceptions.ClientError) as caught:
        client.list_delivery_streams()
    assert caught.value.response["Error"]["Code"] == code


# -- the keys file ------------------------------------------------------------------------------------


def write_keys(path: Path, content: str, mode: int = 0o600) -> Path:
    path.touch(mode)
    path.write_text(content)
    path.chmod(mode)
    return path


def test_the_keys_file(tmp_path: Path) -> None:
    path = write_keys(tmp_path / "keys", '{"AKID": {"secret": "s3cr3t", "account": "123456789012"}}', 0o640)
    keys = load_access_keys(path)
    assert keys == {"AKID": AccessKey("s3cr3t", "123456789012")}
    assert "s3cr3t" not in repr(keys)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "must be JSON"),
        ('{"AKID": "s3cr3t"}', "must be JSON"),
        ('{"AKID": {"secret": "s3cr3t", "account": "12"}}', "12 digits"),
        ('{"AKID": {"secret": "", "account": "123456789012"}}', "no secret"),
    ],
)
def test_a_keys_file_that_is_wrong(tmp_path: Path, content: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        load_access_keys(write_keys(tmp_path / "keys", content))
    assert "s3cr3t" not in str(caught.value)


def test_a_keys_file_that_everybody_can_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="chmod o-rwx"):
        load_access_keys(write_keys(tmp_path / "keys", "{}", 0o644))


def test_a_keys_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_access_keys(tmp_path / "none")
