"""Layer 2 of the checks of the Firehose door: destinations that are not S3, checked although they are refused yet."""

from __future__ import annotations

from typing import Any

import pytest
from firehose_bodies import LAMBDA, ON, PREFIX_RULE, accept, processor, refusal
from firehose_model import ROLE, S3, create

SECRET = {"Enabled": True, "SecretARN": "arn:aws:secretsmanager:eu-west-1:123456789012:secret:s"}
TABLE = {"DestinationTableName": "t", "DestinationDatabaseName": "d"}
DOMAIN = "arn:aws:es:eu-west-1:123456789012:domain/logs"

CORRECT: dict[str, dict[str, Any]] = {
    "Redshift": {
        "RoleARN": ROLE,
        "ClusterJDBCURL": "jdbc:redshift://c.x.eu-west-1.redshift.amazonaws.com:5439/db",
        "CopyCommand": {"DataTableName": "t"},
        "Username": "u",
        "Password": "password",
        "S3Configuration": S3,
    },
    "Elasticsearch": {
        "RoleARN": ROLE,
        "DomainARN": DOMAIN,
        "IndexName": "i",
        "TypeName": "t",
        "S3Configuration": S3,
    },
    "Amazonopensearchservice": {
        "RoleARN": ROLE,
        "ClusterEndpoint": "https://host",
        "IndexName": "i",
        "TypeName": "",
        "S3Configuration": S3,
    },
    "AmazonOpenSearchServerless": {
        "RoleARN": ROLE,
        "CollectionEndpoint": "https://host",
        "IndexName": "i",
        "S3Configuration": S3,
    },
    "Splunk": {
        "HECEndpoint": "https://host:8088",
        "HECEndpointType": "Raw",
        "HECToken": "t",
        "S3Configuration": S3,
    },
    "HttpEndpoint": {"EndpointConfiguration": {"Url": "https://host/path"}, "S3Configuration": S3},
    "Snowflake": {
        "AccountUrl": "account.snowflakecomputing.com",
        "PrivateKey": "a" * 256,
        "User": "u",
        "Database": "d",
        "Schema": "s",
        "Table": "t",
        "RoleARN": ROLE,
        "S3Configuration": S3,
    },
    "Iceberg": {
        "RoleARN": ROLE,
        "CatalogConfiguration": {},
        "DestinationTableConfigurationList": [TABLE],
        "S3Configuration": S3,
    },
}


def body(kind: str, **changes: Any) -> dict[str, Any]:
    return create({**CORRECT[kind], **changes}, f"{kind}DestinationConfiguration")


def stage(**members: Any) -> dict[str, Any]:
    return {**S3, **members}


@pytest.mark.parametrize("kind", CORRECT)
def test_correct_destinations(kind: str) -> None:
    accept(body(kind), supported_only=False)
    assert f"does not support {kind} destinations" in refusal(body(kind))


ATTRIBUTES = [{"AttributeName": "a", "AttributeValue": "1"}] * 2
REDSHIFT_PREFIX = (
    PREFIX_RULE + "Prefix Expressions or ErrorOutputPrefix is currently not supported for this destination"
)
REDSHIFT_COMPRESSION = (
    "Only the following compression formats are allowed when using Redshift: [UNCOMPRESSED, GZIP]"
)
ERRORS = "e/!{firehose:error-output-type}/"
VARIANT = "VARIANT_CONTENT_AND_METADATA_MAPPING"

