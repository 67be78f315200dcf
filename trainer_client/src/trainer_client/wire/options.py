"""The options of a request: what its callers may choose about judging and rewards.

An option is a field of `RewardOptions`, `JudgingOptions` or `ComparisonOptions`, or a field of the request itself that
is marked as an `Option`. Its type, bounds, default and description are declared there and nowhere else: keywords of the
client, options of the command line, the OpenAPI document and `docs/reference/request-options.md` are made from it.
"""

import re
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from pydantic.fields import FieldInfo

from trainer_client.wire.base import DocumentedModel


@dataclass(frozen=True)
class Option:
    """Marks a field as an option, and says how the command line shows it.

    Attributes:
        panel: the panel of the help; by default the part of the request that has the field.
        metavar: what the help shows for the value, instead of its type or choices. Such a text is checked by the
            request, not by the command line.
    """

    panel: str | None = None
    metavar: str | None = None


class RequestOption(NamedTuple):
    """An option of a request.

    Attributes:
        part: the field of the request that has it, such as `judging`; empty if that is the request itself.
        name: its name.
        schema: its JSON Schema, without references; it has bounds, default and description.
        mark: how the command line shows it.
    """

    part: str
    name: str
    schema: dict[str, Any]
    mark: Option

    @property
    def path(self) -> str:
        """Where it is in the request, such as `judging.votes`."""
        return f"{self.part}.{self.name}" if self.part else self.name

    @property
    def forms(self) -> list[dict[str, Any]]:
        """The schemas of what its value may be."""
        return _forms(self.schema)

    @property
    def summary(self) -> str:
        """The first sentence of its description."""
        description: str = self.schema["description"]
        return re.split(r"(?<=\.) (?=[A-Z`])", description)[0]

    @property
    def sentence(self) -> str:
        """The first sentence, without what follows a colon."""
        return self.summary.partition(": ")[0].removesuffix(".") + "."


def option_parts(request: type[DocumentedModel]) -> dict[str, str]:
    """Return the part of the request that has each option, by the option's name; empty for the request itself."""
    found: dict[str, str] = {}
    for name, field in request.model_fields.items():
        if (part := _part(field)) is not None:
            found |= dict.fromkeys(part.model_fields, name)
        elif _mark(field) is not None:
            found[name] = ""
    return found


@cache
def request_options(request: type[DocumentedModel]) -> dict[str, RequestOption]:
    """Return the options of a request by name, in the order of its fields."""
    found: dict[str, RequestOption] = {}
    for name, part in option_parts(request).items():
        model = _part(request.model_fields[part]) if part else request
        assert model is not None
        schema = _schema(model)
        mark = _mark(model.model_fields[name]) or Option()
        found[name] = RequestOption(part, name, _resolved(schema["properties"][name], schema), mark)
    return found


@cache
def _schema(model: type[DocumentedModel]) -> dict[str, Any]:
    return model.model_json_schema()


def _part(field: FieldInfo) -> type[DocumentedModel] | None:
    """Return the model of a field that is a part of the request."""
    type_ = field.annotation
    return type_ if isinstance(type_, type) and issubclass(type_, DocumentedModel) else None


def _mark(field: FieldInfo) -> Option | None:
    return next((one for one in field.metadata if isinstance(one, Option)), None)


def _forms(schema: dict[str, Any]) -> list[dict[str, Any]]:
    choices = schema.get("anyOf") or schema.get("oneOf")
    return [form for each in choices for form in _forms(each)] if choices else [schema]


def _resolved(schema: Any, whole: dict[str, Any]) -> Any:
    """Return a schema with the definitions that it refers to in their places."""
    if isinstance(schema, list):
        return [_resolved(one, whole) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        definition = schema["$ref"].rpartition("/")[2]
        return {**_resolved(whole["$defs"][definition], whole), **{k: v for k, v in schema.items() if k != "$ref"}}
    return {name: _resolved(one, whole) for name, one in schema.items()}
