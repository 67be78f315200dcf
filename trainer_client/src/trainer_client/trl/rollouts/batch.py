"""The groups of a generation batch on all ranks, and what a method reads from each response.

`AdvantageBatch` computes a method's advantages over all groups and decides which rollouts the loss leaves out. Readers
add to each rollout, on the rank that holds it, what the method's advantages need besides the reward.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch

from trainer_client.advantages import Array
from trainer_client.text.offsets import TokenAlignment, TokenOffsets
from trainer_client.text.turns import place_trajectory, step_spans, turn_spans
from trainer_client.trl.methods import Method, Rollout, ScoredResponse
from trainer_client.trl.methods.base import NO_ADVANTAGE, groups_of
from trainer_client.trl.rollouts.certainty import CertaintyReader
from trainer_client.trl.rollouts.generation import TOOL_MASK, GeneratedRows
from trainer_client.trl.scoring.results import SentResponse, answer_is_right, judged_reward

logger = logging.getLogger(__name__)

_ROWS_PER_SLICE = 8
"""The number of responses aligned at a time while the judge answers: less than a millisecond of work."""


@dataclass(frozen=True, slots=True)
class AdvantageBatch:
    """The advantages of the rollouts of all ranks, in the order in which they were gathered.

    Attributes:
        rewards: for each rollout the reward that its advantage is computed from, or None.
        advantages: for each rollout an array of its T_i tokens, or one number for all of them.
        kept: for each rollout whether the loss includes it: it has a reward, and its group is informative.
        metrics: metrics of the batch, by name.
        memory: the method's memory after the batch.
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
        """Compute a method's advantages of N rollouts; each group is `group_size` consecutive ones."""
        all_rewards: list[float | None] = []
        kept: list[bool] = []
        unscored = uninformative = 0
        groups = groups_of(group_size, rollouts)
        advantages = method.batch_advantages(groups)
        for place, group in enumerate(groups):
            rewards = method.rewards(group)
            all_rewards += rewards
            left_out = method.uninformative(group, memory)
            own = advantages[place * group_size : (place + 1) * group_size]
            kept += [reward is not None and not left_out for reward in rewards]
            scored = any(reward is not None for reward in rewards)
            unscored += not scored
            uninformative += left_out or (scored and not any(np.any(np.abs(one) > NO_ADVANTAGE) for one in own))
        metrics = {
            "rubric/left_out": 1 - sum(kept) / len(kept),
            "groups/unscored": unscored / len(groups),
            "groups/uninformative": uninformative / len(groups),
            **method.metrics(groups, memory),
        }
        return cls(all_rewards, advantages, kept, metrics, method.update_memory(memory, groups))

    def tensor(self, own: slice, completion_ids: torch.Tensor) -> torch.Tensor:
        """Return the advantages of one rank's rollouts: B, or B x T, padded with 0, if they differ by token."""
        advantages = self.advantages[own]
        if all(advantage.ndim == 0 for advantage in advantages):
            return torch.tensor(np.stack(advantages), dtype=torch.float32, device=completion_ids.device)
        padded = np.zeros(tuple(completion_ids.shape))
        for row, advantage in enumerate(advantages):
            padded[row, : advantage.size] = advantage
        return torch.tensor(padded, dtype=torch.float32, device=completion_ids.device)

    @property
    def means(self) -> list[float]:
        """Each rollout's advantage, averaged over its tokens."""
        return [float(advantage.mean()) if advantage.size else 0.0 for advantage in self.advantages]


class Reader(Protocol):
    """Adds data that a method needs to rollouts."""

    def read(self, rollouts: Sequence[Rollout], generated: GeneratedRows) -> list[Rollout]:
        """Return the N rollouts, after judging, with the data added."""


def readers_for(trainer: Any) -> list[Reader]:
    """Create the readers that a trainer's method needs."""
    readers: list[Reader] = []
    if trainer.rubric_reward is not None:
        readers.append(VerdictReader(trainer))
    if trainer.method.stepwise:
        readers.append(StepReader(trainer))
    if trainer.method.uses_certainty:
        readers.append(CertaintyReader(trainer))
    return readers


