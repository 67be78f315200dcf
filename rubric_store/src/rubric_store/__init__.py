"""Rubrics in immutable versions, the verdict ledger, operations and projects, on SQLite or PostgreSQL.

`migrations` brings a database to the schema that the stores need, and `read_rubric` turns a published text into
criteria. This package does not judge, serve HTTP or read settings.

The judge server imports the modules `rows`, which hold the values that it exchanges with the stores, and needs no
database for that. SQLAlchemy is therefore imported on the first access to a name that needs it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rubric_store import migrations as migrations
    from rubric_store.calibrations import CalibrationStore as CalibrationStore
    from rubric_store.calibrations import CalibrationVersion as CalibrationVersion
    from rubric_store.database import DatabaseURLError as DatabaseURLError
    from rubric_store.database import open_engine as open_engine
    from rubric_store.formats import FormatError as FormatError
    from rubric_store.formats import read_rubric as read_rubric
    from rubric_store.idempotency import SQLIdempotencyKeys as SQLIdempotencyKeys
    from rubric_store.ledger.store import SQLLedger as SQLLedger
    from rubric_store.operations.store import SQLOperations as SQLOperations
    from rubric_store.repository import CursorError as CursorError
    from rubric_store.rubrics.store import RubricStore as RubricStore
    from rubric_store.tenants.store import TenantStore as TenantStore
    from rubric_store.texts import RubricTexts as RubricTexts

_MODULES = {
    "CalibrationStore": "calibrations",
    "CalibrationVersion": "calibrations",
    "CursorError": "repository",
    "DatabaseURLError": "database",
    "FormatError": "formats",
    "RubricStore": "rubrics.store",
    "RubricTexts": "texts",
    "SQLIdempotencyKeys": "idempotency",
    "SQLLedger": "ledger.store",
    "SQLOperations": "operations.store",
    "TenantStore": "tenants.store",
    "open_engine": "database",
    "read_rubric": "formats",
}


def __getattr__(name: str) -> Any:
    if name == "migrations":
        return import_module(f"{__name__}.migrations")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, "migrations"})
