"""What ranks exchange during a reward call, and what is read from the trainer that makes it.

What all ranks agree on after each has scored its share: whether training goes on, and which rubrics are pinned.

A rank that failed takes part, so that no other waits for it for ever. Without `torch.distributed` there is one rank,
and torch is not needed.

What is read of the trainer that calls a reward function, and where it is reached.

TRL hands reward functions a bound method of its trainer to log with. This is the only place that leans on it.
"""

import asyncio
import logging
import math
import sys
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer_client import errors
from trainer_client.client.calls import RewardKeywords
from trainer_client.errors import AdjudgeError, InvalidRequest

_MAX_KINDS_SHOWN = 5


class TooManyUnscored(AdjudgeError):
    """The judge gave more responses of a batch no reward than `max_unscored` allows; raised on all ranks alike."""


class RankFailed(AdjudgeError):
    """Scoring failed on another rank, with an error that has no class here."""


@dataclass(frozen=True, slots=True)
class RankSummary:
    """What one rank tells the others of its share.

    Attributes:
        rows: how many responses it had.
        unscored: how many of them have no reward, or a 0 that a failure policy made.
        kinds: what went wrong, by how many responses.
        last_error: what the service said last, where it said something.
        fatal: the class and the text of the error that must stop training, where there is one.
        pins: its pinned rubrics.
    """

    rows: int = 0
    unscored: int = 0
    kinds: Mapping[str, int] = field(default_factory=dict)
    last_error: str | None = None
    fatal: tuple[str, str] | None = None
    pins: Mapping[str, str] = field(default_factory=dict)


def rank() -> int | None:
    """Give this process's rank, or None where it is alone."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return int(torch.distributed.get_rank()) if torch.distributed.get_world_size() > 1 else None


class CollectiveOrder:
    """A place in the order in which the reward functions of an event loop exchange with other ranks.

    Taken before anything is waited for, so that the order is that of the trainer and the same on all ranks, whichever
    function is done first on each.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._previous = _latest.get(self._loop)
        self._done: asyncio.Future[None] = self._loop.create_future()
        _latest[self._loop] = self._done

    async def all_gather(self, own: RankSummary) -> list[RankSummary]:
        """Give the tallies of all ranks, by rank, once those before have exchanged theirs.

        Every rank must come here equally often.
        """
        if self._previous is not None:
            await asyncio.wait([self._previous])
        return [own] if rank() is None else await asyncio.to_thread(_gather, own)

    def end(self) -> None:
        """Let the next exchange; to be called in any case."""
        self._done.set_result(None)
        if _latest.get(self._loop) is self._done:
            del _latest[self._loop]


_latest: "dict[asyncio.AbstractEventLoop, asyncio.Future[None]]" = {}


def _gather(own: RankSummary) -> list[RankSummary]:
    torch = sys.modules["torch"]
    if torch.distributed.get_backend() != "gloo":
        from accelerate.state import PartialState

        device = PartialState().device
        if device.type != "cpu":
            getattr(torch, device.type).set_device(device)  # every thread has one of its own, at first the first
    summaries: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(summaries, own)
    return summaries


def raise_if_failed(
    summaries: Sequence[RankSummary], own_error: Exception | None, max_unscored: float, remedy: str, batch_rows: int = 0
) -> None:
    """Stop training where it must stop, with the same error on all ranks.

    Args:
        tallies: of all ranks.
        own_error: what failed on this one.
        max_unscored: the share of responses that may stay without a reward, or be made 0 by a failure policy.
        remedy: what the user can do about it.
        batch_rows: how many responses the batch holds that these are a part of, where they are only a part.

    Raises:
        Exception: that of the lowest rank that has one.
        TooManyUnscored: more responses stayed without a reward than may.
    """
    failed = next((number for number, summary in enumerate(summaries) if summary.fatal), None)
    if failed is not None:
        if own_error is not None and failed == (rank() or 0):
            raise own_error
        raise _error_of(failed, *(summaries[failed].fatal or ("", ""))) from own_error
    rows = max(batch_rows, sum(summary.rows for summary in summaries))
    unscored = sum(summary.unscored for summary in summaries)
    if rows and unscored / rows > max_unscored:
        kinds = sum((Counter(summary.kinds) for summary in summaries), Counter[str]())
        last = next((summary.last_error for summary in summaries if summary.last_error), None)
        raise TooManyUnscored(
            f"{unscored} of {rows} responses have no reward from the judge, and max_unscored = {max_unscored:g} allows "
            f"{math.floor(max_unscored * rows)}: {format_counts(kinds)}."
            f"{f' The last error: {last}.' if last else ''} {remedy}"
        )


