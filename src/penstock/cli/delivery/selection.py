"""The arguments and options that name a delivery stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from penstock.errors import DeliveryNotFound, InvalidRequest

if TYPE_CHECKING:
    from penstock.delivery.listing import DeliveryListing
    from penstock.http_client import HttpClient

Command = Callable[..., Any]


def where_options(command: Command) -> Command:
    command = click.option("--account", metavar="ID", help="Only of this account.")(command)
    return click.option("--region", metavar="REGION", help="Only in this region.")(command)


def select(client: HttpClient, region: str | None, account: str | None) -> list[DeliveryListing]:
    return [
        listing
        for listing in client.deliveries()
        if region in (None, listing.region) and account in (None, listing.account)
    ]


def find(client: HttpClient, name: str, region: str | None, account: str | None) -> DeliveryListing:
    """By its name or its ARN."""
    found = [listing for listing in select(client, region, account) if name in (listing.name, listing.arn)]
    if not found:
        raise DeliveryNotFound(f"there is no delivery stream {name}; 'penstock delivery list' shows all")
    if len(found) > 1:
        places = ", ".join(f"{listing.region} of account {listing.account}" for listing in found)
        raise InvalidRequest(
            f"there is a delivery stream {name} in {places}; say which with --region and --account"
        )
    return found[0]
