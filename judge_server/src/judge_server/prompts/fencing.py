"""Judged text is data: fence it so that nothing inside can pass for an instruction or close the fence.

Each text stands between marker lines that carry HMAC(deployment secret, digest of the text). The marker is the same
on every replica that has the secret, so caches and prefix reuse survive; whoever wrote the text cannot know it.
"""

import hashlib
import hmac
import re

_MARKER_LETTERS = "bcdfghjklmnprstv"  # one per 4 bits; letters make fewer tokens than digits do
_MARKER_BYTES = 6

_CHAT_TOKEN = re.compile(
    r"<(?=[|｜])"  # <|im_start|>, <｜User｜> and their like
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT)\])"
    r"|<(?=<?/?SYS>)"
    r"|<(?=/?(?:s|bos|eos|pad|unk|start_of_turn|end_of_turn|tool_call|tool_response)>)",
    re.IGNORECASE,
)
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


def neutralise(text: str) -> str:
    """Break chat-template tokens with a space and show control characters as U+FFFD; all else stays as it is."""
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", _CHAT_TOKEN.sub(r"\g<0> ", text))


class Fence:
    """Fences texts with markers made from one deployment secret (at least 16 bytes)."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) < 16:
            raise ValueError("the fencing secret needs at least 16 bytes; set ADJUDGE_FENCE_SECRET to a longer one")
        self._secret = secret

    def __call__(self, text: str) -> str:
        """Return the neutralised text between its two marker lines."""
        clean = neutralise(text)
        digest = hashlib.sha256(clean.encode()).digest()
        tag = hmac.digest(self._secret, digest, "sha256")[:_MARKER_BYTES]
        marker = "".join(_MARKER_LETTERS[b >> 4] + _MARKER_LETTERS[b & 15] for b in tag)
        return f"<{marker}>\n{clean}\n</{marker}>"
