"""Ranking schedules: which pairs meet, how often, and that this depends on the texts and not on their order."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.judging.pairs import Tournament, most_pairs, swiss_rounds

COUNT = st.integers(2, 24)
SCHEDULES = ["all_pairs", "swiss", "pivot"]


def texts(count: int) -> list[str]:
    return [f"response {number}" for number in range(count)]


def played(names: list[str], schedule: str, rounds: int | None = None) -> list[list[tuple[int, int]]]:
    """The rounds of a tournament in which the text that sorts later wins."""
    tournament, standings, all_rounds = Tournament(names, schedule, rounds), [0.5] * len(names), []
    while not tournament.finished:
        all_rounds.append(tournament.next_round(standings))
        for place in range(len(names)):
            games = [pair for one in all_rounds for pair in one if place in pair]
            won = [names[place] > names[i if j == place else j] for i, j in games]
            standings[place] = sum(won) / len(won) if won else 0.5
    return all_rounds


@given(COUNT, st.sampled_from(SCHEDULES), st.none() | st.integers(1, 30))
def test_no_pair_meets_twice_and_the_number_of_pairs_is_within_its_maximum(count, schedule, rounds):
    pairs = [pair for one in played(texts(count), schedule, rounds) for pair in one]
    assert len(set(pairs)) == len(pairs) <= most_pairs(count, schedule, rounds)
    assert all(0 <= i < j < count for i, j in pairs)


@given(COUNT)
def test_all_pairs_covers_every_pair_and_the_pivot_meets_every_other_response(count):
    assert played(texts(count), "all_pairs") == [list(combinations(range(count), 2))]
    ((*pairs,),) = played(texts(count), "pivot")
    assert set.intersection(*map(set, pairs))
    assert {place for pair in pairs for place in pair} == set(range(count))


@given(COUNT)
def test_in_a_swiss_schedule_the_games_of_two_responses_differ_by_one_at_most(count):
    all_rounds = played(texts(count), "swiss")
    assert len(all_rounds) == swiss_rounds(count, None)
    games = [sum(place in pair for one in all_rounds for pair in one) for place in range(count)]
    assert max(games) - min(games) <= 1


@given(st.integers(2, 16), st.sampled_from(SCHEDULES), st.randoms())
def test_the_same_texts_in_another_order_meet_in_the_same_pairs(count, schedule, random):
    names = texts(count)
    shuffled = random.sample(names, count)

    def meetings(order: list[str]) -> list[set[frozenset[str]]]:
        return [{frozenset({order[i], order[j]}) for i, j in one} for one in played(order, schedule)]

    assert meetings(names) == meetings(shuffled)


@pytest.mark.parametrize(("count", "rounds", "made"), [(2, None, 1), (8, None, 3), (9, None, 4), (4, 30, 3), (8, 2, 2)])
def test_a_swiss_schedule_has_the_requested_rounds_or_enough_to_find_a_winner(count, rounds, made):
    assert swiss_rounds(count, rounds) == made
