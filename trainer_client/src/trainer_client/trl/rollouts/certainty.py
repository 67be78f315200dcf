"""How certain a frozen model is of the reference answer after each rollout's reasoning.

The reference answer's tokens are appended to the tokens of the reasoning. Responses are split by their own tokens and
never tokenized again, and the prompt is computed once for all rollouts of a group. The frozen model is the policy
before training: TRL's reference model, or a copy that is loaded when needed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

import torch
from trl.trainer.grpo_trainer import add_fused_lm_head
from trl.trainer.utils import create_model_from_path, get_config_model_id

from trainer_client.errors import InvalidRequest
from trainer_client.measures import rouge_l_f1
from trainer_client.rows.tables import as_text
from trainer_client.text.offsets import TokenOffsets
from trainer_client.text.thinking import SplitRule, find_answer, split_reasoning, split_thinking
from trainer_client.trl.methods import Rollout
from trainer_client.trl.rollouts.generation import GeneratedRows
from trainer_client.trl.scoring.results import ScoredRow


class CertaintyReader:
    """Adds to each rollout the frozen model's certainty of the reference answer after its reasoning.

    A row without a reference answer, or with an empty one, gets no certainty and therefore no reward. The rubric judges
    only the answer of a response, not its reasoning.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._rule = trainer.method.answer_rule
        self._reflection = Reflection(trainer._tokenizer, self._rule)
        if trainer.rubric_reward is not None:
            trainer.rubric_reward.select_judged_part = self._answer_of

    def read(self, rollouts: Sequence[Rollout], generated: GeneratedRows) -> list[Rollout]:
        """Return the N rollouts with their certainties, and the ROUGE-L of their answers.

        Raises:
            InvalidRequest: a reference answer is neither text nor a number; names the row.
        """
        read = self._with_scores(rollouts)
        references = [self._reference(place, row) for place, row in enumerate(generated.inputs)]
        grouped = groupby(range(len(read)), key=lambda row: (tuple(generated.prompt_ids[row]), references[row]))
        for (prompt, reference), rows in grouped:
            answer = self._reflection.reference_tokens(reference)
            if not answer:
                continue
            places = list(rows)
            results = self._reflection.measure_certainty(
                self._trainer.frozen_policy.model, prompt, [generated.completion_ids[row] for row in places], answer
            )
            for row, result in zip(places, results, strict=True):
                overlap = rouge_l_f1(result.answer, reference)
                read[row] = replace(read[row], certainty=result.certainty, overlap=overlap, answered=result.found)
        return read

    def _with_scores(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        reward = self._trainer.rubric_reward
        if reward is None:
            return [replace(rollout, scores=()) for rollout in rollouts]
        return [
            replace(rollout, scores=_scores_that_count(row))
            for rollout, row in zip(rollouts, reward.last.rows, strict=True)
        ]

    def _reference(self, place: int, row: Mapping[str, Any]) -> str:
        reward = self._trainer.rubric_reward
        column = None if reward is None else reward.column_of("reference_answer")  # the judge need not see it
        try:
            return reference_text(row.get(column or "reference_answer"))
        except ValueError as error:
            raise InvalidRequest(f"row {place}: {error}") from error

    def _answer_of(self, completion: Any) -> Any:
        if isinstance(completion, str):
            return self._judged_text(completion)
        *before, last = completion
        if not isinstance(last.get("content"), str):
            return completion
        return [*before, {**last, "content": self._judged_text(last["content"])}]

    def _judged_text(self, text: str) -> str:
        """Return the answer, behind the thinking block that comes before it.

        The service takes the block out, as from any response. If the prompt opens it, an answer alone would count as
        thinking that never ends.
        """
        split, end = split_reasoning(text, rule=self._rule), split_thinking(text).answer_start
        return text[:end] + split.answer if end <= split.answer_start else split.answer


def _scores_that_count(row: ScoredRow) -> tuple[float | None, ...] | None:
    """Return the scores of a row's criteria, without shadows and other kinds than are rewarded; None if unanswered."""
    if row.answer is None:
        return None
    kinds = row.options.get("kinds")
    ignored = {one.id for one in row.criteria or () if one.shadow or (kinds is not None and one.kind not in kinds)}
    return tuple([verdict.score for verdict in row.answer.verdicts if verdict.criterion not in ignored])


class FrozenPolicy:
    """The policy of a trainer before training: TRL's reference model, or a copy loaded on first use.

    The copy needs as much memory as the policy's own weights.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._copy: Any = None

    @property
    def model(self) -> Any:
        """The frozen model. A copy is loaded from the policy's origin on first access."""
        trainer = self._trainer
        if trainer.ref_model is not None:
            return trainer.ref_model
        if self._copy is None:
            loading = dict(trainer.args.model_init_kwargs or {})
            loading.setdefault("dtype", trainer.model.dtype)
            copy = create_model_from_path(get_config_model_id(trainer.model.config), **loading).eval()
            copy.requires_grad_(False)
            add_fused_lm_head(
                copy, temperature=trainer.temperature, cast_lm_head_to_fp32=trainer.args.cast_lm_head_to_fp32
            )
            self._copy = trainer.accelerator.prepare_model(copy, evaluation_mode=True)
        return self._copy

    def log_probabilities(self, compute: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> torch.Tensor:
        """Compute log pi of a micro-batch's tokens under the frozen model. B x T, without a gradient.

        `compute` is TRL's `_get_per_token_logps_and_entropies`, and the rest its arguments without the model.
        """
        options = {**options, "compute_entropy": False, "compute_aux_loss": False}
        with torch.no_grad():
            logps: torch.Tensor = compute(self.model, *arguments, **options)[0]
        return logps


class ReflectionResult(NamedTuple):
    """The certainty measured for one response.

    Attributes:
        certainty: p of each of the T tokens of the reference answer after the response's reasoning.
        answer: the response's own answer.
        found: whether the answer was found apart from the reasoning; if not, the reasoning is the whole response.
    """

    certainty: tuple[float, ...]
    answer: str
    found: bool


class Reflection:
    """Measures how certain a model is of a reference answer after the reasoning of each response.

    The rule finds where the answer begins in a response; see `trainer_client.text.thinking`.
    """

    def __init__(self, tokenizer: Any, rule: SplitRule = find_answer) -> None:
        self._tokenizer = tokenizer
        self._rule = rule
        self._offsets = TokenOffsets(tokenizer)

    def reference_tokens(self, reference: object) -> list[int]:
        """Return the T tokens of a reference answer, tokenized on its own; empty if it is None or blank.

        Raises ValueError if it is neither text nor a number.
        """
        text = reference_text(reference)
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"] if text else []
        return ids

    def measure_certainty(
        self, model: Any, prompt: Sequence[int], responses: Sequence[Sequence[int]], reference: Sequence[int]
    ) -> list[ReflectionResult]:
        """Measure the certainty of a reference answer of T tokens after each of n responses to one prompt.

        Responses are lists of tokens, as they were sampled. Prompt and reference have at least one token.
        """
        parts = [self._split_tokens(ids) for ids in responses]
        pad = self._tokenizer.pad_token_id
        probabilities = reference_probabilities(
            model, prompt, [reasoning for reasoning, *_ in parts], reference, reference[0] if pad is None else pad
        )
        return [
            ReflectionResult(tuple(certainty), answer, has_answer)
            for certainty, (_, answer, has_answer) in zip(probabilities.tolist(), parts, strict=True)
        ]

    def _split_tokens(self, ids: Sequence[int]) -> tuple[list[int], str, bool]:
        """Return the tokens of a response's reasoning, the text of its answer, and whether an answer was found."""
        text, offsets = self._offsets.text_and_offsets(ids)
        split = split_reasoning(text, rule=self._rule)
        has_answer = bool(split.answer.strip()) and split.reasoning + split.answer == text
        end = len(split.reasoning)
        reasoning_positions = [
            place for place, (start, stop) in enumerate(offsets.tolist()) if start < stop and start < end
        ]
        return list(ids[: reasoning_positions[-1] + 1]) if reasoning_positions else [], split.answer, has_answer


def reference_text(reference: object) -> str:
    """Return a reference answer as the judge reads it, without surrounding whitespace; empty if there is none.

    Raises ValueError if it is neither text nor a number.
    """
    return (as_text("reference_answer", reference) or "").strip()


def reference_probabilities(
    model: Any, prompt: Sequence[int], reasonings: Sequence[Sequence[int]], answer: Sequence[int], pad: int
) -> torch.Tensor:
    """Compute p_ij = pi(y_j | x, c_i, y_<j) for n rollouts of one prompt.

    Args:
        model: a causal language model of transformers.
        prompt: the tokens of x, at least one.
        reasonings: n lists of tokens c_i, which may be empty.
        answer: the T tokens of y, at least one.
        pad: the padding token.

    Returns:
        n x T probabilities, in float32.
    """
    device = model.device
    longest = max(len(reasoning) for reasoning in reasonings)
    rows, gaps = [], []
    for reasoning in reasonings:
        gap = longest - len(reasoning)
        rows.append([pad] * gap + [prompt[-1], *reasoning, *answer[:-1]])
        gaps.append(gap)
    ids = torch.tensor(rows, device=device)
    own = torch.ones_like(ids)
    for row, gap in enumerate(gaps):
        own[row, :gap] = 0
    shared = torch.ones(len(rows), len(prompt) - 1, dtype=own.dtype, device=device)
    mask = torch.cat([shared, own], dim=1)
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)[:, len(prompt) - 1 :]
    with torch.no_grad():
        cache = None
        if len(prompt) > 1:
            cache = model(input_ids=torch.tensor([prompt[:-1]], device=device), use_cache=True).past_key_values
            cache.batch_repeat_interleave(len(rows))
        logits = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=cache is not None,
            logits_to_keep=len(answer),
        ).logits
    wanted = torch.tensor(answer, device=device).expand(len(rows), -1).unsqueeze(2)
    return logits.float().softmax(dim=-1).gather(2, wanted).squeeze(2)
