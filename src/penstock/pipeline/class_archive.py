"""What Java makes of Spark's classes, kept in a file: with it a pipeline starts in half the time."""

from __future__ import annotations

import logging
import os
import subprocess
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from penstock.errors import PenstockError
from penstock.pipeline.java import find_java
from penstock.pipeline.session import JAVA_OPTIONS

logger = logging.getLogger(__name__)

ARCHIVE_NAME = "spark-classes.jsa"
NOTE_NAME = "spark-classes.json"
JAVA_S = 30
DUMP_S = 300
CHUNK_BYTES = 1024 * 1024

_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"  # an archive that does not fit is no reason to say anything


class NotPrepared(PenstockError):
    """Java wrote no archive, or one that it cannot read."""


class Note(msgspec.Struct, frozen=True):
    """Beside an archive. Java looks whether it fits, but trusts its bytes: cut short, it would bring Java down."""

    java: str
    pyspark: str
    size_bytes: int
    crc32: int


def with_archive(spark: Mapping[str, str], data_dir: Path, env: Mapping[str, str]) -> dict[str, str]:
    """The properties of Spark, with the archive of this data directory if there is one that can be used."""
    path = data_dir / ARCHIVE_NAME
    try:
        note = msgspec.json.decode((data_dir / NOTE_NAME).read_bytes(), type=Note)
        fits = note == _note_of(path, env)
    except FileNotFoundError:
        return dict(spark)
    except (OSError, msgspec.DecodeError):
        fits = False
    if not fits:
        logger.info(
            "%s is damaged, or of another Java or Spark, and not used: 'penstock prepare' makes it anew", path
        )
        return dict(spark)
    return _with_options(spark, f'"-XX:SharedArchiveFile={path}" -Xshare:auto {_QUIET}')


def make_archive(
    data_dir: Path,
    spark: Mapping[str, str],
    env: Mapping[str, str],
    rehearse: Callable[[dict[str, str]], None],
) -> tuple[Path, Note]:
    """`rehearse` does with Spark what a pipeline does when it starts; Java writes the archive when it ends."""
    path, note_path = data_dir / ARCHIVE_NAME, data_dir / NOTE_NAME
    made, made_note = data_dir / f"{ARCHIVE_NAME}.new", data_dir / f"{NOTE_NAME}.new"
    try:
        made.unlink(missing_ok=True)
        rehearse(_with_options(spark, f'"-XX:ArchiveClassesAtExit={made}" {_QUIET}'))
        _end_java()
        if not made.exists() or not _can_read(made, env):
            raise NotPrepared(
                f"Java wrote no archive of its classes to {data_dir}; see whether 500 MB are free there. "
                "The pipeline starts as before"
            )
        note = _note_of(made, env)
        made_note.write_bytes(msgspec.json.encode(note))
        note_path.unlink(missing_ok=True)  # whatever happens from here on: no note without its archive
        made.replace(path)
        made_note.replace(note_path)
    finally:
        made.unlink(missing_ok=True)
        made_note.unlink(missing_ok=True)
    return path, note


def _with_options(spark: Mapping[str, str], options: str) -> dict[str, str]:
    return {**spark, JAVA_OPTIONS: f"{spark.get(JAVA_OPTIONS, '')} {options}".strip()}


def _end_java() -> None:
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()  # what it ends with
    gateway.proc.wait(DUMP_S)
    SparkContext._gateway = SparkContext._jvm = None


def _can_read(archive: Path, env: Mapping[str, str]) -> bool:
    options = [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", f"-XX:ErrorFile={os.devnull}"]
    return _java(env, *options, *_QUIET.split()).returncode == 0


def _note_of(archive: Path, env: Mapping[str, str]) -> Note:
    import pyspark

    crc32 = 0
    with archive.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            crc32 = zlib.crc32(chunk, crc32)
    java = _java(env).stderr.decode(errors="replace").strip()
    return Note(java, f"{pyspark.__version__} in {pyspark.__path__[0]}", archive.stat().st_size, crc32)


def _java(env: Mapping[str, str], *options: str) -> subprocess.CompletedProcess[bytes]:
    java = find_java(env)
    assert java is not None  # whoever starts Spark has looked
    return subprocess.run([java, *options, "-version"], capture_output=True, env=dict(env), timeout=JAVA_S)
