import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_client.refine import INSTRUCTION, RefinementDecision, assess_group, prompt_with_criteria, refinement_prompt
from trainer_client.rewards import reward
from trainer_client.wire import Criterion

FACT = {"description": "States that x = 3", "kind": "factual", "weight": 5}
STEP = {"description": "Divides both sides by 2", "kind": "process", "weight": 1}
MISTAKE = {"description": "Drops the sign", "weight": -2}
VERDICT = st.sampled_from([0.0, 0.5, 1.0, None])


@st.composite
def groups(draw):
    """Rewards, criteria and scores of up to five responses, with few distinct rewards so that many are equal."""
    kinds = st.fixed_dictionaries({"kind": st.sampled_from(["factual", "pitfall"]), "weight": st.sampled_from([2, -1])})
    criteria = draw(st.lists(kinds, max_size=4))
    rows = st.lists(VERDICT, min_size=len(criteria), max_size=len(criteria))
    scores = draw(st.lists(rows, max_size=5))
    rewards = [draw(st.sampled_from([None, -1.0, 0.3, 0.1 + 0.2, 1.0])) for _ in scores]
    return rewards, criteria, scores


def satisfied(criterion, score):
    return score == (0.0 if criterion["weight"] < 0 or criterion["kind"] == "pitfall" else 1.0)


@given(groups())
def test_the_best_has_the_highest_reward_and_ties_go_to_the_most_satisfied_first_one(group):
    rewards, criteria, scores = group
    found = assess_group(rewards, criteria, scores)
    known = [r for r in rewards if r is not None]
    if not known:
        assert found == RefinementDecision("unrewarded", None, ())
        return
    counts = [sum(map(satisfied, criteria, row)) for row in scores]
    assert rewards[found.best] == pytest.approx(max(known))
    rivals = [i for i, r in enumerate(rewards) if r == pytest.approx(max(known))]
    assert counts[found.best] == max(counts[i] for i in rivals)
    assert found.best == min(i for i in rivals if counts[i] == counts[found.best])


@given(groups())
def test_every_criterion_of_the_best_is_failed_satisfied_or_unscored(group):
    rewards, criteria, scores = group
    found = assess_group(rewards, criteria, scores)
    if found.best is None:
        return
    row = scores[found.best]
    assert list(found.failed) == sorted(found.failed)
    for index, (criterion, score) in enumerate(zip(criteria, row, strict=True)):
        assert (index in found.failed) == (score is not None and not satisfied(criterion, score))
    assert (found.outcome == "refine") == (len(found.failed) > 0)
    assert (found.outcome == "satisfied") == all(map(satisfied, criteria, row))
    assert (found.outcome == "undecided") == (not found.failed and None in row)


def test_the_best_response_is_refined_by_its_failed_criteria_in_rubric_order():
    found = assess_group([0.2, 0.7, 0.1], [STEP, FACT, STEP, FACT], [[0, 0, 0, 0], [0.9, 1, 1, 0], [1, 1, 1, 1]])
    assert found == ("refine", 1, (0, 3))


def test_of_equal_rewards_the_response_that_satisfies_all_is_the_best():
    scores = [[1, 0, 0], [1, 1, 1], [1, 1, 0]]
    rewards = [reward([FACT, STEP, STEP], row, "factual_override") for row in scores]
    assert rewards == [1.0, 1.0, 1.0]
    assert assess_group(rewards, [FACT, STEP, STEP], scores) == ("satisfied", 1, ())
    assert assess_group(rewards[::2], [FACT, STEP, STEP], scores[::2]) == ("refine", 1, (2,))
    assert assess_group([0.5, 0.5], [FACT, STEP], [[1, 0], [0, 1]]) == ("refine", 0, (1,))


def test_a_rounding_error_does_not_make_a_response_better():
    assert 0.1 + 0.2 > 0.3
    assert assess_group([0.1 + 0.2, 0.3], [FACT, STEP], [[0, 0], [1, 0]]).best == 1
    assert assess_group([0.3 + 1e-6, 0.3], [FACT, STEP], [[0, 0], [1, 0]]).best == 0


def test_a_response_without_a_reward_is_ignored_even_with_good_verdicts():
    assert assess_group([None, 0.0], [FACT, STEP], [[1, 1], [0, 1]]) == ("refine", 1, (0,))
    assert assess_group([None, None], [FACT], [[1], [None]]) == ("unrewarded", None, ())
    assert assess_group([], [FACT], []).outcome == "unrewarded"


def test_an_unscored_criterion_is_neither_failed_nor_satisfied():
    assert assess_group([1.0], [FACT, STEP], [[1, None]]) == ("undecided", 0, ())
    assert assess_group([0.5], [FACT, STEP, STEP], [[1, None, 0]]) == ("refine", 0, (2,))
    assert assess_group([1.0, 1.0], [FACT, STEP], [[1, None], [1, 1]]) == ("satisfied", 1, ())


