"""What a DataFormatConversionConfiguration asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.hive_types import Column
from penstock.pipeline.records.deserializer import Deserializer
from penstock.pipeline.records.hive import Hive
from penstock.pipeline.records.openx import OpenX


def conversion_of(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The configuration of format conversion, if it is on. Where nothing is said it is."""
    conversion: Mapping[str, Any] | None = config.get("DataFormatConversionConfiguration")
    return conversion if conversion and conversion.get("Enabled", True) else None


def deserializer_of(conversion: Mapping[str, Any]) -> dict[str, Any]:
    return dict((conversion.get("InputFormatConfiguration") or {}).get("Deserializer") or {})


def serializer_of(conversion: Mapping[str, Any]) -> dict[str, Any]:
    return dict((conversion.get("OutputFormatConfiguration") or {}).get("Serializer") or {})


def deserializer_for(named: Mapping[str, Any], columns: Sequence[Column]) -> Deserializer:
    """By the names that Deserializer has for them. Raises BadPattern."""
    if named.get("HiveJsonSerDe") is not None:
        return Hive(columns, named["HiveJsonSerDe"])
    return OpenX(columns, named.get("OpenXJsonSerDe") or {})
