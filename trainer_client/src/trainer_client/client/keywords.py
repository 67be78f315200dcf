"""The keyword arguments of judging requests.

Generated from the wire models by `python -m tests.request_options`: change those instead.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from trainer_client.wire.judging import LengthPenalty, OverlongPenalty
from trainer_client.wire.rewards import GoldSampling, RubricDropout


class ComparisonKeywords(TypedDict, total=False):
    """Options of all judging requests.

    Attributes:
        allow_retired: accept a rubric version that is retired; otherwise the request is refused.
        judge: the name of the judge; each judge of the service has one. Default: `default`.
        rationale: have the judge write its reasons before the verdict, and return them.
        think_tokens: the maximum length of a thinking judge's thoughts, in its tokens. Default: 0.
        reasoning: which part of a response the judge sees: the response without its thinking block (`strip`), all of it
            (`keep`), or only the thinking block (`only`). Default: `strip`.
        prompt_opens: the tag of the thinking block that the policy's chat template opens at the end of the prompt, such
            as `<think>`, or `none` if it opens none.
        grounding_characters: the maximum length of the grounding shown to the judge, in characters.
        template: the name of one of the server's sets of prompt templates; defaults to the server's default set.
        priority: `online` if a training step waits; `bulk` work waits until online requests are served. Default:
            `online`.
    """

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
    """Options of judging by a rubric.

    Attributes:
        protocol: the judging protocol; by default that of the reward mode, or `binary` without one.
        criteria_per_call: the number of criteria in one judge call, or `all`; by default all for `checklist`, and 1 for
            the other protocols.
        votes: the number of verdicts to sample for each criterion. Default: 1.
        temperature: the judge's sampling temperature; defaults to 0, or to 0.7 if `votes` is above 1.
        truncate: judge a response that exceeds the judge's context without its middle, and report how much was left
            out.
        steps: what the steps of a response are, to which the protocol `stepwise` attributes verdicts: `headings`, its
            `### Step N` headings; `turns`, its messages of role `assistant`, counted from 1 (a text is one turn);
            `paragraphs`, separated by blank lines; `given`, the `steps` of each response of the request. Default:
            `headings`.
        defences: what protects the judge from deceitful responses, besides the fences around them. Default:
            `normalise`, `no_content`.
        contextual_calibration: ask each criterion once more about an empty response to the same prompt, and judge by
            what the response changes: the log-odds of yes with it, less those without it (Zhao et al. 2021).
        on_decoy: what becomes of a suspicious response: `flag` leaves its verdicts as they are; `fail` makes all of the
            judge's verdicts on it fail as `decoy`, so that `on_failure` decides about its reward. Default: `flag`.
        uncertain_band: a verdict is uncertain if its calibrated probability is from the first up to the second.
    """

    protocol: Literal["binary", "stepwise", "graded", "checklist", "likert"] | None
    criteria_per_call: int | Literal["all"] | None
    votes: int
    temperature: float | None
    truncate: bool
    steps: Literal["headings", "turns", "paragraphs", "given"]
    defences: Sequence[Literal["normalise", "no_content", "decoy"]]
    contextual_calibration: bool | None
    on_decoy: Literal["flag", "fail"]
    uncertain_band: tuple[float, float] | None


class VerdictKeywords(JudgingKeywords, total=False):
    """Options of verdict requests.

    Attributes:
        fresh: ask the judge even where its verdict is known.
    """

    fresh: bool | None


class RewardKeywords(JudgingKeywords, total=False):
    """Options of reward requests.

    Attributes:
        kinds: the kinds of criteria that count, as if the rubric had no others.
        format_weight: lambda of the `stepwise` base reward, the weight of the format in [0, 1] (SRaR has 0.1). Default:
            0.1.
        gate_fraction: rho, the share of the criteria that a response must satisfy to pass a `gate`, in [0, 1]. Default:
            0.5.
        length_penalty: `LengthPenalty` or its fields: a penalty on length; needs `tokens` of every response.
        overlong_penalty: `OverlongPenalty` or its fields: a penalty near the generation limit; needs `tokens` of every
            response.
        truncation_factor: the factor, in [0, 1], for the reward of a response that was cut off; needs `stopped` of
            every response.
        use: what of a yes/no verdict enters the reward: `verdict` for hard rewards from scores of 0 and 1;
            `probability` for soft rewards, where the calibrated probability of yes takes the place of the score.
            Default: `verdict`.
        schedule: the pairs of a group that `ranking` compares, each in both orders: `all_pairs`; `swiss`, rounds in
            which each response meets another of about its own standing; `pivot`, every response against the same one of
            the group, which a hash of the texts picks. Default: `all_pairs`.
        rounds: the rounds of a `swiss` schedule; by default log2 of the number of responses, rounded up.
        on_uncertain: what reward a response gets whose reward needs a verdict that is uncertain. Default: `null`.
        dropout: `RubricDropout` or its fields: judge a random share of the criteria of each group, with an unbiased
            reward; only in linear modes.
        gold: `GoldSampling` or its fields: judge a share of the responses by a second judge too, which needs a `run`.
    """

    kinds: Sequence[Literal["point", "factual", "process", "suggest", "pitfall", "bonus", "answer"]] | None
    format_weight: float
    gate_fraction: float
    length_penalty: LengthPenalty | Mapping[str, Any] | None
    overlong_penalty: OverlongPenalty | Mapping[str, Any] | None
    truncation_factor: float | None
    use: Literal["verdict", "probability"]
    schedule: Literal["all_pairs", "swiss", "pivot"]
    rounds: int | None
    on_uncertain: Literal["null", "error", "zero", "skip"] | None
    dropout: RubricDropout | Mapping[str, Any] | None
    gold: GoldSampling | Mapping[str, Any] | None
