"""What a DataFormatConversionConfiguration asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.hive_types import Column
from penstock.pipeline.records.deserializer import Deserializer
from penstock.pipeline.records.hive import Hive
from penstock.pipeline.records.openx import OpenX


def deserializer_of(conversion: Mapping[str, Any]) -> dict[str, Any]:
    return dict((conversion.get("InputFormatConfiguration") or {}).get("Deserializer") or {})


def serializer_of(conversion: Mapping[str, Any]) -> dict[str, Any]:
    return dict((conversion.get("OutputFormatConfiguration") or {}).get("Serializer") or {})


def deserializer_for(named: Mapping[str, Any], columns: Sequence[Column]) -> Deserializer:
    """By the names that Deserializer has for them. Raises BadPattern."""
    if named.get("HiveJsonSerDe") is not None:
        return Hive(columns, named["HiveJsonSerDe"])
    return OpenX(columns, named.get("OpenXJsonSerDe") or {})
