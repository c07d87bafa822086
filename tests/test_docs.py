"""What the documentation states as fact is compared with the code; its links lead somewhere, its examples run."""

from __future__ import annotations

import ast
import importlib
import re
import sqlite3
import struct
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conformance.raw_client import RawClient
from harness import ServerProcess
from penstock.catalog import SCHEMA_VERSION, Catalog
from penstock.config import GIB, MIB, SETTINGS, Settings
from penstock.doors.http.access import load_or_create_token
from penstock.doors.http.app import BULK_BYTES_DEFAULT
from penstock.doors.streammanager.protocol import Status
from penstock.log import frame, journal, segment
from penstock.log.segment import OPEN_SUFFIX, SEALED_SUFFIX, TEMPORARY_SUFFIX
from penstock.log.store import Store
from penstock.model import StreamDefinition

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src" / "penstock"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
Row = dict[str, str]


def text_of(page: str) -> str:
    return (ROOT / "docs" / page).read_text()


def tables(text: str) -> Iterator[list[Row]]:
    for block in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        header, _, *rows = [re.split(r"(?<!\\)\|", line.strip("|\n")) for line in block.splitlines()]
        names = [cell.strip() for cell in header]
        yield [dict(zip(names, map(str.strip, row), strict=True)) for row in rows]


def table(page: str, *columns: str) -> list[Row]:
    """The only table of a page that begins with these columns."""
    [found] = [rows for rows in tables(text_of(page)) if tuple(rows[0])[: len(columns)] == columns]
    return found


def layout(name: str) -> list[Row]:
    [after] = text_of("log-format.md").split(f"<!-- layout: {name} -->\n")[1:]
    return next(tables(after))


def block(page: str, language: str) -> str:
    [found] = re.findall(rf"```{language}\n(.*?)```", text_of(page), re.DOTALL)
    return str(found)


# -- byte layouts -----------------------------------------------------------------------------------

FORMATS = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i64": "q"}


def struct_of(rows: list[Row]) -> struct.Struct:
    by_size = {"text": "{}s", "zeros": "{}x"}
    return struct.Struct(
        "<" + "".join(FORMATS.get(row["type"]) or by_size[row["type"]].format(row["bytes"]) for row in rows)
    )


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("frame header", frame._FIELDS.format + "I"),
        ("segment trailer", segment._TRAILER.format + "I"),
        ("journal block", journal._BLOCK.format + "I"),
        ("journal entry", journal._ENTRY.format),
    ],
)
def test_layout_is_that_of_the_code(name: str, written: str) -> None:
    rows = layout(name)
    assert struct_of(rows).format == written
    expected_offset = 0
    for row in rows:
        assert int(row["offset"]) == expected_offset, row["field"]
        expected_offset += int(row["bytes"])
    assert expected_offset == struct.calcsize(written)


@pytest.mark.parametrize(
    ("name", "magic", "version"),
    [
        ("frame header", frame.MAGIC, frame.VERSION),
        ("segment trailer", segment.FOOTER_MAGIC, segment.FOOTER_VERSION),
        ("journal block", journal.MAGIC, journal.VERSION),
    ],
)
def test_magic_and_version(name: str, magic: bytes, version: int) -> None:
    meanings = {row["field"]: row["meaning"] for row in layout(name)}
    assert meanings["magic"] == f"`{magic.decode()}`"
    assert meanings["version"] == str(version)
    versions = {row["where"]: row["version"] for row in table("log-format.md", "where", "version")}
    assert versions[name.removesuffix(" header")] == str(version)
    assert versions["catalog"] == str(SCHEMA_VERSION)


def test_example_frame() -> None:
    dump = block("log-format.md", "hex")
    documented = bytes.fromhex(" ".join(line[4:52] for line in dump.splitlines()))
    names: dict[str, Any] = {}
    exec(block("log-format.md", "python"), names)
    assert documented == names["frame"]

    rows = layout("frame header")
    fields = dict(zip([row["field"] for row in rows], struct_of(rows).unpack_from(documented), strict=True))
    assert (fields["magic"], fields["header bytes"]) == (frame.MAGIC, frame.HEADER_BYTES)
    assert (fields["stream key"], fields["first sequence number"]) == (0x0123456789ABCDEF, 41)
    assert (fields["message count"], fields["data bytes"], fields["body bytes"]) == (2, 7, 40)
    assert frame.decode(documented).payloads() == [b"hi", b"there"]


