"""The examples that a newcomer copies are run as they stand."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cli.conftest import CommandLine
from harness import ServerProcess

ROOT = Path(__file__).parent.parent.parent


def blocks(document: str, language: str, containing: str) -> list[str]:
    found = re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    return [block for block in found if containing in block]


@pytest.fixture
def fresh(server: ServerProcess, tmp_path: Path) -> CommandLine:
    """A server without streams, and `penstock` on the PATH."""
    command_line = CommandLine(server)
    command = tmp_path / "penstock"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m penstock "$@"\n')
    command.chmod(0o755)
    command_line.env["PATH"] = f"{tmp_path}{os.pathsep}{command_line.env['PATH']}"
    command_line.env["STREAM_MANAGER_SERVER_PORT"] = str(server.port)
    command_line.env["PENSTOCK_HTTP_PORT"] = str(server.http_port)
    command_line.env["PENSTOCK_DATA_DIR"] = str(server.data_dir)
    return command_line


def shell(fresh: CommandLine, script: str, cwd: Path) -> str:
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env=fresh.env,
        cwd=cwd,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout


def test_first_stream_with_the_command_line(fresh: CommandLine, tmp_path: Path) -> None:
    [script] = blocks("README.md", "sh", "streams append")
    assert "tail readings -f\n" in script
    assert (
        shell(fresh, script.replace("tail readings -f", "tail readings"), tmp_path)
        == '{"temperature": 21.5}\n'
    )


def test_first_stream_with_the_sdk(fresh: CommandLine, tmp_path: Path) -> None:
    [program] = blocks("README.md", "python", "stream_manager")
    finished = subprocess.run(
        [sys.executable, "-c", program],
        env=fresh.env,
        cwd=tmp_path,
        check=True,
        capture_output=True,
        timeout=60,
    )
    assert finished.stdout == b"b'hello'\n"


def test_first_export(fresh: CommandLine, tmp_path: Path) -> None:
    [script] = blocks("README.md", "sh", "exports list")
    assert "\noutgoing\tto-web\thttp\tidle\t" in shell(fresh, script, tmp_path)


def test_first_delivery_stream(fresh: CommandLine, server: ServerProcess, tmp_path: Path) -> None:
    """Up to the flush, for which there is no pipeline here."""
    (tmp_path / "aws").symlink_to(ROOT / ".venvs/awscli/bin/aws")
    [script] = blocks("README.md", "sh", "firehose put-record")
    [program] = blocks("README.md", "python", "put_record_batch")
    script = re.sub("penstock delivery flush.*", f"'{sys.executable}' program.py", script)
    (tmp_path / "program.py").write_text(program)
    said = shell(fresh, script.replace(":8080", f":{server.http_port}"), tmp_path)
    assert re.search(r"^clicks\t.*ACTIVE", said, re.MULTILINE)
    assert said.endswith("\n0\n")
    [stream] = json.loads(fresh.ok("delivery", "list", "--json").stdout)["deliveryStreams"]
    assert stream["progress"]["waitingRecords"] == 3


def test_exports(fresh: CommandLine, tmp_path: Path) -> None:
    definition = b'{"exportDefinition": {"http": [{"identifier": "to-lake", "uri": "http://127.0.0.1:1/"}]}}'
    fresh.ok("streams", "create", "readings", "--definition", "-", stdin=definition)
    [script] = blocks("docs/cli.md", "sh", "exports rewind")
    [described] = [line for line in shell(fresh, script, tmp_path).splitlines() if line.startswith("{")]
    assert '"export":"to-lake"' in described


def test_creating_appending_reading(fresh: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(bytes(range(256)))
    [creating] = blocks("docs/cli.md", "sh", "streams create")
    shell(fresh, creating, tmp_path)
    for name in ("logs", "images", "files"):
        fresh.ok("streams", "create", name)

    [appending] = blocks("docs/cli.md", "sh", "streams append")
    shell(fresh, appending.replace("journalctl -f -o json", "echo '{}'"), tmp_path)
    assert fresh.ok("streams", "read", "logs").stdout == b"{}\n"
    assert b"./photo.jpg\n" in fresh.ok("streams", "read", "files").stdout

    (tmp_path / "photo.jpg").unlink()
    [reading] = blocks("docs/cli.md", "sh", "streams read")
    read = shell(fresh, reading.replace("tail readings -f", "tail readings"), tmp_path)
    assert re.fullmatch(r"hello\nworld\n0 \S+Z hello\n1 \S+Z world\n", read)
    assert (tmp_path / "photo.jpg").read_bytes() == bytes(range(256))
