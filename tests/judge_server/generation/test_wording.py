"""The generators' prompts match the golden files, and fence all material."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.generation.kinds import GENERATORS
from judge_server.generation.kinds.dro import GateGenerator, GateParameters
from judge_server.generation.kinds.points import PointsGenerator, PointsParameters
from judge_server.generation.wording import GeneratorTemplates, default_templates, read_templates
from judge_server.prompts import InvalidTemplate
from judge_server.prompts.library import MAX_TEMPLATE_BYTES
from tests.judge_server.generation.golden_wording import COMMAND, GOLDEN, prompts
from tests.judge_server.support import FENCED

RENDERED = prompts()


@pytest.mark.parametrize("name", RENDERED)
def test_the_prompt_matches_the_golden_file(name: str) -> None:
    path = GOLDEN / name
    written = path.read_text(encoding="utf-8") if path.exists() else ""
    assert RENDERED[name] == written, f"the prompts changed; if that is intended, run `{COMMAND}` and commit tests/"


def test_every_golden_file_is_rendered() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == set(RENDERED), f"run `{COMMAND}`"


@pytest.mark.parametrize("name", RENDERED)
def test_foreign_texts_are_fenced_and_hold_no_control_token(name: str) -> None:
    outside = FENCED.sub("…", RENDERED[name])
    assert "<|im" not in RENDERED[name]
    for piece in ("Write no rubric", "mate rial", "49", "He runs"):
        assert piece not in outside


@given(st.text(max_size=60))
def test_no_text_closes_its_own_fence(text: str) -> None:
    shown = GeneratorTemplates("answer")("answer", question=f"qqqq{text}qqqq")
    assert "qqqq" not in FENCED.sub("", shown)


@pytest.mark.parametrize("shown", ["{{ question | fenced | trim }}", "{% set it = question | fenced %}{{ it ~ '' }}"])
def test_a_users_template_may_do_more_with_a_fenced_text(shown: str) -> None:
    rendered = GeneratorTemplates("answer", overrides={"answer.j2": shown})("answer", question="a\n</material>\nb")
    assert rendered == "<material>\na\n</mate rial>\nb\n</material>"


def test_every_template_belongs_to_a_generator_or_to_the_validity_judge() -> None:
    used = {name for kind in GENERATORS.values() for name in kind.prompt_templates.names} | {"validity"}
    assert {f"{name}.j2" for name in used} == set(default_templates())


def test_the_digest_depends_on_every_template_and_its_name() -> None:
    digests = {kind: of(of.Parameters()).template_digest for kind, of in GENERATORS.items()}
    assert len(set(digests.values())) == len(GENERATORS)
    assert all(re.fullmatch("sha256:[0-9a-f]{64}", digest) for digest in digests.values())
    assert (
        GeneratorTemplates("answer", "validity").digest
        == GeneratorTemplates("validity", "answer").digest
        != GeneratorTemplates("answer").digest
    )


def test_an_undeclared_template_cannot_be_rendered() -> None:
    with pytest.raises(KeyError):
        GeneratorTemplates("answer")("validity")


def test_every_kind_has_a_summary_and_steps() -> None:
    assert list(GENERATORS) == ["reference", "document", "contrastive", "gate", "graded", "evolving", "points"]
    for kind in GENERATORS.values():
        assert kind.summary
        assert kind.steps[-2:] == ("check", "validity") or "check" in kind.steps


def test_a_custom_set_replaces_its_templates_and_changes_the_digest(tmp_path: Path) -> None:
    (tmp_path / "answer.j2").write_text("Solve: {{ question | fenced }}", encoding="utf-8")
    templates = read_templates(tmp_path)
    plain, own = (PointsGenerator(PointsParameters(), templates=given) for given in (None, templates))
    assert own.template_digest != plain.template_digest
    assert own.prompt_templates("answer", question="Why?").startswith("Solve: <")
    assert own.prompt_templates("solver.system") == plain.prompt_templates("solver.system")
    untouched = [GateGenerator(GateParameters(), templates=given).template_digest for given in (None, templates)]
    assert len(set(untouched)) == 1


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("answers.j2", b"x", "not the name of a generator template; use one of agreement.j2"),
        ("answer.j2", b"Solve it.", "does not show 'question'"),
        ("answer.j2", b"{{ question }} {{ ground_truth }}", "uses the unknown variable 'ground_truth'"),
        ("answer.j2", b"{{ question ", "answer.j2:1: unexpected end"),
        ("answer.j2", b"{{ question | shouted }}", "answer.j2:1: No filter named 'shouted'"),
        ("answer.j2", b"\xff", "not UTF-8"),
        ("answer.j2", b"x" * (MAX_TEMPLATE_BYTES + 1), "larger than 20,000 bytes"),
        ("answer.txt", b"x", "holds no template"),
    ],
)
def test_an_unusable_set_is_refused_with_the_reason(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidTemplate, match=says):
        read_templates(tmp_path)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidTemplate, match="cannot be read: No such file"):
        read_templates(tmp_path / "nowhere")


def test_a_template_that_cannot_be_rendered_ends_the_job_with_its_name() -> None:
    prompt_templates = GeneratorTemplates("answer", overrides={"answer.j2": "{{ question.words.first }}"})
    with pytest.raises(InvalidTemplate, match=r"answer.j2 cannot be rendered"):
        prompt_templates("answer", question="Why?")


@pytest.mark.parametrize("name", sorted(default_templates()))
def test_the_default_templates_are_a_valid_set(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(default_templates()[name], encoding="utf-8")
    assert read_templates(tmp_path) == {name: default_templates()[name]}
