"""The catalog: what there is besides messages (definitions, export positions), in SQLite.

A method that changes something returns when the change is on stable storage. Any thread may call.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.errors import ConfigError
from penstock.model import ExportStatus, StreamDefinition

SCHEMA_VERSION = 2

_SCHEMA_1 = """
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
"""

_SCHEMA_2 = """
ALTER TABLE flushes ADD COLUMN settings BLOB;
CREATE TABLE delivery_streams (arn TEXT PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID;
"""

_STEPS = (_SCHEMA_1, _SCHEMA_2)  # each leads from the version before to its own


_SET_STATUS = "UPDATE exports SET status = ? WHERE stream_key = ? AND identifier = ?"


class StoredStream(NamedTuple):
    key: int
    definition: StreamDefinition
    reserved_next: int  # numbers below may have been given out
    statuses: dict[str, ExportStatus]


class FlushRow(NamedTuple):
    id: int
    stream_key: int
    identifier: str
    first: int
    next: int
    planned_ms: int
    nonce: str
    settings: bytes | None = None  # JSON, if they must stay: something may be stored under names made of them


class PreviousRun(NamedTuple):
    clean: bool
    boot_id: str


class Catalog:
    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        self._database.execute("PRAGMA foreign_keys = ON")
        self._create_schema(path)

    def _create_schema(self, path: Path) -> None:
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        if version < SCHEMA_VERSION:
            steps = "".join(_STEPS[version:])
            self._database.executescript(f"BEGIN; {steps} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
        elif version > SCHEMA_VERSION:
            raise ConfigError(
                f"{path} has catalog version {version}, this Penstock knows {SCHEMA_VERSION}: "
                "start the newer Penstock that wrote it, or choose another data directory"
            )

    def close(self) -> None:
        with self._lock:
            self._database.close()

    # -- runs ---------------------------------------------------------------------------------------

    def previous_run(self, boot_id: str) -> PreviousRun:
        """How the server before ended; a new catalog counts as a clean end in the present boot."""
        with self._lock:
            rows = dict(self._database.execute("SELECT key, value FROM meta"))
        return PreviousRun(rows.get("clean", "yes") == "yes", rows.get("boot_id", boot_id))

    def begin_run(self, boot_id: str) -> None:
        """Note that a server works on the data from now on."""
        with self._lock, self._database as database:
            database.execute("BEGIN IMMEDIATE")
            database.executemany(
                "INSERT OR REPLACE INTO meta VALUES (?, ?)", [("clean", "no"), ("boot_id", boot_id)]
            )

    def end_run(self) -> None:
        """Note that everything is synced and nothing will be written any more."""
        with self._lock:
            self._database.execute("INSERT OR REPLACE INTO meta VALUES ('clean', 'yes')")

    # -- streams ------------------------------------------------------------------------------------

    def streams(self) -> list[StoredStream]:
        with self._lock:
            rows = self._database.execute("SELECT key, definition, reserved_next FROM streams").fetchall()
            statuses = self._database.execute("SELECT stream_key, status FROM exports").fetchall()
        by_stream: dict[int, dict[str, ExportStatus]] = {}
        for key, encoded in statuses:
            status = msgspec.json.decode(encoded, type=ExportStatus)
            by_stream.setdefault(key, {})[status.identifier] = status
        return [
            StoredStream(
                key, msgspec.json.decode(definition, type=StreamDefinition), reserved, by_stream.get(key, {})
            )
            for key, definition, reserved in rows
        ]

    def put_stream(
        self, key: int, definition: StreamDefinition, reserved_next: int, statuses: Iterable[ExportStatus]
    ) -> None:
        """Store a new stream or a changed one, with the statuses of exactly the exports it has."""
        encoded = msgspec.json.encode(definition)
        with self._lock, self._database as database:
            database.execute("BEGIN IMMEDIATE")
            database.execute(
                "INSERT INTO streams VALUES (?, ?, ?, ?) "
                "ON CONFLICT (key) DO UPDATE SET definition = excluded.definition, "
                "reserved_next = max(reserved_next, excluded.reserved_next)",
                (key, definition.name, encoded, reserved_next),
            )
            database.execute("DELETE FROM exports WHERE stream_key = ?", (key,))
            database.executemany(
                "INSERT INTO exports VALUES (?, ?, ?)",
                [(key, status.identifier, msgspec.json.encode(status)) for status in statuses],
            )

    def remove_stream(self, key: int) -> None:
        """The stream is gone; its folder may be removed, now or after a restart."""
        with self._lock, self._database as database:
            database.execute("BEGIN IMMEDIATE")
            database.execute("DELETE FROM streams WHERE key = ?", (key,))
            database.execute("INSERT INTO removed VALUES (?)", (key,))

    def removed_streams(self) -> set[int]:
        """Keys of removed streams whose folders may still be there."""
        with self._lock:
            return {key for (key,) in self._database.execute("SELECT stream_key FROM removed")}

    def forget_removed(self, keys: Iterable[int]) -> None:
        """The folders of these are gone too."""
        with self._lock:
            self._database.executemany("DELETE FROM removed WHERE stream_key = ?", [(key,) for key in keys])

    def reserve(self, key: int, reserved_next: int) -> None:
        """From now on numbers below `reserved_next` may be given out before they are synced."""
        with self._lock:
            self._database.execute(
                "UPDATE streams SET reserved_next = max(reserved_next, ?) WHERE key = ?", (reserved_next, key)
            )

    # -- delivery streams ---------------------------------------------------------------------------

    def delivery_streams(self) -> list[bytes]:
        with self._lock:
            return [record for (record,) in self._database.execute("SELECT record FROM delivery_streams")]

    def put_delivery_stream(self, arn: str, record: bytes) -> None:
        with self._lock:
            self._database.execute("INSERT OR REPLACE INTO delivery_streams VALUES (?, ?)", (arn, record))

    def remove_delivery_stream(self, arn: str) -> None:
        with self._lock:
            self._database.execute("DELETE FROM delivery_streams WHERE arn = ?", (arn,))

    # -- flushes ------------------------------------------------------------------------------------

    def flushes(self) -> list[FlushRow]:
        with self._lock:
            return [FlushRow(*row) for row in self._database.execute("SELECT * FROM flushes ORDER BY id")]

    def add_flushes(self, rows: Iterable[FlushRow]) -> None:
        """Planned ranges, written down before anybody gets them."""
        with self._lock, self._database as database:
            database.execute("BEGIN IMMEDIATE")
            database.executemany("INSERT INTO flushes VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def change_flushes(self, settings: Iterable[tuple[int, bytes]]) -> None:
        """Other settings for flushes, before anybody gets them with these."""
        with self._lock, self._database as database:
            database.execute("BEGIN IMMEDIATE")
            database.executemany(
                "UPDATE flushes SET settings = ? WHERE id = ?", [(b, a) for a, b in settings]
            )

    def remove_flush(self, number: int) -> None:
        with self._lock:
            self._database.execute("DELETE FROM flushes WHERE id = ?", (number,))

    def note_progress(
        self,
        statuses: Iterable[tuple[int, ExportStatus]],
        moved: Iterable[tuple[int, int]],
        finished: Iterable[int],
        thawed: Iterable[int] = (),
    ) -> None:
        """Statuses by stream; of flushes: beginnings, those done, those whose settings may change. All or nothing."""
        encoded = [(msgspec.json.encode(status), key, status.identifier) for key, status in statuses]
        with self._lock, self._database as database:
            database.execute("BEGIN IMMEDIATE")
            database.executemany(_SET_STATUS, encoded)
            database.executemany("UPDATE flushes SET first = ? WHERE id = ?", [(b, a) for a, b in moved])
            database.executemany("DELETE FROM flushes WHERE id = ?", [(number,) for number in finished])
            database.executemany(
                "UPDATE flushes SET settings = NULL WHERE id = ?", [(number,) for number in thawed]
            )
