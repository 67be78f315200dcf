"""What crosses between the routes that honour `Idempotency-Key` and the store that keeps what each key stands for."""

from datetime import datetime, timedelta
from typing import NamedTuple

IDEMPOTENCY_KEY_TTL = timedelta(hours=24)
"""How long a key stands for the request that it came with first."""


class StoredAnswer(NamedTuple):
    """How a request was answered: the status, the header `Location` where it had one, and the body."""

    status: int
    location: str | None
    body: bytes


class KeyClaim(NamedTuple):
    """What a key stands for, to a request that shows it.

    Attributes:
        first_at: when the key was shown first.
        answer: what the request was answered with, where it has been done.
        wait_s: seconds that whoever is doing it may still take; 0 where nobody is, and this request is to be done.
    """

    first_at: datetime
    answer: StoredAnswer | None = None
    wait_s: float = 0.0
