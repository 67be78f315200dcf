"""What is read of the trainer that calls a reward function, and where it is reached.

TRL hands reward functions a bound method of its trainer to log with. This is the only place that leans on it.
"""

import logging
import warnings
from typing import Any

from trainer_client._options import RewardKeywords
from trainer_client.errors import InvalidRequest

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