# -- files and catalog ------------------------------------------------------------------------------


def test_data_directory_holds_what_is_listed(tmp_path: Path) -> None:
    with_segments = StreamDefinition("Readings ..", segment_size_bytes=4096, flush_on_write=True)
    store = Store(tmp_path, free_space_floor_bytes=0)
    load_or_create_token(tmp_path)
    stream = store.create_stream(with_segments)
    for sequence in range(3):
        store.journal.write(stream.write(sequence, [bytes(3000)], 0).frames)
    store.seal_segments()
    found = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
    store.close()

    listed = [row["path"].strip("`") for row in table("log-format.md", "path", "is")]
    parts = {"<key>": "[0-9a-f]{16}", "<name>": "[a-z0-9_-]{1,64}", "<base>": "[0-9]{20}"}
    parts |= {"<half>": "[01]", "<number>": "[0-9]+"}
    patterns = {path: re.sub("<.*?>", lambda part: parts[part[0]], re.escape(path)) for path in listed}
    unlisted = [name for name in found if not any(re.fullmatch(p, name) for p in patterns.values())]
    assert not unlisted
    passing = {
        "journal-1",
        "journal-<half>.failed-<number>",
        f"streams/<key>-<name>/<base>{TEMPORARY_SUFFIX}",
    }
    missing = {path for path, p in patterns.items() if not any(re.fullmatch(p, name) for name in found)}
    assert missing == passing


def test_segment_states() -> None:
    states = {row["name"].strip("`") for row in table("log-format.md", "name", "state")}
    assert states == {OPEN_SUFFIX, SEALED_SUFFIX, TEMPORARY_SUFFIX}


def test_catalog_tables(tmp_path: Path) -> None:
    Catalog(tmp_path / "catalog.sqlite3").close()
    database = sqlite3.connect(tmp_path / "catalog.sqlite3")
    names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    found = {
        name: [row[1] for row in database.execute(f"SELECT * FROM pragma_table_info('{name}')").fetchall()]
        for name in names
    }
    database.close()
    rows = table("log-format.md", "table", "columns")
    assert {row["table"].strip("`"): re.findall(r"`(\w+)`", row["columns"]) for row in rows} == found


# -- figures ----------------------------------------------------------------------------------------


def constants() -> list[tuple[str, str]]:
    rows = [
        row
        for page in PAGES
        for found in tables(page.read_text())
        if tuple(found[0])[:2] == ("constant", "value")
        for row in found
    ]
    return [(row["constant"].strip("`"), row["value"]) for row in rows]


@pytest.mark.parametrize(("name", "value"), constants())
def test_constant(name: str, value: str) -> None:
    module, _, attribute = name.rpartition(".")
    assert getattr(importlib.import_module(module), attribute) == float(value)


def default_of(text: str) -> object:
    """A default as the table of settings writes it."""
    text = text.strip("`")
    words = {"none": None, "unlimited": None, "false": False, "true": True}
    if text in words:
        return words[text]
    number = re.match(r"(0|[1-9]\d*)(?: (MiB|GiB))?(?: \(.*\))?$", text)
    if number is None:
        return text
    return int(number[1]) * {"MiB": MIB, "GiB": GIB}.get(number[2], 1)


def test_defaults_of_settings() -> None:
    rows = table("configuration.md", "setting", "default")
    documented = {row["setting"].strip("`"): default_of(row["default"]) for row in rows}
    assert documented.keys() == SETTINGS.keys()
    actual = msgspec.structs.asdict(Settings(data_dir=Path("penstock-data")))
    actual["data_dir"] = "./penstock-data"
    actual["read_only_dirs"] = actual["read_only_dirs"] or None
    actual["partition_keys"] = actual["partition_keys"] or None
    actual["lambdas"] = actual["lambdas"] or None
    actual["object_store"] = "file://<data_dir>/objects"
    actual["schemas"] = "<data_dir>/schemas"
    actual["pipeline_parallelism"] = "CPUs"
    assert documented == actual


def test_defaults_of_streams() -> None:
    rows = table("stream-manager.md", "field", "limits", "default")
    documented = {row["field"].strip("`"): row["default"] for row in rows}
    defaults = StreamDefinition("s")
    assert documented["maxSize"].split()[0] == str(defaults.max_size_bytes)
    assert documented["streamSegmentSize"].split()[0] == str(defaults.segment_size_bytes)
    assert documented["persistence"] == str(int(defaults.persistence))
    assert documented["flushOnWrite"] == str(defaults.flush_on_write).lower()
    assert documented["timeToLiveMillis"] == str(defaults.ttl_ms).lower()


