"""Readers for the formats rubrics are published in. Each turns text into criteria; none knows a database."""

from typing import Literal, get_args

from rubric_store.formats import healthbench, native, srar
from rubric_store.formats.errors import FormatError
from rubric_store.formats.json_text import parse_json
from trainer_client.wire import RubricContent

__all__ = ["FormatError", "RubricFormat", "read_rubric"]

RubricFormat = Literal["native", "healthbench", "srar"]
_READERS = {"native": native.read, "healthbench": healthbench.read, "srar": srar.read}
_EXPECTED = (
    'expected {"criteria": […]} (native), [{"criterion": …, "points": …}] or a row with "rubrics" '
    "(healthbench), or lines such as <SUGGEST> what to check (srar)"
)


def read_rubric(text: str, format: str | None = None) -> RubricContent:
    """Read a rubric in the format named, or in the one its text shows.

    Args:
        text: the whole rubric.
        format: `native`, `healthbench` or `srar`; None recognises it.

    Raises:
        FormatError: the format is unknown or unrecognised, or the text breaks it; names the line or field at
            fault and what was expected.
    """
    text = text.removeprefix("\ufeff")
    if format is None:
        return _recognise(text)
    if format not in _READERS:
        raise FormatError("format", f"{format[:40]!r} is unknown; use one of {', '.join(get_args(RubricFormat))}")
    return _READERS[format](text)


def _recognise(text: str) -> RubricContent:
    if not text.lstrip().startswith(("{", "[")):
        if any(line.lstrip().startswith("<") for line in text.split("\n")):
            return srar.read(text)
        raise FormatError("line 1", f"no known format; {_EXPECTED}")
    value = parse_json(text)
    if isinstance(value, dict) and "criteria" in value:
        return native.from_json(value)
    if isinstance(value, list) or (isinstance(value, dict) and value.keys() & {"rubrics", "reward_model"}):
        return healthbench.from_json(value)
    raise FormatError("JSON", f"no known format; {_EXPECTED}")
