"""A frozen model's certainty of the reference answer after each rollout's reasoning, for methods that reward it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from trainer_client._lexical import rouge_l_f1
from trainer_client.errors import InvalidRequest
from trainer_client.reasoning import split_reasoning
from trainer_client.trl._reflection import Reflection, reference_text
from trainer_client.trl.methods import Rollout


class CertaintyReader:
    """Adds to each rollout how probable a frozen model finds the reference answer after its reasoning.

    A row without a reference answer, or with one of no tokens, gets none and so no reward. Judged is the answer alone.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._rule = trainer.method.answer_rule
        self._reflection = Reflection(trainer._tokenizer, self._rule)
        if trainer.rubric_reward is not None:
            trainer.rubric_reward.select_judged_part = self._answer_of

    def read(
        self,
        rollouts: Sequence[Rollout],
        inputs: Sequence[Mapping[str, Any]],
        prompt_ids: Sequence[Sequence[int]],
        completion_ids: Sequence[Sequence[int]],
    ) -> list[Rollout]:
        """Read N rollouts: their certainties, and ROUGE-L of their answers.

        Raises:
            InvalidRequest: a reference answer is neither text nor a number; names the row.
        """
        read = self._with_scores(rollouts)
        references = [_reference(place, row) for place, row in enumerate(inputs)]
        grouped = groupby(range(len(read)), key=lambda row: (tuple(prompt_ids[row]), references[row]))
        for (prompt, reference), rows in grouped:
            answer = self._reflection.reference_tokens(reference)
            if not answer:
                continue
            places = list(rows)
            found = self._reflection.measure_certainty(
                self._trainer.frozen_policy.model, prompt, [completion_ids[row] for row in places], answer
            )
            for row, result in zip(places, found, strict=True):
                overlap = rouge_l_f1(result.answer, reference)
                read[row] = replace(read[row], certainty=result.certainty, overlap=overlap, answered=result.found)
        return read

    def _with_scores(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        reward = self._trainer.rubric_reward
        if reward is None:
            return [replace(rollout, scores=()) for rollout in rollouts]
        return [
            replace(rollout, scores=row.answer and tuple(verdict.score for verdict in row.answer.verdicts))
            for rollout, row in zip(rollouts, reward.last.rows, strict=True)
        ]

    def _answer_of(self, completion: Any) -> Any:
        if isinstance(completion, str):
            return split_reasoning(completion, rule=self._rule).answer
        *before, last = completion
        if not isinstance(last.get("content"), str):
            return completion
        return [*before, {**last, "content": split_reasoning(last["content"], rule=self._rule).answer}]


def _reference(place: int, row: Mapping[str, Any]) -> str:
    try:
        return reference_text(row.get("reference_answer"))
    except ValueError as error:
        raise InvalidRequest(f"row {place}: {error}") from error
