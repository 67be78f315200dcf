"""The verdict ledger: what was judged, what came of it, and who used it."""

from rubric_store.ledger.store import SQLLedger

__all__ = ["SQLLedger"]
