"""`adjudge rows`: the rows a trainer reads, from the rubrics that a run of `adjudge generate` left."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from adjudge_services.cli.output import exit_with_error, out
from judge_server.generation.rows import write_rows


def rows(
    run: Annotated[
        Path, typer.Argument(help="The --out folder of an `adjudge generate`.", exists=True, file_okay=False)
    ],
    output: Annotated[Path, typer.Option("--out", help="A folder for train, validation and test.jsonl.")],
    inline: Annotated[
        bool, typer.Option("--inline", help="Write the criteria into the rows; else the published reference.")
    ] = False,
    messages: Annotated[bool, typer.Option("--messages", help="Write prompts as chat messages; else as text.")] = False,
) -> None:
    """Write a run's splits as rows for a trainer: prompt, rubric, grounding, ground_truth and reference_answer."""
    try:
        counts = write_rows(run, output, inline=inline, messages=messages)
    except (OSError, ValueError) as error:
        exit_with_error(str(error))
    summary = ", ".join(f"{count} {split}" for split, count in counts.items())
    out.print(f"{summary} rows in {escape(str(output))}", highlight=False, soft_wrap=True)
