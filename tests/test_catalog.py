"""Catalogs of earlier versions open, with what is in them; those of later ones are refused."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec
import pytest

from penstock.catalog import SCHEMA_VERSION, Catalog
from penstock.errors import ConfigError
from penstock.model import ExportStatus, StreamDefinition

# As the first version made it.
VERSION_1 = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE streams (
    key INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    definition BLOB NOT NULL,
    reserved_next INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE exports (
    stream_key INTEGER NOT NULL REFERENCES streams (key) ON DELETE CASCADE,
    identifier TEXT NOT NULL,
    status BLOB NOT NULL,
    PRIMARY KEY (stream_key, identifier)
) WITHOUT ROWID;
CREATE TABLE flushes (
    id INTEGER PRIMARY KEY,
    stream_key INTEGER NOT NULL REFERENCES streams (key) ON DELETE CASCADE,
    identifier TEXT NOT NULL,
    first INTEGER NOT NULL,
    next INTEGER NOT NULL,
    planned_ms INTEGER NOT NULL,
    nonce TEXT NOT NULL
);
CREATE TABLE removed (stream_key INTEGER PRIMARY KEY);
PRAGMA user_version = 1;
"""


def schema(path: Path) -> set[str]:
    with sqlite3.connect(path) as database:
        rows = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        columns = {
            f"{table}.{column[1]}" for (table,) in rows for column in database.execute(f"PRAGMA table_info({table})")
        }  # fmt: skip
        (version,) = database.execute("PRAGMA user_version").fetchone()
    database.close()
    return columns | {f"version {version}"}


def test_a_catalog_of_the_first_version(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite3"
    definition = StreamDefinition("s", max_size_bytes=1000)
    old_status = b'{"identifier":"e","last_exported_sequence_number":4,"exported_messages":5}'
    database = sqlite3.connect(path)
    database.executescript(VERSION_1)
    database.execute("INSERT INTO streams VALUES (1, 's', ?, 7)", (msgspec.json.encode(definition),))
    database.execute("INSERT INTO exports VALUES (1, 'e', ?)", (old_status,))
    database.execute("INSERT INTO flushes VALUES (9, 1, 'e', 5, 8, 1000, 'nonce')")
    database.commit()
    database.close()

    catalog = Catalog(path)
    [stored] = catalog.streams()
    assert (stored.key, stored.definition, stored.reserved_next) == (1, definition, 7)
    assert stored.statuses == {"e": ExportStatus("e", last_exported_sequence_number=4, exported_messages=5)}
    [flush] = catalog.flushes()
    assert (flush.id, flush.stream_key, flush.identifier, flush.first, flush.next) == (9, 1, "e", 5, 8)
    assert catalog.delivery_streams() == []
    catalog.put_delivery_stream("arn", b"record")
    catalog.close()
    reopened = Catalog(path)
    assert reopened.delivery_streams() == [b"record"]
    reopened.close()

    Catalog(tmp_path / "new.sqlite3").close()
    assert schema(path) == schema(tmp_path / "new.sqlite3")


def test_a_catalog_of_a_later_version(tmp_path: Path) -> None:
    path = tmp_path / "later.sqlite3"
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    database.close()
    with pytest.raises(ConfigError, match="start the newer Penstock"):
        Catalog(path)


def test_records_of_delivery_streams(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "c.sqlite3")
    catalog.put_delivery_stream("a", b"1")
    catalog.put_delivery_stream("b", b"2")
    catalog.put_delivery_stream("a", b"3")
    catalog.remove_delivery_stream("b")
    catalog.remove_delivery_stream("unknown")
    assert catalog.delivery_streams() == [b"3"]
    catalog.close()
