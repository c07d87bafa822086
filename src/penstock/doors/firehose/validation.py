"""Layer 1: is the body of a request what the service model allows? Driven by the model that botocore ships."""

from __future__ import annotations

import base64
import binascii
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NoReturn

from penstock.delivery.errors import ApiError
from penstock.doors.firehose.java_pattern import JavaPattern, pattern_for

VIOLATIONS_MAX = 1000  # a body may break rules more often than there is memory to say so
INT32_MAX = 2**31 - 1
NUMBER_MAX = 1e15
EXCESS_LENGTH_MAX = (
    1024  # strings that are longer than allowed by more are matched with no pattern: it may backtrack
)

# Where AWS prints the values of an enumeration in another order than the model's.
ENUM_ORDER = {
    "CompressionFormat": ["ZIP", "HADOOP_SNAPPY", "Snappy", "GZIP", "UNCOMPRESSED"],
    "ProcessorType": [
        *("Decompression", "Lambda", "RecordDeAggregation", "MetadataExtraction"),
        *("AppendDelimiterToRecord", "CloudWatchLogProcessing"),
    ],
    "ProcessorParameterName": [
        *("DataMessageExtraction", "NumberOfRetries", "Delimiter", "RoleArn", "JsonParsingEngine"),
        *("SubRecordType", "MetadataExtractionQuery", "BufferIntervalInSeconds", "LambdaArn"),
        *("BufferSizeInMBs", "CompressionFormat"),
    ],
    "ParquetCompression": ["SNAPPY", "GZIP", "UNCOMPRESSED"],
    "OrcCompression": ["ZLIB", "SNAPPY", "NONE"],
}
SHAPES_SHOWN_WITH_VALUE = {"TagKey", "TagValue"}


class Violation:
    """A rule that a value breaks. Its path grows from the inside out, so that correct bodies pay nothing for it."""

    __slots__ = ("path", "rule", "shown")

    def __init__(self, rule: str, shown: str = "") -> None:
        self.path: list[str] = []
        self.rule = rule
        self.shown = shown

    def __str__(self) -> str:
        return f"Value {self.shown}at '{dotted(self.path)}' failed to satisfy constraint: {self.rule}"


