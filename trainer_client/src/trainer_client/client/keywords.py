"""The keyword arguments of judging requests.

Generated from the wire models by `python -m tests.request_options`: change those instead.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from trainer_client.wire.rewards import GoldSampling, LengthPenalty, OverlongPenalty, RubricDropout


class ComparisonKeywords(TypedDict, total=False):
    """Options of all judging requests; see `AsyncClient.rewards`."""

    allow_retired: bool | None
    judge: str | None
    rationale: bool
    think_tokens: int
    reasoning: Literal["strip", "keep", "only"]
    prompt_opens: (
        Literal[
            "<think>",
            "<thinking>",
            "<thought>",
            "<reasoning>",
            "<seed:think>",
            "<longcat_think>",
            "◁think▷",
            "[THINK]",
            "<|begin_of_thought|>",
            "<|START_THINKING|>",
            "<|inner_prefix|>",
            "<|channel>thought",
            "<|channel|>analysis<|message|>",
            "none",
        ]
        | None
    )
    grounding_characters: int | None
    template: str | None
    priority: Literal["online", "bulk"] | None


class JudgingKeywords(ComparisonKeywords, total=False):
    """Options of judging by a rubric; see `AsyncClient.rewards`."""

    protocol: Literal["binary", "stepwise", "graded", "checklist", "likert"] | None
    criteria_per_call: int | Literal["all"] | None
    votes: int
    temperature: float | None
    truncate: bool
    passages: int | None
    steps: Literal["headings", "turns", "paragraphs", "given"]
    defences: Sequence[Literal["normalise", "no_content", "decoy"]]
    contextual_calibration: bool | None
    on_decoy: Literal["flag", "fail"]
    uncertain_band: tuple[float, float] | None


class VerdictKeywords(JudgingKeywords, total=False):
    """Options of verdict requests; see `AsyncClient.rewards`."""

    fresh: bool | None


class RewardKeywords(JudgingKeywords, total=False):
    """Options of reward requests; see `AsyncClient.rewards`."""

    kinds: Sequence[Literal["point", "factual", "process", "suggest", "pitfall", "bonus", "answer"]] | None
    format_weight: float
    gate_fraction: float
    length_penalty: LengthPenalty | Mapping[str, Any] | None
    overlong_penalty: OverlongPenalty | Mapping[str, Any] | None
    truncation_factor: float | None
    use: Literal["verdict", "probability"]
    schedule: Literal["all_pairs", "swiss", "pivot"]
    rounds: int | None
    components: Literal["criterion", "kind", "tag"] | None
    weighting: Literal["declared", "contrast"]
    on_uncertain: Literal["null", "error", "zero", "skip"] | None
    dropout: RubricDropout | Mapping[str, Any] | None
    gold: GoldSampling | Mapping[str, Any] | None
