"""How an update merges: what it names is replaced, at the depth that AWS was seen to use; the rest stays."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.rig import ROLE, S3
from penstock.delivery.destinations import DESTINATIONS
from penstock.delivery.errors import ApiError
from penstock.delivery.updates import merged

CONVERSION = {
    "Enabled": True,
    "SchemaConfiguration": {"RoleARN": ROLE, "DatabaseName": "d", "TableName": "t"},
    "InputFormatConfiguration": {"Deserializer": {"OpenXJsonSerDe": {}}},
    "OutputFormatConfiguration": {"Serializer": {"ParquetSerDe": {"Compression": "GZIP"}}},
}


def s3(config: dict[str, Any], update: dict[str, Any]) -> dict[str, Any]:
    return merged("ExtendedS3", {**S3, **config}, "ExtendedS3", update)


members = st.dictionaries(
    st.sampled_from(["Prefix", "BufferingHints", "CompressionFormat", "RoleARN", "FileExtension"]),
    st.text(min_size=1, max_size=3),
)


@given(members, members)
def test_members_that_are_not_named_stay_and_the_others_are_replaced(
    config: dict[str, Any], update: dict[str, Any]
) -> None:
    before = {**S3, **config}
    result = s3(config, update)
    assert result == {**before, **update}
    assert before == {**S3, **config}
    assert merged("ExtendedS3", result, "ExtendedS3", update) == result


def test_hints_and_encryption_are_replaced_as_a_unit() -> None:
    config = {"EncryptionConfiguration": {"KMSEncryptionConfig": {"AWSKMSKeyARN": "arn"}}}
    off = {"NoEncryptionConfig": "NoEncryption"}
    assert s3(config, {"EncryptionConfiguration": off})["EncryptionConfiguration"] == off


def test_conversion_is_merged_down_to_the_schema() -> None:
    config = {"DataFormatConversionConfiguration": CONVERSION}
    off = s3(config, {"DataFormatConversionConfiguration": {"Enabled": False}})
    assert off["DataFormatConversionConfiguration"] == {**CONVERSION, "Enabled": False}
    orc = {"Serializer": {"OrcSerDe": {}}}
    changed = s3(
        config,
        {
            "DataFormatConversionConfiguration": {
                "SchemaConfiguration": {"TableName": "other"},
                "OutputFormatConfiguration": orc,
            }
        },
    )
    assert changed["DataFormatConversionConfiguration"] == {
        **CONVERSION,
        "SchemaConfiguration": {"RoleARN": ROLE, "DatabaseName": "d", "TableName": "other"},
        "OutputFormatConfiguration": orc,
    }


def test_processing_is_replaced_whole() -> None:
    config = {"ProcessingConfiguration": {"Enabled": True, "Processors": [{"Type": "Lambda"}]}}
    result = s3(config, {"ProcessingConfiguration": {"Enabled": False}})
    assert result["ProcessingConfiguration"] == {"Enabled": False}


def test_blocks_of_s3_inside_are_merged_member_by_member() -> None:
    config = {"S3BackupConfiguration": {**S3, "Prefix": "a/", "ErrorOutputPrefix": "e/"}}
    result = s3(config, {"S3BackupUpdate": {"Prefix": "b/", "ErrorOutputPrefix": ""}})
    assert result["S3BackupConfiguration"] == {**S3, "Prefix": "b/"}
    assert "S3BackupUpdate" not in result
    redshift = merged("Redshift", {"S3Configuration": S3}, "Redshift", {"S3Update": {"Prefix": "x"}})
    assert redshift == {"S3Configuration": {**S3, "Prefix": "x"}}


def test_a_backup_may_come_with_an_update() -> None:
    result = s3({}, {"S3BackupMode": "Enabled", "S3BackupUpdate": S3})
    assert result["S3BackupConfiguration"] == S3


def test_empty_text_clears() -> None:
    result = s3({"Prefix": "p", "ErrorOutputPrefix": "e", "FileExtension": ".x"},
                {"Prefix": "", "ErrorOutputPrefix": "", "FileExtension": ""})  # fmt: skip
    assert result == {**S3, "Prefix": "", "FileExtension": ""}


def test_an_endpoint_keeps_its_key_unless_it_gets_another() -> None:
    config = {"EndpointConfiguration": {"Url": "https://a", "Name": "n", "AccessKey": "k"}}
    moved = merged("HttpEndpoint", config, "HttpEndpoint", {"EndpointConfiguration": {"Url": "https://b"}})
    assert moved == {"EndpointConfiguration": {"Url": "https://b", "AccessKey": "k"}}
    new_key = {"EndpointConfiguration": {"Url": "https://b", "AccessKey": "l"}}
    assert merged("HttpEndpoint", config, "HttpEndpoint", new_key) == new_key


def test_s3_and_redshift_replace_each_other_without_merging() -> None:
    update = {"RoleARN": ROLE, "S3Update": S3}
    assert merged("ExtendedS3", {**S3, "Prefix": "p"}, "Redshift", update) == {
        "RoleARN": ROLE,
        "S3Configuration": S3,
    }
    assert merged("Redshift", {"S3Configuration": S3}, "ExtendedS3", S3) == S3


@pytest.mark.parametrize("other", sorted(DESTINATIONS.keys() - {"ExtendedS3", "Redshift"}))
def test_other_changes_of_the_type_are_refused(other: str) -> None:
    for kind, new_kind in ((other, "ExtendedS3"), ("Redshift", other)):
        with pytest.raises(ApiError) as refused:
            merged(kind, {}, new_kind, {})
        assert refused.value.code == "InvalidArgumentException"
        assert refused.value.message == (
            f"Changing the destination type to or from {other} is not supported at this time."
        )
