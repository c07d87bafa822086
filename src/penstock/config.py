"""Settings of server and pipeline: where they come from, what they may be, what to say when they are wrong."""

from __future__ import annotations

import difflib
import ipaddress
import logging
import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from penstock.errors import ConfigError

log = logging.getLogger(__name__)

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

DEFAULT_DATA_DIR = "penstock-data"
DEFAULT_CONFIG_FILE = "penstock.toml"
HEAP_MIN_MIB = 480  # Spark refuses to start with less than 450 MiB, of which the collector keeps some back
HTTP_TOKEN_FILE_NAME = "http-token"  # noqa: S105
INPUT_BUFFER_MIN_BYTES = 9 * MIB  # with less, the largest request of a Firehose client would never get in
S3_MIN_PART_SIZE_BYTES = 5 * MIB


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    data_dir: Path
    host: str = "127.0.0.1"
    stream_manager_port: int = 8088
    http_port: int = 8080
    client_tokens_file: Path | None = None
    authenticate_client: bool = False
    message_size_max_bytes: int = 64 * MIB
    free_space_floor_bytes: int = 64 * MIB
    memory_streams_size_max_bytes: int = GIB
    journal_size_bytes: int = 32 * MIB
    background_sync_interval_ms: int = 500
    input_buffer_max_bytes: int = 256 * MIB
    read_soft_limit_bytes: int = 4 * MIB
    exporter_max_bandwidth_kbps: int | None = None
    exporter_thread_pool_size: int = 5
    s3_min_part_size_bytes: int = S3_MIN_PART_SIZE_BYTES
    kinesis_inter_call_delay_ms: int = 1000
    sitewise_skip_refused: bool = False
    read_only_dirs: tuple[Path, ...] = ()
    access_keys_file: Path | None = None
    master_keys_file: Path | None = None
    kms: bool = False
    put_requests_per_s: int | None = None
    put_records_per_s: int | None = None
    put_bytes_per_s: int | None = None
    account_id: str = "000000000000"
    region: str = "us-east-1"
    firehose_lenient: bool = False
    firehose_sync_create: bool = False
    firehose_flush_on_delete: bool = False
    firehose_retention_hours: int = 24
    firehose_streams_max: int = 5000
    firehose_streams_per_key: int | None = None
    firehose_control_calls_per_s: int | None = None
    firehose_stream_size_max_bytes: int = 10 * GIB
    schemas: str | None = None
    active_partitions: int = 500
    object_store: str | None = None
    partition_keys: dict[str, str] = {}  # template or JSON path, by export identifier
    lambdas: dict[str, str] = {}  # URL or Python function, by ARN or name of the Lambda function
    pipeline_master: str = "local[*]"
    pipeline_remote: str | None = None
    pipeline_heap: str = "512m"
    pipeline_parallelism: int | None = None
    log_level: str = "INFO"

    @property
    def object_store_url(self) -> str:
        return self.object_store or f"file://{self.data_dir / 'objects'}"

    @property
    def schema_source(self) -> str:
        """`glue`, or a folder."""
        return self.schemas or str(self.data_dir / "schemas")

    def warnings(self) -> list[str]:
        """What is allowed but probably not meant."""
        if self.authenticate_client and self.client_tokens_file is None:
            return [
                "client authentication is on but no client tokens file is set, so no client is let in; "
                "set PENSTOCK_CLIENT_TOKENS_FILE (or --client-tokens-file) to a file with one token a line"
            ]
        return []


_SIZE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
    "k": KIB,
    "m": MIB,
    "g": GIB,
    "t": 1024 * GIB,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": 1024 * GIB,
}


