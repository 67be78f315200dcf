"""The responses and contenders of `adjudge attack`, and its tables."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from adjudge_services.cli.judges.evaluate_work import judging_options, load_examples
from adjudge_services.cli.options import Rows
from adjudge_services.cli.output import out, print_metrics
from adjudge_services.cli.scoring.score_file import read_rubric_argument
from trainer_client.wire import RubricContent
from trainer_client.wire.judging import DEFAULT_DEFENCES

if TYPE_CHECKING:  # numpy, which takes long to import
    from judge_server.attacks.report import AttackReport
    from judge_server.evaluation.bakeoff import Contender
    from judge_server.evaluation.labelled import LabelledResponse
    from judge_server.evaluation.metrics import Estimate


AS_SERVED = " and ".join(DEFAULT_DEFENCES)
"""The name of the first result: the defences of a request that says nothing about them."""


def attacked_responses(data: str | None, rubric: Path | None, longest: int | None) -> "list[LabelledResponse]":
    """Read the labelled responses: the user's or ours, under their own rubrics or under the user's."""
    from judge_server.attacks.corpus import read_tasks
    from judge_server.attacks.report import under_rubric
    from judge_server.evaluation.labelled import LabelledResponse

    if data is not None and rubric is not None:
        raise ValueError("--data brings the rubrics of its responses; leave out --rubric")
    if data is None:
        found = read_tasks()
    else:
        found = [one for one in load_examples(data, Rows(longest=longest))[1] if isinstance(one, LabelledResponse)]
    if rubric is None:
        return found
    content = RubricContent.model_validate(read_rubric_argument(str(rubric)))
    return under_rubric(found, content.criteria)


def defence_contenders(judge: str, asked: Mapping[str, Any], *, each_defence: bool) -> "list[Contender]":
    """The sets of defences to compare."""
    from judge_server.evaluation.bakeoff import Contender

    options = judging_options(asked)
    sets: dict[str, dict[str, Any]] = {AS_SERVED: {}}
    if each_defence:
        sets |= {"fences alone": {"defences": []}}
        sets |= {name: {"defences": [name]} for name in (*DEFAULT_DEFENCES, "decoy")}
        sets |= {"all three": {"defences": [*DEFAULT_DEFENCES, "decoy"]}}
    return [Contender(name, judge, options | own) for name, own in sets.items()]


def _answer(added: "Estimate") -> str:
    """Say in a sentence whether attacks add false accepts."""
    if added.low > 0:
        return "Attacks add false accepts:"
    if added.high < 0:
        return "Attacks take false accepts away:"
    return "Attacks add no false accepts that can be told from chance:"


def show_attacks(report: "AttackReport", heading: Mapping[str, Any]) -> None:
    """Print what attacks add."""
    from judge_server.evaluation.html import format_estimate

    served = report.results[0]
    if served.kinds:
        added = served.overall.added
        out.print(
            f"[bold]{_answer(added)} {format_estimate(added)} on {served.overall.n} verdicts.[/]", highlight=False
        )
    out.print(f"{heading['judge']}: {heading['attacks']}; {heading['fingerprint'][:19]}…", highlight=False)
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
        out.print(f"met criteria of unattacked responses judged met: {accepted}, n={served.honest_n}", highlight=False)
    for result in report.results:
        if result.problem:
            out.print(f"[red]{result.name}:[/] {result.problem}", highlight=False, soft_wrap=True)
