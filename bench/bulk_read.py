"""Bulk read of a stream over HTTP, and what it costs to turn its frames into columns."""

from __future__ import annotations

import http.client
import statistics
import time
from pathlib import Path

import pyarrow

from bench import processes, stores
from bench.appends import Progress
from bench.figures import Figure
from bench.peers import Server
from bench.protocols import Address
from penstock.log import frame

PAYLOAD_BYTES = 1024
CHUNK_BYTES = 16 * 1024 * 1024
GB_PER_S_MIN = 1.0


def measure(work_dir: Path, messages: int, passes: int, progress: Progress) -> tuple[list[Figure], str]:
    directory = work_dir / "bulk"
    with stores.open_store(directory) as (server, stream_manager, http_address):
        progress(f"bulk-read: preparing {messages:,} messages of {PAYLOAD_BYTES} B")
        stream = stores.fill(stream_manager, messages, PAYLOAD_BYTES, clients=1)[0]
        reader = BulkReader(http_address, (directory / "http-token").read_text().strip(), stream)
        chunks = reader.all_chunks()
        timed = Passes(reader, chunks, server)
        seconds = {
            name: statistics.median(work() for _ in range(passes))
            for name, work in (
                ("read", timed.read_s),
                ("decode", timed.decode_s),
                ("arrow", timed.arrow_s),
                ("both", timed.read_and_decode_s),
            )
        }
        reader.close()
    gigabytes = sum(len(chunk) for _, chunk in chunks) / 1e9
    rate = {name: gigabytes / value for name, value in seconds.items()}
    figures = [
        Figure(
            "read over HTTP, then decode, checksums verified", rate["both"], "GB/s", at_least=GB_PER_S_MIN
        ),
        Figure("read over HTTP alone", rate["read"], "GB/s"),
        Figure("decode alone, checksums verified", rate["decode"], "GB/s"),
        Figure("decode alone into Arrow binary arrays, checksums verified", rate["arrow"], "GB/s"),
        Figure("server CPU for the read", timed.server_cpu_s_per_read() / gigabytes, "s/GB"),
    ]
    slower = "the transfer over HTTP" if seconds["read"] > seconds["decode"] else "decode and its checksums"
    return figures, f"{slower} ({max(seconds['read'], seconds['decode']) / seconds['both']:.0%} of the time)"


class BulkReader:
    """Frames of one stream over one keep-alive HTTP connection."""

    def __init__(self, address: Address, token: str, stream: str) -> None:
        self._http = http.client.HTTPConnection(*address, timeout=30)
        self._headers = {"Authorization": f"Bearer {token}"}
        self._path = f"/v1/frames?stream={stream}"
        self.buffer = bytearray(4 * CHUNK_BYTES)

    def read(self, first_sequence: int) -> memoryview:
        """Whole frames from `first_sequence` on, in the reader's own buffer; empty at the end."""
        query = f"&from={first_sequence}&max_bytes={CHUNK_BYTES}"
        self._http.request("GET", self._path + query, headers=self._headers)
        response = self._http.getresponse()
        if response.status == 204:
            response.read()
            return memoryview(b"")
        if response.status != 200:
            raise RuntimeError(f"bulk read answered {response.status}: {response.read(300)!r}")
        view = memoryview(self.buffer)
        filled_bytes = 0
        while received_bytes := response.readinto(view[filled_bytes:]):
            filled_bytes += received_bytes
        return view[:filled_bytes]

    def all_chunks(self) -> list[tuple[int, bytes]]:
        """The whole stream, as (first sequence number, frames) for each request."""
        chunks: list[tuple[int, bytes]] = []
        first_sequence = 0
        while chunk := bytes(self.read(first_sequence)):
            chunks.append((first_sequence, chunk))
            *_, last = frame.decode_frames(chunk)
            first_sequence = last.first_sequence + last.count
        return chunks

    def close(self) -> None:
        self._http.close()


class Passes:
    """The timed passes over the same chunks. Each returns its seconds."""

    def __init__(self, reader: BulkReader, chunks: list[tuple[int, bytes]], server: Server) -> None:
        self._reader = reader
        self._chunks = chunks
        self._server = server
        self._server_cpu_s: list[float] = []

    def read_s(self) -> float:
        cpu_before_s = processes.snapshot(self._server.pid).server_cpu_s
        started = time.perf_counter()
        for first_sequence, chunk in self._chunks:
            assert len(self._reader.read(first_sequence)) == len(chunk)
        elapsed_s = time.perf_counter() - started
        self._server_cpu_s.append(processes.snapshot(self._server.pid).server_cpu_s - cpu_before_s)
        return elapsed_s

    def server_cpu_s_per_read(self) -> float:
        return statistics.median(self._server_cpu_s)

    def decode_s(self) -> float:
        started = time.perf_counter()
        for _, chunk in self._chunks:
            _decode(chunk)
        return time.perf_counter() - started

    def read_and_decode_s(self) -> float:
        started = time.perf_counter()
        for first_sequence, _ in self._chunks:
            _decode(self._reader.read(first_sequence))
        return time.perf_counter() - started

    def arrow_s(self) -> float:
        started = time.perf_counter()
        for _, chunk in self._chunks:
            arrays = [
                pyarrow.Array.from_buffers(
                    pyarrow.binary(),
                    each.count,
                    [None, pyarrow.py_buffer(each.offsets), pyarrow.py_buffer(each.data)],
                )
                for each in frame.decode_frames(chunk)
            ]
            assert len(arrays[-1][-1].as_py()) == PAYLOAD_BYTES
        return time.perf_counter() - started


def _decode(chunk: bytes | memoryview) -> int:
    return sum(each.count for each in frame.decode_frames(chunk))
