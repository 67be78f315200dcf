"""What a set of templates declares beside its texts, in its file `set.toml`: whom it is for, and what it keeps back.

A template must show the judge whatever a request gives it (`judge_server.prompts.sources.MUST_USE`). Where the judge is
not to see something, as in the papers' prompts, the set says so here, once, and nothing is given to its templates; the
answer to a request names what was withheld.
"""

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from judge_server.prompts.sources import TemplateRefused, read_set
from trainer_client.wire import Protocol

SET_FILE = "set.toml"
LARGEST_SET_FILE = 4_000
"""Bytes."""

PROTOCOLS = (*get_args(Protocol), "comparison")
MATERIAL = ("grounding", "reference_answer", "ground_truth")
"""What a request may give a group beside its prompt."""
WITHHELD = (*MATERIAL, "criteria")
_WITHOUT_CRITERIA = frozenset({"likert", "comparison"})
_LONGEST_WORD = 20


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a set declares; by default it is for every protocol, and shows all that a request gives.

    Attributes:
        protocols: those that its words are for; a request under another one is refused. None for all.
        requires: what of `MATERIAL` a group must have to be judged with it.
        withholds: what of `WITHHELD` the judge is not shown. Programs that verify a criterion still see it.
        verdicts: the words that the judge answers a criterion with by itself, met first; None for true and false.
    """

    protocols: tuple[str, ...] | None = None
    requires: tuple[str, ...] = ()
    withholds: tuple[str, ...] = ()
    verdicts: tuple[str, str] | None = None

    @property
    def digested(self) -> tuple[str, ...]:
        """What of it changes a prompt or its answer, as text; nothing where it changes neither."""
        kept_back = f"withholds {', '.join(self.withholds)}" if self.withholds else ""
        answered = f"verdicts {', '.join(self.verdicts)}" if self.verdicts else ""
        return tuple(part for part in (kept_back, answered) if part)

    def missing(self, given: Mapping[str, Any]) -> str | None:
        """The first of what it requires that is not given, or is empty; None where all is there."""
        return next((name for name in self.requires if not given[name]), None)


NOTHING_DECLARED = Declaration()


@dataclass(frozen=True, slots=True)
class TemplateSet:
    """The templates that a set replaces, by file name, and what it declares."""

    templates: Mapping[str, str] = field(default_factory=dict)
    declared: Declaration = NOTHING_DECLARED


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
            content = file.read(LARGEST_SET_FILE + 1)
    except FileNotFoundError:
        return NOTHING_DECLARED
    except OSError as error:
        raise TemplateRefused(f"{where} cannot be read: {error.strerror}") from error
    if len(content) > LARGEST_SET_FILE:
        raise TemplateRefused(f"{where} is larger than {LARGEST_SET_FILE:,} bytes; shorten it")
    try:
        said = tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise TemplateRefused(f"{where} is not valid TOML: {error}") from error
    return _declaration(said, where)


def _declaration(said: Mapping[str, Any], where: str) -> Declaration:
    known = {"protocols": PROTOCOLS, "requires": MATERIAL, "withholds": WITHHELD, "verdicts": None}
    for name in said:
        if name not in known:
            raise TemplateRefused(f"{where} declares {name!r}; it can declare {', '.join(known)}")
    lists = {name: _words(said[name], known[name], f"{where}: {name}") for name in said}
    declared = Declaration(
        lists.get("protocols"), lists.get("requires", ()), lists.get("withholds", ()), _verdicts(lists, where)
    )
    if both := set(declared.requires) & set(declared.withholds):
        raise TemplateRefused(f"{where} both requires and withholds {', '.join(sorted(both))}; choose one")
    if "criteria" in declared.withholds and not _WITHOUT_CRITERIA.issuperset(declared.protocols or PROTOCOLS):
        raise TemplateRefused(
            f"{where} withholds criteria, which only a rating or a comparison can do without; declare protocols of "
            f"{', '.join(sorted(_WITHOUT_CRITERIA))}"
        )
    return declared


def _words(value: Any, known: Collection[str] | None, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(word, str) for word in value):
        raise TemplateRefused(f"{where} is {value!r}; it is a list of words")
    if len(set(value)) < len(value):
        raise TemplateRefused(f"{where} names one twice: {value!r}")
    for word in value:
        if known is not None and word not in known:
            raise TemplateRefused(f"{where} names {word!r}; it can name {', '.join(known)}")
    return tuple(value)


def _verdicts(lists: Mapping[str, tuple[str, ...]], where: str) -> tuple[str, str] | None:
    words = lists.get("verdicts")
    if words is None:
        return None
    if len(words) != 2 or not all(word.isalnum() and len(word) <= _LONGEST_WORD for word in words):
        raise TemplateRefused(
            f"{where}: verdicts is {list(words)!r}; it is two words of letters or digits, that for met first"
        )
    met, not_met = (word.casefold() for word in words)
    if met.startswith(not_met) or not_met.startswith(met):
        raise TemplateRefused(f"{where}: verdicts {words[0]!r} and {words[1]!r} begin alike; choose words that differ")
    return words[0], words[1]
