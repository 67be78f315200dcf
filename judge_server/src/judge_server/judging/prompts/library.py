"""Template sets: what each declares, and which ones a server offers by name.

The package ships one set for each paper's judge, and a server may have a folder with sets of its own, which take
precedence over the package's sets of the same name.

A template must show the judge everything a request provides (`REQUIRED_VARIABLES`). If the judge is not to see
something, as in the papers' prompts, the set declares so in its `set.toml`. The templates then do not get it, and the
answer to a request names what was withheld.

Each template is checked when it is read, by rendering it with every combination of its variables.
"""

import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any, get_args

from jinja2 import Environment, StrictUndefined, Template, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import TypeAdapter, ValidationError

from judge_server.errors import InvalidRequest, invalid_field
from judge_server.judging.prompts.grammar import TemplateGrammarError, check_grammar
from trainer_client.wire import CriterionKind, JudgingProtocol
from trainer_client.wire.judging import TemplateName

SET_FILE = "set.toml"
MAX_SET_FILE_BYTES = 4_000
"""Bytes."""

PROTOCOLS = (*get_args(JudgingProtocol), "comparison")
MATERIAL = ("grounding", "reference_answer", "ground_truth")
"""What a request may give a group besides its prompt."""
WITHHELD = (*MATERIAL, "criteria")
_WITHOUT_CRITERIA = frozenset({"likert", "comparison"})
_MAX_WORD_LENGTH = 20
_MAX_LEAD_LENGTH = 200


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a set declares. By default it is for every protocol and shows everything a request provides.

    Attributes:
        protocols: the protocols its wording is for; requests under others are refused. None for all.
        requires: the entries of `MATERIAL` that a group must have to be judged with this set.
        withholds: the entries of `WITHHELD` that the judge is not shown. Programs that verify a criterion still see
            them.
        verdicts: the two answers to a criterion asked by itself, satisfied first; None for true and false.
        lead: what the judge's answer begins with, before the verdict. Written on behalf of the judge, so such a set
            asks about one criterion a call, without reasons or thinking.
    """

    protocols: tuple[str, ...] | None = None
    requires: tuple[str, ...] = ()
    withholds: tuple[str, ...] = ()
    verdicts: tuple[str, str] | None = None
    lead: str = ""

    @property
    def digest_parts(self) -> tuple[str, ...]:
        """The parts that change a prompt or its answer, as text; empty if there are none."""
        withheld = f"withholds {', '.join(self.withholds)}" if self.withholds else ""
        answers = f"verdicts {', '.join(self.verdicts)}" if self.verdicts else ""
        lead = f"lead {self.lead}" if self.lead else ""
        return tuple(part for part in (withheld, answers, lead) if part)

    def missing(self, given: Mapping[str, Any]) -> str | None:
        """Return the first required entry that is missing or empty; None if all are given."""
        return next((name for name in self.requires if not given[name]), None)


DEFAULT_DECLARATION = Declaration()


@dataclass(frozen=True, slots=True)
class TemplateSet:
    """The templates that a set replaces, by file name, and its declaration."""

    templates: Mapping[str, str] = field(default_factory=dict)
    declaration: Declaration = DEFAULT_DECLARATION


def load_set(folder: Path) -> TemplateSet:
    """Read and check the templates and the declaration of a set.

    Raises:
        InvalidTemplate: there is no template, or a template or the declaration is invalid (see `read_declaration`).
    """
    return TemplateSet(read_set(folder), read_declaration(folder))


def read_declaration(folder: Path) -> Declaration:
    """Read the declaration of a set; without a `set.toml`, return the default.

    Raises:
        InvalidTemplate: the file cannot be read, is not TOML, or declares something that a set cannot.
    """
    path, where = folder / SET_FILE, f"{folder.name}/{SET_FILE}"
    if not path.exists():
        return DEFAULT_DECLARATION
    content = read_source(path, where=where, limit=MAX_SET_FILE_BYTES)
    try:
        declared_values = tomllib.loads(content)
    except (ValueError, RecursionError) as error:
        raise InvalidTemplate(f"{where} is not valid TOML: {error}") from error
    return _declaration(declared_values, where)


def _declaration(declared_values: Mapping[str, Any], where: str) -> Declaration:
    known = {"protocols": PROTOCOLS, "requires": MATERIAL, "withholds": WITHHELD, "verdicts": None, "lead": None}
    for name in declared_values:
        if name not in known:
            raise InvalidTemplate(f"{where} declares {name!r}; it can declare {', '.join(known)}")
    lists = {
        name: _words(declared_values[name], known[name], f"{where}: {name}") for name in {*declared_values} - {"lead"}
    }
    declaration = Declaration(
        lists.get("protocols"),
        lists.get("requires", ()),
        lists.get("withholds", ()),
        _verdicts(lists, where),
        _lead(declared_values, where),
    )
    if declaration.lead and declaration.protocols != ("binary",):
        raise InvalidTemplate(f'{where} has a lead, which only answers of yes or no have; set protocols = ["binary"]')
    if both := set(declaration.requires) & set(declaration.withholds):
        raise InvalidTemplate(f"{where} both requires and withholds {', '.join(sorted(both))}; choose one")
    if "criteria" in declaration.withholds and not _WITHOUT_CRITERIA.issuperset(declaration.protocols or PROTOCOLS):
        raise InvalidTemplate(
            f"{where} withholds criteria, which only ratings and comparisons can do without; limit its protocols to "
            f"{', '.join(sorted(_WITHOUT_CRITERIA))}"
        )
    return declaration


def _words(value: Any, known: Collection[str] | None, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(word, str) for word in value):
        raise InvalidTemplate(f"{where} is {value!r}; give a list of words")
    if len(set(value)) < len(value):
        raise InvalidTemplate(f"{where} has a duplicate: {value!r}; remove it")
    for word in value:
        if known is not None and word not in known:
            raise InvalidTemplate(f"{where} names {word!r}; it can name {', '.join(known)}")
    return tuple(value)


def _verdicts(lists: Mapping[str, tuple[str, ...]], where: str) -> tuple[str, str] | None:
    words = lists.get("verdicts")
    if words is None:
        return None
    if len(words) != 2 or not all(word.isalnum() and len(word) <= _MAX_WORD_LENGTH for word in words):
        raise InvalidTemplate(
            f"{where}: verdicts is {list(words)!r}; give two words of letters or digits, the one for satisfied first"
        )
    met, not_met = (word.casefold() for word in words)
    if met.startswith(not_met) or not_met.startswith(met):
        raise InvalidTemplate(f"{where}: verdicts {words[0]!r} and {words[1]!r} begin alike; choose words that differ")
    return words[0], words[1]


def _lead(declared_values: Mapping[str, Any], where: str) -> str:
    lead = declared_values.get("lead")
    if lead is None:
        return ""
    if not isinstance(lead, str) or not lead.strip() or len(lead) > _MAX_LEAD_LENGTH:
        raise InvalidTemplate(
            f"{where}: lead is {lead!r}; give the text before the verdict, of at most {_MAX_LEAD_LENGTH} characters"
        )
    return lead


_NAME = TypeAdapter(TemplateName)


def builtin_sets() -> dict[str, Path]:
    """Return the folders of the package's sets, by name."""
    return _sets_in(Path(str(files("judge_server.judging.prompts") / "templates" / "sets")))


