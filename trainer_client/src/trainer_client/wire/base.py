"""The two bases of every message: what comes in is strict, what goes out may grow.

A request with a field we do not know is refused, so that a misspelt option never passes silently. An answer with a
field a client does not know is read all the same, so that two versions can live side by side.
"""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict

MOST_WHOLE = 2**63 - 1
"""The largest whole number of a request: no database keeps more, and far larger ones are no floating-point number."""


def _number(value: Any) -> Any:
    if isinstance(value, bool | str):  # else they would be read as 1 and 0, and as what the text says
        raise ValueError("expected a valid number, not text or true or false")
    if isinstance(value, int) and abs(value) > MOST_WHOLE:
        raise ValueError(f"expected a number between -{MOST_WHOLE} and {MOST_WHOLE}")
    return value


def _flag(value: Any) -> Any:
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        raise ValueError("expected true or false")
    return value


NUMERIC = BeforeValidator(_number)
"""On a number of a request, behind its bounds: neither true, false, text nor what 64 bits cannot hold is one."""

Number = Annotated[float, NUMERIC]
"""A number of a request."""

Whole = Annotated[int, NUMERIC]
"""A whole number of a request."""

Flag = Annotated[bool, BeforeValidator(_flag)]
"""True or false in a request; neither a number nor text is either."""


class Request(BaseModel):
    """A message to the service: unknown fields and non-finite numbers are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Answer(BaseModel):
    """A message from the service: unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)
