"""Exit codes: part of the interface, listed in docs/cli.md and in --help."""

from __future__ import annotations

from penstock import errors

OK = 0
REFUSED = 1
USAGE = 2
NOT_FOUND = 3
UNREACHABLE = 4
CORRUPT = 5
UNAUTHORIZED = 6
INTERRUPTED = 130

HELP = """\b
Exit codes:
  0    done
  1    refused by the server, or failed there
  2    wrong usage or configuration
  3    no such stream, export or delivery stream
  4    the server cannot be reached
  5    damaged data was found
  6    not authorized: the client token is missing or not listed
  130  interrupted
"""


def code_of(error: errors.PenstockError) -> int:
    from penstock import client

    codes: dict[type[errors.PenstockError], int] = {
        errors.ConfigError: USAGE,
        errors.StreamNotFound: NOT_FOUND,
        errors.ExportNotFound: NOT_FOUND,
        errors.DeliveryNotFound: NOT_FOUND,
        errors.CorruptMessages: CORRUPT,
        client.ServerUnreachable: UNREACHABLE,
        client.Unauthorized: UNAUTHORIZED,
    }
    return codes.get(type(error), REFUSED)
