"""Every setting of the service, from `Settings`."""

import types
import typing
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from adjudge_services.settings import Settings
from tests.docs.reference.markdown import prose, sentence, table

_TEXT, _HIDDEN = "text", "text that is never shown"
_NAMES: dict[Any, str] = {
    str: _TEXT, SecretStr: _HIDDEN, int: "whole number", float: "number", bool: "`true`, `false`", Path: "path",
    type(None): "",
}  # fmt: skip


def settings_page() -> str:
    """A list of all settings by name, and a section for each."""
    fields = Settings.model_fields
    names = ", ".join(f"[{_name(field)}](#{_name(field).lower()})" for field in sorted(fields))
    lines = [names, ""]
    for field, info in sorted(fields.items()):
        lines += [
            f"## {_name(field)}",
            "",
            prose(sentence(info.description or "")),
            "",
            f"Type: {_type(info)}. Default: {_default(field, info)}.",
            "",
        ]
        annotation = info.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            lines += [table(("field", "default", "meaning"), _inner(annotation)), ""]
    return "\n".join(lines)


def _name(field: str) -> str:
    return f"ADJUDGE_{field.upper()}"


def _inner(model: type[BaseModel]) -> list[tuple[str, str, str]]:
    schema = model.model_json_schema()["properties"]
    return [
        (f"`{name}`", f"`{info.default:g}`", sentence(schema[name].get("description", "")))
        for name, info in model.model_fields.items()
    ]


def _type(info: FieldInfo) -> str:
    words = [word for word in dict.fromkeys(_words(info.annotation)) if word]
    return f"{' or '.join(words)}{_bounds(info)}"


def _words(annotation: Any) -> list[str]:
    origin = get_origin(annotation)
    if origin in (types.UnionType, typing.Union):
        return [word for each in get_args(annotation) for word in _words(each)]
    if origin is Literal:
        return [", ".join(f"`{value}`" for value in get_args(annotation))]
    if origin is dict or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return ["JSON object"]
    return [_NAMES[annotation]]


def _bounds(info: FieldInfo) -> str:
    words = []
    for each in info.metadata:
        for name, word in (
            ("ge", "at least {:,}"), ("gt", "above {:,}"), ("le", "at most {:,}"), ("lt", "below {:,}"),
            ("min_length", "at least {} characters"),
        ):  # fmt: skip
            if (value := getattr(each, name, None)) is not None:
                words.append(word.format(value))
    return f", {' and '.join(words)}" if words else ""


def _default(field: str, info: FieldInfo) -> str:
    default = info.get_default(call_default_factory=True)
    if field == "data_dir":
        return "the user's data folder"
    if isinstance(default, BaseModel):
        return "those below"
    if default is None:
        return "none"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"
