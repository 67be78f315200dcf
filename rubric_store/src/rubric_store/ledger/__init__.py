"""The verdict ledger: recorded requests, responses and verdicts, and who used them."""

from rubric_store.ledger.store import SQLLedger

__all__ = ["SQLLedger"]
