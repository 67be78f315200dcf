"""Criteria that a program verifies: what is compared, how, and in which process. The judge is never asked here."""

from judge_server.verifiers.check import Check, ToolUse, missing_field, stated_answer, step_to_search, tool_uses
from judge_server.verifiers.checker import Checker, CheckOwner, is_inline_check

__all__ = [
    "Check",
    "CheckOwner",
    "Checker",
    "ToolUse",
    "is_inline_check",
    "missing_field",
    "stated_answer",
    "step_to_search",
    "tool_uses",
]
