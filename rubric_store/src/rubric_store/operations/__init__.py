"""Operations in chunks on SQLite or PostgreSQL: their state, the leases on their chunks, and their results."""

from rubric_store.operations.store import SQLOperations

__all__ = ["SQLOperations"]
