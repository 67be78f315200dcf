"""The two bases of every message: what comes in is strict, what goes out may grow.

A request with a field we do not know is refused, so that a misspelt option never passes silently. An answer with a
field a client does not know is read all the same, so that two versions can live side by side.
"""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict


def _number(value: Any) -> Any:
    if isinstance(value, bool | str):  # else they would be read as 1 and 0, and as what the text says
        raise ValueError("expected a valid number, not text or true or false")
    return value


def _flag(value: Any) -> Any:
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        raise ValueError("expected true or false")
    return value


NUMERIC = BeforeValidator(_number)
"""On a number of a request, behind its bounds: neither true, false nor text is one."""

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
