"""Headers that every answer carries, so that no browser takes it for what it is not.

Knows paths of pages and what such a page loads. There is no CORS header: pages of other origins get nothing. Nor is
there HSTS, which only what speaks TLS may promise: the proxy in front.
"""

import re
from base64 import b64encode
from hashlib import sha256

from starlette.datastructures import MutableHeaders

HTML_PAGES = frozenset({"/docs", "/docs/oauth2-redirect", "/redoc"})
"""The pages for people; all else is for programs."""

STATIC_FOLDER = "/static-offline-docs/"
"""Where the pages' scripts and styles are."""

_SECURITY_HEADERS = {"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer"}
_DENY_ALL_POLICY = "default-src 'none'; frame-ancestors 'none'"
_INLINE_SCRIPT = re.compile(rb"<script(?:\s[^>]*)?>(.*?)</script>", re.DOTALL)


def add_headers(headers: MutableHeaders, path: str, page: bytes | None = None) -> None:
    """Add to an answer's headers what its path calls for, beside what a route has set; `page` is the page's HTML.

    Answers are kept nowhere, but for the pages' scripts and styles: they hold what only a key opens.
    """
    for name, value in _SECURITY_HEADERS.items():
        headers.setdefault(name, value)
    headers.setdefault("Content-Security-Policy", _DENY_ALL_POLICY if page is None else _policy_of(page))
    if not path.startswith(STATIC_FOLDER):
        headers.setdefault("Cache-Control", "no-store")


def _policy_of(page: bytes) -> str:
    """What the page itself holds and what this service serves, and nothing else; styles are made by its scripts."""
    inline = (b64encode(sha256(script).digest()).decode() for script in _INLINE_SCRIPT.findall(page) if script.strip())
    scripts = " ".join(["'self'", *(f"'sha256-{digest}'" for digest in inline)])
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "font-src 'self' data:; connect-src 'self'; worker-src blob:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
