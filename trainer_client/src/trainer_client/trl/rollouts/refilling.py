"""Dynamic sampling: replace groups without a signal by groups of other prompts, round by round.

DAPO (section 3.2) samples prompts until a batch holds only groups that carry a signal. TRL fixes the prompts of a batch
before rewards are known, so the batch is completed during generation: after its groups, groups of further prompts are
generated and scored, and informative ones replace those that the method leaves out. TRL then continues as if it had
drawn the completed batch. TRL's own order of the dataset is unchanged; further prompts come from a separate stream.

All ranks make the same decisions, which depend only on gathered data and the seed. A group may be generated on some
ranks and trained on by others.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate.utils import gather_object
from torch.utils.data import IterableDataset as TorchIterableDataset

from trainer_client.trl.methods import Rollout
from trainer_client.trl.methods.base import groups_of
from trainer_client.trl.rollouts.generation import COMPLETION_IDS, COMPLETIONS, GenerationOutput, SampledBatch
from trainer_client.trl.scoring.results import ScoredBatch, ScoredRow

_EXTRA_FIELDS, _IMAGES, _TOOL_IMAGES = 5, 6, 7
_PER_RESPONSE_FIELDS = (0, 1, 2, 3, 4)
"""The fields of `GenerationOutput` with one entry per response."""


class PromptStream:
    """Rows of the training data in shuffled passes, independent of TRL's order.

    Attributes:
        drawn: the number of rows drawn so far, which is the whole state for a checkpoint.
    """

    def __init__(self, rows: int, seed: int) -> None:
        self.drawn = 0
        self._rows, self._seed = rows, seed
        self._pass, self._order = -1, np.empty(0, dtype=np.int64)

    def draw(self, count: int, accepts: Callable[[int], bool]) -> list[int]:
        """Draw up to `count` accepted rows, looking at no more rows than one pass has."""
        chosen: list[int] = []
        for _ in range(self._rows):
            if len(chosen) == count:
                break
            row = self._next()
            if accepts(row):
                chosen.append(row)
        return chosen

    def _next(self) -> int:
        number, place = divmod(self.drawn, self._rows)
        if number != self._pass:
            self._pass, self._order = number, np.random.default_rng([self._seed, number]).permutation(self._rows)
        self.drawn += 1
        return int(self._order[place])


class _MovedResponse(NamedTuple):
    """One response of a further round, as it is sent to the rank that trains on it.

    Attributes:
        target: its index in the batch, over all ranks.
        row: the row of the training data that its prompt is from.
        added: the columns that a rollout function added.
        values: its value in each of `_GenerationRound.columns`.
        logged: its values in the columns of TRL's table of completions.
    """

    target: int
    row: int
    added: Mapping[str, Any]
    values: Mapping[int | str, Any]
    logged: Mapping[str, Any]


@dataclass(slots=True)
class _GenerationRound:
    """Groups that were generated and scored together: n responses on this rank, N on all ranks.

    Attributes:
        sampled: the n responses.
        rewards: N x F, by reward function.
        rollouts: N rollouts, with their rewards.
        judged: the n judged responses; empty without a `RubricReward`.
        added: for each of the n responses, the columns that a rollout function added.
        logged: columns of n values for TRL's table of completions.
    """

    sampled: SampledBatch
    rewards: torch.Tensor
    rollouts: list[Rollout]
    judged: Sequence[ScoredRow]
    added: list[dict[str, Any]]
    logged: dict[str, list[Any]]

    @property
    def columns(self) -> dict[int | str, Any]:
        """The lists in `sampled` that hold a value for each of the n responses."""
        columns: dict[int | str, Any] = {field: self.sampled.generated[field] for field in _PER_RESPONSE_FIELDS}
        columns |= {name: getattr(self.sampled, name) for name in ("generation_prompt_ids", "refined", "off_policy")}
        return {name: values for name, values in columns.items() if values is not None}


class Refiller:
    """Completes the generation batches of a trainer.

    Attributes:
        groups: all groups generated for the latest batch, including replaced ones; None before the first batch.
        metrics: the metrics of the latest batch, by name.
        stream: the source of further prompts.

    Raises:
        ValueError: refilling does not support the trainer's data: streamed data, environments, or images.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer, self._max_rounds = trainer, int(trainer.args.max_refill_rounds)
        self._scored: tuple[torch.Tensor, list[Rollout]] | None = None
        self.groups: list[Sequence[Rollout]] | None = None
        self.metrics: dict[str, float] = {}
        self.stream = PromptStream(0, trainer.args.seed)
        if self._max_rounds:
            self._check()
            self.stream = PromptStream(len(trainer.train_dataset), trainer.args.seed)

    @property
    def active(self) -> bool:
        """Whether to complete the current batch. Evaluation batches are never completed."""
        return bool(self._max_rounds and self._trainer.model.training)

    def sample(
        self, prompts: list[Any], inputs: list[dict[str, Any]], generate: Callable[..., GenerationOutput]
    ) -> SampledBatch:
        """Generate and score a batch, and replace groups that the method leaves out while rounds are left.

        Replacing groups changes the prompts and columns of this rank's rows in place. The scores of the completed batch
        are those of `take_scores`; `last` of the `RubricReward` gets the judged responses of all rounds.
        """
        trainer, method = self._trainer, self._trainer.method
        columns, seen_keys = list(inputs[0]), set[str]()
        batch = current = self._round(prompts, inputs, generate)
        self.groups = groups_of(self._size, batch.rollouts)
        size = len(self.groups)
        left = [place for place, group in enumerate(self.groups) if method.uninformative(group, trainer._memory)]
        num_informative, rounds, metrics = size - len(left), 0, [(size, batch.sampled.metrics)]
        batch_rows, judged = len(batch.rollouts), [*batch.judged]
        rubric_rewards = [
            one for one in (trainer.rubric_reward, trainer._generation.rubric_only_reward) if one is not None
        ]
        if left:
            seen_keys.update(gather_object([_row_key(row, columns) for row in inputs]))
        while left and rounds < self._max_rounds and any(one.reward is not None for one in current.rollouts):
            share = num_informative / len(self.groups)
            rows = self._draw(min(size, math.ceil(len(left) / share)) if share else size, columns, seen_keys)
            if not rows:
                break
            rounds += 1
            own = self._rank_share([row for row in rows for _ in range(self._size)])
            further = [self._columns(row, columns) for row in own]
            with _scoring_part_of_batch(batch_rows, rubric_rewards):
                current = self._round([row["prompt"] for row in further], further, generate)
            judged += current.judged
            groups = groups_of(self._size, current.rollouts)
            metrics.append((len(groups), current.sampled.metrics))
            self.groups += groups
            informative = [n for n, group in enumerate(groups) if not method.uninformative(group, trainer._memory)]
            num_informative += len(informative)
            moves = dict(zip(informative, left, strict=False))
            left = left[len(moves) :]
            for response in self._move(batch, current, own, moves):
                self._place_response(batch, response, prompts, inputs, columns)
        self._scored = batch.rewards, batch.rollouts
        if trainer.rubric_reward is not None:
            trainer.rubric_reward.last = ScoredBatch(judged)
        trainer._pending_extra_logs.update(batch.logged)
        trainer._inputs = inputs
        self.metrics = {
            "refill/rounds": float(rounds),
            "refill/sampled": len(self.groups) / size,
            "refill/informative": num_informative / len(self.groups),
            "refill/left": len(left) / size,
        }
        return replace(batch.sampled, metrics=_weighted_means(metrics))

    def take_scores(self) -> tuple[torch.Tensor, list[Rollout]] | None:
        """Return the scores of the latest completed batch, N x F rewards and N rollouts, and forget them."""
        scored, self._scored = self._scored, None
        return scored

    def state(self) -> dict[str, Any]:
        """Return the state to save in a checkpoint."""
        return {"refill": {"drawn": self.stream.drawn}} if self._max_rounds else {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state from a checkpoint."""
        self.stream.drawn = int(state.get("refill", {}).get("drawn", 0))

    def _check(self) -> None:
        trainer, data = self._trainer, self._trainer.train_dataset
        remedy = "; set max_refill_rounds to 0, which only leaves groups out of the loss"
        if isinstance(data, TorchIterableDataset) or not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
            raise ValueError(f"max_refill_rounds needs an indexable training dataset, not a stream{remedy}")
        if trainer.environment_factories is not None:
            raise ValueError(f"max_refill_rounds does not work with environment_factory{remedy}")
        if {"image", "images"} & set(getattr(data, "column_names", None) or ()):
            raise ValueError(f"max_refill_rounds does not work with images in the training data{remedy}")

    @property
    def _size(self) -> int:
        return int(self._trainer.num_generations)

    def _rank_share(self, rows: list[int]) -> list[int]:
        """Return this rank's share of rows that are distributed over all ranks in order."""
        accelerator = self._trainer.accelerator
        share = len(rows) // accelerator.num_processes
        return rows[accelerator.process_index * share : (accelerator.process_index + 1) * share]

    def _draw(self, count: int, columns: Sequence[str], seen_keys: set[str]) -> list[int]:
        """Draw new rows for `count` groups, rounded up to a number that divides evenly over the ranks."""
        processes = int(self._trainer.accelerator.num_processes)
        unit = processes // math.gcd(processes, self._size)

        def accepts(row: int) -> bool:
            key = _row_key(self._trainer.train_dataset[row], columns)
            new = key not in seen_keys
            seen_keys.add(key)
            return new

        rows = self.stream.draw(math.ceil(count / unit) * unit, accepts)
        return rows[: len(rows) // unit * unit]

    def _columns(self, row: int, columns: Sequence[str]) -> dict[str, Any]:
        values = self._trainer.train_dataset[row]
        return {name: values[name] for name in columns}

    def _round(
        self, prompts: list[Any], inputs: list[dict[str, Any]], generate: Callable[..., GenerationOutput]
    ) -> _GenerationRound:
        """Generate and score a response for each row. All ranks must have equally many rows."""
        trainer = self._trainer
        trainer._inputs = inputs
        sampled = trainer._generation.sample(prompts, inputs, generate)
        generated = list(sampled.generated)
        if generated[_IMAGES] is not None or any(generated[_TOOL_IMAGES] or ()):
            raise ValueError("max_refill_rounds does not work with images; set it to 0")
        added = _by_row(generated[_EXTRA_FIELDS], len(inputs))
        for row, row_added in zip(inputs, added, strict=True):
            row.update(row_added)
        generated[_EXTRA_FIELDS] = {}
        trainer._sampled = sampled = replace(sampled, generated=_as_lists(generated))
        rewards = trainer._calculate_rewards(inputs, prompts, generated[COMPLETIONS], generated[COMPLETION_IDS])
        columns = dict(trainer._pending_extra_logs)
        trainer._pending_extra_logs.clear()
        logged = {name: list(values) for name, values in columns.items() if len(values) == len(inputs)}
        scored = None if trainer.rubric_reward is None else trainer.rubric_reward.last
        judged = () if scored is None else scored.rows
        return _GenerationRound(sampled, rewards.clone(), trainer.gathered_rollouts(), judged, added, logged)

    def _move(
        self, batch: _GenerationRound, current: _GenerationRound, rows: Sequence[int], moves: Mapping[int, int]
    ) -> Iterator[_MovedResponse]:
        """Move groups of a round into the batch: copy their scores, and return the responses for this rank."""
        size, first = self._size, self._trainer.accelerator.process_index * len(rows)
        for source, target in moves.items():
            source_slice = slice(source * size, (source + 1) * size)
            target_slice = slice(target * size, (target + 1) * size)
            batch.rewards[target_slice] = current.rewards[source_slice]
            batch.rollouts[target_slice] = current.rollouts[source_slice]
        columns = current.columns
        sent = [
            _MovedResponse(
                target=moves[(first + place) // size] * size + (first + place) % size,
                row=row,
                added=current.added[place],
                values={name: values[place] for name, values in columns.items()},
                logged={name: values[place] for name, values in current.logged.items()},
            )
            for place, row in enumerate(rows)
            if (first + place) // size in moves
        ]
        responses: list[_MovedResponse] = gather_object(sent)
        own = len(batch.added)
        start = self._trainer.accelerator.process_index * own
        return (one for one in responses if start <= one.target < start + own)

    def _place_response(
        self,
        batch: _GenerationRound,
        response: _MovedResponse,
        prompts: list[Any],
        inputs: list[dict[str, Any]],
        columns: Sequence[str],
    ) -> None:
        """Store a response at its index among this rank's rows."""
        place = response.target - self._trainer.accelerator.process_index * len(inputs)
        inputs[place] = {**self._columns(response.row, columns), **response.added}
        prompts[place] = inputs[place]["prompt"]
        for column, values in batch.columns.items():
            values[place] = response.values.get(column)
        for name in batch.logged.keys() | response.logged.keys():
            batch.logged.setdefault(name, [None] * len(inputs))[place] = response.logged.get(name)


@contextmanager
def _scoring_part_of_batch(batch_rows: int, rewards: Sequence[Any]) -> Iterator[None]:
    """Make rubric rewards treat the rows they score as a part of a batch of `batch_rows`."""
    try:
        for reward in rewards:
            reward.batch_rows = batch_rows
        yield
    finally:
        for reward in rewards:
            reward.batch_rows = 0


def _row_key(row: Mapping[str, Any], columns: Sequence[str]) -> str:
    """Return an id of a row of the training data, derived from its content."""
    text = json.dumps({name: row[name] for name in columns}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _by_row(fields: Mapping[str, Any], rows: int) -> list[dict[str, Any]]:
    """Return the columns that a rollout function adds to each row. As in TRL, only lists have a value per row."""
    return [
        {
            name: values[row] if isinstance(values, list) else values
            for name, values in fields.items()
            if not isinstance(values, list) or row < len(values)
        }
        for row in range(rows)
    ]


def _as_lists(generated: Sequence[Any]) -> GenerationOutput:
    return tuple(
        list(value) if field in _PER_RESPONSE_FIELDS and value is not None else value
        for field, value in enumerate(generated)
    )


def _weighted_means(metrics: Sequence[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """Average the metrics of the rounds, weighted by their numbers of groups."""
    total = sum(groups for groups, _ in metrics)
    return {name: sum(groups * own[name] for groups, own in metrics) / total for name in metrics[0][1]}
