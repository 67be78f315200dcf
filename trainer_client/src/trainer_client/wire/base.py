"""The base classes of all messages: requests are strict, answers may gain fields.

A request with an unknown field is refused, so that a misspelt option never passes silently. A client ignores unknown
fields of an answer, so that client and service may have different versions.

The types of this module bound what a request can cost: the number of validation errors, the magnitude of numbers, and
the size of free-form JSON objects.

Text is parsed strictly as the JSON of RFC 8259: no duplicate names, no NaN, exactly one value. Descriptions of fields
in JSON Schema and OpenAPI are read from the docstrings of their models.
"""

import inspect
import json
import re
from collections import Counter
from datetime import UTC, datetime
from functools import cache, partial
from math import isfinite
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    AwareDatetime,
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


class NotStrictJsonError(ValueError):
    """The text is not strict JSON. `field` is the dotted path of the invalid value, empty for the whole document."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


def strict_json(text: str) -> Any:
    """Parse a text, in time linear in its length.

    Raises:
        NotStrictJsonError: the text is not strict JSON; the message says where, and `field` names a non-finite number.
    """
    if text.startswith("\ufeff"):
        raise NotStrictJsonError("this begins with a byte order mark; leave it out")
    try:
        non_finite: list[float] = []
        value = json.loads(
            text,
            object_pairs_hook=_object_without_duplicates,
            parse_constant=partial(_parse_number, non_finite),
            parse_float=partial(_parse_number, non_finite),
        )
        path = _non_finite_path(value) if non_finite else ""
    except json.JSONDecodeError as error:
        raise NotStrictJsonError(f"not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise NotStrictJsonError("this is nested too deeply; flatten it") from None
    except NotStrictJsonError:
        raise
    except ValueError:
        raise NotStrictJsonError("this holds a number with too many digits; write fewer") from None
    if non_finite:
        raise NotStrictJsonError("JSON has no infinite numbers and no NaN; write a finite number, or null", path)
    return value


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        ((repeated, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise NotStrictJsonError(f"this has {repeated[:100]!r} twice in one object; remove one")
    return result


def _parse_number(non_finite: list[float], text: str) -> float:
    """Parse a number, and append it to `non_finite` if JSON has no such number."""
    number = float(text)
    if not isfinite(number):
        non_finite.append(number)
    return number


def _non_finite_path(value: Any) -> str:
    """The dotted path of the first non-finite number in a value."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in children:
        if isinstance(inner, float) and not isfinite(inner):
            return str(key)
        if isinstance(inner, dict | list) and (path := _non_finite_path(inner)):
            return f"{key}.{path}"
    return ""


SHARED_FIELDS = {
    "action": "What was done, such as `alias.move`.",
    "actor": "Who did it: a key by its id, or the command line.",
    "aliases": "By alias, the version that it points to.",
    "allow_retired": "Accept a rubric version that is retired; otherwise the request is refused.",
    "at": "When it happened.",
    "cached": "Whether it needed no call of its own: it was in the cache, or another request made the call.",
    "calibration": "The map from raw to calibrated probabilities; null if there is none.",
    "characters_hidden": "How many characters of the response `judging.reasoning` left out, tags included.",
    "characters_omitted": "How many characters of the response the judge did not see.",
    "choice_mass": "The share of the judge's total probability that fell on the allowed answers.",
    "created_at": "When it was created.",
    "criteria_count": "The number of its criteria.",
    "criterion": "The criterion's id.",
    "deadline_s": "The time that the service has, in seconds; verdicts that are not ready by then fail.",
    "digest": "`sha256:` and the hash of the criteria. Equal criteria have equal digests.",
    "ended_at": "When it ended; null until then.",
    "expires_at": "When it stops to be valid; null for never.",
    "failure": "Why judging failed; null if it did not.",
    "fingerprint": "`sha256:` and the hash of everything about the judge that can change its verdicts.",
    "grounding": "A text that the response must agree with, such as a source; only the judge sees it.",
    "grounding_characters": "The maximum length of the grounding shown to the judge, in characters; all by default.",
    "grounding_characters_omitted": "How many characters of the grounding the judge did not see.",
    "group": "The group's id.",
    "groups": "The groups of responses.",
    "judge": "The name of the judge; each judge of the service has one.",
    "judge_calls": "Calls that the judge processed, retries included.",
    "judging": "How the judge is asked.",
    "kind": "The kind, which says what the other fields mean.",
    "label": "A name for people to recognise it by.",
    "last_step": "The last step that is included; null for no limit.",
    "last_used_at": "When it was last used, to the minute; null if never.",
    "limits": "What the project may use.",
    "lineage": "Who or what made the version; null if it is not known.",
    "metadata": "The JSON object that the version was published with.",
    "mode": "The formula of the reward.",
    "model": "The name of the judge's model.",
    "name": "The name.",
    "next_cursor": "Send it as `after` to get the next page; null on the last page.",
    "on_failure": "What reward a response gets if judging fails.",
    "on_uncertain": "What reward a response gets whose reward needs a verdict that is uncertain.",
    "parent": "The version of the same name that this one was made from.",
    "partial": "Responses with a reward in spite of failed or uncertain verdicts.",
    "policy_applied": "The policy that determined the reward; null if none did.",
    "priority": "`online` if a training step waits; `bulk` work waits until online requests are served.",
    "probability": "The calibrated probability of yes; null if there is none.",
    "project_id": "The project that it belongs to.",
    "prompt": "What the responses answer: a text, or the messages of a conversation.",
    "prompt_opens": "The tag of the thinking block that the policy's prompt leaves open, `none` for none.",
    "prompt_tokens_computed": "Prompt tokens that the judge computed.",
    "prompt_tokens_reused": "Prompt tokens that the judge took from its prefix cache.",
    "protocol": "The judging protocol: how the judge is asked and answers.",
    "rationale": "What the judge wrote before its verdict; null if it was not asked for reasons.",
    "reason": "Why, in a sentence.",
    "reasoning": "Which part of a response the judge sees: without its thinking block, all of it, or only that block.",
    "reference_answer": "A right answer, to compare with; only the judge sees it.",
    "request_id": "The id of the request, which logs and problems name too.",
    "requests": "The number of requests.",
    "responses": "The responses, in the order of the request.",
    "retirement": "When and why the version was retired; null if it is in use.",
    "revoked_at": "When it was revoked; null if it is not.",
    "reward": "The reward; null if there is none.",
    "rubric": "The rubric: a reference, its digest, or its criteria.",
    "rubrics": "The rubrics that were used.",
    "run": "The name of the training run; null if there is none.",
    "score": "The score, in [0, 1]; null if there is none.",
    "scopes": "What the key may do.",
    "scored": "Responses whose criteria all have a verdict.",
    "started_at": "When it started; null until then.",
    "state": "The state that it is in.",
    "status": "The outcome.",
    "step": "The training step, from 0; null if there is none.",
    "steps": "The steps of the response, each with what its verdicts add to it.",
    "suspicious": "Whether the judge said that the response meets a decoy criterion; null if none was asked.",
    "tags": "Keywords to find it by.",
    "template": "The name of a set of prompt templates; the server's default set by default.",
    "text": "The text.",
    "think_tokens": "The maximum length of a thinking judge's thoughts, in its tokens.",
    "tokens_written": "Tokens that the judge generated.",
    "uncertain_band": "A verdict is uncertain if its calibrated probability is from the first up to the second.",
    "unscored": "Responses whose verdicts give no reward.",
    "usage": "What it cost.",
    "verdicts": "The verdicts, one for each criterion.",
    "version": "The version's number, from 1.",
}
"""The descriptions of fields that mean the same in every message that has them."""

