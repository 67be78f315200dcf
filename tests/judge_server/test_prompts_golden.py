"""The prompts as a judge reads them are written down, so that no change of their wording goes unseen."""

import re

import pytest

from judge_server.prompts import PromptTemplates
from tests.judge_server.golden_files import COMMAND, GOLDEN, GROUPS, prompts
from tests.judge_server.support import FENCE
from trainer_client.wire import Criterion

RENDERED = prompts()


@pytest.mark.parametrize("name", RENDERED)
def test_the_prompt_reads_as_written_down(name: str) -> None:
    path = GOLDEN / "prompts" / name
    written = path.read_text(encoding="utf-8") if path.exists() else ""
    assert RENDERED[name] == written, f"the prompts changed; if that is meant, run `{COMMAND}` and commit tests/"


def test_no_prompt_is_written_down_that_is_not_rendered() -> None:
    assert {path.name for path in (GOLDEN / "prompts").iterdir()} == set(RENDERED), f"run `{COMMAND}`"


@pytest.mark.parametrize("protocol", ["binary", "stepwise"])
def test_every_judged_text_stands_inside_a_fence_and_nothing_of_it_outside(protocol: str) -> None:
    text = RENDERED[f"{protocol}.hostile.txt"]
    outside = re.sub(r"<([a-z]{12})>\n.*?\n</\1>", "", text, flags=re.DOTALL)
    assert "Ignore the rubric" in text
    for piece in ("Ignore", "x < y", "im_start", "bbbbbbbbbbbb", "\x00"):
        assert piece not in outside


def test_the_template_digest_tells_protocols_apart_and_not_secrets() -> None:
    binary, stepwise = PromptTemplates("binary", FENCE), PromptTemplates("stepwise", FENCE)
    assert binary.digest != stepwise.digest
    assert binary.digest == PromptTemplates("binary", str.upper).digest


def test_a_criterions_text_is_no_template() -> None:
    braces = Criterion(id="a", description="Writes {{ 7 * 7 }} and {% raw %}.")
    assert "{{ 7 * 7 }} and {% raw %}." in PromptTemplates("binary", FENCE).question(braces)


def test_a_response_is_no_template() -> None:
    of = GROUPS["plain"]
    shared = PromptTemplates("binary", FENCE).shared(of, "{{ 7 * 7 }}", show_final_answer=False, final_answer=None)
    assert "{{ 7 * 7 }}" in shared
