"""What ranks exchange during a reward call, and what is read from the trainer that makes it.

After scoring its share, every rank sends a summary to all others, and all decide alike whether training continues and
which rubrics are pinned. A rank that failed also sends its summary, so that the others do not wait for it. Without
`torch.distributed` there is a single rank, and torch is not needed.

TRL passes reward functions a bound method of its trainer for logging. `TrainerContext` is the only place that relies
on it to reach the trainer.
"""

import asyncio
import logging
import math
import re
import sys
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from trainer_client import errors
from trainer_client.client.keywords import RewardKeywords
from trainer_client.errors import AdjudgeError, InvalidRequest
from trainer_client.text.thinking import opened_by
from trainer_client.wire.groups import MAX_RUN_CHARACTERS
from trainer_client.wire.judging import OpeningTag
from trainer_client.wire.rewards import CONTROL_SUFFIX

logger = logging.getLogger(__name__)

_MAX_KINDS_SHOWN = 5
_MAX_STEM_CHARACTERS = MAX_RUN_CHARACTERS - len("-20250101-000000") - len(CONTROL_SUFFIX)

MISSING_AS_ZERO_WARNING = (
    "the trainer has other reward functions, and TRL counts 0 where the judge gives no reward, so a response that "
    "could not be judged looks like a bad one. Give the functions to RubricReward(extra_rewards=[…], weights=[…]) "
    "instead, or use RubricGRPOTrainer"
)
NON_TEXT_PARTS_WARNING = (
    "the judge reads text only: it sees an image in a prompt as [image]. Describe what the judge must know about "
    "the image in the column grounding"
)


GatheredT = TypeVar("GatheredT")


class RubricRewardWarning(UserWarning):
    """A problem of a `RubricReward` that does not stop training but needs attention."""


class TooManyUnscored(AdjudgeError):
    """More responses of a batch than `max_unscored` allows have no reward from the judge. Raised on all ranks."""


class RankFailed(AdjudgeError):
    """Scoring failed on another rank, with an error that is not an `AdjudgeError`."""


@dataclass(frozen=True, slots=True)
class RankSummary:
    """One rank's summary of its share of a batch, sent to all ranks.

    Attributes:
        rows: the number of responses.
        unscored: the number of responses without a reward, or with a reward of 0 set by a failure policy.
        missing: the number of responses without a reward.
        kinds: the number of responses by kind of failure.
        last_error: the last error message from the service, if any.
        fatal: the class name and message of an error that must stop training, if any.
        pins: the pinned rubrics.
        compared: the number of responses of each group whose rewards depend on the other responses of the group, by
            the group's id; without groups that are known to be whole.
        away: why the judge is away, if it is, so that waiting may help.
        waited_s: how long the rank has waited for the judge in this call, in seconds.
    """

    rows: int = 0
    unscored: int = 0
    missing: int = 0
    kinds: Mapping[str, int] = field(default_factory=dict)
    last_error: str | None = None
    fatal: tuple[str, str] | None = None
    pins: Mapping[str, str] = field(default_factory=dict)
    compared: Mapping[str, int] = field(default_factory=dict)
    away: str | None = None
    waited_s: float = 0.0


def rank() -> int | None:
    """Return the rank of this process, or None if there is only one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return int(torch.distributed.get_rank()) if torch.distributed.get_world_size() > 1 else None


class CollectiveOrder:
    """A position in the order in which the reward functions of an event loop run their collective operations.

    Create it before the first await. The order is then the one in which the trainer calls the functions, which is the
    same on all ranks, whichever function finishes first on each.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._previous = _latest.get(self._loop)
        self._done: asyncio.Future[None] = self._loop.create_future()
        _latest[self._loop] = self._done

    async def all_gather(self, own: GatheredT) -> list[GatheredT]:
        """Return the objects of all ranks, by rank, after the functions before this one have gathered theirs.

        Every rank must call this equally often.
        """
        if self._previous is not None:
            await asyncio.wait([self._previous])
        return [own] if rank() is None else await asyncio.to_thread(_gather, own)

    def end(self) -> None:
        """Let the next function gather. Call it in any case, also after an error."""
        self._done.set_result(None)
        if _latest.get(self._loop) is self._done:
            del _latest[self._loop]


_latest: "dict[asyncio.AbstractEventLoop, asyncio.Future[None]]" = {}


def _gather(own: GatheredT) -> list[GatheredT]:
    torch = sys.modules["torch"]
    if torch.distributed.get_backend() != "gloo":
        _use_own_device()
    gathered: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(gathered, own)
    return gathered


def _use_own_device() -> None:
    """Select this rank's device in the current thread; it is per thread and defaults to 0."""
    from accelerate.state import PartialState

    device = PartialState().device
    if device.type != "cpu":
        getattr(sys.modules["torch"], device.type).set_device(device)


