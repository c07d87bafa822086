"""One module per processor. `processors_for` is the only place that knows them all, and their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any

from penstock.delivery.settings import DeliverySettings
from penstock.pipeline.destinations.base import PipelineSettings
from penstock.pipeline.records.processors.base import Processor, parameters_of
from penstock.pipeline.records.record import Failed, Record

# In the order in which they run, whatever the order of the configuration. Imported when first needed.
_CLASSES = {
    "Decompression": ("decompression", "Decompression"),
    "CloudWatchLogProcessing": ("cloudwatch_logs", "CloudWatchLogs"),
    "RecordDeAggregation": ("deaggregation", "DeAggregation"),
    "Lambda": ("lambda_function", "LambdaFunction"),
    "MetadataExtraction": ("metadata", "MetadataExtraction"),
    "AppendDelimiterToRecord": ("delimiter", "AppendDelimiter"),
}


def processors_for(
    config: Mapping[str, Any],
    delivery: DeliverySettings,
    settings: PipelineSettings,
    still_wanted: Callable[[], None] = lambda: None,
) -> list[Processor]:
    """The processors of a destination's configuration; none is the fast path.

    Those that may take long ask `still_wanted` now and then, which raises when nobody waits any more.
    """
    processing = config.get("ProcessingConfiguration") or {}
    if not processing.get("Enabled"):
        return []
    configured = [
        processor for processor in processing.get("Processors") or [] if _applies(processor, config)
    ]
    order = list(_CLASSES)
    configured.sort(key=lambda processor: order.index(processor["Type"]))
    return [_made(processor, config, delivery, settings, still_wanted) for processor in configured]


def processed(
    processors: Iterable[Processor],
    batches: Iterable[list[Record]],
    failed: Callable[[list[Failed]], None],
) -> Iterator[list[Record]]:
    """All records through all processors, each given as much at a time as suits it, so that memory is bounded."""
    for processor in processors:
        batches = _through(processor, batches, failed)
    return iter(batches)


def _through(
    processor: Processor, batches: Iterable[list[Record]], failed: Callable[[list[Failed]], None]
) -> Iterator[list[Record]]:
    for batch in _regrouped(batches, processor.batch_bytes):
        records, failures = processor.process(batch)
        if failures:
            failed(failures)
        if records:
            yield records


def _regrouped(batches: Iterable[list[Record]], batch_bytes: int) -> Iterator[list[Record]]:
    group: list[Record] = []
    group_bytes = 0
    for batch in batches:
        for record in batch:
            group.append(record)
            group_bytes += len(record.data)
            if group_bytes >= batch_bytes:
                yield group
                group, group_bytes = [], 0
    if group:
        yield group


def _applies(processor: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Delimiters are for text: files of a converted format have none."""
    conversion = config.get("DataFormatConversionConfiguration") or {}
    return processor["Type"] != "AppendDelimiterToRecord" or not conversion.get("Enabled")


def _made(
    processor: Mapping[str, Any],
    config: Mapping[str, Any],
    delivery: DeliverySettings,
    settings: PipelineSettings,
    still_wanted: Callable[[], None],
) -> Processor:
    module_name, class_name = _CLASSES[processor["Type"]]
    module = import_module(f"penstock.pipeline.records.processors.{module_name}")
    parameters = parameters_of(processor)
    made: Processor
    if processor["Type"] == "Lambda":
        partitioning = config.get("DynamicPartitioningConfiguration") or {}
        made = module.LambdaFunction(
            parameters,
            delivery,
            settings,
            partitioned=bool(partitioning.get("Enabled")),
            still_wanted=still_wanted,
        )
    else:
        made = getattr(module, class_name)(parameters)
    return made
