"""The order in which rendezvous hashing ranks names for a key."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from judge_server.scheduling.pools import key_of, ranked
from tests.hypothesis_examples import examples

NAMES = st.lists(st.text(min_size=1, max_size=12), min_size=2, max_size=8, unique=True)
KEYS = [n.to_bytes(4, "big") for n in range(60)]


@given(key=st.binary(max_size=64), names=NAMES, seed=st.randoms(use_true_random=False))
@settings(max_examples=examples(50))
def test_every_name_is_ranked_once_whatever_the_input_order(key: bytes, names: list[str], seed: object) -> None:
    order = ranked(key, names)
    assert sorted(order) == sorted(names)
    assert ranked(key, sorted(names)) == order


@given(names=NAMES, new=st.text(min_size=13, max_size=14))
@settings(max_examples=examples(30))
def test_a_new_name_takes_keys_for_itself_and_keeps_the_order_of_the_others(names: list[str], new: str) -> None:
    for key in KEYS:
        assert [name for name in ranked(key, [*names, new]) if name != new] == ranked(key, names)


def test_the_keys_of_a_removed_name_move_to_all_of_the_others() -> None:
    names = ["a", "b", "c", "d"]
    heirs: Counter[str] = Counter()
    for n in range(2000):
        key = n.to_bytes(4, "big")
        before, after = ranked(key, names)[0], ranked(key, names[1:])[0]
        if before == "a":
            heirs[after] += 1
        else:
            assert after == before
    assert sorted(heirs) == ["b", "c", "d"]
    assert min(heirs.values()) > 0.2 * heirs.total()


def test_keys_spread_evenly_over_names() -> None:
    names = [f"http://judge-{n}:8001" for n in range(5)]
    shares = Counter(ranked(n.to_bytes(4, "big"), names)[0] for n in range(10_000))
    assert all(1800 < share < 2200 for share in shares.values())


def test_the_order_is_the_same_in_every_process_and_release() -> None:
    assert ranked(b"a response", ["a", "b", "c", "d", "e"]) == ["d", "c", "a", "b", "e"]


def test_key_and_name_are_separated() -> None:
    """Moving characters from a name to the end of the key changes the order."""
    names = [f"{n}" for n in range(12)]
    assert ranked(b"k", [f"x{name}" for name in names]) != [f"x{name}" for name in ranked(b"kx", names)]


@given(text=st.text(st.characters(exclude_categories=[])), other=st.text())
def test_a_text_has_one_key_and_other_texts_have_others_even_with_lone_surrogates(text: str, other: str) -> None:
    assert key_of(text) == key_of(text + "")
    assert len(key_of(text)) == 16
    assert (key_of(text) == key_of(other)) == (text == other)
