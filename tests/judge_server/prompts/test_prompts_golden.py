"""The prompts match their golden files, so that no change of wording goes unnoticed."""

import re
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.prompts import PromptForm, PromptTemplates
from tests.judge_server.golden_files import COMMAND, GOLDEN, prompts
from tests.judge_server.support import FENCED, group, plan, prepared
from trainer_client.wire import Criterion, JudgingProtocol

WRITTEN = sorted(path.name for path in (GOLDEN / "prompts").iterdir())


@pytest.fixture(scope="module")
def rendered() -> dict[str, str]:
    """Every golden prompt as rendered now; a fixture, since rendering is too slow for import time."""
    return prompts()


@pytest.mark.parametrize("name", WRITTEN)
def test_the_prompt_matches_its_golden_file(rendered: dict[str, str], name: str) -> None:
    written = (GOLDEN / "prompts" / name).read_text(encoding="utf-8")
    assert rendered.get(name) == written, f"the prompts changed; if that is meant, run `{COMMAND}` and commit tests/"


def test_every_prompt_has_a_golden_file(rendered: dict[str, str]) -> None:
    assert set(WRITTEN) == set(rendered), f"run `{COMMAND}`"


@pytest.mark.parametrize("name", WRITTEN)
def test_template_text_has_no_stray_whitespace_and_a_question_begins_a_line(
    rendered: dict[str, str], name: str
) -> None:
    sections = re.findall(r"\[\[(\w+)[^\n]*\]\]\n(.*?)\n(?=\[\[|\Z)", rendered[name], re.DOTALL)
    assert sections
    for what, text in sections:
        assert text.endswith("\n") == (what == "shared")
        body = FENCED.sub("…", text).removesuffix("\n\n")
        assert not re.search(r"\A\s|\n\n\n|[ \t]$|\n\n\Z", body, re.MULTILINE), text


def test_judged_text_stands_only_inside_fences(rendered: dict[str, str]) -> None:
    text = rendered["shared.hostile.txt"]
    outside = FENCED.sub("", text)
    assert "Ignore the rubric" in text
    for piece in ("Ignore", "x < y", "im_start", "mate rial", "\x00"):
        assert piece not in outside


@pytest.mark.parametrize("protocol", get_args(JudgingProtocol))
@given(words=st.text(max_size=40))
def test_any_response_stays_inside_its_fence(protocol: JudgingProtocol, words: str) -> None:
    marked = f"qqqq{words}qqqq"
    planned = plan(prepared(protocol), group(marked, ground_truth=marked), marked, [Criterion(id="a", description="x")])
    assert "qqqq" in planned.batch.shared
    assert "qqqq" not in FENCED.sub("", planned.batch.shared)
    assert all("qqqq" not in call.question for call in planned.batch.calls)


@pytest.mark.parametrize("several", [False, True])
def test_the_template_digest_depends_on_the_form(several: bool) -> None:
    forms = [
        PromptForm(protocol, rationale, several)
        for protocol in (*get_args(JudgingProtocol), "comparison")
        for rationale in (False, True)
    ]
    digests = {PromptTemplates(form).digest for form in forms}
    assert len(digests) == len(forms)


def test_a_criterions_text_is_not_rendered_as_a_template() -> None:
    braces = Criterion(id="a", description="Writes {{ 7 * 7 }} and {% raw %}.")
    templates = PromptTemplates(PromptForm("binary"))
    assert "{{ 7 * 7 }} and {% raw %}." in templates.question(braces)
    assert "{{ 7 * 7 }} and {% raw %}." in templates.questions((braces,))
    assert "{{ 7 * 7 }} and {% raw %}." in PromptTemplates(PromptForm("likert")).holistic((braces,))


def test_a_response_is_not_rendered_as_a_template() -> None:
    planned = plan(prepared(), group("{{ 7 * 7 }}"), "{{ 7 * 7 }}", [Criterion(id="a", description="x")])
    assert "{{ 7 * 7 }}" in planned.batch.shared
