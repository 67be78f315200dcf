"""The words generators ask with: versioned templates of our own, one file a step, each kind's under one digest.

Whatever a template shows was written by somebody else: control tokens in it are broken, and longer texts stand between
markers made from a hash of the text, which nobody can write inside it. What is asked of whom is not known here.
"""

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from judge_server.prompts.fencing import Fence, neutralise

TEMPLATE_VERSION = "1"

_fence = Fence(b"no secret: the marker hangs on the text alone")


class Wording:
    """The templates of one purpose, by their names without `.j2`."""

    def __init__(self, *names: str) -> None:
        self.names = tuple(sorted(set(names)))

    @property
    def digest(self) -> str:
        """`sha256:…` of all of them, their names included."""
        templates = own_templates()
        content = "\0".join(f"{name}\0{templates[name + '.j2']}" for name in self.names)
        return "sha256:" + hashlib.sha256(content.encode()).hexdigest()

    def __call__(self, name: str, /, **values: Any) -> str:
        """One of them, filled in; `KeyError` where it is not among those named."""
        if name not in self.names:
            raise KeyError(name)
        return _environment().get_template(f"{name}.j2").render(**values)


@cache
def own_templates() -> Mapping[str, str]:
    """The package's templates of generation by file name."""
    folder = files("judge_server.generation") / "templates" / f"v{TEMPLATE_VERSION}"
    found = (file for file in folder.iterdir() if file.name.endswith(".j2"))
    return {file.name: file.read_text(encoding="utf-8") for file in sorted(found, key=lambda file: file.name)}


@cache
def _environment() -> Environment:
    made = ImmutableSandboxedEnvironment(
        loader=DictLoader(own_templates()),
        undefined=StrictUndefined,
        autoescape=False,  # plain text for a model: HTML escaping would corrupt it
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: neutralise(value) if isinstance(value, str) else value,
    )
    made.filters["fenced"] = _fence
    return made