def format_counts(kinds: Mapping[str, int]) -> str:
    """Give the commonest kinds of failure with their counts."""
    return ", ".join(f"{count} {kind}" for kind, count in Counter(kinds).most_common(_MAX_KINDS_SHOWN))


def _error_of(rank: int, kind: str, text: str) -> AdjudgeError:
    known = getattr(errors, kind, None)
    if isinstance(known, type) and issubclass(known, AdjudgeError):
        error: AdjudgeError = known(text)
        error.add_note(f"raised on rank {rank}")
        return error
    return RankFailed(f"scoring failed on rank {rank}: {kind}: {text}")


logger = logging.getLogger(__name__)

MISSING_AS_ZERO_WARNING = (
    "the trainer has other reward functions, and where the judge gives no reward TRL counts 0 for it: a response that "
    "could not be judged looks like a bad one. Give them to RubricReward(others=[…], weights=[…]) instead, or use "
    "RubricGRPOTrainer"
)
NON_TEXT_PARTS_WARNING = (
    "the judge sees text only: an image in a prompt is shown to it as [image]. What it must know of it can be told in "
    "the column grounding"
)


class RubricRewardWarning(UserWarning):
    """Something about a `RubricReward` that does not stop training and should be looked at."""


class TrainerContext:
    """The trainer behind a call, or nothing where none can be told."""

    def __init__(self, log_metric: object) -> None:
        self._trainer: Any = getattr(log_metric, "__self__", None)

    @property
    def stop_token_ids(self) -> frozenset[int] | None:
        """The tokens of which one ends every response that was not cut off; None where they are not known."""
        eos = getattr(self._trainer, "eos_token_ids", None)
        if not isinstance(eos, list | tuple | set | frozenset):
            return None
        pad = getattr(getattr(self._trainer, "_tokenizer", None), "pad_token_id", None)
        return frozenset(int(token) for token in (*eos, pad) if token is not None)

    def check_penalties(self, options: RewardKeywords, *, tokens: bool) -> None:
        """Refuse penalties for what nobody tells here.

        Args:
            options: what is asked for.
            tokens: whether the responses' tokens are given.

        Raises:
            InvalidRequest: one of them needs more.
        """
        for name in ("length_penalty", "overlong_penalty"):
            if options.get(name) is not None and not tokens:
                raise InvalidRequest(f"{name} needs completion_ids, and the caller gives none")
        if options.get("truncation_factor") is not None and (self.stop_token_ids is None or not tokens):
            raise InvalidRequest(
                "truncation_factor needs completion_ids, and the trainer's eos_token_ids, which are reached by its "
                "log_metric; AsyncRolloutWorker gives none: leave truncation_factor out"
            )

    @property
    def counts_missing_as_zero(self) -> bool:
        """Whether a row without this reward is given the sum of the others, as if this were 0."""
        masks = getattr(self._trainer, "masks_missing_rewards", False)
        return not masks and len(self._functions) > 1

    @property
    def shows_completions(self) -> bool:
        """Whether it ever shows its table of completions; so it is taken where it does not say."""
        return getattr(self._trainer, "log_completions", True) is not False

    def prefix(self, function: object) -> str:
        """Give the beginning of the names that a function logs under: its own where the trainer has several alike."""
        alike = [other for other in self._functions if isinstance(other, type(function))]
        place = next((n for n, other in enumerate(alike, start=1) if other is function), 1)
        return "rubric" if place == 1 else f"rubric_{place}"

    @property
    def _functions(self) -> list[Any]:
        functions = getattr(self._trainer, "reward_funcs", None)
        return functions if isinstance(functions, list) else []


def warn(message: str) -> None:
    """Say something loudly: as a warning, and in the log."""
    logger.warning(message)
    warnings.warn(message, RubricRewardWarning, stacklevel=2)
