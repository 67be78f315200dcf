"""Operations in chunks on SQLite or PostgreSQL: who works on what, what is done, and what came of it."""

from rubric_store.operations.store import SQLOperations

__all__ = ["SQLOperations"]
