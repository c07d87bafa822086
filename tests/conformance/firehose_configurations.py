"""Strategies for delivery streams that AWS accepts: every member there or not, at its bounds or between, and all of
them together within the rules between members."""

from __future__ import annotations

import base64
import string
from typing import Any

from hypothesis import strategies as st

from conformance.firehose import BUCKET_ARN, ROLE_ARN, S3

KEY_ARN = "arn:aws:kms:us-east-1:123456789012:key/first"

Block = dict[str, Any]
Blocks = st.SearchStrategy[Block]

NAME_LETTERS = string.ascii_letters + string.digits + "_.-"
ERROR_TYPE = "!{firehose:error-output-type}"


# What follows the 16 characters that make a name unique.
endings = st.text(NAME_LETTERS, max_size=20) | st.text(NAME_LETTERS, min_size=48, max_size=48)


def within(low: int, high: int) -> st.SearchStrategy[int]:
    """Often at the bounds."""
    return st.one_of(st.just(low), st.just(high), st.integers(low, high))


def texts(alphabet: st.SearchStrategy[str] | str, low: int, high: int) -> st.SearchStrategy[str]:
    return st.one_of(
        st.text(alphabet, min_size=low, max_size=low),
        st.text(alphabet, min_size=low, max_size=min(high, low + 20)),
        st.text(alphabet, min_size=1, max_size=1).map(lambda letter: letter * high),
    )


# -- tags and encryption ----------------------------------------------------------------------------

_tag_letters = st.one_of(st.characters(categories=["L", "Z", "N"]), st.sampled_from("_.:/=+-@%"))
_tag_keys = texts(_tag_letters, 1, 128).filter(lambda key: not key.startswith("aws:"))


def tags(most: int = 50) -> st.SearchStrategy[list[Block]]:
    tag = st.fixed_dictionaries({"Key": _tag_keys}, optional={"Value": texts(_tag_letters, 0, 256)})
    few = st.lists(tag, min_size=1, max_size=5, unique_by=lambda tag: tag["Key"])
    return few | st.just([{"Key": f"key {number}", "Value": ""} for number in range(most)])


encryption_inputs: Blocks = st.sampled_from(
    [{"KeyType": "AWS_OWNED_CMK"}, {"KeyType": "CUSTOMER_MANAGED_CMK", "KeyARN": KEY_ARN}]
)

# -- S3 blocks --------------------------------------------------------------------------------------

_encryption: Blocks = st.sampled_from(
    [
        {"NoEncryptionConfig": "NoEncryption"},
        {"KMSEncryptionConfig": {"AWSKMSKeyARN": "arn:aws:kms:eu-west-1:123456789012:alias/k"}},
        {"KMSEncryptionConfig": {"AWSKMSKeyARN": "arn:aws:kms:eu-west-1:123456789012:key/" + "k" * 400}},
    ]
)
_logging: Blocks = st.sampled_from(
    [
        {},
        {"Enabled": False},
        {"Enabled": False, "LogGroupName": "", "LogStreamName": ""},
        {"Enabled": True, "LogGroupName": "/aws/kinesisfirehose/a#b", "LogStreamName": "S3Delivery"},
        {"Enabled": True, "LogGroupName": "g" * 512, "LogStreamName": "ä" * 512},
    ]
)
_plain = texts(st.characters(codec="ascii", exclude_characters="!", categories=["L", "N", "P"]), 0, 400)
_timed = st.sampled_from(
    [
        "!{timestamp:yyyy/MM/dd}/",
        "a=!{timestamp:yyyy'-W'ww}/!{firehose:random-string}/",
        "!{firehose:random-string}/",
    ]
)
_error_prefixes = st.sampled_from([f"{ERROR_TYPE}/", f"e/!{{timestamp:HH}}/{ERROR_TYPE}/x", "plain/errors"])
_prefixes: Blocks = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"Prefix": _plain}, optional={"ErrorOutputPrefix": _error_prefixes | st.just("")}),
    st.fixed_dictionaries({"Prefix": _timed, "ErrorOutputPrefix": _error_prefixes}),
)


def hints(size_min: int = 1, interval_min: int = 0) -> Blocks:
    return st.fixed_dictionaries(
        {"SizeInMBs": within(size_min, 128), "IntervalInSeconds": within(interval_min, 900)}
    )


_roles = st.sampled_from([ROLE_ARN, "arn:aws-cn:iam::000000000000:role/a+=,.@-_/b", ROLE_ARN + "r" * 400])
_buckets = st.sampled_from([BUCKET_ARN, "arn:aws-us-gov:s3:::a.b-c_d", "arn:aws:s3:::" + "b" * 255])
_compressions = st.sampled_from(["UNCOMPRESSED", "GZIP", "ZIP", "Snappy", "HADOOP_SNAPPY"])


