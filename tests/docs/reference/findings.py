"""Every finding: of lint, of generators of rubrics, of monitors, of audits, and of good and bad responses."""

from collections.abc import Iterable, Iterator

from judge_server.evaluation.measuring.separation import READINGS
from judge_server.generation.validity import PUBLISHED_WARNINGS
from judge_server.ledger.monitoring.monitors import MONITORS
from rubric_store.lint import RULES
from tests.docs.reference.markdown import paragraphs, sentence
from trainer_client.wire.runs import AUDIT_FINDINGS


def lint() -> str:
    """A section for each code of lint."""
    return _sections(
        (code, f"{rule.severity.capitalize()}. {rule.meaning}", rule.remedy) for code, rule in RULES.items()
    )


def generation() -> str:
    """A section for each warning of a generator of rubrics."""
    return _sections(
        (flag, f"Warning. {sentence(meaning.format('some'))}", sentence(remedy))
        for flag, (meaning, remedy) in PUBLISHED_WARNINGS.items()
    )


def monitors() -> str:
    """A section for each monitor, from the docstring of its function."""
    lines = []
    for name, (_, function) in MONITORS.items():
        lines += [f"### {name}", ""]
        lines += [line for part in paragraphs(function.__doc__) for line in (part, "")]
    return "\n".join(lines)


def audit() -> str:
    """A section for each finding of an audit."""
    return _sections((name, *meaning) for name, meaning in AUDIT_FINDINGS.items())


def separation() -> str:
    """A section for each reading of a criterion's scores."""
    return _sections((reading, *meaning) for reading, meaning in READINGS.items())


def _sections(rows: Iterable[tuple[str, str, str]]) -> str:
    return "\n".join(_lines(rows))


def _lines(rows: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    for code, meaning, remedy in rows:
        yield from (f"### {code}", "", meaning, "", f"What to do: {remedy}", "")
