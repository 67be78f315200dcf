"""`adjudge rubrics show`, `list`, `search`, `history` and `diff`: read the store."""

from functools import partial
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from adjudge_services.cli.options import JsonOption, RubricNameArgument
from adjudge_services.cli.output import exit_with_error, out, print_json

LimitOption = Annotated[int, typer.Option("--limit", min=1, help="Maximum number to show.")]
TagOption = Annotated[str | None, typer.Option(help="Only rubrics that have this tag.")]


def show(
    reference: Annotated[str, typer.Argument(help="name, name@3, name@alias or sha256:…")], as_json: JsonOption = False
) -> None:
    """Show a version: its origin, whether it is in use, and its criteria."""
    from adjudge_services.cli.rubrics.files_work import with_store
    from adjudge_services.cli.rubrics.generate_work import validity_line
    from adjudge_services.cli.rubrics.show_work import describe_version, read_version
    from judge_server.generation.validity import published_validity

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
        out.print(f"[dim]{escape(label):<{width}}[/] {escape(text)}", highlight=False, soft_wrap=True)
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
    from adjudge_services.cli.rubrics.files_work import summaries, with_store
    from adjudge_services.cli.rubrics.show_work import print_summaries

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
    from adjudge_services.cli.rubrics.files_work import summaries, with_store
    from adjudge_services.cli.rubrics.show_work import print_summaries

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
    from adjudge_services.cli.rubrics.files_work import with_store
    from adjudge_services.cli.rubrics.show_work import maker_name, read_history

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
        out.print(f"[dim]tags[/] {', '.join(found.tags)}", highlight=False)
    if more:
        out.print(f"the newest {max_count}; show more with --limit", style="dim", highlight=False)


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
    from adjudge_services.cli.rubrics.files_work import with_store
    from adjudge_services.cli.rubrics.show_work import diff_lines, diff_totals, two_versions
    from judge_server.rubrics import PROJECT_ID, difference

    try:
        name, before, after = two_versions(versions)
    except ValueError as error:
        exit_with_error(str(error))
    found = with_store(lambda store: difference(store, PROJECT_ID, name, before, after))
    if as_json:
        typer.echo(found.model_dump_json(indent=2))
        return
    out.print(Text(f"{name}@{found.before.version} → {name}@{found.after.version}", style="bold"))
    for line in diff_lines(found):
        out.print(line, soft_wrap=True)
    out.print(Text(diff_totals(found), style="dim"))