class TemplateLibrary:
    """The template sets of a server. A set is read when first used, and then kept until the process ends.

    Args:
        folder: the folder with the user's own sets; None for the package's sets only.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._sets: dict[str, TemplateSet] = {}

    @property
    def names(self) -> list[str]:
        """The names of all sets, sorted."""
        return sorted(self.folders)

    @property
    def folders(self) -> dict[str, Path]:
        """The folder of each set by name; the user's own takes precedence."""
        own = _sets_in(self._folder) if self._folder is not None and self._folder.is_dir() else {}
        return builtin_sets() | own

    def find(self, name: str | None) -> TemplateSet:
        """Return the set with a name; without a name, an empty set that replaces nothing.

        Raises:
            InvalidRequest: there is no such set, or it cannot be used. A user's set that cannot be used does not fall
                back to the package's set.
        """
        if name is None:
            return TemplateSet()
        if name not in self._sets:
            self._sets[name] = self._read(name)
        return self._sets[name]

    def _read(self, name: str) -> TemplateSet:
        folder = self.folders.get(name)
        if folder is None:
            raise template_error(f"this server has no template set {name!r}; {self._available()}")
        try:
            return load_set(folder)
        except InvalidTemplate as error:
            raise template_error(f"the template set {name!r} cannot be used: {error}") from error

    def _available(self) -> str:
        available = f"it has {', '.join(self.names)}"
        if self._folder is None:
            return f"{available}; to add sets of your own, start it with ADJUDGE_TEMPLATES_DIR"
        return (
            available if self._folder.is_dir() else f"{available}; the folder in ADJUDGE_TEMPLATES_DIR does not exist"
        )


