"""Options that several commands share, and the choices that options offer.

The choices repeat those of the API. Importing them from there would load its messages before any help is shown; a test
compares them.
"""

from pathlib import Path
from typing import Annotated, Literal

import typer

JudgingProtocol = Literal["binary", "stepwise", "graded", "checklist", "likert"]
ReasoningPart = Literal["strip", "keep", "only"]
RewardMode = Literal[
    "weighted_mean",
    "factual_override",
    "points",
    "clipped_points",
    "absolute_points",
    "partial_credit",
    "stepwise",
    "graded_mean",
    "likert",
    "outcome",
    "gate",
]
FailurePolicy = Literal["null", "error", "zero", "zero_unparseable", "skip"]
UncertainPolicy = Literal["null", "error", "zero", "skip"]
VerdictUse = Literal["verdict", "probability"]

DEFAULT_PROJECT = "default"

UrlOption = Annotated[
    str | None,
    typer.Option(help="Address of a running service; by default one is started in this process.", envvar="ADJUDGE_URL"),
]
EngineOption = Annotated[str | None, typer.Option(help="Engine URL, if the service is started in this process.")]
ConcurrencyOption = Annotated[int, typer.Option(min=1, help="Responses to judge at a time.")]
DeadlineOption = Annotated[float, typer.Option(help="Seconds that one response may take, including its wait.")]

LedgerUrlOption = Annotated[
    str | None,
    typer.Option(help="Address of a running service; by default the database is read.", envvar="ADJUDGE_URL"),
]
ProjectOption = Annotated[
    str, typer.Option(help="The project, if the database is read; a service uses the key's project.")
]

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

CriteriaPerCallOption = Annotated[
    str | None, typer.Option(help="Criteria per judge call: a number, or all.", metavar="N|all")
]
RubricOption = Annotated[
    str | None, typer.Option(help="A reference (name@3) or a rubric file, for lines without a rubric.")
]
ModeOption = Annotated[RewardMode, typer.Option(help="How verdicts become a reward.")]

GroupsArgument = Annotated[
    Path, typer.Argument(help="JSONL with a group per line: prompt, responses, …", exists=True, dir_okay=False)
]
