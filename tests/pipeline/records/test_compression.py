"""Compressed objects are read back by the tools that people use: gzip, unzip, snappy-java, Hadoop and Spark."""

from __future__ import annotations

import gzip
import io
import random
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from penstock.pipeline.records import compression
from penstock.pipeline.records.compression import (
    HADOOP_BLOCK_BYTES,
    OUTPUT_BYTES_MIN,
    XERIAL_BLOCK_BYTES,
    compression_named,
)

MIB = 1024 * 1024
FORMATS = ["UNCOMPRESSED", "GZIP", "ZIP", "Snappy", "HADOOP_SNAPPY"]
ENTRY = "0b2d0d2c-5a3c-4d6e-8f5e-000000000000"
JARS = Path(pyspark.__file__).parent / "jars"


def lines(count: int) -> list[bytes]:
    return [b'{"reading":%d,"device":"pump %d"}\n' % (number * number, number % 7) for number in range(count)]


def noise(size_bytes: int) -> bytes:
    return random.Random(7).randbytes(size_bytes)


def compressed(name: str, chunks: list[bytes]) -> bytes:
    return b"".join(compression_named(name).stream([memoryview(chunk) for chunk in chunks], ENTRY))


BODIES = {
    "nothing": b"",
    "a byte": b"x",
    "lines": b"".join(lines(40_000)),
    "noise": noise(3 * MIB + 17),  # which snappy makes larger
    "a block": noise(HADOOP_BLOCK_BYTES),
    "a block and a byte": noise(XERIAL_BLOCK_BYTES + 1),
}
ALL_BODIES = pytest.mark.parametrize("content", BODIES.values(), ids=BODIES.keys())


@pytest.mark.parametrize(("count", "entries"), [(0, 1), (1, 1), (10, 1), (11, 2), (35, 4)])
def test_what_is_too_large_for_an_entry_goes_on_in_another(
    count: int, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "ZIP_ENTRY_BYTES", 1000)
    monkeypatch.setattr(compression, "DEFLATE_BLOCK_BYTES", 100)
    content = noise(100 * count)
    body = compressed("ZIP", [content[start : start + 100] for start in range(0, len(content), 100)])
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        assert archive.namelist() == [ENTRY, *(f"{ENTRY}-{number}" for number in range(1, entries))]
        assert b"".join(archive.read(name) for name in archive.namelist()) == content


@pytest.mark.parametrize(
    ("name", "extension", "encoding"),
    [
        ("UNCOMPRESSED", "", None),
        ("GZIP", ".gz", "gzip"),
        ("ZIP", ".zip", "zip"),
        ("Snappy", ".snappy", "snappy-java"),
        ("HADOOP_SNAPPY", ".snappy", "hadoop-snappy"),
    ],
)
def test_what_objects_are_called(name: str, extension: str, encoding: str | None) -> None:
    assert compression_named(name)[:2] == (extension, encoding)


def test_the_documentation_has_the_same_table() -> None:
    text = (Path(__file__).parents[3] / "docs" / "firehose-s3.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (?:`(\S+)` )?\| (?:`(\S+)` )?\|", text, re.MULTILINE)
    documented = {
        name: (extension, encoding or None) for name, extension, encoding in rows if name in FORMATS
    }
    assert documented == {name: compression_named(name)[:2] for name in FORMATS}


@ALL_BODIES
def test_uncompressed(content: bytes) -> None:
    assert compressed("UNCOMPRESSED", [content[:100], content[100:]]) == content


