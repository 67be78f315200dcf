"""The two bases of every message: what comes in is strict, what goes out may grow.

A request with a field we do not know is refused, so that a misspelt option never passes silently. An answer with a
field a client does not know is read all the same, so that two versions can live side by side.
"""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

LARGEST = 1e6
"""The largest magnitude of a number that enters a reward."""

SMALLEST = 1e-9
"""The smallest magnitude of one, but for 0: rewards are divided by weights."""

LARGEST_WHOLE = 2**53 - 1
"""The largest magnitude of a whole number, beyond which JSON's readers disagree."""

_LARGEST_QUANTITY = 1e150


def _number(value: Any) -> Any:
    if isinstance(value, bool | str):  # else they would be read as 1 and 0, and as what the text says
        raise ValueError("expected a valid number, not text or true or false")
    return value


def _whole(value: Any) -> Any:
    if isinstance(value, int | float) and abs(value) > LARGEST_WHOLE:
        raise ValueError(f"this number is too large; write one of at most {LARGEST_WHOLE}")
    return _number(value)


def _quantity(value: float) -> float:
    if abs(value) > _LARGEST_QUANTITY:
        raise ValueError(f"{value:g} is too large; write a number of at most {_LARGEST_QUANTITY:g} in magnitude")
    return value


def moderate(value: float) -> float:
    """A number that may enter a reward; raises `ValueError` for one that is too large or too small."""
    magnitude = abs(value)
    if SMALLEST <= magnitude <= LARGEST or magnitude == 0:
        return value
    if magnitude > LARGEST:
        raise ValueError(f"{value:g} is too large; write a number from {-LARGEST:g} to {LARGEST:g}")
    raise ValueError(f"{value:g} is too small; write 0, or a number of at least {SMALLEST:g} in magnitude")


def _flag(value: Any) -> Any:
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        raise ValueError("expected true or false")
    return value


NUMERIC = BeforeValidator(_whole)
"""On a number of a request, behind its bounds: neither true, false nor text is one, nor what is beyond 2**53 - 1."""

Number = Annotated[float, AfterValidator(moderate), NUMERIC]
"""A number of a request: 0, or from 1e-9 to 1e6 in magnitude, so that no reward and no square of one overflows."""

Whole = Annotated[int, NUMERIC]
"""A whole number of a request, at most 2**53 - 1 in magnitude."""

Finite = Annotated[float, BeforeValidator(_number)]
"""Any finite number."""

Quantity = Annotated[float, AfterValidator(_quantity), BeforeValidator(_number)]
"""A number of a request that enters no reward, such as a physical quantity: a product of two is finite."""

Flag = Annotated[bool, BeforeValidator(_flag)]
"""True or false in a request; neither a number nor text is either."""


class Request(BaseModel):
    """A message to the service: unknown fields and non-finite numbers are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Answer(BaseModel):
    """A message from the service: unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)
