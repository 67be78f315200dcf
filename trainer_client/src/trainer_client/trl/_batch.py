"""The groups of a generation batch on all ranks, and what a method reads from each response.

The groups of one generation batch, over all ranks: a method's advantages, and which rollouts the loss leaves out.

What of a response besides its reward a method's advantages need, read on the rank that holds it.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch

from trainer_client.offsets import TokenAlignment, TokenOffsets
from trainer_client.trl._certainty import CertaintyReader
from trainer_client.trl._scoring import ScoredRow, judged_reward
from trainer_client.trl.methods import Method, Rollout, ScoredResponse
from trainer_client.trl.methods.base import Array


@dataclass(frozen=True, slots=True)
class AdvantageBatch:
    """What came of the rollouts of all ranks, in the order they were gathered.

    Attributes:
        rewards: of each rollout, what advantages are taken of; None where there is none.
        advantages: for each rollout an array of its T_i tokens, or one number for all of them.
        kept: whether the loss is taken over it: it has a reward, and its group tells something.
        metrics: what the log shows of the batch, by name.
        memory: what the method remembers after it.
    """

    rewards: list[float | None]
    advantages: list[Array]
    kept: list[bool]
    metrics: dict[str, float]
    memory: Any

    @classmethod
    def from_rollouts(
        cls, method: Method, rollouts: Sequence[Rollout], group_size: int, memory: Any = None
    ) -> "AdvantageBatch":
        """Let a method judge N rollouts, `group_size` consecutive ones to a group."""
        all_rewards: list[float | None] = []
        advantages: list[Array] = []
        kept: list[bool] = []
        unscored = uninformative = 0
        groups = [rollouts[start : start + group_size] for start in range(0, len(rollouts), group_size)]
        for group in groups:
            rewards = method.rewards(group)
            all_rewards += rewards
            left_out = method.uninformative(group, memory)
            advantages += method.advantages(group)
            kept += [reward is not None and not left_out for reward in rewards]
            unscored += all(reward is None for reward in rewards)
            uninformative += left_out
        metrics = {
            "rubric/left_out": 1 - sum(kept) / len(kept),
            "groups/unscored": unscored / len(groups),
            "groups/uninformative": uninformative / len(groups),
            **method.metrics(groups, memory),
        }
        return cls(all_rewards, advantages, kept, metrics, method.update_memory(memory, groups))

    def tensor(self, own: slice, completion_ids: torch.Tensor) -> torch.Tensor:
        """Give the advantages of one rank's rollouts: B, or B x T where they differ by token, padded with 0."""
        mine = self.advantages[own]
        if all(advantage.ndim == 0 for advantage in mine):
            return torch.tensor(np.stack(mine), dtype=torch.float32, device=completion_ids.device)
        padded = np.zeros(tuple(completion_ids.shape))
        for row, advantage in enumerate(mine):
            padded[row, : advantage.size] = advantage
        return torch.tensor(padded, dtype=torch.float32, device=completion_ids.device)

    @property
    def means(self) -> list[float]:
        """Each rollout's advantage, averaged over its tokens."""
        return [float(advantage.mean()) if advantage.size else 0.0 for advantage in self.advantages]


_ROWS_PER_SLICE = 8
"""How many responses are placed at a time while the judge is waited for: below a millisecond's work."""

logger = logging.getLogger(__name__)


class Reader(Protocol):
    """Adds to rollouts what a method needs of them."""

    def read(
        self,
        rollouts: Sequence[Rollout],
        inputs: Sequence[Mapping[str, Any]],
        prompt_ids: Sequence[Sequence[int]],
        completion_ids: Sequence[Sequence[int]],
    ) -> list[Rollout]:
        """Read N rollouts, once they are judged."""


