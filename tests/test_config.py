"""Where settings come from, and what is said when they are wrong."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from penstock.config import (
    HTTP_TOKEN_FILE_NAME,
    SETTINGS,
    Settings,
    env_name,
    load_client_tokens,
    load_http_token,
    load_http_url,
    load_server_address,
    load_settings,
    parse_size_bytes,
)
from penstock.doors.firehose.body import BODY_BYTES_MAX
from penstock.doors.http.access import load_or_create_token
from penstock.errors import ConfigError

ROOT = Path(__file__).parent.parent


def test_defaults(tmp_path: Path) -> None:
    assert load_settings({}, {}, tmp_path) == Settings(data_dir=tmp_path / "penstock-data")


def test_every_setting_can_be_set_everywhere() -> None:
    assert tuple(SETTINGS) == Settings.__struct_fields__


def test_order_of_sources(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text("stream_manager_port = 1")
    env: dict[str, str] = {}
    assert load_settings({}, env, tmp_path).stream_manager_port == 1
    env["STREAM_MANAGER_SERVER_PORT"] = "2"
    assert load_settings({}, env, tmp_path).stream_manager_port == 2
    env["PENSTOCK_STREAM_MANAGER_PORT"] = "3"
    assert load_settings({}, env, tmp_path).stream_manager_port == 3
    assert load_settings({"stream_manager_port": 4}, env, tmp_path).stream_manager_port == 4
    assert load_settings({"stream_manager_port": None}, env, tmp_path).stream_manager_port == 3


def test_every_parameter_of_stream_manager(tmp_path: Path) -> None:
    env = {
        "STREAM_MANAGER_STORE_ROOT_DIR": "/var/streams",
        "STREAM_MANAGER_SERVER_PORT": "0",
        "STREAM_MANAGER_AUTHENTICATE_CLIENT": "true",
        "STREAM_MANAGER_EXPORTER_MAX_BANDWIDTH": "20000",
        "STREAM_MANAGER_EXPORTER_THREAD_POOL_SIZE": "7",
        "STREAM_MANAGER_EXPORTER_S3_DESTINATION_MULTIPART_UPLOAD_MIN_PART_SIZE_BYTES": "6291456",
        "STREAM_MANAGER_EXPORTER_KINESIS_INTER_CALL_DELAY_MS": "0",
        "STREAM_MANAGER_READ_ONLY_DIRS": "/a, /b",
        "LOG_LEVEL": "debug",
        "JVM_ARGS": "-Xmx256m",
    }
    assert load_settings({}, env, tmp_path) == Settings(
        data_dir=Path("/var/streams"),
        stream_manager_port=0,
        authenticate_client=True,
        exporter_max_bandwidth_kbps=20000,
        exporter_thread_pool_size=7,
        s3_min_part_size_bytes=6291456,
        kinesis_inter_call_delay_ms=0,
        read_only_dirs=(Path("/a"), Path("/b")),
        log_level="DEBUG",
    )


def test_old_spelling_of_the_thread_pool_size(tmp_path: Path) -> None:
    env = {"STREAM_MANAGER_THREAD_POOL_SIZE": "3"}
    assert load_settings({}, env, tmp_path).exporter_thread_pool_size == 3


@pytest.mark.parametrize("empty", ["", " "])
def test_an_empty_variable_is_not_set(tmp_path: Path, empty: str) -> None:
    env = dict.fromkeys(["STREAM_MANAGER_SERVER_PORT", "PENSTOCK_HOST", "PENSTOCK_CONFIG"], empty.strip())
    env["PENSTOCK_HTTP_PORT"] = empty
    assert load_settings({}, env, tmp_path) == Settings(data_dir=tmp_path / "penstock-data")


def test_paths_are_relative_to_what_names_them(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "edge.toml").write_text('data_dir = "data"\nread_only_dirs = ["in", "/abs"]')
    settings = load_settings({"config": "etc/edge.toml"}, {}, tmp_path)
    assert settings.data_dir == tmp_path / "etc" / "data"
    assert settings.read_only_dirs == (tmp_path / "etc" / "in", Path("/abs"))
    by_env = load_settings({}, {"PENSTOCK_CONFIG": "etc/edge.toml", "PENSTOCK_DATA_DIR": "mine"}, tmp_path)
    assert by_env.data_dir == tmp_path / "mine"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("data_dri = 'x'", r"penstock\.toml: unknown key 'data_dri'; did you mean 'data_dir'\?"),
        ("colour = 'x'", r"unknown key 'colour'; remove it; known keys: data_dir, host"),
        (
            "http_port = 70000",
            r"penstock\.toml: http_port: 70000 is not a port from 0 to 65535.*default \(8080\)",
        ),
        ("http_port = true", r"True is not a port"),
        ("authenticate_client = 'maybe'", r"'maybe' is not true or false"),
        ("http_port = ", r"penstock\.toml is not valid TOML"),
        ("exports = 1", r"'exports' must be a table"),
        ("exports.partition_key = {}", r"unknown key 'partition_key'; did you mean 'partition_keys'\?"),
        ("exports.partition_keys = 'x'", r"'x' is not a table of"),
        ("exports.partition_keys = {e = 1}", r"is not a table of .*default \(none\)"),
        ("object_store = 'file://here'", r"is not s3, or file:// and an absolute path"),
        ("pipeline_master = 'mesos'", r"is not a Spark master"),
        ("pipeline_remote = 'host'", r"is not a Spark Connect server"),
        ("pipeline_heap = '449m'", r"'449m' is not a Java heap size from 480m on"),
        ("message_size_max_bytes = '64 parsecs'", r"'64 parsecs' is not a size from 1 to"),
    ],
)
def test_mistakes_in_the_file(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "penstock.toml").write_text(content)
    with pytest.raises(ConfigError, match=said):
        load_settings({}, {}, tmp_path)


@pytest.mark.parametrize(
    ("flags", "env", "said"),
    [
        (
            {"log_level": "loud"},
            {},
            r"^--log-level: 'loud' is not TRACE, DEBUG, INFO, WARN or ERROR; correct",
        ),
        ({}, {"PENSTOCK_HTTP_PORT": "x"}, r"^PENSTOCK_HTTP_PORT: 'x' is not a port"),
        ({}, {"STREAM_MANAGER_SERVER_PORT": "-1"}, r"^STREAM_MANAGER_SERVER_PORT: '-1' is not a port"),
        ({"s3_min_part_size_bytes": 5242879}, {}, r"a size from 5MiB to 5GiB"),
        ({"config": "nowhere.toml"}, {}, r"nowhere\.toml does not exist; correct --config"),
    ],
)
def test_mistakes_elsewhere(tmp_path: Path, flags: dict[str, object], env: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_settings(flags, env, tmp_path)


def test_the_input_buffer_has_room_for_the_largest_request(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'8MiB' is not a size from 9MiB to 1TiB"):
        load_settings({"input_buffer_max_bytes": "8MiB"}, {}, tmp_path)
    least = load_settings({"input_buffer_max_bytes": "9MiB"}, {}, tmp_path)
    assert least.input_buffer_max_bytes > BODY_BYTES_MAX


def test_a_client_tokens_file_turns_authentication_on(tmp_path: Path) -> None:
    settings = load_settings({"client_tokens_file": "tokens"}, {}, tmp_path)
    assert settings.authenticate_client
    assert settings.client_tokens_file == tmp_path / "tokens"
    assert settings.warnings() == []


def test_authentication_without_tokens_lets_nobody_in_and_says_so(tmp_path: Path) -> None:
    settings = load_settings({}, {"STREAM_MANAGER_AUTHENTICATE_CLIENT": "true"}, tmp_path)
    assert settings.authenticate_client
    assert "PENSTOCK_CLIENT_TOKENS_FILE" in settings.warnings()[0]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "edge-7"])
def test_other_machines_need_tokens(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError, match="PENSTOCK_CLIENT_TOKENS_FILE"):
        load_settings({"host": host}, {"STREAM_MANAGER_AUTHENTICATE_CLIENT": "true"}, tmp_path)
    with pytest.raises(ConfigError, match="PENSTOCK_ACCESS_KEYS_FILE"):
        load_settings({"host": host, "client_tokens_file": "tokens"}, {}, tmp_path)
    both: dict[str, object] = {"client_tokens_file": "tokens", "access_keys_file": "keys"}
    assert load_settings({"host": host, **both}, {}, tmp_path).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_needs_none(tmp_path: Path, host: str) -> None:
    assert load_settings({"host": host}, {}, tmp_path).host == host


def test_client_tokens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(b"# gateway\nfirst\n\n  second \r\n#third\n")
    path.chmod(0o600)
    assert load_client_tokens(path) == (b"first", b"second")
    assert not caplog.records
    path.write_bytes(b"")
    path.chmod(0o644)
    assert load_client_tokens(path) == ()
    assert f"chmod o-r {path}" in caplog.text


def test_missing_client_tokens_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one token a line"):
        load_client_tokens(tmp_path / "none")


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("1", 1), ("1024B", 1024), ("1KiB", 1024), ("1k", 1024), ("2MB", 2_000_000), ("1.5 GiB", 3 * 2**29)],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1e3", "1 parsec", "1.MiB", "٣"])
def test_not_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="256MiB"):
        parse_size_bytes(text)


@pytest.mark.parametrize(
    ("server", "env", "address"),
    [
        (None, {}, ("127.0.0.1", 8088)),
        ("edge-7:9000", {"PENSTOCK_STREAM_MANAGER_PORT": "1"}, ("edge-7", 9000)),
        ("edge-7", {}, ("edge-7", 8088)),
        ("[::1]:9000", {}, ("::1", 9000)),
        (None, {"PENSTOCK_HOST": "0.0.0.0", "PENSTOCK_STREAM_MANAGER_PORT": "9001"}, ("127.0.0.1", 9001)),
        (None, {"STREAM_MANAGER_SERVER_HOST": "a", "STREAM_MANAGER_SERVER_PORT": "9002"}, ("a", 9002)),
    ],
)
def test_address_of_the_server(
    tmp_path: Path, server: str | None, env: dict[str, str], address: tuple[str, int]
) -> None:
    assert load_server_address(server, env, tmp_path) == address


@pytest.mark.parametrize(
    ("url", "env", "found"),
    [
        (None, {}, "http://127.0.0.1:8080"),
        ("http://edge-7", {"PENSTOCK_HTTP_PORT": "1"}, "http://edge-7:8080"),
        ("http://edge-7:9000/", {}, "http://edge-7:9000"),
        ("http://[::1]:9000", {}, "http://[::1]:9000"),
        (None, {"PENSTOCK_HOST": "::", "PENSTOCK_HTTP_PORT": "9001"}, "http://[::1]:9001"),
    ],
)
def test_url_of_the_server(tmp_path: Path, url: str | None, env: dict[str, str], found: str) -> None:
    assert load_http_url(url, "--http", env, tmp_path) == found


def test_an_unknown_http_port_must_be_given(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--http http://HOST:PORT"):
        load_http_url(None, "--http", {"PENSTOCK_HTTP_PORT": "0"}, tmp_path)


def test_order_of_http_tokens(tmp_path: Path) -> None:
    data_dir = tmp_path / "penstock-data"
    data_dir.mkdir()
    env = {"PENSTOCK_CLIENT_TOKEN": "4"}
    assert load_http_token(None, None, env, tmp_path) == "4"
    load_or_create_token(data_dir)
    (data_dir / HTTP_TOKEN_FILE_NAME).write_text("3\n")
    assert load_http_token(None, None, env, tmp_path) == "3"
    env["PENSTOCK_HTTP_TOKEN"] = "2"
    assert load_http_token(None, None, env, tmp_path) == "2"
    (tmp_path / "tokens").write_text("1\n")
    assert load_http_token(tmp_path / "tokens", None, env, tmp_path) == "1"


def test_the_data_directory_of_the_http_token(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text('data_dir = "by-file"')
    for name in ("by-file", "by-env", "by-flag"):
        (tmp_path / name).mkdir()
        (tmp_path / name / HTTP_TOKEN_FILE_NAME).write_text(name)
    env = {"PENSTOCK_DATA_DIR": "by-env"}
    assert load_http_token(None, tmp_path / "by-flag", env, tmp_path) == "by-flag"
    assert load_http_token(None, None, env, tmp_path) == "by-env"
    assert load_http_token(None, None, {}, tmp_path) == "by-file"
    with pytest.raises(ConfigError, match="--token-file"):
        load_http_token(None, tmp_path / "nowhere", {}, tmp_path)


def test_the_object_store_is_in_the_data_directory_unless_named(tmp_path: Path) -> None:
    assert load_settings({"data_dir": "d"}, {}, tmp_path).object_store_url == f"file://{tmp_path}/d/objects"
    assert load_settings({}, {"PENSTOCK_OBJECT_STORE": "s3"}, tmp_path).object_store_url == "s3"
    assert load_settings({"object_store": "file:///o"}, {}, tmp_path).object_store_url == "file:///o"


@pytest.mark.parametrize(
    "content", ['exports.partition_keys.e = "$.a"', '[exports.partition_keys]\ne = "$.a"']
)
def test_partition_keys(tmp_path: Path, content: str) -> None:
    (tmp_path / "penstock.toml").write_text(content)
    assert load_settings({}, {}, tmp_path).partition_keys == {"e": "$.a"}
    by_env = load_settings({}, {"PENSTOCK_PARTITION_KEYS": '{"f": "{stream}"}'}, tmp_path)
    assert by_env.partition_keys == {"f": "{stream}"}


@pytest.mark.parametrize("server", [":1", "a:", "a:b", "a:0", "a:65536", ""])
def test_not_an_address(tmp_path: Path, server: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        load_server_address(server, {}, tmp_path)


def test_an_unknown_port_must_be_given(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--server HOST:PORT"):
        load_server_address(None, {"STREAM_MANAGER_SERVER_PORT": "0"}, tmp_path)


def test_the_example_file_shows_every_setting_with_its_default(tmp_path: Path) -> None:
    example = ROOT / "examples" / "penstock.toml"
    set_in_example = msgspec.toml.decode(example.read_bytes())
    without_default = {"client_tokens_file", "exporter_max_bandwidth_kbps", "read_only_dirs"}
    without_default |= {"pipeline_remote", "pipeline_parallelism", "object_store"}
    without_default |= {"access_keys_file", "master_keys_file"}
    without_default |= {"put_requests_per_s", "put_records_per_s", "put_bytes_per_s"}
    without_default |= {"firehose_control_calls_per_s", "firehose_streams_per_key", "schemas"}
    assert set_in_example.keys() == SETTINGS.keys() - without_default - {"partition_keys", "lambdas"}
    for name in without_default:
        assert re.search(rf"^# {name} = ", example.read_text(), re.MULTILINE)
    uncommented = re.sub(r"^# (?=\w+ = |\[)", "", example.read_text(), flags=re.MULTILINE)
    (tmp_path / "all.toml").write_text(
        re.sub(r"^# (?=to-kinesis|enrich)", "", uncommented, flags=re.MULTILINE)
    )
    everything = load_settings({"config": "all.toml"}, {}, tmp_path)
    assert everything.partition_keys == {"to-kinesis": "$.device"}
    assert everything.lambdas == {"enrich": "python:functions.enrich:handler"}
    assert None not in msgspec.structs.asdict(everything).values()
    loaded = load_settings({"config": str(example)}, {}, tmp_path)
    assert msgspec.structs.replace(loaded, data_dir=tmp_path) == Settings(data_dir=tmp_path)


def test_the_documentation_names_every_setting() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    for name, setting in SETTINGS.items():
        for word in (f"`{name}`", *(f"`{variable}`" for variable in setting.stream_manager_names)):
            assert word in text, word
    assert env_name("data_dir") in text
