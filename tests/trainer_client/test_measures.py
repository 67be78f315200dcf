"""Measures of judges, policies and texts."""

import json
import math
import re
from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_client.measures import (
    SELF_CORRECTION_PHRASES,
    agreement_rate,
    average_at_k,
    best_of_n,
    cohen_kappa,
    faithfulness,
    loop_statistics,
    loops,
    novelty,
    pass_at_k,
    point_biserial,
    self_bleu,
    self_internalization_gap,
    semantic_distance,
    step_agreement,
)

CASES = json.loads((Path(__file__).parent / "vectors" / "measures.json").read_text())["cases"]

LABELS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), min_size=1, max_size=12)


@pytest.mark.parametrize("case", CASES)
def test_the_worked_cases_hold(case):
    assert cohen_kappa(case["a"], case["b"]) == pytest.approx(case["kappa"], abs=1e-9)
    assert point_biserial(case["a"], case["x"]) == pytest.approx(case["point_biserial"], abs=1e-9)
    assert pass_at_k(case["n"], case["c"], case["k"]) == pytest.approx(case["pass_at_k"], abs=1e-9)
    rates = faithfulness(case["answer_correct"], case["steps_correct"])
    assert rates == pytest.approx(case["faithfulness"], abs=1e-9)


@given(LABELS)
def test_kappa_is_symmetric_bounded_and_one_exactly_for_full_agreement(pairs):
    a, b = zip(*pairs, strict=True)
    kappa = cohen_kappa(a, b)
    assert kappa == cohen_kappa(b, a)
    assert (kappa is None) == (len(set(a) | set(b)) == 1)
    if kappa is not None:
        assert -1.0 <= kappa <= 1.0
        assert (kappa == 1.0) == (a == b)
        assert kappa <= agreement_rate(a, b)


def test_kappa_of_independent_labels_is_zero():
    assert cohen_kappa([1, 1, 0, 0], [1, 0, 1, 0]) == 0.0


def test_items_that_one_judge_failed_on_are_ignored():
    assert cohen_kappa([1, 0, None, 1], [1, 0, 1, None]) == 1.0
    assert agreement_rate([1, 0, None], [1, 1, 1]) == 0.5
    assert agreement_rate([None], [1]) is None
    assert cohen_kappa([], []) is None


def test_steps_agree_where_both_judges_name_one():
    assert step_agreement([1, 2, 0, -1, 3, None], [1, 3, 0, 2, 0, 1]) == 0.5
    assert step_agreement([0, -1], [0, -1]) is None


@given(st.lists(st.tuples(st.booleans(), st.floats(-1e3, 1e3).map(lambda x: round(x, 3))), max_size=10))
def test_the_point_biserial_is_the_difference_of_means_over_the_deviation(pairs):
    binary, x = [b for b, _ in pairs], [v for _, v in pairs]
    found = point_biserial(binary, x)
    if len(set(binary)) < 2 or len(set(x)) < 2:
        assert found is None
        return
    yes, no = ([v for b, v in pairs if b is which] for which in (True, False))
    share = len(yes) / len(pairs)
    expected = (np.mean(yes) - np.mean(no)) / np.std(x) * math.sqrt(share * (1 - share))
    assert found == pytest.approx(expected, abs=1e-6)
    assert -1.0 <= found <= 1.0


def test_the_point_biserial_of_tiny_or_offset_numbers_is_exact():
    assert point_biserial([0, 1], [0.0, 5e-324]) == pytest.approx(1.0)
    assert point_biserial([1, 0, None, 1], [1e6, 1e6 + 1, 5, None]) == pytest.approx(-1.0)


@pytest.mark.parametrize(("binary", "x"), [([0, 2], [1, 2]), ([0, 1], [1, math.nan]), ([0, 0.5], [1, 2])])
def test_invalid_values_are_refused(binary, x):
    with pytest.raises(ValueError, match="binary must hold"):
        point_biserial(binary, x)


@pytest.mark.parametrize("function", [agreement_rate, cohen_kappa, step_agreement, point_biserial])
def test_two_sides_of_different_length_are_refused(function):
    with pytest.raises(ValueError, match="2 and 1 entries"):
        function([1, 0], [1])


