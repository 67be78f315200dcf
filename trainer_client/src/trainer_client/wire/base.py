"""The base classes of all messages: requests are strict, answers may gain fields.

A request with an unknown field is refused, so that a misspelt option never passes silently. A client ignores unknown
fields of an answer, so that client and service may have different versions.

The types of this module bound what a request can cost: the number of validation errors, the magnitude of numbers, and
the size of free-form JSON objects.
"""

import json
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    JsonValue,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import CoreSchema, ErrorDetails, InitErrorDetails, PydanticCustomError

MAX_ERRORS = 20
"""The maximum number of errors collected from one list or reported for one message; the first ones are kept."""

K = TypeVar("K")
T = TypeVar("T")
AnswerT = TypeVar("AnswerT", bound="AnswerModel")

MAX_MAGNITUDE = 1e6
"""The largest magnitude of a number that enters a reward."""

MIN_MAGNITUDE = 1e-9
"""The smallest magnitude of such a number other than 0, since rewards are divided by weights."""

MAX_SAFE_INTEGER = 2**53 - 1
"""The largest magnitude of an integer; JSON parsers disagree beyond it."""

_MAX_INT64 = 2**63 - 1
"""The largest integer accepted where a float is expected; much larger ones cannot be converted to a float."""

_MAX_LARGE_FLOAT = 1e150


def _validate_number(value: Any) -> Any:
    if isinstance(value, bool | str):  # Pydantic would convert true to 1, and text to the number it spells
        raise ValueError("expected a valid number, not text, true or false")
    if isinstance(value, int) and abs(value) > _MAX_INT64:
        raise ValueError("this number is too large; use a smaller one")
    return value


def _validate_safe_int(value: Any) -> Any:
    if isinstance(value, int | float) and abs(value) > MAX_SAFE_INTEGER:
        raise ValueError(f"this number is too large; use at most {MAX_SAFE_INTEGER}")
    return _validate_number(value)


def _validate_large_float(value: float) -> float:
    if abs(value) > _MAX_LARGE_FLOAT:
        raise ValueError(f"{value:g} is too large; use a number of at most {_MAX_LARGE_FLOAT:g} in magnitude")
    return value


def check_magnitude(value: float) -> float:
    """Return a number that may enter a reward; raise `ValueError` if its magnitude is too large or too small."""
    magnitude = abs(value)
    if MIN_MAGNITUDE <= magnitude <= MAX_MAGNITUDE or magnitude == 0:
        return value
    if magnitude > MAX_MAGNITUDE:
        raise ValueError(f"{value:g} is too large; use a number from {-MAX_MAGNITUDE:g} to {MAX_MAGNITUDE:g}")
    raise ValueError(f"{value:g} is too small; use 0, or a number of at least {MIN_MAGNITUDE:g} in magnitude")


def _validate_bool(value: Any) -> Any:
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        raise ValueError("expected true or false")
    return value


