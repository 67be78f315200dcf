"""From sampled responses to a model's certainty of the reference answer: the same in training and before it.

A response is parted by its own tokens, never by tokenising it again. Samples nothing, and makes no reward.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from trainer_client._columns import as_text
from trainer_client.offsets import TokenOffsets
from trainer_client.reasoning import SplitRule, find_answer, split_reasoning
from trainer_client.trl._certainty import reference_probabilities


class ReflectionResult(NamedTuple):
    """Of one response: p of each of the T tokens of the reference answer after its reasoning, and its own answer.

    `found` says whether there is an answer that stands apart; where it is False, the reasoning is the whole response.
    """

    certainty: tuple[float, ...]
    answer: str
    found: bool


class Reflection:
    """How certain a model is of a reference answer after the reasoning of each response.

    Args:
        tokenizer: the model's.
        rule: where in a response its answer begins; see `trainer_client.reasoning`.
    """

    def __init__(self, tokenizer: Any, rule: SplitRule = find_answer) -> None:
        self._tokenizer = tokenizer
        self._rule = rule
        self._offsets = TokenOffsets(tokenizer)

    def reference_tokens(self, reference: object) -> list[int]:
        """Give the T tokens of a reference answer, tokenised alone; none where it is None or blank.

        Raises:
            ValueError: it is neither text nor a number.
        """
        text = reference_text(reference)
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"] if text else []
        return ids

    def measure_certainty(
        self, model: Any, prompt: Sequence[int], responses: Sequence[Sequence[int]], reference: Sequence[int]
    ) -> list[ReflectionResult]:
        """Look at n responses to one prompt.

        Args:
            model: a causal language model of transformers.
            prompt: its tokens, at least one.
            responses: n lists of tokens, as they were sampled.
            reference: the T tokens of the reference answer, at least one.
        """
        parts = [self._split_tokens(ids) for ids in responses]
        pad = self._tokenizer.pad_token_id
        found = reference_probabilities(
            model, prompt, [reasoning for reasoning, *_ in parts], reference, reference[0] if pad is None else pad
        )
        return [
            ReflectionResult(tuple(certainty), answer, has_answer)
            for certainty, (_, answer, has_answer) in zip(found.tolist(), parts, strict=True)
        ]

    def _split_tokens(self, ids: Sequence[int]) -> tuple[list[int], str, bool]:
        """Part a response into the tokens of its reasoning and the text of its answer; whether it was found apart."""
        text, offsets = self._offsets.text_and_offsets(ids)
        split = split_reasoning(text, rule=self._rule)
        has_answer = bool(split.answer.strip()) and split.reasoning + split.answer == text
        end = len(split.reasoning)
        reasoning_positions = [
            place for place, (start, stop) in enumerate(offsets.tolist()) if start < stop and start < end
        ]
        return list(ids[: reasoning_positions[-1] + 1]) if reasoning_positions else [], split.answer, has_answer


def reference_text(reference: object) -> str:
    """Give a reference answer as the judge reads it, without the space around it; empty where there is none.

    Raises:
        ValueError: it is neither text nor a number.
    """
    return (as_text("reference_answer", reference) or "").strip()
