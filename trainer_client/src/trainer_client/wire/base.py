"""The two bases of every message: what comes in is strict, what goes out may grow.

A request with a field we do not know is refused, so that a misspelt option never passes silently. An answer with a
field a client does not know is read all the same, so that two versions can live side by side.
"""

from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

MOST_ERRORS = 20
"""How many errors are made of one list, and told of one message: the first ones."""

K = TypeVar("K")
T = TypeVar("T")

LARGEST = 1e6
"""The largest magnitude of a number that enters a reward."""

SMALLEST = 1e-9
"""The smallest magnitude of one, but for 0: rewards are divided by weights."""

LARGEST_WHOLE = 2**53 - 1
"""The largest magnitude of a whole number, beyond which JSON's readers disagree."""

_LARGEST_INTEGER = 2**63 - 1
"""The largest whole number that is read as a number at all: far larger ones are no floating-point number."""

_LARGEST_QUANTITY = 1e150


def _number(value: Any) -> Any:
    if isinstance(value, bool | str):  # else they would be read as 1 and 0, and as what the text says
        raise ValueError("expected a valid number, not text or true or false")
    if isinstance(value, int) and abs(value) > _LARGEST_INTEGER:
        raise ValueError("this number is too large; write a smaller one")
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


def _few_errors(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Validate a list that fails at its first wrong element; go on behind that one until there are enough errors."""
    try:
        return validate(value)
    except ValidationError as refusal:
        if not isinstance(value, list | tuple) or all(not error["loc"] for error in _errors(refusal)):
            raise
        first = refusal
    found: list[InitErrorDetails] = []
    place, inside = 0, _inside(first)
    while inside and len(found) < MOST_ERRORS:
        for error in inside[: MOST_ERRORS - len(found)]:
            kind = PydanticCustomError(error["type"], "{said}", {**error.get("ctx", {}), "said": error["msg"]})
            at = (place + int(error["loc"][0]), *error["loc"][1:])
            found.append(InitErrorDetails(type=kind, loc=at, input=error["input"]))
        place += int(inside[0]["loc"][0]) + 1
        try:
            validate(value[place:])
            break
        except ValidationError as another:
            inside = _inside(another)
    raise ValidationError.from_exception_data(first.title, found)


def _errors(refusal: ValidationError) -> list[ErrorDetails]:
    return refusal.errors(include_url=False)


def _inside(refusal: ValidationError) -> list[ErrorDetails]:
    """The errors of a list's elements: of what is left of a list, its length says nothing."""
    return [error for error in _errors(refusal) if error["loc"]]


FEW_ERRORS = WrapValidator(_few_errors)
"""On a list with `fail_fast`, behind its bounds; `Many` is the same for a list whose bounds are its field's."""

Many = Annotated[tuple[T, ...], Field(fail_fast=True), FEW_ERRORS]
"""A list in a request, of which the first `MOST_ERRORS` errors are made and no more, however many values are wrong."""


def _few_at_once(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Validate an object some names at a time, so that the first that are wrong end it."""
    if not isinstance(value, dict) or len(value) <= MOST_ERRORS:
        return validate(value)
    items = list(value.items())
    made: dict[Any, Any] = {}
    for start in range(0, len(items), MOST_ERRORS):
        made.update(validate(dict(items[start : start + MOST_ERRORS])))
    return made


Named = Annotated[dict[K, T], WrapValidator(_few_at_once)]
"""An object of the caller's own names in a request, of which few errors are made, however many values are wrong."""


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

    @model_validator(mode="before")
    @classmethod
    def _has_few_unknown_fields(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > len(cls.model_fields) + MOST_ERRORS:
            raise ValueError(f"this object has {len(value)} fields, and at most {len(cls.model_fields)} are known here")
        return value


class Answer(BaseModel):
    """A message from the service: unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)
