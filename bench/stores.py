"""A Penstock server and streams filled through its front door, for the figures that need a large store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.appends import check_count
from bench.clients import Load
from bench.peers import Penstock, Server
from bench.protocols import Address

PENSTOCK = Penstock()
IN_FLIGHT = 500


@contextmanager
def open_store(directory: Path, kill: bool = False) -> Iterator[tuple[Server, Address, Address]]:
    """The data directory stays, so that a later start can open it, after a clean stop or a kill -9."""
    server, stream_manager, http_address = PENSTOCK.start_with_http(directory)
    try:
        yield server, stream_manager, http_address
    finally:
        if kill:
            server.kill()
        else:
            server.stop()


def fill(address: Address, messages: int, payload_bytes: int, clients: int) -> list[str]:
    streams = [f"store-{index}" for index in range(clients)]
    control = PENSTOCK.protocol.connect(address)
    for stream in streams:
        PENSTOCK.protocol.create_stream(control, stream, durable=False)
    load = Load(PENSTOCK.protocol, address, streams, IN_FLIGHT, payload_bytes)
    load.run_until(messages)
    load.drain()
    for stream, acks in load.acks_by_stream().items():
        check_count(PENSTOCK, stream, acks, PENSTOCK.protocol.message_count(control, stream))
    load.close()
    control.close()
    return streams
