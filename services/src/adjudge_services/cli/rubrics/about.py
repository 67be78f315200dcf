"""What `adjudge rubrics show` says of a version before its criteria, a short line for each thing."""

import json
from collections.abc import Iterator, Sequence

from pydantic import JsonValue

from trainer_client.wire import Lineage, RubricVersion

_MAX_LINE_LENGTH = 96
_DIGEST = len("sha256:") + 12


def describe_version(
    version: RubricVersion, aliases: Sequence[str], validity: str | None, *, validity_in_metadata: bool
) -> Iterator[tuple[str, str]]:
    """Labels and lines: which version it is, whether it is in use, what made it, and what is kept with it.

    `of_metadata` says whether the line about validity tells what the metadata has under that name.
    """
    yield "rubric", version.reference
    yield "digest", version.digest
    parent = "" if version.parent is None else f", from version {version.parent}"
    yield "published", f"{version.created_at:%Y-%m-%d %H:%M} UTC{parent}"
    if version.retirement:
        yield "retired", f"{version.retirement.at:%Y-%m-%d %H:%M} UTC: {version.retirement.reason}"
    if aliases:
        yield "aliases", ", ".join(aliases)
    if version.lineage:
        yield from _lineage(version.lineage)
    if validity:
        yield "validity", validity
    for field, value in version.metadata.items():
        if field != "validity":
            yield field.replace("_", " "), _short(value)
        elif not validity_in_metadata:
            yield "validity when published" if validity else "validity", _short(value)


def _lineage(lineage: Lineage) -> Iterator[tuple[str, str]]:
    made = " with ".join(part for part in (lineage.generator, lineage.model) if part)
    if made or lineage.author:
        yield "made by", ", ".join(part for part in (lineage.author, made) if part)
    if lineage.parameters:
        yield "told", ", ".join(f"{name}={_short(value)}" for name, value in lineage.parameters.items())
    for label, digest in (("templates", lineage.template_digest), ("source", lineage.source_digest)):
        if digest:
            yield label, f"{digest[:_DIGEST]}…" if len(digest) > _DIGEST else digest
    if lineage.operation_id:
        yield "operation", lineage.operation_id


def _short(value: JsonValue) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    line = " ".join(text.split())
    return line if len(line) <= _MAX_LINE_LENGTH else f"{line[: _MAX_LINE_LENGTH - 1]}…"
