"""Addresses of the sections of the documentation that errors and findings refer to."""

from typing import NamedTuple

__all__ = ["DOCUMENTATION_URL", "Meaning", "error_url", "findings_url", "setting_url"]

DOCUMENTATION_URL = "https://github.com/adjudge/adjudge/blob/main/docs"
"""The folder of the documentation, as the packages' metadata name it."""


class Meaning(NamedTuple):
    """What a code of a failure or of a finding means, and what to do about it."""

    meaning: str
    remedy: str


def error_url(code: str) -> str:
    """Return the address of the section about an error, a problem type without `urn:adjudge:` or another code."""
    return f"{DOCUMENTATION_URL}/reference/errors.md#{code}"


def findings_url(code: str = "") -> str:
    """Return the address of the section about a finding; without a code, of the page of all findings."""
    return f"{DOCUMENTATION_URL}/reference/findings.md{'#' * bool(code)}{code}"


def setting_url(variable: str) -> str:
    """Return the address of the section about a setting, such as ADJUDGE_PORT."""
    return f"{DOCUMENTATION_URL}/reference/settings.md#{variable.lower()}"
