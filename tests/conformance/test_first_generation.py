"""Clients of protocol 1.0.0 never see what they do not know: statuses 15 to 18, operations 15 to 17."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from conformance.raw_client import RawClient
from conformance.wire import Op, Status
from harness import ServerProcess


@pytest.fixture
def old(shared_server: ServerProcess) -> Iterator[RawClient]:
    changes = {"protocolVersion": "1.0.0", "otherSupportedProtocolVersions": None, "sdkVersion": "1.0.0"}
    with RawClient(shared_server.port, **changes) as client:
        assert client.protocol_version == "1.0.0"
        yield client


def test_operations_of_the_first_generation(old: RawClient, name: str) -> None:
    old.create(name)
    assert old.append(name, b"x") == 0
    assert old.read(name)[0]["payload"] == b"x"
    assert old.describe(name)["storageStatus"]["newestSequenceNumber"] == 0
    assert name in old.list()
    old.succeed(Op.DELETE, name=name)
    old.fail(Status.RESOURCE_NOT_FOUND, Op.DELETE, name=name)


@pytest.mark.parametrize("op", [Op.UPDATE, Op.UPDATE_RESPONSE, Op.UNKNOWN_OPERATION_ERROR, 0, 99, -1])
def test_operations_it_cannot_know_the_answer_of(old: RawClient, name: str, op: int) -> None:
    """Either the connection is closed, or the answer is one that its enums know."""
    old.create(name)
    old.send(op, definition={"name": name, "strategyOnFull": 0, "persistence": 1})
    old.socket.settimeout(5)
    if old.socket.recv(1, socket.MSG_PEEK):
        response_op, response = old.receive()
        assert response_op <= Op.DESCRIBE_RESPONSE
        assert response["status"] <= Status.MESSAGE_STORE_READ_ERROR
