"""API keys with their digests, tokens used, and claims of idempotency keys. No client sees any of these."""

from datetime import datetime, timedelta
from typing import NamedTuple

from trainer_client.wire.tenants import ApiKey, Limits

DEFAULT_PROJECT = "default"
"""The project that always exists; requests without a key belong to it."""


class ApiKeyRecord(NamedTuple):
    """An API key as the service checks it, with the digest of its text and its project's limits."""

    key: ApiKey
    digest: bytes
    limits: Limits


class TokenUsage(NamedTuple):
    """Prompt tokens computed for a project: on one day, and in all."""

    on_day: int
    total: int


IDEMPOTENCY_KEY_TTL = timedelta(hours=24)
"""How long an idempotency key refers to the request that it was first sent with."""


class StoredAnswer(NamedTuple):
    """A stored HTTP answer: the status, the `Location` header if it had one, and the body."""

    status: int
    location: str | None
    body: bytes


class KeyClaim(NamedTuple):
    """The state of an idempotency key when a request claims it.

    Attributes:
        first_at: when the key was first sent.
        answer: the answer of the request, if it is finished.
        wait_s: seconds until the claim of another process expires; 0 if this process holds the claim and is to do the
            work.
    """

    first_at: datetime
    answer: StoredAnswer | None = None
    wait_s: float = 0.0
