"""The form of a key, and what is stored of it."""

import string

from hypothesis import given, settings
from hypothesis import strategies as st

from judge_server.auth.keys import DUMMY_DIGEST, key_digest, key_matches, make_key, parse_key_id
from tests.hypothesis_examples import examples


def test_a_new_key_contains_its_id_and_matches_its_digest() -> None:
    keys = [make_key() for _ in range(200)]
    for key in keys:
        assert parse_key_id(key.text) == key.id
        assert key_matches(key.text, key.digest)
        assert key.text.encode() not in key.digest
    assert len({key.id for key in keys}) == len({key.text[-43:] for key in keys}) == 200


@given(st.text(max_size=80) | st.from_regex(r"adj_[a-z2-7]{10,20}_[A-Za-z0-9_-]{30,50}\n?", fullmatch=True))
@settings(max_examples=examples(200), deadline=None)
def test_only_a_well_formed_key_has_an_id(text: str) -> None:
    body = text.removeprefix("adj_")
    letters = string.ascii_letters + string.digits + "_-"
    is_key = (
        text.startswith("adj_")
        and len(body) == 16 + 1 + 43
        and body[16] == "_"
        and set(body[:16]) <= set("abcdefghijklmnopqrstuvwxyz234567")
        and set(body[17:]) <= set(letters)
    )
    assert (parse_key_id(text) == body[:16]) if is_key else (parse_key_id(text) is None)


@given(st.integers(0, 59), st.sampled_from(string.ascii_letters + string.digits))
@settings(max_examples=examples(50), deadline=None)
def test_a_key_with_any_letter_changed_does_not_match(place: int, letter: str) -> None:
    key = make_key()
    changed = key.text[: 4 + place] + letter + key.text[5 + place :]
    assert key_matches(changed, key.digest) == (changed == key.text)


def test_no_key_matches_the_dummy_digest() -> None:
    assert not key_matches(make_key().text, DUMMY_DIGEST)
    assert key_digest("") != DUMMY_DIGEST
