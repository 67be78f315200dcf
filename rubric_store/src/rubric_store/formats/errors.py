"""How a reader or writer says what is wrong: each problem with its line, its place, and what was expected there."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

Path = tuple[int | str, ...]
"""A way through parsed values: `("criteria", 2, "weight")`."""

LineOf = Callable[[Collection[Path]], dict[Path, int]]
"""Maps paths, or their nearest known beginnings, to the lines they stand in."""

_MESSAGES = {
    "extra_forbidden": "this field is not permitted here; correct its spelling, or leave it out",
    "missing": "this field is required",
    "string_pattern_mismatch": "only letters, digits and . _ - are permitted, a letter or digit first; in names and "
    "tags letters are small, and / is permitted between words",
    "model_type": "expected an object with fields",
}


@dataclass(frozen=True, slots=True)
class FormatProblem:
    """One thing that is wrong: the line (1-based; None where there is none), the place in it, and what was expected."""

    place: str
    message: str
    line: int | None = None

    def __str__(self) -> str:
        where = ", ".join(filter(None, (f"line {self.line}" if self.line else "", self.place)))
        return f"{where}: {self.message}" if where else self.message


class FormatError(ValueError):
    """A rubric that cannot be read or written; `problems` holds everything that is wrong, in the order of the lines."""

    def __init__(self, problems: Iterable[FormatProblem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: problem.line or 0))
        super().__init__("\n".join(map(str, self.problems)))


class InvalidValueError(Exception):
    """Problems of a parsed value, each with its path; lines are not known yet."""

    def __init__(self, found: Sequence[tuple[Path, str]]) -> None:
        super().__init__(found)
        self.found = tuple(found)


@dataclass(frozen=True, slots=True)
class ParsedText:
    """A parsed text: its value, where what stands, and what is wrong already although it could be parsed."""

    value: object
    line_of: LineOf
    problems: tuple[FormatProblem, ...] = ()


def with_lines(error: InvalidValueError, line_of: LineOf) -> FormatError:
    """The same problems with their lines."""
    lines = line_of([path for path, _ in error.found])
    return FormatError([FormatProblem(format_path(path), message, lines.get(path)) for path, message in error.found])


def validation_problems(error: ValidationError) -> list[tuple[Path, str]]:
    """Everything that validation found wrong, each with its path."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return [(one["loc"], _MESSAGES.get(one["type"], one["msg"].removeprefix("Value error, "))) for one in found]


def format_path(path: Path) -> str:
    """A path as people write it: `criteria[2].weight`."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step[:60]}" for step in path if not _is_label(step))
    return "".join(steps).removeprefix(".")


def _is_label(step: int | str) -> bool:
    return isinstance(step, str) and step.startswith("(")