def template_error(message: str) -> InvalidRequest:
    """Return the error of a request whose template set cannot be used."""
    return invalid_field("judging.template", message)


def _sets_in(folder: Path) -> dict[str, Path]:
    return {path.name: path for path in folder.iterdir() if path.is_dir() and _nameable(path.name)}


def _nameable(name: str) -> bool:
    try:
        _NAME.validate_python(name)
    except ValidationError:
        return False
    return True


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
"""The variables each template must show. Leaving one out would hide from the judge what a request provides."""

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
"""Every template, with all the variables it gets."""

RATING_TEMPLATES = frozenset({"likert.system.j2", "holistic.j2", "verdict.j2"})
"""Templates that ask for a rating. It is one digit, because an engine would read only the 1 of "10"."""

QUESTION_PREFIX_TEMPLATES = frozenset({"shared.j2", "pair.j2"})
"""Templates that must end in a line break, because a question follows them."""

_TEN = re.compile(r"\b(?:10|ten)\b", re.IGNORECASE)

# Prompts are plain text, which HTML escaping would corrupt. Sandboxed, because users write templates too.
ENVIRONMENT: Environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, autoescape=False, trim_blocks=True)


class InvalidTemplate(ValueError):
    """A template set cannot be used; the message names the file and says what to change."""


@cache
def builtin_templates() -> Mapping[str, str]:
    """Return the package's templates by file name."""
    folder = files("judge_server.judging.prompts") / "templates" / f"v{TEMPLATE_VERSION}"
    return {name: (folder / name).read_text(encoding="utf-8") for name in sorted(ALLOWED_VARIABLES)}


@cache
def decision_templates() -> Mapping[str, str]:
    """Return the package's templates for decision models, by the file names of the templates that they replace."""
    folder = files("judge_server.judging.prompts") / "templates" / "decisions"
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir() if path.name in ALLOWED_VARIABLES}


def read_set(folder: Path) -> dict[str, str]:
    """Read and check a user's templates, by file name.

    Raises:
        InvalidTemplate: there is none, or one is refused by `read_template`.
    """
    return {path.name: read_template(path) for path in list_templates(folder)}


def list_templates(folder: Path) -> list[Path]:
    """Return the files of a set that end in `.j2`.

    Raises:
        InvalidTemplate: the folder does not exist, cannot be read, or holds no template.
    """
    if not folder.is_dir():
        raise InvalidTemplate(f"there is no template folder {folder.name!r}; create it with any of {_template_names()}")
    try:
        paths = sorted(path for path in folder.iterdir() if path.name.endswith(".j2"))
    except OSError as error:
        raise InvalidTemplate(f"the folder {folder.name!r} cannot be read: {error.strerror}") from error
    if not paths:
        raise InvalidTemplate(f"the folder {folder.name!r} holds no template; it may hold {_template_names()}")
    return paths


def read_template(path: Path) -> str:
    """Read and check a user's template.

    Raises:
        InvalidTemplate: its name is not that of a template, it is not text of at most `MAX_TEMPLATE_BYTES` bytes, does
            not parse, uses something that is not allowed, or hides something that the judge must see.
    """
    where = f"{path.parent.name}/{path.name}"
    if path.name not in ALLOWED_VARIABLES:
        raise InvalidTemplate(f"{where}: there is no template of this name; rename it to one of {_template_names()}")
    text = read_source(path, where=where)
    check_template(path.name, text, where=where)
    return text


def read_source(path: Path, *, where: str, limit: int = MAX_TEMPLATE_BYTES) -> str:
    """Read the text of a file without checking it; `where` is its name in messages.

    Raises:
        InvalidTemplate: it cannot be read, or is not UTF-8 text of at most `limit` bytes.
    """
    try:
        if not path.is_file():
            raise InvalidTemplate(f"{where} is not a file; put a text file there, or remove it")
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise InvalidTemplate(f"{where} cannot be read: {error.strerror}") from error
    if len(content) > limit:
        raise InvalidTemplate(f"{where} is larger than {limit:,} bytes; shorten it")
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidTemplate(f"{where}:{line}: this is not UTF-8 text; save the file as UTF-8") from error


