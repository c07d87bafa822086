"""A backlog turned into gzip objects by Spark, from the log and, as the limit, from Parquet files."""

from __future__ import annotations

import secrets
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import stores
from bench.appends import Progress
from bench.figures import Figure
from penstock.pipeline.destinations.base import PipelineSettings
from penstock.pipeline.objects import store_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PER_S_MIN = 73_000.0
PAYLOAD_BYTES = 1024
OBJECT_BYTES = 16 * 1024 * 1024
GZIP = 31  # window bits that ask zlib for the gzip format
LEVEL = 6
BUCKET = "lake"


def gzip_objects(store_url: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Lines of payload, gzipped, in objects of 16 MiB before compression. Tells how many messages each holds."""

    def deliver(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow

        store = store_for(PipelineSettings(object_store=store_url))
        schema = pyarrow.schema([("messages", pyarrow.int64())])

        def put(pieces: list[bytes], messages: int) -> Any:
            store.put(BUCKET, f"{secrets.token_hex(8)}.gz", b"".join(pieces))
            return pyarrow.RecordBatch.from_pylist([{"messages": messages}], schema=schema)

        compressor, pieces, raw_bytes, messages = zlib.compressobj(LEVEL, zlib.DEFLATED, GZIP), [], 0, 0
        for batch in batches:
            lines = _lines_of(batch.column("payload"))
            pieces.append(compressor.compress(lines))
            raw_bytes += len(lines)
            messages += batch.num_rows
            if raw_bytes >= OBJECT_BYTES:
                yield put([*pieces, compressor.flush()], messages)
                compressor, pieces = zlib.compressobj(LEVEL, zlib.DEFLATED, GZIP), []
                raw_bytes = messages = 0
        if messages:
            yield put([*pieces, compressor.flush()], messages)

    return deliver


def _lines_of(payloads: Any) -> memoryview:
    """A newline behind every payload, all in one buffer, without a Python object for each."""
    import pyarrow
    from pyarrow import compute

    newline, nothing = pyarrow.scalar(b"\n", pyarrow.binary()), pyarrow.scalar(b"", pyarrow.binary())
    lines = compute.binary_join_element_wise(payloads, newline, nothing)
    _, offsets, data = lines.buffers()
    positions = memoryview(offsets).cast("i")
    return memoryview(data)[positions[lines.offset] : positions[lines.offset + len(lines)]]


def measure(work_dir: Path, messages: int, progress: Progress) -> tuple[list[Figure], str]:
    from penstock.pipeline.session import build_session
    from penstock.pipeline.source import register

    directory, objects, parquet = (work_dir / name for name in ("lake", "objects", "parquet"))
    with stores.open_store(directory) as (_server, address, http):
        progress(f"drain-gzip: filling {messages:,} messages of {PAYLOAD_BYTES} B")
        streams = stores.fill(address, messages, PAYLOAD_BYTES, 1)
        spark = build_session("local[2]", None, "1g", {})
        register(spark)
        try:
            log = (
                spark.read.format("penstock")
                .option("server", f"http://{http[0]}:{http[1]}")
                .option("tokenFile", str((directory / "http-token").absolute()))
                .option("stream", streams[0])
                .load()
            )
            progress("drain-gzip: copying to Parquet for the comparison")
            log.write.parquet(str(parquet.absolute()))
            url = f"file://{objects.absolute()}"
            _rate(log.limit(1000), url)  # the first job finds everything cold
            log_per_s = _rate(log, url)
            parquet_per_s = _rate(spark.read.parquet(str(parquet.absolute())), url)
        finally:
            spark.stop()
    figures = [
        Figure("messages to gzip objects in the embedded store", log_per_s, "messages/s", PER_S_MIN),
        Figure("the same in payload", log_per_s * PAYLOAD_BYTES / 1e6, "MB/s"),
        Figure("plain Spark, the same work from Parquet", parquet_per_s, "messages/s"),
        Figure("from the log ÷ from Parquet", log_per_s / parquet_per_s, "×"),
    ]
    return figures, "gzip on both cores" if log_per_s > 0.8 * parquet_per_s else "reading the log over HTTP"


def _rate(source: DataFrame, store_url: str) -> float:
    started = time.monotonic()
    rows = source.select("payload").mapInArrow(gzip_objects(store_url), "messages long").collect()
    return float(sum(row["messages"] for row in rows)) / (time.monotonic() - started)
