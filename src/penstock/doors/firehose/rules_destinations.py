"""Rules of the destinations that are not S3. Each has an S3 block for what it cannot deliver, or as a stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from penstock.delivery.destinations import is_on
from penstock.doors.firehose.refusal import refuse
from penstock.doors.firehose.rules_processing import check_processing, processors_of
from penstock.doors.firehose.rules_s3 import (
    PREFIX_RULE,
    check_backup_block,
    check_buffering_hints,
    check_logging,
    check_s3,
    check_s3_backup,
    parse,
)

Config = Mapping[str, Any]

INVALID_HEC_ENDPOINT = "Invalid HECEndpoint. Supported endpoint format is https://<domain>:<port>."
REDSHIFT_COMPRESSION = ("UNCOMPRESSED", "GZIP")


def check_other_destination(destination_type: str, config: Config, *, relaxed_urls: bool) -> None:
    check_logging(config)
    stage = config["S3Configuration"]
    if destination_type == "Redshift":
        _check_redshift_stage(stage)
    else:
        check_s3_backup(stage)
    check_processing(config, partitioned=False, routed=destination_type == "Iceberg")
    _check_secret(destination_type, config)
    _CHECKS[destination_type](config)
    if not relaxed_urls:
        _check_urls(config)


def _check_secret(destination_type: str, config: Config) -> None:
    secrets = config.get("SecretsManagerConfiguration")
    if secrets is None or not is_on(secrets):
        return
    if "SecretARN" not in secrets:
        refuse("Invalid secret ARN: null")
    if destination_type == "Splunk" and "RoleARN" not in secrets:
        refuse("SecretsManagerConfiguration.RoleARN is required for a Splunk destination")


def _need_credentials(config: Config, texts: Mapping[str, str]) -> None:
    """Credentials stand in the configuration, or in a secret."""
    if is_on(config.get("SecretsManagerConfiguration")):
        return
    for name, text in texts.items():
        if name not in config:
            refuse(text)


def _check_redshift_stage(stage: Config) -> None:
    if parse(stage, "Prefix").has_expressions or "ErrorOutputPrefix" in stage:
        refuse(
            f"{PREFIX_RULE}Prefix Expressions or ErrorOutputPrefix is currently not supported for this destination"
        )
    check_s3(stage)
    if stage.get("CompressionFormat", "UNCOMPRESSED") not in REDSHIFT_COMPRESSION:
        refuse(
            "Only the following compression formats are allowed when using Redshift: "
            f"[{', '.join(REDSHIFT_COMPRESSION)}]"
        )


def _check_redshift(config: Config) -> None:
    check_backup_block(config)
    _need_credentials(
        config,
        {
            "Username": "Redshift Database Username is required for Redshift Destination",
            "Password": "Redshift Database Password is required for Redshift Destination",
        },
    )


def _check_search(config: Config) -> None:
    if "DomainARN" in config and "ClusterEndpoint" in config:
        refuse(
            "Cannot provide both Elasticsearch cluster endpoint and domain ARN. Provide either the cluster "
            "endpoint or domain arn."
        )
    if "DomainARN" not in config and "ClusterEndpoint" not in config:
        refuse("Provide either the Elasticsearch cluster endpoint or domain arn.")


def _check_opensearch(config: Config) -> None:
    _check_search(config)
    if config.get("TypeName"):
        refuse(
            "Types are deprecated in Elasticsearch version 7+ and all OpenSearch versions. TypeName must be empty."
        )


def _check_serverless(config: Config) -> None:
    if "CollectionEndpoint" not in config:
        refuse("Must specify collection endpoint for delivery to OpenSearch serverless.")


def _check_splunk(config: Config) -> None:
    if not config["HECEndpoint"].startswith(("http://", "https://")):
        refuse(INVALID_HEC_ENDPOINT)
    _need_credentials(config, {"HECToken": "HECToken is required for a Splunk destination"})


def _check_http_endpoint(config: Config) -> None:
    seen = set()
    for attribute in config.get("RequestConfiguration", {}).get("CommonAttributes", []):
        name = attribute["AttributeName"]
        if name in seen:
            refuse(f"Http Endpoint Common Attributes have duplicate name {name}")
        seen.add(name)


def _check_snowflake(config: Config) -> None:
    _need_credentials(
        config, {"User": "User must be provided.", "PrivateKey": "PrivateKey must be provided."}
    )
    role = config.get("SnowflakeRoleConfiguration", {})
    if is_on(role) and "SnowflakeRole" not in role:
        refuse("Must provide SnowflakeRole when SnowflakeRoleConfiguration is enabled.")
    option = config.get("DataLoadingOption", "JSON_MAPPING")
    if option == "JSON_MAPPING":
        for name in ("ContentColumnName", "MetaDataColumnName"):
            if name in config:
                refuse(
                    f"Can't configure {name} when Data Loading Option is not VARIANT_CONTENT_MAPPING or "
                    "VARIANT_CONTENT_AND_METADATA_MAPPING"
                )
    elif option == "VARIANT_CONTENT_MAPPING":
        if "ContentColumnName" not in config:
            refuse("Must provide ContentColumnName when Data Loading Option is VARIANT_CONTENT_MAPPING.")
    elif "ContentColumnName" not in config or "MetaDataColumnName" not in config:
        refuse(
            "Must provide ContentColumnName and MetadataColumnName when Data Loading Option is "
            "VARIANT_CONTENT_AND_METADATA_MAPPING."
        )


def _check_iceberg(config: Config) -> None:
    check_buffering_hints(config)
    mode = config.get("S3BackupMode", "FailedDataOnly")
    if mode != "FailedDataOnly":
        refuse(f"S3BackupMode.{mode} is not supported for Iceberg as destination.")
    routed = {"Lambda", "MetadataExtraction"} & processors_of(config).keys()
    if not routed and len(config.get("DestinationTableConfigurationList", [])) != 1:
        refuse(
            "A single default destination table configuration must be provided when both Lambda and "
            "MetadataExtraction processors are not provided"
        )


_CHECKS: dict[str, Callable[[Config], None]] = {
    "Redshift": _check_redshift,
    "Elasticsearch": _check_search,
    "Amazonopensearchservice": _check_opensearch,
    "AmazonOpenSearchServerless": _check_serverless,
    "Splunk": _check_splunk,
    "HttpEndpoint": _check_http_endpoint,
    "Snowflake": _check_snowflake,
    "Iceberg": _check_iceberg,
}


def _check_urls(config: Config) -> None:
    """What AWS asks of addresses beyond the patterns of its model."""
    if "HECEndpoint" in config and not config["HECEndpoint"].startswith("https://"):
        refuse(INVALID_HEC_ENDPOINT)
    if "EndpointConfiguration" in config and _port(config["EndpointConfiguration"]["Url"]) != 443:
        refuse("The port of an HTTP endpoint has to be 443")


def _port(url: str) -> int | None:
    try:
        return urlsplit(url).port or 443
    except ValueError:
        return None
