"""Which part of a response a program searches, and the step that its verdict belongs to."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.verifiers import Check
from judge_server.verifiers.worker import decide
from tests.judge_server.verifiers.checks import check
from trainer_client.steps import split_steps

TEXT = "so: 1\n### Step 1: a\n3*4=12\n### Step 2: b\n12+1=13\n### Step 1: again\nend\n\\boxed{13}"
UNSTEPPED = "3*4=12 and 12+1=13"


def stepped(method: str, text: str = TEXT, **options: object) -> Check:
    """A check of step-wise judging."""
    return replace(check(method, text, **options), steps=tuple(split_steps(text)), names_step=True)


def verdict(method: str, text: str = TEXT, **options: object) -> tuple[float, int | None]:
    found = decide(stepped(method, text, **options))
    return found.score, found.step


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (r"3\*4\s*=\s*12", (1.0, 1)),
        (r"12", (1.0, 1)),
        (r"12\+1", (1.0, 2)),
        (r"^so", (1.0, 0)),
        (r"12\n### Step 2", (1.0, 1)),
        (r"end", (1.0, 0)),
        (r"14", (0.0, -1)),
    ],
)
def test_a_match_belongs_to_the_step_in_which_it_begins(pattern: str, found: tuple[float, int]) -> None:
    assert verdict("regex", pattern=pattern) == found


def test_a_contains_check_belongs_to_the_step_of_its_first_text() -> None:
    assert verdict("contains", all_of=["=13", "=12"]) == (1.0, 2)
    assert verdict("contains", any_of=["=13", "=12"]) == (1.0, 1)
    assert verdict("contains", all_of=["=13"], any_of=["=12"]) == (1.0, 2)
    assert verdict("contains", all_of=["=13", "=14"]) == (0.0, -1)


def test_a_match_in_a_response_without_steps_belongs_to_all_of_it() -> None:
    assert verdict("regex", UNSTEPPED, pattern="13") == verdict("contains", UNSTEPPED, all_of=["13"]) == (1.0, 0)
    assert verdict("regex", UNSTEPPED, pattern="14") == verdict("contains", UNSTEPPED, all_of=["14"]) == (0.0, -1)


@pytest.mark.parametrize(
    ("pattern", "step", "found"),
    [
        ("12$", 1, (1.0, 1)),
        (r"12\Z", 1, (0.0, 1)),
        ("12", 2, (1.0, 2)),
        ("13", 1, (0.0, 1)),
        ("again", 1, (0.0, 1)),
        ("^### Step 2", 2, (1.0, 2)),
        ("13", 3, (0.0, -1)),
        ("so", 0, (1.0, 0)),
        ("14", 0, (0.0, 0)),
    ],
)
def test_a_search_limited_to_a_step_belongs_to_it_whether_satisfied_or_not(
    pattern: str, step: int, found: tuple[float, int]
) -> None:
    assert verdict("regex", pattern=pattern, step=step) == found
    if pattern.isalnum():
        assert verdict("contains", all_of=[pattern], step=step) == found


def test_a_full_match_in_a_step_covers_the_whole_step() -> None:
    assert verdict("regex", pattern=r"### Step 2: b\n12\+1=13\n", match="full", step=2) == (1.0, 2)
    assert verdict("regex", pattern=r"12\+1=13", match="full", step=2) == (0.0, 2)


@pytest.mark.parametrize(
    "each",
    [
        stepped("regex", pattern=r"(?s).*", match="full"),
        stepped("regex", pattern="13", of="final_answer"),
        stepped("contains", all_of=["13"], of="final_answer"),
        stepped("exact", expected="13"),
        stepped("numeric", expected=13),
        stepped("exact", text="none", expected="13"),
    ],
)
def test_checks_of_the_whole_response_or_final_answer_name_no_step(each: Check) -> None:
    assert decide(each).step is None


def test_a_search_is_limited_to_its_step_even_where_no_step_is_reported() -> None:
    looks = replace(stepped("contains", all_of=["13"], step=1), names_step=False)
    assert (decide(looks).score, decide(looks).step) == (0.0, None)
    assert decide(replace(stepped("contains", all_of=["13"], step=2), names_step=False)).score == 1.0


def test_text_outside_the_searched_step_does_not_change_the_digest() -> None:
    other = TEXT.replace("12+1", "13+0")
    assert stepped("regex", pattern="x", step=1).digest == stepped("regex", other, pattern="x", step=1).digest
    assert stepped("regex", pattern="x", step=2).digest != stepped("regex", other, pattern="x", step=2).digest


@given(st.text("ß#1\n", max_size=20), st.lists(st.text("aßİS \n", max_size=8), min_size=1, max_size=4), st.data())
def test_a_mark_is_found_in_the_step_that_contains_it(before: str, bodies: list[str], data: st.DataObject) -> None:
    marked = data.draw(st.integers(1, len(bodies)))
    parts = [f"### Step {n}:{body}{'@' * (n == marked)}\n" for n, body in enumerate(bodies, 1)]
    text = "\n".join([before, *parts])
    assert verdict("contains", text, all_of=["@"]) == verdict("regex", text, pattern="@") == (1.0, marked)
    for n in range(1, len(bodies) + 1):
        assert verdict("contains", text, all_of=["@"], step=n) == (float(n == marked), n)
