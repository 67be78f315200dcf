"""Weights as an input: how a judge comes to judge with another adapter, and what its requests are kept from.

A request is judged by one version of the weights. It holds the `VersionGate` of its judge from its planning to its
answer. A change of weights closes the gate: requests under way end, also those whose calls still wait in the queue, and
new ones wait outside with their deadlines. Then admission is paused as for sleep, and the engine loads.

What a verdict is filed under follows from the content of the weights, through the engine's identity. Versions and steps
are labels that callers give.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from judge_server.errors import CannotLoad, EngineUnavailable, NotReady, WeightsChanged
from judge_server.models.adapters import read_adapter
from judge_server.ports import Adapter, Engine, EngineIdentity, LoadingEngine
from judge_server.scheduling.sleep import SleepControl

log = logging.getLogger("adjudge")


UNKNOWN = "unknown"
"""The tag of weights of which a failed change left it open which they are."""


class WeightsOrder(NamedTuple):
    """A wish for other weights.

    Attributes:
        version: what the caller calls them.
        adapter: the adapter, relative to the folder of adapters; None for the weights without one.
        step: the training step that they are of.
        expected: the tag of the weights that are to be replaced; None to replace any.
        wait_s: how long to wait for requests under way.
    """

    version: str
    adapter: str | None = None
    step: int | None = None
    expected: str | None = None
    wait_s: float = 600.0


class WeightsReport(NamedTuple):
    """The weights that a judge has, with the name of the model; `version` is None for those that it started with."""

    model: str
    tag: str
    version: str | None = None
    adapter: str | None = None
    step: int | None = None


def weights_tag(identity: EngineIdentity) -> str:
    """Return a short hash of the weights of an engine; equal ones mean equal weights."""
    return "w" + hashlib.sha256(f"{identity.model}\0{identity.weights_digest}".encode()).hexdigest()[:15]


class VersionGate:
    """Lets requests in while the weights stay as they are, and a change of weights while no request is inside.

    Attributes:
        problem: why it is not known which weights the engine has; empty if it is. No request is let in then.
    """

    def __init__(self) -> None:
        self.problem = ""
        self._inside = 0
        self._open, self._empty = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._empty.set()

    @asynccontextmanager
    async def request(self, deadline: float) -> AsyncIterator[None]:
        """Keep the weights as they are inside the block. Waits for a change of weights until `deadline` (loop time).

        Raises:
            NotReady: other weights are still being loaded then, or it is not known which weights the engine has.
        """
        while not self._open.is_set():
            try:
                async with asyncio.timeout_at(deadline):
                    await self._open.wait()
            except TimeoutError:
                raise NotReady("The judge is loading other weights; ask again.", retry_after_s=2) from None
        if self.problem:
            raise NotReady(self.problem, retry_after_s=2)
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    @asynccontextmanager
    async def change(self, wait_s: float) -> AsyncIterator[None]:
        """Keep requests out of the block. Changes must not overlap.

        Raises:
            NotReady: requests under way have not ended within `wait_s` seconds.
        """
        self._open.clear()
        try:
            try:
                async with asyncio.timeout(wait_s):
                    await self._empty.wait()
            except TimeoutError:
                raise NotReady(
                    f"The judge keeps its weights: {self._inside} requests under way have not ended within "
                    f"{wait_s:g} s. Repeat the change, or give it a longer wait_s.",
                    retry_after_s=2,
                ) from None
            yield
        finally:
            self._open.set()


class WeightsControl:
    """Changes the weights of one engine. `adopt` is called with its new identity, while no request is under way.

    `adapters` is the folder that adapters are loaded from; without one, none is.

    Attributes:
        report: the weights that it has.
    """

    def __init__(
        self,
        engine: Engine,
        identity: EngineIdentity,
        gate: VersionGate,
        sleep: SleepControl,
        adapters: Path | None,
        adopt: Callable[[EngineIdentity], None],
    ) -> None:
        self.report = WeightsReport(identity.model, weights_tag(identity))
        self._engine = engine
        self._gate = gate
        self._sleep = sleep
        self._adapters = adapters
        self._adopt = adopt
        self._loading = asyncio.Lock()

    async def load(self, order: WeightsOrder) -> WeightsReport:
        """Judge with other weights from now on. If it fails, the judge goes on with those before.

        If it cannot be said which weights the engine has after a failure, no request is let in until a later load
        succeeds or the process is restarted.

        Raises:
            CannotLoad: the engine cannot load these weights, or is asleep.
            WeightsChanged: the weights are not those that the order expects.
            NotReady: requests under way have not ended, or the engine failed.
        """
        async with self._loading:
            require_tag(order, self.report)
            engine = self._engine
            if not isinstance(engine, LoadingEngine):
                raise CannotLoad("its engine cannot load other weights while it stays started")
            self._sleep.require_awake()
            adapter = await asyncio.to_thread(find_adapter, self._adapters, order.adapter)
            async with self._gate.change(order.wait_s):
                try:
                    identity = await self._sleep.while_idle(lambda: engine.load(adapter, order.version))
                except CannotLoad as error:
                    log.warning("the judge keeps its weights: %s", error)
                    raise
                except Exception as error:
                    if not isinstance(error, EngineUnavailable):
                        log.exception("the engine failed while it loaded %r", order.version)
                    self._gate.problem = (
                        f"It is not known which weights the judge has, because {order.version!r} failed to load "
                        f"({error or type(error).__name__}). Load weights again, or restart it."
                    )
                    self.report = WeightsReport(self.report.model, UNKNOWN)
                    log.warning("%s", self._gate.problem)
                    raise NotReady(self._gate.problem, retry_after_s=2) from error
                self._gate.problem = ""
                self._adopt(identity)
            self.report = WeightsReport(identity.model, weights_tag(identity), order.version, order.adapter, order.step)
            log.info("the judge has the weights %s (%s)", order.version, identity.model)
            return self.report


def require_tag(order: WeightsOrder, present: WeightsReport) -> None:
    """Raise `WeightsChanged` unless the weights are those that the order expects, if it expects any.

    An order that was followed already may be repeated, because its answer may have been lost.
    """
    followed = (order.version, order.adapter, order.step) == (present.version, present.adapter, present.step)
    if order.expected not in (None, present.tag) and not followed:
        raise WeightsChanged(
            f"The judge has the weights {present.tag} ({present.version or 'those that it started with'}), not "
            f"{order.expected}: somebody else has changed them. Read them again, and decide whose turn it is."
        )


def find_adapter(folder: Path | None, name: str | None) -> Adapter | None:
    """Return the adapter of this name in the folder of adapters; None if no name is given.

    Raises:
        CannotLoad: there is no such adapter in the folder, or no folder.
    """
    if name is None:
        return None
    if folder is None:
        raise CannotLoad("this process loads no adapters; set ADJUDGE_ADAPTERS_DIR to the folder that holds them")
    root = folder.resolve()
    try:
        path = (root / name).resolve()
    except (ValueError, RuntimeError):  # a null character, or links in a circle
        path = root
    if not path.is_relative_to(root) or path == root:
        raise CannotLoad(f"{name!r} is not in ADJUDGE_ADAPTERS_DIR; name an adapter by its path in that folder")
    return read_adapter(path, name)
