"""Where columns come from: Glue, as moto plays it, and files in a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from penstock import schemas
from penstock.hive_types import Array, Column, Scalar
from penstock.schemas import (
    GLUE,
    BadSchema,
    SchemaCache,
    SchemaError,
    SchemaNotFound,
    TableName,
    describe_schema,
)

ID = Column("id", Scalar("bigint"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "clicks.ddl").write_text("id BIGINT, tags ARRAY<STRING>")
    return tmp_path


def test_a_file_for_each_table(folder: Path) -> None:
    columns = describe_schema(str(folder), TableName("logs", "clicks"))
    assert columns == (ID, Column("tags", Array(Scalar("string"))))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (TableName("logs", "views"), "EntityNotFoundException: Table views not found; write .*views.ddl"),
        (TableName("other", "clicks"), "EntityNotFoundException: Database other not found"),
        (TableName("..", "logs"), "cannot be a name"),
        (TableName("logs", "../logs/clicks"), "cannot be a name"),
        (TableName("logs", "cli\0cks"), "cannot be a name"),
    ],
)
def test_tables_that_are_not_there(folder: Path, name: TableName, reason: str) -> None:
    with pytest.raises(SchemaNotFound, match=reason):
        describe_schema(str(folder), name)


def test_a_file_that_is_no_schema(folder: Path) -> None:
    (folder / "logs" / "bad.ddl").write_text("id SET<STRING>")
    with pytest.raises(BadSchema, match=r"bad\.ddl: .*use an array"):
        describe_schema(str(folder), TableName("logs", "bad"))
    (folder / "logs" / "binary.ddl").write_bytes(b"\xff\xfe")
    with pytest.raises(SchemaError, match=r"binary\.ddl cannot be read"):
        describe_schema(str(folder), TableName("logs", "binary"))


def test_a_schema_serves_for_a_while(folder: Path) -> None:
    cache, impatient = SchemaCache(str(folder)), SchemaCache(str(folder), fresh_s=0)
    name = TableName("logs", "clicks")
    before = cache.columns(name)
    assert impatient.columns(name) == before
    (folder / "logs" / "clicks.ddl").write_text("id BIGINT")
    assert cache.columns(name) == before
    assert impatient.columns(name) == (ID,)


# -- Glue -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def glue() -> Iterator[Any]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_ENDPOINT_URL_GLUE", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        schemas._glue_client.cache_clear()
        client = boto3.client("glue", region_name="eu-west-1")
        client.create_database(DatabaseInput={"Name": "logs"})
        client.create_table(DatabaseName="logs", TableInput=table("clicks", id="bigint"))
        yield client
        client.close()
        schemas._glue_client("eu-west-1").close()
    schemas._glue_client.cache_clear()
    server.stop()


def table(name: str, **columns: str) -> dict[str, Any]:
    described = [{"Name": column, "Type": kind} for column, kind in columns.items()]
    partitions = [{"Name": "day", "Type": "string"}]
    return {"Name": name, "StorageDescriptor": {"Columns": described}, "PartitionKeys": partitions}


def of(name: str, **fields: str) -> TableName:
    configuration = {"DatabaseName": "logs", "TableName": name, "RoleARN": "arn:aws:iam::1:role/r", **fields}
    return TableName.of(configuration, "eu-west-1")


def test_columns_of_a_glue_table_without_its_partitions(glue: Any) -> None:
    assert describe_schema(GLUE, of("clicks")) == (ID,)


def test_versions_of_a_glue_table(glue: Any) -> None:
    glue.create_table(DatabaseName="logs", TableInput=table("changing", id="bigint"))
    glue.update_table(DatabaseName="logs", TableInput=table("changing", id="bigint", tags="array<string>"))
    assert len(describe_schema(GLUE, of("changing"))) == 2
    assert len(describe_schema(GLUE, of("changing", VersionId="LATEST"))) == 2
    assert describe_schema(GLUE, of("changing", VersionId="1")) == (ID,)


def test_glue_tables_that_are_not_there(glue: Any) -> None:
    with pytest.raises(SchemaNotFound, match="EntityNotFoundException: Table nothing not found"):
        describe_schema(GLUE, of("nothing"))
    with pytest.raises(SchemaNotFound, match="EntityNotFoundException: Database nowhere not found"):
        describe_schema(GLUE, of("clicks", DatabaseName="nowhere"))


def test_glue_tables_that_cannot_be_used(glue: Any) -> None:
    glue.create_table(DatabaseName="logs", TableInput=table("sets", s="set<string>"))
    with pytest.raises(BadSchema, match=r"logs\.sets: column 's': .*use an array"):
        describe_schema(GLUE, of("sets"))
    glue.create_table(DatabaseName="logs", TableInput=table("empty"))
    with pytest.raises(BadSchema, match="no columns"):
        describe_schema(GLUE, of("empty"))


def test_glue_that_does_not_answer(glue: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_GLUE", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    schemas._glue_client.cache_clear()
    with pytest.raises(
        SchemaError, match=r"cannot be asked for logs\.clicks: .*check AWS_ENDPOINT_URL_GLUE"
    ) as caught:
        describe_schema(GLUE, of("clicks"))
    assert not isinstance(caught.value, SchemaNotFound)
    schemas._glue_client("eu-west-1").close()
    schemas._glue_client.cache_clear()
