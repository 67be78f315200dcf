"""Read a rubric in a named format or in the one that the text shows, and write one.

The format of parsed JSON is detected by the names of its fields and the words that its descriptions begin with. Rubrics
are written with a report of what a format cannot hold.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, Literal, cast, get_args

from pydantic import BaseModel

from rubric_store.formats import native, yaml_format
from rubric_store.formats.documents import (
    Changes,
    FormatError,
    FormatProblem,
    InvalidValueError,
    ParsedText,
    Path,
    RubricDocument,
    as_document,
    decode,
    format_path,
    parse_json,
    with_lines,
)
from rubric_store.formats.published import geval, graded, healthbench, lines, lists, promptfoo, requirement, trees
from rubric_store.formats.rows import candidates, normalise, split_rows
from rubric_store.formats.yaml_format import parse_yaml
from trainer_client.wire import Criterion, RubricContent
from trainer_client.wire.criteria import GUIDANCE_FIELDS

RubricFormat = Literal[
    "native",
    "yaml",
    "healthbench",
    "rar",
    "srar",
    "rgr",
    "grounded",
    "dro",
    "requirement",
    "paperbench",
    "questions",
    "frontierscience",
    "prometheus",
    "levels",
    "promptfoo",
    "geval",
]

_SHAPES: Final[dict[RubricFormat, tuple[str, str]]] = {
    "native": ('{"criteria": [{"id": …, "description": …}]}, as JSON or YAML', "criteria id description kind weight"),
    "healthbench": ('[{"criterion": …, "points": …}]', "criterion points weight tags axis"),
    "rar": ('[{"title": …, "description": …, "weight": …}]', "title description weight"),
    "rgr": ('[{"description": "Factual Criteria: …", "weight": …}]', "description weight"),
    "requirement": ('[{"requirement": …, "weight": …}]', "requirement weight sections name options"),
    "grounded": (
        'a record with "question" and "criteria"',
        "question criteria passage scoring_guide required_elements",
    ),
    "dro": ('questions or statements ["Does the response …?"]', "questions decomposed_questions"),
    "srar": ("lines such as <SUGGEST> what to check", ""),
    "paperbench": ('{"requirements": …, "weight": …, "sub_tasks": […]}', "requirements sub_tasks task_category"),
    "questions": ('{"type": "group", "children": [{"question": …, "pass_answer": …}]}', "type children pass_answer"),
    "frontierscience": ("lines such as Points: 1.5, Item: what to check", "item points"),
    "prometheus": (
        '{"criteria": …, "score1_description": …}',
        "criteria score1_description score2_description score5_description",
    ),
    "levels": ('{"criteria": [{"title": …, "levels": {"0": …}}]}', "criteria scale levels title"),
    "promptfoo": ('{"assert": [{"type": "llm-rubric", "value": …}]}', "assert type value threshold"),
    "geval": ('{"name": …, "criteria": …, "evaluation_steps": […]}', "name criteria evaluation_steps"),
}
"""What each format looks like, and the fields by which a file is near to it."""

EXPECTED = "expected " + ", ".join(
    f"{shape} ({'native, yaml' if name == 'native' else name})" for name, (shape, _) in _SHAPES.items()
)


def describe(value: object) -> str:
    """What a value that is no rubric looks like, and which format is nearest."""
    if isinstance(value, list):
        objects = [one for one in value if isinstance(one, dict)]
        fields = list(dict.fromkeys(str(key) for one in objects[:100] for key in one))
        kinds = f"objects with the fields {_listed(fields)}" if fields else "values that are not objects"
        seen = f"a list of {len(value):,} {kinds}" if value else "an empty list"
    elif isinstance(value, dict):
        fields = [str(key) for key in value]
        inner = [
            str(key)
            for field in value.values()
            for one in ((field if isinstance(field, list) else [field])[:1])
            if isinstance(one, dict)
            for key in one
        ]
        below = f"; in them {_listed(list(dict.fromkeys(inner)))}" if inner else ""
        seen = f"an object with the fields {_listed(fields)}{below}" if fields else "an empty object"
        fields += inner
    else:
        return f"a {'text' if isinstance(value, str) else type(value).__name__}"
    near = {name: _nearness(fields, signature.split()) for name, (_, signature) in _SHAPES.items()}
    best = max(near, key=lambda name: near[name])
    return f"{seen}. The nearest format is {best}: {_SHAPES[best][0]}" if near[best] > 0 else seen


def _listed(names: list[str]) -> str:
    shown = ", ".join(json.dumps(name[:40], ensure_ascii=False) for name in names[:8])
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown


def _nearness(fields: list[str], signature: list[str]) -> float:
    met = sum(bool(get_close_matches(field, signature, 1, 0.8)) for field in fields[:50])
    return met + met / (len(signature) + 1)


def detect_formats(value: object) -> list[RubricFormat]:
    """The formats that a value may be in: one if it is clear, several if it is ambiguous, none if unknown."""
    clear = next((name for name, matches in _MATCHERS.items() if matches(value)), None)
    if clear is not None:
        return [clear]
    if isinstance(value, list):
        return _detect_by_items(value)
    if not isinstance(value, dict):
        return ["srar"] if isinstance(value, str) and value.lstrip().startswith("<") else []
    if isinstance(listed := value.get("criteria"), list):
        if any(isinstance(item, dict) and "criterion" in item for item in listed):
            return ["healthbench"]
        if listed and all(isinstance(item, str) for item in listed):
            return ["dro"]
    if "criteria" in value:
        of_record = bool(value.keys() & {*lists.METADATA_FIELDS, "passage"})
        return ["grounded"] if of_record or (len(value) == 1 and _has_empty_guidance(listed)) else ["native"]
    if value.keys() & {"questions", "decomposed_questions"}:
        return ["dro"]
    for key in ("rubrics", "rubric", "rubric_items"):
        if isinstance(value.get(key), list):
            return [one for one in _detect_by_items(value[key]) if one not in _READ_WHERE_THEY_ARE]
    return ["healthbench"] if _has_list(value.get("reward_model"), "rubrics") else []


_READ_WHERE_THEY_ARE: Final = ("native", "grounded")
"""Formats whose readers take a list itself and look for none in a row."""


def _has_list(value: object, field: str) -> bool:
    return isinstance(value, dict) and isinstance(value.get(field), list)


def _detect_by_items(items: list[object]) -> list[RubricFormat]:
    if items and all(isinstance(item, str) for item in items):
        return ["dro"]
    objects = [item for item in items if isinstance(item, dict)]
    fields = {field for item in objects for field in item}
    if "criterion" in fields or ("points" in fields and "levels" not in fields):
        return ["healthbench"]
    if fields & {*GUIDANCE_FIELDS} and "id" in fields:
        return ["native"] if fields <= Criterion.model_fields.keys() and not _fit_grounded(objects) else ["grounded"]
    if "title" in fields:
        return ["rar"]
    if "description" not in fields:
        return []
    if "id" in fields:
        return ["native"]
    begins = [str(item.get("description")) for item in objects]
    factual = any(lists.RGR_PREFIX.match(text) for text in begins)
    essential = any(lists.RAR_PREFIX.match(text) for text in begins) or any(
        isinstance(item.get("weight"), str) for item in objects
    )
    if factual != essential:
        return ["rgr"] if factual else ["rar"]
    return ["rar", "rgr"]


_GROUNDED_FIELDS: Final = frozenset({"id", "description", "weight", *GUIDANCE_FIELDS})


def _fit_grounded(criteria: list[dict[str, Any]]) -> bool:
    """Whether criteria have no field that Rubric-Grounded's format lacks, and the weights that it needs."""
    weights = [one.get("weight") for one in criteria]
    return all(one.keys() <= _GROUNDED_FIELDS for one in criteria) and all(
        isinstance(weight, int | float) and weight >= 0 for weight in weights
    )


