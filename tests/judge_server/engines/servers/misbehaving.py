"""A server of the OpenAI chat API that misbehaves on demand.

An endpoint is `/NAME/v1`, where NAME selects the behaviour. Endpoints of `GOES_WRONG` behave until a message contains
`TRIGGER`, so that an engine can start with them.
"""

import json

from tests.judge_server.engines.servers.misbehaviours import (
    GOES_WRONG,
    MODEL,
    FakeServerRequest,
    RequestLog,
    completion,
)
from tests.judge_server.engines.servers.raw_http import Raw, RawRequest, RawServer

TRIGGER = "misbehave"


async def chat(asked: FakeServerRequest) -> None:
    """`/chat/completions`."""
    body, name = asked.body, asked.name
    asked.log.events.append(f"begin {asked.words[-1:]}")
    if name == "new" and "max_tokens" in body:
        asked.refuse("Unsupported parameter: 'max_tokens' is not supported; use 'max_completion_tokens' instead.")
    elif name == "few" and body.get("top_logprobs", 0) > 5:
        asked.refuse("top_logprobs must be at most 5")
    elif name == "refusing" and ({"seed", "logprobs", "response_format"} & body.keys()):
        asked.refuse("unsupported parameter")
    elif name == "waking" and "logprobs" in body:
        asked.send(503, {"error": {"message": "no worker yet"}})
    elif name == "picky" and "prefixItems" in json.dumps(body.get("response_format")):
        asked.refuse("Invalid schema for response_format: prefixItems is not permitted")
    elif name in GOES_WRONG and TRIGGER in asked.words:
        await GOES_WRONG[name](asked)
    else:
        asked.send(200, completion(asked))
    asked.log.events.append(f"end {asked.words[-1:]}")


async def models(asked: FakeServerRequest) -> None:
    """`/models`."""
    mood = asked.log.mood
    card = {
        "id": "judge-2" if mood == "swapped" else MODEL,
        "object": "model",
        "owned_by": "vllm" if "vllm" in asked.name else "nobody",
    }
    cards = [card | {"max_model_len": 4096}] if "vllm" in asked.name else [card]
    if asked.name == "many":
        cards = [card | {"id": f"judge-{n}"} for n in range(1, 31)]
    if mood == "mute":
        await asked.hang()
    elif mood == "down":
        asked.send(500, {"object": "list", "data": cards})
    elif asked.name == "page":
        asked.send(200, "<!doctype html>")
    elif asked.name == "unlisted":
        asked.send(404, "nothing here")
    else:
        asked.send(200, {"object": "list", "data": cards})


async def route(asked: FakeServerRequest) -> None:
    """Answer one request."""
    asked.log.asked.append({"path": asked.path, "headers": asked.headers, "body": asked.body})
    vllm = "vllm" in asked.name
    if asked.name == "locked":
        asked.send(401, {"error": "Unauthorized"})
    elif asked.path == "v1/models":
        await models(asked)
    elif asked.path == "v1/chat/completions":
        await chat(asked)
    elif asked.path == "props" and asked.name == "llama":
        template = "{{ '<zorp>' + messages[0].content }}{% if a < b and c > d %}[ZORP]{% endif %}"
        asked.send(200, {"chat_template": template, "bos_token": "<|bos|>", "eos_token": "the"})
    elif asked.path == "tokenizer_info" and vllm:
        added = {"1": {"content": "{{zorp}}"}, "2": {"content": "<zorp>"}, "3": {"content": " "}, "4": "[zorp]"}
        asked.send(200, {"added_tokens_decoder": added, "additional_special_tokens": ["<:zorp:>", 5, None]})
    elif asked.path == "tokenize" and vllm:
        count = sum(len(message["content"].split()) for message in asked.body["messages"])
        asked.send(200, {"count": count, "max_model_len": 4096, "tokens": list(range(count))})
    elif asked.path == "v1/completions" and vllm:
        places = [None, *({str(i): {"logprob": -1.0}} for i in asked.body["prompt"][1:])]
        asked.send(200, {"choices": [{"text": "x", "prompt_logprobs": places}]})
    else:
        asked.send(404, {"detail": "Not Found"})


class MisbehavingServer(RawServer):
    """A server with an endpoint for every behaviour.

    Attributes:
        log: the requests and events. Its `mood` changes how models are listed: `well`, `swapped`, `down` or `mute`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.log = RequestLog()
        self.root = ""

    async def start(self) -> str:
        """Start listening, and return the root URL."""
        self.root = await super().start()
        return self.root

    def url(self, name: str) -> str:
        """The base URL of the endpoint's OpenAI API."""
        return f"{self.root}/{name}/v1"

    async def respond(self, request: RawRequest) -> Raw | None:
        """Answer one request."""
        name, _, path = request.target.strip("/").partition("/")
        await route(FakeServerRequest(**vars(request), name=name, path=path, log=self.log))
        return None
