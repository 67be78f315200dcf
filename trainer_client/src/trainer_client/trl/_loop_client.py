"""A client for each event loop and process that a reward function is called in, all like the one it was given."""

import asyncio
import inspect
import os
import pickle
from typing import Any

from trainer_client import AsyncClient, Client

DEFAULT_RETRIES = 30
"""Tries after the first where only an address is given: as many as the retry budget and a step's deadline have room
for, so that a service that is started again costs a training step seconds and not its rewards."""


class LoopClient:
    """Makes clients where they are needed. Pickled, it takes the settings along and no connection.

    Args:
        like: an address, or a client that lends its settings; it is neither used nor closed.

    Raises:
        TypeError: it is none of these, or a client whose transport is not async.
        ValueError: the address is none.
    """

    def __init__(self, template: str | Client | AsyncClient) -> None:
        if isinstance(template, str):
            template = AsyncClient(template, retries=DEFAULT_RETRIES)
        if not isinstance(template, Client | AsyncClient):
            raise TypeError(f"client is of type {type(template).__name__}; give an address, a Client or an AsyncClient")
        options = vars(template.settings)
        if isinstance(template, Client):
            if options["transport"] is not None:
                raise TypeError("this Client's transport is not async; give an AsyncClient with an async transport")
            options = {name: value for name, value in options.items() if name != "sleep"}
        own = inspect.signature(AsyncClient).parameters
        self._options = {name: value for name, value in options.items() if value is not own[name].default}
        self._current: tuple[int, asyncio.AbstractEventLoop, AsyncClient] | None = None

    @property
    def base_url(self) -> str:
        """The service's address."""
        return str(self._options["base_url"])

    def for_running_loop(self) -> AsyncClient:
        """Give the client of the loop that runs."""
        process, loop = os.getpid(), asyncio.get_running_loop()
        if self._current is None or self._current[:2] != (process, loop):
            self._current = process, loop, AsyncClient(**self._options)
        return self._current[2]

    async def aclose(self) -> None:
        """Close the client of the loop that runs; another is made when it is needed."""
        if self._current is not None and self._current[1] is asyncio.get_running_loop():
            await self._current[2].aclose()
        self._current = None

    def __getstate__(self) -> dict[str, Any]:
        for name, value in self._options.items():
            try:
                pickle.dumps(value)
            except (pickle.PicklingError, TypeError, AttributeError) as error:
                raise TypeError(
                    f"the client's {name} ({type(value).__name__}) cannot be pickled, and so not be sent to another "
                    "process; give RubricReward a client without it, or just the address"
                ) from error
        return {"_options": self._options, "_made": None}
