"""Criteria that a program verifies: what is compared, how, and where it runs. The judge is never asked here."""

from judge_server.checks.check import Check, missing_field, step_to_search
from judge_server.checks.checker import Checker, is_inline_check
from judge_server.checks.turns import CheckOwner

__all__ = ["Check", "CheckOwner", "Checker", "is_inline_check", "missing_field", "step_to_search"]