RULES: list[tuple[str, dict[str, Any], str]] = [
    ("Redshift", {"S3Configuration": stage(Prefix="!{timestamp:yyyy}/")}, REDSHIFT_PREFIX),
    ("Redshift", {"S3Configuration": stage(ErrorOutputPrefix="e/")}, REDSHIFT_PREFIX),
    ("Redshift", {"S3Configuration": stage(ErrorOutputPrefix="")}, REDSHIFT_PREFIX),
    *(
        ("Redshift", {"S3Configuration": stage(CompressionFormat=name)}, REDSHIFT_COMPRESSION)
        for name in ("Snappy", "ZIP", "HADOOP_SNAPPY")
    ),
    ("Redshift", {"Password": None}, "Redshift Database Password is required for Redshift Destination"),
    ("Redshift", {"Username": None}, "Redshift Database Username is required for Redshift Destination"),
    (
        "Redshift",
        {"S3BackupMode": "Enabled"},
        "S3 backup destination configuration is required when enabling S3 backup.",
    ),
    (
        "Elasticsearch",
        {"ClusterEndpoint": "https://host"},
        "Cannot provide both Elasticsearch cluster endpoint and domain ARN. Provide either the cluster endpoint or "
        "domain arn.",
    ),
    (
        "Elasticsearch",
        {"DomainARN": None},
        "Provide either the Elasticsearch cluster endpoint or domain arn.",
    ),
    (
        "Amazonopensearchservice",
        {"ClusterEndpoint": None},
        "Provide either the Elasticsearch cluster endpoint or domain arn.",
    ),
    (
        "Amazonopensearchservice",
        {"TypeName": "t"},
        "Types are deprecated in Elasticsearch version 7+ and all OpenSearch versions. TypeName must be empty.",
    ),
    (
        "AmazonOpenSearchServerless",
        {"CollectionEndpoint": None},
        "Must specify collection endpoint for delivery to OpenSearch serverless.",
    ),
    ("Splunk", {"HECToken": None}, "HECToken is required for a Splunk destination"),
    (
        "Splunk",
        {"HECEndpoint": "host:8088"},
        "Invalid HECEndpoint. Supported endpoint format is https://<domain>:<port>.",
    ),
    (
        "Splunk",
        {"SecretsManagerConfiguration": SECRET},
        "SecretsManagerConfiguration.RoleARN is required for a Splunk destination",
    ),
    *(
        (kind, {"SecretsManagerConfiguration": ON}, "Invalid secret ARN: null")
        for kind in ("Redshift", "Splunk", "HttpEndpoint", "Snowflake")
    ),
    (
        "HttpEndpoint",
        {"RequestConfiguration": {"CommonAttributes": ATTRIBUTES}},
        "Http Endpoint Common Attributes have duplicate name a",
    ),
    ("Snowflake", {"User": None}, "User must be provided."),
    ("Snowflake", {"PrivateKey": None}, "PrivateKey must be provided."),
    (
        "Snowflake",
        {"SnowflakeRoleConfiguration": ON},
        "Must provide SnowflakeRole when SnowflakeRoleConfiguration is enabled.",
    ),
    *(
        (
            "Snowflake",
            {name: "c"},
            f"Can't configure {name} when Data Loading Option is not VARIANT_CONTENT_MAPPING or {VARIANT}",
        )
        for name in ("ContentColumnName", "MetaDataColumnName")
    ),
    (
        "Snowflake",
        {"DataLoadingOption": "VARIANT_CONTENT_MAPPING"},
        "Must provide ContentColumnName when Data Loading Option is VARIANT_CONTENT_MAPPING.",
    ),
    (
        "Snowflake",
        {"DataLoadingOption": VARIANT, "ContentColumnName": "c"},
        f"Must provide ContentColumnName and MetadataColumnName when Data Loading Option is {VARIANT}.",
    ),
    (
        "Iceberg",
        {"S3BackupMode": "AllData"},
        "S3BackupMode.AllData is not supported for Iceberg as destination.",
    ),
    *(
        (
            "Iceberg",
            {"DestinationTableConfigurationList": tables},
            "A single default destination table configuration must be provided when both Lambda and MetadataExtraction "
            "processors are not provided",
        )
        for tables in (None, [TABLE, TABLE])
    ),
]


@pytest.mark.parametrize(("kind", "changes", "text"), RULES)
def test_rules_of_destinations(kind: str, changes: dict[str, Any], text: str) -> None:
    assert refusal(body(kind, **changes)) == text


