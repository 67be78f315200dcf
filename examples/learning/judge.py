"""A judge that is always right, as an OpenAI chat API: `python -m examples.learning.judge PORT`.

It answers questions about the criteria of `rubrics.asked_rubric` by the checks of `rubrics.twelve_rubric`, so that runs
need judge calls and their curves still compare methods, not judges.
"""

import re
import sys
import time

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

MODEL = "exact"
RESPONSE = re.compile(r"Response:\n<material>\n(.*)\n</material>", re.DOTALL)
SHOWN = re.compile(r"Criterion: It has '(.*)'\.$", re.MULTILINE)
BOXED = re.compile(r"\\boxed\{-?\d*(\d)\}")

app = FastAPI()


class Message(BaseModel):
    """One message of a conversation."""

    role: str
    content: str


class Question(BaseModel):
    """What is asked; the other fields of the API are not read."""

    messages: list[Message]


@app.get("/v1/models")
async def models() -> dict[str, object]:
    """Name the one model."""
    return {"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 32_768}]}


@app.post("/v1/chat/completions")
async def answer(question: Question) -> dict[str, object]:
    """Answer a question with yes or no."""
    prompt = "\n".join(message.content for message in question.messages)
    message = {"role": "assistant", "content": "yes" if meets(prompt) else "no"}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": len(prompt) // 4, "completion_tokens": 1, "total_tokens": len(prompt) // 4 + 1},
    }


def meets(prompt: str) -> bool:
    """Whether the response in a judge's prompt meets the criterion in it; no, if it is a service's trial question.

    Raises:
        ValueError: the prompt shows a response and another criterion.
    """
    response = RESPONSE.search(prompt)
    if response is None:
        return False
    if shown := SHOWN.search(prompt):
        return shown[1].encode().decode("unicode_escape") in response[1]
    if "Criterion: It ends with a sign" in prompt:
        return "∎" in response[1]
    if "Criterion: The number in the box is " in prompt:
        boxed = BOXED.search(response[1])
        return boxed is not None and (int(boxed[1]) % 2 == 0) == ("box is even" in prompt)
    raise ValueError("the prompt asks about no criterion of `rubrics.asked_rubric`")


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", access_log=False)
