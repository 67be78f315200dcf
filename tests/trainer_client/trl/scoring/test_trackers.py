"""A training run's page in the console is linked to from the trackers that the trainer logs to."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

pytest.importorskip("trl")

from transformers import TrainerCallback

from tests.trainer_client.trl.judges import FakeJudgeTransport
from tests.trainer_client.trl.scoring.test_run_names import unnamed
from tests.trainer_client.trl.training import text_trainer
from trainer_client.trl.scoring.trackers import TrackerLink

pytestmark = pytest.mark.trl

ADDRESS = "http://judge.test/console/run?run=math-7b"


class WandbCallback(TrainerCallback):
    """Named as the one of transformers."""


class MLflowCallback(TrainerCallback):
    """Named as the one of transformers."""


class TrackioCallback(TrainerCallback):
    """Named as the one of transformers."""


class TensorBoardCallback(TrainerCallback):
    """Named as the one of transformers."""

    def __init__(self):
        self.tb_writer = Mock()


def link(libraries, *callbacks):
    """A link of a trainer with these callbacks, and these libraries installed."""
    trainer = SimpleNamespace(callback_handler=SimpleNamespace(callbacks=list(callbacks)))
    return TrackerLink(trainer, ADDRESS, libraries.__getitem__)


def end_step(link, main=True):
    link.on_step_end(None, SimpleNamespace(is_world_process_zero=main), None)


def test_each_tracker_that_the_trainer_logs_to_is_given_the_address_once():
    libraries = {"wandb": Mock(), "mlflow": Mock(), "trackio": Mock()}
    board = TensorBoardCallback()
    made = link(libraries, WandbCallback(), MLflowCallback(), TrackioCallback(), board)
    end_step(made, main=False)
    end_step(made)
    end_step(made)
    libraries["wandb"].config.update.assert_called_once_with({"adjudge": ADDRESS}, allow_val_change=True)
    libraries["mlflow"].set_tags.assert_called_once_with({"adjudge": ADDRESS})
    libraries["trackio"].Markdown.assert_called_once_with(ADDRESS)
    libraries["trackio"].log.assert_called_once_with({"adjudge": libraries["trackio"].Markdown.return_value})
    board.tb_writer.add_text.assert_called_once_with("adjudge", f"<{ADDRESS}>")


def test_a_tracker_without_a_run_or_with_an_error_stops_nothing(caplog):
    mlflow = Mock(active_run=Mock(return_value=None))
    broken = Mock(log=Mock(side_effect=OSError("no space")))
    wandb = Mock(run=None)
    board = TensorBoardCallback()
    end_step(link({"wandb": wandb, "mlflow": mlflow, "trackio": broken}, WandbCallback(), MLflowCallback(),
                  TrackioCallback(), board))  # fmt: skip
    wandb.config.update.assert_not_called()
    mlflow.set_tags.assert_not_called()
    board.tb_writer.add_text.assert_called_once()
    assert f"TrackioCallback has no link to {ADDRESS}: no space" in caplog.text


def test_a_training_run_leaves_one_link_however_many_reward_functions_it_has(tmp_path):
    first, second = (unnamed(FakeJudgeTransport(), name=name) for name in ("one", "two"))
    trainer = text_trainer(False, tmp_path, [first, second], max_steps=2)
    board = TensorBoardCallback()
    trainer.add_callback(board)
    trainer.train()
    board.tb_writer.add_text.assert_called_once_with("adjudge", f"<http://judge.test/console/run?run={first.run}>")
