"""penstock pipeline"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.settings import (
    COMMON_FLAGS,
    PIPELINE_FLAGS,
    config_option,
    setting_flags,
    spark_conf_option,
    supervisor_option,
)
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.config import Settings


@click.command()
@click.option(
    "--server",
    "server_url",
    metavar="URL",
    help="HTTP address of the server.  [default: as configured for the server, else http://127.0.0.1:8080]",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="File with a client token or the server's; else PENSTOCK_HTTP_TOKEN or <data-dir>/http-token.",
)
@config_option
@setting_flags(COMMON_FLAGS, PIPELINE_FLAGS)
@spark_conf_option
@supervisor_option
def pipeline(
    server_url: str | None,
    token_file: Path | None,
    spark_conf: tuple[str, ...],
    supervisor_pid: int | None,
    **flags: object,
) -> int:
    """Deliver what a server holds with Spark.

    Until SIGTERM or Ctrl-C. It keeps nothing: it can be killed at any moment, and run on any machine that reaches
    the server.
    """
    check_spark_choice(flags)
    spark = spark_properties(spark_conf)

    from penstock.config import load_http_token, load_http_url, load_settings
    from penstock.process import configure_logging, end_with

    cwd = Path.cwd()
    settings = load_settings(flags, os.environ, cwd)
    check_partition_keys(settings)
    check_lambdas(settings)
    server_url = load_http_url(server_url, "--server", os.environ, cwd, flags["config"])
    token = load_http_token(token_file, settings.data_dir, os.environ, cwd)
    if settings.pipeline_remote is None:
        check_java()

    from penstock.pipeline.class_archive import with_archive
    from penstock.pipeline.destinations.base import PipelineSettings
    from penstock.pipeline.driver import DriverSettings, run

    # At once and not in order: it has nothing to put away, and Spark may take long to react.
    end_with(supervisor_pid, signal.SIGKILL)
    configure_logging(settings.log_level)
    quieten_spark()
    if settings.pipeline_remote is None and settings.pipeline_master.startswith("local"):
        spark = with_archive(spark, settings.data_dir, os.environ)
    return run(
        DriverSettings(
            server_url=server_url,
            token=token,
            master=settings.pipeline_master,
            remote=settings.pipeline_remote,
            heap=settings.pipeline_heap,
            parallelism=settings.pipeline_parallelism or os.cpu_count() or 1,
            spark=spark,
            pipeline=PipelineSettings(
                kinesis_inter_call_delay_ms=settings.kinesis_inter_call_delay_ms,
                sitewise_skip_refused=settings.sitewise_skip_refused,
                s3_min_part_size_bytes=settings.s3_min_part_size_bytes,
                object_store=settings.object_store_url,
                active_partitions=settings.active_partitions,
                schemas=settings.schema_source,
                partition_keys=settings.partition_keys,
                lambdas=settings.lambdas,
                environment={name: value for name, value in os.environ.items() if name.startswith("AWS_")},
            ),
        )
    )


def quieten_spark() -> None:
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it tells of every connection
    # A mistake in a query is told with the delivery stream; here it would be 5,000 characters of Java.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)


def check_java() -> None:
    from penstock.pipeline.java import ADVICE, java_problem

    problem = java_problem(os.environ)
    if problem is not None:
        raise ConfigError(f"{problem}; {ADVICE}")


def check_spark_choice(flags: dict[str, object]) -> None:
    if flags["pipeline_master"] is not None and flags["pipeline_remote"] is not None:
        raise click.UsageError("give --master or --remote, not both", click.get_current_context(silent=True))


def check_partition_keys(settings: Settings) -> None:
    if settings.partition_keys:
        from penstock.pipeline.partition_key import PartitionKey

        for template in settings.partition_keys.values():
            PartitionKey(template, stream="")


def check_lambdas(settings: Settings) -> None:
    if settings.lambdas:
        from penstock.pipeline.records.processors.lambda_table import check_target

        for name, target in settings.lambdas.items():
            check_target(name, target)


def spark_properties(given: Sequence[str]) -> dict[str, str]:
    properties = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise click.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--conf")
        properties[name.strip()] = value
    return properties