def _has_empty_guidance(listed: object) -> bool:
    """Whether criteria have empty texts as Rubric-Grounded's format writes them, which our own refuses."""
    criteria = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    return _fit_grounded(criteria) and any(one.get(field) == "" for one in criteria for field in GUIDANCE_FIELDS)


MAX_TEXT_LENGTH: Final = 16_000_000
"""Characters. The largest rubric that the store accepts has about 10 million."""

_YAML = re.compile(
    r"^(?:---|(?:criteria|name|tags|metadata|lineage|sections|rubric)[ \t]*:"
    r"|-[ \t]+(?:weight|requirement|criteria|name|title)[ \t]*:)",
    re.MULTILINE,
)
_ANY_YAML = re.compile(
    r"\A(?:[ \t\r]*+(?:#[^\n]*+)?\n)*+(?:-[ \t]++)?[\"']?[A-Za-z_$][\w$ -]{0,60}+[\"']?[ \t]*+:(?:\s|$)"
)
_MATCHERS: Final[Mapping[RubricFormat, Callable[[object], bool]]] = {
    "promptfoo": promptfoo.matches,
    "paperbench": trees.is_paperbench,
    "questions": trees.is_questions,
    "requirement": requirement.matches,
    "prometheus": graded.is_prometheus,
    "levels": graded.is_levels,
    "geval": geval.matches,
    "frontierscience": lines.is_frontierscience,
}
"""Formats that their fields show clearly, in the order in which they are tried."""

