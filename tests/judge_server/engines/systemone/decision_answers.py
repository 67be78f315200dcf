"""A fake decision server that answers like vLLM, SGLang, llama.cpp or OpenAI, or with a set wrong answer."""

import json
from collections.abc import Callable
from typing import Any

from tests.judge_server.engines.servers.raw_http import Raw, RawRequest, RawServer

MODEL = "jev-1"
YES = 0.75
MASS = 0.8
MAX_QUESTIONS = 64

Answer = Callable[[dict[str, Any]], dict[str, Any]]


def shares(number: int) -> list[float]:
    """Probabilities of `number` options; the first is the most likely."""
    return [0.5 + 0.5 / number if place == 0 else 0.5 / number for place in range(number)]


def systemone(question: dict[str, Any]) -> dict[str, Any]:
    """llama.cpp's answer to one question."""
    kind, criteria = question["type"], question.get("criteria")
    if kind == "noul":
        return {"type": "noul", "noul": YES}
    if kind == "choice":
        found = dict(zip(criteria, shares(len(criteria)), strict=True))
        return {"type": "choice", "choice": next(iter(criteria)), "probabilities": found, "confidence": 0.5}
    levels = {str(level): share for level, share in enumerate(shares(len(criteria)))}
    score = sum(int(level) * share for level, share in levels.items())
    legend = dict(zip(levels, criteria, strict=True))
    return {"type": "score", "score": score, "legend": legend, "probabilities": levels, "confidence": 0.5}


def llamacpp(body: dict[str, Any]) -> dict[str, Any]:
    """A full answer of llama.cpp's server, without label masses."""
    answers = {id_: systemone(question) for id_, question in body["questions"].items()}
    return {"model": MODEL, "answers": answers, "usage": {"input_tokens": 101, "output_tokens": 0}}


def vllm(body: dict[str, Any]) -> dict[str, Any]:
    """A full answer of vLLM: label masses under `diagnostics`, and confidences scaled by them."""
    diagnostics = {id_: {"label_mass": MASS, "argmax_is_label": True} for id_ in body["questions"]}
    answered = llamacpp(body)
    for answer in answered["answers"].values():
        if "confidence" in answer:
            answer["confidence"] = max(answer["probabilities"].values()) * MASS
    more = {"id": "decision-1", "object": "structured_decision", "created": 1, "diagnostics": diagnostics}
    return answered | more


def sglang(body: dict[str, Any]) -> dict[str, Any]:
    """A full answer of SGLang, with a label mass in each answer."""
    answered = llamacpp(body)
    for answer in answered["answers"].values():
        answer["sglang_label_mass"] = MASS
    return answered


def openai(body: dict[str, Any]) -> dict[str, Any]:
    """A full answer of OpenAI's decisions API: a list; a question that says `refuse` is refused."""
    answers: list[dict[str, Any]] = []
    for question in body["questions"]:
        kind, name = question["type"], question.get("name")
        if "refuse" in question["instructions"]:
            answers.append({"type": "refusal", "name": name})
        elif kind == "predicate":
            answers.append({"type": kind, "name": name, "probability": YES})
        elif kind == "choice":
            values = [choice["value"] for choice in question["choices"]]
            listed = [{"value": v, "probability": p} for v, p in zip(values, shares(len(values)), strict=True)]
            answers.append(
                {"type": kind, "name": name, "choice": values[0], "confidence": 0.5, "probabilities": listed}
            )
        else:
            labels = [level["label"] for level in question["levels"]]
            found = zip(labels, shares(len(labels)), strict=True)
            listed = [{"label": label, "value": n, "probability": p} for n, (label, p) in enumerate(found)]
            score = sum(item["value"] * item["probability"] for item in listed)
            answers.append({"type": kind, "name": name, "score": score, "confidence": 0.5, "probabilities": listed})
    details = {"input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 0}}
    usage = {"input_tokens": 100, "output_tokens": len(answers), "total_tokens": 100 + len(answers)} | details
    return {"model": MODEL, "answers": answers, "usage": usage}


class LyingDecisionServer(RawServer):
    """Answers questions with `answer`, or with `lie` when set, and records the request bodies."""

    def __init__(self, answer: Answer = llamacpp) -> None:
        super().__init__()
        self.answer = answer
        self.lie: Raw | None = None
        self.asked: list[dict[str, Any]] = []

    async def respond(self, request: RawRequest) -> Raw:
        """Answer a request for models or decisions."""
        path, body = request.target, request.body
        if path == "/v1/models":
            return 200, json.dumps({"data": [{"id": MODEL, "owned_by": "test"}]}).encode(), {}
        if path not in ("/v1/systemone", "/v1/decisions") or body is None:
            return 404, b"{}", {}
        self.asked.append(body)
        if self.lie is not None:
            return self.lie
        if len(body["questions"]) > MAX_QUESTIONS:
            return 400, b'{"error": {"message": "too many questions", "type": "invalid_request_error"}}', {}
        if "too long" in json.dumps(body):
            return 400, b'{"error": {"message": "exceeds the context size", "type": "exceed_context_size_error"}}', {}
        return 200, json.dumps(self.answer(body)).encode(), {}
