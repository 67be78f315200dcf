"""`adjudge measure`: measure responses from a file or a run, as tables, JSON and plots.

Plots need matplotlib, an extra.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from adjudge_services.cli.groups import FromRequest
from adjudge_services.cli.options import (
    OUTPUT,
    FiguresOption,
    Service,
    input_argument,
)
from adjudge_services.cli.output import err, exit_with_error, file_name, out, print_refused_lines
from judge_server.measuring.trajectories import LoopLimits
from rubric_store.tenants.rows import DEFAULT_PROJECT
from trainer_client.wire import RewardOptions, RewardRequest

_LIMITS = LoopLimits()
_OF_RUN = "A recorded run"
_LOOPING = "Looping"


@dataclass(frozen=True, slots=True)
class Recorded:
    """What is measured of a run in the ledger."""

    run: Annotated[
        str | None, typer.Option(help="Measure this run in the ledger instead of a file.", rich_help_panel=_OF_RUN)
    ] = None
    step: Annotated[
        int | None, typer.Option(min=0, help="With --run: only this training step.", rich_help_panel=_OF_RUN)
    ] = None
    texts: Annotated[
        bool,
        typer.Option(
            "--texts",
            help="With --run: also measure looping and diversity, from the texts in the ledger.",
            rich_help_panel=_OF_RUN,
        ),
    ] = False
    project: Annotated[
        str,
        typer.Option(
            help="With --run: the project, if the database is read; a service uses the key's project.",
            rich_help_panel=_OF_RUN,
        ),
    ] = DEFAULT_PROJECT


@dataclass(frozen=True, slots=True)
class Looping:
    """From when on a text counts as looping."""

    max_corrections: Annotated[
        int,
        typer.Option(
            min=0, help="A text with more self-correction phrases counts as looping.", rich_help_panel=_LOOPING
        ),
    ] = _LIMITS.max_corrections
    max_duplicates: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="A text with a larger share of repeated paragraphs counts as looping.",
            rich_help_panel=_LOOPING,
        ),
    ] = _LIMITS.max_duplicate_share
    min_paragraph_words: Annotated[
        int, typer.Option(min=1, help="Words; shorter paragraphs are not compared.", rich_help_panel=_LOOPING)
    ] = _LIMITS.min_paragraph_words


def measure(
    file: Annotated[Path | None, input_argument("JSONL with a problem per line: prompt, responses, …")] = None,
    *,
    recorded: Recorded,
    against: Annotated[
        str | None,
        typer.Option(help="Measure the win rate over another file, or with --run over another run.", metavar="OTHER"),
    ] = None,
    question: Annotated[
        str | None, typer.Option(help="With --against: the question to ask the judge about a pair.")
    ] = None,
    rubric: Annotated[
        str | None, typer.Option(help="A reference (name@3) or a rubric file for rewards, for lines without a rubric.")
    ] = None,
    rules: Annotated[Mapping[str, Any], FromRequest(RewardRequest, only=("mode",), defaults=False)],
    steps: Annotated[bool, typer.Option("--steps", help="Judge the correctness of each step.")] = False,
    samples: Annotated[
        str, typer.Option("--k", help="Values of k for pass@k and best-of-k, separated by commas.", metavar="K,…")
    ] = "1,2,4,8",
    embeddings: Annotated[
        str | None,
        typer.Option(
            help="Measure semantic distance with an embedding server: openai+http://HOST:PORT/v1?model=NAME.",
            metavar="URL",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Measure only the first N lines.")] = None,
    looping: Looping,
    output: FiguresOption = None,
    plot: Annotated[
        Path | None, typer.Option(help="Plot the figures here, as SVG or PNG.", rich_help_panel=OUTPUT)
    ] = None,
    service: Service,
) -> None:
    """Measure responses: accuracy, pass@k, looping and diversity; with --rubric or --steps also a judge's verdicts.

    With --run, measure the recorded verdicts and rewards of a run, in total and by training step, without a judge. With
    --against, the judge compares the responses with those of another file or run, in both orders.

    Figures without data are left out. Intervals are 95% intervals over problems: Wilson's for shares, bootstrap for
    other figures. Exits with 1 if any line could not be read or judged.
    """
    from adjudge_services.cli.judge_choice import choose_judge
    from adjudge_services.cli.measuring.measure_ledger import RunFilter
    from adjudge_services.cli.measuring.measure_work import (
        compare_win_rates,
        embedding_endpoint,
        figures_table,
        file_sides,
        measure_file,
        measure_run,
        read_numbers,
        reject_options,
        save_figures,
        show_win_rates,
    )
    from adjudge_services.cli.scoring.score_file import BadLine, MeasuredLine, read_measured, read_rubric_argument
    from adjudge_services.settings import Settings
    from adjudge_services.store import StartError
    from judge_server.measuring.trajectories import count_alignment, estimate_measures
    from rubric_store import FormatError
    from trainer_client import AdjudgeError

    mode = rules.get("mode")
    run, step, texts, project = recorded.run, recorded.step, recorded.texts, recorded.project
    if (file is None) == (run is None):
        exit_with_error("give either a file of responses or --run NAME")
    try:
        ks = read_numbers(samples)
    except ValueError as error:
        exit_with_error(str(error))
    limits = LoopLimits(looping.max_corrections, looping.max_duplicates, looping.min_paragraph_words)
    settings = Settings()
    endpoint = embedding_endpoint(embeddings, settings)
    if against is not None:
        reject_options(
            {"--mode": mode, "--steps": steps, "--embeddings": embeddings},
            "--against measures only win rates",
        )
        reject_options({"--limit": run is not None and limit}, "a run is compared as a whole, or at one --step")
        reject_options({"--step": file is not None and step is not None}, "a file has no training steps")
        sides = file_sides(file, Path(against), limit) if file else None
        try:
            shared = read_rubric_argument(rubric) if rubric else None
            wanted = RunFilter(run or "", project, step, texts=True)
            asked = {
                "rubric": shared,
                "question": question,
                "concurrency": service.concurrency,
                "deadline_s": service.deadline_s,
            }
            compared = asyncio.run(
                compare_win_rates(
                    service.url,
                    choose_judge(service.judge, service.url, settings),
                    sides or (wanted, wanted._replace(run=against)),
                    asked,
                )
            )
        except (StartError, FormatError, AdjudgeError, ValueError, OSError) as error:
            exit_with_error(str(error))
        show_win_rates(compared, output, plot, f"{file.name if file else run} against {against}")
        return
    reject_options({"--question": question}, "it needs --against")
    if run is not None:
        judging = {
            "--rubric": rubric,
            "--mode": mode,
            "--steps": steps,
            "--limit": limit,
            "--judge": service.judge,
        }
        reject_options(judging, "--run measures recorded verdicts, and the ledger keeps no ground truth to judge again")
        reject_options({"--embeddings": not texts and embeddings}, "it needs a run's texts; add --texts")
        measure_run(
            RunFilter(run, project, step, texts), service.url, ks, limits, endpoint, service.concurrency, output, plot
        )
        return
    assert file is not None
    reject_options({"--step": step is not None, "--texts": texts}, "they apply to --run")
    lines = list(read_measured(file, limit))
    refused = {line.number: line.reason for line in lines if isinstance(line, BadLine)}
    groups = [line for line in lines if isinstance(line, MeasuredLine)]
    if not groups:
        print_refused_lines(file, refused)
        exit_with_error(f"{file_name(file)} has no lines that can be measured")
    try:
        shared = read_rubric_argument(rubric) if rubric else None
        how: dict[str, Any] = {
            "mode": mode or RewardOptions().mode,
            "steps": steps,
            "concurrency": service.concurrency,
        }
        how |= {"deadline_s": service.deadline_s, "limits": limits, "embeddings": endpoint}
        problems, failed = asyncio.run(
            measure_file(choose_judge(service.judge, service.url, settings), groups, shared, how)
        )
        found = estimate_measures(problems, ks=ks)
    except (StartError, FormatError, AdjudgeError, ValueError) as error:
        exit_with_error(str(error))
    counts = count_alignment(problems) if steps else None
    save_figures(found, {"alignment": counts}, output, plot, file.name)
    out.print(figures_table(found, f"{file.name}: {len(problems)} problems"))
    if counts is not None:
        out.print(", ".join(f"{count} {name}" for name, count in counts.items()), highlight=False, soft_wrap=True)
    print_refused_lines(file, refused | failed)
    if refused or failed:
        err.print("[bold red]some lines could not be read or judged[/]", highlight=False)
        raise typer.Exit(1)
