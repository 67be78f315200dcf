"""Our own format in YAML: the shape of `rubric_store.formats.native`, as people like to write and review it."""

from typing import Any

import yaml

from rubric_store.formats import native
from rubric_store.formats.documents import RubricDocument
from rubric_store.formats.yaml_text import needs_quotes

_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _RubricDumper(_Dumper):  # type: ignore[misc]
    """Writes texts of several lines as blocks, and quotes what would not be read as text again."""


def _represent(dumper: Any, text: str) -> Any:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if needs_quotes(text) else style)


_RubricDumper.add_representer(str, _represent)


def write(document: RubricDocument) -> str:
    """A document as YAML text."""
    return str(
        yaml.dump(
            native.to_value(document), Dumper=_RubricDumper, sort_keys=False, allow_unicode=True, width=110, indent=2
        )
    )
