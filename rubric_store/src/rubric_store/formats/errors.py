"""How a reader says what is wrong: the place, the problem, and what was expected there."""

from pydantic import ValidationError


class FormatError(ValueError):
    """A rubric that cannot be read.

    Attributes:
        place: the line or field at fault, such as `line 3` or `rubrics[2].points`.
        problem: what is wrong there, and what was expected.
    """

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place}: {problem}")
        self.place = place
        self.problem = problem


def first_problem(error: ValidationError, root: str) -> FormatError:
    """The first thing that validation found wrong, its place written as a path from `root`."""
    first = error.errors(include_url=False, include_input=False)[0]
    return FormatError(_path(root, first["loc"]), first["msg"].removeprefix("Value error, "))


def _path(root: str, location: tuple[int | str, ...]) -> str:
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
    return (root + "".join(steps)).removeprefix(".")
