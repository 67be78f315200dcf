"""Rubrics as texts: what the console reads from files and forms, writes for people to edit, and checks."""

from collections.abc import Sequence
from pathlib import PurePath

from rubric_store.formats import NamedRubric, read_file, write_rubric
from rubric_store.lint import Finding, lint
from trainer_client.wire import Criterion, RubricContent


class RubricTexts:
    """Reads rubrics in every format, writes YAML, and lints."""

    def read(self, content: bytes, file_name: str) -> list[NamedRubric]:
        """Read every rubric of a file; raises `FormatError` with all problems."""
        return read_file(content, PurePath(file_name))

    def write(self, content: RubricContent) -> str:
        """Write criteria as YAML, which loses nothing."""
        return write_rubric(content, "yaml").text

    def lint(self, criteria: Sequence[Criterion]) -> list[Finding]:
        """Check criteria; see `rubric_store.lint`."""
        return lint(criteria)
