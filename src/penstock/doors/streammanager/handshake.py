"""The first exchange on a connection: versions, and the answer to Connect."""

from __future__ import annotations

import re

from penstock import __version__
from penstock.doors.streammanager.codec import encode_frame
from penstock.doors.streammanager.protocol import SUPPORTED_VERSIONS, Op, Status
from penstock.errors import PenstockError

CONNECT_VERSION = 1

# Clients' own parsers look no further than this. Few digits, so that int() cannot be made to work hard.
_MAJOR_MINOR = re.compile(r"(\d{1,9})\.(\d{1,9})(?!\d)", re.ASCII)


class HandshakeRefused(PenstockError):
    """The connection is not to be. The client is told the status and the text, then hung up on."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status


def _major_minor(version: object) -> tuple[int, int] | None:
    match = _MAJOR_MINOR.match(version) if isinstance(version, str) else None
    return (int(match[1]), int(match[2])) if match else None


_OURS = {_major_minor(version): version for version in SUPPORTED_VERSIONS}


def negotiate(protocol_version: object, other: object) -> str:
    """The version to speak: the highest that both know, else our highest with a major version of theirs."""
    preferred = _major_minor(protocol_version)
    if preferred is None:
        raise HandshakeRefused(
            Status.INVALID_PROTOCOL_VERSION,
            f"protocolVersion: must look like {SUPPORTED_VERSIONS[0]}.",
        )
    listed = other if isinstance(other, list) else []
    theirs = {preferred, *filter(None, map(_major_minor, listed))}
    majors = {major for major, _ in theirs}
    # SUPPORTED_VERSIONS is sorted, highest first, and so is _OURS.
    for ours, version in _OURS.items():
        if ours in theirs:
            return version
    for ours, version in _OURS.items():
        if ours is not None and ours[0] in majors:
            return version
    raise HandshakeRefused(
        Status.UNSUPPORTED_PROTOCOL_VERSION,
        f"protocolVersion: must be one of {', '.join(SUPPORTED_VERSIONS)}, or compatible with it.",
    )


def connect_frame(
    request_id: str,
    client_identifier: str,
    status: Status = Status.SUCCESS,
    error_message: str = "",
    protocol_version: str = SUPPORTED_VERSIONS[0],
) -> bytes:
    """A ConnectResponse without the version byte: what a second Connect is answered with.

    All seven keys are there in a refusal too. No client looks at the requestId here, so "" stands for one
    that could not be read.
    """
    body = {
        "requestId": request_id,
        "status": int(status),
        "errorMessage": error_message,
        "protocolVersion": protocol_version,
        "supportedProtocolVersions": list(SUPPORTED_VERSIONS),
        "serverVersion": __version__,
        "clientIdentifier": client_identifier,
    }
    return encode_frame(Op.CONNECT_RESPONSE, body)


def connect_response(
    request_id: str,
    client_identifier: str,
    status: Status = Status.SUCCESS,
    error_message: str = "",
    protocol_version: str = SUPPORTED_VERSIONS[0],
) -> bytes:
    """What ends the handshake, well or not: the version byte and the ConnectResponse."""
    frame = connect_frame(request_id, client_identifier, status, error_message, protocol_version)
    return bytes([CONNECT_VERSION]) + frame
