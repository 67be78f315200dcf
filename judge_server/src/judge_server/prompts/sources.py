"""Where templates come from, and the trial renderings that check them.

Where templates come from: our own, versioned, in the package; and sets of the user's own that replace some of them.

A set is a folder of templates under the names of ours. A template that does more than show what it is given, or leaves
out what it must show the judge, is refused before anything is asked with it.

Renders a template with every combination of what it may be given, to see what it would hide from the judge.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any, get_args

from jinja2 import Environment, StrictUndefined, Template, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from judge_server.prompts.grammar import TemplateGrammarError, check_grammar
from trainer_client.wire import CriterionKind, JudgingProtocol

_OPTIONAL = frozenset({"grounding", "reference_answer", "ground_truth", "final_answer"})
_FLAGS = frozenset({"conversation", "show_final_answer", "rationale", "several"})


@dataclass(frozen=True, slots=True)
class TrialCriterion:
    """A criterion as a template sees it; its description is like no other text."""

    description: str
    kind: str = "point"
    scale: int = 1
    points: str = "1"
    negative: bool = False
    name: str = ""
    required_elements: str = ""
    scoring_guide: str = ""
    expected_keywords: str = ""
    expected_concepts: str = ""
    verification_method: str = ""


@dataclass(frozen=True, slots=True)
class Rendering:
    """What a template made of one combination of values."""

    values: Mapping[str, Any]
    text: str


_CRITERIA = (
    *[TrialCriterion(f"⟦{kind}⟧", kind, negative=kind == "pitfall") for kind in get_args(CriterionKind)],
    TrialCriterion("⟦negative⟧", negative=True),
    TrialCriterion("⟦scale⟧", scale=20, points="20"),
    TrialCriterion("⟦guided⟧", name="n", required_elements="r", scoring_guide="s", expected_keywords="k"),
    TrialCriterion("⟦checked⟧", expected_concepts="c", verification_method="v"),
)


def render_combinations(template: Template, given: Collection[str]) -> list[Rendering]:
    """Render a template that is given these variables; it must keep to `judge_server.prompts.grammar`."""
    names = sorted(given)
    combinations = [dict(zip(names, values, strict=True)) for values in product(*map(_values, names))]
    return [Rendering(values, template.render(values)) for values in combinations]


def find_hidden(tried: Sequence[Rendering], name: str) -> str | None:
    """What of a variable the renderings do not show, and where that is so; None if every one shows all of it."""
    failed = [one.values for one in tried if not _shows(one, name)]
    if not failed:
        return None
    what = name if name not in ("criterion", "criteria") else "criterion.description"
    return f"{{{{ {what} }}}}{' of each criterion' if name == 'criteria' else ''}{_where(failed, tried, name)}"


def _shows(one: Rendering, name: str) -> bool:
    text = one.text.casefold()  # a description may be shown in other letters
    return all(wanted.casefold() in text for wanted in _texts(one.values[name]))


def _where(failed: Sequence[Mapping[str, Any]], tried: Sequence[Rendering], name: str) -> str:
    """What all the failed combinations have in common and not all combinations do."""
    common = []
    for other, value in failed[0].items():
        differs = any(one.values[other] != value for one in tried)
        if (
            differs
            and all(values[other] == value for values in failed)
            and (said := _describe_value(other, value, name))
        ):
            common.append(said)
    return f" where {' and '.join(common)}" if common else ""


def _describe_value(other: str, value: Any, name: str) -> str:
    if isinstance(value, TrialCriterion):
        return f"criterion.kind is {value.kind!r}"
    if other == name or isinstance(value, tuple):
        return ""
    if other in _OPTIONAL:
        return f"there is {'no' if value is None else 'a'} {other}"
    return f"{other} is {str(value).lower() if isinstance(value, bool) else repr(value)}"


def _values(name: str) -> tuple[Any, ...]:
    if name == "criterion":
        return _CRITERIA
    if name == "criteria":
        return (_CRITERIA, _CRITERIA[:1], ())
    if name == "protocol":
        return (*get_args(JudgingProtocol), "comparison")
    if name in _FLAGS:
        return (True, False)
    return (f"⟦{name}⟧", None) if name in _OPTIONAL else (f"⟦{name}⟧",)


def _texts(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    criteria = value if isinstance(value, tuple) else (value,) if isinstance(value, TrialCriterion) else None
    return (value,) if criteria is None else tuple([criterion.description for criterion in criteria])


TEMPLATE_VERSION = "2"
MAX_TEMPLATE_BYTES = 20_000
"""Bytes."""

_MATERIAL = frozenset({"prompt", "grounding", "reference_answer"})
_ASKING = frozenset({"protocol", "rationale"})

REQUIRED_VARIABLES: Mapping[str, frozenset[str]] = {
    "shared.j2": _MATERIAL | {"response", "ground_truth"},
    "pair.j2": _MATERIAL | {"a", "b"},
    "question.j2": frozenset({"criterion"}),
    "questions.j2": frozenset({"criteria"}),
    "holistic.j2": frozenset({"criteria"}),
    "comparison.j2": frozenset({"asked", "criteria"}),
}
"""What each template must use. Leaving one out would hide from the judge what a request gave it."""

ALLOWED_VARIABLES: Mapping[str, frozenset[str]] = {
    "shared.j2": REQUIRED_VARIABLES["shared.j2"] | {"conversation", "show_final_answer", "final_answer"},
    "pair.j2": REQUIRED_VARIABLES["pair.j2"] | {"conversation"},
    "question.j2": REQUIRED_VARIABLES["question.j2"] | _ASKING,
    "questions.j2": REQUIRED_VARIABLES["questions.j2"] | _ASKING,
    "holistic.j2": REQUIRED_VARIABLES["holistic.j2"] | _ASKING,
    "comparison.j2": REQUIRED_VARIABLES["comparison.j2"] | _ASKING,
    "verdict.j2": _ASKING,
    **{
        f"{protocol}.system.j2": _ASKING | {"several"}
        for protocol in ("binary", "stepwise", "graded", "checklist", "likert", "comparison")
    },
}
"""Every template there is, and all the variables it is given."""

RATING_TEMPLATES = frozenset({"likert.system.j2", "holistic.j2", "verdict.j2"})
"""Templates that ask for a rating. It is one digit: of an answer "10", an engine would read the digit 1."""

QUESTION_PREFIX_TEMPLATES = frozenset({"shared.j2", "pair.j2"})
"""Templates that must end in a line break, since a question follows them."""

_TEN = re.compile(r"\b(?:10|ten)\b", re.IGNORECASE)

# Prompts are plain text for a model: HTML escaping would corrupt them. Sandboxed, since users write templates too.
ENVIRONMENT: Environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, autoescape=False, trim_blocks=True)


class InvalidTemplate(ValueError):
    """A set of templates that cannot be used; the message names the file and says what to change."""


@cache
def builtin_templates() -> Mapping[str, str]:
    """The package's templates by file name."""
    folder = files("judge_server.prompts") / "templates" / f"v{TEMPLATE_VERSION}"
    return {name: (folder / name).read_text(encoding="utf-8") for name in sorted(ALLOWED_VARIABLES)}