def test_a_pitfall_fails_when_the_mistake_was_made():
    pitfall = {"kind": "pitfall", "weight": 1}
    assert assess_group([1.0], [FACT, MISTAKE, pitfall], [[1, 0, 0]]).outcome == "satisfied"
    assert assess_group([1.0], [FACT, MISTAKE, pitfall], [[1, 1, 0.5]]).failed == (1, 2)


def test_without_criteria_nothing_is_failed():
    assert assess_group([0.0, 1.0], [], [[], []]) == ("satisfied", 1, ())


def test_rewards_and_scores_may_be_numpy_and_criteria_models():
    model = Criterion(id="a", description="States x")
    assert assess_group(np.array([0.1, 0.9]), [model], np.array([[1.0], [0.0]])) == ("refine", 1, (0,))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0], [FACT], []), "1 rewards and 0 rows"),
        (([1.0], [FACT], [[1, 1]]), "2 scores for 1 criteria"),
        (([1.0], [FACT], [[2]]), r"scores\[0\]"),
        (([None, float("nan")], [FACT], [[1], [1]]), r"rewards\[1\]"),
        ((["1"], [FACT], [[1]]), r"rewards\[0\]"),
        (([1.0], [{"kind": "fact"}], [[1]]), "kind"),
    ],
)
def test_invalid_responses_are_refused_with_their_index(arguments, message):
    with pytest.raises(ValueError, match=message):
        assess_group(*arguments)


def test_a_prompt_shows_question_answer_and_failed_criteria_in_order():
    text = refinement_prompt("What is x?", "\nx is 4.\n", [FACT, MISTAKE, STEP])
    parts = [
        "What is x?\n\n",
        "not well enough",
        "<previous_answer>\nx is 4.\n</previous_answer>",
        "lacks and a better one has:\n- States that x = 3\n- Divides both sides by 2\n\n",
        "does and a better one avoids:\n- Drops the sign\n\n",
        "Never mention",
    ]
    assert text.startswith(parts[0])
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert text.endswith(INSTRUCTION)


def test_a_heading_without_points_is_left_out():
    assert "avoids" not in refinement_prompt("What is x?", "4", [FACT])
    assert "lacks and" not in refinement_prompt("What is x?", "4", [MISTAKE])


def test_an_answer_without_failed_criteria_is_not_called_insufficient():
    text = refinement_prompt("What is x?", "3", [])
    assert "not well enough" not in text
    assert "- " not in text
    assert text.endswith(f"</previous_answer>\n\n{INSTRUCTION}")


def test_a_custom_instruction_may_be_given():
    assert refinement_prompt("What is x?", "4", [FACT], instruction="Again, in French.").endswith(
        "- States that x = 3\n\nAgain, in French."
    )


CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "What is x?", "name": "ann"},
]


@pytest.mark.parametrize(
    "ask", [lambda prompt: refinement_prompt(prompt, "4", [FACT]), lambda prompt: prompt_with_criteria(prompt, [FACT])]
)
def test_in_a_chat_the_refinement_follows_the_last_user_message(ask):
    before = json.dumps(CHAT)
    assert ask(CHAT) == [*CHAT[:3], {"role": "user", "content": ask("What is x?"), "name": "ann"}]
    assert json.dumps(CHAT) == before
    with pytest.raises(ValueError, match="user message"):
        ask([{"role": "user", "content": [{"type": "text", "text": "What is x?"}]}])


@given(st.text(), st.text(), st.lists(st.text("abc\n", min_size=1).filter(str.strip), max_size=3))
def test_question_answer_and_criteria_are_shown_unchanged(question, response, points):
    text = refinement_prompt(question, response, [{"description": point} for point in points])
    assert text.startswith(f"{question}\n\n")
    assert f"\n{response.strip()}\n" in text
    for point in points:
        assert "- " + point.strip().replace("\n", "\n  ") in text


def test_at_test_time_the_criteria_follow_the_question_without_an_answer():
    text = prompt_with_criteria("What is x?", [FACT, STEP])
    assert text.startswith("What is x?\n\n")
    assert "keep the following in mind" in text
    assert "- States that x = 3\n- Divides both sides by 2" in text
    assert "previous" not in text


def test_only_factual_criteria_may_be_shown():
    model = Criterion(id="a", description="Names the unit", kind="factual")
    text = prompt_with_criteria("What is x?", [STEP, model, FACT], factual_only=True)
    assert "- Names the unit\n- States that x = 3" in text
    assert "Divides" not in text
    assert prompt_with_criteria("What is x?", [STEP], factual_only=True) == "What is x?"


@pytest.mark.parametrize("ask", [lambda c: refinement_prompt("q", "r", c), lambda c: prompt_with_criteria("q", c)])
def test_a_criterion_without_a_description_is_refused(ask):
    with pytest.raises(ValueError, match=r"criteria\[1\] has no description"):
        ask([FACT, {"id": "a"}])
