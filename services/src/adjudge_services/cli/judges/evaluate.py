"""`adjudge evaluate`: measure a judge on labelled data, with intervals, calibration and cost."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from adjudge_services.cli.groups import FromRequest
from adjudge_services.cli.options import (
    Asking,
    DataArgument,
    JudgeOption,
    MeasuredRows,
    Report,
)
from adjudge_services.cli.output import exit_with_error, file_name
from trainer_client.wire import VerdictRequest


def evaluate(
    data: DataArgument,
    *,
    judge: JudgeOption = None,
    rows: MeasuredRows,
    options: Annotated[Mapping[str, Any], FromRequest(VerdictRequest, part="judging")],
    sensitivity: Annotated[
        int, typer.Option(min=0, help="Judge N of the responses again with criteria and responses changed.")
    ] = 0,
    report: Report,
    asking: Asking,
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

    asked = judging_options(options)
    try:
        judge, dataset = judge_and_dataset(judge, data)
        labelled_by, examples = load_examples(dataset, rows)
        judgements = judge_dataset(
            judge,
            examples,
            asked,
            asking,
            sensitivity=sensitivity,
        )
        evaluation = measure(judgements)
    except (DatasetError, StartError, AdjudgeError, ValueError, OSError) as error:
        exit_with_error(str(error))
    known = next((one for one in judgements if one.fingerprint), judgements[0])
    heading = {
        "judge": known.model or judge,
        "data set": f"{file_name(Path(dataset))}{'' if rows.half == 'all' else f', half {rows.half}'}",
        "fingerprint": known.fingerprint,
        "asked": ", ".join(f"{name} {value}" for name, value in asked.items()) or "binary, one criterion a call",
        "labels by": labelled_by,
        "examples": f"{len(examples):,}",
        "measured": measured_now(),
    }
    write_report(
        heading,
        {"votes_asked": asked.get("votes", 1), **evaluation.as_json()},
        report,
        show=lambda: show(evaluation, heading),
        page=lambda: html_report(evaluation, heading),
    )
    if evaluation.overall.failed or evaluation.refused:
        raise typer.Exit(1)
