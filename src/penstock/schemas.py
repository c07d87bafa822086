"""Where the columns of converted records come from: tables of a Glue catalog, or files in a folder."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from penstock.errors import PenstockError
from penstock.hive_types import BadType, Column, checked, parse_columns, parse_type

GLUE = "glue"
DDL_SUFFIX = ".ddl"
LATEST = "LATEST"
FRESH_S = 180.0  # how long a schema that was found serves without asking again


class SchemaError(PenstockError):
    """The schema cannot be had now: its catalog does not answer, or refuses us."""


class SchemaNotFound(SchemaError):
    """There is no such database or table."""


class BadSchema(SchemaError):
    """The table is there, but records cannot be converted to its columns."""


class TableName(NamedTuple):
    database: str
    table: str
    version: str = LATEST
    catalog_id: str | None = None
    region: str | None = None

    @classmethod
    def of(cls, configuration: Mapping[str, Any], region: str | None = None) -> TableName:
        """What a SchemaConfiguration names; in this region if it names none."""
        return cls(
            database=configuration["DatabaseName"],
            table=configuration["TableName"],
            version=configuration.get("VersionId") or LATEST,
            catalog_id=configuration.get("CatalogId"),
            region=configuration.get("Region") or region,
        )


def describe_schema(source: str, name: TableName) -> tuple[Column, ...]:
    """The columns of a table, asked for anew. `source` is `glue` or a folder. Raises SchemaError."""
    return _from_glue(name) if source == GLUE else _from_folder(Path(source), name)


def is_at_hand(source: str) -> bool:
    """Whether tables can be looked for here: a folder may be only where the pipeline runs."""
    return source == GLUE or Path(source).is_dir()


class SchemaCache:
    """Columns of tables, asked for again after a few minutes."""

    def __init__(self, source: str, fresh_s: float = FRESH_S) -> None:
        self._source = source
        self._fresh_s = fresh_s
        self._found: dict[TableName, tuple[float, tuple[Column, ...]]] = {}
        self._lock = threading.Lock()

    def columns(self, name: TableName) -> tuple[Column, ...]:
        with self._lock:
            found = self._found.get(name)
            now_s = time.monotonic()
            if found is None or now_s - found[0] > self._fresh_s:
                found = now_s, describe_schema(self._source, name)
                self._found[name] = found
            return found[1]


# -- a folder ---------------------------------------------------------------------------------------


def _from_folder(folder: Path, name: TableName) -> tuple[Column, ...]:
    for part in (name.database, name.table):
        if part in (".", "..") or {"/", "\\", "\0"} & {*part}:
            raise SchemaNotFound(
                f"EntityNotFoundException: {part!r} cannot be a name of a database or table here"
            )
    path = folder / name.database / (name.table + DDL_SUFFIX)
    try:
        text = path.read_text()
    except (FileNotFoundError, NotADirectoryError) as error:
        missing, of = ("Table", name.table) if path.parent.is_dir() else ("Database", name.database)
        raise SchemaNotFound(
            f"EntityNotFoundException: {missing} {of} not found; write the columns of the table to {path}, "
            "such as: id BIGINT, name STRING"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise SchemaError(f"the schema {path} cannot be read: {error}") from error
    try:
        return parse_columns(text)
    except BadType as error:
        raise BadSchema(f"{path}: {error}") from error


# -- Glue -------------------------------------------------------------------------------------------


def _from_glue(name: TableName) -> tuple[Column, ...]:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        table = _glue_table(name)
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        text = f"{code}: {error.response.get('Error', {}).get('Message', '')}"
        if code == "EntityNotFoundException":
            raise SchemaNotFound(text) from error
        raise SchemaError(f"Glue refuses to describe {name.database}.{name.table}: {text}") from error
    except BotoCoreError as error:
        raise SchemaError(
            f"Glue cannot be asked for {name.database}.{name.table}: {error}; check AWS_ENDPOINT_URL_GLUE, the "
            "region and the credentials"
        ) from error
    columns = (table.get("StorageDescriptor") or {}).get("Columns") or []
    try:
        return checked([_glue_column(column) for column in columns])
    except BadType as error:
        raise BadSchema(f"the Glue table {name.database}.{name.table}: {error}") from error


def _glue_table(name: TableName) -> Mapping[str, Any]:
    glue = _glue_client(name.region or os.environ.get("AWS_REGION"))
    where = {"DatabaseName": name.database}
    if name.catalog_id:
        where["CatalogId"] = name.catalog_id
    table: Mapping[str, Any]
    if name.version == LATEST:
        table = glue.get_table(**where, Name=name.table)["Table"]
    else:
        answer = glue.get_table_version(**where, TableName=name.table, VersionId=name.version)
        table = answer["TableVersion"]["Table"]
    return table


def _glue_column(column: Mapping[str, Any]) -> Column:
    try:
        return Column(column["Name"], parse_type(column.get("Type") or ""))
    except BadType as error:
        raise BadType(f"column {column['Name']!r}: {error}") from error


@lru_cache(maxsize=16)
def _glue_client(region: str | None) -> Any:
    import boto3

    return boto3.session.Session().client("glue", region_name=region)
