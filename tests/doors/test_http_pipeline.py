"""The routes that pipelines use, over real HTTP, against a server process."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from harness import ServerProcess
from penstock.client import StreamManagerClient
from penstock.flush import LeaseRequest, Outcome
from penstock.pipeline.server_client import ServerClient, ServerLost

DEADLINE_S = 10
EXPORT = {"identifier": "e", "uri": "http://127.0.0.1:1/"}


def token_of(server: ServerProcess) -> str:
    return (server.data_dir / "http-token").read_text().strip()


class Post:
    """A request whose answer may be left alone."""

    def __init__(self, server: ServerProcess, path: str, body: bytes, token: str | None = None) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=DEADLINE_S)
        headers = {"Authorization": f"Bearer {token or token_of(server)}"}
        self._connection.request("POST", path, body, headers)

    def answer(self) -> tuple[int, Any]:
        response = self._connection.getresponse()
        content = response.read()
        self.hang_up()
        return response.status, json.loads(content)

    def hang_up(self) -> None:
        self._connection.close()


@pytest.fixture
def pipeline(server: ServerProcess) -> Iterator[ServerClient]:
    made = ServerClient(f"http://127.0.0.1:{server.http_port}", token_of(server))
    yield made
    made.close()


@pytest.fixture
def streams(server: ServerProcess) -> Iterator[StreamManagerClient]:
    with StreamManagerClient(server.host, server.port) as client:
        client.create({"name": "s", "strategyOnFull": 0, "exportDefinition": {"http": [EXPORT]}})
        yield client


def test_lease_deliver_report(streams: StreamManagerClient, pipeline: ServerClient) -> None:
    streams.append("s", b"one")
    streams.append("s", b"three")
    leases = pipeline.lease(LeaseRequest("p", wait_ms=DEADLINE_S * 1000))
    assert leases.slots == 5
    [flush] = leases.flushes
    assert (flush.stream, flush.identifier, flush.first, flush.next) == ("s", "e", 0, 2)
    assert flush.settings == EXPORT
    pipeline.renew("p")
    done = Outcome(flush.id, flush.attempt, 2, messages=2, payload_bytes=8, done=True)
    assert pipeline.report("p", [done]).cancelled == []
    [status] = streams.describe("s")["exportStatuses"]
    assert status["lastExportedSequenceNumber"] == 1
    assert (status["exportedMessagesCount"], status["exportedBytesFromStream"]) == (2, 8)
    assert abs(status["lastExportTime"] - time.time() * 1000) < DEADLINE_S * 1000
    assert pipeline.report("p", [done]).cancelled == [flush.id]


def test_a_pipeline_that_hung_up_gets_nothing(
    server: ServerProcess, streams: StreamManagerClient, pipeline: ServerClient
) -> None:
    """Or what is due next would wait for its lease to run out."""
    body = json.dumps({"pipeline": "killed", "wait_ms": 30_000}).encode()
    for _ in range(5):
        Post(server, "/v1/pipeline/lease", body).hang_up()
    pipeline.renew("p")  # when this is answered, the server has seen them go
    streams.append("s", b"x")
    [flush] = pipeline.lease(LeaseRequest("p", wait_ms=2000)).flushes
    assert flush.next == 1


@pytest.mark.parametrize("path", ["lease", "renew", "report"])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"pipeline": 5}', b"\xff"])
def test_what_is_not_a_request_is_refused(shared_server: ServerProcess, path: str, body: bytes) -> None:
    status, answer = Post(shared_server, f"/v1/pipeline/{path}", body).answer()
    assert status == 400
    assert answer["error"]


@pytest.mark.parametrize("path", ["lease", "renew", "report"])
def test_without_the_token_nothing_is_handed_out(shared_server: ServerProcess, path: str) -> None:
    status, _ = Post(
        shared_server, f"/v1/pipeline/{path}", b'{"pipeline": "p", "outcomes": []}', "guess"
    ).answer()
    assert status == 401


def test_a_report_that_is_too_long_is_refused(pipeline: ServerClient) -> None:
    outcome = Outcome(1, 1, 1, status_messages=["x" * 2**20] * 17)
    with pytest.raises(ServerLost, match="400"):
        pipeline.report("p", [outcome])


def test_a_lease_ends_when_the_server_stops(server: ServerProcess, streams: StreamManagerClient) -> None:
    waiting = Post(server, "/v1/pipeline/lease", b'{"pipeline": "p", "wait_ms": 30000}')
    streams.close()
    started_s = time.monotonic()
    server.stop()
    assert time.monotonic() - started_s < DEADLINE_S / 2
    assert waiting.answer()[1]["flushes"] == []