@given(st.integers(1, 60), st.data())
def test_pass_at_k_is_the_share_of_draws_with_a_right_one(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    assert pass_at_k(n, c, k) == pytest.approx(1 - math.comb(n - c, k) / math.comb(n, k), rel=1e-9, abs=1e-12)


def test_pass_at_k_stays_exact_for_large_numbers():
    assert pass_at_k(10**6, 1, 10) == pytest.approx(1e-5, rel=1e-12)
    assert pass_at_k(10**6, 10**6 - 10, 11) == 1.0
    assert pass_at_k(10**6, 400_000, 500_000) == pytest.approx(1.0, abs=1e-15)
    assert pass_at_k(2048, 1, 2048) == 1.0
    assert pass_at_k(5, 0, 3) == 0.0


@pytest.mark.parametrize(("n", "c", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 0), (3, 1, 4), (0, 0, 1)])
def test_pass_at_k_refuses_impossible_counts(n, c, k):
    with pytest.raises(ValueError, match="use c from 0 to n"):
        pass_at_k(n, c, k)


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=8), st.data())
def test_best_of_n_is_the_mean_maximum_over_all_sets_of_n(scores, data):
    n = data.draw(st.integers(1, len(scores)))
    expected = np.mean([max(chosen) for chosen in combinations(scores, n)])
    assert best_of_n([*scores, None], n) == pytest.approx(expected, abs=1e-9)


@given(st.lists(st.integers(0, 1), min_size=1, max_size=30), st.data())
def test_best_of_n_of_binary_scores_is_pass_at_n(scores, data):
    n = data.draw(st.integers(1, len(scores)))
    assert best_of_n(scores, n) == pytest.approx(pass_at_k(len(scores), sum(scores), n), abs=1e-9)


def test_best_of_more_than_the_number_of_scores_is_none():
    assert best_of_n([1.0, None], 2) is None
    with pytest.raises(ValueError, match="n is 0"):
        best_of_n([1.0], 0)
    with pytest.raises(ValueError, match="not finite"):
        best_of_n([math.nan], 1)


def test_avg_at_k_weighs_problems_equally_and_ignores_unknown_values():
    assert average_at_k([[1, 0, None, None], [1, 1, 1, 1], [None]]) == 0.75
    assert average_at_k([]) is None


def test_a_trajectory_without_steps_counts_in_the_total_but_is_neither_faithful_nor_misaligned():
    rates = faithfulness([1, 1, 0, 0, 1], [[], [1, 1], [1], [], [1, 0]])
    assert rates == {
        "faithful_reasoning_rate": 0.2,
        "misaligned_trajectory_rate": 0.4,
        "answer_accuracy": 0.6,
        "step_accuracy": 0.8,
    }


def test_an_unknown_trajectory_is_left_out_unless_a_wrong_step_decides_it():
    rates = faithfulness([1, 1, None, 0], [[1, None], [None, 0], [1], [0, None]])
    assert rates["faithful_reasoning_rate"] == 0.0
    assert rates["misaligned_trajectory_rate"] == 0.5
    assert rates["answer_accuracy"] == pytest.approx(2 / 3)
    assert rates["step_accuracy"] == 0.5


def test_rates_of_no_trajectories_are_none():
    assert set(faithfulness([], []).values()) == {None}


@given(st.lists(st.tuples(st.integers(0, 1), st.lists(st.integers(0, 1), max_size=4)), min_size=1))
def test_faithful_and_misaligned_are_mutually_exclusive(trajectories):
    answers, steps = zip(*trajectories, strict=True)
    rates = faithfulness(answers, steps)
    both = rates["faithful_reasoning_rate"] + rates["misaligned_trajectory_rate"]
    right_with_steps = sum(a == 1 and bool(s) for a, s in trajectories) / len(trajectories)
    assert right_with_steps - 1e-9 <= both <= 1.0 + 1e-9


@pytest.mark.parametrize(("answers", "steps"), [([0.5], [[1]]), ([1], [[0.5]]), ([1], []), ([2], [[]])])
def test_non_binary_trajectories_are_refused(answers, steps):
    with pytest.raises(ValueError):  # noqa: PT011
        faithfulness(answers, steps)


def test_novelty_is_the_share_of_responses_that_became_more_probable():
    found = novelty([-1.0, -1.0, -1.0, -1.0], [-1.0, -2.0, -4.0, -7.0])
    assert found.median == pytest.approx((math.e + math.e**3) / 2)
    assert found.mean == pytest.approx(np.mean(np.exp([0, 1, 3, 6])))
    assert found.counts == {2: 3, 10: 2, 100: 1}


@pytest.mark.parametrize(("new", "old"), [([], []), ([-1.0], []), ([-1.0], [-math.inf])])
def test_novelty_needs_finite_log_likelihoods_of_both_policies(new, old):
    with pytest.raises(ValueError, match="log-likelihood"):
        novelty(new, old)


