"""A check's digest, and the fields it requires."""

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.verifiers import Check, missing_field
from tests.judge_server.verifiers.checks import answered, check, verification

CHECKS = [
    check("math", "A: 1", expected="1"),
    check("math", "A: 2", expected="1"),
    check("math", "A: 1", expected="2"),
    check("math", "A: 1", expected="1", of="response"),
    check("exact", "A: 1", expected="1"),
    check("exact", "A: 1", expected="1", case_sensitive=True),
    check("numeric", "A: 1", expected=1),
    check("numeric", "A: 1", expected=1, absolute=0.5),
    check("contains", "A: 1", all_of=["1"]),
    check("contains", "A: 1", any_of=["1"]),
    check("regex", "A: 1", pattern="1"),
    check("regex", "A: 1", pattern="1", step=0),
    replace(check("regex", "A: 1", pattern="1"), names_step=True),
    check("json_schema", "A: 1", schema={}),
    check("json_schema", "A: 1", schema={"type": "string"}),
    check("exact", "none", expected="1"),
    answered("exact", "", expected="1"),
]


def test_different_checks_have_different_digests():
    digests = {each.digest for each in CHECKS}
    assert len(digests) == len(CHECKS)
    assert {len(digest) for digest in digests} == {32}


@pytest.mark.parametrize("each", CHECKS)
def test_a_check_keeps_its_digest_through_a_pickle(each):
    copy = pickle.loads(pickle.dumps(each))
    assert copy == each
    assert copy.digest == each.digest


def test_text_that_is_not_compared_does_not_change_the_digest():
    one = answered("math", "7", expected="7")
    assert replace(one, text="another way there", ground_truth="8").digest == one.digest
    assert replace(one, final_answer="8").digest != one.digest
    searched = check("contains", "some text", all_of=["text"])
    assert replace(searched, final_answer="9", ground_truth="9").digest == searched.digest


def test_only_the_stated_answer_of_a_ground_truth_counts():
    assert answered("math", "7", ground_truth="7").digest == answered("math", "7", ground_truth="So:\n#### 7").digest
    assert answered("math", "7", ground_truth="7").digest != answered("math", "7", ground_truth="8").digest


@given(st.text(st.characters()), st.text(st.characters()) | st.none())
def test_any_text_has_a_digest(text, final_answer):
    assert len(Check(verification("exact", expected="1", of="response"), text, final_answer, None).digest) == 32
    assert len(Check(verification("exact"), text, final_answer, text).digest) == 32


@pytest.mark.parametrize("method", ["math", "exact", "numeric"])
def test_a_comparison_needs_an_expected_answer(method):
    assert missing_field(verification(method), None) == "ground_truth"
    assert missing_field(verification(method), "  ") == "ground_truth"
    assert missing_field(verification(method), "0") is None
    assert missing_field(verification(method, expected=0 if method == "numeric" else "0"), None) is None


@pytest.mark.parametrize(
    "given_",
    [
        verification("judge"),
        verification("contains", all_of=["x"]),
        verification("regex", pattern="x"),
        verification("json_schema", schema={}),
    ],
)
def test_the_other_methods_need_no_expected_answer(given_):
    assert missing_field(given_, None) is None


def test_a_criterion_for_the_judge_is_not_a_check():
    with pytest.raises(ValueError, match="ask the judge"):
        assert Check(verification("judge"), "text", None, None).digest
