"""Splits by the digest of a source."""

import hashlib
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from judge_server.generation.generator import source_digest
from judge_server.generation.results import SHARES, split_of
from tests.hypothesis_examples import examples
from tests.judge_server.generation.toy import ToyRow

TEXTS = st.text(max_size=60)


@given(TEXTS, st.lists(TEXTS.filter(str.strip), min_size=2, max_size=5))
@settings(max_examples=examples(100))
def test_rubrics_of_one_document_are_in_one_split(document: str, questions: list[str]) -> None:
    made = [ToyRow(question=question, document=f"A document. {document}") for question in questions]
    assert len({split_of(source_digest(row.source)) for row in made}) == 1


@given(TEXTS)
@settings(max_examples=examples(50))
def test_white_space_around_lines_does_not_change_the_document(text: str) -> None:
    spaced = "\n \n" + "\n".join(f"{line}  \t" for line in text.splitlines()) + "\n\n"
    assert source_digest(spaced) == source_digest(text)


def test_splits_have_the_configured_shares() -> None:
    digests = ["sha256:" + hashlib.sha256(str(n).encode()).hexdigest() for n in range(20_000)]
    found = Counter(split_of(digest) for digest in digests)
    assert sum(SHARES.values()) == 1
    for split, share in SHARES.items():
        assert abs(found[split] / len(digests) - share) < 0.01


def test_a_split_is_the_same_on_every_machine() -> None:
    digests = [source_digest(f"Document {n}.") for n in range(8)]
    assert [split_of(digest) for digest in digests] == [
        "train",
        "train",
        "train",
        "validation",
        "train",
        "test",
        "train",
        "train",
    ]