def _limit_list_errors(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Validate a fail-fast list, resuming after each invalid element until `MAX_ERRORS` errors are collected."""
    try:
        return validate(value)
    except ValidationError as exc:
        if not isinstance(value, list | tuple) or all(not error["loc"] for error in _errors(exc)):
            raise
        first = exc
    collected: list[InitErrorDetails] = []
    start, errors = 0, _element_errors(first)
    while errors and len(collected) < MAX_ERRORS:
        for error in errors[: MAX_ERRORS - len(collected)]:
            kind = PydanticCustomError(error["type"], "{message}", {**error.get("ctx", {}), "message": error["msg"]})
            location = (start + int(error["loc"][0]), *error["loc"][1:])
            collected.append(InitErrorDetails(type=kind, loc=location, input=error["input"]))
        start += int(errors[0]["loc"][0]) + 1
        try:
            validate(value[start:])
            break
        except ValidationError as error_after:
            errors = _element_errors(error_after)
    raise ValidationError.from_exception_data(first.title, collected)


def _errors(exc: ValidationError) -> list[ErrorDetails]:
    return exc.errors(include_url=False)


def _element_errors(exc: ValidationError) -> list[ErrorDetails]:
    """The errors of a list's elements. An error about the list itself is left out: the rest of a list may be short."""
    return [error for error in _errors(exc) if error["loc"]]


LIMIT_ERRORS = WrapValidator(_limit_list_errors)
"""Annotation for a list with `fail_fast`, placed after its bounds. Use `RequestList` if the bounds are in the field."""

RequestList = Annotated[tuple[T, ...], Field(fail_fast=True), LIMIT_ERRORS]
"""A list in a request. At most `MAX_ERRORS` errors are collected, however many values are wrong."""


def _limit_dict_errors(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Validate an object `MAX_ERRORS` entries at a time, and stop at the first part with an error."""
    if not isinstance(value, dict) or len(value) <= MAX_ERRORS:
        return validate(value)
    items = list(value.items())
    validated: dict[Any, Any] = {}
    for start in range(0, len(items), MAX_ERRORS):
        validated.update(validate(dict(items[start : start + MAX_ERRORS])))
    return validated


RequestDict = Annotated[dict[K, T], WrapValidator(_limit_dict_errors)]
"""An object in a request whose keys the caller chooses. The number of errors is bounded, as for `RequestList`."""


STRICT_NUMBER = BeforeValidator(_validate_safe_int)
"""Annotation for a number in a request, placed after its bounds: refuses booleans, text and magnitudes above 2**53 - 1.
"""

BoundedFloat = Annotated[float, AfterValidator(check_magnitude), STRICT_NUMBER]
"""A number in a request: 0, or from 1e-9 to 1e6 in magnitude, so that no reward and no square of a reward overflows."""

Coefficient = Annotated[float, Field(ge=0, le=MAX_MAGNITUDE), STRICT_NUMBER]
"""A factor in a request, from 0 to 1e6. It may be close to 0, since nothing is divided by it."""

SafeInt = Annotated[int, STRICT_NUMBER]
"""An integer in a request, at most 2**53 - 1 in magnitude."""

FiniteFloat = Annotated[float, BeforeValidator(_validate_number)]
"""Any finite number."""

LargeFloat = Annotated[float, AfterValidator(_validate_large_float), BeforeValidator(_validate_number)]
"""A number in a request that enters no reward, such as a physical quantity, bounded so that a product of two is finite.
"""

Flag = Annotated[bool, BeforeValidator(_validate_bool)]
"""A boolean in a request; numbers and text are refused."""


class DocumentedModel(BaseModel):
    """A model whose JSON Schema describes its fields as its docstring does."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Make the JSON Schema of the model."""
        from trainer_client.wire.field_descriptions import describe

        schema = handler(core_schema)
        describe(cls, handler.resolve_ref_schema(schema))
        return schema


class RequestModel(DocumentedModel):
    """A message to the service. Unknown fields and non-finite numbers are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _limit_unknown_fields(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > len(cls.model_fields) + MAX_ERRORS:
            raise ValueError(f"this object has {len(value)} fields; at most {len(cls.model_fields)} are known here")
        return value


def is_unset(value: Any) -> bool:
    """Whether a field of an answer, added later, is left out of the JSON: it is null, 0 or empty."""
    return not value


class AnswerModel(DocumentedModel):
    """A message from the service. Unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


def construct(model: type[AnswerT], values: dict[str, Any]) -> AnswerT:
    """Make an answer of values that are known to be valid; `values` has every field, and becomes the answer's own.

    There are thousands of verdicts a second, and this takes less than half the time of validation.
    """
    answer = model.__new__(model)
    _set(answer, "__dict__", values)
    _set(answer, "__pydantic_fields_set__", set(values))
    _set(answer, "__pydantic_extra__", None)
    _set(answer, "__pydantic_private__", None)
    return answer


_set = object.__setattr__


MAX_JSON_BYTES = 65_536


def _check_size(value: dict[str, JsonValue]) -> dict[str, JsonValue]:
    try:
        size = len(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
    except RecursionError:
        raise ValueError("this object is nested too deeply; flatten it") from None
    except UnicodeEncodeError:
        raise ValueError("this text holds half a surrogate pair, which is not a character") from None
    except ValueError:
        raise ValueError("JSON has no infinite numbers and no NaN; write null") from None
    if size > MAX_JSON_BYTES:
        raise ValueError(f"this object is {size} bytes as JSON; use at most {MAX_JSON_BYTES}")
    return value


JsonObject = Annotated[dict[str, JsonValue], AfterValidator(_check_size)]
"""A free-form JSON object, at most 64 KiB when encoded."""
