"""Makes the requests of `/v1/rubrics`, checked by the wire contract before anything is sent. Sends none itself."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from trainer_client._answers import AnswerT
from trainer_client._criteria import CriterionLike
from trainer_client._requests import Call, as_json, fresh_key, invalid
from trainer_client.errors import InvalidRequest
from trainer_client.wire import (
    AliasMove,
    AliasName,
    Lineage,
    NewRubricName,
    RetirementRequest,
    RubricAlias,
    RubricAliases,
    RubricDiff,
    RubricHistory,
    RubricName,
    RubricPage,
    RubricPublication,
    RubricTags,
    RubricVersion,
    TagSet,
    parse_reference,
)

_NEW_NAME: TypeAdapter[str] = TypeAdapter(NewRubricName)
_NAME: TypeAdapter[str] = TypeAdapter(RubricName)
_ALIAS: TypeAdapter[str] = TypeAdapter(AliasName)


def publish_call(
    name: str,
    criteria: Sequence[CriterionLike],
    metadata: Mapping[str, Any] | None,
    tags: Sequence[str],
    lineage: Lineage | Mapping[str, Any] | None,
    parent: int | None,
) -> Call[RubricVersion]:
    """Make `POST /v1/rubrics/{name}/versions`, under a key of its own, so that it may be sent again.

    Raises:
        InvalidRequest: the name is no rubric name, or what is to be published breaks the wire contract.
    """
    beside = {"metadata": metadata, "tags": tags or None, "lineage": lineage, "parent": parent}
    given = {"criteria": criteria} | {field: value for field, value in beside.items() if value is not None}
    path = f"{_path(name, _NEW_NAME)}/versions"
    return _call("POST", path, RubricVersion, RubricPublication, given, fresh_key())


def rubric_call(reference: str) -> Call[RubricVersion]:
    """Make `GET /v1/rubrics/{reference}`; raises `InvalidRequest` where the reference is none."""
    return Call("GET", f"/v1/rubrics/{_reference(reference)}", RubricVersion)


def rubrics_call(prefix: str, tag: str | None, text: str, after: str | None) -> Call[RubricPage]:
    """Make `GET /v1/rubrics`, the page after a cursor."""
    given = {"prefix": prefix, "tag": tag, "text": text, "after": after}
    params = {key: value for key, value in given.items() if value}
    return Call("GET", "/v1/rubrics", RubricPage, params=params)


def history_call(name: str, after: str | None) -> Call[RubricHistory]:
    """Make `GET /v1/rubrics/{name}/versions`, the page after a cursor."""
    return Call("GET", f"{_path(name)}/versions", RubricHistory, params={"after": after} if after else {})


def diff_call(name: str, before: int | str, after: int | str) -> Call[RubricDiff]:
    """Make `GET /v1/rubrics/{name}/diff`."""
    return Call("GET", f"{_path(name)}/diff", RubricDiff, params={"from": str(before), "to": str(after)})


def aliases_call(name: str) -> Call[RubricAliases]:
    """Make `GET /v1/rubrics/{name}/aliases`."""
    return Call("GET", f"{_path(name)}/aliases", RubricAliases)


def move_alias_call(name: str, alias: str, version: int, expected: int | None) -> Call[RubricAlias]:
    """Make `PUT /v1/rubrics/{name}/aliases/{alias}`; expecting None, only if there is no such alias."""
    condition = {"If-None-Match": "*"} if expected is None else {"If-Match": f'"{expected}"'}
    return _call("PUT", _alias_path(name, alias), RubricAlias, AliasMove, {"version": version}, condition)


def remove_alias_call(name: str, alias: str, expected: int) -> Call[RubricAliases]:
    """Make `DELETE /v1/rubrics/{name}/aliases/{alias}`."""
    return Call("DELETE", _alias_path(name, alias), RubricAliases, conditions={"If-Match": f'"{expected}"'})


def tags_call(name: str, tags: Sequence[str]) -> Call[RubricTags]:
    """Make `PUT /v1/rubrics/{name}/tags`."""
    return _call("PUT", f"{_path(name)}/tags", RubricTags, TagSet, {"tags": tags})


def retire_call(reference: str, reason: str) -> Call[RubricVersion]:
    """Make `PUT /v1/rubrics/{reference}/retirement`."""
    path = f"/v1/rubrics/{_reference(reference)}/retirement"
    return _call("PUT", path, RubricVersion, RetirementRequest, {"reason": reason})


def restore_call(reference: str) -> Call[RubricVersion]:
    """Make `DELETE /v1/rubrics/{reference}/retirement`."""
    return Call("DELETE", f"/v1/rubrics/{_reference(reference)}/retirement", RubricVersion)


def _call(
    method: str,
    path: str,
    answer: type[AnswerT],
    message: type[BaseModel],
    fields: Mapping[str, Any],
    conditions: Mapping[str, str] | None = None,
) -> Call[AnswerT]:
    try:
        body = as_json(message.model_validate(fields))
    except ValidationError as error:
        raise invalid(error) from error
    return Call(method, path, answer, body, conditions=conditions or {})


def _path(name: str, allowed: TypeAdapter[str] = _NAME) -> str:
    try:
        return f"/v1/rubrics/{allowed.validate_python(name)}"
    except ValidationError as error:
        raise invalid(error) from error


def _alias_path(name: str, alias: str) -> str:
    try:
        return f"{_path(name)}/aliases/{_ALIAS.validate_python(alias)}"
    except ValidationError as error:
        raise invalid(error) from error


def _reference(reference: str) -> str:
    try:
        parse_reference(reference)
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
    return reference
