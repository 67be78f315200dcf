"""Checks for the tests."""

from typing import Any

from pydantic import TypeAdapter

from judge_server.verifiers import Check
from trainer_client.final_answer import extract_final_answer
from trainer_client.wire.criteria import Verification

_VERIFICATION: TypeAdapter[Any] = TypeAdapter(Verification)


def verification(method: str, **options: Any) -> Any:
    """A verification as a request spells it."""
    return _VERIFICATION.validate_python({"method": method, **options})


def check(method: str, text: str, *, ground_truth: str | None = None, **options: Any) -> Check:
    """A check of a response, with the final answer extracted as in the service."""
    return Check(verification(method, **options), text, extract_final_answer(text), ground_truth)


def answered(method: str, answer: str | None, *, ground_truth: str | None = None, **options: Any) -> Check:
    """A check of a response with this final answer."""
    return Check(verification(method, **options), f"Thus: {answer}", answer, ground_truth)
