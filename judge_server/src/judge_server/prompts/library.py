"""Template sets: what each declares, and which ones a server offers by name.

The package ships one set for each paper's judge, and a server may have a folder with sets of its own, which take
precedence over the package's sets of the same name.

A template must show the judge everything a request provides (`judge_server.prompts.sources.REQUIRED_VARIABLES`). If the
judge is not to see something, as in the papers' prompts, the set declares so in its `set.toml`. The templates then do
not get it, and the answer to a request names what was withheld.
"""

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from judge_server.errors import InvalidRequest
from judge_server.prompts.sources import InvalidTemplate, read_set
from trainer_client.wire import FieldError, JudgingProtocol
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


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a set declares. By default it is for every protocol and shows everything a request provides.

    Attributes:
        protocols: the protocols its wording is for; requests under others are refused. None for all.
        requires: the entries of `MATERIAL` that a group must have to be judged with this set.
        withholds: the entries of `WITHHELD` that the judge is not shown. Programs that verify a criterion still see
            them.
        verdicts: the two answers to a criterion asked by itself, satisfied first; None for true and false.
    """

    protocols: tuple[str, ...] | None = None
    requires: tuple[str, ...] = ()
    withholds: tuple[str, ...] = ()
    verdicts: tuple[str, str] | None = None

    @property
    def digest_parts(self) -> tuple[str, ...]:
        """The parts that change a prompt or its answer, as text; empty if there are none."""
        withheld = f"withholds {', '.join(self.withholds)}" if self.withholds else ""
        answers = f"verdicts {', '.join(self.verdicts)}" if self.verdicts else ""
        return tuple(part for part in (withheld, answers) if part)

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
    path = folder / SET_FILE
    where = f"{folder.name}/{SET_FILE}"
    try:
        with path.open("rb") as file:
            content = file.read(MAX_SET_FILE_BYTES + 1)
    except FileNotFoundError:
        return DEFAULT_DECLARATION
    except OSError as error:
        raise InvalidTemplate(f"{where} cannot be read: {error.strerror}") from error
    if len(content) > MAX_SET_FILE_BYTES:
        raise InvalidTemplate(f"{where} is larger than {MAX_SET_FILE_BYTES:,} bytes; shorten it")
    try:
        declared_values = tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidTemplate(f"{where} is not valid TOML: {error}") from error
    return _declaration(declared_values, where)


def _declaration(declared_values: Mapping[str, Any], where: str) -> Declaration:
    known = {"protocols": PROTOCOLS, "requires": MATERIAL, "withholds": WITHHELD, "verdicts": None}
    for name in declared_values:
        if name not in known:
            raise InvalidTemplate(f"{where} declares {name!r}; it can declare {', '.join(known)}")
    lists = {name: _words(declared_values[name], known[name], f"{where}: {name}") for name in declared_values}
    declaration = Declaration(
        lists.get("protocols"), lists.get("requires", ()), lists.get("withholds", ()), _verdicts(lists, where)
    )
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


_FIELD = "judging.template"
_NAME = TypeAdapter(TemplateName)


def builtin_sets() -> dict[str, Path]:
    """Return the folders of the package's sets, by name."""
    return _sets_in(Path(str(files("judge_server.prompts") / "templates" / "sets")))


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
    return InvalidRequest(f"{_FIELD}: {message}", errors=(FieldError(field=_FIELD, message=message),))


def _sets_in(folder: Path) -> dict[str, Path]:
    return {path.name: path for path in folder.iterdir() if path.is_dir() and _nameable(path.name)}


def _nameable(name: str) -> bool:
    try:
        _NAME.validate_python(name)
    except ValidationError:
        return False
    return True