_SECTION = re.compile(r"^Attributes:\n((?:    .*\n|\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^    (\w[\w, ]*): ((?:.|\n(?=        ))*)", re.MULTILINE)


def describe(model: type, schema: dict[str, Any]) -> None:
    """Add the descriptions of its fields to the JSON Schema of a model, and remove them from that of the model."""
    if model.__doc__ is not None:
        schema["description"] = _SECTION.sub("", f"{inspect.cleandoc(model.__doc__)}\n").strip()
    own = field_descriptions(model)
    for name, field in schema.get("properties", {}).items():
        description = own.get(name) or SHARED_FIELDS.get(name)
        if description is not None:
            field.setdefault("description", description)


@cache
def field_descriptions(model: type) -> dict[str, str]:
    """The descriptions in the docstrings of a model and of its base classes, by field."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        section = _SECTION.search(f"{inspect.cleandoc(base.__dict__.get('__doc__') or '')}\n")
        for names, text in _ENTRY.findall(section[1] if section else ""):
            sentence = " ".join(text.split())
            found |= dict.fromkeys(re.split(r",\s*", names), sentence[:1].upper() + sentence[1:])
    return found


MAX_ERRORS = 20
"""The maximum number of errors collected from one list or reported for one message; the first ones are kept."""

K = TypeVar("K")
T = TypeVar("T")
ModelT = TypeVar("ModelT", bound=BaseModel)

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

Count = Annotated[int, Field(ge=0), STRICT_NUMBER]
"""An integer from 0 in a request: a number of things, a position, or a step."""

Share = Annotated[float, Field(ge=0, le=1), STRICT_NUMBER]
"""A number from 0 to 1 in a request."""

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


def is_missing(value: Any) -> bool:
    """Whether a field of an answer, added later, is left out of the JSON: it is null, and not just empty."""
    return value is None


def is_unset(value: Any) -> bool:
    """Whether a field of an answer, added later, is left out of the JSON: it is null, 0 or empty."""
    return not value


class AnswerModel(DocumentedModel):
    """A message from the service. Unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


def construct(model: type[ModelT], values: dict[str, Any]) -> ModelT:
    """Make a message of values that are known to be valid; `values` has every field, and becomes the message's own.

    There are thousands of verdicts a second, and this takes less than half the time of validation.
    """
    message = model.__new__(model)
    _set(message, "__dict__", values)
    _set(message, "__pydantic_fields_set__", set(values))
    _set(message, "__pydantic_extra__", None)
    _set(message, "__pydantic_private__", None)
    return message


_set = object.__setattr__


def _check_characters(text: str) -> str:
    if "\0" in text:
        raise ValueError("the character NUL is not allowed; remove it")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("this text holds half a surrogate pair, which is not a character") from None
    return text


STORABLE = AfterValidator(_check_characters)
"""Annotation for a text that is stored or returned as it is: refuses NUL and half a surrogate pair."""


def _in_utc(at: datetime) -> datetime:
    try:
        return at.astimezone(UTC)
    except OverflowError:
        raise ValueError("this time is before the year 1 or after the year 9999 in UTC; give another") from None


UTCTime = Annotated[AwareDatetime, AfterValidator(_in_utc)]
"""A time in a request, with its time zone; it becomes UTC."""


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