@st.composite
def s3_blocks(draw: st.DrawFn, interval_min: int = 0) -> Block:
    block = {
        "RoleARN": _roles,
        "BucketARN": _buckets,
    }
    optional = {
        "BufferingHints": hints(interval_min=interval_min),
        "CompressionFormat": _compressions,
        "EncryptionConfiguration": _encryption,
        "CloudWatchLoggingOptions": _logging,
    }
    return draw(st.fixed_dictionaries(block, optional=optional)) | draw(_prefixes)


# -- extended S3: processors, partitions, conversion -------------------------------------------------


def processor(kind: str, **parameters: str) -> Block:
    listed = [{"ParameterName": name, "ParameterValue": value} for name, value in parameters.items()]
    return {"Type": kind, "Parameters": listed}


LAMBDA_ARN = "arn:aws:lambda:us-east-1:123456789012:function:f"
_lambdas: Blocks = st.sampled_from(
    [
        processor("Lambda", LambdaArn=LAMBDA_ARN),
        processor("Lambda", LambdaArn=f"{LAMBDA_ARN}:$LATEST", NumberOfRetries="0", RoleArn=ROLE_ARN),
        processor("Lambda", BufferSizeInMBs="0.2", BufferIntervalInSeconds="0", LambdaArn=LAMBDA_ARN),
        processor("Lambda", LambdaArn=LAMBDA_ARN, BufferSizeInMBs="3", BufferIntervalInSeconds="900"),
    ]
)
_deaggregations: Blocks = st.sampled_from(
    [
        processor("RecordDeAggregation", SubRecordType="JSON"),
        processor(
            "RecordDeAggregation", SubRecordType="DELIMITED", Delimiter=base64.b64encode(b"##").decode()
        ),
    ]
)
_delimiters: Blocks = st.sampled_from(
    [
        {"Type": "AppendDelimiterToRecord"},
        processor("AppendDelimiterToRecord", Delimiter="\\n"),
        processor("AppendDelimiterToRecord", Delimiter="x" * 5120),
    ]
)
_decompression = processor("Decompression", CompressionFormat="GZIP")
_log_processing = processor("CloudWatchLogProcessing", DataMessageExtraction="true")
_from_logs = st.sampled_from([[], [_decompression], [_decompression, _log_processing]])


@st.composite
def _processors(draw: st.DrawFn) -> list[Block]:
    """In any order; five at most."""
    chosen = list(draw(_from_logs))
    for strategy in (_lambdas, _deaggregations, _delimiters):
        if draw(st.booleans()):
            chosen.append(draw(strategy))
    return draw(st.permutations(chosen))


@st.composite
def _processing(draw: st.DrawFn) -> Block:
    processors = draw(_processors())
    enabled = draw(st.booleans()) and bool(processors)
    return {"Enabled": enabled, "Processors": processors}


_PARTITION_PREFIXES = {
    "{customer: .customer_id}": "!{partitionKeyFromQuery:customer}/",
    '{a: .a, "b c": .b}': "a=!{partitionKeyFromQuery:a}/!{partitionKeyFromQuery:b c}/!{timestamp:yyyy}/",
}


@st.composite
def _partitioned(draw: st.DrawFn) -> Block:
    query, prefix = draw(st.sampled_from(sorted(_PARTITION_PREFIXES.items())))
    extraction = processor("MetadataExtraction", MetadataExtractionQuery=query, JsonParsingEngine="JQ-1.6")
    others = [chosen for chosen in draw(_processors()) if chosen["Type"] != "Decompression"]
    others = [chosen for chosen in others if chosen["Type"] != "CloudWatchLogProcessing"]
    if draw(st.booleans()) and any(chosen["Type"] == "Lambda" for chosen in others):
        prefix += "!{partitionKeyFromLambda:shop}/"
    partitioning = draw(
        st.sampled_from([{"Enabled": True}, {"Enabled": True, "RetryOptions": {"DurationInSeconds": 7200}}])
    )
    return {
        "Prefix": prefix,
        "ErrorOutputPrefix": draw(_error_prefixes),
        "BufferingHints": draw(hints(64, 60)),
        "DynamicPartitioningConfiguration": partitioning,
        "ProcessingConfiguration": {
            "Enabled": True,
            "Processors": draw(st.permutations([extraction, *others])),
        },
    }


