"""JSON with half a character, as \\ud83d alone: what is left of an emoji where somebody has cut a text.

Parsers of Java and JavaScript take it, and so does Firehose; ours does not. Such records are not to fail for that.
(jq refuses them too, and where there is a query they do fail.)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

QUESTION_MARK = b"\\u003f"  # what Java writes, and as long as what it is written for

_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)

T = TypeVar("T")


def whole_characters(data: bytes) -> bytes:
    """The same JSON, not a byte longer or shorter, with another character in place of each half of one."""
    return _ESCAPE.sub(lambda found: QUESTION_MARK if found[1] else found[0], data)


def decoded_whole(decode: Callable[[bytes], T], data: bytes) -> T:
    """What the decoder makes of it, if need be without half characters. Raises what the decoder raises."""
    try:
        return decode(data)
    except msgspec.DecodeError:
        whole = whole_characters(data)
        if whole == data:
            raise
        return decode(whole)
