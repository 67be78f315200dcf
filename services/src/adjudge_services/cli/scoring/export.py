"""`adjudge export`: a recorded run as preference pairs, SFT rows, best-of-n or verdicts, for TRL and others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from adjudge_services.cli.lazy import OPTIONS_ONLY
from adjudge_services.cli.options import (
    OUTPUT,
    FirstStepOption,
    LastStepOption,
    LedgerUrlOption,
    ProjectOption,
    RunArgument,
    output_option,
)
from adjudge_services.cli.output import err, exit_with_error, pluralize, show_progress
from trainer_client.wire.ledger import ExportKind, ExportSummary, PairsBy

if not OPTIONS_ONLY:
    from adjudge_services.cli.row_output import ColumnType, Row, RowOutput
    from adjudge_services.store import open_store
    from judge_server.evaluation.export import ExportQuery, left_out
    from judge_server.evaluation.export import export as exported
    from judge_server.scoring.recorded import digest_bytes
    from judge_server.scoring.rubrics import digest_of_reference
    from rubric_store import RubricStore, SQLLedger
    from trainer_client import AsyncClient


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which pairs or rows of a run are exported, and how they are written."""

    by: Annotated[PairsBy, typer.Option(help="Whether a pair differs in its reward or on a criterion.")] = "total"
    all_pairs: Annotated[
        bool, typer.Option("--all-pairs", help="Every pair of a prompt, instead of its best and its worst response.")
    ] = False
    min_margin: Annotated[float, typer.Option(min=0, help="Leave out pairs with a smaller margin.")] = 0.0
    min_reward: Annotated[
        float | None, typer.Option(help="Leave out responses with a smaller reward, for sft and best.")
    ] = None
    rubric: Annotated[str | None, typer.Option(help="Only responses under this rubric, such as name@3.")] = None
    criterion: Annotated[str | None, typer.Option(help="Only this criterion, for verdicts and pairs by criterion.")] = (
        None
    )
    first_step: FirstStepOption = None
    last_step: LastStepOption = None
    conversational: Annotated[
        bool, typer.Option("--conversational", help="Write messages, even where prompts and responses are texts.")
    ] = False


def export(
    run: RunArgument,
    *,
    kind: Annotated[
        ExportKind,
        typer.Option(
            "--as",
            help="Preference pairs; sft, all rewarded responses; best, the best response of each prompt; verdicts.",
        ),
    ] = "pairs",
    chosen: Chosen,
    output: Annotated[
        Path | None,
        output_option("Write rows here, as JSONL or Parquet; else JSONL is printed.", rich_help_panel=OUTPUT),
    ] = None,
    url: LedgerUrlOption = None,
    project: ProjectOption = "default",
) -> None:
    """Export a run as training data: preference pairs, SFT rows, best-of-n, or verdicts.

    Rows are in the dataset formats of TRL. Rewards are those that were answered; no judge is asked. Responses without a
    reward are in no pair, and are never the best of their prompt. Says what was left out, and exits with 1 if there is
    no row.
    """
    with RowOutput(output, columns_of, whole=True) as rows:
        summary = asyncio.run(_write(export_parts(url, project, run, kind, chosen), rows))
    err.print(f"{pluralize(summary.rows, 'row')} as {kind}, from {pluralize(summary.responses, 'response')}")
    reasons = left_out(summary)
    for reason in reasons:
        err.print(f"  left out: {reason}", markup=False)
    if not summary.rows:
        why = "the lines above say why" if reasons else "no response has a verdict on what --criterion names"
        exit_with_error(f"nothing of run {run!r} can be exported as {kind}; {why}")


async def export_parts(
    url: str | None, project: str, run: str, kind: ExportKind, chosen: Chosen
) -> AsyncGenerator[Row | ExportSummary, None]:
    """Export a run at a service, or from the database."""
    if url is not None:
        async with AsyncClient(url) as client, aclosing(client.export(run, kind, **asdict(chosen))) as events:
            async for event in events:
                if (found := event.row or event.summary) is not None:
                    yield found
        return
    fields = asdict(chosen)
    fields |= {"first": fields.pop("first_step"), "last": fields.pop("last_step")}
    if chosen.rubric is not None:
        async with open_store(RubricStore) as rubrics:
            fields["rubric"] = digest_bytes(await digest_of_reference(rubrics, project, chosen.rubric))
    query = ExportQuery(project, run, kind, **fields)
    async with open_store(SQLLedger) as ledger, aclosing(exported(ledger, ledger, query)) as parts:
        async for one in parts:
            yield one


async def _write(parts: AsyncGenerator[Row | ExportSummary, None], output: RowOutput) -> ExportSummary:
    """Write the rows of an export, and return its summary."""
    with show_progress() as progress:
        task = progress.add_task("exporting rows", total=None)
        async with aclosing(parts):
            async for part in parts:
                if isinstance(part, ExportSummary):
                    summary = part
                    continue
                output.write(part)
                progress.advance(task)
    return summary


_TEXTS = ("prompt", "completion", "chosen", "rejected", "response")
_TYPES: Mapping[str, ColumnType] = {
    **dict.fromkeys(("margin", "chosen_reward", "rejected_reward", "reward", "score", "probability"), "number"),
    **dict.fromkeys(("step", "best_of"), "integer"),
    "label": "flag",
}


def columns_of(first: Row) -> dict[str, ColumnType]:
    """Return the types of the columns of an export, by its first row: all rows have messages, or all have texts."""
    conversational = isinstance(first["prompt"], list)
    texts: Mapping[str, ColumnType] = dict.fromkeys(_TEXTS, "messages" if conversational else "text")
    return {name: _TYPES.get(name, texts.get(name, "text")) for name in first}