def test_status_codes() -> None:
    documented = {int(row["code"]): row["name"] for row in table("stream-manager.md", "code", "name")}
    assert documented == {int(status): status.name.title().replace("_", "") for status in Status}


# -- modules ----------------------------------------------------------------------------------------


def imported_modules(path: Path) -> set[str]:
    """Modules of ours that are imported when the program runs, as paths below the package."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("penstock."):
            found.add(str(node.module).removeprefix("penstock.").replace(".", "/"))
        elif isinstance(node, ast.ImportFrom) and node.module == "penstock":
            found |= {alias.name for alias in node.names if not alias.name.startswith("_")}
    return found


def test_imports_point_downwards() -> None:
    levels = {
        module: level
        for level, row in enumerate(table("architecture.md", "module", "is"))
        for module in re.findall(r"`([\w/]+)`", row["module"])
    }

    def level_of(module: str) -> int:
        return next(
            levels[name] for name in sorted(levels, reverse=True) if f"{module}/".startswith(f"{name}/")
        )

    upwards = []
    for path in sorted(SOURCES.rglob("*.py")):
        module = str(path.relative_to(SOURCES).with_suffix("")).removesuffix("/__init__")
        if module in ("__init__", "__main__", "log", "doors", "delivery"):
            continue
        upwards += [
            f"{module} imports {imported}"
            for imported in imported_modules(path)
            if imported not in ("log", "delivery") and level_of(imported) < level_of(module)
        ]
    assert not upwards


# -- the bulk read ----------------------------------------------------------------------------------


def test_bulk_read_as_documented(shared_server: ServerProcess) -> None:
    name = "documented .."
    payloads = [b"message %d" % number for number in range(100)]
    with RawClient(shared_server.port) as client:
        client.create(name)
        for payload in payloads:
            client.append(name, payload)
    address = f"127.0.0.1:{shared_server.http_port}"
    program = block("stream-manager.md", "python")
    finished = subprocess.run(
        [sys.executable, "-c", program, address, str(shared_server.data_dir), name],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert finished.stdout.splitlines() == [f"{number} {payload}" for number, payload in enumerate(payloads)]


def test_bulk_read_answers(shared_server: ServerProcess) -> None:
    with RawClient(shared_server.port) as client:
        client.create("answers")
        client.append("answers", b"x")
    token = (shared_server.data_dir / "http-token").read_text().strip()

    def get(query: str, token: str = token) -> tuple[int, dict[str, str]]:
        request = urllib.request.Request(f"http://127.0.0.1:{shared_server.http_port}/v1/frames?{query}")
        request.add_header("authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return response.status, {k.lower(): v for k, v in response.headers.items()}
        except urllib.error.HTTPError as error:
            with error:
                return error.code, {}

    status, headers = get("stream=answers")
    listed = {row["response header"].strip("`") for row in table("stream-manager.md", "response header")}
    assert listed == {name for name in headers if name.startswith("penstock-")}
    assert (status, headers["content-type"]) == (200, "application/vnd.penstock.frames")
    statuses = [get("stream=answers&from=1")[0], get("stream=answers&from=x")[0]]
    assert [*statuses, get("stream=answers", "wrong")[0], get("stream=nobody")[0]] == [204, 400, 401, 404]
    defaults = {
        row["parameter"].strip("`"): row["default"] for row in table("stream-manager.md", "parameter")
    }
    assert defaults["max_bytes"] == str(BULK_BYTES_DEFAULT)


# -- pages ------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        path = (page.parent / target) if target else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(link)
    assert not broken


def test_every_page_is_in_the_index() -> None:
    linked = set(re.findall(r"\]\(([^)#\s]+)\)", text_of("README.md")))
    pages = {str(page.relative_to(ROOT / "docs")) for page in PAGES[1:]}
    assert linked == pages - {"README.md"}


def test_named_files_of_the_project_exist() -> None:
    named = {
        name
        for page in PAGES
        for name in re.findall(r"`((?:src|tests|bench|examples|scripts)/[\w./-]+)`", page.read_text())
    }
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_decisions_are_short_records(page: Path) -> None:
    lines = page.read_text().splitlines()
    assert len(lines) <= 40
    assert [line for line in lines if line.startswith("## ")] == [
        "## Context",
        "## Decision",
        "## Consequences",
    ]
