from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cli.conftest import CommandLine
from harness import ServerProcess
from penstock import __version__
from penstock.cli import exits
from penstock.cli.app import app

SHORT_HELP_MAX = 63  # beside the longest name, on 80 columns
DOCS = Path(__file__).parent.parent.parent / "docs"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_version(offline: CommandLine) -> None:
    assert offline.ok("--version").stdout.decode() == f"penstock {__version__}\n"


def test_help_lists_the_exit_codes_that_the_documentation_lists(offline: CommandLine) -> None:
    shown = offline.ok("--help").stdout.decode()
    documented = (DOCS / "cli.md").read_text()
    codes = [value for name, value in vars(exits).items() if name.isupper() and isinstance(value, int)]
    assert len(codes) == 8
    for code in codes:
        assert f"\n    {code} " in shown
        assert f"\n| {code} |" in documented


def test_the_documentation_names_every_command() -> None:
    documented = (DOCS / "cli.md").read_text()
    for name, command in app.commands.items():
        subcommands = command.commands if isinstance(command, click.Group) else [""]
        for subcommand in subcommands:
            assert f"`penstock {name} {subcommand}".rstrip() in documented


def test_no_command_shows_help_and_is_wrong_usage(offline: CommandLine) -> None:
    finished = offline.run("streams")
    assert finished.code == exits.USAGE
    assert "append" in finished.stderr


def test_wrong_usage_is_one_line_that_names_the_help(offline: CommandLine) -> None:
    finished = offline.run("streams", "read", "--form", "1", "x")
    assert finished.code == exits.USAGE
    assert finished.stderr.count("\n") == 1
    assert "'penstock streams read --help'" in finished.stderr


def test_wrong_usage_as_json(offline: CommandLine) -> None:
    finished = offline.run("streams", "create", "x", "--ttl", "soon", "--json")
    assert finished.code == exits.USAGE
    error = json.loads(finished.stderr)
    assert error["error"] == "Usage"
    assert error["exitCode"] == exits.USAGE
    assert "7d" in error["message"]


def test_json_after_two_dashes_is_a_message_not_an_option(offline: CommandLine) -> None:
    finished = offline.run("streams", "append", "x", "--server", "bad:", "--", "--json")
    assert finished.stderr.startswith("penstock: ")


def test_no_server(offline: CommandLine) -> None:
    finished = offline.run("streams", "list", "--server", f"127.0.0.1:{free_port()}")
    assert finished.code == exits.UNREACHABLE
    assert "'penstock up'" in finished.stderr
    assert finished.stderr.count("\n") == 1


def test_no_server_as_json(offline: CommandLine) -> None:
    finished = offline.run("streams", "list", "--json", "--server", f"127.0.0.1:{free_port()}")
    assert json.loads(finished.stderr)["exitCode"] == finished.code == exits.UNREACHABLE
    assert finished.stdout == b""


@pytest.mark.parametrize("arguments", [["--help"], ["streams", "read", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    program = (
        "import sys; from penstock.cli.app import run; code = run(sys.argv[1:]);"
        "heavy = {'rich', 'cbor2', 'msgspec', 'asyncio', 'starlette', 'uvicorn'} & set(sys.modules);"
        "sys.exit(f'imported: {heavy}' if heavy else code)"
    )
    subprocess.run([sys.executable, "-c", program, *arguments], check=True, stdout=subprocess.DEVNULL)


def _commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _commands(command, (*path, name))
        else:
            yield (*path, name)


@pytest.mark.parametrize("path", list(_commands(app)), ids=" ".join)
def test_the_lists_of_commands_cut_nothing_off(path: tuple[str, ...]) -> None:
    command: click.Command = app
    for name in path:
        assert isinstance(command, click.Group)
        command = command.commands[name]
        assert not command.get_short_help_str(SHORT_HELP_MAX).endswith("..."), (
            "its first sentence is too long"
        )


def test_the_port_of_the_other_protocol(shared_server: ServerProcess, offline: CommandLine) -> None:
    where = ["--data-dir", str(shared_server.data_dir), "--http", f"http://127.0.0.1:{shared_server.port}"]
    finished = offline.run("delivery", "list", *where)
    assert finished.code == exits.UNREACHABLE
    assert "does not speak HTTP" in finished.stderr
    assert finished.stderr.rstrip("\n").isprintable()


def test_an_unknown_stream(penstock: CommandLine) -> None:
    finished = penstock.run("streams", "read", "nowhere")
    assert finished.code == exits.NOT_FOUND
    assert finished.stderr == (
        "penstock: the message stream nowhere does not exist; 'penstock streams list' shows all\n"
    )
