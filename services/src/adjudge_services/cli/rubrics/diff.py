"""`adjudge rubrics diff`: show the changes between two versions of a rubric, criterion by criterion."""

import difflib
import re
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.text import Text

from adjudge_services.cli.output import out
from adjudge_services.cli.rubrics.store import with_store
from judge_server.rubrics import PROJECT_ID, difference
from trainer_client.wire import Criterion, RubricDiff

_PIECES = re.compile(r"\w+|\s+|[^\w\s]")
_MIN_SIMILARITY = 0.4


def diff(
    name: Annotated[str, typer.Argument(help="The rubric, for example math/quadratics.")],
    before: Annotated[str, typer.Argument(metavar="FROM", help="A version number or an alias.")],
    after: Annotated[
        str,
        typer.Argument(
            metavar="[TO]", help="A version number or an alias; by default the latest version.", show_default=False
        ),
    ] = "latest",
    as_json: Annotated[bool, typer.Option("--json", help="Print the difference as JSON.")] = False,
) -> None:
    """Show which criteria were added, removed, reworded, reweighted, otherwise changed or moved."""
    found = with_store(lambda store: difference(store, PROJECT_ID, name, before, after))
    if as_json:
        typer.echo(found.model_dump_json(indent=2))
        return
    out.print(Text(f"{name}@{found.before.version} → {name}@{found.after.version}", style="bold"))
    for line in _lines(found):
        out.print(line, soft_wrap=True)
    out.print(Text(_totals(found), style="dim"))


def _lines(found: RubricDiff) -> Iterator[Text]:
    for added in found.added:
        yield _criterion_line("+", added.criterion, "green")
    for removed in found.removed:
        yield _criterion_line("-", removed.criterion, "red")
    for reworded in found.reworded:
        yield Text.assemble(("~ ", "yellow"), (reworded.id, "bold"), "  reworded")
        yield from _wording(reworded.before, reworded.after)
    for reweighted in found.reweighted:
        yield _change_line(reweighted.id, "weight", f"{reweighted.before:g}", f"{reweighted.after:g}")
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
    old, new = _PIECES.findall(before), _PIECES.findall(after)
    match = difflib.SequenceMatcher(None, old, new, autojunk=False)
    old_line, new_line = Text("    - ", style="red"), Text("    + ", style="green")
    highlighted = match.ratio() >= _MIN_SIMILARITY
    for kind, i, j, k, m in match.get_opcodes():
        style = "bold underline" if highlighted and kind != "equal" else ""
        old_line.append("".join(old[i:j]), style)
        new_line.append("".join(new[k:m]), style)
    yield old_line
    yield new_line


def _value(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{field}={given}" for field, given in value.items() if given not in (None, [], {}))
    return "none" if value is None else str(value)


def _totals(found: RubricDiff) -> str:
    parts = ("added", "removed", "reworded", "reweighted", "changed", "moved")
    counts = [f"{len(getattr(found, part))} {part}" for part in parts if getattr(found, part)]
    return ", ".join([*counts, f"{found.unchanged} unchanged"])
