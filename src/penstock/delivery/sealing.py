"""Records at rest: each is sealed by itself with AES-256-GCM and bound to its delivery stream.

    sealed record = nonce (12) + ciphertext (as long as the record) + tag (16)

The server seals, the pipeline opens. Which key opens a record is known by its sequence number.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import chain

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from penstock.delivery.settings import DataKey
from penstock.errors import PenstockError

KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16
ENVELOPE_BYTES = NONCE_BYTES + TAG_BYTES

_PREFIX_BYTES = 8
_COUNTER_BYTES = NONCE_BYTES - _PREFIX_BYTES
_COUNTER_MAX = 2 ** (8 * _COUNTER_BYTES)


class CannotOpen(PenstockError):
    """A stored record is not what was sealed, or was sealed with another key."""

    def __init__(self, sequence: int, arn: str) -> None:
        super().__init__(
            f"record {sequence} of {arn} cannot be decrypted: its bytes were changed, or it was sealed with another "
            "key; run 'penstock log verify', and check that master.key and the master keys file are those of this "
            "data directory"
        )
        self.sequence = sequence


class Sealer:
    """Seals the records of one delivery stream with one data key.

    Nonces must never repeat under a key. Random ones would do for 2^32 records, which is a day of a busy stream;
    so they count, behind a random part that is drawn for each sealer and whenever the counter has run out.
    """

    __slots__ = ("_arn", "_cipher", "_next", "_prefix")

    def __init__(self, key: bytes, arn: str) -> None:
        self._cipher = AESGCM(_checked(key))
        self._arn = arn.encode()
        self._prefix = os.urandom(_PREFIX_BYTES)
        self._next = 0

    def seal(self, records: Sequence[bytes]) -> list[bytes]:
        if self._next + len(records) > _COUNTER_MAX:
            self._prefix, self._next = os.urandom(_PREFIX_BYTES), 0
        first, self._next = self._next, self._next + len(records)
        encrypt, prefix, arn = self._cipher.encrypt, self._prefix, self._arn
        nonces = [prefix + n.to_bytes(_COUNTER_BYTES, "big") for n in range(first, self._next)]
        return [nonce + encrypt(nonce, record, arn) for nonce, record in zip(nonces, records, strict=True)]


class Opener:
    """Opens the records of one delivery stream, whatever keys it has had."""

    def __init__(self, keys: Iterable[DataKey], arn: str) -> None:
        ordered = sorted(keys, key=lambda key: key.first_sequence)  # of equal ones the last counts
        self._firsts = [key.first_sequence for key in ordered]
        # In front of the first key nothing was sealed.
        self._ciphers = [None, *(AESGCM(_checked(key.key)) if key.key else None for key in ordered)]
        self._name = arn
        self._arn = arn.encode()
        self.opens_nothing = not any(self._ciphers)

    def open(self, sequences: Sequence[int], payloads: Sequence[bytes]) -> list[bytes]:
        """The records as they were put. `sequences` must ascend, equal numbers allowed."""
        if self.opens_nothing or not payloads:
            return list(payloads)
        bounds = [bisect_right(sequences, first - 1) for first in self._firsts]
        starts = [0, *bounds]
        stops = [*bounds, len(payloads)]
        return list(
            chain.from_iterable(
                self._open_run(cipher, sequences[start:stop], payloads[start:stop])
                for cipher, start, stop in zip(self._ciphers, starts, stops, strict=True)
            )
        )

    def _open_run(
        self, cipher: AESGCM | None, sequences: Sequence[int], payloads: Sequence[bytes]
    ) -> Sequence[bytes]:
        if cipher is None:
            return payloads
        decrypt, arn = cipher.decrypt, self._arn
        opened: list[bytes] = []
        try:
            for payload in payloads:
                opened.append(decrypt(payload[:NONCE_BYTES], payload[NONCE_BYTES:], arn))
        except (InvalidTag, ValueError) as error:  # ValueError: too short to hold a nonce
            raise CannotOpen(sequences[len(opened)], self._name) from error
        return opened


def open_records(
    keys: Iterable[DataKey], arn: str, sequences: Sequence[int], payloads: Sequence[bytes]
) -> list[bytes]:
    return Opener(keys, arn).open(sequences, payloads)


def _checked(key: bytes) -> bytes:
    if len(key) != KEY_BYTES:
        raise ValueError(f"a data key has {KEY_BYTES} bytes, not {len(key)}")
    return key
