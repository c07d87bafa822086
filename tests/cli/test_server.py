from __future__ import annotations

import signal
from pathlib import Path

import pytest

from cli.conftest import CommandLine
from harness import ServerProcess
from penstock.cli import exits
from penstock.cli.pipeline import pipeline
from penstock.cli.server import server
from penstock.cli.settings import COMMON_FLAGS, PIPELINE_FLAGS, SERVER_FLAGS
from penstock.cli.up import up
from penstock.config import SETTINGS, Settings, flag_name, load_settings, misspelt_variables

FLAGS = (*COMMON_FLAGS, *SERVER_FLAGS, *PIPELINE_FLAGS)


def test_every_setting_has_a_flag() -> None:
    assert {flag.setting for flag in FLAGS} == SETTINGS.keys() - {"authenticate_client"}
    options = {option.name: option.opts for command in (up, server, pipeline) for option in command.params}
    for name in SETTINGS.keys() - {"authenticate_client"}:
        assert options[name] == [flag_name(name)]


def test_the_defaults_that_help_shows_are_the_defaults(tmp_path: Path) -> None:
    shown = {flag.setting: flag.default for flag in FLAGS}
    assert load_settings(shown, {}, tmp_path) == Settings(data_dir=tmp_path / "penstock-data")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--http-port", "70000"], "--http-port: '70000' is not a port"),
        (["--host", "0.0.0.0"], "PENSTOCK_CLIENT_TOKENS_FILE"),
        (["--config", "nowhere.toml"], "does not exist"),
        (["--client-tokens-file", "nowhere"], "one token a line"),
    ],
)
def test_a_wrong_setting_stops_the_start(
    offline: CommandLine, tmp_path: Path, arguments: list[str], said: str
) -> None:
    ports = ["--stream-manager-port", "0", *(["--http-port", "0"] if "--http-port" not in arguments else [])]
    finished = offline.run("server", "--data-dir", str(tmp_path / "data"), *ports, *arguments)
    assert finished.code == exits.USAGE
    assert said in finished.stderr
    assert "Traceback" not in finished.stderr
    assert finished.stdout == b""


def test_authentication_without_tokens_warns_and_lets_nobody_in(tmp_path: Path) -> None:
    process = ServerProcess(tmp_path / "data", env={"STREAM_MANAGER_AUTHENTICATE_CLIENT": "true"}).start()
    try:
        assert "warning: client authentication is on" in process.log_text
        assert CommandLine(process).run("streams", "list").code == exits.UNAUTHORIZED
    finally:
        process.stop()


def test_tokens(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("# clients\nsecret-1\nsecret-2\n")
    tokens.chmod(0o600)
    process = ServerProcess(tmp_path / "data", env={"PENSTOCK_CLIENT_TOKENS_FILE": str(tokens)}).start()
    try:
        command_line = CommandLine(process)
        refused = command_line.run("streams", "list", env={"PENSTOCK_CLIENT_TOKEN": "secret-3"})
        assert refused.code == exits.UNAUTHORIZED
        assert "--token-file" in refused.stderr
        command_line.ok("streams", "list", env={"PENSTOCK_CLIENT_TOKEN": "secret-2"})
        command_line.ok("streams", "list", env={"AWS_CONTAINER_AUTHORIZATION_TOKEN": "secret-1"})
        command_line.ok("streams", "list", "--token-file", str(tokens), env={"PENSTOCK_CLIENT_TOKEN": "x"})
    finally:
        process.stop()


def test_a_second_server_on_the_same_directory_is_refused(
    server: ServerProcess, offline: CommandLine
) -> None:
    second = offline.run(
        "server", "--data-dir", str(server.data_dir), "--stream-manager-port", "0", "--http-port", "0"
    )
    assert second.code == exits.REFUSED
    assert str(server.data_dir) in second.stderr
    assert "Traceback" not in second.stderr


def test_a_taken_port_is_explained(server: ServerProcess, offline: CommandLine, tmp_path: Path) -> None:
    taken = ["--stream-manager-port", str(server.port), "--http-port", "0"]
    finished = offline.run("server", "--data-dir", str(tmp_path / "other"), *taken)
    assert finished.code in (exits.REFUSED, exits.USAGE)
    assert str(server.port) in finished.stderr
    assert "Traceback" not in finished.stderr


def test_interrupt_ends_the_server_cleanly(offline: CommandLine, tmp_path: Path) -> None:
    ports = ["--stream-manager-port", "0", "--http-port", "0"]
    process = offline.start("server", "--data-dir", str(tmp_path / "data"), *ports)
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"penstock ready ")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode in (exits.OK, exits.INTERRUPTED)
    assert b"Traceback" not in stderr


def test_a_data_directory_that_cannot_be_used(offline: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for unusable in (file, file / "below"):
        finished = offline.run("server", "--data-dir", str(unusable))
        assert finished.code == exits.USAGE
        assert f"the data directory {unusable} cannot be used" in finished.stderr
        assert finished.stderr.count("\n") == 1


def test_a_misspelt_variable_is_told() -> None:
    env = {"PENSTOCK_HTP_PORT": "1", "PENSTOCK_HTTP_PORT": "1", "PENSTOCK_TEAM": "x", "HTP_PORT": "1"}
    assert misspelt_variables(env) == ["PENSTOCK_HTP_PORT is not a setting; did you mean PENSTOCK_HTTP_PORT?"]
