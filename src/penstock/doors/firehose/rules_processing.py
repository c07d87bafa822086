"""Rules of processors and their parameters."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any

from penstock.doors.firehose.refusal import refuse
from penstock.doors.firehose.rules_query import check_query

PROCESSORS_MAX = 5
LAMBDA_BUFFER_MIB = (0.2, 3.0)
LAMBDA_INTERVAL_S = (0.0, 900.0)

Parameters = dict[str, str]


def check_processing(config: Mapping[str, Any], *, partitioned: bool, routed: bool = False) -> None:
    """Processors of a destination. MetadataExtraction needs partitions, or tables to which records are routed."""
    processing = config.get("ProcessingConfiguration", {})
    if not processing.get("Enabled", True):
        return
    given = processing.get("Processors", [])
    if processing.get("Enabled") and not 1 <= len(given) <= PROCESSORS_MAX:
        refuse(
            f"A maximum of {PROCESSORS_MAX} and a minimum of 1 processor needs to be supplied when processing is "
            "enabled."
        )
    types = [processor["Type"] for processor in given]
    for processor in given:
        if types.count(processor["Type"]) > 1:
            refuse(f"Cannot have more than 1 {processor['Type']} processor.")
        _check_processor(processor["Type"], _parameters(processor))
    if "CloudWatchLogProcessing" in types and "Decompression" not in types:
        refuse("CloudWatchLogProcessingProcessor can only be enabled with DecompressionProcessor")
    if "MetadataExtraction" in types and not (partitioned or routed):
        refuse(
            "class com.amazonaws.services.firehose.internal.model.MetadataExtractionProcessor can only be present "
            "when Dynamic Partitioning is enabled."
        )


def processors_of(config: Mapping[str, Any]) -> dict[str, Parameters]:
    """The processors that run, each with its parameters."""
    processing = config.get("ProcessingConfiguration", {})
    if not processing.get("Enabled", True):
        return {}
    return {processor["Type"]: _parameters(processor) for processor in processing.get("Processors", [])}


def _parameters(processor: Mapping[str, Any]) -> Parameters:
    values: Parameters = {}
    for parameter in processor.get("Parameters", []):
        name = parameter["ParameterName"]
        if name in values:
            refuse(f"{name} cannot be given more than once to the {processor['Type']} processor.")
        values[name] = parameter["ParameterValue"]
    return values


def _check_processor(kind: str, parameters: Parameters) -> None:
    check, known = _KINDS[kind]
    for name in parameters:
        if name not in known:
            refuse(f"{name} is not a parameter of the {kind} processor; it takes {', '.join(known)}.")
    check(parameters)


def _check_lambda(parameters: Parameters) -> None:
    if "LambdaArn" not in parameters:
        refuse("LambdaArn is required when Lambda processor is used.")
    retries = parameters.get("NumberOfRetries", "3")
    if not retries.removeprefix("-").isdecimal():  # AWS takes any number; what is out of range is clamped
        refuse("Number of retries for lambda must be between 0 and 300.")
    if ("BufferSizeInMBs" in parameters) != ("BufferIntervalInSeconds" in parameters):
        refuse(
            "Both BufferSizeInMBs and BufferIntervalInSeconds are required to configure buffering for lambda "
            "processor."
        )
    for name, (lowest, highest) in (
        ("BufferSizeInMBs", LAMBDA_BUFFER_MIB),
        ("BufferIntervalInSeconds", LAMBDA_INTERVAL_S),
    ):
        if name in parameters and not lowest <= _number(parameters[name]) <= highest:
            refuse(f"{name} for lambda processor must be between {lowest:g} and {highest:g}.")


def _check_metadata_extraction(parameters: Parameters) -> None:
    if parameters.get("JsonParsingEngine") != "JQ-1.6":
        refuse("MetaDataExtraction JSON Parsing Engine has to be one of JQ-1.6")
    if "MetadataExtractionQuery" not in parameters:
        refuse("MetadataExtractionQuery is required when MetadataExtraction processor is used.")
    check_query(parameters["MetadataExtractionQuery"])


def _check_deaggregation(parameters: Parameters) -> None:
    kind = parameters.get("SubRecordType")
    if kind not in ("JSON", "DELIMITED"):
        refuse("SubRecordType has to be one of JSON, DELIMITED")
    if kind == "DELIMITED":
        if "Delimiter" not in parameters:
            refuse("Delimiter should be present for DELIMITED")
        if not _decoded(parameters["Delimiter"]):
            refuse("Delimiter should be base64 for DELIMITED, for example IyMjIw== for ####")


def _check_decompression(parameters: Parameters) -> None:
    if parameters.get("CompressionFormat") != "GZIP":
        refuse("CompressionFormat of the Decompression processor has to be GZIP")


def _check_log_processing(parameters: Parameters) -> None:
    if parameters.get("DataMessageExtraction", "").lower() != "true":
        refuse("Invalid parameter value for DataMessageExtraction. It has to be true.")


def _check_append_delimiter(parameters: Parameters) -> None:
    """Its delimiter may be anything."""


_KINDS: dict[str, tuple[Callable[[Parameters], None], tuple[str, ...]]] = {
    "Lambda": (
        _check_lambda,
        ("LambdaArn", "NumberOfRetries", "RoleArn", "BufferSizeInMBs", "BufferIntervalInSeconds"),
    ),
    "MetadataExtraction": (_check_metadata_extraction, ("MetadataExtractionQuery", "JsonParsingEngine")),
    "RecordDeAggregation": (_check_deaggregation, ("SubRecordType", "Delimiter")),
    "Decompression": (_check_decompression, ("CompressionFormat",)),
    "CloudWatchLogProcessing": (_check_log_processing, ("DataMessageExtraction",)),
    "AppendDelimiterToRecord": (_check_append_delimiter, ("Delimiter",)),
}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""
