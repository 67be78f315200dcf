"""The options of the commands that turn verdicts into rewards, and their help."""

from pathlib import Path
from typing import Annotated

import typer

from adjudge_services.cli.options import (
    JUDGING,
    OUTPUT,
    REWARD,
    ColumnOption,
    ConcurrencyOption,
    CriteriaPerCallOption,
    DeadlineOption,
    FailurePolicy,
    JudgeOption,
    JudgingProtocol,
    LedgerUrlOption,
    ModeOption,
    RankingSchedule,
    ReasoningPart,
    RewardMode,
    RubricOption,
    StepRule,
    UncertainPolicy,
    UrlOption,
    UsedProtocol,
    VerdictUse,
    copy_input,
    implemented_by,
    input_argument,
)

_USE = typer.Option(
    help="What enters the reward: verdicts of 0 and 1, or probabilities of yes.", rich_help_panel=REWARD
)
_ON_FAILURE = typer.Option(help="Effect of a failed verdict on the reward.", rich_help_panel=REWARD)
_ON_UNCERTAIN = typer.Option(help="Effect of an uncertain verdict on the reward.", rich_help_panel=REWARD)
UncertainBandOption = Annotated[
    tuple[float, float] | None,
    typer.Option(
        metavar="LOW HIGH", help="A verdict with a probability between these is uncertain.", rich_help_panel=REWARD
    ),
]


