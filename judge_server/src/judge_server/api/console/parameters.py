"""Parameters in the addresses of pages, each checked as it is read: a bad one raises `InvalidRequest` with its name."""

from starlette.requests import Request

from judge_server.errors import InvalidRequest

_MAX_STEP = 2**63 - 1
_MAX_CHARACTERS = 2000


def text_parameter(request: Request, name: str) -> str:
    """A text without white space around it; empty if it is not given."""
    value = request.query_params.get(name, "")
    if len(value) > _MAX_CHARACTERS:
        raise InvalidRequest(f"{name}: at most {_MAX_CHARACTERS:,} characters are allowed")
    return value.strip()


def int_parameter(request: Request, name: str) -> int | None:
    """A whole number of 0 or more; None if it is not given."""
    value = text_parameter(request, name)
    if not value:
        return None
    if not (value.isascii() and value.isdecimal()) or len(value) > 19 or int(value) > _MAX_STEP:
        raise InvalidRequest(f"{name}: {value[:40]!r} is not a whole number of 0 or more")
    return int(value)


def float_parameter(request: Request, name: str) -> float | None:
    """A finite number; None if it is not given."""
    value = text_parameter(request, name)
    try:
        number = float(value) if value else None
    except ValueError:
        number = float("nan")
    if number is not None and not abs(number) < float("inf"):
        raise InvalidRequest(f"{name}: {value[:40]!r} is not a number, such as 0.5")
    return number


def choice_parameter(request: Request, name: str, choices: tuple[str, ...]) -> str | None:
    """One of some values; None if it is not given."""
    value = text_parameter(request, name)
    if value and value not in choices:
        raise InvalidRequest(f"{name}: {value[:40]!r} is unknown; use one of {', '.join(choices)}")
    return value or None


def run_parameter(request: Request) -> str:
    """The name of a run; empty for requests without one."""
    run = request.query_params.get("run")
    if run is None or len(run) > 256:
        raise InvalidRequest("run: name the run, as the list of runs does; its name has at most 256 characters")
    return run


def step_parameters(request: Request) -> tuple[int | None, int | None]:
    """The first and the last step that a page is about; None for no limit."""
    first, last = int_parameter(request, "first"), int_parameter(request, "last")
    if first is not None and last is not None and first > last:
        raise InvalidRequest(f"last: step {last} is before the first step, {first}")
    return first, last
