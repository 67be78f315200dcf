"""Training, validation and test splits by the digest of a source: the same one every time, on every machine.

A document never crosses splits, whatever is made of it, however often, and whatever else is in the corpus.
"""

import hashlib
from typing import Literal

Split = Literal["train", "validation", "test"]

SHARES: dict[Split, float] = {"train": 0.70, "validation": 0.15, "test": 0.15}
"""The share of the sources that each split gets (Rubric-Grounded RL's 70/15/15)."""

_RANGE = 2**64


def split_of(source_digest: str) -> Split:
    """The split of a source, by its digest: a number in [0, 1) that is hashed from it, laid along `SHARES`."""
    place = int.from_bytes(hashlib.sha256(source_digest.encode()).digest()[:8], "big") / _RANGE
    if place < SHARES["train"]:
        return "train"
    return "validation" if place < SHARES["train"] + SHARES["validation"] else "test"
