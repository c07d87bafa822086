"""What operators hear of delivery streams over HTTP when not all is well."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from delivery.rig import Rig, running
from penstock.delivery.keyring import KeyRing, KeyUnavailable
from penstock.doors.http.access import Access
from penstock.doors.http.app import App
from penstock.doors.http.delivery import DeliveryRoutes
from penstock.planner import Planner

TOKEN = b"token"


async def records(rig: Rig, arn: str, **query: int) -> tuple[int, dict[str, Any]]:
    access = Access([TOKEN])
    planner = Planner(rig.streams, slots=1)
    app = App(rig.streams, access, DeliveryRoutes(rig.deliveries, rig.streams, planner, access).routes)
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/v1/delivery/records",
        "query_string": urlencode({"arn": arn, **query}).encode(),
        "headers": [(b"authorization", b"Bearer " + TOKEN)],
    }
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    try:
        await app.asgi(scope, receive, send)
    finally:
        app.close()
    return sent[0]["status"], json.loads(sent[1]["body"])


def test_records_whose_key_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with running(tmp_path) as rig:
            encryption = {"DeliveryStreamEncryptionConfigurationInput": {"KeyType": "AWS_OWNED_CMK"}}
            delivery = await rig.create("sealed", **encryption)
            await rig.put(delivery, b"x")
            delivery.opened_keys.clear()

            def unwrap(*_: object) -> bytes:
                raise KeyUnavailable("the key is gone; bring it back")

            monkeypatch.setattr(KeyRing, "unwrap", unwrap)
            status, answer = await records(rig, delivery.arn, **{"from": 0})
            assert (status, answer["error"]) == (500, "the key is gone; bring it back")

    asyncio.run(work())


def test_reading_goes_on_behind_damaged_records(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as rig:
            delivery = await rig.create("a")
            for record in (b"one", b"two", b"three"):
                await rig.put(delivery, record)
            [segment] = delivery.stream.segments
            content = bytearray(segment.path.read_bytes())
            content[content.index(b"two")] ^= 1
            segment.path.write_bytes(content)
            start, found = 0, []
            while start < 3:
                status, answer = await records(rig, delivery.arn, **{"from": start})
                assert (status, answer["next"] > start) == (200, True), answer
                found += [record["sequence"] for record in answer["records"]]
                start = answer["next"]
            assert found == [0, 2]

    asyncio.run(work())
