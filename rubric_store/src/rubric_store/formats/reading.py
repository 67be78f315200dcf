"""Read a rubric in a named format or in the one that the text shows.

The format of parsed JSON is detected by the names of its fields and the words that its descriptions begin with.
"""

import json
import re
from difflib import get_close_matches
from typing import Any, Final, Literal

from rubric_store.formats.documents import (
    Changes,
    FormatError,
    FormatProblem,
    InvalidValueError,
    ParsedText,
    Path,
    RubricDocument,
    decode,
    format_path,
    parse_json,
    with_lines,
)
from rubric_store.formats.published import graded, lines, lists, promptfoo
from rubric_store.formats.rows import candidates, normalise, split_rows
from rubric_store.formats.table import FORMATS, RubricFormat, check_format
from rubric_store.formats.yaml_format import parse_yaml
from trainer_client.wire import Criterion, RubricContent
from trainer_client.wire.criteria import GUIDANCE_FIELDS
from trainer_client.wire.problems import formats_url

_ADVICE = f"the formats are shown at {formats_url()}"


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
    near = {name: _nearness(fields, one.fields.split()) for name, one in FORMATS.items()}
    best = max(near, key=lambda name: near[name])
    return f"{seen}. The nearest format is {best}: {FORMATS[best].shape}" if near[best] > 0 else seen


def _listed(names: list[str]) -> str:
    shown = ", ".join(json.dumps(name[:40], ensure_ascii=False) for name in names[:8])
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown


def _nearness(fields: list[str], signature: list[str]) -> float:
    met = sum(bool(get_close_matches(field, signature, 1, 0.8)) for field in fields[:50])
    return met + met / (len(signature) + 1)


def detect_formats(value: object) -> list[RubricFormat]:
    """The formats that a value may be in: one if it is clear, several if it is ambiguous, none if unknown."""
    clear = next((name for name, one in FORMATS.items() if one.is_clear(value)), None)
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
        or (syntax == "yaml" and (known is None or not FORMATS[known].json_only))
        or (known == "requirement" and syntax != "json")
    ):
        return parse_yaml(text)
    read = None if syntax == "json" else FORMATS[known or syntax or "native"].read_text
    if read is not None:
        changes: Changes = []
        return _with_changes(read(text, changes), changes)
    if known is None and syntax is None:
        raise FormatError.of(f"unknown format; {_ADVICE}", 1)
    return parse_json(text)


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
        message = f"unknown format: it is {describe(value)}; {_ADVICE}"
        raise InvalidValueError.at(path, message)
    changes: Changes = []
    try:
        document = FORMATS[found].read(inner, changes)
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
    if rows is None or any(one.is_clear(value) for one in FORMATS.values()):
        return whole
    each = [is_rubric(row, format) for _, row in rows[:_SAMPLE]]
    return rows if all(each) or (any(each) and not is_rubric(value, format)) else whole


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