def read_set(folder: Path) -> dict[str, str]:
    """A user's templates by file name, each checked.

    Raises:
        TemplateRefused: there is none, or one of them is refused by `read_template`.
    """
    return {path.name: read_template(path) for path in list_templates(folder)}


def list_templates(folder: Path) -> list[Path]:
    """The files of a set: all that end in `.j2`.

    Raises:
        TemplateRefused: there is no such folder, it cannot be read, or it holds no template.
    """
    if not folder.is_dir():
        raise InvalidTemplate(
            f"there is no folder of templates {folder.name!r}; make it, with any of {_template_names()} in it"
        )
    try:
        found = sorted(path for path in folder.iterdir() if path.name.endswith(".j2"))
    except OSError as error:
        raise InvalidTemplate(f"the folder {folder.name!r} cannot be read: {error.strerror}") from error
    if not found:
        raise InvalidTemplate(f"the folder {folder.name!r} holds no template; it may hold {_template_names()}")
    return found


def read_template(path: Path) -> str:
    """A user's template, checked.

    Raises:
        TemplateRefused: its name is not a template's, it is not text of at most `MAX_TEMPLATE_BYTES` bytes, does not
            parse, holds what a template must not, or hides from the judge what it must show.
    """
    where = f"{path.parent.name}/{path.name}"
    if path.name not in ALLOWED_VARIABLES:
        raise InvalidTemplate(
            f"{where}: the judge has no template of this name; rename it to one of {_template_names()}"
        )
    text = read_source(path, where=where)
    check_template(path.name, text, where=where)
    return text


