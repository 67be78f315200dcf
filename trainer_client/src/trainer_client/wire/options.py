"""The options of a request: what its callers may choose about judging and rewards.

An option is a field of `RewardOptions`, `JudgingOptions` or `ComparisonOptions`, or a field of the request itself that
is marked as an `Option`. Its type, bounds, default and description are declared there and nowhere else: keywords of the
client, options of the command line, the OpenAPI document and the table in `docs/scoring.md` are made from it.
"""

import re
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

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
    def sentence(self) -> str:
        """What it does, in the first sentence of its description, without what follows a colon."""
        first = re.split(r"(?<=[^.]\.) |: ", self.schema["description"])[0]
        return first.removesuffix(".") + "."


@cache
def request_options(request: type[DocumentedModel]) -> dict[str, RequestOption]:
    """Return the options of a request by name, in the order of its fields."""
    schema = request.model_json_schema()
    found: list[RequestOption] = []
    for name, field in request.model_fields.items():
        part = field.annotation
        if isinstance(part, type) and issubclass(part, DocumentedModel):
            inner = part.model_json_schema()
            found += [
                RequestOption(name, each, _resolved(inner["properties"][each], inner), _mark(of.metadata) or Option())
                for each, of in part.model_fields.items()
            ]
        elif (mark := _mark(field.metadata)) is not None:
            found.append(RequestOption("", name, _resolved(schema["properties"][name], schema), mark))
    return {one.name: one for one in found}


def _mark(metadata: list[Any]) -> Option | None:
    return next((one for one in metadata if isinstance(one, Option)), None)


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
