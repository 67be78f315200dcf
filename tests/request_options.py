"""Writes what repeats the options of requests, from the wire models that declare them.

- `trainer_client.client.keywords`, the types of the client's keyword arguments;
- the list of options in the docstring of `AsyncClient.rewards`;
- the tables of `docs/reference/request-options.md`: names, types, defaults and descriptions.

With `--check`, it writes nothing, and exits with 1 if a file is not what it would write.
"""

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.written_files import write_or_check
from trainer_client.wire import ComparisonRequest, RewardRequest, VerdictRequest
from trainer_client.wire.base import DocumentedModel, RequestModel
from trainer_client.wire.options import RequestOption, request_options

ROOT = Path(__file__).parents[1]
CLIENT = ROOT / "trainer_client/src/trainer_client/client"
PAGE = "docs/reference/request-options.md"
BEGIN, END = "<!-- generated: options (python -m tests.request_options) -->", "<!-- end of what is generated -->"
PARTS = ("reward", "judging", "")
"""The parts of a request, in the order of the page."""
PARAMETERS = {"mode", "on_failure", "deadline_s"}
"""Options that are parameters of the client's methods, with defaults of their own."""

HEADER = '''"""The keyword arguments of judging requests.

Generated from the wire models by `python -m tests.request_options`: change those instead.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict
'''
MAX_CHOICES = 6
"""Choices that a cell of the table lists; the row's meaning says more about longer ones."""


def generate() -> dict[Path, str]:
    """Return the text of each file."""
    clients, page = CLIENT / "clients.py", ROOT / PAGE
    return {
        CLIENT / "keywords.py": _ruff(keywords()),
        clients: with_options_described(clients.read_text(encoding="utf-8")),
        page: with_table(page.read_text(encoding="utf-8")),
    }


def keywords() -> str:
    """The module of the types of keyword arguments."""
    comparison, verdict, reward = map(_options, (ComparisonRequest, VerdictRequest, RewardRequest))
    classes = [
        ("ComparisonKeywords(TypedDict, total=False)", "all judging requests", comparison),
        ("JudgingKeywords(ComparisonKeywords, total=False)", "judging by a rubric", _without(verdict, comparison)),
        ("VerdictKeywords(JudgingKeywords, total=False)", "verdict requests", _without(verdict, reward)),
        ("RewardKeywords(JudgingKeywords, total=False)", "reward requests", _without(reward, verdict)),
    ]
    common = {name: option for name, option in classes[1][2].items() if name in reward}
    classes[1] = (*classes[1][:2], common)
    text = "".join(f"\n\n{_class(*each)}" for each in classes)
    modules = {cls.__name__: cls.__module__ for cls in _subclasses(RequestModel)}
    used = [name for name in modules if re.search(rf"\b{name}\b", text)]
    return HEADER + "".join(f"from {modules[name]} import {name}\n" for name in used) + text


def _options(request: type[DocumentedModel]) -> dict[str, RequestOption]:
    return _without(request_options(request), PARAMETERS)


def _without(options: Mapping[str, RequestOption], others: Any) -> dict[str, RequestOption]:
    return {name: option for name, option in options.items() if name not in others}


def _subclasses(model: type[Any]) -> Iterator[type[Any]]:
    for each in model.__subclasses__():
        yield each
        yield from _subclasses(each)


def _class(head: str, of: str, options: Mapping[str, RequestOption]) -> str:
    fields = "\n".join(f"    {name}: {_annotation(option)}" for name, option in options.items())
    return f'class {head}:\n    """Options of {of}; see `AsyncClient.rewards`."""\n\n{fields}\n'


def _described(option: RequestOption, indent: str) -> str:
    sentence = option.summary
    objects = [form["title"] for form in option.forms if form["type"] == "object"]
    if objects:
        sentence = f"`{objects[0]}` or its fields: {sentence[:1].lower() + sentence[1:]}"
    default = option.schema.get("default")
    if default is not None and default is not False:
        sentence += f" Default: {_default(default)}."
    words = f"{option.name}: {sentence[:1].lower() + sentence[1:]}"
    return textwrap.fill(words, 120, initial_indent=indent, subsequent_indent=f"{indent}    ", break_on_hyphens=False)


def _annotation(option: RequestOption) -> str:
    forms = [_type(form) for form in option.forms]
    literals = [each.removeprefix("Literal[").removesuffix("]") for each in forms if each.startswith("Literal[")]
    names = [each for each in forms if not each.startswith("Literal[")]
    names += [f"Literal[{', '.join(literals)}]"] if literals else []
    return " | ".join([each for each in names if each != "None"] + ["None"] * ("None" in names or not option.part))


