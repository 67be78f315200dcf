"""The verdict ledger: recorded requests, responses and verdicts, and who used them."""
