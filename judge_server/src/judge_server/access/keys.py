"""What an API key looks like: `adj_<id>_<secret>`, an id of 80 bits that is no secret and a secret of 256 bits.

The service keeps SHA-256 of the whole text. The secret is random and long, so nobody can try texts until one fits, and
a slow hash, which is for passwords, would only make every request slower.
"""

import base64
import hashlib
import hmac
import re
import secrets
from typing import NamedTuple

_ID_BYTES = 10
_SECRET_BYTES = 32
_KEY = re.compile(r"adj_([a-z2-7]{16})_([A-Za-z0-9_-]{43})")

DUMMY_DIGEST = bytes(32)
"""Compared with where there is no such key, so that it takes as long; no text has this digest."""


class NewKey(NamedTuple):
    """A key that was just made: its text is shown once, its id and digest are kept."""

    text: str
    id: str
    digest: bytes


def make_key() -> NewKey:
    """A new random key."""
    key_id = base64.b32encode(secrets.token_bytes(_ID_BYTES)).decode().lower()
    text = f"adj_{key_id}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    return NewKey(text, key_id, key_digest(text))


def parse_key_id(text: str) -> str | None:
    """The id in a key; None where the text is no key."""
    match = _KEY.fullmatch(text)
    return match[1] if match else None


def key_digest(text: str) -> bytes:
    """What is kept of a key, 32 bytes."""
    return hashlib.sha256(text.encode()).digest()


def key_matches(text: str, digest: bytes) -> bool:
    """Whether a text is the key with this digest; takes as long wherever they differ."""
    return hmac.compare_digest(key_digest(text), digest)
