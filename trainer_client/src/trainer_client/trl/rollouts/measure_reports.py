"""What training measures, reported to the service, which draws it beside the run's rewards."""

import asyncio
import logging
import math
from collections.abc import Mapping
from typing import Any

from trainer_client.errors import AdjudgeError

logger = logging.getLogger(__name__)

MAX_MEASURES = 100

END_WAIT_S = 10.0
"""The end of training waits this long for the last reports of measures. If it is lower, the last step may lack
them."""


class MeasureReporter:
    """Sends the metrics of generation batches, from the main process and without waiting for the answer.

    Use it as a context manager around training. When it exits, it waits for the reports under way and cancels those
    that take too long, so that none is left in the trainer's event loop. Outside of it nothing is sent. Nothing is sent
    either without a `RubricReward` whose client has a run. A report that fails is a warning, once for each reason, and
    training continues.

    Args:
        trainer: the `RubricGRPOTrainer`.
        end_wait_s: how long the end of training waits for reports under way, in seconds. An interrupt does not wait.
    """

    def __init__(self, trainer: Any, end_wait_s: float = END_WAIT_S) -> None:
        self._trainer = trainer
        self._end_wait_s = end_wait_s
        self._training = False
        self._sending: set[asyncio.Task[None]] = set()
        self._warned: set[str] = set()

    def __enter__(self) -> None:
        self._training = True

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._training = False
        if self._trainer.rubric_reward is None:  # nothing was sent, and TRL may have started no event loop
            return
        wait_s = self._end_wait_s if kind is None or issubclass(kind, Exception) else 0.0
        asyncio.run_coroutine_threadsafe(self._finish(wait_s), self._trainer.async_loop).result()

    def report(self, metrics: Mapping[str, float]) -> None:
        """Send the finite metrics of a batch under the trainer's step."""
        reward = self._trainer.rubric_reward
        if not self._training or reward is None or reward.run is None or not self._trainer.accelerator.is_main_process:
            return
        finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        chosen = dict(sorted(finite.items())[:MAX_MEASURES])
        if chosen:
            self._trainer.async_loop.call_soon_threadsafe(self._start, self._trainer.state.global_step, chosen)

    def _start(self, step: int, measures: Mapping[str, float]) -> None:
        """Begin a report, in the event loop."""
        task = asyncio.get_running_loop().create_task(self._send(step, measures))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _finish(self, wait_s: float) -> None:
        """Wait for the reports under way, and cancel those that are not answered in time."""
        if not self._sending:
            return
        _, late = await asyncio.wait(self._sending, timeout=wait_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        if late:
            logger.warning("the last measures of the run were not reported: no answer within %g s", wait_s)

    async def _send(self, step: int, measures: Mapping[str, float]) -> None:
        try:
            await self._trainer.rubric_reward.report_measures(step, measures)
        except AdjudgeError as error:
            reason = type(error).__name__
            if reason not in self._warned:
                self._warned.add(reason)
                logger.warning("measures of training were not reported, and training continues: %s", error)
