import json
import math
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_client.scaffold import (
    draw_criteria,
    scaffold_ratios,
    scaffold_text,
    scaffolded_prompt,
    shown_count,
    training_progress,
)
from trainer_client.wire import Criterion

CASES = json.loads((Path(__file__).parent / "vectors" / "scaffold.json").read_text())["cases"]
GOOD = {"description": "Names the dose", "weight": 5}
BAD = {"description": "Recommends aspirin", "weight": -4}
PLACE = {"run_seed": 7, "prompt_id": "q1", "step": 3, "sample": 2}


@pytest.mark.parametrize("case", CASES)
def test_the_worked_cases_hold(case):
    options = {name: value for name, value in case.items() if name != "ratios"}
    assert scaffold_ratios(**options) == pytest.approx(case["ratios"], abs=1e-9)


@given(
    st.floats(0, 1),
    st.integers(1, 16),
    st.floats(0, 1e6),
    st.floats(-1, 2),
    st.sampled_from(["linear", "binary", "full", "none"]),
    st.integers(0, 20),
    st.sampled_from(["sigmoid", "linear", "power", "constant"]),
    st.floats(0.1, 10),
)
def test_ratios_are_between_zero_and_one_and_fall_within_the_group(
    progress, size, alpha, midpoint, pattern, full, decay, power
):
    options = {"alpha": alpha, "midpoint": midpoint, "decay": decay, "power": power, "full": full}
    ratios = scaffold_ratios(progress, size, pattern=pattern, **options)
    assert len(ratios) == size
    assert all(1.0 >= a >= b >= 0.0 for a, b in zip([1.0, *ratios], ratios, strict=False))


@given(st.floats(0, 1), st.floats(0, 1), st.sampled_from(["sigmoid", "linear", "power", "constant"]))
def test_ratios_never_grow_during_training(one, other, decay):
    early, late = sorted([one, other])
    now, later = (scaffold_ratios(t, 4, decay=decay, power=2) for t in (early, late))
    assert all(a >= b for a, b in zip(now, later, strict=True))


def test_the_sigmoid_is_a_half_at_its_midpoint_and_survives_any_steepness():
    assert scaffold_ratios(0.2, 1) == [0.5]
    assert scaffold_ratios(0.5, 1, alpha=1e5) == [0.0]
    assert scaffold_ratios(0.1, 1, alpha=1e5) == [1.0]


