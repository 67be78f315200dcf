"""`adjudge filter-easy`: drop questions that the base policy already answers well (RGR-GRPO, appendix A.1)."""

import asyncio
import json
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.markup import escape

from adjudge_services.cli.output import err, exit_with_error, out, print_refused_lines
from adjudge_services.cli.score_file import (
    BadLine,
    ConcurrencyOption,
    DeadlineOption,
    EngineOption,
    GroupLine,
    ScoredFile,
    UrlOption,
    open_client,
    read_groups,
    score_groups,
)
from adjudge_services.settings import Settings
from adjudge_services.wiring import StartError
from trainer_client import AdjudgeError

KEPT, EASY, LONG, UNRATED = "kept", "easy", "long reference", "unrated"


class RatedLine(NamedTuple):
    """The outcome of a line, and the mean Likert score of its responses in [0, 1]; None if any has no score."""

    number: int
    outcome: str
    score: float | None


def filter_easy(
    file: Annotated[
        Path,
        typer.Argument(
            help="JSONL with a question per line: prompt, reference_answer, and responses of the base policy.",
            exists=True,
            dir_okay=False,
        ),
    ],
    output: Annotated[Path, typer.Option("--out", help="File for the kept lines, unchanged.")],
    easy_threshold: Annotated[
        float,
        typer.Option(min=0, max=1, help="Mean score in [0, 1] from which a question is easy; 0.75 is (7.75 - 1) / 9."),
    ] = 0.75,
    reference_characters: Annotated[
        int, typer.Option(min=1, help="Maximum length of a reference answer, in characters; longer ones are dropped.")
    ] = 8_000,
    scores: Annotated[Path | None, typer.Option(help="Write each line's score and outcome here as JSONL.")] = None,
    url: UrlOption = None,
    engine: EngineOption = None,
    concurrency: ConcurrencyOption = 8,
    deadline_s: DeadlineOption = 3600.0,
) -> None:
    """Rate the base policy's responses on a Likert scale, and keep the questions that it does not answer well.

    Lines with an overlong reference answer are dropped without rating. A line with a response that could not be rated
    is kept. Exits with 1 if any line could not be read or rated.
    """
    if output.resolve() == file.resolve():
        exit_with_error("--out would overwrite the input; name another file", code=2)
    read = list(read_groups(file))
    refused = {line.number: line.reason for line in read if isinstance(line, BadLine)}
    lines = [line for line in read if isinstance(line, GroupLine)]
    rated = [line for line in lines if len(line.group.reference_answer or "") <= reference_characters]
    settings = Settings(engine_url=engine) if engine else Settings()
    options = {"mode": "likert", "deadline_s": deadline_s}
    try:
        scored = asyncio.run(_rate(url, settings, rated, options, concurrency)) if rated else ScoredFile()
        filtered = _classify_lines(lines, rated, scored, easy_threshold)
        _write(file, output, scores, filtered)
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


async def _rate(
    url: str | None, settings: Settings, lines: list[GroupLine], options: dict[str, object], concurrency: int
) -> ScoredFile:
    async with open_client(url, settings) as client:
        return await score_groups(client, lines, options, concurrency=concurrency, advance=lambda: None)


def _classify_lines(
    lines: list[GroupLine], rated: list[GroupLine], scored: ScoredFile, easy_threshold: float
) -> list[RatedLine]:
    answered = iter(scored.groups)
    means: dict[int, float | None] = {}
    for line in rated:
        group = None if line.number in scored.refused else next(answered)
        rewards = [] if group is None else [response.reward for response in group.responses]
        known = [reward for reward in rewards if reward is not None]
        means[line.number] = sum(known) / len(known) if known and len(known) == len(rewards) else None
    return [
        RatedLine(
            line.number, _classify(line.number in means, means.get(line.number), easy_threshold), means.get(line.number)
        )
        for line in lines
    ]


def _classify(asked: bool, score: float | None, easy_threshold: float) -> str:
    if not asked:
        return LONG
    if score is None:
        return UNRATED
    return EASY if score >= easy_threshold else KEPT


def _write(file: Path, output: Path, scores: Path | None, filtered: list[RatedLine]) -> None:
    kept = {one.number for one in filtered if one.outcome in (KEPT, UNRATED)}
    lines = file.read_bytes().split(b"\n")
    output.write_bytes(b"".join(line + b"\n" for number, line in enumerate(lines, 1) if number in kept))
    if scores is not None:
        rows = [{"line": one.number, "score": one.score, "outcome": one.outcome} for one in filtered]
        scores.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