def parse_size_bytes(text: str) -> int:
    """'1048576', '1MiB', '1.5 GiB', '2MB' (1000-based), '1M' (1024-based)."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2].lower() not in _SIZE_UNITS:
        raise ValueError("a size is a number of bytes, or a number with a unit such as 64KiB, 256MiB or 2GiB")
    factor = _SIZE_UNITS[match[2].lower()]
    return int(match[1]) * factor if match[1].isdigit() else int(float(match[1]) * factor)


Parser = Callable[[object], object]


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError
    return value.strip()


def _path(value: object) -> Path:
    return value if isinstance(value, Path) else Path(_text(value)).expanduser()


def _paths(value: object) -> tuple[Path, ...]:
    if isinstance(value, str):
        value = [part for part in value.split(",") if part.strip()]
    if not isinstance(value, (list, tuple)):
        raise ValueError
    return tuple(_path(part) for part in value)


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    words = {"true": True, "1": True, "yes": True, "on": True}
    words |= {"false": False, "0": False, "no": False, "off": False}
    word = _text(value).lower()
    if word not in words:
        raise ValueError
    return words[word]


def _within(lowest: int, highest: int, parse: Callable[[str], int] = int) -> Parser:
    def bounded(value: object) -> int:
        if isinstance(value, bool):
            raise ValueError
        number = value if isinstance(value, int) else parse(_text(value))
        if not lowest <= number <= highest:
            raise ValueError
        return number

    return bounded


def _matching(pattern: str) -> Parser:
    def matched(value: object) -> str:
        text = _text(value)
        if re.fullmatch(pattern, text) is None:
            raise ValueError
        return text

    return matched


def _heap(value: object) -> str:
    text = _matching("[1-9][0-9]*[kmgKMG]")(value)
    if parse_size_bytes(str(text)) < HEAP_MIN_MIB * MIB:
        raise ValueError
    return str(text).lower()


def _texts_by_name(value: object) -> dict[str, str]:
    """A table of the configuration file, or the same as JSON."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError as error:
            raise ValueError from error
    if not isinstance(value, dict):
        raise ValueError
    return {_text(name): _text(text) for name, text in value.items()}


def _log_level(value: object) -> str:
    level = _text(value).upper()
    level = {"WARNING": "WARN"}.get(level, level)
    if level not in {"TRACE", "DEBUG", "INFO", "WARN", "ERROR"}:
        raise ValueError
    return level


class _Setting(NamedTuple):
    parse: Parser
    allowed: str
    stream_manager_names: tuple[str, ...] = ()


def _port(*stream_manager_names: str) -> _Setting:
    return _Setting(_within(0, 65535), "a port from 0 to 65535 (0 = any free one)", stream_manager_names)


