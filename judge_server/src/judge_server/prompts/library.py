"""The template sets of a server: what each declares, and which are offered.

The sets of prompt templates a server has beside its default, by name: the package's, and folders in one folder.

The package has one for each paper's judge. A set of the user's own goes before one of the package's of the same name.

What a set of templates declares beside its texts, in its file `set.toml`: whom it is for, and what it keeps back.

A template must show the judge whatever a request gives it (`judge_server.prompts.sources.REQUIRED_VARIABLES`). Where the judge is
not to see something, as in the papers' prompts, the set says so here, once, and nothing is given to its templates; the
answer to a request names what was withheld.
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
"""What a request may give a group beside its prompt."""
WITHHELD = (*MATERIAL, "criteria")
_WITHOUT_CRITERIA = frozenset({"likert", "comparison"})
_MAX_WORD_LENGTH = 20


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a set declares; by default it is for every protocol, and shows all that a request gives.

    Attributes:
        protocols: those that its words are for; a request under another one is refused. None for all.
        requires: what of `FENCED_VARIABLES` a group must have to be judged with it.
        withholds: what of `WITHHELD` the judge is not shown. Programs that verify a criterion still see it.
        verdicts: the words that the judge answers a criterion with by itself, met first; None for true and false.
    """

    protocols: tuple[str, ...] | None = None
    requires: tuple[str, ...] = ()
    withholds: tuple[str, ...] = ()
    verdicts: tuple[str, str] | None = None

    @property
    def digest_parts(self) -> tuple[str, ...]:
        """What of it changes a prompt or its answer, as text; nothing where it changes neither."""
        kept_back = f"withholds {', '.join(self.withholds)}" if self.withholds else ""
        answered = f"verdicts {', '.join(self.verdicts)}" if self.verdicts else ""
        return tuple(part for part in (kept_back, answered) if part)

    def missing(self, given: Mapping[str, Any]) -> str | None:
        """The first of what it requires that is not given, or is empty; None where all is there."""
        return next((name for name in self.requires if not given[name]), None)


DEFAULT_DECLARATION = Declaration()


@dataclass(frozen=True, slots=True)
class TemplateSet:
    """The templates that a set replaces, by file name, and what it declares."""

    templates: Mapping[str, str] = field(default_factory=dict)
    declaration: Declaration = DEFAULT_DECLARATION


def load_set(folder: Path) -> TemplateSet:
    """Read a set, its templates and its declaration, and check both.

    Raises:
        TemplateRefused: there is no template, one of them is refused, or the declaration is (see `read_declaration`).
    """
    return TemplateSet(read_set(folder), read_declaration(folder))


def read_declaration(folder: Path) -> Declaration:
    """Read what a set declares; without a `set.toml` that is nothing.

    Raises:
        TemplateRefused: the file cannot be read, is not TOML, or declares something that a set cannot.
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
            f"{where} withholds criteria, which only a rating or a comparison can do without; declare protocols of "
            f"{', '.join(sorted(_WITHOUT_CRITERIA))}"
        )
    return declaration


def _words(value: Any, known: Collection[str] | None, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(word, str) for word in value):
        raise InvalidTemplate(f"{where} is {value!r}; it is a list of words")
    if len(set(value)) < len(value):
        raise InvalidTemplate(f"{where} names one twice: {value!r}")
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
            f"{where}: verdicts is {list(words)!r}; it is two words of letters or digits, that for met first"
        )
    met, not_met = (word.casefold() for word in words)
    if met.startswith(not_met) or not_met.startswith(met):
        raise InvalidTemplate(f"{where}: verdicts {words[0]!r} and {words[1]!r} begin alike; choose words that differ")
    return words[0], words[1]


_FIELD = "judging.template"
_NAME = TypeAdapter(TemplateName)


def builtin_sets() -> dict[str, Path]:
    """The folders of the package's sets, by name."""
    return _sets_in(Path(str(files("judge_server.prompts") / "templates" / "sets")))


class TemplateLibrary:
    """Sets are read when they are first asked for, and then stay as they were read until the process ends.

    Args:
        folder: of the user's own sets; None for the package's alone.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._sets: dict[str, TemplateSet] = {}

    @property
    def names(self) -> list[str]:
        """The names of the sets that a request can name."""
        return sorted(self.folders)

    @property
    def folders(self) -> dict[str, Path]:
        """The folder of each set by its name; the user's own where both have one."""
        own = _sets_in(self._folder) if self._folder is not None and self._folder.is_dir() else {}
        return builtin_sets() | own

    def find(self, name: str | None) -> TemplateSet:
        """The set of a name; one that replaces nothing for no name.

        Raises:
            InvalidRequest: there is no such set, or it cannot be used. A set of the user's own that cannot be used is
                not replaced by the package's.
        """
        if name is None:
            return TemplateSet()
        if name not in self._sets:
            self._sets[name] = self._read(name)
        return self._sets[name]

    def _read(self, name: str) -> TemplateSet:
        folder = self.folders.get(name)
        if folder is None:
            raise template_error(f"this server has no set of templates {name!r}; {self._there()}")
        try:
            return load_set(folder)
        except InvalidTemplate as error:
            raise template_error(f"the set of templates {name!r} cannot be used: {error}") from error

    def _there(self) -> str:
        there = f"it has {', '.join(self.names)}"
        if self._folder is None:
            return f"{there}; for sets of your own start it with ADJUDGE_TEMPLATES_DIR"
        return (
            there if self._folder.is_dir() else f"{there}; the folder that its ADJUDGE_TEMPLATES_DIR names is not there"
        )


def template_error(message: str) -> InvalidRequest:
    """The error of a request whose set of templates cannot be used."""
    return InvalidRequest(f"{_FIELD}: {message}", errors=(FieldError(field=_FIELD, message=message),))


def _sets_in(folder: Path) -> dict[str, Path]:
    return {path.name: path for path in folder.iterdir() if path.is_dir() and _nameable(path.name)}


def _nameable(name: str) -> bool:
    try:
        _NAME.validate_python(name)
    except ValidationError:
        return False
    return True
