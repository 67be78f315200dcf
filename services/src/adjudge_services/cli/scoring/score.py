"""`adjudge score` and `adjudge filter-easy`: score a JSONL file of groups, and drop the questions that are easy.

`filter-easy` drops questions that the base policy already answers well (RGR-GRPO, appendix A.1).
"""

import asyncio
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from adjudge_services.cli.groups import FromRequest
from adjudge_services.cli.options import (
    OUTPUT,
    ColumnOption,
    RubricOption,
    Service,
    copy_input,
    input_argument,
)
from adjudge_services.cli.output import err, exit_with_error, file_name, out, print_refused_lines
from trainer_client.wire import (
    RewardOptions,
    RewardRequest,
)


def score(
    file: Annotated[
        str,
        typer.Argument(
            help="A group per row (prompt, responses, …), as JSONL, CSV or Parquet: a path, a URL such as s3://…, or - "
            "for JSONL on standard input.",
            callback=copy_input,
        ),
    ],
    *,
    rubric: RubricOption = None,
    options: Annotated[Mapping[str, Any], FromRequest(RewardRequest, without=("judge", "deadline_s"))],
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
    service: Service,
) -> None:
    """Score every response in a file.

    Prints a table on a terminal, JSONL otherwise. Rows are read, judged and written in order, a few at a time, so that
    a file can be larger than the memory; only a table keeps them all. Exits with 1 if any response was not scored or
    any line was rejected, and reports how many and why.
    """
    from adjudge_services.cli.judge_choice import choose_judge
    from adjudge_services.cli.scoring.score_file import ScoredRows, read_rubric_argument
    from adjudge_services.cli.scoring.score_work import position_bias, rewards_table, score_rows, summarise
    from adjudge_services.settings import Settings
    from adjudge_services.store import StartError
    from judge_server.row_files import RowFile, parse_columns
    from rubric_store import FormatError
    from trainer_client import AdjudgeError

    show_table = sys.stdout.isatty() if table is None else table
    settings = Settings()
    started = time.monotonic()
    try:
        chosen = choose_judge(service.judge, service.url, settings)
        rows = RowFile(file, limit, columns=parse_columns(column))
        request: dict[str, object] = {
            "mode": RewardOptions().mode,
            **options,
            "rubric": read_rubric_argument(rubric) if rubric else None,
            "deadline_s": service.deadline_s,
            "judge": chosen.name,
        }
        with ScoredRows(output, print_rows=output is None and not show_table, keep=show_table) as results:
            asyncio.run(score_rows(chosen, run, rows, request, service.concurrency, results))
    except (StartError, FormatError, AdjudgeError, OSError, ValueError) as error:
        exit_with_error(str(error))
    if not results.lines:
        exit_with_error(f"{file_name(Path(file))} has no lines")
    if results.unreachable is not None and not results.responses:
        exit_with_error(str(results.unreachable))
    if show_table and results.kept:
        title = " · ".join(part for part in (Path(file).name, str(request["mode"]), results.judge) if part)
        out.print(f"[bold]{title}[/]", highlight=False, soft_wrap=True)
        out.print(rewards_table(results.kept))
        if (bias := position_bias(results.kept)) is not None:
            out.print(bias, highlight=False, soft_wrap=True)
    summarise(results, Path(file), time.monotonic() - started)
    if results.unscored or results.refused_lines:
        raise typer.Exit(1)


def filter_easy(
    file: Annotated[
        Path,
        input_argument("JSONL with a question per line: prompt, reference_answer, and responses of the base policy."),
    ],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="File for the kept lines, unchanged.")],
    easy_threshold: Annotated[
        float,
        typer.Option(min=0, max=1, help="Mean score in [0, 1] from which a question is easy; 0.75 is (7.75 - 1) / 9."),
    ] = 0.75,
    reference_characters: Annotated[
        int, typer.Option(min=1, help="Maximum length of a reference answer, in characters; longer ones are dropped.")
    ] = 8_000,
    scores: Annotated[Path | None, typer.Option(help="Write each line's score and outcome here as JSONL.")] = None,
    service: Service,
) -> None:
    """Rate the base policy's responses on a Likert scale, and keep the questions that it does not answer well.

    Lines with an overlong reference answer are dropped without rating. A line with a response that could not be rated
    is kept. Exits with 1 if any line could not be read or rated.
    """
    from adjudge_services.cli.judge_choice import choose_judge
    from adjudge_services.cli.scoring.score_file import BadLine, GroupLine, ScoredFile, read_groups
    from adjudge_services.cli.scoring.score_work import (
        EASY,
        KEPT,
        LONG,
        UNRATED,
        classify_lines,
        rate_lines,
        write_kept,
    )
    from adjudge_services.settings import Settings
    from adjudge_services.store import StartError
    from trainer_client import AdjudgeError

    if output.resolve() == file.resolve():
        exit_with_error("--output would overwrite the input; name another file", code=2)
    read = list(read_groups(file))
    refused = {line.number: line.reason for line in read if isinstance(line, BadLine)}
    lines = [line for line in read if isinstance(line, GroupLine)]
    rated = [line for line in lines if len(line.group.reference_answer or "") <= reference_characters]
    try:
        chosen = choose_judge(service.judge, service.url, Settings())
        options = {"mode": "likert", "deadline_s": service.deadline_s, "judge": chosen.name}
        scored = asyncio.run(rate_lines(chosen, rated, options, service.concurrency)) if rated else ScoredFile()
        filtered = classify_lines(lines, rated, scored, easy_threshold)
        write_kept(file, output, scores, filtered)
    except (StartError, AdjudgeError, OSError, ValueError) as error:
        exit_with_error(str(error))
    print_refused_lines(file, refused | scored.refused)
    counts = {outcome: sum(one.outcome == outcome for one in filtered) for outcome in (KEPT, UNRATED, EASY, LONG)}
    out.print(
        f"kept {counts[KEPT] + counts[UNRATED]} of {len(lines)} questions in {escape(str(output))}; dropped "
        f"{counts[EASY]} easy ones and {counts[LONG]} with a long reference; {counts[UNRATED]} kept ones are unrated",
        highlight=False,
        soft_wrap=True,
    )
    if counts[UNRATED] or refused:
        err.print("[bold red]some lines could not be read or rated[/]", highlight=False)
        raise typer.Exit(1)