@pytest.mark.parametrize("kind", CORRECT)
def test_rules_of_all_destinations(kind: str) -> None:
    logging = {"CloudWatchLoggingOptions": ON}
    group = "CloudWatch Log Group Name is required if CloudWatch Logging is enabled"
    assert refusal(body(kind, **logging)) == group
    assert refusal(body(kind, S3Configuration=stage(**logging))) == group
    half = stage(BufferingHints={"SizeInMBs": 5})
    assert refusal(body(kind, S3Configuration=half)).startswith("Both BufferingHints.SizeInMBs and")
    lambdas = {"Enabled": True, "Processors": [LAMBDA, LAMBDA]}
    assert refusal(body(kind, ProcessingConfiguration=lambdas)) == "Cannot have more than 1 Lambda processor."


@pytest.mark.parametrize("kind", CORRECT)
def test_interval_of_the_s3_block(kind: str) -> None:
    at_once = stage(BufferingHints={"SizeInMBs": 5, "IntervalInSeconds": 0})
    if kind == "Redshift":  # it is a stage there, no backup
        accept(body(kind, S3Configuration=at_once), supported_only=False)
    else:
        assert "at least 60 seconds for an S3 backup" in refusal(body(kind, S3Configuration=at_once))


METADATA = processor("MetadataExtraction", MetadataExtractionQuery="{a:.a}", JsonParsingEngine="JQ-1.6")


@pytest.mark.parametrize("kind", CORRECT)
def test_only_iceberg_routes_by_query(kind: str) -> None:
    routed = body(kind, ProcessingConfiguration={"Enabled": True, "Processors": [METADATA]})
    if kind == "Iceberg":
        accept(routed, supported_only=False)
    else:
        assert "can only be present when Dynamic Partitioning is enabled" in refusal(routed)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("Redshift", {"Username": None, "Password": None, "SecretsManagerConfiguration": SECRET}),
        ("Redshift", {"S3Configuration": stage(Prefix="p/", CompressionFormat="GZIP")}),
        ("Splunk", {"HECToken": None, "SecretsManagerConfiguration": {**SECRET, "RoleARN": ROLE}}),
        ("Splunk", {"HECEndpoint": "http://127.0.0.1:8088"}),
        ("Splunk", {"BufferingHints": {"SizeInMBs": 1}}),
        ("Snowflake", {"User": None, "PrivateKey": None, "SecretsManagerConfiguration": SECRET}),
        (
            "Snowflake",
            {"DataLoadingOption": VARIANT, "ContentColumnName": "c", "MetaDataColumnName": "m"},
        ),
        ("HttpEndpoint", {"SecretsManagerConfiguration": SECRET}),
        ("HttpEndpoint", {"EndpointConfiguration": {"Url": "https://host:8443/"}}),
        ("HttpEndpoint", {"S3Configuration": stage(Prefix="!{timestamp:yyyy}/", ErrorOutputPrefix=ERRORS)}),
        (
            "Iceberg",
            {
                "DestinationTableConfigurationList": None,
                "ProcessingConfiguration": {"Enabled": True, "Processors": [LAMBDA]},
            },
        ),
    ],
)
def test_destinations_that_are_accepted(kind: str, changes: dict[str, Any]) -> None:
    accept(body(kind, **changes), supported_only=False)


@pytest.mark.parametrize(
    ("kind", "changes", "text"),
    [
        ("Splunk", {"HECEndpoint": "http://host:8088"}, "Invalid HECEndpoint."),
        (
            "HttpEndpoint",
            {"EndpointConfiguration": {"Url": "https://host:8443/"}},
            "The port of an HTTP endpoint",
        ),
        (
            "HttpEndpoint",
            {"EndpointConfiguration": {"Url": "https://host:x/"}},
            "The port of an HTTP endpoint",
        ),
        ("HttpEndpoint", {"EndpointConfiguration": {"Url": "https://[x/"}}, "The port of an HTTP endpoint"),
    ],
)
def test_addresses_as_aws_wants_them(kind: str, changes: dict[str, Any], text: str) -> None:
    assert refusal(body(kind, **changes), relaxed_urls=False).startswith(text)
    accept(body(kind), relaxed_urls=False, supported_only=False)