def test_binary_shows_the_first_of_a_group_everything_allowed_at_that_step():
    assert scaffold_ratios(0.5, 4, pattern="binary", full=2, decay="linear") == [0.5, 0.5, 0.0, 0.0]
    assert scaffold_ratios(0.5, 2, pattern="binary", full=9, decay="constant") == [1.0, 1.0]
    assert scaffold_ratios(0.5, 2, pattern="binary", full=0, decay="constant") == [0.0, 0.0]


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((1.1, 4), {}, "progress"),
        ((math.nan, 4), {}, "progress"),
        ((0.1, 0), {}, "group_size"),
        ((0.1, 4), {"alpha": -1.0}, "alpha"),
        ((0.1, 4), {"alpha": math.inf}, "alpha"),
        ((0.1, 4), {"midpoint": math.nan}, "midpoint"),
        ((0.1, 4), {"pattern": "random"}, "pattern is 'random'"),
        ((0.1, 4), {"decay": "cosine"}, "decay is 'cosine'"),
        ((0.1, 4), {"decay": "power", "power": 0.0}, "power"),
        ((0.1, 4), {"pattern": "binary", "full": -1}, "full"),
    ],
)
def test_an_argument_out_of_range_is_refused_by_name(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        scaffold_ratios(*arguments, **options)


def test_progress_runs_from_the_first_step_to_the_last():
    assert [training_progress(step, 5) for step in (0, 1, 2, 5, 6)] == [0.0, 0.0, 0.25, 1.0, 1.0]
    assert training_progress(1, 1) == 0.0
    with pytest.raises(ValueError, match="total"):
        training_progress(1, 0)


def test_halves_round_to_even():
    assert [shown_count(0.5, m) for m in range(8)] == [0, 0, 1, 2, 2, 2, 3, 4]
    assert shown_count(scaffold_ratios(0.0, 1)[0], 12) == 12
    with pytest.raises(ValueError, match="ratio"):
        shown_count(1.5, 4)


@given(st.integers(0, 12), st.data())
def test_a_draw_is_reproducible_and_in_rubric_order(criteria, data):
    count = data.draw(st.integers(0, criteria))
    drawn = draw_criteria(criteria, count, **PLACE)
    assert len(drawn) == count
    assert drawn == sorted(set(drawn)) == draw_criteria(criteria, count, **PLACE)
    assert set(drawn) <= set(range(criteria))


def test_a_draw_is_the_same_on_every_machine_and_version():
    assert draw_criteria(10, 4, **PLACE) == [3, 4, 7, 9]


@pytest.mark.parametrize("change", [{"run_seed": 8}, {"prompt_id": "q2"}, {"step": 4}, {"sample": 3}])
def test_each_part_of_the_seed_changes_the_draw(change):
    assert draw_criteria(30, 15, **PLACE) != draw_criteria(30, 15, **PLACE | change)


def test_a_number_and_its_text_are_different_prompts():
    one, other = ({**PLACE, "prompt_id": prompt} for prompt in (1, "1"))
    assert draw_criteria(30, 15, **one) != draw_criteria(30, 15, **other)


def test_every_pair_of_criteria_is_drawn_about_equally_often():
    draws = Counter(tuple(draw_criteria(4, 2, **PLACE | {"step": step})) for step in range(3000))
    assert len(draws) == 6
    assert all(abs(count - 500) < 100 for count in draws.values())


@pytest.mark.parametrize("count", [-1, 4])
def test_drawing_more_criteria_than_there_are_is_refused(count):
    with pytest.raises(ValueError, match="count"):
        draw_criteria(3, count, **PLACE)


def test_criteria_are_listed_under_the_heading_of_their_sign():
    include, avoid = scaffold_text([BAD, GOOD]).split("Points to avoid:")
    assert "Points to include:\n- Names the dose" in include
    assert "- Recommends aspirin" in avoid
    assert "never mention" in avoid


def test_an_empty_heading_is_left_out():
    assert "avoid" not in scaffold_text([GOOD])
    assert "include" not in scaffold_text([BAD])
    assert "include" not in scaffold_text([{"description": "Forgets the sign", "kind": "pitfall", "weight": 1}])


def test_criteria_may_be_models_with_several_lines():
    criterion = Criterion(id="a", description="Lists:\nfever\ncough")
    assert "- Lists:\n  fever\n  cough" in scaffold_text([criterion])


def test_a_criterion_without_a_description_is_refused():
    with pytest.raises(ValueError, match=r"criteria\[1\]"):
        scaffold_text([GOOD, {"id": "x", "weight": 1}])


def test_with_nothing_drawn_the_prompt_is_unchanged():
    chat = [{"role": "user", "content": "Hi"}]
    assert scaffolded_prompt("Hi", []) == "Hi"
    assert scaffolded_prompt(chat, []) is chat


def test_in_a_text_the_criteria_are_appended():
    assert scaffolded_prompt("How much?", [GOOD]) == "How much?\n\n" + scaffold_text([GOOD])


def test_in_a_chat_the_criteria_follow_the_last_user_message_of_a_copy():
    chat = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "How much?", "name": "ann"},
        {"role": "assistant", "content": "Well,"},
    ]
    before = json.dumps(chat)
    told = scaffolded_prompt(chat, [GOOD])
    assert told[2] == {"role": "user", "content": "How much?\n\n" + scaffold_text([GOOD]), "name": "ann"}
    assert [*told[:2], told[3]] == [*chat[:2], chat[3]]
    assert json.dumps(chat) == before


@pytest.mark.parametrize("chat", [[], [{"role": "system", "content": "Hi"}], [{"role": "user", "content": [{}]}]])
def test_a_chat_without_user_text_is_refused(chat):
    with pytest.raises(ValueError, match="user message"):
        scaffolded_prompt(chat, [GOOD])
