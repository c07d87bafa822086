"""penstock log verify, inspect"""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.conftest import CommandLine
from harness import ServerProcess
from penstock.cli import exits

PAYLOAD = b"find-me-in-the-segment"


@pytest.fixture
def data_dir(server: ServerProcess) -> Path:
    """What a stopped server leaves: one stream with ten messages, and an empty one."""
    command_line = CommandLine(server)
    command_line.ok("streams", "create", "ten")
    command_line.ok("streams", "create", "empty")
    for number in range(10):
        command_line.ok("streams", "append", "ten", PAYLOAD.decode() + str(number))
    server.stop()
    return server.data_dir


def damage(data_dir: Path) -> None:
    """Flips one bit of a message in the middle, where recovery must not take it for a torn tail."""
    [path] = [
        path for path in (data_dir / "streams").rglob("*") if path.is_file() and PAYLOAD in path.read_bytes()
    ]
    content = bytearray(path.read_bytes())
    content[content.index(PAYLOAD + b"5")] ^= 1
    path.write_bytes(content)


def snapshot(data_dir: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in data_dir.rglob("*") if path.is_file()}


def test_sound(offline: CommandLine, data_dir: Path) -> None:
    before = snapshot(data_dir)
    finished = offline.ok("log", "verify", str(data_dir))
    header, *rows = finished.stdout.decode().splitlines()
    shown = [dict(zip(header.split("\t"), row.split("\t"), strict=True)) for row in rows]
    assert sum(int(row["messages"]) for row in shown if row["stream"] == "ten") == 10
    assert "10 messages: no damage found" in finished.stderr
    assert snapshot(data_dir) == before


def test_sound_as_json(offline: CommandLine, data_dir: Path) -> None:
    reports = offline.ok("log", "verify", str(data_dir), "--json").json_lines
    [ten] = [report for report in reports if report["stream"] == "ten"]
    assert ten["state"] in ("active", "sealed")
    assert (ten["firstSequenceNumber"], ten["nextSequenceNumber"], ten["messages"]) == (0, 10, 10)
    assert (ten["problems"], ten["gaps"]) == ([], [])
    assert ten["sizeBytes"] > 10 * len(PAYLOAD)


def test_damaged(offline: CommandLine, data_dir: Path) -> None:
    damage(data_dir)
    before = snapshot(data_dir)
    finished = offline.run("log", "verify", str(data_dir))
    assert finished.code == exits.CORRUPT
    assert "stream ten, segment " in finished.stderr
    assert "Copy the directory" in finished.stderr
    assert snapshot(data_dir) == before


def test_damaged_as_json(offline: CommandLine, data_dir: Path) -> None:
    damage(data_dir)
    finished = offline.run("log", "verify", str(data_dir), "--json")
    assert finished.code == exits.CORRUPT
    [ten] = [report for report in finished.json_lines if report["stream"] == "ten"]
    assert ten["problems"]
    assert any(gap["first"] <= 5 < gap["next"] for gap in ten["gaps"])


def test_segments(offline: CommandLine, data_dir: Path) -> None:
    shown = offline.ok("log", "inspect", str(data_dir)).stdout.decode()
    assert "\nten\t" in shown


def test_frames(offline: CommandLine, data_dir: Path) -> None:
    frames = offline.ok("log", "inspect", str(data_dir), "ten", "--json").json_lines
    assert sum(frame["count"] for frame in frames) == 10
    assert sum(frame["dataBytes"] for frame in frames) == 10 * (len(PAYLOAD) + 1)
    numbers = [frame["firstSequenceNumber"] for frame in frames]
    assert numbers == sorted(set(numbers))
    header, *rows = offline.ok("log", "inspect", str(data_dir), "ten").stdout.decode().splitlines()
    assert header.split()[:3] == ["segment", "offset", "first"]
    assert len(rows) == len(frames)


def test_frames_of_no_stream(offline: CommandLine, data_dir: Path) -> None:
    finished = offline.run("log", "inspect", str(data_dir), "none")
    assert finished.code == exits.NOT_FOUND
    assert "Traceback" not in finished.stderr


@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_no_such_directory(offline: CommandLine, tmp_path: Path, command: str) -> None:
    finished = offline.run("log", command, str(tmp_path / "none"))
    assert finished.code == exits.USAGE
    assert "does not exist" in finished.stderr
