"""Parameters of a command that stand for several options, so that each option is declared once.

- A parameter marked with `FromRequest` takes the options of a request, made from the fields of its wire model: their
  types, bounds, choices and defaults, and the first sentence of their descriptions.
- A parameter whose type is a dataclass takes an option for each of its fields, which several commands share.
"""

import inspect
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_type_hints

import typer

from adjudge_services.cli.options import JUDGING, REWARD

if TYPE_CHECKING:  # commands that make no request need no wire models
    from trainer_client.wire.base import DocumentedModel
    from trainer_client.wire.options import RequestOption

_PANELS = {"judging": JUDGING, "reward": REWARD}
"""The panels of options by the part of the request that they are in."""


@dataclass(frozen=True)
class FromRequest:
    """Marks a parameter that takes options of a request: a mapping by name.

    An option that is not given, or given as its default, is not sent: the service's default holds.

    Attributes:
        request: the request.
        part: offer only the options of this part of the request, such as `judging`.
        only: the names of the options to offer; by default all.
        without: those to leave out.
        repeated: offer each several times; the mapping then has lists.
        defaults: whether options have the request's defaults; without, the mapping has all that are given.
    """

    request: "type[DocumentedModel]"
    part: str | None = None
    only: Collection[str] | None = None
    without: Collection[str] = ()
    repeated: bool = False
    defaults: bool = True

    def parameters(self) -> Iterator[inspect.Parameter]:
        """The parameters of the options, in the order of the request's fields."""
        from trainer_client.wire.options import request_options

        for name, option in request_options(self.request).items():
            wanted = self.part in (None, option.part) and (self.only is None or name in self.only)
            if wanted and name not in self.without:
                made = _parameter(option, repeated=self.repeated)
                yield made if self.defaults and not self.repeated else made.replace(default=None)


def expand_groups(function: Callable[..., None]) -> Callable[..., None]:
    """Return a function whose parameters are single options, which calls the given one with its groups."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[list[str], Callable[..., Any]]] = {}
    for one in inspect.signature(function, eval_str=True).parameters.values():
        mark = next((each for each in get_args(one.annotation)[1:] if isinstance(each, FromRequest)), None)
        make: Callable[..., Any]
        if mark is not None:
            own = list(mark.parameters())
            make = partial(_given, {each.name: each.default for each in own})
        elif isinstance(one.annotation, type) and is_dataclass(one.annotation):
            group = one.annotation
            types = get_type_hints(group, include_extras=True)
            own = [_keyword(field.name, types[field.name], field.default) for field in fields(group)]
            make = group
        else:
            parameters.append(one.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        groups[one.name] = [each.name for each in own], make
        parameters += own

    @wraps(function)
    def command(**given: Any) -> None:
        made = {name: make(**{each: given.pop(each) for each in own}) for name, (own, make) in groups.items()}
        function(**given, **made)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _given(defaults: Mapping[str, Any], **values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value != defaults[name]}


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _parameter(option: "RequestOption", *, repeated: bool) -> inspect.Parameter:
    """Return the parameter of an option of a request."""
    forms = [form for form in option.forms if form.get("type") != "null"]
    kinds = {form.get("type", "string") for form in forms}
    metavar, default = option.mark.metavar, option.schema.get("default")
    several = repeated
    name, help = f"--{option.name.replace('_', '-')}", option.sentence
    given: dict[str, Any] = {}
    type_: Any = str
    if kinds == {"array"} and "prefixItems" in forms[0]:
        type_ = tuple[tuple(float for _ in forms[0]["prefixItems"])]  # type: ignore[misc]
    elif kinds == {"array"}:
        forms, several = [forms[0]["items"]], True
    elif kinds == {"boolean"}:
        type_ = bool
        name += "" if default is False and not repeated else f"/--no-{name[2:]}"
    elif kinds <= {"integer", "number"}:
        type_ = int if kinds == {"integer"} else float
        given = {"min": forms[0].get("minimum"), "max": forms[0].get("maximum")}
    elif kinds == {"object"}:
        given, metavar = {"parser": _json}, metavar or "JSON"
        help = f"{help} A JSON object with {', '.join(forms[0]['properties'])}."
    elif "integer" in kinds:
        given = {"parser": _number_or_word}
    choices = [choice for form in forms for choice in form.get("enum", ())]
    if choices and several:
        metavar, help = metavar or "CHOICE", f"{help} One of {', '.join(choices[:-1])} or {choices[-1]}."
        given = {"callback": _only(choices)}
    elif choices and metavar is None:
        type_ = Literal[tuple(choices)]
    if several:
        type_, help = list[type_], f"{help} Repeat it for several."
    panel = option.mark.panel or _PANELS[option.part]
    shown = typer.Option(name, help=help, metavar=metavar, rich_help_panel=panel, **given)
    return _keyword(option.name, Annotated[type_ | None, shown], default)


def _only(choices: Sequence[str]) -> Callable[[list[str] | None], list[str] | None]:
    def check(given: list[str] | None) -> list[str] | None:
        for one in given or ():
            if one not in choices:
                raise typer.BadParameter(f"{one!r} is not one of {', '.join(choices)}")
        return given

    return check


def _number_or_word(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() else text


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"this is not JSON: {error}") from None
