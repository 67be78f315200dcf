"""The generation page covers every discard reason, file and option, and its code can be imported."""

import inspect
from typing import get_args

from adjudge_services.cli.rubrics.generate import generate
from judge_server.generation import results
from judge_server.generation.writer import DiscardReason
from tests.docs.pages import ROOT, blocks, code_spans

PAGE = ROOT / "docs/generation.md"


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


def test_every_option_of_the_command_is_named() -> None:
    page = PAGE.read_text(encoding="utf-8")
    names = {"output": "--output", "assignments": "--set", "show_list": "--list", "publish": "--no-publish"}
    parameters = [name for name in inspect.signature(generate).parameters if name not in ("kind", "file")]
    for name in parameters:
        assert names.get(name, f"--{name}") in page


def test_the_code_of_the_page_can_be_imported() -> None:
    for code in blocks(PAGE, "python"):
        exec(compile(code, str(PAGE), "exec"), {})
