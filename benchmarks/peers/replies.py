"""What the scripted server says: a true verdict in the form that the prompt asks for, or nonsense.

The form is the name of the model that is asked: `yes-no` of one token, and what each peer's own prompt asks for.
"""

import json
from functools import cache
from typing import Literal, get_args

Form = Literal["yes-no", "verdicts", "grade", "score"]
FORMS: tuple[Form, ...] = get_args(Form)

GARBAGE = "The weather over the harbour was mild, 7 7 7 and 3/8."

_SURE, _DOUBT = -0.105, -2.41


def verdict_text(form: Form, criterion: int, satisfied: bool) -> str:
    """The verdict in words."""
    if form == "verdicts":
        said = {
            "name": f"c{criterion}",
            "reason": "The worksheet shows it.",
            "verdict": "yes" if satisfied else "no",
        }
        return json.dumps({"verdicts": [said]})
    if form == "grade":
        return f"The worksheet shows it.\n\nGRADE: {'C' if satisfied else 'I'}"
    if form == "score":
        return json.dumps({"reason": "The worksheet shows it.", "score": int(satisfied)})
    return "yes" if satisfied else "no"


@cache
def completion(form: Form, text: str, logprobs: bool) -> tuple[bytes, bytes, int]:
    """A chat completion that says this, in the two parts between which the prompt's tokens stand, and its tokens."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    if logprobs:
        choice["logprobs"] = {"content": [_position(text)]}
    body = json.dumps(
        {"id": "scripted", "object": "chat.completion", "created": 0, "model": form, "choices": [choice], "usage": "?"}
    )
    before, after = body.encode().split(b'"?"')
    return before, after, max(1, len(text) // 4)


def usage(prompt: int, cached: int, written: int) -> bytes:
    """What a completion says of its tokens."""
    return (
        b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}'
        % (prompt, written, prompt + written, cached)
    )


def _position(text: str) -> dict[str, object]:
    first = text.split()[0]
    other = {"yes": "no", "no": "yes"}.get(first, "It")
    tops = [{"token": token, "logprob": p, "bytes": None} for token, p in ((first, _SURE), (other, _DOUBT))]
    return {"token": first, "logprob": _SURE, "bytes": None, "top_logprobs": tops}
