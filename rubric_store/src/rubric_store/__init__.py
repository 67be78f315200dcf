"""Named rubrics in immutable versions, and readers for the formats rubrics are published in.

`RubricStore` keeps rubrics on SQLite or PostgreSQL, `migrations` brings a database to the schema it needs,
and `parse_rubric` turns a published text into criteria. Nothing here judges, serves HTTP or reads settings.
"""

from rubric_store import migrations
from rubric_store.database import DatabaseURLError, open_engine
from rubric_store.formats import FormatError, read_rubric
from rubric_store.idempotency import SQLIdempotencyKeys
from rubric_store.ledger import SQLLedger
from rubric_store.operations import SQLOperations
from rubric_store.rubrics.queries import CursorError
from rubric_store.rubrics.store import RubricStore
from rubric_store.tenants.store import TenantStore

__all__ = [
    "CursorError",
    "DatabaseURLError",
    "FormatError",
    "RubricStore",
    "SQLIdempotencyKeys",
    "SQLLedger",
    "SQLOperations",
    "TenantStore",
    "migrations",
    "open_engine",
    "read_rubric",
]