_VALUE_READERS: Final[dict[RubricFormat, Callable[[object, Changes], RubricDocument]]] = {
    "native": native.from_value,
    "yaml": native.from_value,
    "healthbench": healthbench.from_value,
    "rar": lists.read_rar,
    "srar": lambda value, _: _read_tagged_lines(value),
    "rgr": lists.read_rgr,
    "grounded": lists.read_grounded,
    "dro": lines.read_dro,
    "requirement": requirement.from_value,
    "paperbench": trees.read_paperbench,
    "questions": trees.read_questions,
    "frontierscience": lines.read_frontierscience,
    "prometheus": graded.read_prometheus,
    "levels": graded.read_levels,
    "promptfoo": promptfoo.from_value,
    "geval": geval.from_value,
}


def read_rubric(text: str, format: str | None = None) -> RubricContent:
    """Read the criteria of a rubric; see `read_document`."""
    return read_document(text, format).content


def read_document(text: str | bytes, format: str | None = None) -> RubricDocument:
    """Read a rubric with its header.

    Args:
        text: the whole rubric, or the content of its file, which is UTF-8.
        format: one of `RubricFormat`; None detects it.

    Raises:
        FormatError: the format is unknown, undetected or ambiguous, or the text breaks it; lists every problem with its
            line and what was expected.
    """
    known = None if format is None else check_format(format)
    parsed = parse_text(decode(text) if isinstance(text, bytes) else text, known)
    if isinstance(parsed, RubricDocument):
        return parsed
    try:
        document = read_value(normalise(parsed.value), known)
    except InvalidValueError as error:
        raise FormatError([*parsed.problems, *with_lines(error, parsed.line_of).problems]) from None
    if parsed.problems:
        raise FormatError(parsed.problems)
    return document


def parse_text(text: str, known: RubricFormat | None) -> ParsedText | RubricDocument:
    """Parse JSON or YAML, or read a rubric whose format is lines of text.

    Raises:
        FormatError: the text is too long, or has the syntax of no format or not of this one.
    """
    text = text.removeprefix("\ufeff")
    if len(text) > MAX_TEXT_LENGTH:
        raise FormatError.of(f"it has {len(text)} characters; a rubric has at most {MAX_TEXT_LENGTH}", 1)
    syntax = _detect_syntax(text)
    if (
        known == "yaml"
        or (syntax == "yaml" and known not in _JSON_ONLY)
        or (known == "requirement" and syntax != "json")
    ):
        return parse_yaml(text)
    read = _TEXT_READERS.get(known or syntax or "native") if syntax != "json" else None
    if read is not None:
        changes: Changes = []
        return _with_changes(read(text, changes), changes)
    if known is None and syntax is None:
        raise FormatError.of(f"unknown format; {EXPECTED}", 1)
    return parse_json(text)


_JSON_ONLY: Final = ("native", "srar", "dro", "healthbench", "rar", "rgr", "grounded")
_TEXT_READERS: Final[dict[str, Callable[[str, Changes], RubricDocument]]] = {
    "srar": lambda text, _: lines.read_srar_lines(text),
    "frontierscience": lines.read_frontierscience_text,
    "prometheus": lambda text, changes: _from_text(graded.read_prometheus, text, changes),
    "dro": lambda text, _: lines.read_dro_lines(text),
}


def _from_text(read: Callable[[object, Changes], RubricDocument], text: str, changes: Changes) -> RubricDocument:
    try:
        return read(text, changes)
    except InvalidValueError as error:
        raise with_lines(error, lambda paths: dict.fromkeys(paths, 1)) from None


