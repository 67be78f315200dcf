"""Judged text is data: fence it so that nothing inside can pass for an instruction or close the fence.

Each text stands between marker lines that carry HMAC(deployment secret, digest of the text). The marker is the same
on every replica that has the secret, so caches and prefix reuse survive; whoever wrote the text cannot know it.
"""

import hashlib
import hmac
import re
from collections.abc import Iterable

_MARKER_LETTERS = "bcdfghjklmnprstv"  # one per 4 bits; letters make fewer tokens than digits do
_MARKER_BYTES = 6

_CHAT_TOKEN = re.compile(
    r"<(?=[|｜])"  # <|im_start|>, <｜User｜> and their like
    r"|<(?=/?[\w:-]{3,40}[|｜]>)"  # <turn|>, <channel|>
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|ARGS|CALL_ID|MODEL_SETTINGS"
    r"|THINK|IMG|IMG_BREAK|IMG_END|AUDIO|BEGIN_AUDIO|PREFIX|MIDDLE|SUFFIX|gMASK|sMASK|CLS|SEP|MASK|PAD|UNK|BOS|EOS)\])"
    r"|\[(?=\|[a-z_]{1,40}\|\])"  # [|assistant|], [|endofturn|]
    r"|\](?=~!b\[|~b\])|\[(?=e~\[)"  # ]~b], ]~!b[, [e~[
    r"|<(?=<?/?SYS>)"
    r"|<(?=/?seed:)"  # <seed:bos>, <seed:think> and their like
    r"|<(?=/?(?:s|bos|eos|pad|unk|mask|cls|sep|sop|eop|bos_token|eos_token|pad_token|unk_token|start_of_turn|end_of_turn"
    r"|end_of_utterance|fake_token_around_image|start_of_image|end_of_image|eoh|eoa|eos[yu]s|eoc|eot|think|role|tool_call"
    r"|tool_calls|tool_response|tool_result|function_calls|(?:extra_id|reserved|special)_\d{1,4}|unused\d{1,4})>)",
    re.IGNORECASE,
)
_MARKED_UP = re.compile(r"<[^\s<>]{1,62}>|\[[^\s\[\]]{1,62}\]|\{[^\s{}]{1,62}\}")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


def control_token_pattern(tokens: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern of where these control tokens of a model are to be broken; None where there are none to break.

    Only what is marked up as a token is taken: `<…>`, `[…]` or `{…}` without white space, of 3 to 64 characters. A
    model may also have words and white space as control tokens, which every text has.
    """
    marked = sorted({token for token in tokens if _MARKED_UP.fullmatch(token)})
    return re.compile("|".join(f"{re.escape(t[0])}(?={re.escape(t[1:])})" for t in marked)) if marked else None


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
