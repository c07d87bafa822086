"""How UpdateDestination changes a configuration."""

from __future__ import annotations

from penstock.delivery.destinations import EXTENDED_S3, NESTED_S3, Config
from penstock.delivery.errors import ApiError

_CONFIGURATION_NAMES = {"S3Update": "S3Configuration", "S3BackupUpdate": "S3BackupConfiguration"}
_INTERCHANGEABLE = {EXTENDED_S3, "Redshift"}


def merged(kind: str, config: Config, new_kind: str, update: Config) -> Config:
    """The configuration after the update: what it does not name stays, if the destination stays what it is."""
    changes = {_CONFIGURATION_NAMES.get(name, name): value for name, value in update.items()}
    if new_kind != kind:
        _check_change_of_kind(kind, new_kind)
        return changes
    result = {**config, **{name: _merged_member(name, config, value) for name, value in changes.items()}}
    if result.get("ErrorOutputPrefix") == "":
        del result["ErrorOutputPrefix"]
    return result


def _check_change_of_kind(kind: str, new_kind: str) -> None:
    if {kind, new_kind} != _INTERCHANGEABLE:
        named = new_kind if kind in _INTERCHANGEABLE else kind
        raise ApiError(
            "InvalidArgumentException",
            f"Changing the destination type to or from {named} is not supported at this time.",
        )


def _merged_member(name: str, config: Config, value: object) -> object:
    old = config.get(name)
    if not isinstance(old, dict) or not isinstance(value, dict):
        return value
    if name in NESTED_S3:
        return merged(EXTENDED_S3, old, EXTENDED_S3, value)
    if name == "DataFormatConversionConfiguration":
        schema = {**old.get("SchemaConfiguration", {}), **value.get("SchemaConfiguration", {})}
        return {**old, **value, **({"SchemaConfiguration": schema} if schema else {})}
    if name == "EndpointConfiguration" and "AccessKey" in old:
        return {"AccessKey": old["AccessKey"], **value}
    return value