class WrongType(Exception):
    """The JSON has a value of another type than the model. Nothing more can be said of such a body."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.path: list[str] = []


def dotted(inside_out: list[str]) -> str:
    return ".".join(reversed(inside_out))


def refuse_type(value: Any, wanted: str) -> NoReturn:
    kinds = {bool: "BOOLEAN_VALUE", str: "STRING_VALUE", int: "NUMBER_VALUE", float: "NUMBER_VALUE"}
    kind = kinds.get(type(value), "LIST" if isinstance(value, list) else "STRUCTURE")
    raise WrongType(f"{kind} can not be converted to {wanted}")


class Checker(ABC):
    """Checks the values of one shape. Returns the value without what was not sent or is not known."""

    @abstractmethod
    def check(self, value: Any, found: list[Violation]) -> Any: ...

    def rules(self) -> Iterator[str]:
        """All rules, kept or broken."""
        return iter(())


class StructureChecker(Checker):
    def __init__(self, shape: Any, compile_shape: Callable[[Any], Checker]) -> None:
        self._members = [
            (name, name[0].lower() + name[1:], compile_shape(member))
            for name, member in shape.members.items()
        ]
        self._required = set(shape.required_members)

    def check(self, value: Any, found: list[Violation]) -> Any:
        if not isinstance(value, dict):
            refuse_type(value, "a Structure")
        kept = {}
        for name, segment, checker in self._members:
            member = value.get(name)
            before = len(found)
            if member is not None:
                try:
                    kept[name] = checker.check(member, found)
                except WrongType as error:
                    error.path.append(segment)
                    raise
            elif name in self._required:
                found.append(Violation("Member must not be null"))
            for violation in found[before:]:
                violation.path.append(segment)
        return kept


class ListChecker(Checker):
    def __init__(self, shape: Any, compile_shape: Callable[[Any], Checker]) -> None:
        self._member = compile_shape(shape.member)
        self._bounds = Bounds(shape, "length")

    def check(self, value: Any, found: list[Violation]) -> Any:
        if not isinstance(value, list):
            refuse_type(value, "a List")
        found.extend(map(Violation, self._bounds.broken(len(value))))
        kept = []
        for number, item in enumerate(value, 1):
            before = len(found)
            if before >= VIOLATIONS_MAX:
                break
            if item is None:
                found.append(Violation("Member must not be null"))
            else:
                try:
                    kept.append(self._member.check(item, found))
                except WrongType as error:
                    error.path += ["member", str(number)]
                    raise
            for violation in found[before:]:
                violation.path += ["member", str(number)]
        return kept


class MapChecker(Checker):
    """Keys and values are reported once each, with all their rules, however many of them break one."""

    def __init__(self, shape: Any, compile_shape: Callable[[Any], Checker]) -> None:
        self._key = compile_shape(shape.key)
        self._value = compile_shape(shape.value)

    def check(self, value: Any, found: list[Violation]) -> Any:
        if not isinstance(value, dict):
            refuse_type(value, "a Map")
        bad_keys: list[Violation] = []
        bad_values: list[Violation] = []
        kept = {}
        for key, item in value.items():
            self._key.check(key, bad_keys)
            if item is None:
                bad_values.append(Violation(""))
            else:
                kept[key] = self._value.check(item, bad_values)
            if bad_keys and bad_values:
                break
        for bad, what, checker in ((bad_keys, "keys", self._key), (bad_values, "value", self._value)):
            if bad:
                found.append(Violation(f"Map {what} must satisfy constraint: [{', '.join(checker.rules())}]"))
        return kept


class Bounds:
    """Smallest and largest value or length. What has no bound in the model has none here."""

    def __init__(self, shape: Any, of: str) -> None:
        self._of = of
        self.min = shape.metadata.get("min")
        self.max = shape.metadata.get("max")

    def broken(self, number: float) -> Iterator[str]:
        if self.max is not None and number > self.max:
            yield self._at_most
        if self.min is not None and number < self.min:
            yield self._at_least

    def rules(self) -> Iterator[str]:
        if self.max is not None:
            yield self._at_most
        if self.min is not None:
            yield self._at_least

    @property
    def _at_most(self) -> str:
        return f"Member must have {self._of} less than or equal to {self.max}"

    @property
    def _at_least(self) -> str:
        return f"Member must have {self._of} greater than or equal to {self.min}"


class StringChecker(Checker):
    def __init__(self, shape: Any, pattern: JavaPattern | None) -> None:
        self._bounds = Bounds(shape, "length")
        self._pattern = pattern
        self._pattern_length_max = (self._bounds.max or 0) + EXCESS_LENGTH_MAX
        self._enum = frozenset(shape.enum)
        self._enum_shown = ", ".join(ENUM_ORDER.get(shape.name, shape.enum))
        self._shows_value = shape.name in SHAPES_SHOWN_WITH_VALUE

    def check(self, value: Any, found: list[Violation]) -> Any:
        if not isinstance(value, str):
            refuse_type(value, "a String")
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise WrongType("Half of a surrogate pair is no character")
        for rule in self._broken(value):
            found.append(Violation(rule, f"'{value}' " if self._shows_value else ""))
        return value

    def _broken(self, value: str) -> Iterator[str]:
        yield from self._bounds.broken(len(value))
        if self._enum and value not in self._enum:
            yield self._enum_rule
        if self._pattern and len(value) <= self._pattern_length_max and not self._pattern.matches(value):
            yield self._pattern.rule

    def rules(self) -> Iterator[str]:
        yield from self._bounds.rules()
        if self._enum:
            yield self._enum_rule
        if self._pattern:
            yield self._pattern.rule

    @property
    def _enum_rule(self) -> str:
        return f"Member must satisfy enum value set: [{self._enum_shown}]"


class IntegerChecker(Checker):
    def __init__(self, shape: Any) -> None:
        self._bounds = Bounds(shape, "value")

    def check(self, value: Any, found: list[Violation]) -> Any:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not -INT32_MAX <= value <= INT32_MAX:
            refuse_type(value, "an Integer")
        found.extend(map(Violation, self._bounds.broken(value)))
        return value


class NumberChecker(Checker):
    """Doubles, and timestamps in seconds since 1970."""

    def __init__(self, shape: Any, wanted: str) -> None:
        self._bounds = Bounds(shape, "value")
        self._wanted = wanted

    def check(self, value: Any, found: list[Violation]) -> Any:
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < NUMBER_MAX:
            refuse_type(value, self._wanted)
        found.extend(map(Violation, self._bounds.broken(value)))
        return value


class BooleanChecker(Checker):
    def check(self, value: Any, found: list[Violation]) -> Any:
        if not isinstance(value, bool):
            refuse_type(value, "a Boolean")
        return value


class BlobChecker(Checker):
    def __init__(self, shape: Any) -> None:
        self._bounds = Bounds(shape, "length")

    def check(self, value: Any, found: list[Violation]) -> Any:
        if not isinstance(value, str):
            refuse_type(value, "a Blob")
        try:
            data = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            data = None
        if data is None or len(value) % 4:
            raise WrongType("The value is not base64 with padding")
        found.extend(map(Violation, self._bounds.broken(len(data))))
        return data


class Validator:
    """Checks bodies of requests.

    `lenient` leaves the form of ARNs and URLs unchecked; `relaxed_urls` accepts http:// where AWS wants https://,
    and any host in a JDBC URL.
    """

    def __init__(self, *, lenient: bool = False, relaxed_urls: bool = True) -> None:
        self._lenient = lenient
        self._relaxed_urls = relaxed_urls
        self._by_shape: dict[str, Checker] = {}
        self._by_operation: dict[str, Checker] = {}

    def check(self, operation: str, body: Any) -> dict[str, Any]:
        """The body without what was not sent or is not known, blobs decoded. Raises ApiError."""
        checker = self._by_operation.get(operation)
        if checker is None:
            shape = service_model().operation_model(operation).input_shape
            checker = self._by_operation[operation] = self._compile(shape)
        found: list[Violation] = []
        try:
            kept: dict[str, Any] = checker.check({} if body is None else body, found)
        except WrongType as error:
            where = f" at '{dotted(error.path)}'" if error.path else ""
            raise ApiError("SerializationException", f"{error}{where}") from None
        if found:
            count = f"{len(found)} validation error{'s' if len(found) > 1 else ''} detected"
            raise ApiError("ValidationException", f"{count}: {'; '.join(map(str, found))}")
        return kept

    def _compile(self, shape: Any) -> Checker:
        # Shapes of input do not contain themselves, so that the depth of a body is bounded by the model.
        checker = self._by_shape.get(shape.name)
        if checker is None:
            checker = self._by_shape[shape.name] = self._new_checker(shape)
        return checker

    def _new_checker(self, shape: Any) -> Checker:
        kinds: dict[str, Callable[[], Checker]] = {
            "structure": lambda: StructureChecker(shape, self._compile),
            "list": lambda: ListChecker(shape, self._compile),
            "map": lambda: MapChecker(shape, self._compile),
            "string": lambda: StringChecker(
                shape, pattern_for(shape, lenient=self._lenient, relaxed_urls=self._relaxed_urls)
            ),
            "integer": lambda: IntegerChecker(shape),
            "double": lambda: NumberChecker(shape, "a Double"),
            "timestamp": lambda: NumberChecker(shape, "a Timestamp"),
            "boolean": BooleanChecker,
            "blob": lambda: BlobChecker(shape),
        }
        return kinds[shape.type_name]()


@lru_cache(maxsize=1)
def service_model() -> Any:
    import botocore.loaders  # when the first request comes: a server without delivery streams needs none of it
    import botocore.model

    description = botocore.loaders.Loader().load_service_model("firehose", "service-2")
    return botocore.model.ServiceModel(description, "firehose")
