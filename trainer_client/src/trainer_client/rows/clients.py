"""Clients of our own, with the settings of a user's."""

import asyncio
from dataclasses import replace

from trainer_client import AsyncClient, Client

DEFAULT_RETRIES = 30
"""Retries if only an address is given: as many as the retry budget and a step's deadline allow, so that a restart of
the service delays a training step by seconds and does not cost its rewards."""


def own_client(template: str | Client | AsyncClient) -> AsyncClient:
    """Create a client of an address, or one with the settings of another client, which is neither used nor closed.

    Raises:
        TypeError: the template is neither, or is a client whose transport is not async.
        ValueError: the address is invalid.
    """
    if isinstance(template, str):
        return AsyncClient(template, retries=DEFAULT_RETRIES)
    if isinstance(template, AsyncClient):
        return AsyncClient.from_settings(template.settings)
    if not isinstance(template, Client):
        raise TypeError(f"client is a {type(template).__name__}; give an address, a Client or an AsyncClient")
    if template.settings.transport is not None:
        raise TypeError("this Client's transport is not async; give an AsyncClient with an async transport")
    return AsyncClient.from_settings(replace(template.settings, sleep=asyncio.sleep))


def blocking_client(template: str | Client | AsyncClient) -> Client | None:
    """Create a blocking client of an address, or one with a client's settings; None if that has a transport of its own.

    Such a transport may belong to an event loop.
    """
    options = {"base_url": template} if isinstance(template, str) else dict(vars(template.settings))
    if options.pop("transport", None) is not None:
        return None
    if isinstance(template, AsyncClient):
        options.pop("sleep")
    return Client(**options)
