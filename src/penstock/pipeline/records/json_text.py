"""JSON as text: the objects of a record and the tokens of their values, each with the bytes it was written in."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from penstock.errors import PenstockError
from penstock.pipeline.records.half_characters import whole_characters

OBJECT, ARRAY, STRING, NUMBER, TRUE, FALSE, NULL = (
    "object",
    "array",
    "string",
    "number",
    "true",
    "false",
    "null",
)

_KINDS = {
    ord("{"): OBJECT,
    ord("["): ARRAY,
    ord('"'): STRING,
    ord("t"): TRUE,
    ord("f"): FALSE,
    ord("n"): NULL,
}
_WHITESPACE = " \t\r\n"

_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_array = msgspec.json.Decoder(list[msgspec.Raw])
_string = msgspec.json.Decoder(str)
_anything = msgspec.json.Decoder()


class ConversionFailed(PenstockError):
    """A record cannot be converted, now or later."""

    code = ""
    intro = ""

    def __init__(self, text: str, *, whole: bool = False) -> None:
        super().__init__(text if whole else f"{self.intro} {text}")


class ParseError(ConversionFailed):
    code = "DataFormatConversion.ParseError"
    intro = "Encountered malformed JSON."


class MalformedData(ConversionFailed):
    code = "DataFormatConversion.MalformedData"
    intro = "Data does not match the schema."


def objects_of(data: bytes) -> list[dict[str, bytes]]:
    """The objects of a record, which may stand one behind the other. Raises ParseError or MalformedData."""
    text = data.decode(errors="replace")
    try:
        return [members_of(text.encode())]
    except (msgspec.DecodeError, RecursionError):
        pass  # perhaps there are several, or there is half a character
    text = whole_characters(text.encode()).decode()
    objects: list[dict[str, bytes]] = []
    position = _skip_whitespace(text, 0)
    while position < len(text) or not objects:
        end = _end_of_value(text, position)
        if text[position] != "{":
            raise MalformedData("A JSON object is required.")
        objects.append(members_of(text[position:end].encode()))
        position = _skip_whitespace(text, end)
    return objects


def members_of(token: bytes) -> dict[str, bytes]:
    """Of keys that are there twice the last counts."""
    return {key: bytes(value) for key, value in _object.decode(token).items()}


def elements_of(token: bytes) -> list[bytes]:
    return [bytes(element) for element in _array.decode(token)]


def kind_of(token: bytes) -> str:
    return _KINDS.get(token[0], NUMBER)


def text_of(token: bytes) -> str:
    """What a scalar says: the content of a string, or a number or word as it was written."""
    return _string.decode(token) if token[0] == ord('"') else token.decode()


def value_of(token: bytes) -> Any:
    return _anything.decode(token)


def _skip_whitespace(text: str, position: int) -> int:
    while position < len(text) and text[position] in _WHITESPACE:
        position += 1
    return position


def _end_of_value(text: str, position: int) -> int:
    try:
        return _scanner.raw_decode(text, position)[1]
    except (json.JSONDecodeError, RecursionError) as error:
        raise ParseError(str(error)) from error


def _no_constant(name: str) -> None:
    raise ParseError(f"{name} is no JSON number")


# Numbers stay text: the longest ones take forever to become numbers.
_scanner = json.JSONDecoder(parse_constant=_no_constant, parse_int=str, parse_float=str)
