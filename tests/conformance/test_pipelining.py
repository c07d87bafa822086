"""Many requests on one connection: order where it is promised, no blocking where it is not."""

from __future__ import annotations

import socket
import time

from conformance.raw_client import RawClient
from conformance.wire import Op, Status
from harness import ServerProcess


def test_appends_of_a_connection_are_ordered(raw: RawClient, name: str) -> None:
    raw.create(name)
    sent = [raw.send(Op.APPEND, name=name, payload=b"%d" % i) for i in range(1000)]
    answers = [raw.receive()[1] for _ in sent]
    assert {answer["requestId"]: answer["sequenceNumber"] for answer in answers} == {
        request_id: i for i, request_id in enumerate(sent)
    }
    assert [message["payload"] for message in raw.read(name, minMessageCount=1000)] == [
        b"%d" % i for i in range(1000)
    ]


def test_waiting_read_is_overtaken(raw: RawClient, name: str) -> None:
    raw.create(name)
    reading = raw.send(Op.READ, streamName=name, readMessagesOptions={"readTimeoutMillis": 30000})
    raw.list()
    raw.describe(name)
    appending = raw.send(Op.APPEND, name=name, payload=b"x")
    answers = {response["requestId"]: response for _, response in (raw.receive(), raw.receive())}
    assert answers[appending]["sequenceNumber"] == 0
    assert answers[reading]["messages"][0]["payload"] == b"x"


def test_reader_wakes_at_once_for_another_connection(
    shared_server: ServerProcess, raw: RawClient, name: str
) -> None:
    raw.create(name)
    with RawClient(shared_server.port) as reader:
        delays_s = []
        for i in range(20):
            options = {"desiredStartSequenceNumber": i, "readTimeoutMillis": 30000}
            reader.send(Op.READ, streamName=name, readMessagesOptions=options)
            reader.list()
            started = time.monotonic()
            raw.append(name, b"x")
            assert reader.receive()[1]["messages"][0]["sequenceNumber"] == i
            delays_s.append(time.monotonic() - started)
    assert sorted(delays_s)[10] < 0.1


def test_reader_with_a_minimum_is_woken_once(raw: RawClient, name: str) -> None:
    raw.create(name)
    reading = raw.send(
        Op.READ, streamName=name, readMessagesOptions={"minMessageCount": 3, "readTimeoutMillis": 30000}
    )
    assert [raw.append(name, b"x") for _ in range(2)] == [0, 1]
    raw.send(Op.APPEND, name=name, payload=b"x")
    answers = {response["requestId"]: response for _, response in (raw.receive(), raw.receive())}
    assert [message["sequenceNumber"] for message in answers[reading]["messages"]] == [0, 1, 2]


def test_reads_time_out_in_the_order_of_their_timeouts(raw: RawClient, name: str) -> None:
    raw.create(name)
    started = time.monotonic()
    sent = [
        raw.send(Op.READ, streamName=name, readMessagesOptions={"readTimeoutMillis": ms})
        for ms in (900, 600, 300)
    ]
    answers = [raw.receive()[1] for _ in sent]
    assert [answer["requestId"] for answer in answers] == sent[::-1]
    assert {answer["status"] for answer in answers} == {Status.NOT_ENOUGH_MESSAGES}
    assert 0.8 < time.monotonic() - started < 2


def test_the_longest_timeout_is_no_overflow(raw: RawClient, name: str) -> None:
    raw.create(name)
    reading = raw.send(Op.READ, streamName=name, readMessagesOptions={"readTimeoutMillis": 9223372036854})
    raw.list()
    raw.send(Op.APPEND, name=name, payload=b"x")
    assert {raw.receive()[1]["requestId"], raw.receive()[1]["requestId"]} >= {reading}


def test_equal_request_ids_are_all_answered_in_order(raw: RawClient, name: str) -> None:
    """The git version of the V2 JavaScript SDK sends a single space as every requestId."""
    raw.create(name)
    for i in range(20):
        raw.send(Op.APPEND, requestId=" ", name=name, payload=b"%d" % i)
        raw.send(Op.DESCRIBE, requestId=" ", name=name)
    raw.send(Op.LIST, requestId=" ")
    answers = [raw.receive() for _ in range(41)]
    assert {response["requestId"] for _, response in answers} == {" "}
    assert [op for op, _ in answers] == [*[Op.APPEND_RESPONSE, Op.DESCRIBE_RESPONSE] * 20, Op.LIST_RESPONSE]
    assert [response["sequenceNumber"] for _, response in answers[0:40:2]] == list(range(20))


def test_request_ids_are_echoed_byte_for_byte(raw: RawClient) -> None:
    for request_id in (" ", "  ", "a", "A.b,c-d_e", "0" * 5000):
        assert raw.call(Op.LIST, requestId=request_id)["requestId"] == request_id


def test_a_reader_that_leaves_is_forgotten(shared_server: ServerProcess, raw: RawClient, name: str) -> None:
    raw.create(name)
    for _ in range(20):
        with RawClient(shared_server.port) as leaving:
            leaving.send(Op.READ, streamName=name, readMessagesOptions={"readTimeoutMillis": 60000})
            leaving.list()
    assert raw.append(name, b"x") == 0
    assert raw.read(name)[0]["payload"] == b"x"


def test_half_closed_client_still_gets_its_answers(shared_server: ServerProcess, name: str) -> None:
    with RawClient(shared_server.port) as client:
        client.create(name)
        for _ in range(10):
            client.send(Op.APPEND, name=name, payload=b"x")
        client.socket.shutdown(socket.SHUT_WR)
        assert [client.receive()[1]["sequenceNumber"] for _ in range(10)] == list(range(10))
        client.assert_closed_cleanly()
