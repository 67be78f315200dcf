"""The generated reference says what the sources declare, and every address that an error names leads to a section."""

import ast
import re
from collections.abc import Iterator
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adjudge_services.settings import Settings
from judge_server.evaluation.measuring.separation import READINGS, read_difference
from judge_server.generation.validity import PUBLISHED_WARNINGS
from judge_server.observability.metrics import AccessMetrics, OperationMetrics
from judge_server.scoring.combined import CombinedMetrics
from rubric_store.lint import RULES
from tests.docs.pages import ROOT, anchors
from tests.docs.reference import FOLDER, generate, replace_part
from tests.docs.reference.errors import problem_classes
from tests.docs.reference.metrics import metrics
from trainer_client import errors as client
from trainer_client.wire.problems import SITE_URL, Problem, ProblemType, error_url, findings_url, setting_url
from trainer_client.wire.runs import AUDIT_FINDINGS, AuditedCriterion, AuditReading, MonitorName
from trainer_client.wire.verdicts import FAILURE_MEANINGS, FailureKind

SOURCES = [
    ast.parse(path.read_text(encoding="utf-8"))
    for package in ("trainer_client", "judge_server", "rubric_store", "services")
    for path in (ROOT / package / "src").rglob("*.py")
]


def sections(page: str) -> list[str]:
    """The headings of a page below those of its parts."""
    return re.findall(r"^### (.+)$", (FOLDER / f"{page}.md").read_text(encoding="utf-8"), re.MULTILINE)


def error_codes() -> Iterator[str]:
    """The codes of all errors: of the API, of verdicts, of the client, of commands, and by exit status."""
    yield from (kind.removeprefix("urn:adjudge:") for kind in get_args(ProblemType))
    yield from get_args(FailureKind)
    for node in (node for tree in SOURCES for node in ast.walk(tree)):
        if isinstance(node, ast.ClassDef) and re.search("Error|Exception|Unavailable", " ".join(names_of(node))):
            yield from _code_of(node)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "exit_with_error":
            codes = [key.value for key in node.keywords if key.arg == "code"] or [ast.Constant(1)]
            yield from (f"exit-status-{code.value}" for code in codes if isinstance(code, ast.Constant))


def names_of(node: ast.ClassDef) -> list[str]:
    """The names of a class and of what it is derived from."""
    return [node.name, *map(ast.unparse, node.bases)]


def _code_of(node: ast.ClassDef) -> Iterator[str]:
    for statement in node.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(statement.value, ast.Constant):
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            if isinstance(target, ast.Name) and target.id == "code" and isinstance(statement.value.value, str):
                yield statement.value.value


def test_the_pages_are_as_the_sources_declare() -> None:
    stale = [page.name for page, text in generate().items() if page.read_text(encoding="utf-8") != text]
    assert stale == [], "run: python -m tests.docs.reference"


def test_a_page_without_its_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks <!-- generated: commands"):
        replace_part("# A page\n", "commands", "text", FOLDER / "cli.md")


def test_exactly_the_errors_that_the_sources_have_are_explained() -> None:
    stopped = "exit-status-130"  # by Ctrl-C, of every command
    assert sorted(sections("errors")) == sorted({*error_codes(), stopped})


def test_exactly_the_findings_that_the_sources_have_are_explained() -> None:
    known = [*RULES, *PUBLISHED_WARNINGS, *get_args(MonitorName), *AUDIT_FINDINGS, *READINGS]
    assert sorted(sections("findings")) == sorted(known)


def test_lint_reports_exactly_the_codes_that_have_a_rule() -> None:
    calls = [node for tree in SOURCES for node in ast.walk(tree) if isinstance(node, ast.Call)]
    reported = {
        call.args[0].value
        for call in calls
        if ast.unparse(call.func) in ("_finding", "_check_count") and isinstance(call.args[0], ast.Constant)
    }
    assert reported == RULES.keys() | {name for name in reported if name in get_args(MonitorName)}


def test_every_reading_of_an_audit_is_explained() -> None:
    flags = {"saturated", "never_needed"}
    assert flags <= AuditedCriterion.model_fields.keys()
    assert {*get_args(AuditReading), *flags} <= AUDIT_FINDINGS.keys()


@given(st.none() | st.floats(-1, 1), st.none() | st.tuples(st.floats(-1, 1), st.floats(-1, 1)))
def test_every_reading_of_a_difference_is_explained(
    difference: float | None, interval: tuple[float, float] | None
) -> None:
    assert read_difference(difference, interval) in READINGS


@pytest.mark.parametrize("kind", get_args(ProblemType))
def test_a_problem_and_its_exception_lead_to_the_section_of_its_type(kind: str) -> None:
    problem = Problem(type=kind, title="t", status=400, detail="d", request_id="r", retryable=False)
    assert problem.documentation_url == error_url(kind.removeprefix("urn:adjudge:"))
    assert problem_classes()[kind].type == kind
    error = client.ERROR_CLASSES[kind]("d", problem=problem)
    assert error.documentation_url == problem.documentation_url
    assert error.__notes__ == [f"see {problem.documentation_url}"]
    assert_section_exists(error.documentation_url)


def test_a_problem_of_another_service_has_no_documentation() -> None:
    problem = Problem(type="about:blank", title="t", status=500, detail="d", request_id="r", retryable=False)
    assert problem.documentation_url is None


@pytest.mark.parametrize("error", [client.TimedOut("d"), client.ConnectionFailed("d"), client.InvalidRequest("d")])
def test_an_exception_without_a_problem_leads_to_the_section_of_its_class(error: client.AdjudgeError) -> None:
    assert error.documentation_url == error_url(error.code)
    assert_section_exists(error.documentation_url)


def test_the_addresses_of_settings_failures_and_findings_lead_to_sections() -> None:
    for field in Settings.model_fields:
        assert_section_exists(setting_url(f"ADJUDGE_{field.upper()}"))
    for kind in FAILURE_MEANINGS:
        assert_section_exists(error_url(kind))
    for part in ("audit-of-a-run", "good-and-bad-responses", *RULES, *AUDIT_FINDINGS):
        assert_section_exists(findings_url(part))


def assert_section_exists(address: str) -> None:
    """Check that an address is one of the site, and that the page in docs/ has the section."""
    found = re.fullmatch(rf"{re.escape(SITE_URL)}/\d+\.\d+/(?P<page>[\w/]+)/#(?P<section>[\w-]+)", address)
    assert found is not None, address
    assert found["section"] in anchors(ROOT / f"docs/{found['page']}.md"), address


def test_the_page_of_metrics_has_those_that_collectors_yield() -> None:
    known = {one.name: one for one in metrics()}
    families = [
        *CombinedMetrics(lambda: 0.0).families(),
        *AccessMetrics().collect(),
        *OperationMetrics().collect(),
    ]
    own = [one for one in families if one.name.startswith("adjudge_")]
    assert len(own) > 20
    for family in own:
        entry = known[f"{family.name}_total" if family.type == "counter" else family.name]
        assert entry.type == family.type
        assert entry.meaning == family.documentation
