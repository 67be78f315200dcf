"""Rubrics in immutable versions, the verdict ledger, operations and projects, on SQLite or PostgreSQL.

`migrations` brings a database to the schema that the stores need, and `read_rubric` turns a published text into
criteria. This package does not judge, serve HTTP or read settings.
"""

from rubric_store import migrations
from rubric_store.calibrations import CalibrationStore, CalibrationVersion
from rubric_store.database import DatabaseURLError, open_engine
from rubric_store.formats import FormatError, read_rubric
from rubric_store.idempotency import SQLIdempotencyKeys
from rubric_store.ledger import SQLLedger
from rubric_store.operations import SQLOperations
from rubric_store.rubrics.queries import CursorError
from rubric_store.rubrics.store import RubricStore
from rubric_store.tenants.store import TenantStore
from rubric_store.texts import RubricTexts

__all__ = [
    "CalibrationStore",
    "CalibrationVersion",
    "CursorError",
    "DatabaseURLError",
    "FormatError",
    "RubricStore",
    "RubricTexts",
    "SQLIdempotencyKeys",
    "SQLLedger",
    "SQLOperations",
    "TenantStore",
    "migrations",
    "open_engine",
    "read_rubric",
]