def raise_if_failed(
    summaries: Sequence[RankSummary],
    own_error: Exception | None,
    max_unscored: float,
    remedy: str,
    batch_rows: int = 0,
    never_left_out_by: str | None = None,
) -> None:
    """Raise the same error on all ranks if training must stop.

    Args:
        summaries: the summaries of all ranks.
        own_error: the error of this rank, if any.
        max_unscored: the share of responses that may have no reward, or a reward of 0 set by a failure policy.
        remedy: what the user can do, for the error message.
        batch_rows: the size of the whole batch, if these responses are only a part of it.
        never_left_out_by: the version of TRL, if it counts a missing reward as 0, so that none may be missing.

    Raises:
        Exception: the error of the lowest rank that failed.
        InvalidRequest: several ranks have responses of one group that must be compared with each other.
        TooManyUnscored: too many responses have no reward.
    """
    failed = next((number for number, summary in enumerate(summaries) if summary.fatal), None)
    if failed is not None:
        if own_error is not None and failed == (rank() or 0):
            raise own_error
        raise _error_of(failed, *(summaries[failed].fatal or ("", ""))) from own_error
    _refuse_split_groups(summaries)
    rows = max(batch_rows, sum(summary.rows for summary in summaries))
    unscored = sum(summary.unscored for summary in summaries)
    missing = sum(summary.missing for summary in summaries)
    kinds = format_counts(sum((Counter(summary.kinds) for summary in summaries), Counter[str]()))
    if missing and never_left_out_by is not None:
        raise TooManyUnscored(
            f"{missing} of {rows} responses have no reward ({kinds}), and TRL {never_left_out_by} would "
            'count them as 0. Use TRL 1.6 or newer, which leaves them out, or choose a policy: on_failure="skip" or '
            '"zero"'
        )
    if rows and unscored / rows > max_unscored:
        last = next((summary.last_error for summary in summaries if summary.last_error), None)
        raise TooManyUnscored(
            f"{unscored} of {rows} responses have no reward from the judge, but max_unscored = {max_unscored:g} allows "
            f"only {math.floor(max_unscored * rows)}: {kinds}."
            f"{f' The last error: {last}.' if last else ''} {remedy}"
        )


def _refuse_split_groups(summaries: Sequence[RankSummary]) -> None:
    for id_ in {id_ for summary in summaries for id_ in summary.compared}:
        shares = {number: summary.compared[id_] for number, summary in enumerate(summaries) if id_ in summary.compared}
        if len(shares) > 1:
            parts = " and ".join(f"{count} on rank {number}" for number, count in shares.items())
            raise InvalidRequest(
                "the mode or weighting compares the responses of a group with each other, but a group is split: "
                f"{parts}. Give every rank all responses to its prompts, so that the batch of each rank is a multiple "
                "of the group, or choose another"
            )


def format_counts(kinds: Mapping[str, int]) -> str:
    """Format the most common kinds of failure with their counts."""
    return ", ".join(f"{count} {kind}" for kind, count in Counter(kinds).most_common(_MAX_KINDS_SHOWN))


def _error_of(rank: int, kind: str, text: str) -> AdjudgeError:
    known = getattr(errors, kind, None)
    if isinstance(known, type) and issubclass(known, AdjudgeError):
        error: AdjudgeError = known(text)
        error.add_note(f"raised on rank {rank}")
        return error
    return RankFailed(f"scoring failed on rank {rank}: {kind}: {text}")


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
            from trainer_client.trl._reward.trackers import TrackerLink

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
                _use_own_device()
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
        """Check that the trainer does not remove the columns that the judge sees.

        Args:
            judged: the names of these columns in a dataset.

        Raises:
            InvalidRequest: it removes some of them.
        """
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
        """Check that the trainer gives this rank whole groups, if it is known how large they are.

        Args:
            rows: the number of responses that this rank scores.

        Raises:
            InvalidRequest: a group is split over several ranks.
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
        """Check that the caller provides what the requested penalties need.

        Args:
            options: the judging options.
            tokens: whether the caller provides the tokens of the responses.

        Raises:
            InvalidRequest: a penalty needs data that is missing.
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
    """Refuse datasets with columns that TRL's `remove_unused_columns=True` takes away before the judge sees them.

    Args:
        datasets: the datasets; None for one that there is not.
        judged: the names of the columns that the judge sees.

    Raises:
        InvalidRequest: a dataset has such columns.
    """
    for dataset in datasets:
        removed = [name for name in getattr(dataset, "column_names", None) or () if name in judged]
        if removed:
            raise InvalidRequest(
                f"remove_unused_columns=True takes {', '.join(map(repr, removed))} out of the dataset before the judge "
                "sees it; set remove_unused_columns=False in the trainer's config, which is TRL's default"
            )


def warn(message: str) -> None:
    """Issue a warning and log it."""
    logger.warning(message)
    warnings.warn(message, RubricRewardWarning, stacklevel=2)
