"""Rubrics as texts: what the console reads from files and forms, writes for people to edit, and checks."""

from collections.abc import Sequence
from pathlib import PurePath

from rubric_store.formats import FormatError, RubricFile, fold_problems, read_rows, write_rubric
from rubric_store.lint import Finding, lint
from trainer_client.wire import Criterion, RubricContent


class RubricTexts:
    """Reads rubrics in every format, writes YAML, and lints."""

    def read(self, content: bytes, file_name: str) -> RubricFile:
        """Read a file as a whole: all of its rubrics, or its problems, of which those of one kind are folded."""
        try:
            file = read_rows(content, PurePath(file_name)).as_whole()
        except FormatError as error:
            file = RubricFile([], error.problems, 1)
        return RubricFile(file.rubrics, tuple(fold_problems(file.problems)), file.refused)

    def write(self, content: RubricContent) -> str:
        """Write criteria as YAML, which loses nothing."""
        return write_rubric(content, "yaml").text

    def lint(self, criteria: Sequence[Criterion]) -> list[Finding]:
        """Check criteria; see `rubric_store.lint`."""
        return lint(criteria)
