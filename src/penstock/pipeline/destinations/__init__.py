"""One module per destination. `destination_for` is the only place that knows them all."""

from __future__ import annotations

from importlib import import_module

from penstock.flush import Flush
from penstock.model import ExportKind
from penstock.pipeline.destinations.base import Destination, PipelineSettings
from penstock.pipeline.server_client import ServerClient

# Imported when first needed: an executor that only posts to HTTP needs no AWS client.
_CLASSES = {
    ExportKind.HTTP: ("http", "Http"),
    ExportKind.IOT_ANALYTICS: ("iotanalytics", "IotAnalytics"),
    ExportKind.KINESIS: ("kinesis", "Kinesis"),
    ExportKind.IOT_SITEWISE: ("sitewise", "SiteWise"),
    ExportKind.S3_TASK_EXECUTOR: ("s3tasks", "S3Tasks"),
    ExportKind.DELIVERY: ("s3objects", "S3Objects"),
}


def destination_for(flush: Flush, settings: PipelineSettings, server: ServerClient) -> Destination:
    module_name, class_name = _CLASSES[flush.kind]
    module = import_module(f"penstock.pipeline.destinations.{module_name}")
    destination: Destination = getattr(module, class_name)(flush, settings, server)
    return destination
