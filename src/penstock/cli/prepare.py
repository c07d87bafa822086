"""penstock prepare"""

from __future__ import annotations

import os
from pathlib import Path

import click

from penstock.cli import output
from penstock.cli.connection import json_option
from penstock.cli.pipeline import check_java, quieten_spark, spark_properties
from penstock.cli.server import check_data_dir
from penstock.cli.settings import COMMON_FLAGS, config_option, setting_flags, spark_conf_option
from penstock.cli.units import format_size


@click.command()
@config_option
@setting_flags(COMMON_FLAGS)
@spark_conf_option
@json_option
def prepare(spark_conf: tuple[str, ...], as_json: bool, **flags: object) -> None:
    """Make the pipeline start faster on this machine.

    Starts Spark once and keeps what Java made of its classes in the data directory, about 150 MB. 'penstock up' and
    'penstock pipeline' use that file as long as Java and Spark are the same. Deleting it undoes this.
    """
    spark = spark_properties(spark_conf)

    from penstock.config import load_settings
    from penstock.pipeline.class_archive import make_archive
    from penstock.pipeline.driver import Driver, DriverSettings
    from penstock.process import configure_logging

    settings = load_settings(flags, os.environ, Path.cwd())
    check_java()
    check_data_dir(settings.data_dir)
    configure_logging(settings.log_level)
    quieten_spark()
    if not as_json:
        click.echo("starts Spark, runs its first jobs and writes its classes: a minute or so", err=True)

    def rehearse(properties: dict[str, str]) -> None:
        Driver(
            DriverSettings("http://127.0.0.1", "", heap=settings.pipeline_heap, spark=properties)
        ).rehearse()

    path, note = make_archive(settings.data_dir, spark, os.environ, rehearse)
    if as_json:
        output.write_json(
            {"file": str(path), "sizeBytes": note.size_bytes, "java": note.java, "pyspark": note.pyspark}
        )
        return
    click.echo(
        f"wrote {path} ({format_size(note.size_bytes)}): from now on the pipeline starts faster. "
        "Delete the file to undo this; run 'penstock prepare' again when Java or Spark is another",
        err=True,
    )
