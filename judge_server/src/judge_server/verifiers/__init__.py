"""Criteria that a program verifies: what is compared, and how. The judge is never asked here."""

from judge_server.verifiers.check import Check, ToolUse, missing_field, stated_answer, step_to_search, tool_uses

__all__ = [
    "Check",
    "ToolUse",
    "missing_field",
    "stated_answer",
    "step_to_search",
    "tool_uses",
]