def check_template(name: str, text: str, *, where: str) -> None:
    """Check the text of the template called `name`.

    Raises:
        InvalidTemplate: see `read_template`; `where` is its name in the message.
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
        # Jinja and Python raise various errors on deep nesting, or on a number with thousands of digits.
        raise InvalidTemplate(f"{where} is too complex to compile; make it simpler") from error
    tried = render_combinations(template, given) if must_show or name in RATING_TEMPLATES else []
    for variable in sorted(must_show):
        if missing := find_hidden(tried, variable):
            raise InvalidTemplate(
                f"{where} does not show {missing}, so the judge would not see what a request gives there; "
                "add it to the template"
            )
    if name in QUESTION_PREFIX_TEMPLATES and not all(one.text.endswith("\n") for one in tried):
        raise InvalidTemplate(
            f"{where} does not end in a line break, but a question follows it; add an empty line at its end"
        )
    if name in RATING_TEMPLATES and any(_TEN.search(one.text) for one in tried if _asks_for_rating(one)):
        raise InvalidTemplate(
            f"{where} says 10 where it asks for a rating, but a rating is answered with one digit; ask for 0 to 9, "
            "which is reported as 1 to 10"
        )


def _asks_for_rating(one: "Rendering") -> bool:
    """Whether this is a `likert` rendering, without trial criteria in it."""
    return one.values["protocol"] == "likert" and not one.values.get("criteria")


def _template_names() -> str:
    return ", ".join(sorted(ALLOWED_VARIABLES))


_OPTIONAL = frozenset({"grounding", "reference_answer", "ground_truth", "final_answer"})
_FLAGS = frozenset({"conversation", "show_final_answer", "rationale", "several"})


@dataclass(frozen=True, slots=True)
class CriterionView:
    """A criterion as templates see it, with control tokens broken in all its texts.

    `negative` is true if a good response avoids the criterion: a pitfall, or a criterion of negative weight. `name` and
    the fields after it are empty if the criterion does not have them; the entries of a list are joined by semicolons.
    """

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
    """A template rendered with one combination of values."""

    values: Mapping[str, Any]
    text: str


_CRITERIA = (
    *[CriterionView(f"⟦{kind}⟧", kind, negative=kind == "pitfall") for kind in get_args(CriterionKind)],
    CriterionView("⟦negative⟧", negative=True),
    CriterionView("⟦scale⟧", scale=20, points="20"),
    CriterionView("⟦guided⟧", name="n", required_elements="r", scoring_guide="s", expected_keywords="k"),
    CriterionView("⟦checked⟧", expected_concepts="c", verification_method="v"),
)


def render_combinations(template: Template, given: Collection[str]) -> list[Rendering]:
    """Render a template with every combination of its variables. It must pass `check_grammar` first."""
    names = sorted(given)
    combinations = [dict(zip(names, values, strict=True)) for values in product(*map(_values, names))]
    return [Rendering(values, template.render(values)) for values in combinations]


def find_hidden(tried: Sequence[Rendering], name: str) -> str | None:
    """Return which part of a variable some renderings do not show, and when; None if all show all of it."""
    failed = [one.values for one in tried if not _shows(one, name)]
    if not failed:
        return None
    what = name if name not in ("criterion", "criteria") else "criterion.description"
    return f"{{{{ {what} }}}}{' of each criterion' if name == 'criteria' else ''}{_where(failed, tried, name)}"


def _shows(one: Rendering, name: str) -> bool:
    text = one.text.casefold()  # a filter may have changed the case
    return all(wanted.casefold() in text for wanted in _texts(one.values[name]))


def _where(failed: Sequence[Mapping[str, Any]], tried: Sequence[Rendering], name: str) -> str:
    """Describe the values that all failed combinations share but not all combinations have."""
    common = []
    for other, value in failed[0].items():
        differs = any(one.values[other] != value for one in tried)
        if (
            differs
            and all(values[other] == value for values in failed)
            and (condition := _describe_value(other, value, name))
        ):
            common.append(condition)
    return f" where {' and '.join(common)}" if common else ""


def _describe_value(other: str, value: Any, name: str) -> str:
    if isinstance(value, CriterionView):
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
    criteria = value if isinstance(value, tuple) else (value,) if isinstance(value, CriterionView) else None
    return (value,) if criteria is None else tuple([criterion.description for criterion in criteria])