_deserializers: Blocks = st.sampled_from(
    [
        {"OpenXJsonSerDe": {}},
        {
            "OpenXJsonSerDe": {
                "ConvertDotsInJsonKeysToUnderscores": True,
                "CaseInsensitive": False,
                "ColumnToJsonKeyMappings": {"ts": "timestamp", "k" * 1024: "v" * 1024},
            }
        },
        {"HiveJsonSerDe": {}},
        {"HiveJsonSerDe": {"TimestampFormats": ["millis", "yyyy-MM-dd'T'HH:mm:ss"]}},
    ]
)
_serializers: Blocks = st.one_of(
    st.fixed_dictionaries(
        {},
        optional={
            "BlockSizeBytes": within(67108864, 2**31 - 1),
            "PageSizeBytes": within(65536, 2**31 - 1),
            "Compression": st.sampled_from(["UNCOMPRESSED", "GZIP", "SNAPPY"]),
            "EnableDictionaryCompression": st.booleans(),
            "MaxPaddingBytes": within(0, 1000),
            "WriterVersion": st.sampled_from(["V1", "V2"]),
        },
    ).map(lambda serializer: {"ParquetSerDe": serializer}),
    st.fixed_dictionaries(
        {},
        optional={
            "StripeSizeBytes": within(8388608, 2**31 - 1),
            "BlockSizeBytes": within(67108864, 2**31 - 1),
            "RowIndexStride": within(1000, 20000),
            "EnablePadding": st.booleans(),
            "PaddingTolerance": st.sampled_from([0, 0.5, 1]),
            "Compression": st.sampled_from(["NONE", "ZLIB", "SNAPPY"]),
            "BloomFilterColumns": st.just(["a", "b"]),
            "BloomFilterFalsePositiveProbability": st.sampled_from([0.0, 1.0]),
            "DictionaryKeyThreshold": st.sampled_from([0, 0.8]),
            "FormatVersion": st.sampled_from(["V0_11", "V0_12"]),
        },
    ).map(lambda serializer: {"OrcSerDe": serializer}),
)
_schemas: Blocks = st.fixed_dictionaries(
    {"RoleARN": _roles, "DatabaseName": st.just("events"), "TableName": st.just("t" * 1024)},
    optional={
        "CatalogId": st.just("123456789012"),
        "Region": st.just("us-east-1"),
        "VersionId": st.sampled_from(["LATEST", "3"]),
    },
)


@st.composite
def _conversions(draw: st.DrawFn) -> Block:
    return {
        "SchemaConfiguration": draw(_schemas),
        "InputFormatConfiguration": {"Deserializer": draw(_deserializers)},
        "OutputFormatConfiguration": {"Serializer": draw(_serializers)},
        "Enabled": draw(st.booleans()),
    }


@st.composite
def extended_s3_blocks(draw: st.DrawFn, *, partitioned: bool, backed_up: bool) -> Block:
    """Whether there are partitions and a backup is settled, because an update cannot change it."""
    block = draw(s3_blocks())
    extras = {
        "FileExtension": st.sampled_from(["", ".j", ".json.gz", "." + "a" * 127]),
        "CustomTimeZone": st.sampled_from(["", "UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires"]),
        "ProcessingConfiguration": _processing(),
        "DataFormatConversionConfiguration": st.just({"Enabled": False}) | _conversions(),
    }
    block |= draw(st.fixed_dictionaries({}, optional=extras))
    if backed_up:
        block |= {"S3BackupMode": "Enabled", "S3BackupConfiguration": draw(s3_blocks(interval_min=60))}
    elif draw(st.booleans()):
        block |= {"S3BackupMode": "Disabled"}
    if partitioned:
        block |= draw(_partitioned())
    if block.get("DataFormatConversionConfiguration", {}).get("Enabled"):
        block |= {"CompressionFormat": "UNCOMPRESSED", "BufferingHints": draw(hints(64, 60))}
    return block


@st.composite
def streams(draw: st.DrawFn) -> tuple[Block, Block]:
    """The body of CreateDeliveryStream without a name, and an ExtendedS3DestinationUpdate."""
    partitioned, backed_up = draw(st.booleans()), draw(st.booleans())
    strategy = extended_s3_blocks(partitioned=partitioned, backed_up=backed_up)
    first, second = draw(strategy), draw(strategy)
    optional = {
        "DeliveryStreamType": st.just("DirectPut"),
        "DirectPutSourceConfiguration": within(1, 100).map(lambda mib: {"ThroughputHintInMBs": mib}),
        "DeliveryStreamEncryptionConfigurationInput": encryption_inputs,
        "Tags": tags(),
    }
    body = draw(st.fixed_dictionaries({}, optional=optional))
    plain = not partitioned and not backed_up and not set(first) - set(S3) - {"Prefix", "CompressionFormat"}
    called = "S3" if plain else "ExtendedS3"
    body[f"{called}DestinationConfiguration"] = first
    return body, whole_update(second)


def whole_update(block: Block) -> Block:
    """An update that leaves nothing of what was there before, where that could break a rule with what is new."""
    update = {
        "Prefix": "",
        "ErrorOutputPrefix": "",
        "BufferingHints": {"SizeInMBs": 128, "IntervalInSeconds": 900},
        "CompressionFormat": "UNCOMPRESSED",
        "DataFormatConversionConfiguration": {"Enabled": False},
        **block,
    }
    if "S3BackupConfiguration" in update:
        update["S3BackupUpdate"] = update.pop("S3BackupConfiguration")
        update["S3BackupUpdate"] = {"Prefix": "", "ErrorOutputPrefix": "", **update["S3BackupUpdate"]}
    return update
