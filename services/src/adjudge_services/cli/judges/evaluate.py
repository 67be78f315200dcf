"""`adjudge evaluate`: measure a judge on labelled data, with intervals, calibration and cost."""

from pathlib import Path
from typing import Annotated

import typer

from adjudge_services.cli.options import (
    JUDGING,
    ColumnOption,
    ConcurrencyOption,
    CriteriaPerCallOption,
    DataArgument,
    DeadlineOption,
    ExampleLimitOption,
    FreshOption,
    HalfOption,
    HtmlOption,
    JsonOption,
    JudgeOption,
    JudgeServiceOption,
    LabelsOption,
    LongestOption,
    RationaleOption,
    TemplateOption,
    VotesOption,
)
from adjudge_services.cli.output import exit_with_error, file_name
from trainer_client.wire import JudgingProtocol


def evaluate(
    data: DataArgument,
    judge: JudgeOption = None,
    column: ColumnOption = None,
    labels: LabelsOption = None,
    half: HalfOption = "all",
    limit: ExampleLimitOption = None,
    longest: LongestOption = None,
    protocol: Annotated[
        JudgingProtocol | None, typer.Option(help="Judging protocol; by default binary.", rich_help_panel=JUDGING)
    ] = None,
    criteria_per_call: CriteriaPerCallOption = None,
    rationale: RationaleOption = False,
    votes: VotesOption = 1,
    template: TemplateOption = None,
    sensitivity: Annotated[
        int, typer.Option(min=0, help="Judge N of the responses again with criteria and responses changed.")
    ] = 0,
    html: HtmlOption = None,
    as_json: JsonOption = False,
    fresh: FreshOption = False,
    url: JudgeServiceOption = None,
    concurrency: ConcurrencyOption = 4,
    deadline_s: DeadlineOption = 3600.0,
) -> None:
    """Measure a judge on labelled data: is it good enough, and what does it cost?

    Reports agreement by task, kind and criterion, calibration, first wrong steps, pairs in both orders, votes,
    sensitivity and cost, each with its 95% interval. An interrupted evaluation continues where it stopped.
    """
    from adjudge_services.cli.judges.evaluate_work import (
        judge_and_dataset,
        judge_dataset,
        judging_options,
        load_examples,
        measured_now,
        show,
        write_report,
    )
    from adjudge_services.store import StartError
    from judge_server.evaluation.html import html_report
    from judge_server.evaluation.labelled import DatasetError
    from judge_server.evaluation.report import evaluate as measure
    from trainer_client import AdjudgeError

    options = judging_options(
        protocol=protocol,
        criteria_per_call=criteria_per_call,
        rationale=rationale or None,
        votes=votes if votes > 1 else None,
        template=template,
    )
    try:
        judge, dataset = judge_and_dataset(judge, data)
        labelled_by, examples = load_examples(dataset, half, limit, longest, labels, column)
        judgements = judge_dataset(
            judge,
            examples,
            options,
            url=url,
            sensitivity=sensitivity,
            fresh=fresh,
            concurrency=concurrency,
            deadline_s=deadline_s,
        )
        evaluation = measure(judgements)
    except (DatasetError, StartError, AdjudgeError, ValueError, OSError) as error:
        exit_with_error(str(error))
    known = next((one for one in judgements if one.fingerprint), judgements[0])
    heading = {
        "judge": known.model or judge,
        "data set": f"{file_name(Path(dataset))}{'' if half == 'all' else f', half {half}'}",
        "fingerprint": known.fingerprint,
        "asked": ", ".join(f"{name} {value}" for name, value in options.items()) or "binary, one criterion a call",
        "labels by": labelled_by,
        "examples": f"{len(examples):,}",
        "measured": measured_now(),
    }
    write_report(
        heading,
        {"votes_asked": votes, **evaluation.as_json()},
        as_json=as_json,
        show=lambda: show(evaluation, heading),
        html=html,
        page=lambda: html_report(evaluation, heading),
    )
    if evaluation.overall.failed or evaluation.refused:
        raise typer.Exit(1)
