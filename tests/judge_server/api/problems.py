"""Problem documents of the API, checked."""

from typing import Any

import httpx2


def checked_problem(answer: httpx2.Response) -> dict[str, Any]:
    """Check that an answer is a complete problem document."""
    assert answer.headers["Content-Type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert problem["status"] == answer.status_code
    assert problem["request_id"] == answer.headers["X-Request-Id"]
    assert problem["type"].startswith("urn:adjudge:")
    assert problem["title"]
    assert problem["detail"]
    return problem


def fields(problem: dict[str, Any]) -> dict[str, str]:
    """The error message of each field."""
    return {error["field"]: error["message"] for error in problem["errors"]}