def readers_for(trainer: Any) -> list[Reader]:
    """Give the readers that a trainer's method needs."""
    readers: list[Reader] = []
    if trainer.rubric_reward is not None:
        readers.append(VerdictReader(trainer))
    if trainer.method.stepwise:
        readers.append(StepReader(trainer))
    if trainer.method.uses_certainty:
        readers.append(CertaintyReader(trainer))
    return readers


class VerdictReader:
    """Adds what the judge said of each rollout beside the reward: its own reward before penalties, and the answer."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._reward = trainer.rubric_reward

    def read(
        self,
        rollouts: Sequence[Rollout],
        inputs: Sequence[Mapping[str, Any]],
        prompt_ids: Sequence[Sequence[int]],
        completion_ids: Sequence[Sequence[int]],
    ) -> list[Rollout]:
        """Read the N rollouts that were judged last."""
        place = self._trainer.reward_funcs.index(self._reward)
        weight = float(self._trainer.reward_weights[place]) * self._reward.weight
        read = []
        for rollout, row in zip(rollouts, self._reward.last.rows, strict=True):
            given = judged_reward(row.answer)
            before = given if row.answer is None or row.answer.unpenalised is None else row.answer.unpenalised
            penalty = 0.0 if given is None or before is None else weight * (given - before)
            read.append(replace(rollout, judged=before, penalty=penalty, correct=_answer_is_right(row)))
        return read


def _answer_is_right(row: ScoredRow) -> bool | None:
    """Whether all criteria of kind `answer` are satisfied; None without any, or where missing verdicts decide it."""
    answers = {criterion.id for criterion in row.criteria or () if criterion.kind == "answer"}
    if not answers or row.answer is None:
        return None
    scores = [verdict.score for verdict in row.answer.verdicts if verdict.criterion in answers]
    if any(score is not None and score < 1.0 for score in scores):
        return False
    return None if len(scores) < len(answers) or None in scores else True


class StepReader:
    """Adds each rollout's deltas and the tokens of its steps, from what the judge said of it.

    A rollout without an answer keeps none. Where the judged text cannot be found in what the tokens say, the deltas
    count in the group's statistics and reach no token, which is logged. Where tokens lie in their texts is found
    while the judge is waited for.
    """

    def __init__(self, trainer: Any) -> None:
        self._method: Method = trainer.method
        self._reward = trainer.rubric_reward
        self._offsets = TokenOffsets(trainer._tokenizer)
        self._alignments: list[TokenAlignment | None] = []
        self._reward.overlapped_work = self.place

    def place(self, texts: Sequence[str], completion_ids: Sequence[Sequence[int]]) -> Iterator[None]:
        """Find where the tokens of N responses begin in their judged texts, some responses at a time."""
        yield  # the request goes first
        self._alignments = []
        for text, ids in zip(texts, completion_ids, strict=True):
            self._alignments.append(self._offsets.place(ids, text))
            if len(self._alignments) % _ROWS_PER_SLICE == 0:
                yield

    def read(
        self,
        rollouts: Sequence[Rollout],
        inputs: Sequence[Mapping[str, Any]],
        prompt_ids: Sequence[Sequence[int]],
        completion_ids: Sequence[Sequence[int]],
    ) -> list[Rollout]:
        """Read the steps of the N rollouts that were judged last."""
        unaligned = 0
        read = []
        for rollout, row, alignment in zip(rollouts, self._reward.last.rows, self._alignments, strict=True):
            if row.answer is None or row.criteria is None:
                read.append(rollout)
                continue
            steps = [(step.number, step.start, step.end) for step in row.answer.steps]
            spans = {} if not steps else None if alignment is None else alignment.steps(steps)
            unaligned += spans is None
            deltas = self._method.deltas(ScoredResponse(row.answer, row.criteria))
            read.append(replace(rollout, deltas=deltas, spans=spans or {}))
        if unaligned:
            logger.warning(
                "%d of %d responses: the judged text is not in what their tokens say, so that no token has a step",
                unaligned,
                len(read),
            )
        return read
