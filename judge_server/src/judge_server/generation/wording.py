"""The prompts of generators: versioned templates, one file per step, under one digest per generator.

A user's folder of templates with the same file names overrides the defaults. It is checked before use: an override may
use only the variables of the default template, and must use all those that are not in `OPTIONAL_VARIABLES`.

The values of variables are untrusted text. Control tokens and markers in them are broken up; longer texts are fenced.
"""

import hashlib
import secrets
from collections.abc import Mapping
from functools import cache, lru_cache, partial
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined, TemplateError, TemplateSyntaxError
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from judge_server.judging.prompts import InvalidTemplate
from judge_server.judging.prompts.fencing import MARKER, fence, neutralise
from judge_server.judging.prompts.library import read_source

TEMPLATE_VERSION = "1"

OPTIONAL_VARIABLES = frozenset(
    {"min_criteria", "max_criteria", "scale", "known", "analysis", "name", "negative", "kind", "correct", "focus"}
)
"""Variables that an override need not use: hints, and bounds, which are checked in any case."""

NO_TEMPLATES: Mapping[str, str] = MappingProxyType({})


_PLACEHOLDER = "fence" + secrets.token_hex(16)
"""Stands for the marker while a template is rendered, where markers in values are broken; no value can contain it."""


class GeneratorTemplates:
    """The templates of one purpose, by names without `.j2`; `overrides` replace default templates by file name."""

    def __init__(self, *names: str, overrides: Mapping[str, str] = NO_TEMPLATES) -> None:
        self.names = tuple(sorted(set(names)))
        self.overrides = overrides

    @property
    def digest(self) -> str:
        """`sha256:…` of all the templates and their names."""
        templates = {**default_templates(), **self.overrides}
        content = "\0".join(f"{name}\0{templates[name + '.j2']}" for name in self.names)
        return "sha256:" + hashlib.sha256(content.encode()).hexdigest()

    def __call__(self, name: str, /, **values: Any) -> str:
        """Render one of the templates.

        Raises:
            KeyError: `name` is not one of these templates.
            InvalidTemplate: a user's template cannot be rendered.
        """
        if name not in self.names:
            raise KeyError(name)
        try:
            template = _environment(tuple(sorted(self.overrides.items()))).get_template(f"{name}.j2")
            return template.render(**values).replace(_PLACEHOLDER, MARKER)
        except (TemplateError, TypeError, ValueError) as error:
            raise InvalidTemplate(f"the template {name}.j2 cannot be rendered: {error}; correct it") from error


def read_templates(folder: Path) -> dict[str, str]:
    """Read a user's templates, keyed by file name, and check each.

    Raises:
        InvalidTemplate: the folder does not exist or has no templates; or a template's name is unknown, it is not text
            of at most 20,000 bytes, does not parse, uses an unknown variable, or leaves out a required one.
    """
    defaults = default_templates()
    try:
        paths = sorted(path for path in folder.iterdir() if path.name.endswith(".j2"))
    except OSError as error:
        raise InvalidTemplate(f"the folder {folder} cannot be read: {error.strerror}") from error
    if not paths:
        raise InvalidTemplate(f"the folder {folder} holds no template; it may hold {', '.join(defaults)}")
    return {path.name: _read(path, defaults) for path in paths}


def _read(path: Path, defaults: Mapping[str, str]) -> str:
    where = f"{path.parent.name}/{path.name}"
    if path.name not in defaults:
        raise InvalidTemplate(f"{where} is not the name of a generator template; use one of {', '.join(defaults)}")
    text = read_source(path, where=where)
    given = _variables(defaults[path.name])
    try:
        used = _variables(text)
    except TemplateSyntaxError as error:
        raise InvalidTemplate(f"{where}:{error.lineno}: {error.message}") from error
    except (TemplateError, RecursionError, MemoryError, ValueError) as error:
        raise InvalidTemplate(f"{where} is too complex to compile; make it simpler") from error
    if unknown := used - given:
        has = ", ".join(sorted(given)) or "nothing"
        raise InvalidTemplate(f"{where} uses the unknown variable {min(unknown)!r}; it may use {has}")
    if hidden := given - used - OPTIONAL_VARIABLES:
        name = min(hidden)
        raise InvalidTemplate(f"{where} does not show {name!r}; write {{{{ {name} | fenced }}}} where it belongs")
    return text


def _variables(text: str) -> set[str]:
    environment = _environment()
    environment.from_string(text)  # raises for unknown filters
    return find_undeclared_variables(environment.parse(text))


@cache
def default_templates() -> Mapping[str, str]:
    """Return the package's generator templates, keyed by file name."""
    folder = files("judge_server.generation") / "templates" / f"v{TEMPLATE_VERSION}"
    templates = (file for file in folder.iterdir() if file.name.endswith(".j2"))
    return {file.name: file.read_text(encoding="utf-8") for file in sorted(templates, key=lambda file: file.name)}


@lru_cache(maxsize=8)
def _environment(overrides: tuple[tuple[str, str], ...] = ()) -> Environment:
    environment = ImmutableSandboxedEnvironment(
        loader=DictLoader({**default_templates(), **dict(overrides)}),
        undefined=StrictUndefined,
        autoescape=False,  # plain text for a model: HTML escaping would corrupt it
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: neutralise(value) if isinstance(value, str) else value,
    )
    environment.filters["fenced"] = partial(fence, marker=_PLACEHOLDER)
    return environment
