"""The `penstock` command. Modules of the CLI import what is heavy only inside the command that needs it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from penstock import __version__
from penstock.cli import exits
from penstock.cli.delivery import delivery
from penstock.cli.exports import exports
from penstock.cli.log import log
from penstock.cli.pipeline import pipeline
from penstock.cli.prepare import prepare
from penstock.cli.server import server
from penstock.cli.streams import streams
from penstock.cli.up import up
from penstock.errors import PenstockError


@click.group(epilog=exits.HELP, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="penstock", message="%(prog)s %(version)s")
def app() -> None:
    """Durable local streams with the Stream Manager protocol, delivered by Spark."""


for command in (up, server, pipeline, prepare, streams, exports, delivery, log):
    app.add_command(command)


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    try:
        code = _invoke(list(arguments))
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has seen enough. The interpreter flushes stdout again on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exits.OK
    except (KeyboardInterrupt, click.Abort):
        return exits.INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return exits.USAGE
    except click.ClickException as error:
        return _report(arguments, "Usage", _usage_message(error), exits.USAGE)
    except PenstockError as error:
        return _report(arguments, type(error).__name__, str(error), exits.code_of(error))
    return code


def _invoke(arguments: list[str]) -> int:
    # Not app.main(): it turns an interrupt and a closed pipe into exit codes of its own.
    try:
        with app.make_context("penstock", arguments) as context:
            result = app.invoke(context)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    return result if isinstance(result, int) else exits.OK


def _usage_message(error: click.ClickException) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    hint = f"; see '{context.command_path} --help'" if context is not None else ""
    return error.format_message().rstrip(".") + hint


def _report(arguments: Sequence[str], kind: str, message: str, code: int) -> int:
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if "--json" in options:
        import json

        click.echo(json.dumps({"error": kind, "message": message, "exitCode": code}), err=True)
    else:
        click.echo(f"penstock: {message}", err=True)
    return code
