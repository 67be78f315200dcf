"""Responses: found by their verdicts, explained, and the ledger's verdicts one by one."""
