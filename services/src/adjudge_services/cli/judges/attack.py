"""`adjudge attack`: how many false accepts attacks on a judge bring, with and without each defence."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from adjudge_services.cli.groups import FromRequest
from adjudge_services.cli.lazy import OPTIONS_ONLY
from adjudge_services.cli.options import Asking, JudgeOption, LongestOption, Report, Rows, UsageError
from adjudge_services.cli.output import err, out, print_line, print_metrics
from trainer_client.wire import VerdictRequest
from trainer_client.wire.judging import DEFAULT_DEFENCES

if not OPTIONS_ONLY:
    from adjudge_services.cli.judges.evaluate import (
        judge_contenders,
        judging_options,
        load_examples,
        measured_now,
        only_judge,
        write_report,
    )
    from adjudge_services.cli.scoring.score_file import read_rubric_argument
    from judge_server.evaluation.attacks.corpus import read_corpus, read_tasks
    from judge_server.evaluation.attacks.report import AttackReport, measure_attacks, plan_attacks, under_rubric
    from judge_server.evaluation.bakeoff import Contender
    from judge_server.evaluation.html import format_estimate
    from judge_server.evaluation.labelled import LabelledResponse
    from judge_server.evaluation.metrics import Estimate
    from trainer_client.wire import RubricContent

AS_SERVED = " and ".join(DEFAULT_DEFENCES)
"""The name of the first result: the defences of a request that says nothing about them."""


def attack(
    judges: Annotated[list[str] | None, typer.Argument(help="The judge, as for --judge.", hidden=True)] = None,
    *,
    judge: JudgeOption = None,
    rubric: Annotated[
        Path | None,
        typer.Option(help="Your own rubric, in a file; our responses are about other things.", exists=True),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Labelled data, as for `adjudge evaluate`; attack its responses.")
    ] = None,
    each_defence: Annotated[
        bool, typer.Option("--each-defence", help="Also measure without defences, with each alone, and with all.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Make at most N of the attacks, kinds in turn, chosen by a fixed hash.")
    ] = None,
    targets: Annotated[int, typer.Option(min=1, help="Responses on which each attack is made.")] = 1,
    longest: LongestOption = None,
    options: Annotated[
        Mapping[str, Any],
        FromRequest(VerdictRequest, part="judging", without=("protocol", "steps", "defences", "on_decoy")),
    ],
    most_added: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Largest share of false accepts that attacks may add; else exit with 1."),
    ] = None,
    report: Report,
    asking: Asking,
) -> None:
    """Attack a judge: how many false accepts do attacks add, and which defences help?

    Each attack is made on responses that fail criteria, and compared with the same responses unattacked. With
    --most-added, exits with 1 unless the 95% interval of what all attacks add lies below it. An interrupted run
    continues where it stopped.
    """
    judge = only_judge(judge, judges or (), "give one judge: adjudge attack --judge JUDGE")
    responses = attacked_responses(data, rubric, longest)
    plan = plan_attacks(responses, read_corpus(), limit, targets)
    contenders = defence_contenders(judge, options, each_defence=each_defence)
    answered = asyncio.run(judge_contenders(contenders, plan.examples, asking, share_verdicts=True))
    found = AttackReport(
        tuple([measure_attacks(plan, one.name, own) for one, own in zip(contenders, answered, strict=True)])
    )
    served = found.results[0]
    heading = {
        "judge": served.model or judge,
        "fingerprint": served.fingerprint,
        "responses": data or "ours",
        "rubric": "of the responses" if rubric is None else rubric.name,
        "attacks": f"{len({case.attack.id for case in plan.cases}):,} on {len(plan.targets):,} responses",
        "measured": measured_now(),
    }
    write_report(
        heading,
        found.as_json(),
        report,
        show=lambda: show_attacks(found, heading),
        page=lambda: found.page(heading),
    )
    if any(one.problem or one.refused or (one.kinds and one.overall.failed) for one in found.results):
        raise typer.Exit(1)
    if most_added is not None and not served.overall.added.high <= most_added:
        err.print(f"the attacks may add more than {most_added:g}: {served.overall.added.high:.3f}")
        raise typer.Exit(1)


def attacked_responses(data: str | None, rubric: Path | None, longest: int | None) -> list[LabelledResponse]:
    """Read the labelled responses: the user's or ours, under their own rubrics or under the user's."""
    if data is not None and rubric is not None:
        raise UsageError("--data brings the rubrics of its responses; leave out --rubric")
    if data is None:
        found = read_tasks()
    else:
        found = [one for one in load_examples(data, Rows(longest=longest))[1] if isinstance(one, LabelledResponse)]
    if rubric is None:
        return found
    content = RubricContent.model_validate(read_rubric_argument(str(rubric)))
    return under_rubric(found, content.criteria)


def defence_contenders(judge: str, asked: Mapping[str, Any], *, each_defence: bool) -> list[Contender]:
    """The sets of defences to compare."""
    options = judging_options(asked)
    sets: dict[str, dict[str, Any]] = {AS_SERVED: {}}
    if each_defence:
        sets |= {"fences alone": {"defences": []}}
        sets |= {name: {"defences": [name]} for name in (*DEFAULT_DEFENCES, "decoy")}
        sets |= {"all three": {"defences": [*DEFAULT_DEFENCES, "decoy"]}}
    return [Contender(name, judge, options | own) for name, own in sets.items()]


def _answer(added: Estimate) -> str:
    """Say in a sentence whether attacks add false accepts."""
    if added.low > 0:
        return "Attacks add false accepts:"
    if added.high < 0:
        return "Attacks take false accepts away:"
    return "Attacks add no false accepts that can be told from chance:"


def show_attacks(report: AttackReport, heading: Mapping[str, Any]) -> None:
    """Print what attacks add."""
    served = report.results[0]
    if served.kinds:
        added = served.overall.added
        out.print(f"[bold]{_answer(added)} {format_estimate(added)} on {served.overall.n} verdicts.[/]")
    out.print(f"{heading['judge']}: {heading['attacks']}; {heading['fingerprint'][:19]}…", markup=False)
    if served.kinds:
        out.print(f"Share of unmet criteria judged met, defences: {served.name}")
        table = Table("attacks", header_style="bold")
        for name in ("n", "before", "attacked", "added", "by program"):
            table.add_column(name, justify="right", no_wrap=True)
        for one in served.kinds:
            shares = (f"{one.unattacked.value:.2f}", f"{one.attacked.value:.2f}", format_estimate(one.added))
            failed = f", {one.failed:,} failed" if one.failed else ""
            label = f"{one.kind.replace('_', ' ')}{failed}"
            table.add_row(label, f"{one.n:,}", *shares, f"{one.uncalled.value:.2f}")
        out.print(table)
    if len(report.results) > 1:
        out.print("False accepts added, by defence:")
        print_metrics(
            {
                result.name: {one.kind.replace("_", " "): format_estimate(one.added) for one in result.kinds}
                | {
                    "met criteria judged met": format_estimate(result.honest),
                    "honest responses suspicious": format_estimate(result.honest_flagged),
                }
                for result in report.results
            }
        )
    else:
        accepted = format_estimate(served.honest)
        out.print(f"met criteria of unattacked responses judged met: {accepted}, n={served.honest_n}")
    for result in report.results:
        if result.problem:
            print_line(f"[red]{result.name}:[/] {escape(result.problem)}")
