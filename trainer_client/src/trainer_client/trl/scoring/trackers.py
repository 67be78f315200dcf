"""The address of a run's page in the console, left in the trackers that the trainer logs to."""

import logging
from collections.abc import Callable
from importlib import import_module
from typing import Any

from transformers import TrainerCallback

logger = logging.getLogger(__name__)

LINK_NAME = "adjudge"
"""What the address is called: a config value in W&B, a tag in MLflow, a text in trackio and TensorBoard."""


class TrackerLink(TrainerCallback):
    """Leaves an address in the run of each tracker after the next step.

    Only there: MLflow knows its run in the trainer's thread alone, and reward functions run in another. A tracker that
    takes none is a warning, and training continues.

    Args:
        trainer: the trainer, whose callbacks show what it logs to.
        address: the address of the run's page.
        load: imports a tracker's library by name.
    """

    def __init__(self, trainer: Any, address: str, load: Callable[[str], Any] = import_module) -> None:
        self._trainer, self._address, self._load = trainer, address, load
        self._left = False

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave the address, once and in the process that logs."""
        if self._left or not state.is_world_process_zero:
            return
        self._left = True
        for callback in self._trainer.callback_handler.callbacks:
            try:
                self._leave(callback)
            except Exception as error:  # noqa: BLE001 - a tracker's own, such as its server's
                logger.warning("%s has no link to %s: %s", type(callback).__name__, self._address, error)

    def _leave(self, callback: Any) -> None:
        link = {LINK_NAME: self._address}
        match type(callback).__name__:
            case "WandbCallback" if (wandb := self._load("wandb")).run is not None:
                wandb.config.update(link, allow_val_change=True)
            case "MLflowCallback" if (mlflow := self._load("mlflow")).active_run() is not None:
                mlflow.set_tags(link)
            case "TrackioCallback":  # it sends a run's config with the first log, which was before
                trackio = self._load("trackio")
                trackio.log({LINK_NAME: trackio.Markdown(self._address)})
            case "TensorBoardCallback" if callback.tb_writer is not None:
                callback.tb_writer.add_text(LINK_NAME, f"<{self._address}>")