def read_source(path: Path, *, where: str) -> str:
    """The text of a template's file, unchecked; `where` is how the message calls it.

    Raises:
        TemplateRefused: it cannot be read, or is not UTF-8 text of at most `MAX_TEMPLATE_BYTES` bytes.
    """
    try:
        if not path.is_file():
            raise InvalidTemplate(f"{where} is not a file; put a text file there, or remove it")
        with path.open("rb") as file:
            content = file.read(MAX_TEMPLATE_BYTES + 1)
    except OSError as error:
        raise InvalidTemplate(f"{where} cannot be read: {error.strerror}") from error
    if len(content) > MAX_TEMPLATE_BYTES:
        raise InvalidTemplate(f"{where} is larger than {MAX_TEMPLATE_BYTES:,} bytes; shorten it")
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidTemplate(f"{where}:{line}: this is not UTF-8 text; save the file as UTF-8") from error


def check_template(name: str, text: str, *, where: str) -> None:
    """Check the text of one template by the name it would go under.

    Raises:
        TemplateRefused: see `read_template`; `where` is how the message calls it.
    """
    given, must_show = ALLOWED_VARIABLES[name], REQUIRED_VARIABLES.get(name, frozenset())
    try:
        parsed = ENVIRONMENT.parse(text)
        check_grammar(parsed, given)
        template = ENVIRONMENT.from_string(text)
    except TemplateSyntaxError as error:
        raise InvalidTemplate(f"{where}:{error.lineno}: {error.message}") from error
    except TemplateGrammarError as error:
        raise InvalidTemplate(f"{where}:{error.line}: {error}") from error
    except (RecursionError, MemoryError, SyntaxError, ValueError) as error:
        # Jinja and Python give up in ways of their own on deep nesting, or on a number of thousands of digits.
        raise InvalidTemplate(f"{where} is too much to be compiled; make it simpler") from error
    tried = render_combinations(template, given) if must_show or name in RATING_TEMPLATES else []
    for variable in sorted(must_show):
        if missing := find_hidden(tried, variable):
            raise InvalidTemplate(
                f"{where} does not show {missing}, so the judge would not see what a request gives there; "
                "write it where it belongs"
            )
    if name in QUESTION_PREFIX_TEMPLATES and not all(one.text.endswith("\n") for one in tried):
        raise InvalidTemplate(
            f"{where} does not end in a line break, and a question follows it; leave an empty line at its end"
        )
    if name in RATING_TEMPLATES and any(_TEN.search(one.text) for one in tried if _asks_for_rating(one)):
        raise InvalidTemplate(
            f"{where} says 10 where it asks for a rating, and a rating is answered with one digit; ask for one from 0 "
            "to 9, which is reported as 1 to 10"
        )


def _asks_for_rating(one: Rendering) -> bool:
    """Whether these are the words of `likert`, without criteria of the trial among them."""
    return one.values["protocol"] == "likert" and not one.values.get("criteria")


def _template_names() -> str:
    return ", ".join(sorted(ALLOWED_VARIABLES))
