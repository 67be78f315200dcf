"""What each `Idempotency-Key` stands for: `SQLIdempotencyKeys`."""

from rubric_store.idempotency.store import SQLIdempotencyKeys

__all__ = ["SQLIdempotencyKeys"]
