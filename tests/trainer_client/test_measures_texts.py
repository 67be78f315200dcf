import math
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_client.measures import SELF_CORRECTION_PHRASES, loop_statistics, loops, self_bleu, semantic_distance

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
