"""What `/v1/runs` tells of training runs: what was judged and rewarded in them, by step and by criterion.

Knows figures. Refuses to know verdicts, texts, and what a good figure is.
"""

from datetime import datetime

from trainer_client.wire.answers import FailureKind, PinnedRubric
from trainer_client.wire.base import AnswerModel
from trainer_client.wire.judging import JudgingProtocol
from trainer_client.wire.rewards import RewardMode


class JudgingFigures(AnswerModel):
    """What was judged and rewarded in a part of a run.

    `mean_reward` is over the responses that have a reward, null where none has. `verdicts` counts verdicts on a
    criterion, several votes as one, and those that failed too; `failures` counts those by kind. `cached` counts
    verdicts that cost no call, because they were known or another request was asking for them. `mean_seconds` is a
    request's, from its arrival to its answer.
    """

    requests: int
    responses: int
    scored: int
    partial: int
    unscored: int
    mean_reward: float | None
    verdicts: int
    failed: int
    failures: dict[FailureKind, int]
    cached: int
    judge_calls: int
    prompt_tokens_computed: int
    prompt_tokens_reused: int
    tokens_written: int
    mean_seconds: float
    modes: tuple[RewardMode, ...]


class RunSummary(JudgingFigures):
    """A training run: all that was judged for it.

    `run` is null for what was judged under no run's name. `modes` is empty where nothing was rewarded, `protocols`
    and `judges` where no judge was asked. `rubrics` counts the distinct contents of rubrics.
    """

    run: str | None
    first_at: datetime
    last_at: datetime
    last_step: int | None
    protocols: tuple[JudgingProtocol, ...]
    judges: tuple[str, ...]
    rubrics: int


class CriterionFigures(AnswerModel):
    """What became of a criterion.

    `verdicts` counts those that failed too, which are in neither rate. `pass_rate` is the share of the others with a
    score of 0.5 or more, `mean_score` the mean of their scores, both in [0, 1] and null where there are none. A score
    says that what the criterion describes is so: of a pitfall, or a criterion of negative weight, a high rate is bad.
    """

    criterion: str
    verdicts: int
    failed: int
    pass_rate: float | None
    mean_score: float | None


class RunStep(JudgingFigures):
    """A training step of a run; `step` is null for what was judged without one.

    `std_reward` is the standard deviation of the step's rewards around their mean (division by their number), null
    where there are none.
    """

    step: int | None
    std_reward: float | None
    criteria: tuple[CriterionFigures, ...]


class RunPage(AnswerModel):
    """A page of runs, the one that was judged for last first; `next_cursor` is null on the last page."""

    runs: tuple[RunSummary, ...]
    next_cursor: str | None = None


class RunReport(AnswerModel):
    """A run and a page of its steps.

    `rubrics` holds those that judged most responses, with the newest name and version that stand for each, if any.
    `criteria` holds the criteria with the most verdicts of the run, of `criteria_count` that there are; steps tell of
    the same ones. `next_cursor` fetches the following page of steps and is null on the last.
    """

    run: RunSummary
    rubrics: tuple[PinnedRubric, ...]
    criteria: tuple[CriterionFigures, ...]
    criteria_count: int
    steps: tuple[RunStep, ...]
    next_cursor: str | None = None
