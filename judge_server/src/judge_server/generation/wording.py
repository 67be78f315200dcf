"""The words generators ask with: versioned templates of our own, one file a step, each kind's under one digest.

A set of the user's own, a folder of files under the names of ours, replaces some of them. A set is checked before
anything is asked with it: a template may show what ours shows, and must show the material that ours shows.

Whatever a template shows was written by somebody else: control tokens in it are broken, and longer texts stand between
markers made from a hash of the text, which nobody can write inside it. What is asked of whom is not known here.
"""

import hashlib
from collections.abc import Mapping
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from jinja2 import DictLoader, Environment, StrictUndefined, TemplateError, TemplateSyntaxError
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from judge_server.ports.operations import JobFailed
from judge_server.prompts import InvalidTemplate
from judge_server.prompts.fencing import Fence, neutralise
from judge_server.prompts.sources import read_source

TEMPLATE_VERSION = "1"

OPTIONAL_VARIABLES = frozenset(
    {"fewest", "most", "scale", "known", "analysis", "name", "negative", "kind", "correct", "focus"}
)
"""What a template may leave out of what ours shows: bounds, which are checked in any case, and hints."""

NO_TEMPLATES: Mapping[str, str] = MappingProxyType({})

_fence = Fence(b"no secret: the marker hangs on the text alone")


class GeneratorTemplates:
    """The templates of one purpose, by their names without `.j2`; those in `replaced`, by file name, for ours."""

    def __init__(self, *names: str, overrides: Mapping[str, str] = NO_TEMPLATES) -> None:
        self.names = tuple(sorted(set(names)))
        self.overrides = overrides

    def with_overrides(self, overrides: Mapping[str, str]) -> Self:
        """The same with these templates in place of ours."""
        return type(self)(*self.names, overrides=overrides)

    @property
    def digest(self) -> str:
        """`sha256:…` of all of them, their names included."""
        templates = {**default_templates(), **self.overrides}
        content = "\0".join(f"{name}\0{templates[name + '.j2']}" for name in self.names)
        return "sha256:" + hashlib.sha256(content.encode()).hexdigest()

    def __call__(self, name: str, /, **values: Any) -> str:
        """One of them, filled in.

        Raises:
            KeyError: it is not among those named.
            JobFailed: a template of the user's own cannot be filled in.
        """
        if name not in self.names:
            raise KeyError(name)
        try:
            return self._rendering_environment.get_template(f"{name}.j2").render(**values)
        except (TemplateError, TypeError, ValueError) as error:
            raise JobFailed(f"the template {name}.j2 cannot be filled in: {error}; mend it") from error

    @cached_property
    def _rendering_environment(self) -> Environment:
        return _environment_of({**default_templates(), **self.overrides}) if self.overrides else _environment()


def read_templates(folder: Path) -> dict[str, str]:
    """A user's templates by file name, each checked.

    Raises:
        TemplateRefused: there is no such folder or no template in it; or one has no name of ours, is no text of at most
            20,000 bytes, does not parse, uses what it is not given, or leaves out what ours shows.
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
        raise InvalidTemplate(f"{where} is not a template of the generators; there are {', '.join(defaults)}")
    text = read_source(path, where=where)
    given = _variables(defaults[path.name])
    try:
        used = _variables(text)
    except TemplateSyntaxError as error:
        raise InvalidTemplate(f"{where}:{error.lineno}: {error.message}") from error
    except (TemplateError, RecursionError, MemoryError, ValueError) as error:
        raise InvalidTemplate(f"{where} is too much to be compiled; make it simpler") from error
    if unknown := used - given:
        has = ", ".join(sorted(given)) or "nothing"
        raise InvalidTemplate(f"{where} uses {min(unknown)!r}, which it is not given; it is given {has}")
    if hidden := given - used - OPTIONAL_VARIABLES:
        name = min(hidden)
        raise InvalidTemplate(f"{where} does not show {name!r}; write {{{{ {name} | fenced }}}} where it belongs")
    return text


def _variables(text: str) -> set[str]:
    environment = _environment()
    environment.from_string(text)  # filters that there are not are found here
    return find_undeclared_variables(environment.parse(text))


@cache
def default_templates() -> Mapping[str, str]:
    """The package's templates of generation by file name."""
    folder = files("judge_server.generation") / "templates" / f"v{TEMPLATE_VERSION}"
    found = (file for file in folder.iterdir() if file.name.endswith(".j2"))
    return {file.name: file.read_text(encoding="utf-8") for file in sorted(found, key=lambda file: file.name)}


@cache
def _environment() -> Environment:
    return _environment_of(default_templates())


def _environment_of(templates: Mapping[str, str]) -> Environment:
    made = ImmutableSandboxedEnvironment(
        loader=DictLoader(templates),
        undefined=StrictUndefined,
        autoescape=False,  # plain text for a model: HTML escaping would corrupt it
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: neutralise(value) if isinstance(value, str) else value,
    )
    made.filters["fenced"] = _fence
    return made
