"""Every command of `adjudge`: its help, arguments and options, as typer shows them."""

from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from adjudge_services.cli.main import PANELS, app
from tests.docs.reference.markdown import prose, sentence, table

_HELP_OPTIONS = {"--help"}


def commands_page() -> str:
    """A list of all commands, and a section for each."""
    root = get_command(app)
    assert isinstance(root, TyperGroup)
    context = typer.Context(root)
    lines = []
    for panel, names in PANELS.items():
        rows = []
        for name in names:
            command = root.get_command(context, name)
            first = (command.help or "").partition("\n\n")[0]
            rows.append((f"[`adjudge {name}`](#adjudge-{name})", first))
        lines += [f"**{panel}**", "", table(("command", "what it does"), rows), ""]
    for names in PANELS.values():
        for name in names:
            lines += _sections(root.get_command(context, name), ("adjudge", name))
    return "\n".join(lines)


def _sections(command: Any, path: tuple[str, ...]) -> list[str]:
    name = " ".join(path)
    lines = [f"## {name}", "", *_paragraphs(command.help)]
    context = typer.Context(command, info_name=name)
    runs = not isinstance(command, TyperGroup) or command.invoke_without_command
    if runs:
        lines += _usage(command, context)
    if isinstance(command, TyperGroup):
        rows = []
        for word in command.commands:
            below = command.get_command(context, word)
            first = (below.help or "").partition("\n\n")[0]
            rows.append((f"[`{name} {word}`](#{'-'.join((*path, word))})", first))
        lines += [table(("command", "what it does"), rows), ""]
        for word in command.commands:
            lines += _sections(command.get_command(context, word), (*path, word))
    return lines


def _paragraphs(text: str | None) -> list[str]:
    return [line for part in (text or "").split("\n\n") if part.strip() for line in (prose(part), "")]


def _usage(command: Any, context: Any) -> list[str]:
    parameters = [one for one in command.get_params(context) if not getattr(one, "hidden", False)]
    arguments = [one for one in parameters if one.param_type_name == "argument"]
    options = [one for one in parameters if one.param_type_name == "option" and not _HELP_OPTIONS & {*one.opts}]
    usage = " ".join([context.info_name, *command.collect_usage_pieces(context)])
    rows = [(f"`{one.metavar or one.name}`", "", sentence(one.help or "")) for one in arguments]
    for one in options:
        rows.append((_names(one), _default(one), _meaning(one)))
    return ["```text", usage, "```", "", table(("argument or option", "default", "meaning"), rows), ""]


def _names(option: Any) -> str:
    value = f" {option.metavar}" if option.metavar and not option.is_flag else ""
    names = [*option.opts, *option.secondary_opts]
    return ", ".join(f"`{name}{value if name in option.opts else ''}`" for name in names)


def _default(option: Any) -> str:
    if option.required:
        return "required"
    default = option.show_default if isinstance(option.show_default, str) else option.default
    if default is None or default == () or callable(default) or (option.is_flag and default is False):
        return ""
    if option.is_flag:
        return f"`{option.opts[0]}`"
    shown = getattr(default, "value", default)
    if isinstance(shown, list | tuple):
        return ", ".join(f"`{each}`" for each in shown)
    return f"`{shown}`"


def _meaning(option: Any) -> str:
    low, high = option.min, option.max
    bounds = ""
    if low is not None and high is not None:
        bounds = f" From {low} to {high}."
    elif low is not None:
        bounds = f" At least {low}."
    elif high is not None:
        bounds = f" At most {high}."
    variable = f" Environment variable: {option.envvar}." if option.envvar else ""
    return sentence(option.help or "") + bounds + variable