def _type(form: Mapping[str, Any]) -> str:
    """The annotation of what JSON of this form is made from."""
    choices = form.get("enum", [form["const"]] if "const" in form else [])
    if choices:
        return f"Literal[{', '.join(map(repr, choices))}]"
    if form["type"] == "object":
        return f"{form['title']} | Mapping[str, Any]"
    if "prefixItems" in form:
        return f"tuple[{', '.join(map(_type, form['prefixItems']))}]"
    if form["type"] == "array":
        return f"Sequence[{_type(form['items'])}]"
    return {"integer": "int", "number": "float", "boolean": "bool", "string": "str", "null": "None"}[form["type"]]


def with_options_described(source: str) -> str:
    """The module of the client, with the options of reward requests in its docstring."""
    listed = "\n".join(_described(option, " " * 12) for option in _options(RewardRequest).values())
    head, begin, rest = source.partition(
        "        Options; those left out are not sent, and the service uses its defaults:\n"
    )
    _, end, tail = rest.partition("\n\n        Returns:\n")
    assert begin, "clients.py has no list of options"
    assert end, "clients.py has no end of the list of options"
    return head + begin + listed + end + tail


def with_table(page: str) -> str:
    """The page of the options, with a table for each part of the request between its two marks."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    assert begin, f"{PAGE} has no mark {BEGIN}"
    assert end, f"{PAGE} has no mark {END}"
    parts: dict[str, list[str]] = {}
    for option in request_options(RewardRequest).values():
        parts.setdefault(option.part, []).extend(_rows(option))
    lines = []
    for part, rows in sorted(parts.items(), key=lambda one: PARTS.index(one[0])):
        lines += [
            f"## {part or 'Others'}",
            "",
            "| option | type, default | meaning |",
            "| --- | --- | --- |",
            *rows,
            "",
        ]
    return head + begin + "\n\n" + "\n".join(lines) + "\n" + end + tail


def _rows(option: RequestOption) -> Iterator[str]:
    """The row of an option, and those of the fields of an object."""
    yield f"| `{option.path}` | {_cell(option)} | {option.schema['description']} |"
    for form in option.forms:
        for name, schema in form.get("properties", {}).items():
            field = RequestOption(option.path, name, schema, option.mark)
            cell = _cell(field, required=name in form.get("required", ()))
            yield f"| `{field.path}` | {cell} | {schema['description']} |"


def _cell(option: RequestOption, *, required: bool = False) -> str:
    """The cell of an option's type and default."""
    forms = [_said(form) for form in option.forms if form.get("type") != "null"]
    default = option.schema.get("default")
    last = "required" if required else _default(default)
    return f"{' or '.join(forms)}{'; ' if any('`' in form for form in forms) else ', '}{last}"


def _said(form: Mapping[str, Any]) -> str:
    choices = form.get("enum", [form["const"]] if "const" in form else [])
    if choices:
        return ", ".join(f"`{each}`" for each in choices) if len(choices) <= MAX_CHOICES else "text"
    kind: str = form["type"]
    low, above, high = form.get("minimum"), form.get("exclusiveMinimum"), form.get("maximum")
    if "prefixItems" in form:
        return f"{len(form['prefixItems'])} {_said(form['prefixItems'][0]).replace('number', 'numbers')}"
    if kind == "array":
        return f"list of {_said(form['items'])}"
    if kind == "number" and high is not None:
        return f"number in {'[' if above is None else '('}{low if above is None else above:g}, {high:g}]"
    if kind == "integer" and low is not None:
        return f"integer from {low} to {high}" if high is not None else f"integer of at least {low}"
    return "text" if kind == "string" else kind


def _default(value: Any) -> str:
    if isinstance(value, str):
        return f"`{value}`"
    if isinstance(value, list):
        return ", ".join(f"`{each}`" for each in value)
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else f"{value:g}"


def _ruff(text: str) -> str:
    for command in (("check", "--fix-only", "--quiet"), ("format",)):
        arguments = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(CLIENT / "keywords.py"), "-"]
        text = subprocess.run(arguments, input=text, stdout=subprocess.PIPE, text=True, check=True).stdout
    return text


def main() -> None:
    """Write the files, or check them."""
    write_or_check(generate(), "the wire models declare", "tests.request_options")


if __name__ == "__main__":
    main()
