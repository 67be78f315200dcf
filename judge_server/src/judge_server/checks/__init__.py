"""Criteria that a program verifies: what is compared, how, and where it runs. The judge is never asked here."""

from judge_server.checks.check import Check, needs, step_to_search
from judge_server.checks.checker import Checker, decided_at_once
from judge_server.checks.turns import Owner

__all__ = ["Check", "Checker", "Owner", "decided_at_once", "needs", "step_to_search"]
