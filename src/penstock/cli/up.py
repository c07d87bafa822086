"""penstock up"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from penstock.cli.pipeline import check_lambdas, check_partition_keys, check_spark_choice, spark_properties
from penstock.cli.settings import (
    COMMON_FLAGS,
    PIPELINE_FLAGS,
    SERVER_FLAGS,
    Flag,
    authenticate_option,
    config_option,
    setting_flags,
    spark_conf_option,
)


@click.command()
@config_option
@setting_flags(COMMON_FLAGS, SERVER_FLAGS, PIPELINE_FLAGS)
@authenticate_option
@spark_conf_option
def up(spark_conf: tuple[str, ...], authenticate_client: bool | None, **flags: object) -> int:
    """Serve streams and deliver them.

    Until SIGTERM or Ctrl-C. Runs 'penstock server' and, as soon as there is an export or a delivery stream,
    'penstock pipeline'. What dies is started
    again, and said. Every flag can also be set as PENSTOCK_<NAME> or as <name> in penstock.toml.
    """
    import asyncio

    from penstock.config import load_settings
    from penstock.supervisor import supervise

    check_spark_choice(flags)
    spark_properties(spark_conf)
    # Both parts read them too; here it is seen before anything is started.
    settings = load_settings(flags | {"authenticate_client": authenticate_client}, os.environ, Path.cwd())
    check_partition_keys(settings)
    check_lambdas(settings)
    common = _arguments(flags, [Flag("config", "", None, ""), *COMMON_FLAGS])
    server = [*common, *_arguments(flags, SERVER_FLAGS)]
    if authenticate_client is not None:
        server.append("--authenticate-client" if authenticate_client else "--no-authenticate-client")
    pipeline = [*common, *_arguments(flags, PIPELINE_FLAGS)]
    for text in spark_conf:
        pipeline += ["--conf", text]
    needs_java = settings.pipeline_remote is None
    return asyncio.run(supervise(server, pipeline, settings.data_dir, needs_java))


def _arguments(flags: Mapping[str, object], group: Sequence[Flag]) -> list[str]:
    from penstock.config import flag_name

    return [
        part
        for flag in group
        if flags[flag.setting] is not None
        for part in (flag_name(flag.setting), str(flags[flag.setting]))
    ]
