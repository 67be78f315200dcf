"""`adjudge rubrics show`, `list`, `search`, `history` and `diff`: read the store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from adjudge_services.cli.lazy import OPTIONS_ONLY
from adjudge_services.cli.options import JsonOption, RubricNameArgument, UsageError
from adjudge_services.cli.output import out, print_json, print_line

if not OPTIONS_ONLY:
    from pydantic import JsonValue

    from adjudge_services.cli.rubrics.files import summaries, with_store
    from adjudge_services.cli.rubrics.generate import validity_line
    from judge_server.generation.validity import published_validity, published_warnings
    from judge_server.scoring.rubrics import PROJECT_ID, diff_words, difference, find_rubric
    from judge_server.scoring.rubrics import history as history_of
    from rubric_store import RubricStore
    from rubric_store.rubrics.rows import RubricValidation
    from trainer_client.wire import Criterion, Lineage, RubricDiff, RubricHistory, RubricSummary, RubricVersion

LimitOption = Annotated[int, typer.Option("--limit", min=1, help="Maximum number to show.")]
TagOption = Annotated[str | None, typer.Option(help="Only rubrics that have this tag.")]

_MAX_LINE_LENGTH = 96
_DIGEST = len("sha256:") + 12
_MIN_SIMILARITY = 0.4


def show(
    reference: Annotated[str, typer.Argument(help="name, name@3, name@alias or sha256:…")], as_json: JsonOption = False
) -> None:
    """Show a version: its origin, whether it is in use, and its criteria."""
    version, pointing_aliases, kept = with_store(partial(read_version, reference))
    if as_json:
        print_json({**version.model_dump(mode="json"), "aliases": pointing_aliases})
        return
    published = not kept and published_validity(version) is not None
    lines = list(
        describe_version(version, pointing_aliases, validity_line(version, kept), validity_in_metadata=published)
    )
    width = max(len(label) for label, _ in lines)
    for label, text in lines:
        print_line(f"[dim]{escape(label):<{width}}[/] {escape(text)}")
    table = Table("id", "kind", "weight", "criterion")
    table.columns[2].justify = "right"
    for criterion in version.criteria:
        table.add_row(criterion.id, criterion.kind, f"{criterion.weight:g}", escape(criterion.description))
    out.print(table)


def list_rubrics(
    prefix: Annotated[str, typer.Argument(help="Only rubrics whose name begins with this.")] = "",
    tag: TagOption = None,
    max_count: LimitOption = 1_000,
    as_json: JsonOption = False,
) -> None:
    """List rubrics by name, each with its current version."""
    print_summaries(
        *with_store(partial(summaries, prefix=prefix, tag=tag, max_count=max_count)), max_count, as_json=as_json
    )


def search(
    words: Annotated[list[str], typer.Argument(help="Words, or beginnings of words, that the criteria must contain.")],
    prefix: Annotated[str, typer.Option(help="Only rubrics whose name begins with this.")] = "",
    tag: TagOption = None,
    max_count: LimitOption = 1_000,
    as_json: JsonOption = False,
) -> None:
    """List the rubrics whose criteria contain all of the given words, ignoring case."""
    print_summaries(
        *with_store(partial(summaries, prefix=prefix, tag=tag, text=" ".join(words), max_count=max_count)),
        max_count,
        as_json=as_json,
    )


def history(
    name: RubricNameArgument,
    max_count: LimitOption = 100,
    as_json: JsonOption = False,
) -> None:
    """List the versions of a rubric, newest first."""
    found, more = with_store(partial(read_history, name, max_count))
    if as_json:
        print_json([version.model_dump(mode="json") for version in found.versions])
        return
    table = Table("version", "from", "criteria", "published", "made by", "aliases", "retired")
    for column in table.columns[:3]:
        column.justify = "right"
    for version in found.versions:
        table.add_row(
            str(version.version),
            "" if version.parent is None else str(version.parent),
            str(version.criteria_count),
            f"{version.created_at:%Y-%m-%d %H:%M}",
            escape(maker_name(version.lineage)),
            ", ".join(version.aliases),
            escape(version.retirement.reason) if version.retirement else "",
            style="dim" if version.retirement else "",
        )
    out.print(table)
    if found.tags:
        out.print(f"[dim]tags[/] {', '.join(found.tags)}")
    if more:
        out.print(f"the newest {max_count}; show more with --limit", style="dim")


def diff(
    versions: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME@FROM [NAME@TO]",
            help="Two versions by number or alias, such as team/math@1 team/math@2; by default the second is the "
            "latest. The name can also stand before them: team/math 1 2.",
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Show which criteria were added, removed, reworded, reweighted, otherwise changed or moved."""
    name, before, after = two_versions(versions)
    found = with_store(lambda store: difference(store, PROJECT_ID, name, before, after))
    if as_json:
        typer.echo(found.model_dump_json(indent=2))
        return
    out.print(Text(f"{name}@{found.before.version} → {name}@{found.after.version}", style="bold"))
    for line in diff_lines(found):
        print_line(line)
    out.print(Text(diff_totals(found), style="dim"))


