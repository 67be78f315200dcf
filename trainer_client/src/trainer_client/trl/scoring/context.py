"""The trainer that makes a reward call, as far as the call can reach it.

TRL passes reward functions a bound method of its trainer for logging. Only this module relies on it.
"""

import asyncio
import logging
import math
import re
import sys
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from trainer_client.client.keywords import RewardKeywords
from trainer_client.errors import InvalidRequest
from trainer_client.text.thinking import opened_by
from trainer_client.trl.scoring.ranks import rank, use_own_device
from trainer_client.wire.groups import MAX_RUN_CHARACTERS
from trainer_client.wire.judging import OpeningTag
from trainer_client.wire.rewards import CONTROL_SUFFIX

logger = logging.getLogger(__name__)

_MAX_STEM_CHARACTERS = MAX_RUN_CHARACTERS - len("-20250101-000000") - len(CONTROL_SUFFIX)

STATE_KEY = "RubricReward"
"""The key of the run name in a trainer state; with the prefix of its metrics behind it, that of a reward function."""


def run_of(args: object, state: object) -> str | None:
    """Return the name of a trainer's run: the user's `run_name`, or the one made for it; None if it has none yet.

    Some versions of transformers set the name to the output folder if the user gives none. Runs with the same folder
    would then be one run.
    """
    given = getattr(args, "run_name", None)
    if isinstance(given, str) and given and given != getattr(args, "output_dir", None):
        return given[:MAX_RUN_CHARACTERS]
    made = stored_in(state).get("run")
    return made if isinstance(made, str) and made else None


def stored_in(state: object, key: str = STATE_KEY) -> Mapping[str, Any]:
    """Return what a reward function has stored in a trainer's state; empty if there is nothing."""
    stored = getattr(state, "stateful_callbacks", None)
    own = stored.get(key) if isinstance(stored, Mapping) else None
    attributes = own.get("attributes") if isinstance(own, Mapping) else None
    return attributes if isinstance(attributes, Mapping) else {}


def store_in(state: object, attributes: Mapping[str, Any], key: str = STATE_KEY) -> None:
    """Store values in a trainer's state, in the form of a callback's, which its checkpoints hold."""
    stored = getattr(state, "stateful_callbacks", None)
    if isinstance(stored, dict):
        stored[key] = {"args": {}, "attributes": dict(attributes)}


