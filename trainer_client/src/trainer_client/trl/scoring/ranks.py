"""What ranks exchange during a reward call.

After scoring its share, every rank sends a summary to all others, and all decide alike whether training continues and
which rubrics are pinned. A rank that failed also sends its summary, so that the others do not wait for it. Without
`torch.distributed` there is a single rank, and torch is not needed.
"""

import asyncio
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from trainer_client import errors
from trainer_client.errors import AdjudgeError, InvalidRequest

_MAX_KINDS_SHOWN = 5

GatheredT = TypeVar("GatheredT")


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
        use_own_device()
    gathered: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(gathered, own)
    return gathered


def use_own_device() -> None:
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
