"""Bodies of Firehose requests, made from botocore's service model: correct ones, and every value at its bounds;
and what is said of them."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import botocore.loaders
import pytest
import regex
from botocore.model import ServiceModel

from penstock.delivery.errors import ApiError
from penstock.doors.firehose.validation import Validator

MODEL = ServiceModel(botocore.loaders.Loader().load_service_model("firehose", "service-2"), "firehose")
OPERATIONS = list(MODEL.operation_names)
STRICT = Validator(relaxed_urls=False)

# A correct value, and the place where it can be made longer.
SAMPLES = {
    "AWSKMSKeyARN": ("arn:aws", ":kms:eu-west-1:123456789012:alias/k"),
    "AWSKMSKeyARNForSSE": ("arn:aws", ":kms:eu-west-1:123456789012:key/k"),
    "AmazonOpenSearchServerlessCollectionEndpoint": ("https://host", ""),
    "AmazonopensearchserviceClusterEndpoint": ("https://host", ""),
    "AmazonopensearchserviceDomainARN": ("arn:aws", ":es:eu-west-1:123456789012:domain/logs"),
    "BucketARN": ("arn:aws", ":s3:::bucket"),
    "ClusterJDBCURL": ("jdbc:redshift://a.b.eu-west-1.redshift.amazonaws.com:5439/d", ""),
    "DeliveryStreamVersionId": ("", "1"),
    "ElasticsearchClusterEndpoint": ("https://host", ""),
    "ElasticsearchDomainARN": ("arn:aws", ":es:eu-west-1:123456789012:domain/logs"),
    "FileExtension": (".log", ""),
    "GlueDataCatalogARN": ("arn:aws", ":glue:eu-west-1:123456789012:catalog/c"),
    "HttpEndpointUrl": ("https://host", ""),
    "KinesisStreamARN": ("arn:aws", ":kinesis:eu-west-1:123456789012:stream/s"),
    "MSKClusterARN": ("arn:aws", ""),
    "RoleARN": ("arn:aws", ":iam::123456789012:role/r"),
    "SecretARN": ("arn:aws", ":secretsmanager:eu-west-1:123456789012:secret:s"),
    "SnowflakeAccountUrl": ("account", ".snowflakecomputing.com"),
    "SnowflakePrivateLinkVpceId": ("com", ".amazonaws.vpce.eu-west-1.vpce-svc-0123456789abcdef0"),
    "VpcEndpointServiceName": ("com", ".amazonaws.vpce.eu-west-1.vpce-svc-0123456789abcdef0"),
    "WarehouseLocation": ("s3://bucket", ""),
}
LINES = ["a\nb", "a\n", "a\rb", "\n"]
STRANGE = ["", " ", "a b", "ä", "𝄞", "aws:x", "foo!", "x" * 20, "arn:", "http://a", *LINES]


class Leaf(NamedTuple):
    """A place in a body that holds a value without members."""

    operation: str
    path: tuple[str, ...]  # names of members; [] for an item of a list
    shape: Any

    @property
    def reported(self) -> str:
        """The path as AWS writes it."""
        return ".".join("1.member" if part == "[]" else part[0].lower() + part[1:] for part in self.path)

    def body(self, value: Any) -> dict[str, Any]:
        """A correct body but for this value."""
        return _with(MODEL.operation_model(self.operation).input_shape, self.path, value)


def leaves(*operations: str) -> Iterator[Leaf]:
    """Of some operations, or of all."""
    for operation in operations or OPERATIONS:
        yield from _leaves(operation, (), MODEL.operation_model(operation).input_shape)


def _leaves(operation: str, path: tuple[str, ...], shape: Any) -> Iterator[Leaf]:
    if shape.type_name == "structure":
        for name, member in shape.members.items():
            yield from _leaves(operation, (*path, name), member)
    elif shape.type_name == "list":
        yield Leaf(operation, path, shape)
        yield from _leaves(operation, (*path, "[]"), shape.member)
    else:
        yield Leaf(operation, path, shape)


def _with(shape: Any, path: tuple[str, ...], value: Any) -> Any:
    if not path:
        return value
    if path[0] == "[]":
        return [_with(shape.member, path[1:], value)]
    required = {name: sample(shape.members[name]) for name in shape.required_members}
    return {**required, path[0]: _with(shape.members[path[0]], path[1:], value)}


def sample(shape: Any, *, complete: bool = False) -> Any:
    """A correct value, with the required members only or with all."""
    kind = shape.type_name
    if kind == "structure":
        names = list(shape.members) if complete else shape.required_members
        return {name: sample(shape.members[name], complete=complete) for name in names}
    if kind == "list":
        return [sample(shape.member, complete=complete)]
    if kind == "map":
        return {sample(shape.key): sample(shape.value)}
    if kind == "string":
        return shape.enum[0] if shape.enum else text_of(shape, max(shape.metadata.get("min", 0), 1))
    scalars = {"boolean": True, "blob": base64.b64encode(b"data").decode(), "timestamp": 1.5e9, "double": 0.5}
    return scalars[kind] if kind in scalars else shape.metadata.get("min", 1)


def text_of(shape: Any, length: int) -> str:
    """Text of this length that the pattern allows, if the pattern allows any; else the shortest."""
    before, after = SAMPLES.get(shape.name, ("", ""))
    return before + "a" * (length - len(before) - len(after)) + after


def bounds(shape: Any) -> list[Any]:
    """Values at the bounds of a shape, within and beyond."""
    low, high = shape.metadata.get("min"), shape.metadata.get("max")
    edges = sorted(
        {edge for bound in (low, high) if bound is not None for edge in (bound - 1, bound, bound + 1)}
    )
    kind = shape.type_name
    if kind == "string":
        values = [*shape.enum, *(value.swapcase() for value in shape.enum), *STRANGE]
        return values + [text_of(shape, edge) for edge in edges if edge >= 0]
    if kind == "blob":
        return [base64.b64encode(b"x" * edge).decode() for edge in edges if edge >= 0]
    if kind == "list":
        return [[sample(shape.member)] * edge for edge in edges if edge >= 0]
    if kind in ("integer", "double"):
        return edges
    return [sample(shape)]


def broken_rules(shape: Any, value: Any) -> set[str]:
    """What AWS has to say of a value: the oracle."""
    kind, metadata = shape.type_name, shape.metadata
    measure = "value" if kind in ("integer", "double") else "length"
    size: Any = value
    if kind == "blob":
        size = len(base64.b64decode(value))
    elif measure == "length" and hasattr(value, "__len__"):
        size = len(value)
    rules = set()
    if "max" in metadata and size > metadata["max"]:
        rules.add(f"Member must have {measure} less than or equal to {metadata['max']}")
    if "min" in metadata and size < metadata["min"]:
        rules.add(f"Member must have {measure} greater than or equal to {metadata['min']}")
    if kind == "string" and shape.enum and value not in shape.enum:
        rules.add("enum")
    if kind == "string" and "pattern" in metadata and not _java_matches(metadata["pattern"], value):
        rules.add("pattern")
    return rules


def _java_matches(pattern: str, value: str) -> bool:
    """The regex module's dot, given these line separators, is Java's; no value of ours has another one."""
    ascii_classes = pattern if r"\p{" in pattern else f"(?a:{pattern})"
    return regex.fullmatch(ascii_classes, value, flags=regex.WORD if "." in pattern else 0) is not None


# -- requests by hand -------------------------------------------------------------------------------

ROLE = "arn:aws:iam::123456789012:role/r"
BUCKET = "arn:aws:s3:::b"
S3 = {"RoleARN": ROLE, "BucketARN": BUCKET}


def create(block: dict[str, Any], name: str = "ExtendedS3DestinationConfiguration") -> dict[str, Any]:
    return {"DeliveryStreamName": "s", name: block}


def refused(operation: str, body: Any, validator: Validator = STRICT) -> ApiError:
    with pytest.raises(ApiError) as caught:
        validator.check(operation, body)
    assert caught.value.http_status == 400
    return caught.value


def violations(error: ApiError) -> list[tuple[str, str]]:
    """Path and rule of each violation that a message tells, with patterns and enumerations shortened."""
    assert error.code == "ValidationException"
    found = re.findall(
        r"Value (?:'.*?' )?at '([^']+)' failed to satisfy constraint: (.*?)(?=; Value |\Z)",
        error.message,
        re.DOTALL,
    )
    count = (
        "1 validation error detected: " if len(found) == 1 else f"{len(found)} validation errors detected: "
    )
    assert error.message.startswith(count)
    short = {
        "Member must satisfy enum value set": "enum",
        "Member must satisfy regular expression pattern": "pattern",
    }
    return [(path, short.get(rule.partition(":")[0], rule)) for path, rule in found]
