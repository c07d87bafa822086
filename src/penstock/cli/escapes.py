"""Backslash escapes in arguments, as in printf: \\n, \\t, \\r, \\0, \\\\ and \\xHH."""

from __future__ import annotations

import re

_SINGLE = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{2}|.?)", re.DOTALL)


def unescape(text: str) -> bytes:
    parts: list[bytes] = []
    end = 0
    for match in _ESCAPE.finditer(text):
        parts.append(os_bytes(text[end : match.start()]))
        escape = match[1]
        if escape in _SINGLE:
            parts.append(_SINGLE[escape])
        elif len(escape) == 3:
            parts.append(bytes.fromhex(escape[1:]))
        else:
            raise ValueError(f"'\\{escape}' is not an escape; use \\n, \\t, \\r, \\0, \\\\ or \\xHH")
        end = match.end()
    parts.append(os_bytes(text[end:]))
    return b"".join(parts)


def os_bytes(text: str) -> bytes:
    """The bytes of an argument as the shell passed them, also those that are not UTF-8."""
    return text.encode("utf-8", "surrogateescape")
