"""The five forms that objects have, each as a stream: buffers in, compressed bytes out, never the whole in memory."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias

import cramjam
from isal import isal_zlib

Buffer: TypeAlias = bytes | memoryview
Compress: TypeAlias = "Callable[[Iterable[Buffer], str], Iterable[Buffer]]"

OUTPUT_BYTES_MIN = 256 * 1024  # less than this is not worth handing on
GZIP_LEVEL = 1  # of isal: half again as fast as 2, and no larger
GZIP_WBITS = 31
# What the compressors are given at a time. Their output depends on that, and must not depend on how records are framed:
# frames may be merged between two attempts, and an object is to be the same after both.
DEFLATE_BLOCK_BYTES = 256 * 1024
ZIP_LEVEL = 1
# Larger entries have another form of sizes, which not every reader takes when it is sent while it is made: they go on
# in another entry. Only records that swell on their way become so many.
ZIP_ENTRY_BYTES = 1024 * 1024 * 1024

XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">II", 1, 1)  # its version, and the oldest that can read it
XERIAL_BLOCK_BYTES = 32 * 1024
# What Hadoop's codec has room for in its buffer of 256 KiB when a block does not shrink at all.
HADOOP_BLOCK_BYTES = 256 * 1024 - (256 * 1024 // 6 + 32)


class Compression(NamedTuple):
    extension: str
    content_encoding: str | None
    compress: Compress  # takes the name of an archive's entry too

    def stream(self, chunks: Iterable[Buffer], entry_name: str) -> Iterator[bytes]:
        """The object that holds these bytes; in an archive under this name."""
        return _gathered(self.compress(chunks, entry_name))


def _uncompressed(chunks: Iterable[Buffer], name: str) -> Iterable[Buffer]:
    return chunks


def _gzip(chunks: Iterable[Buffer], name: str) -> Iterator[bytes]:
    """One member, without a time: the same records give the same bytes."""
    compressor = isal_zlib.compressobj(GZIP_LEVEL, isal_zlib.DEFLATED, GZIP_WBITS)
    for block in _blocks(chunks, DEFLATE_BLOCK_BYTES):
        compressed = compressor.compress(block)
        if compressed:
            yield compressed
    yield compressor.flush()


def _zip(chunks: Iterable[Buffer], name: str) -> Iterator[bytes]:
    """An archive with one entry. Its time is the oldest that the format knows."""
    written = _Written()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED, compresslevel=ZIP_LEVEL) as archive:
        for number, content in enumerate(_cut(_blocks(chunks, DEFLATE_BLOCK_BYTES), ZIP_ENTRY_BYTES)):
            with archive.open(f"{name}-{number}" if number else name, "w") as entry:
                for chunk in content:
                    entry.write(chunk)
                    yield from written.take()
    yield from written.take()


def _cut(chunks: Iterable[Buffer], size_bytes: int) -> Iterator[Iterator[Buffer]]:
    """The same chunks, in runs of about this size; one run at least. Each must be read before the next."""
    rest = iter(chunks)
    following: Buffer | None = b""

    def run() -> Iterator[Buffer]:
        nonlocal following
        run_bytes = 0
        while following is not None and run_bytes < size_bytes:
            run_bytes += len(following)
            yield following
            following = next(rest, None)

    while following is not None:
        yield run()


class _Written:
    """A file that cannot go back, for an archive that is sent while it is made."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes, /) -> int:
        self._parts.append(data)
        return len(data)

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def take(self) -> Iterator[bytes]:
        if self._parts:
            yield b"".join(self._parts)
            self._parts.clear()


def _xerial_snappy(chunks: Iterable[Buffer], name: str) -> Iterator[bytes]:
    yield XERIAL_HEADER
    for block in _blocks(chunks, XERIAL_BLOCK_BYTES):
        compressed = bytes(cramjam.snappy.compress_raw(block))
        yield struct.pack(">I", len(compressed)) + compressed


def _hadoop_snappy(chunks: Iterable[Buffer], name: str) -> Iterator[bytes]:
    for block in _blocks(chunks, HADOOP_BLOCK_BYTES):
        compressed = bytes(cramjam.snappy.compress_raw(block))
        yield struct.pack(">II", len(block), len(compressed)) + compressed


def _blocks(chunks: Iterable[Buffer], size_bytes: int) -> Iterator[Buffer]:
    """The same bytes, cut anew: every block but the last has this size."""
    held = bytearray()
    for chunk in chunks:
        rest = memoryview(chunk)
        if held:
            missing = size_bytes - len(held)
            held += rest[:missing]
            rest = rest[missing:]
            if len(held) < size_bytes:
                continue
            yield bytes(held)
        whole = len(rest) - len(rest) % size_bytes
        for start in range(0, whole, size_bytes):
            yield rest[start : start + size_bytes]
        held = bytearray(rest[whole:])
    if held:
        yield bytes(held)


def _gathered(pieces: Iterable[Buffer]) -> Iterator[bytes]:
    """In larger pieces: each costs a call of the operating system."""
    held: list[Buffer] = []
    held_bytes = 0
    for piece in pieces:
        held.append(piece)
        held_bytes += len(piece)
        if held_bytes >= OUTPUT_BYTES_MIN:
            yield b"".join(held)
            held, held_bytes = [], 0
    if held:
        yield b"".join(held)


_FORMATS = {
    "UNCOMPRESSED": Compression("", None, _uncompressed),
    "GZIP": Compression(".gz", "gzip", _gzip),
    "ZIP": Compression(".zip", "zip", _zip),
    "Snappy": Compression(".snappy", "snappy-java", _xerial_snappy),
    "HADOOP_SNAPPY": Compression(".snappy", "hadoop-snappy", _hadoop_snappy),
}


def compression_named(name: str) -> Compression:
    """By the names that CompressionFormat has."""
    return _FORMATS[name]
