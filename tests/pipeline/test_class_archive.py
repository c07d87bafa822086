"""The archive of Java's classes: made by a real Java, used only when it is what was made."""

from __future__ import annotations

import os
import signal
import zlib
from pathlib import Path

import msgspec
import pyspark
import pytest

from cli.conftest import CommandLine
from harness import ServerProcess
from penstock.pipeline.class_archive import ARCHIVE_NAME, NOTE_NAME, Note, with_archive
from penstock.pipeline.session import JAVA_OPTIONS
from pipeline.pipeline_process import PipelineProcess

CONTENT = bytes(range(256)) * 100
JAVA = 'openjdk version "17.0.15"'


class Site:
    """A data directory with an archive, and a Java that only tells its version."""

    def __init__(self, root: Path) -> None:
        self.data_dir = root / "data"
        self.data_dir.mkdir()
        self.archive = self.data_dir / ARCHIVE_NAME
        self.archive.write_bytes(CONTENT)
        self.note = Note(
            JAVA, f"{pyspark.__version__} in {pyspark.__path__[0]}", len(CONTENT), zlib.crc32(CONTENT)
        )
        self.write_note(self.note)
        self.env = {"JAVA_HOME": str(root / "java")}
        self._java = root / "java" / "bin" / "java"
        self._java.parent.mkdir(parents=True)
        self.update_java(JAVA)

    def write_note(self, note: Note) -> None:
        (self.data_dir / NOTE_NAME).write_bytes(msgspec.json.encode(note))

    def update_java(self, version: str) -> None:
        self._java.write_text(f"#!/bin/sh\necho '{version}' >&2\n")
        self._java.chmod(0o755)

    @property
    def options(self) -> str:
        return with_archive({}, self.data_dir, self.env).get(JAVA_OPTIONS, "")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_java_is_told_of_the_archive(site: Site) -> None:
    assert f'"-XX:SharedArchiveFile={site.archive}" -Xshare:auto' in site.options


def test_what_the_user_set_stays(site: Site) -> None:
    given = {JAVA_OPTIONS: "-Da=b", "spark.driver.extraJavaOptions": "-Dc=d"}
    used = with_archive(given, site.data_dir, site.env)
    assert used[JAVA_OPTIONS].startswith("-Da=b ")
    assert "SharedArchiveFile" in used[JAVA_OPTIONS]
    assert used["spark.driver.extraJavaOptions"] == "-Dc=d"


@pytest.mark.parametrize("name", [ARCHIVE_NAME, NOTE_NAME])
def test_half_of_it_is_none(site: Site, name: str) -> None:
    (site.data_dir / name).unlink()
    assert site.options == ""


def test_an_archive_that_was_cut_short_is_not_used(site: Site) -> None:
    site.archive.write_bytes(CONTENT[:-1])
    assert site.options == ""


def test_an_archive_with_other_bytes_is_not_used(site: Site) -> None:
    site.archive.write_bytes(CONTENT[:1000] + b"\xff" + CONTENT[1001:])
    assert site.options == ""


def test_a_damaged_note_is_none(site: Site) -> None:
    (site.data_dir / NOTE_NAME).write_bytes(b'{"java": ')
    assert site.options == ""


def test_another_java_or_spark(site: Site) -> None:
    site.update_java('openjdk version "21.0.1"')
    assert site.options == ""
    site.update_java(JAVA)
    assert site.options
    site.write_note(msgspec.structs.replace(site.note, pyspark="4.0.0 elsewhere"))
    assert site.options == ""


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.skipif("PENSTOCK_SOAK" not in os.environ, reason="starts two JVMs of its own: make soak")
def test_a_pipeline_starts_with_what_prepare_made(server: ServerProcess, tmp_path: Path) -> None:
    command_line = CommandLine(server)
    finished = command_line.run(
        "prepare",
        "--data-dir",
        str(server.data_dir),
        "--json",
        "--conf",
        "spark.log.level=ERROR",
        timeout_s=300,
    )
    assert finished.code == 0, finished.stderr
    archive = server.data_dir / ARCHIVE_NAME
    assert finished.json["file"] == str(archive)
    assert finished.json["sizeBytes"] == archive.stat().st_size > 2**20
    assert sorted(path.name for path in server.data_dir.glob("spark-*")) == [ARCHIVE_NAME, NOTE_NAME]

    pipeline = PipelineProcess(server, tmp_path / "pipeline.log").start()
    try:
        [java] = pipeline.descendants("org.apache.spark.deploy.SparkSubmit")
        assert str(archive) in Path(f"/proc/{java}/maps").read_text()
        os.killpg(pipeline.pid, signal.SIGTERM)  # as systemd does: Java may end before the pipeline
        assert pipeline.wait(60) == 0, pipeline.log_tail()
    finally:
        pipeline.sweep()
