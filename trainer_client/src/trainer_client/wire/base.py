"""The base classes of all messages: requests are strict, answers may gain fields.

The two bases of every message: what comes in is strict, what goes out may grow.

A request with a field we do not know is refused, so that a misspelt option never passes silently. An answer with a
field a client does not know is read all the same, so that two versions can live side by side.

A JSON object of the caller's own, bounded, so that what is kept with a rubric cannot outgrow the rubric.
"""

import json
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

MAX_ERRORS = 20
"""How many errors are made of one list, and told of one message: the first ones."""

K = TypeVar("K")
T = TypeVar("T")

MAX_MAGNITUDE = 1e6
"""The largest magnitude of a number that enters a reward."""

MIN_MAGNITUDE = 1e-9
"""The smallest magnitude of one, but for 0: rewards are divided by weights."""

MAX_SAFE_INTEGER = 2**53 - 1
"""The largest magnitude of a whole number, beyond which JSON's readers disagree."""

_MAX_INT64 = 2**63 - 1
"""The largest whole number that is read as a number at all: far larger ones are no floating-point number."""

_MAX_LARGE_FLOAT = 1e150


def _validate_number(value: Any) -> Any:
    if isinstance(value, bool | str):  # else they would be read as 1 and 0, and as what the text says
        raise ValueError("expected a valid number, not text or true or false")
    if isinstance(value, int) and abs(value) > _MAX_INT64:
        raise ValueError("this number is too large; write a smaller one")
    return value


def _validate_safe_int(value: Any) -> Any:
    if isinstance(value, int | float) and abs(value) > MAX_SAFE_INTEGER:
        raise ValueError(f"this number is too large; write one of at most {MAX_SAFE_INTEGER}")
    return _validate_number(value)


def _validate_large_float(value: float) -> float:
    if abs(value) > _MAX_LARGE_FLOAT:
        raise ValueError(f"{value:g} is too large; write a number of at most {_MAX_LARGE_FLOAT:g} in magnitude")
    return value


def check_magnitude(value: float) -> float:
    """A number that may enter a reward; raises `ValueError` for one that is too large or too small."""
    magnitude = abs(value)
    if MIN_MAGNITUDE <= magnitude <= MAX_MAGNITUDE or magnitude == 0:
        return value
    if magnitude > MAX_MAGNITUDE:
        raise ValueError(f"{value:g} is too large; write a number from {-MAX_MAGNITUDE:g} to {MAX_MAGNITUDE:g}")
    raise ValueError(f"{value:g} is too small; write 0, or a number of at least {MIN_MAGNITUDE:g} in magnitude")


def _validate_bool(value: Any) -> Any:
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        raise ValueError("expected true or false")
    return value


def _limit_list_errors(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Validate a list that fails at its first wrong element; go on behind that one until there are enough errors."""
    try:
        return validate(value)
    except ValidationError as exc:
        if not isinstance(value, list | tuple) or all(not error["loc"] for error in _errors(exc)):
            raise
        first = exc
    found: list[InitErrorDetails] = []
    place, inside = 0, _element_errors(first)
    while inside and len(found) < MAX_ERRORS:
        for error in inside[: MAX_ERRORS - len(found)]:
            kind = PydanticCustomError(error["type"], "{said}", {**error.get("ctx", {}), "said": error["msg"]})
            at = (place + int(error["loc"][0]), *error["loc"][1:])
            found.append(InitErrorDetails(type=kind, loc=at, input=error["input"]))
        place += int(inside[0]["loc"][0]) + 1
        try:
            validate(value[place:])
            break
        except ValidationError as another:
            inside = _element_errors(another)
    raise ValidationError.from_exception_data(first.title, found)


def _errors(exc: ValidationError) -> list[ErrorDetails]:
    return exc.errors(include_url=False)


def _element_errors(exc: ValidationError) -> list[ErrorDetails]:
    """The errors of a list's elements: of what is left of a list, its length says nothing."""
    return [error for error in _errors(exc) if error["loc"]]


LIMIT_ERRORS = WrapValidator(_limit_list_errors)
"""On a list with `fail_fast`, behind its bounds; `RequestList` is the same for a list whose bounds are its field's."""

RequestList = Annotated[tuple[T, ...], Field(fail_fast=True), LIMIT_ERRORS]
"""A list in a request, of which the first `MAX_ERRORS` errors are made and no more, however many values are wrong."""


def _limit_dict_errors(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Validate an object some names at a time, so that the first that are wrong end it."""
    if not isinstance(value, dict) or len(value) <= MAX_ERRORS:
        return validate(value)
    items = list(value.items())
    made: dict[Any, Any] = {}
    for start in range(0, len(items), MAX_ERRORS):
        made.update(validate(dict(items[start : start + MAX_ERRORS])))
    return made


RequestDict = Annotated[dict[K, T], WrapValidator(_limit_dict_errors)]
"""An object of the caller's own names in a request, of which few errors are made, however many values are wrong."""


STRICT_NUMBER = BeforeValidator(_validate_safe_int)
"""On a number of a request, behind its bounds: neither true, false nor text is one, nor what is beyond 2**53 - 1."""

BoundedFloat = Annotated[float, AfterValidator(check_magnitude), STRICT_NUMBER]
"""A number of a request: 0, or from 1e-9 to 1e6 in magnitude, so that no reward and no square of one overflows."""

SafeInt = Annotated[int, STRICT_NUMBER]
"""A whole number of a request, at most 2**53 - 1 in magnitude."""

FiniteFloat = Annotated[float, BeforeValidator(_validate_number)]
"""Any finite number."""

LargeFloat = Annotated[float, AfterValidator(_validate_large_float), BeforeValidator(_validate_number)]
"""A number of a request that enters no reward, such as a physical quantity: a product of two is finite."""

Flag = Annotated[bool, BeforeValidator(_validate_bool)]
"""True or false in a request; neither a number nor text is either."""


class RequestModel(BaseModel):
    """A message to the service: unknown fields and non-finite numbers are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _limit_unknown_fields(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > len(cls.model_fields) + MAX_ERRORS:
            raise ValueError(f"this object has {len(value)} fields, and at most {len(cls.model_fields)} are known here")
        return value


class AnswerModel(BaseModel):
    """A message from the service: unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


MAX_JSON_BYTES = 65_536


def _check_size(value: dict[str, JsonValue]) -> dict[str, JsonValue]:
    try:
        size = len(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
    except RecursionError:
        raise ValueError("this object is nested too deeply; keep what matters near its top") from None
    except UnicodeEncodeError:
        raise ValueError("this text holds half a surrogate pair, which is no character") from None
    except ValueError:
        raise ValueError("JSON has no infinite numbers and no NaN; write null") from None
    if size > MAX_JSON_BYTES:
        raise ValueError(f"this object is {size} bytes as JSON; at most {MAX_JSON_BYTES} are kept")
    return value


JsonObject = Annotated[dict[str, JsonValue], AfterValidator(_check_size)]
"""A mapping of text to JSON values, at most 64 KiB as JSON."""