def describe_version(
    version: RubricVersion, aliases: Sequence[str], validity: str | None, *, validity_in_metadata: bool
) -> Iterator[tuple[str, str]]:
    """Labels and lines that describe a version: its identity, retirement, aliases, lineage, validity and metadata.

    `validity_in_metadata` says whether `validity` was taken from the metadata, which then does not repeat it.
    """
    yield "rubric", version.reference
    yield "digest", version.digest
    parent = "" if version.parent is None else f", from version {version.parent}"
    yield "published", f"{version.created_at:%Y-%m-%d %H:%M} UTC{parent}"
    if version.retirement:
        yield "retired", f"{version.retirement.at:%Y-%m-%d %H:%M} UTC: {version.retirement.reason}"
    if aliases:
        yield "aliases", ", ".join(aliases)
    if version.lineage:
        yield from _lineage(version.lineage)
    if validity:
        yield "validity", validity
    for field, value in version.metadata.items():
        if field == "flags" and (warnings := published_warnings(version.metadata)):
            yield from (("warning", f"{one.flag}: {one.problem}; {one.advice}") for one in warnings)
        elif field != "validity":
            yield field.replace("_", " "), _short(value)
        elif not validity_in_metadata:
            yield "validity when published" if validity else "validity", _short(value)


def _lineage(lineage: Lineage) -> Iterator[tuple[str, str]]:
    made = " with ".join(part for part in (lineage.generator, lineage.model) if part)
    if made or lineage.author:
        yield "made by", ", ".join(part for part in (lineage.author, made) if part)
    if lineage.parameters:
        yield "parameters", ", ".join(f"{name}={_short(value)}" for name, value in lineage.parameters.items())
    for label, digest in (("templates", lineage.template_digest), ("source", lineage.source_digest)):
        if digest:
            yield label, f"{digest[:_DIGEST]}…" if len(digest) > _DIGEST else digest
    if lineage.operation_id:
        yield "operation", lineage.operation_id


def _short(value: JsonValue) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    line = " ".join(text.split())
    return line if len(line) <= _MAX_LINE_LENGTH else f"{line[: _MAX_LINE_LENGTH - 1]}…"


def print_summaries(found: list[RubricSummary], more: bool, max_count: int, *, as_json: bool) -> None:
    """Print a list of rubrics."""
    if as_json:
        print_json([row.model_dump(mode="json") for row in found])
        return
    if not found:
        out.print("no rubrics", style="dim")
        return
    table = Table("name", "version", "criteria", "published", "tags", "aliases")
    for column in table.columns[1:3]:
        column.justify = "right"
    for row in found:
        table.add_row(
            row.name,
            f"{row.latest_version} retired" if row.retired else str(row.latest_version),
            str(row.criteria_count),
            f"{row.created_at:%Y-%m-%d %H:%M}",
            ", ".join(row.tags),
            ", ".join(f"{alias} → {version}" for alias, version in row.aliases.items()),
            style="dim" if row.retired else "",
        )
    out.print(table)
    if more:
        out.print(f"the first {max_count}; narrow the list, or show more with --limit", style="dim")


async def read_version(
    reference: str, store: RubricStore
) -> tuple[RubricVersion, list[str], tuple[RubricValidation, ...]]:
    """The version, the aliases that point to it, and its validity verdicts."""
    found = await find_rubric(store, PROJECT_ID, reference)
    aliases = (await store.aliases(PROJECT_ID, found.name)).aliases
    pointing_aliases = [alias for alias, number in aliases.items() if number == found.version]
    return found, pointing_aliases, await store.validations(PROJECT_ID, found.name, found.version)