@ALL_BODIES
def test_gzip_reads_it(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "object.gz"
    path.write_bytes(compressed("GZIP", [content[:1000], content[1000:]]))
    assert subprocess.run(["gzip", "-dc", path], check=True, capture_output=True).stdout == content
    assert gzip.decompress(path.read_bytes()) == content
    assert path.read_bytes()[4:8] == bytes(4)  # no time


@ALL_BODIES
def test_unzip_reads_it(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "object.zip"
    path.write_bytes(compressed("ZIP", [content[:1000], content[1000:]]))
    assert subprocess.run(["unzip", "-p", path], check=True, capture_output=True).stdout == content
    with zipfile.ZipFile(path) as archive:
        [entry] = archive.infolist()
        assert (entry.filename, entry.compress_type) == (ENTRY, zipfile.ZIP_DEFLATED)


READER = """
import java.io.*; import java.nio.file.*;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.io.compress.SnappyCodec;
import org.xerial.snappy.SnappyInputStream;
class Reader {
    public static void main(String[] args) throws Exception {
        var codec = new SnappyCodec();
        codec.setConf(new Configuration());
        for (String name : args) {
            var file = new BufferedInputStream(new FileInputStream(name));
            InputStream in = name.endsWith(".xerial") ? new SnappyInputStream(file) : codec.createInputStream(file);
            Files.write(Path.of(name + ".read"), in.readAllBytes());
        }
    }
}
"""


def test_snappy_java_and_hadoop_read_it(tmp_path: Path) -> None:
    """With the classes that Spark ships."""
    (tmp_path / "Reader.java").write_text(READER)
    contents = {}
    for number, content in enumerate(BODIES.values()):
        for name, extension in (("Snappy", "xerial"), ("HADOOP_SNAPPY", "hadoop")):
            path = tmp_path / f"{number}.{extension}"
            path.write_bytes(compressed(name, [content[:70_000], content[70_000:]]))
            contents[str(path)] = content
    java = ["java", "-cp", f"{JARS}/*", str(tmp_path / "Reader.java"), *contents]
    finished = subprocess.run(java, capture_output=True, text=True, timeout=100)
    assert finished.returncode == 0, finished.stderr
    different = [path for path, content in contents.items() if Path(f"{path}.read").read_bytes() != content]
    assert different == []


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
        session = builder.config("spark.log.level", "ERROR").getOrCreate()
        yield session
        session.stop()


def test_spark_reads_it(spark: SparkSession, tmp_path: Path) -> None:
    written = lines(40_000)
    expected = [line.decode().rstrip("\n") for line in written]
    for name in ("UNCOMPRESSED", "GZIP", "HADOOP_SNAPPY"):
        path = tmp_path / f"object{compression_named(name).extension}"
        path.write_bytes(compressed(name, written))
        assert [row.value for row in spark.read.text(str(path)).collect()] == expected


@pytest.mark.parametrize("name", FORMATS)
def test_the_same_records_make_the_same_bytes(name: str) -> None:
    written = lines(5_000)
    assert compressed(name, written) == compressed(name, written)


@pytest.mark.parametrize("name", FORMATS)
def test_an_object_is_made_while_its_records_come(name: str) -> None:
    """Or memory would have to hold all of it."""
    taken = 0

    def records() -> Iterator[bytes]:
        nonlocal taken
        for _ in range(64):
            taken += 1
            yield noise(64 * 1024)

    pieces = compression_named(name).stream(records(), ENTRY)
    assert OUTPUT_BYTES_MIN <= len(next(pieces)) <= 2 * OUTPUT_BYTES_MIN + 64 * 1024
    assert taken < 10


@given(st.lists(st.binary(max_size=100_000), max_size=6))
def test_how_records_come_does_not_show(chunks: list[bytes]) -> None:
    for name in FORMATS:
        assert compressed(name, chunks) == compressed(name, [b"".join(chunks)])


@pytest.mark.parametrize("name", FORMATS)
def test_how_many_records_come_at_a_time_does_not_show(name: str) -> None:
    """Frames are merged while a flush waits for its next attempt."""
    written = [b'{"customer":"c-%d","at":%d}\n' % (number * 7919 % 1000, number) for number in range(50_000)]
    merged = [b"".join(written[start : start + 3_000]) for start in range(0, len(written), 3_000)]
    assert compressed(name, written) == compressed(name, merged)