@implemented_by("adjudge_services.cli.scoring.score:score")
def score(
    file: Annotated[
        str,
        typer.Argument(
            help="A group per row (prompt, responses, …), as JSONL, CSV or Parquet: a path, a URL such as s3://…, or - "
            "for JSONL on standard input.",
            callback=copy_input,
        ),
    ],
    rubric: RubricOption = None,
    mode: ModeOption = "weighted_mean",
    protocol: Annotated[
        JudgingProtocol | None,
        typer.Option(help="Judging protocol; by default the mode's own.", rich_help_panel=JUDGING),
    ] = None,
    use: Annotated[VerdictUse, _USE] = "verdict",
    schedule: Annotated[
        RankingSchedule | None,
        typer.Option(help="Pairs that mode ranking compares; by default all.", rich_help_panel=REWARD),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="Rounds of a swiss schedule; by default log2 of the group.", rich_help_panel=REWARD),
    ] = None,
    on_failure: Annotated[FailurePolicy, _ON_FAILURE] = "null",
    uncertain_band: UncertainBandOption = None,
    on_uncertain: Annotated[UncertainPolicy, _ON_UNCERTAIN] = "null",
    criteria_per_call: CriteriaPerCallOption = None,
    rationale: Annotated[
        bool,
        typer.Option(
            "--rationale", help="Have the judge write its reasons before each verdict.", rich_help_panel=JUDGING
        ),
    ] = False,
    votes: Annotated[int, typer.Option(min=1, help="Verdicts to sample per criterion.", rich_help_panel=JUDGING)] = 1,
    think_tokens: Annotated[
        int, typer.Option(min=0, help="Maximum thinking tokens of a thinking judge.", rich_help_panel=JUDGING)
    ] = 0,
    reasoning: Annotated[
        ReasoningPart,
        typer.Option(help="How much of a response's own thinking the judge sees.", rich_help_panel=JUDGING),
    ] = "strip",
    prompt_opens: Annotated[
        str | None,
        typer.Option(
            help="Tag of the thinking block that the policy's chat template opens, as <think>, or none.",
            rich_help_panel=JUDGING,
        ),
    ] = None,
    steps: Annotated[
        StepRule, typer.Option(help="What the steps of a response are.", rich_help_panel=JUDGING)
    ] = "headings",
    grounding_characters: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum characters of a grounding that the judge sees.", rich_help_panel=JUDGING),
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(help="A set of prompt templates; `adjudge templates list` shows them.", rich_help_panel=JUDGING),
    ] = None,
    truncate: Annotated[
        bool,
        typer.Option(
            "--truncate",
            help="Cut the middle out of over-long responses instead of rejecting them.",
            rich_help_panel=JUDGING,
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write rewards here, as JSONL or Parquet.", rich_help_panel=OUTPUT),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Score only the first N lines.")] = None,
    run: Annotated[
        str | None,
        typer.Option(help="Name under which the ledger records this, as a training run; none by default."),
    ] = None,
    table: Annotated[
        bool | None,
        typer.Option(
            "--table/--jsonl",
            help="Output format; by default a table on a terminal, else JSONL.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    column: ColumnOption = None,
    url: UrlOption = None,
    judge: JudgeOption = None,
    concurrency: ConcurrencyOption = 8,
    deadline_s: DeadlineOption = 3600.0,
) -> None:
    """Score every response in a file.

    Prints a table on a terminal, JSONL otherwise. Rows are read, judged and written in order, a few at a time, so that
    a file can be larger than the memory; only a table keeps them all. Exits with 1 if any response was not scored or
    any line was rejected, and reports how many and why.
    """


@implemented_by("adjudge_services.cli.scoring.score:filter_easy")
def filter_easy(
    file: Annotated[
        Path,
        input_argument("JSONL with a question per line: prompt, reference_answer, and responses of the base policy."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="File for the kept lines, unchanged.")],
    easy_threshold: Annotated[
        float,
        typer.Option(min=0, max=1, help="Mean score in [0, 1] from which a question is easy; 0.75 is (7.75 - 1) / 9."),
    ] = 0.75,
    reference_characters: Annotated[
        int, typer.Option(min=1, help="Maximum length of a reference answer, in characters; longer ones are dropped.")
    ] = 8_000,
    scores: Annotated[Path | None, typer.Option(help="Write each line's score and outcome here as JSONL.")] = None,
    url: UrlOption = None,
    judge: JudgeOption = None,
    concurrency: ConcurrencyOption = 8,
    deadline_s: DeadlineOption = 3600.0,
) -> None:
    """Rate the base policy's responses on a Likert scale, and keep the questions that it does not answer well.

    Lines with an overlong reference answer are dropped without rating. A line with a response that could not be rated
    is kept. Exits with 1 if any line could not be read or rated.
    """


@implemented_by("adjudge_services.cli.scoring.recompute:recompute")
def recompute(
    run: Annotated[
        str, typer.Argument(help="The run's name, as given in its requests; '' for requests without a run.")
    ],
    mode: Annotated[
        RewardMode | None,
        typer.Option(help="How verdicts become a reward; by default as they did.", rich_help_panel=REWARD),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            help="JSON file of weights by criterion id, instead of the rubric's.", exists=True, rich_help_panel=REWARD
        ),
    ] = None,
    suggest: Annotated[
        float, typer.Option(help="Budget that all suggest criteria add to a response's steps.", rich_help_panel=REWARD)
    ] = 0.8,
    pitfall: Annotated[
        float, typer.Option(help="Budget that all pitfalls add to them; negative.", rich_help_panel=REWARD)
    ] = -1.0,
    bonus: Annotated[
        float, typer.Option(help="Budget that all bonus criteria add to them.", rich_help_panel=REWARD)
    ] = 1.0,
    use: Annotated[VerdictUse | None, _USE] = None,
    on_failure: Annotated[FailurePolicy | None, _ON_FAILURE] = None,
    uncertain_band: UncertainBandOption = None,
    on_uncertain: Annotated[UncertainPolicy | None, _ON_UNCERTAIN] = None,
    format_weight: Annotated[
        float | None, typer.Option(help="Weight of the format in mode stepwise.", rich_help_panel=REWARD)
    ] = None,
    gate_fraction: Annotated[
        float | None, typer.Option(help="Share of criteria that mode gate requires.", rich_help_panel=REWARD)
    ] = None,
    length_penalty: Annotated[
        str | None,
        typer.Option(help='JSON, such as {"coefficient": 1e-4, "target_tokens": 2000}.', rich_help_panel=REWARD),
    ] = None,
    overlong_penalty: Annotated[
        str | None,
        typer.Option(help='JSON, such as {"limit_tokens": 4096, "buffer_tokens": 512}.', rich_help_panel=REWARD),
    ] = None,
    truncation_factor: Annotated[
        float | None, typer.Option(help="Factor on the reward of responses that were cut off.", rich_help_panel=REWARD)
    ] = None,
    first_step: Annotated[int | None, typer.Option(min=0, help="First step to include.")] = None,
    last_step: Annotated[int | None, typer.Option(min=0, help="Last step to include.")] = None,
    protocol: Annotated[UsedProtocol | None, typer.Option(help="Only verdicts of this judging protocol.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the groups here as JSONL.", rich_help_panel=OUTPUT)
    ] = None,
    url: LedgerUrlOption = None,
) -> None:
    """Recompute the rewards of a run from its recorded verdicts, without asking a judge.

    A rule that no option sets is that of each recorded request. Failed verdicts stay failed. Responses that were judged
    twice, for example by a repeated request, appear twice.
    """


@implemented_by("adjudge_services.cli.scoring.demo_run:demo_run")
def demo_run() -> None:
    """Fill a made-up run in which a criterion is gamed, and a healthy one beside it, to look at in the console.

    No model is asked: a program plays the policy and another one the judge. The runs are demo/gamed and demo/healthy,
    in the database that ADJUDGE_DATABASE_URL or ADJUDGE_DATA_DIR names; a service on the same database shows them at
    once. Runs that are already there are left as they are.
    """
