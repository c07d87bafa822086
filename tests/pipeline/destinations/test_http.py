"""HTTP, against servers on loopback that take requests apart, fail, and hang up."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.raw_client import RawClient
from harness import ServerProcess
from penstock.model import ExportKind
from penstock.pipeline import delivery
from penstock.pipeline.destinations import destination_for
from penstock.pipeline.destinations import http as http_destination
from penstock.pipeline.destinations.base import Columns, PipelineSettings, batches, column_batches
from penstock.pipeline.server_client import ServerClient
from pipeline.destinations.recording import NONCE, Recording, deliver, flush_of, records_of

MIB = 1024 * 1024
JSON_BATCHED = 1


class Request(NamedTuple):
    connection: int
    path: str
    headers: dict[str, str]
    body: bytes


class Sink:
    """Remembers requests. `statuses` are answered first, in order; 0 among them hangs up instead."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.statuses: deque[int] = deque()
        self.close_after_each = False
        sink = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                sink.requests.append(Request(self.client_address[1], self.path, headers, body))
                status = sink.statuses.popleft() if sink.statuses else 204
                if status == 0:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                answer = b"as the test wants it" if status >= 300 else b""
                self.send_response(status)
                if status == 302:
                    self.send_header("location", "/elsewhere")
                if status != 204:
                    self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)
                self.close_connection = self.close_connection or sink.close_after_each

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/in?key=1"

    def __enter__(self) -> Sink:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


@pytest.fixture
def sink() -> Iterator[Sink]:
    with Sink() as running:
        yield running


def put(sink: Sink, payloads: list[bytes], **settings: Any) -> tuple[Recording, Any]:
    return deliver(ExportKind.HTTP, payloads, **{"uri": sink.url, **settings})


@pytest.mark.parametrize("export_format", [{}, {"exportFormat": 0}])
def test_raw_messages_one_by_one(sink: Sink, export_format: dict[str, int]) -> None:
    payloads = [b"", b"\x00\xff", b"x" * MIB, b"{}"]
    progress, error = put(sink, payloads, first=10, **export_format)
    assert error is None
    assert (progress.next, progress.messages, progress.payload_bytes) == (14, 4, MIB + 4)
    assert [request.body for request in sink.requests] == payloads
    assert {request.path for request in sink.requests} == {"/in?key=1"}
    assert {request.headers["content-type"] for request in sink.requests} == {"application/octet-stream"}
    ids = [request.headers["penstock-request-id"] for request in sink.requests]
    assert ids == [f"{NONCE}-{number}-{number}" for number in range(10, 14)]
    assert len({request.connection for request in sink.requests}) == 1


def test_json_is_exactly_what_the_sdks_serialise(sink: Sink) -> None:
    put(sink, [b"\x01\x02\x03\xff"], first=3, exportFormat=JSON_BATCHED)
    assert sink.requests[0].body == (
        b'[{"streamName":"readings","sequenceNumber":3,"ingestTime":1700000000003,"payload":"AQID/w=="}]'
    )
    assert sink.requests[0].headers["content-type"] == "application/json"
    assert sink.requests[0].headers["penstock-request-id"] == f"{NONCE}-3-3"


def test_json_batches(sink: Sink) -> None:
    payloads = [b"%d" % number for number in range(1201)]
    progress, error = put(sink, payloads, exportFormat=JSON_BATCHED)
    assert error is None
    assert (progress.next, progress.messages) == (1201, 1201)
    assert progress.payload_bytes == sum(map(len, payloads))
    batches = [json.loads(request.body) for request in sink.requests]
    assert [len(batch) for batch in batches] == [500, 500, 201]
    received = [base64.b64decode(message["payload"]) for batch in batches for message in batch]
    assert received == payloads
    assert sink.requests[1].headers["penstock-request-id"] == f"{NONCE}-500-999"


def test_batch_size_of_the_export(sink: Sink) -> None:
    put(sink, [b"x"] * 7, exportFormat=JSON_BATCHED, batchSize=3)
    assert [len(json.loads(request.body)) for request in sink.requests] == [3, 3, 1]


def test_large_messages_make_smaller_batches(sink: Sink) -> None:
    sizes = [3 * MIB, 3 * MIB, 3 * MIB, 9 * MIB, 1]
    progress, error = put(sink, [bytes(size) for size in sizes], exportFormat=JSON_BATCHED)
    assert error is None
    assert progress.messages == 5
    assert [len(json.loads(request.body)) for request in sink.requests] == [2, 1, 1, 1]


@pytest.mark.parametrize("status", [302, 400, 404, 408, 429, 500, 503])
@pytest.mark.parametrize("export_format", [0, JSON_BATCHED])
def test_anything_but_success_stops_there(sink: Sink, status: int, export_format: int) -> None:
    sink.statuses.extend([200, status])
    progress, error = put(sink, [b"%d" % n for n in range(6)], exportFormat=export_format, batchSize=2)
    assert progress.next == progress.messages == (2 if export_format else 1)
    assert error is not None
    assert not error.permanent
    assert f"answered {status}" in str(error)
    assert "as the test wants it" in str(error)
    assert "key=1" not in str(error)
    assert len(sink.requests) == 2


def test_a_repeat_is_the_same_request(sink: Sink) -> None:
    payloads = [b"%d" % number for number in range(10)]
    sink.statuses.extend([200, 500])
    progress, _ = put(sink, payloads, exportFormat=JSON_BATCHED, batchSize=4)
    put(sink, payloads[4:], first=progress.next, exportFormat=JSON_BATCHED, batchSize=4)
    seen = [(request.headers["penstock-request-id"], request.body) for request in sink.requests]
    assert seen[1] == seen[2]
    assert len(set(seen)) == 3


