"""Replies of the scripted server: a true verdict in the form that the prompt asks for, or garbage.

The name of the requested model selects the form: `yes-no` of one token, or the form of a peer's own prompt.
"""

import json
from collections.abc import Sequence
from functools import cache
from typing import Literal, get_args

Form = Literal["yes-no", "verdicts", "grade", "score", "status"]
FORMS: tuple[Form, ...] = get_args(Form)

GARBAGE = "The weather over the harbour was mild, 7 7 7 and 3/8."

_SURE, _DOUBT = -0.105, -2.41


def verdict_text(form: Form, criterion: int, satisfied: bool) -> str:
    """Write the verdict as text."""
    if form == "verdicts":
        verdict = {
            "name": f"c{criterion}",
            "reason": "The worksheet shows it.",
            "verdict": "yes" if satisfied else "no",
        }
        return json.dumps({"verdicts": [verdict]})
    if form == "grade":
        return f"The worksheet shows it.\n\nGRADE: {'C' if satisfied else 'I'}"
    if form == "score":
        return json.dumps({"reason": "The worksheet shows it.", "score": int(satisfied)})
    if form == "status":
        status = "MET" if satisfied else "UNMET"
        return json.dumps({"criterion_status": status, "explanation": "The worksheet shows it."})
    return "yes" if satisfied else "no"


def completion(form: Form, texts: Sequence[str], logprobs: bool, usage: bytes) -> bytes:
    """Build a chat completion with a choice for each text."""
    choices = b",".join([b'{"index":%d,%s}' % (index, _choice(text, logprobs)) for index, text in enumerate(texts)])
    return b'{"id":"scripted","object":"chat.completion","created":0,"model":"%s","choices":[%s],"usage":%s}' % (
        form.encode(),
        choices,
        usage,
    )


def tokens_of(text: str) -> int:
    """Return the number of tokens of a text."""
    return max(1, len(text) // 4)


@cache
def _choice(text: str, logprobs: bool) -> bytes:
    """Return the fields of a choice but for its index, without the braces."""
    choice: dict[str, object] = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    if logprobs:
        choice["logprobs"] = {"content": [_position(text)]}
    return json.dumps(choice).encode()[1:-1]


def usage(prompt: int, cached: int, written: int) -> bytes:
    """Build the `usage` object of a completion."""
    return (
        b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}'
        % (prompt, written, prompt + written, cached)
    )


def _position(text: str) -> dict[str, object]:
    first = text.split()[0]
    other = {"yes": "no", "no": "yes"}.get(first, "It")
    tops = [{"token": token, "logprob": p, "bytes": None} for token, p in ((first, _SURE), (other, _DOUBT))]
    return {"token": first, "logprob": _SURE, "bytes": None, "top_logprobs": tops}
