"""The formats of rubrics, each declared once: what it looks like, and how it is recognised, read and written."""

from collections.abc import Callable, Iterable
from typing import Final, Literal, NamedTuple

from rubric_store.formats import native, yaml_format
from rubric_store.formats.documents import Changes, FormatError, InvalidValueError, Path, RubricDocument, with_lines
from rubric_store.formats.published import geval, graded, healthbench, lines, lists, promptfoo, requirement, trees
from trainer_client.wire import Criterion

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


class Format(NamedTuple):
    """A format.

    Attributes:
        shape: what it looks like, for error messages.
        fields: the names by which a file is near to it, separated by spaces.
        read: reads a parsed value, and adds what it changes to a list.
        is_clear: whether the fields of a value show the format clearly; never, if other formats have the same.
        read_text: reads text that is neither JSON nor YAML; None if there is no such form.
        json_only: whether a text that could be YAML is none.
        write: None for a format that is only read.
        not_in: why the format cannot hold a criterion; None if it can hold every one.
        suffix: the file extension.
    """

    shape: str
    fields: str
    read: Callable[[object, Changes], RubricDocument]
    is_clear: Callable[[object], bool] = lambda _: False
    read_text: Callable[[str, Changes], RubricDocument] | None = None
    json_only: bool = False
    write: Callable[[RubricDocument], str] | None = None
    not_in: Callable[[Criterion], Iterable[str]] | None = None
    suffix: str = ".json"


def _read_tagged_lines(row: object) -> RubricDocument:
    path: Path = ("rubric",) if isinstance(row, dict) else ()
    text = row.get("rubric") if isinstance(row, dict) else row
    if not isinstance(text, str):
        raise InvalidValueError.at((), 'expected tagged lines, or a row with them under "rubric"')
    try:
        return lines.read_srar_lines(text)
    except FormatError as error:
        raise InvalidValueError([(path, str(problem)) for problem in error.problems]) from None


def _read_prometheus_text(text: str, changes: Changes) -> RubricDocument:
    try:
        return graded.read_prometheus(text, changes)
    except InvalidValueError as error:
        raise with_lines(error, lambda paths: dict.fromkeys(paths, 1)) from None


_NATIVE: Final = Format(
    '{"criteria": [{"id": …, "description": …}]}, as JSON or YAML',
    "criteria id description kind weight",
    native.from_value,
    json_only=True,
    write=native.write,
)

FORMATS: Final[dict[RubricFormat, Format]] = {
    "native": _NATIVE,
    "yaml": _NATIVE._replace(json_only=False, write=yaml_format.write, suffix=".yaml"),
    "healthbench": Format(
        '[{"criterion": …, "points": …}]',
        "criterion points weight tags axis",
        healthbench.from_value,
        json_only=True,
        write=healthbench.write,
        not_in=healthbench.not_in_healthbench,
    ),
    "rar": Format(
        '[{"title": …, "description": …, "weight": …}]',
        "title description weight",
        lists.read_rar,
        json_only=True,
        write=lists.write_rar,
    ),
    "srar": Format(
        "lines such as <SUGGEST> what to check",
        "",
        lambda value, _: _read_tagged_lines(value),
        read_text=lambda text, _: lines.read_srar_lines(text),
        json_only=True,
        write=lines.write_srar,
        not_in=lines.not_in_srar,
        suffix=".txt",
    ),
    "rgr": Format(
        '[{"description": "Factual Criteria: …", "weight": …}]',
        "description weight",
        lists.read_rgr,
        json_only=True,
        write=lists.write_rgr,
        not_in=lists.not_in_rgr,
    ),
    "grounded": Format(
        'a record with "question" and "criteria"',
        "question criteria passage scoring_guide required_elements",
        lists.read_grounded,
        json_only=True,
        write=lists.write_grounded,
        not_in=lists.not_in_grounded,
    ),
    "dro": Format(
        'questions or statements ["Does the response …?"]',
        "questions decomposed_questions",
        lines.read_dro,
        read_text=lambda text, _: lines.read_dro_lines(text),
        json_only=True,
        write=lines.write_dro,
        not_in=lines.not_in_dro,
    ),
    "promptfoo": Format(
        '{"assert": [{"type": "llm-rubric", "value": …}]}',
        "assert type value threshold",
        promptfoo.from_value,
        promptfoo.matches,
    ),
    "paperbench": Format(
        '{"requirements": …, "weight": …, "sub_tasks": […]}',
        "requirements sub_tasks task_category",
        trees.read_paperbench,
        trees.is_paperbench,
    ),
    "questions": Format(
        '{"type": "group", "children": [{"question": …, "pass_answer": …}]}',
        "type children pass_answer",
        trees.read_questions,
        trees.is_questions,
    ),
    "requirement": Format(
        '[{"requirement": …, "weight": …}]',
        "requirement weight sections name options",
        requirement.from_value,
        requirement.matches,
        write=requirement.write,
    ),
    "prometheus": Format(
        '{"criteria": …, "score1_description": …}',
        "criteria score1_description score2_description score5_description",
        graded.read_prometheus,
        graded.is_prometheus,
        _read_prometheus_text,
    ),
    "levels": Format(
        '{"criteria": [{"title": …, "levels": {"0": …}}]}',
        "criteria scale levels title",
        graded.read_levels,
        graded.is_levels,
    ),
    "geval": Format(
        '{"name": …, "criteria": …, "evaluation_steps": […]}',
        "name criteria evaluation_steps",
        geval.from_value,
        geval.matches,
    ),
    "frontierscience": Format(
        "lines such as Points: 1.5, Item: what to check",
        "item points",
        lines.read_frontierscience,
        lines.is_frontierscience,
        lines.read_frontierscience_text,
    ),
}
"""All formats. Those with `is_clear` are tried in this order."""

WRITTEN_FORMATS: Final = tuple([name for name, one in FORMATS.items() if one.write is not None])
"""The formats that can be written; the others are only read."""


def check_format(format: str) -> RubricFormat:
    """Check a format's name; raises `FormatError` with the known ones."""
    if format in FORMATS:
        return format
    raise FormatError.of(f"the format {format[:40]!r} is unknown; use one of {', '.join(FORMATS)}", place="format")
