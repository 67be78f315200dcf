"""The reference of generators covers every reason for a discard and every file of a run."""

from typing import get_args

from judge_server.generation import results
from judge_server.generation.writer import DiscardReason
from tests.docs.pages import ROOT, code_spans

PAGE = ROOT / "docs/reference/generation.md"


def test_every_reason_for_a_discard_is_explained() -> None:
    assert set(get_args(DiscardReason)) <= set(code_spans(PAGE))


def test_every_file_of_a_run_is_explained() -> None:
    files = {
        results.DATABASE_FILE,
        results.RUBRICS_FILE,
        results.PUBLISHED_FILE,
        results.DISCARDED_FILE,
        results.FAILED_FILE,
        results.STATISTICS,
        results.PLOT,
    }
    assert files <= set(code_spans(PAGE))
