"""Layer 2 of the checks of the Firehose door: processors and their parameters."""

from __future__ import annotations

from typing import Any

import pytest
from firehose_bodies import LAMBDA, LAMBDA_ARN, accept, extended, partitioned, processing, processor, refusal
from firehose_model import create

from penstock.delivery.errors import ApiError

APPEND = processor("AppendDelimiterToRecord")
UNZIP = processor("Decompression", CompressionFormat="GZIP")
EXTRACT = processor("CloudWatchLogProcessing", DataMessageExtraction="true")
SPLIT = processor("RecordDeAggregation", SubRecordType="JSON")
HASHES = "IyMjIw=="
LAMBDA_HINTS = (
    "Both BufferSizeInMBs and BufferIntervalInSeconds are required to configure buffering for lambda "
    "processor."
)


def with_lambda(**parameters: str) -> dict[str, Any]:
    return processing(processor("Lambda", LambdaArn=LAMBDA_ARN, **parameters))


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            processing(),
            "A maximum of 5 and a minimum of 1 processor needs to be supplied when processing is enabled.",
        ),
        (
            processing(APPEND, UNZIP, EXTRACT, SPLIT, LAMBDA, APPEND),
            "A maximum of 5 and a minimum of 1 processor needs to be supplied when processing is enabled.",
        ),
        (processing(LAMBDA, LAMBDA), "Cannot have more than 1 Lambda processor."),
        (processing(APPEND, APPEND), "Cannot have more than 1 AppendDelimiterToRecord processor."),
        (processing(processor("Lambda")), "LambdaArn is required when Lambda processor is used."),
        (with_lambda(NumberOfRetries="x"), "Number of retries for lambda must be between 0 and 300."),
        (
            with_lambda(BufferSizeInMBs="1"),
            LAMBDA_HINTS,
        ),
        (
            with_lambda(BufferIntervalInSeconds="60"),
            LAMBDA_HINTS,
        ),
        *(
            (
                with_lambda(BufferSizeInMBs=size, BufferIntervalInSeconds="60"),
                "BufferSizeInMBs for lambda processor must be between 0.2 and 3.",
            )
            for size in ("0.19", "3.01", "x", "nan")
        ),
        *(
            (
                with_lambda(BufferSizeInMBs="1", BufferIntervalInSeconds=interval),
                "BufferIntervalInSeconds for lambda processor must be between 0 and 900.",
            )
            for interval in ("-1", "901", "x")
        ),
        (
            processing(processor("RecordDeAggregation")),
            "SubRecordType has to be one of JSON, DELIMITED",
        ),
        (
            processing(processor("RecordDeAggregation", SubRecordType="XML")),
            "SubRecordType has to be one of JSON, DELIMITED",
        ),
        (
            processing(processor("RecordDeAggregation", SubRecordType="DELIMITED")),
            "Delimiter should be present for DELIMITED",
        ),
        *(
            (
                processing(processor("RecordDeAggregation", SubRecordType="DELIMITED", Delimiter=delimiter)),
                "Delimiter should be base64 for DELIMITED, for example IyMjIw== for ####",
            )
            for delimiter in ("####", "IyMjIw=", "ä", "====")
        ),
        (
            processing(processor("Decompression")),
            "CompressionFormat of the Decompression processor has to be GZIP",
        ),
        (
            processing(processor("Decompression", CompressionFormat="ZIP")),
            "CompressionFormat of the Decompression processor has to be GZIP",
        ),
        (
            processing(EXTRACT),
            "CloudWatchLogProcessingProcessor can only be enabled with DecompressionProcessor",
        ),
        *(
            (
                processing(UNZIP, processor("CloudWatchLogProcessing", **parameters)),
                "Invalid parameter value for DataMessageExtraction. It has to be true.",
            )
            for parameters in ({}, {"DataMessageExtraction": "false"})
        ),
        (
            processing(
                processor("MetadataExtraction", MetadataExtractionQuery="{a:.a}", JsonParsingEngine="JQ-1.6")
            ),
            "class com.amazonaws.services.firehose.internal.model.MetadataExtractionProcessor can only be present when "
            "Dynamic Partitioning is enabled.",
        ),
        *(
            (
                processing(processor("MetadataExtraction", MetadataExtractionQuery="{a:.a}", **engine)),
                "MetaDataExtraction JSON Parsing Engine has to be one of JQ-1.6",
            )
            for engine in ({}, {"JsonParsingEngine": "JQ-1.7"})
        ),
        (
            processing(processor("MetadataExtraction", JsonParsingEngine="JQ-1.6")),
            "MetadataExtractionQuery is required when MetadataExtraction processor is used.",
        ),
        (
            processing(processor("AppendDelimiterToRecord", LambdaArn="x")),
            "LambdaArn is not a parameter of the AppendDelimiterToRecord processor; it takes Delimiter.",
        ),
    ],
)
def test_rules_of_processors(body: dict[str, Any], text: str) -> None:
    assert refusal(body) == text
    off = body["ExtendedS3DestinationConfiguration"]["ProcessingConfiguration"] | {"Enabled": False}
    accept(extended(ProcessingConfiguration=off))


def test_parameter_twice() -> None:
    twice = processor("Lambda", LambdaArn=LAMBDA_ARN)
    twice["Parameters"] *= 2
    assert refusal(processing(twice)) == "LambdaArn cannot be given more than once to the Lambda processor."


@pytest.mark.parametrize(
    "body",
    [
        processing(LAMBDA),
        with_lambda(NumberOfRetries="301", BufferSizeInMBs="0.2", BufferIntervalInSeconds="0"),
        with_lambda(NumberOfRetries="-1", BufferSizeInMBs="3", BufferIntervalInSeconds="900"),
        processing(UNZIP, EXTRACT, SPLIT, LAMBDA, APPEND),
        processing(UNZIP, processor("CloudWatchLogProcessing", DataMessageExtraction="True")),
        processing(processor("AppendDelimiterToRecord", Delimiter="\\n")),
        processing(processor("RecordDeAggregation", SubRecordType="DELIMITED", Delimiter=HASHES)),
        partitioned(more=(LAMBDA, SPLIT, APPEND)),
        extended(ProcessingConfiguration={}),
        extended(ProcessingConfiguration={"Processors": []}),
        extended(ProcessingConfiguration={"Enabled": False, "Processors": []}),
    ],
)
def test_processors_that_are_accepted(body: dict[str, Any]) -> None:
    accept(body)


def test_no_processors_in_the_deprecated_form() -> None:
    """They are not in its shape, so that layer 1 drops them: nothing is promised."""
    body = processing()["ExtendedS3DestinationConfiguration"]
    accept(create(body, "S3DestinationConfiguration"))


def test_disabled_processors_give_no_keys() -> None:
    body = partitioned()
    body["ExtendedS3DestinationConfiguration"]["ProcessingConfiguration"]["Enabled"] = False
    with pytest.raises(ApiError, match="there is no MetadataExtraction processor"):
        accept(body)
