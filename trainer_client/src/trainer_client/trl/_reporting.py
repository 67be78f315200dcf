"""Reports what a method measures in a generation batch to the service, which draws it beside the run's rewards."""

import asyncio
import logging
import math
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from transformers import TrainerCallback

from trainer_client.errors import AdjudgeError

logger = logging.getLogger(__name__)

MAX_MEASURES = 100
END_WAIT_S = 10.0
"""How long the end of training waits for the last report."""


class MeasureReporter(TrainerCallback):
    """Sends the metrics of generation batches, from the main process and without waiting for the answer.

    Nothing is sent without a `RubricReward` whose client has a run. A report that fails is a warning, once for each
    reason, and training continues.

    Args:
        trainer: the `RubricGRPOTrainer`.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._sending: Future[None] | None = None
        self._warned: set[str] = set()

    def report(self, metrics: Mapping[str, float]) -> None:
        """Send the finite metrics of a batch under the trainer's step."""
        reward = self._trainer.rubric_reward
        if reward is None or reward.run is None or not self._trainer.accelerator.is_main_process:
            return
        finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        chosen = dict(sorted(finite.items())[:MAX_MEASURES])
        if chosen:
            sending = self._send(self._trainer.state.global_step, chosen)
            self._sending = asyncio.run_coroutine_threadsafe(sending, self._trainer.async_loop)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Wait for the last report."""
        if self._sending is not None:
            try:
                self._sending.result(END_WAIT_S)
            except TimeoutError:
                logger.warning("the last measures of the run were not reported within %g s", END_WAIT_S)

    async def _send(self, step: int, measures: Mapping[str, float]) -> None:
        try:
            await self._trainer.rubric_reward.report_measures(step, measures)
        except AdjudgeError as error:
            reason = type(error).__name__
            if reason not in self._warned:
                self._warned.add(reason)
                logger.warning("measures of training were not reported, and training continues: %s", error)
