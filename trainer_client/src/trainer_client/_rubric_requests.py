"""Makes the requests of `/v1/rubrics`, checked by the wire contract before anything is sent. Sends none itself."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from trainer_client._answers import AnswerT
from trainer_client._criteria import CriterionLike
from trainer_client._requests import PreparedRequest, invalid_request_error, new_idempotency_header, to_json_bytes
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


def publish_request(
    name: str,
    criteria: Sequence[CriterionLike],
    metadata: Mapping[str, Any] | None,
    tags: Sequence[str],
    lineage: Lineage | Mapping[str, Any] | None,
    parent: int | None,
) -> PreparedRequest[RubricVersion]:
    """Make `POST /v1/rubrics/{name}/versions`, under a key of its own, so that it may be sent again.

    Raises:
        InvalidRequest: the name is no rubric name, or what is to be published breaks the wire contract.
    """
    optional_fields = {"metadata": metadata, "tags": tags or None, "lineage": lineage, "parent": parent}
    given = {"criteria": criteria} | {field: value for field, value in optional_fields.items() if value is not None}
    path = f"{_path(name, _NEW_NAME)}/versions"
    return _json_request("POST", path, RubricVersion, RubricPublication, given, new_idempotency_header())


def rubric_request(reference: str) -> PreparedRequest[RubricVersion]:
    """Make `GET /v1/rubrics/{reference}`; raises `InvalidRequest` where the reference is none."""
    return PreparedRequest("GET", f"/v1/rubrics/{_reference(reference)}", RubricVersion)


def rubrics_request(prefix: str, tag: str | None, text: str, after: str | None) -> PreparedRequest[RubricPage]:
    """Make `GET /v1/rubrics`, the page after a cursor."""
    given = {"prefix": prefix, "tag": tag, "text": text, "after": after}
    params = {key: value for key, value in given.items() if value}
    return PreparedRequest("GET", "/v1/rubrics", RubricPage, params=params)


def history_request(name: str, after: str | None) -> PreparedRequest[RubricHistory]:
    """Make `GET /v1/rubrics/{name}/versions`, the page after a cursor."""
    return PreparedRequest("GET", f"{_path(name)}/versions", RubricHistory, params={"after": after} if after else {})


def diff_request(name: str, before: int | str, after: int | str) -> PreparedRequest[RubricDiff]:
    """Make `GET /v1/rubrics/{name}/diff`."""
    return PreparedRequest("GET", f"{_path(name)}/diff", RubricDiff, params={"from": str(before), "to": str(after)})


def aliases_request(name: str) -> PreparedRequest[RubricAliases]:
    """Make `GET /v1/rubrics/{name}/aliases`."""
    return PreparedRequest("GET", f"{_path(name)}/aliases", RubricAliases)


def move_alias_request(name: str, alias: str, version: int, expected: int | None) -> PreparedRequest[RubricAlias]:
    """Make `PUT /v1/rubrics/{name}/aliases/{alias}`; expecting None, only if there is no such alias."""
    condition = {"If-None-Match": "*"} if expected is None else {"If-Match": f'"{expected}"'}
    return _json_request("PUT", _alias_path(name, alias), RubricAlias, AliasMove, {"version": version}, condition)


def remove_alias_request(name: str, alias: str, expected: int) -> PreparedRequest[RubricAliases]:
    """Make `DELETE /v1/rubrics/{name}/aliases/{alias}`."""
    return PreparedRequest("DELETE", _alias_path(name, alias), RubricAliases, headers={"If-Match": f'"{expected}"'})


def tags_request(name: str, tags: Sequence[str]) -> PreparedRequest[RubricTags]:
    """Make `PUT /v1/rubrics/{name}/tags`."""
    return _json_request("PUT", f"{_path(name)}/tags", RubricTags, TagSet, {"tags": tags})


def retire_request(reference: str, reason: str) -> PreparedRequest[RubricVersion]:
    """Make `PUT /v1/rubrics/{reference}/retirement`."""
    path = f"/v1/rubrics/{_reference(reference)}/retirement"
    return _json_request("PUT", path, RubricVersion, RetirementRequest, {"reason": reason})


def restore_request(reference: str) -> PreparedRequest[RubricVersion]:
    """Make `DELETE /v1/rubrics/{reference}/retirement`."""
    return PreparedRequest("DELETE", f"/v1/rubrics/{_reference(reference)}/retirement", RubricVersion)


def _json_request(
    method: str,
    path: str,
    answer: type[AnswerT],
    message: type[BaseModel],
    fields: Mapping[str, Any],
    headers: Mapping[str, str] | None = None,
) -> PreparedRequest[AnswerT]:
    try:
        body = to_json_bytes(message.model_validate(fields))
    except ValidationError as error:
        raise invalid_request_error(error) from error
    return PreparedRequest(method, path, answer, body, headers=headers or {})


def _path(name: str, allowed: TypeAdapter[str] = _NAME) -> str:
    try:
        return f"/v1/rubrics/{allowed.validate_python(name)}"
    except ValidationError as error:
        raise invalid_request_error(error) from error


def _alias_path(name: str, alias: str) -> str:
    try:
        return f"{_path(name)}/aliases/{_ALIAS.validate_python(alias)}"
    except ValidationError as error:
        raise invalid_request_error(error) from error


def _reference(reference: str) -> str:
    try:
        parse_reference(reference)
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
    return reference