class TrainerContext:
    """The trainer that makes a reward call, found through its `log_metric`; it may be unknown.

    TRL passes `log_metric` from version 1.0 on, and `trainer_state` in all versions. What is stored in the state is in
    the trainer's checkpoints too, since the state is saved with them.
    """

    def __init__(self, log_metric: object, trainer_state: object = None) -> None:
        self._trainer: Any = getattr(log_metric, "__self__", None)
        self._state: Any = trainer_state

    @property
    def step(self) -> int | None:
        """The number of optimizer steps so far; None if it is unknown."""
        return getattr(self._state, "global_step", None)

    @property
    def run_name(self) -> str | None:
        """The name of the training run: the user's, or the one made for it; None if it has none yet or is unknown."""
        return run_of(getattr(self._trainer, "args", None), self._state)

    def save_run(self, name: str) -> None:
        """Store the name of the run in the trainer's state, so that a resumed run keeps it."""
        store_in(self._state, {**stored_in(self._state), "run": name})

    @property
    def output_dir(self) -> str:
        """The trainer's output folder; empty if it is unknown."""
        return str(getattr(getattr(self._trainer, "args", None), "output_dir", None) or "")

    def make_run_name(self, now: datetime) -> str:
        """Make a name of the output folder and the time."""
        stem = Path(self.output_dir).absolute().name if self.output_dir else ""
        return f"{(stem or 'training')[:_MAX_STEM_CHARACTERS]}-{now:%Y%m%d-%H%M%S}"

    @property
    def is_run(self) -> bool:
        """Whether the call is part of a training run."""
        return self._state is not None or bool(self.output_dir)

    @property
    def is_main_process(self) -> bool:
        """Whether this is the process that logs for all."""
        return not rank()

    def link_in_trackers(self, address: str) -> None:
        """Have the trainer leave the address of the run's page in the trackers that it logs to, if it is known."""
        if hasattr(self._trainer, "add_callback"):
            # not above: it needs transformers, which only a trainer has loaded
            from trainer_client.trl.scoring.trackers import TrackerLink

            if not any(isinstance(one, TrackerLink) for one in self._trainer.callback_handler.callbacks):
                self._trainer.add_callback(TrackerLink(self._trainer, address))

    async def save_checkpoint(self, reason: Exception) -> None:
        """Save a checkpoint before training stops with an error, unless the user wants none or no step was taken.

        Call it on all ranks. The trainer waits for its reward functions meanwhile.
        """
        trainer = self._trainer
        step = getattr(self._state, "global_step", 0)
        wanted = getattr(getattr(trainer, "args", None), "save_strategy", "no") != "no"
        if not (wanted and step > 0 and getattr(getattr(trainer, "model", None), "training", False)):
            return

        def save() -> None:
            if rank() is not None:
                use_own_device()
            trainer._save_checkpoint(trainer.model, trial=None)
            trainer.control = trainer.callback_handler.on_save(trainer.args, trainer.state, trainer.control)

        try:
            await asyncio.to_thread(save)
        except Exception:
            logger.exception("step %d could not be saved before training stops", step)
        else:
            reason.add_note(f"step {step} was saved in {trainer.args.output_dir}; resume from its checkpoint")

    @property
    def stop_token_ids(self) -> frozenset[int] | None:
        """The tokens that end a response that was not cut off; None if unknown."""
        eos = getattr(self._trainer, "eos_token_ids", None)
        if not isinstance(eos, list | tuple | set | frozenset):
            return None
        pad = getattr(getattr(self._trainer, "_tokenizer", None), "pad_token_id", None)
        return frozenset(int(token) for token in (*eos, pad) if token is not None)

    def check_columns(self, judged: Collection[str]) -> None:
        """Raise InvalidRequest if the trainer removes columns that the judge sees, by their names in a dataset."""
        if getattr(getattr(self._trainer, "args", None), "remove_unused_columns", False) is True:
            for kind in ("train_dataset", "eval_dataset"):
                given = getattr(self._trainer, kind, None)
                refuse_removed_columns(given.values() if isinstance(given, Mapping) else [given], judged)

    @property
    def group_size(self) -> int | None:
        """The number of responses to each prompt, which follow each other in a batch; None if unknown."""
        training = getattr(getattr(self._trainer, "model", None), "training", True)
        size = getattr(self._trainer, "num_generations", None)
        if not training:
            size = getattr(self._trainer, "num_generations_eval", size)
        return size if isinstance(size, int) and size > 0 else None

    def check_whole_groups(self, rows: int) -> None:
        """Check that the trainer gives this rank, which scores so many rows, whole groups, if their size is known.

        Raises InvalidRequest if a group is split over several ranks.
        """
        size = self.group_size
        if rank() is not None and size is not None and rows % size:
            raise InvalidRequest(
                f"the mode or weighting compares the responses of a group with each other, but each rank scores {rows} "
                f"responses, and a group has {size}, so that a group is split over several ranks. Set "
                f"per_device_train_batch_size x steps_per_generation (and per_device_eval_batch_size) to a multiple of "
                f"num_generations, such as {math.ceil(rows / size) * size}, or num_generations to a divisor of {rows}, "
                "or choose another"
            )

    def template_opens(self, prompts: Sequence[Any]) -> OpeningTag | None:
        """Return the tag of the thinking block that the chat template opens behind these prompts.

        None if it opens none, if the prompts are texts, or if the trainer is unknown.
        """
        prompt = prompts[0] if len(prompts) else None
        tokenizer: Any = getattr(self._trainer, "processing_class", None)
        if not isinstance(prompt, list) or not prompt or not hasattr(tokenizer, "apply_chat_template"):
            return None
        template = getattr(self._trainer, "chat_template", None)
        if not (template or getattr(tokenizer, "chat_template", None)):
            return None
        options = {
            "tools": getattr(self._trainer, "tools", None) or None,
            "chat_template": template,
            **(getattr(self._trainer, "chat_template_kwargs", None) or {}),
        }
        try:
            shown = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False, **options)
        except Exception as error:  # noqa: BLE001 - the template is the user's, and the trainer uses it too
            logger.warning("cannot tell whether the chat template opens a thinking block: %s", error)
            return None
        opened = opened_by(shown, None) if isinstance(shown, str) else None
        return None if opened == "none" else opened

    def check_penalties(self, options: RewardKeywords, *, tokens: bool) -> None:
        """Check that the caller provides what the requested penalties need; `tokens` says if it provides tokens.

        Raises InvalidRequest if something is missing.
        """
        for name in ("length_penalty", "overlong_penalty"):
            if options.get(name) is not None and not tokens:
                raise InvalidRequest(f"{name} needs completion_ids, which the caller does not provide")
        if options.get("truncation_factor") is not None and (self.stop_token_ids is None or not tokens):
            raise InvalidRequest(
                "truncation_factor needs completion_ids and the trainer's eos_token_ids, which are reached through its "
                "log_metric. AsyncRolloutWorker does not provide them: leave truncation_factor out"
            )

    @property
    def normalises_each_reward(self) -> bool:
        """Whether the trainer normalises the rewards of each function before it adds them, without missing ones."""
        return getattr(self._trainer, "multi_objective_aggregation", None) == "normalize_then_sum"

    @property
    def counts_missing_as_zero(self) -> bool:
        """Whether the trainer counts a missing reward as 0, by summing the rewards of the other functions."""
        masks = getattr(self._trainer, "masks_missing_rewards", False)
        return not masks and len(self._functions) > 1

    @property
    def never_leaves_out(self) -> str | None:
        """The version of TRL if it counts 0 for a response without any reward; None if it leaves the response out."""
        version = str(getattr(sys.modules.get("trl"), "__version__", "") or "")
        numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
        return version if numbers and numbers < [1, 6] else None

    @property
    def shows_completions(self) -> bool:
        """Whether the trainer logs its table of completions; True if unknown."""
        return getattr(self._trainer, "log_completions", True) is not False

    def prefix(self, function: object) -> str:
        """Return the prefix of a function's metrics: its name, or `rubric` or, for the N-th without one, `rubric_N`."""
        if given := getattr(function, "name", None):
            return str(given)
        alike = [
            other for other in self._functions if isinstance(other, type(function)) and not getattr(other, "name", None)
        ]
        place = next((n for n, other in enumerate(alike, start=1) if other is function), 1)
        return "rubric" if place == 1 else f"rubric_{place}"

    @property
    def _functions(self) -> list[Any]:
        """The trainer's reward functions; of those that share a judging, the one that judges."""
        functions = getattr(self._trainer, "reward_funcs", None)
        given = functions if isinstance(functions, list) else []
        judges = [getattr(function, "whole", function) for function in given]
        return list({id(judge): judge for judge in judges}.values())


def refuse_removed_columns(datasets: Iterable[Any], judged: Collection[str]) -> None:
    """Refuse datasets with judged columns that TRL's `remove_unused_columns=True` would take away.

    A dataset may be None. Raises InvalidRequest.
    """
    for dataset in datasets:
        removed = [name for name in getattr(dataset, "column_names", None) or () if name in judged]
        if removed:
            raise InvalidRequest(
                f"remove_unused_columns=True takes {', '.join(map(repr, removed))} out of the dataset before the judge "
                "sees it; set remove_unused_columns=False in the trainer's config, which is TRL's default"
            )


class RubricRewardWarning(UserWarning):
    """A problem of a `RubricReward` that does not stop training but needs attention."""


def warn(message: str) -> None:
    """Issue a warning and log it."""
    logger.warning(message)
    warnings.warn(message, RubricRewardWarning, stacklevel=2)
