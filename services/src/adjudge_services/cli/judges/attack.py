"""`adjudge attack`: how many false accepts attacks on a judge bring, with and without each defence."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from adjudge_services.cli.groups import FromRequest
from adjudge_services.cli.options import (
    Asking,
    JudgeOption,
    LongestOption,
    Report,
)
from adjudge_services.cli.output import err, exit_with_error
from trainer_client.wire import VerdictRequest


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
    from adjudge_services.cli.judges.attack_work import attacked_responses, defence_contenders, show_attacks
    from adjudge_services.cli.judges.evaluate_work import judge_contenders, measured_now, only_judge, write_report
    from adjudge_services.store import StartError
    from judge_server.attacks.corpus import read_corpus
    from judge_server.attacks.report import AttackReport, measure_attacks, plan_attacks
    from judge_server.evaluation.labelled import DatasetError
    from rubric_store import FormatError
    from trainer_client import AdjudgeError

    try:
        judge = only_judge(judge, judges or (), "give one judge: adjudge attack --judge JUDGE")
        responses = attacked_responses(data, rubric, longest)
        plan = plan_attacks(responses, read_corpus(), limit, targets)
    except (DatasetError, FormatError, StartError, AdjudgeError, ValueError, OSError) as error:
        exit_with_error(str(error))
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
        err.print(f"the attacks may add more than {most_added:g}: {served.overall.added.high:.3f}", highlight=False)
        raise typer.Exit(1)