class VerdictReader:
    """Adds the judge's own reward before penalties, its components, the penalty, and whether the answer is right."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._reward = trainer.rubric_reward

    def read(self, rollouts: Sequence[Rollout], generated: GeneratedRows) -> list[Rollout]:
        """Return the N latest judged rollouts with the judge's data."""
        place = self._trainer.reward_funcs.index(self._reward)
        weight = float(self._trainer.reward_weights[place]) * self._reward.weight
        read = []
        for rollout, row in zip(rollouts, self._reward.last.rows, strict=True):
            reward = judged_reward(row.answer)
            before = reward if row.answer is None or row.answer.unpenalised is None else row.answer.unpenalised
            penalty = 0.0 if reward is None or before is None else weight * (reward - before)
            read.append(
                replace(
                    rollout,
                    judged=before,
                    penalty=penalty,
                    correct=answer_is_right(row),
                    weight=weight,
                    components={} if row.answer is None else row.answer.components,
                    component_weights=row.component_weights,
                )
            )
        return read


class StepReader:
    """Adds the deltas and the token spans of each rollout's steps, from the judge's answer.

    A rollout without an answer gets none. If the judged text cannot be found in the decoded tokens, or if the runs of
    sampled tokens are not as many as the turns, the deltas count in the group's statistics but apply to no token, which
    is logged. Tokens are aligned with their texts while the judge answers.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._method: Method = trainer.method
        self._reward = trainer.rubric_reward
        self._offsets = TokenOffsets(trainer._tokenizer)
        self._alignments: list[TokenAlignment | None] = []
        self._reward.overlapped_work = self.place

    def place(self, rows: Sequence[SentResponse], completion_ids: Sequence[Sequence[int]]) -> Iterator[None]:
        """Align the tokens of N responses with their judged texts, a few responses at a time."""
        yield  # let the request be sent first
        self._alignments = []
        for place, (row, ids) in enumerate(zip(rows, completion_ids, strict=True)):
            if row.steps == "turns":
                alignment = None
            elif row.judged.messages is None:
                alignment = self._offsets.place(ids, row.judged.text)
            else:
                alignment = place_trajectory(self._offsets, ids, self._mask(place), row.judged, row.turns)
            self._alignments.append(alignment)
            if len(self._alignments) % _ROWS_PER_SLICE == 0:
                yield

    def _mask(self, row: int) -> Sequence[int] | None:
        """Return which tokens of a response the policy sampled; None if all."""
        sampled = getattr(self._trainer, "_sampled", None)
        masks = None if sampled is None else sampled.generated[TOOL_MASK]
        mask: Sequence[int] | None = None if masks is None else masks[row]
        return mask

    def read(self, rollouts: Sequence[Rollout], generated: GeneratedRows) -> list[Rollout]:
        """Return the N latest judged rollouts with their steps."""
        unaligned = 0
        read = []
        scored = zip(rollouts, self._reward.last.rows, self._alignments, generated.completion_ids, strict=True)
        for place, (rollout, row, alignment, ids) in enumerate(scored):
            if row.answer is None or row.criteria is None:
                read.append(rollout)
                continue
            steps = [(step.number, step.start, step.end) for step in row.answer.steps]
            turns = turn_spans(len(ids), self._mask(place), row.sent.turns) if row.steps == "turns" else None
            spans = step_spans(row.steps, steps, alignment, turns)
            unaligned += spans is None
            deltas = self._method.deltas(ScoredResponse(row.answer, row.criteria, self._reward.use))
            read.append(replace(rollout, deltas=deltas, spans=spans or {}))
        if unaligned:
            logger.warning(
                "%d of %d responses: the judged text or its turns were not found in the tokens, so their steps apply "
                "to no token",
                unaligned,
                len(read),
            )
        return read
