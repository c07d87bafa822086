"""A client of the bulk read, for tests."""

from __future__ import annotations

import http.client
import os
from typing import NamedTuple
from urllib.parse import urlencode

from running import TOKEN, RunningServer

from conformance.raw_client import RawClient
from conformance.wire import Op
from penstock.log.frame import decode_frames

MIB = 1024 * 1024
STOPPED_READS = (
    "timeout graceful shutdown exceeded",
)  # what a server says that stops while clients do not read
AUTHORIZED = {"authorization": f"Bearer {TOKEN.decode()}"}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def next_sequence(self) -> int:
        return int(self.headers["penstock-next-sequence"])

    @property
    def messages(self) -> dict[int, bytes]:
        """Payloads by number; checksums are verified on the way."""
        found: dict[int, bytes] = {}
        for frame in decode_frames(self.body):
            found.update(enumerate(frame.payloads(), frame.first_sequence))
        return found


class Reader:
    """An HTTP client that keeps its connection."""

    def __init__(self, server: RunningServer) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=20)

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def request(self, path: str, *, method: str = "GET", headers: dict[str, str] = AUTHORIZED) -> Answer:
        self.connection.request(method, path, headers=headers)
        response = self.connection.getresponse()
        body = response.read()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, body)

    def frames(self, stream: str, **parameters: int) -> Answer:
        named = {"from" if key == "start" else key: value for key, value in parameters.items()}
        return self.request("/v1/frames?" + urlencode({"stream": stream, **named}))

    def read_all(self, stream: str, **parameters: int) -> dict[int, bytes]:
        """Go on from where each answer says, to the end."""
        found: dict[int, bytes] = {}
        sequence = 0
        while True:
            answer = self.frames(stream, start=sequence, **parameters)
            if answer.status == 204:
                return found
            assert answer.status == 200
            assert answer.next_sequence > sequence
            taken = answer.messages
            assert max(taken) + 1 >= answer.next_sequence
            found.update(taken)
            sequence = answer.next_sequence


def payload_of(number: int) -> bytes:
    return b"%d-" % number * (1 + number % 50)


def fill(client: RawClient, name: str, count: int, first: int = 0) -> dict[int, bytes]:
    ids = [client.send(Op.APPEND, name=name, payload=payload_of(n)) for n in range(first, first + count)]
    numbers = {answer["requestId"]: answer["sequenceNumber"] for _, answer in (client.receive() for _ in ids)}
    return {numbers[request_id]: payload_of(n) for n, request_id in enumerate(ids, first)}


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))