def test_connections_outlive_a_flush(sink: Sink) -> None:
    put(sink, [b"a"])
    put(sink, [b"b", b"c"])
    assert len({request.connection for request in sink.requests}) == 1


def test_a_connection_closed_between_requests_is_replaced(sink: Sink) -> None:
    sink.close_after_each = True
    progress, error = put(sink, [b"a", b"b", b"c"])
    assert (progress.messages, error) == (3, None)
    assert len({request.connection for request in sink.requests}) == 3


def test_a_server_that_hangs_up_fails_the_delivery(sink: Sink) -> None:
    sink.statuses.extend([200, 0, 0])
    progress, error = put(sink, [b"a", b"b", b"c"])
    assert progress.next == 1
    assert "cannot post to" in str(error)
    assert [request.body for request in sink.requests] == [b"a", b"b", b"b"]


def test_a_server_that_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        uri = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        options = PipelineSettings(read_timeout_s=0.1)
        started_s = time.monotonic()
        progress, error = deliver(ExportKind.HTTP, [b"a"], uri=uri, options=options)
        listener.accept()[0].close()
    assert progress.calls == 0
    assert "timed out" in str(error)
    assert time.monotonic() - started_s < PipelineSettings().connect_timeout_s


def test_nobody_listens() -> None:
    _, error = deliver(ExportKind.HTTP, [b"a"], uri="http://127.0.0.1:9/")
    assert error is not None
    assert not error.permanent
    assert "refused" in str(error)


@pytest.mark.parametrize(
    "uri", ["ftp://host/", "host:80", "http://", "http://host:port/", "http://[::1/", "/path"]
)
def test_a_wrong_uri_is_told_at_once(uri: str) -> None:
    _, error = deliver(ExportKind.HTTP, [b"a"], uri=uri)
    assert error is not None
    assert error.permanent
    assert "uri" in str(error)


def test_user_and_odd_characters_in_the_uri(sink: Sink) -> None:
    uri = sink.url.replace("http://", "http://me:se%40cret@").replace("/in", "/größe und so")
    progress, error = put(sink, [b"a"], uri=uri)
    assert (progress.messages, error) == (1, None)
    assert sink.requests[0].headers["authorization"] == "Basic " + base64.b64encode(b"me:se@cret").decode()
    assert sink.requests[0].path == "/gr%C3%B6%C3%9Fe%20und%20so?key=1"
    sink.statuses.append(500)
    _, error = put(sink, [b"a"], uri=uri)
    assert "cret" not in str(error)


def test_idle_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_destination, "IDLE_CONNECTIONS_MAX", 2)
    sinks = [Sink() for _ in range(4)]
    for sink in sinks:
        with sink:
            put(sink, [b"a"])
    kept = http_destination._idle_connections._connections
    assert [port for (_, _, port), _ in kept] == [sink.server.server_address[1] for sink in sinks[2:]]


def test_tls(sink: Sink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj /CN=127.0.0.1"
    )
    files = ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(certificate), "-keyout", str(key)]
    subprocess.run([*command.split(), *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    sink.server.socket = context.wrap_socket(sink.server.socket, server_side=True)
    uri = sink.url.replace("http:", "https:")
    http_destination._tls_context.cache_clear()
    progress, error = put(sink, [b"a"], uri=uri)
    assert progress.calls == 0
    assert "CERTIFICATE_VERIFY_FAILED" in str(error)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    http_destination._tls_context.cache_clear()
    progress, error = put(sink, [b"a"], uri=uri)
    http_destination._tls_context.cache_clear()
    assert (progress.messages, error) == (1, None)


# -- columns ----------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 30), max_size=60),
    st.lists(st.integers(1, 7), min_size=1, max_size=10),
    st.integers(1, 12),
    st.integers(1, 60),
)
def test_batches_of_columns_are_those_of_records(
    sizes: list[int], frame_sizes: list[int], count_max: int, bytes_max: int
) -> None:
    """However the messages were framed: a repeat makes the same requests."""
    records = list(records_of([bytes(size) for size in sizes]))
    parts, at = [], 0
    while at < len(records):
        chunk = records[at : at + frame_sizes[len(parts) % len(frame_sizes)]]
        parts.append(Columns(*map(list, zip(*chunk, strict=True))))
        at += len(chunk)
    expected = list(batches(records, count_max, bytes_max, lambda record: len(record.payload)))
    found = list(column_batches(parts, count_max, bytes_max))
    assert [list(batch.records()) for batch, _ in found] == expected
    assert [size for _, size in found] == [sum(len(r.payload) for r in batch) for batch in expected]


def test_messages_of_a_real_server(shared_server: ServerProcess, sink: Sink) -> None:
    payloads = [b"message %d" % number for number in range(700)]
    with RawClient(shared_server.port) as client:
        client.create("readings")
        for payload in payloads:
            client.append("readings", payload)
        arrivals = [message["ingestTime"] for message in client.read("readings", minMessageCount=700)]
    token = (shared_server.data_dir / "http-token").read_text().strip()
    server = ServerClient(f"http://127.0.0.1:{shared_server.http_port}", token)
    flush = flush_of(ExportKind.HTTP, 600, first=50, uri=sink.url, exportFormat=JSON_BATCHED)
    progress = Recording(60)
    destination_for(flush, PipelineSettings(), server).deliver_frames(
        delivery.frame_parts(server, flush, 60, lambda: None), progress
    )
    server.close()
    assert (progress.next, progress.messages) == (650, 590)
    received = [message for request in sink.requests for message in json.loads(request.body)]
    assert [message["sequenceNumber"] for message in received] == list(range(60, 650))
    assert [base64.b64decode(message["payload"]) for message in received] == payloads[60:650]
    assert [message["ingestTime"] for message in received] == arrivals[60:650]