async def read_history(name: str, max_count: int, store: RubricStore) -> tuple[RubricHistory, bool]:
    """The versions of a rubric, and whether it has more."""
    page = await history_of(store, PROJECT_ID, name, limit=min(max_count, 500))
    versions = list(page.versions)
    while page.next_cursor is not None and len(versions) < max_count:
        page = await history_of(
            store, PROJECT_ID, name, after=page.next_cursor, limit=min(max_count - len(versions), 500)
        )
        versions += page.versions
    return page.model_copy(update={"versions": tuple(versions)}), page.next_cursor is not None


def maker_name(lineage: Lineage | None) -> str:
    """Who or what made a version."""
    if lineage is None:
        return ""
    made = " ".join(part for part in (lineage.generator, lineage.model and f"({lineage.model})") if part)
    return ", ".join(part for part in (lineage.author, made) if part)


def two_versions(given: Sequence[str]) -> tuple[str, str, str]:
    """Return the name and two versions: `a@1 a@2`, `a@1 2`, `a 1 2`, and up to the latest `a@1`, `a@1 a` and `a 1`.

    Raises:
        UsageError: there is no first version, there are too many, or two rubrics are named.
    """
    name, at, first = given[0].partition("@")
    versions = [*([first] if at else []), *given[1:]]
    if not 1 <= len(versions) <= 2:
        raise UsageError("name two versions of a rubric, such as team/math@1 team/math@2")
    bare = []
    for version in versions:
        other, at, number = version.rpartition("@")
        if at and other != name:
            raise UsageError(f"{given[0]} and {version} are different rubrics; name two versions of one")
        bare.append("latest" if version == name else number)
    return name, bare[0], bare[1] if len(bare) == 2 else "latest"


def diff_lines(found: RubricDiff) -> Iterator[Text]:
    """The changes, a line each."""
    for added in found.added:
        yield _criterion_line("+", added.criterion, "green")
    for removed in found.removed:
        yield _criterion_line("-", removed.criterion, "red")
    for reworded in found.reworded:
        yield Text.assemble(("~ ", "yellow"), (reworded.id, "bold"), "  reworded")
        yield from _wording(reworded.before, reworded.after)
    for reweighted in found.reweighted:
        before, after = f"{reweighted.before:g}", f"{reweighted.after:g}"
        if before == after:
            before, after = str(reweighted.before), str(reweighted.after)
        yield _change_line(reweighted.id, "weight", before, after)
    for changed in found.changed:
        yield _change_line(changed.id, changed.field, _value(changed.before), _value(changed.after))
    for move in found.moved:
        yield _change_line(move.id, "place", str(move.before + 1), str(move.after + 1))


def _criterion_line(sign: str, criterion: Criterion, style: str) -> Text:
    weight = f"weight {criterion.weight:g}"
    return Text.assemble(
        (f"{sign} ", style), (criterion.id, f"bold {style}"), f"  {criterion.kind}, {weight}  ", criterion.description
    )


def _change_line(id_: str, field: str, before: str, after: str) -> Text:
    return Text.assemble(("~ ", "yellow"), (id_, "bold"), f"  {field} ", (before, "red"), " → ", (after, "green"))


def _wording(before: str, after: str) -> Iterator[Text]:
    """Both wordings, with the differing words highlighted if the wordings are similar enough."""
    pieces = diff_words(before, after)
    shared = sum(len(piece.text) for side in pieces for piece in side if piece.same)
    highlighted = shared >= _MIN_SIMILARITY * (len(before) + len(after))
    old_line, new_line = Text("    - ", style="red"), Text("    + ", style="green")
    for line, side in zip((old_line, new_line), pieces, strict=True):
        for piece in side:
            line.append(piece.text, "bold underline" if highlighted and not piece.same else "")
    yield old_line
    yield new_line


def _value(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{field}={given}" for field, given in value.items() if given not in (None, [], {}))
    return "none" if value is None else str(value)


def diff_totals(found: RubricDiff) -> str:
    """The numbers of changes by kind."""
    parts = ("added", "removed", "reworded", "reweighted", "changed", "moved")
    counts = [f"{len(getattr(found, part))} {part}" for part in parts if getattr(found, part)]
    return ", ".join([*counts, f"{found.unchanged} unchanged"])
