"""Addresses of the sections of the documentation that errors and findings refer to."""

from functools import cache
from importlib.metadata import version
from typing import NamedTuple

__all__ = ["SITE_URL", "Meaning", "error_url", "findings_url", "setting_url"]

SITE_URL = "https://adjudge.github.io/adjudge"
"""The site of the documentation. Below it is a folder for each minor version, such as `0.3`."""


class Meaning(NamedTuple):
    """What a code of a failure or of a finding means, and what to do about it."""

    meaning: str
    remedy: str


def error_url(code: str) -> str:
    """Return the address of the section about an error: a problem type without `urn:adjudge:`, or another code."""
    return _section("errors", code)


def findings_url(code: str = "") -> str:
    """Return the address of the section about a finding; without a code, of the page of all findings."""
    return _section("findings", code)


def setting_url(variable: str) -> str:
    """Return the address of the section about a setting, such as ADJUDGE_PORT."""
    return _section("settings", variable.lower())


def _section(page: str, section: str) -> str:
    return f"{SITE_URL}/{_minor_version()}/reference/{page}/{'#' * bool(section)}{section}"


@cache
def _minor_version() -> str:
    major, minor, *_ = version("adjudge-client").split(".")
    return f"{major}.{minor}"