LOGPS = st.floats(-20, 0)


@given(st.lists(st.lists(st.tuples(LOGPS, LOGPS), max_size=5), max_size=5))
def test_the_self_internalization_gap_is_the_mean_over_responses_of_means_over_tokens(rows):
    prompted, conditioned = ([[pair[side] for pair in row] for row in rows] for side in (0, 1))
    found = self_internalization_gap(prompted, conditioned)
    gaps = [np.mean([own - other for own, other in row]) for row in rows if row]
    assert found == (pytest.approx(np.mean(gaps), abs=1e-9) if gaps else None)


def test_log_probabilities_of_other_tokens_have_no_gap():
    with pytest.raises(ValueError, match="one for each of its tokens"):
        self_internalization_gap([[-1.0, -2.0]], [[-1.0]])
    with pytest.raises(ValueError, match="zip"):
        self_internalization_gap([[-1.0]], [])


SOUND = "### Step 1: Add\nTwo and two give four.\n\n### Step 2: Check\nFour less two gives two again.\n\n\\boxed{4}"

PARAGRAPHS = [f"Paragraph number {n} says something of its own." for n in range(20)]

TEXTS = st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=6), min_size=2, max_size=4)


def bleu(text, others, max_n=4):
    """Textbook BLEU of a text against its references."""
    logs = []
    for n in range(1, min(max_n, len(text)) + 1):
        own, *rest = (Counter(tuple(t[i : i + n]) for i in range(len(t) - n + 1)) for t in [text, *others])
        matches = sum(min(count, max(other[gram] for other in rest)) for gram, count in own.items())
        logs.append(math.log((matches or 0.1) / sum(own.values())))
    closest = min((abs(len(other) - len(text)), len(other)) for other in others)[1]
    brevity = 1.0 if len(text) >= closest else math.exp(1 - closest / len(text))
    return brevity * math.exp(sum(logs) / len(logs))


def test_a_sound_solution_does_not_loop():
    found = loops(SOUND)
    assert not found
    assert found.looping is False
    assert (found.self_corrections, found.duplicate_share) == (0, 0.0)


def test_more_than_twenty_self_corrections_are_looping():
    assert not loops("Wait. " * 20)
    found = loops("Wait. " * 21)
    assert found
    assert (found.self_corrections, found.too_many_corrections) == (21, True)
    assert not loops("Wait. " * 21, max_corrections=21)


def test_phrases_match_whole_words_in_any_case_and_spacing_and_the_longest_match_counts():
    assert loops("BUT   wait! Let me\ndouble-check. That’s not right.").self_corrections == 3
    assert loops("The waiter awaits the factually waiting.").self_corrections == 0
    assert loops("but wait", phrases=["but", "wait", "but wait"]).self_corrections == 1
    assert loops("oops, oops", phrases=["oops"]).self_corrections == 2
    assert loops("wait", phrases=[]).self_corrections == 0
    assert all(loops(phrase).self_corrections == 1 for phrase in SELF_CORRECTION_PHRASES)


@given(
    st.lists(st.sampled_from(["on", "hold on", "On it", "it’s", "wait", "a.b", " but  wait ", "", "-"]), max_size=5),
    st.lists(
        st.sampled_from(["on", "ON", "it's", "It’s", "hold", "wait", "a", ".b", "but", " ", "\n", "-", "_"]),
        max_size=12,
    ),
)
def test_phrase_counts_equal_those_of_a_single_plain_pattern(phrases, pieces):
    text = "".join(pieces)
    longest_first = sorted(
        (phrase.replace("’", "'").split() for phrase in phrases), key=lambda words: -len(" ".join(words))
    )
    spelled = "|".join(r"\s+".join(map(re.escape, words)) for words in longest_first if words)
    plain = re.compile(rf"(?<!\w)(?:{spelled})(?!\w)" if spelled else "(?!)", re.IGNORECASE)
    assert loops(text, phrases=phrases).self_corrections == len(plain.findall(text.replace("’", "'")))


def test_a_second_first_step_is_looping_and_step_ten_does_not_count_as_one():
    found = loops("### Step 1: a\nx\n### Step 1: b\ny")
    assert (found.repeated_first_step, found.repeated_headings, bool(found)) == (True, True, True)
    assert not loops("### Step 1: a\nx\n### Step 10: b\ny")