def read_value(value: object, format: RubricFormat | None) -> RubricDocument:
    """Read a rubric from a normalised value: the rubric itself, or a row that holds it.

    Raises:
        InvalidValueError: with all problems; the format is unknown or ambiguous, or the value breaks it.
    """
    path: Path = ()
    rows = rubric_rows(value, format)
    if len(rows) == 1:
        path, value = rows[0]
    elif len(rows) > 1:
        message = f"it holds {len(rows):,} rubrics and not one; import the file, or give each a file of its own"
        raise InvalidValueError.at((), message)
    nested, inner, found = _locate(value, format)
    path = (*path, *nested)
    if found is None:
        message = f"unknown format: it is {describe(value)}; {EXPECTED}"
        raise InvalidValueError.at(path, message)
    changes: Changes = []
    try:
        document = _VALUE_READERS[found](inner, changes)
    except InvalidValueError as error:
        raise InvalidValueError([((*path, *place), message) for place, message in error.found]) from None
    return _with_changes(document, [((*path, *place), message) for place, message in changes])


def _with_changes(document: RubricDocument, changes: Changes) -> RubricDocument:
    problems = tuple(FormatProblem(format_path(path), message) for path, message in changes)
    return document.model_copy(update={"changes": problems}) if problems else document


def _locate(value: object, format: RubricFormat | None) -> tuple[Path, object, RubricFormat | None]:
    """Where in a row the rubric is, what is there, and its format; no format if none is recognised."""
    wanted = "native" if format == "yaml" else format
    for path, inner in candidates(value):
        found = detect_formats(inner)
        if wanted is not None and wanted in found:
            return path, inner, wanted
        if wanted is None and len(found) == 1:
            return path, inner, found[0]
        if wanted is None and found:
            ambiguous = f"this could be {' or '.join(found)}; say which format it is"
            raise InvalidValueError.at(path, ambiguous)
    return (), value, wanted


def is_rubric(value: object, format: RubricFormat | None) -> bool:
    """Whether a value is a rubric, or a row that holds one, by its fields."""
    wanted = "native" if format == "yaml" else format
    found = [detect_formats(inner) for _, inner in candidates(value)]
    return any(one and (wanted is None or wanted in one) for one in found)


_SAMPLE = 20


def rubric_rows(value: object, format: RubricFormat | None) -> list[tuple[Path, object]]:
    """The rubrics of a value, each with its path: the value itself, its rows, or a configuration's tests."""
    whole: list[tuple[Path, object]] = [((), value)]
    if (tests := promptfoo.tests(value)) is not None:
        return tests
    rows = split_rows(value)
    if rows is None or any(matches(value) for matches in _MATCHERS.values()):
        return whole
    each = [is_rubric(row, format) for _, row in rows[:_SAMPLE]]
    return rows if all(each) or (any(each) and not is_rubric(value, format)) else whole


def check_format(format: str) -> RubricFormat:
    """Check a format's name; raises `FormatError` with the known ones."""
    for known in get_args(RubricFormat):
        if format == known:
            return cast(RubricFormat, known)
    names = ", ".join(get_args(RubricFormat))
    raise FormatError.of(f"the format {format[:40]!r} is unknown; use one of {names}", place="format")


def _read_tagged_lines(row: object) -> RubricDocument:
    path: Path = ("rubric",) if isinstance(row, dict) else ()
    text = row.get("rubric") if isinstance(row, dict) else row
    if not isinstance(text, str):
        raise InvalidValueError.at((), 'expected tagged lines, or a row with them under "rubric"')
    try:
        return lines.read_srar_lines(text)
    except FormatError as error:
        raise InvalidValueError([(path, str(problem)) for problem in error.problems]) from None


def _detect_syntax(text: str) -> Literal["json", "yaml", "srar", "dro", "frontierscience", "prometheus"] | None:
    if graded.is_prometheus(text):
        return "prometheus"
    if text.lstrip().startswith(("{", "[")):
        return "json"
    if _YAML.search(text):
        return "yaml"
    listed = [line.strip() for line in text.split("\n") if line.strip()]
    if any(line.startswith("<") for line in listed):
        return "srar"
    if lines.is_frontierscience(text):
        return "frontierscience"
    if listed and all(line.endswith("?") for line in listed):
        return "dro"
    return "yaml" if _ANY_YAML.match(text) else None