def _size_text(size_bytes: int) -> str:
    for unit, factor in (("TiB", 1024 * GIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return f"{size_bytes}"


def _size(lowest: int, highest: int, *stream_manager_names: str) -> _Setting:
    allowed = f"a size from {_size_text(lowest)} to {_size_text(highest)}, such as 67108864 or 64MiB"
    return _Setting(_within(lowest, highest, parse_size_bytes), allowed, stream_manager_names)


def _number(lowest: int, highest: int, unit: str, *stream_manager_names: str) -> _Setting:
    return _Setting(_within(lowest, highest), f"{unit} from {lowest} to {highest}", stream_manager_names)


_OTHER_VARIABLES = {"PENSTOCK_CONFIG", "PENSTOCK_HTTP_TOKEN", "PENSTOCK_CLIENT_TOKEN"}
_TIB = 1024 * GIB
SETTINGS: dict[str, _Setting] = {
    "data_dir": _Setting(_path, "a directory", ("STREAM_MANAGER_STORE_ROOT_DIR",)),
    "host": _Setting(_text, "an address or host name of this machine"),
    "stream_manager_port": _port("STREAM_MANAGER_SERVER_PORT"),
    "http_port": _port(),
    "client_tokens_file": _Setting(_path, "a file with one client token a line"),
    "authenticate_client": _Setting(_boolean, "true or false", ("STREAM_MANAGER_AUTHENTICATE_CLIENT",)),
    "message_size_max_bytes": _size(1, GIB - KIB),
    "free_space_floor_bytes": _size(0, _TIB),
    "memory_streams_size_max_bytes": _size(0, _TIB),
    "journal_size_bytes": _size(64 * KIB, GIB),
    "background_sync_interval_ms": _number(1, 60_000, "milliseconds"),
    "input_buffer_max_bytes": _size(INPUT_BUFFER_MIN_BYTES, _TIB),
    "read_soft_limit_bytes": _size(1, GIB - KIB),
    "exporter_max_bandwidth_kbps": _number(
        1, 10**9, "kilobits per second", "STREAM_MANAGER_EXPORTER_MAX_BANDWIDTH"
    ),
    "exporter_thread_pool_size": _number(
        1,
        1000,
        "a number of exports at a time",
        "STREAM_MANAGER_EXPORTER_THREAD_POOL_SIZE",
        "STREAM_MANAGER_THREAD_POOL_SIZE",
    ),
    "s3_min_part_size_bytes": _size(
        S3_MIN_PART_SIZE_BYTES,
        5 * GIB,
        "STREAM_MANAGER_EXPORTER_S3_DESTINATION_MULTIPART_UPLOAD_MIN_PART_SIZE_BYTES",
    ),
    "kinesis_inter_call_delay_ms": _number(
        0, 3_600_000, "milliseconds", "STREAM_MANAGER_EXPORTER_KINESIS_INTER_CALL_DELAY_MS"
    ),
    "sitewise_skip_refused": _Setting(_boolean, "true or false"),
    "read_only_dirs": _Setting(_paths, "a list of directories", ("STREAM_MANAGER_READ_ONLY_DIRS",)),
    "access_keys_file": _Setting(_path, "a JSON file with access keys, readable by the server's user only"),
    "master_keys_file": _Setting(_path, "a JSON file with master keys, readable by the server's user only"),
    "kms": _Setting(_boolean, "on or off"),
    "put_requests_per_s": _number(1, 10**9, "requests a second"),
    "put_records_per_s": _number(1, 10**9, "records a second"),
    "put_bytes_per_s": _size(1, _TIB),
    "account_id": _Setting(_matching("[0-9]{12}"), "an account number of 12 digits"),
    "region": _Setting(_matching("[A-Za-z0-9._-]{1,64}"), "a region, such as us-east-1"),
    "firehose_lenient": _Setting(_boolean, "on or off"),
    "firehose_sync_create": _Setting(_boolean, "on or off"),
    "firehose_flush_on_delete": _Setting(_boolean, "on or off"),
    "firehose_retention_hours": _number(1, 8760, "hours"),
    "firehose_streams_max": _number(1, 10**6, "a number of delivery streams"),
    "firehose_streams_per_key": _number(1, 10**6, "a number of delivery streams"),
    "firehose_control_calls_per_s": _number(1, 10**6, "calls a second"),
    "firehose_stream_size_max_bytes": _size(16 * MIB, _TIB),
    "schemas": _Setting(_matching("glue|/.*"), "glue, or an absolute path"),
    "active_partitions": _number(1, 5000, "a number of partitions"),
    "object_store": _Setting(_matching("s3|file:///.*"), "s3, or file:// and an absolute path"),
    "partition_keys": _Setting(
        _texts_by_name,
        'a table of a template or JSON path for each export identifier, such as {"to-kinesis": "$.device"}',
    ),
    "lambdas": _Setting(
        _texts_by_name,
        "a table of an address or a Python function for each LambdaArn or function name, "
        'such as {"clean": "python:functions.clean:handler"}',
    ),
    "pipeline_master": _Setting(
        _matching(r"local(\[.+\])?|yarn|(spark|k8s)://.+"),
        "a Spark master, such as local[*] or spark://host:7077",
    ),
    "pipeline_remote": _Setting(_matching("sc://.+"), "a Spark Connect server, such as sc://host:15002"),
    "pipeline_heap": _Setting(_heap, f"a Java heap size from {HEAP_MIN_MIB}m on, such as 512m or 2g"),
    "pipeline_parallelism": _number(1, 10_000, "a number of tasks at a time"),
    "log_level": _Setting(_log_level, "TRACE, DEBUG, INFO, WARN or ERROR", ("LOG_LEVEL",)),
}


def env_name(setting: str) -> str:
    return f"PENSTOCK_{setting.upper()}"


def flag_name(setting: str) -> str:
    return f"--{setting.removeprefix('pipeline_').replace('_', '-')}"


def misspelt_variables(env: Mapping[str, str]) -> list[str]:
    """Others may well begin like ours, so only what is close to one of them is told."""
    known = {env_name(name) for name in SETTINGS} | _OTHER_VARIABLES
    found = []
    for name in sorted(env.keys() - known):
        close = (
            difflib.get_close_matches(name, known, n=1, cutoff=0.85) if name.startswith("PENSTOCK_") else []
        )
        found += [f"{name} is not a setting; did you mean {meant}?" for meant in close]
    return found


class _Found(NamedTuple):
    value: object
    source: str
    relative_to: Path


def load_settings(flags: Mapping[str, object | None], env: Mapping[str, str], cwd: Path) -> Settings:
    """flag > PENSTOCK_<NAME> > STREAM_MANAGER_* > penstock.toml > default."""
    unknown = flags.keys() - SETTINGS.keys() - {"config"}
    if unknown:
        raise TypeError(f"not a setting: {sorted(unknown)}")
    file_path, file_values = _read_config_file(flags.get("config"), env, cwd)
    values: dict[str, Any] = {"data_dir": cwd / DEFAULT_DATA_DIR}
    for name in SETTINGS:
        found = _find(name, flags, env, cwd, file_path, file_values)
        if found is not None:
            values[name] = _parse(name, found)
    if values.get("client_tokens_file") is not None:
        values["authenticate_client"] = True
    settings = Settings(**values)
    _refuse_open_door(settings)
    return settings


def load_server_address(server: str | None, env: Mapping[str, str], cwd: Path) -> tuple[str, int]:
    """Where a client finds the server: HOST:PORT if given, else what the server's own settings say."""
    if server is not None:
        return _parse_address(server)
    host, port = _configured_address("stream_manager_port", 8088, env, cwd)
    if port == 0:
        raise ConfigError(
            "the Stream Manager port is set to 0 (any free one), so it cannot be known here; "
            "give --server HOST:PORT with the port that the server printed when it started"
        )
    return host, port


def load_http_url(
    url: str | None, flag: str, env: Mapping[str, str], cwd: Path, config: object | None = None
) -> str:
    """Where the server's HTTP door is: the URL if `flag` gave one, else what the server's own settings say."""
    if url is not None:
        return _parse_url(url, flag)
    host, port = _configured_address("http_port", 8080, env, cwd, config)
    if port == 0:
        raise ConfigError(
            "the HTTP port is set to 0 (any free one), so it cannot be known here; "
            f"give {flag} http://HOST:PORT with the port that the server printed when it started"
        )
    return http_url(host, port)


def http_url(host: str, port: int) -> str:
    """For a server that listens there: one that listens everywhere is found on this machine."""
    host = dialled_host(host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def load_http_token(token_file: Path | None, data_dir: Path | None, env: Mapping[str, str], cwd: Path) -> str:
    """What the HTTP door asks for: a client token, or the one that the server keeps in its data directory."""
    if token_file is not None:
        return load_first_token(token_file)
    if env.get("PENSTOCK_HTTP_TOKEN", "").strip():
        return env["PENSTOCK_HTTP_TOKEN"].strip()
    if data_dir is None:
        file_path, file_values = _read_config_file(None, env, cwd)
        found = _find("data_dir", {}, env, cwd, file_path, file_values)
        data_dir = cwd / DEFAULT_DATA_DIR if found is None else cwd / str(_parse("data_dir", found))
    path = data_dir / HTTP_TOKEN_FILE_NAME
    if os.access(path, os.R_OK):
        return load_first_token(path)
    if env.get("PENSTOCK_CLIENT_TOKEN"):
        return env["PENSTOCK_CLIENT_TOKEN"]
    raise ConfigError(
        f"a token is needed, and {path} cannot be read; name the server's data directory with --data-dir or "
        "PENSTOCK_DATA_DIR, or give a token with --token-file or PENSTOCK_HTTP_TOKEN"
    )


def load_first_token(path: Path) -> str:
    """The one that a client sends, of the file that may list many."""
    tokens = load_client_tokens(path)
    if not tokens:
        raise ConfigError(f"{path} holds no token; put one on its first line")
    return tokens[0].decode()


def _configured_address(
    port_setting: str, default_port: int, env: Mapping[str, str], cwd: Path, config: object | None = None
) -> tuple[str, int]:
    file_path, file_values = _read_config_file(config, env, cwd)
    host: Any = "127.0.0.1"
    port: Any = default_port
    found_host = _find("host", {}, env, cwd, file_path, file_values)
    if found_host is None and env.get("STREAM_MANAGER_SERVER_HOST"):
        found_host = _Found(env["STREAM_MANAGER_SERVER_HOST"], "STREAM_MANAGER_SERVER_HOST", cwd)
    found_port = _find(port_setting, {}, env, cwd, file_path, file_values)
    if found_host is not None:
        host = _parse("host", found_host)
    if found_port is not None:
        port = _parse(port_setting, found_port)
    return dialled_host(host), port


def dialled_host(host: str) -> str:
    """Where a server that listens on `host` is found from the same machine."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - dialled, not bound


def load_client_tokens(path: Path) -> tuple[bytes, ...]:
    """One token a line; blank lines and lines that start with # do not count."""
    try:
        content = path.read_bytes()
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigError(
            f"the client tokens file {path} cannot be read ({error.strerror}); "
            "create it with one token a line, readable by the server's user"
        ) from error
    # Not refused: secrets mounted into containers are commonly world-readable inside the container.
    if mode & stat.S_IROTH:
        log.warning("the client tokens file %s can be read by every user; run: chmod o-r %s", path, path)
    lines = (line.strip() for line in content.splitlines())
    return tuple(line for line in lines if line and not line.startswith(b"#"))


def _read_config_file(
    flag: object | None, env: Mapping[str, str], cwd: Path
) -> tuple[Path, dict[str, object]]:
    named = flag or env.get("PENSTOCK_CONFIG")
    path = cwd / str(named or DEFAULT_CONFIG_FILE)
    try:
        values = msgspec.toml.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError as error:
        if not named:
            return path, {}
        raise ConfigError(
            f"the configuration file {path} does not exist; correct --config or PENSTOCK_CONFIG"
        ) from error
    except OSError as error:
        raise ConfigError(f"the configuration file {path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}; correct that line") from error
    exports = values.pop("exports", {})  # a table, so that what belongs to exports can stand together
    if not isinstance(exports, dict):
        raise ConfigError(f"{path}: 'exports' must be a table, such as [exports.partition_keys]")
    values |= exports
    for key in values:
        if key not in SETTINGS:
            raise ConfigError(_unknown_key(path, key))
    return path, values


def _unknown_key(path: Path, key: str) -> str:
    close = difflib.get_close_matches(key, SETTINGS, n=1)
    advice = f"did you mean '{close[0]}'?" if close else f"remove it; known keys: {', '.join(SETTINGS)}"
    return f"{path}: unknown key '{key}'; {advice}"


def _find(
    name: str,
    flags: Mapping[str, object | None],
    env: Mapping[str, str],
    cwd: Path,
    file_path: Path,
    file_values: Mapping[str, object],
) -> _Found | None:
    if flags.get(name) is not None:
        return _Found(flags[name], flag_name(name), cwd)
    for variable in (env_name(name), *SETTINGS[name].stream_manager_names):
        if env.get(variable, "").strip():
            return _Found(env[variable], variable, cwd)
    if name in file_values:
        return _Found(file_values[name], f"{file_path}: {name}", file_path.parent)
    return None


def _parse(name: str, found: _Found) -> object:
    try:
        value = SETTINGS[name].parse(found.value)
    except ValueError as error:
        default = msgspec.structs.asdict(Settings(data_dir=Path(DEFAULT_DATA_DIR)))[name]
        raise ConfigError(
            f"{found.source}: {found.value!r} is not {SETTINGS[name].allowed}; "
            f"correct it, or remove it to use the default ({_shown(default)})"
        ) from error
    if isinstance(value, Path):
        return found.relative_to / value
    if isinstance(value, tuple):
        return tuple(found.relative_to / path for path in value)
    return value


def _shown(default: object) -> str:
    return "none" if default in (None, (), {}) else str(default)


def _parse_address(server: str) -> tuple[str, int]:
    host, separator, port_text = server.rpartition(":")
    if not separator:
        host, port_text = server, "8088"
    if not host or not port_text.isdecimal() or not 1 <= int(port_text) <= 65535:
        raise ConfigError(f"--server: {server!r} is not HOST:PORT, such as 127.0.0.1:8088; correct it")
    return host.strip("[]"), int(port_text)


def _parse_url(url: str, flag: str) -> str:
    parts = urlsplit(url)
    try:
        valid = parts.scheme == "http" and parts.hostname and parts.port != 0 and parts.path in ("", "/")
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment or "@" in parts.netloc:
        raise ConfigError(
            f"{flag}: {url!r} is not http://HOST:PORT, such as http://127.0.0.1:8080; correct it"
        )
    return http_url(str(parts.hostname), parts.port or 8080)


def _refuse_open_door(settings: Settings) -> None:
    if _is_loopback(settings.host):
        return
    if settings.client_tokens_file is None:
        raise ConfigError(
            f"host {settings.host} can be reached from other machines, and no client tokens file is set; "
            "set PENSTOCK_CLIENT_TOKENS_FILE (or --client-tokens-file) to a file with one token a line, "
            "or use host 127.0.0.1"
        )
    if settings.access_keys_file is None:
        raise ConfigError(
            f"host {settings.host} can be reached from other machines, and no access keys file is set; "
            "set PENSTOCK_ACCESS_KEYS_FILE (or --access-keys-file) to a JSON file with the access keys of Firehose "
            "clients ({} lets none in), or use host 127.0.0.1"
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