def test_a_repeated_heading_of_another_step_is_looping():
    found = loops("### Step 1: a\n### Step 2: b\n### Step 2: c")
    assert (found.repeated_first_step, found.repeated_headings, bool(found)) == (False, True, True)


def test_more_than_a_tenth_of_repeated_paragraphs_is_looping():
    assert not loops("\n\n".join(PARAGRAPHS[:9] + PARAGRAPHS[:1]))
    found = loops("\n \n".join([*PARAGRAPHS[:8], PARAGRAPHS[0].upper().replace(" ", "\n")]))
    assert found.duplicate_share == pytest.approx(1 / 9)
    assert found.too_many_duplicates
    assert found
    assert not loops("\n\n".join(PARAGRAPHS[:8] + PARAGRAPHS[:1]), max_duplicate_share=1 / 9)


def test_short_paragraphs_may_repeat():
    text = "\n\n".join(["Therefore,", "x = 2"] * 5)
    assert not loops(text)
    assert loops(text, min_paragraph_words=1).duplicate_share == pytest.approx(0.8)


@given(st.text())
def test_any_text_can_be_analysed(text):
    assert 0.0 <= loops(text).duplicate_share < 1.0


def test_statistics_separate_looping_responses_from_others():
    found = [loops("Wait. " * 30), loops(SOUND), loops("Wait. " * 24), loops(SOUND)]
    assert loop_statistics(found, [1, 1, 0, None]) == {
        "loop_rate": 0.5,
        "mean_self_corrections": 13.5,
        "accuracy_looping": 0.5,
        "accuracy_other": 1.0,
    }
    assert loop_statistics([], []) == dict.fromkeys(
        ["loop_rate", "mean_self_corrections", "accuracy_looping", "accuracy_other"]
    )
    with pytest.raises(ValueError, match="1 scores for 2"):
        loop_statistics(found[:2], [1])


@given(TEXTS, st.integers(1, 4))
def test_self_bleu_is_the_mean_bleu_of_each_text_against_the_others(texts, max_n):
    expected = sum(bleu(t, texts[:i] + texts[i + 1 :], max_n) for i, t in enumerate(texts)) / len(texts)
    assert self_bleu(texts, max_n=max_n) == pytest.approx(expected)
    assert self_bleu([" ".join(text) for text in texts], max_n=max_n) == pytest.approx(expected)


def test_equal_texts_have_self_bleu_one_and_different_ones_almost_zero():
    assert self_bleu(["The cat sat down.", "the cat sat down"]) == pytest.approx(1.0)
    assert self_bleu(["a b c d e f", "u v w x y z"]) < 0.05
    assert self_bleu(["", "a b"]) < 0.05
    assert self_bleu(["", ""]) == 0.0


def test_self_bleu_needs_at_least_two_texts():
    with pytest.raises(ValueError, match="1 texts"):
        self_bleu(["a"])
    with pytest.raises(ValueError, match="max_n"):
        self_bleu(["a", "b"], max_n=0)


VECTOR = st.lists(st.integers(-9, 9).map(float), min_size=3, max_size=3).filter(any)


@given(st.lists(VECTOR, min_size=2, max_size=5), st.floats(1e-150, 1e150))
def test_semantic_distance_is_the_mean_cosine_distance_of_all_pairs(vectors, scale):
    pairs = [(a, b) for i, a in enumerate(vectors) for b in vectors[:i]]
    cosines = [sum(x * y for x, y in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b)) for a, b in pairs]
    expected = sum(1 - cosine for cosine in cosines) / len(pairs)
    assert semantic_distance(vectors) == pytest.approx(expected, abs=1e-12)
    assert semantic_distance([[x * scale for x in v] for v in vectors]) == pytest.approx(expected, abs=1e-9)


def test_semantic_distance_is_0_for_equal_directions_and_2_for_opposite_ones():
    assert semantic_distance([[1.0, 2.0], [2.0, 4.0]]) == pytest.approx(0.0, abs=1e-12)
    assert semantic_distance([[1.0, 0.0], [-3.0, 0.0]]) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("vectors", "says"),
    [
        ([[1.0]], "1 embeddings"),
        ([[1.0], [1.0, 2.0]], "differ in size"),
        ([[1.0], [0.0]], "no direction"),
        ([[1.0], [math.nan]], "no direction"),
        ([[], []], "no direction"),
    ],
)
def test_semantic_distance_refuses_vectors_without_a_direction(vectors, says):
    with pytest.raises(ValueError, match=says):
        semantic_distance(vectors)