_WRITERS: Final[dict[RubricFormat, Callable[[RubricDocument], str]]] = {
    "native": native.write,
    "yaml": yaml_format.write,
    "healthbench": healthbench.write,
    "rar": lists.write_rar,
    "srar": lines.write_srar,
    "rgr": lists.write_rgr,
    "grounded": lists.write_grounded,
    "dro": lines.write_dro,
    "requirement": requirement.write,
}
_UNSUPPORTED: Final[Mapping[RubricFormat, Callable[[Criterion], Iterable[str]]]] = {
    "healthbench": healthbench.not_in_healthbench,
    "srar": lines.not_in_srar,
    "rgr": lists.not_in_rgr,
    "grounded": lists.not_in_grounded,
    "dro": lines.not_in_dro,
}
"""Why a format cannot hold a criterion, for those that cannot hold every one."""

WRITTEN_FORMATS: Final = tuple(_WRITERS)
"""The formats that can be written; the others are only read."""

SUFFIXES: dict[RubricFormat, str] = {
    **dict.fromkeys(_WRITERS, ".json"),
    "yaml": ".yaml",
    "srar": ".txt",
}
"""The file extension of each format."""


@dataclass(frozen=True, slots=True)
class LostField:
    """A field that the text cannot reproduce, of a criterion, or of the rubric if `criterion` is None."""

    criterion: str | None
    field: str
    original: object
    result: object

    def __str__(self) -> str:
        criterion = "the rubric" if self.criterion is None else f"criterion {self.criterion}"
        original, result = _display(self.original) or "none", _display(self.result)
        return f"{criterion}: {self.field} {original} {f'becomes {result}' if result else 'is left out'}"


@dataclass(frozen=True, slots=True)
class SerializedRubric:
    """A rubric as text, and the fields that the text loses."""

    text: str
    losses: tuple[LostField, ...]


def write_rubric(rubric: RubricContent | RubricDocument, format: str) -> SerializedRubric:
    """Write a rubric in a format.

    Wording, order and each criterion's effect on the reward always survive: a pitfall stays a penalty. Everything else
    that the format cannot hold is left out and listed in `losses`.

    Raises:
        FormatError: the format is unknown, or cannot express a criterion; names every such criterion.
    """
    document, known = as_document(rubric), check_format(format)
    if known not in _WRITERS:
        raise FormatError.of(f"{known} is only read; write one of {', '.join(WRITTEN_FORMATS)}", place="format")
    criteria = document.content.criteria
    problems = [FormatProblem(f"criterion {one.id}", reason) for one in criteria for reason in _unsupported(known, one)]
    if problems:
        raise FormatError(problems)
    text = _WRITERS[known](document)
    try:
        reread = read_document(text, known)
    except FormatError as error:
        raise FormatError(
            [FormatProblem("", f"{known} cannot hold this rubric: {problem.message}") for problem in error.problems]
        ) from None
    pairs = list(zip(document.content.criteria, reread.content.criteria, strict=True))
    changed = [one.id for one, read in pairs if one.description != read.description]
    if changed:
        message = f"{known} would read its description differently: it begins or ends like the format's own syntax"
        raise FormatError([FormatProblem(f"criterion {id_}", f"{message}; reword it") for id_ in changed])
    losses = [loss for one, read in pairs for loss in _find_lost_fields(one.id, one, read)]
    return SerializedRubric(text, (*_find_lost_fields(None, document, reread), *losses))


def _unsupported(format: RubricFormat, criterion: Criterion) -> Iterator[str]:
    """Why a format cannot hold a criterion."""
    if criterion.shadow and format not in ("native", "yaml"):
        yield f"{format} has no shadow criteria, and would reward this one; export a version without it"
    yield from _UNSUPPORTED[format](criterion) if format in _UNSUPPORTED else ()


def _find_lost_fields(
    criterion: str | None, original: Criterion | RubricDocument, read: Criterion | RubricDocument
) -> list[LostField]:
    fields = [field for field in type(original).model_fields if field not in ("content", "changes")]
    compared = [LostField(criterion, field, getattr(original, field), getattr(read, field)) for field in fields]
    return [loss for loss in compared if loss.original != loss.result]


def _display(value: object) -> str:
    if value is None or value == () or value == {}:
        return ""
    plain = value.model_dump(mode="json", exclude_defaults=True) if isinstance(value, BaseModel) else value
    shown = f"{plain:g}" if isinstance(plain, float) else json.dumps(plain, ensure_ascii=False)
    return shown if len(shown) <= 60 else f"{shown[:59]}…"
