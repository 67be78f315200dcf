"""The two dialects of the decision protocol: System One, and OpenAI's decisions.

System One (`POST /v1/systemone`) takes questions by id and returns answers by id, with probabilities in objects.
OpenAI's API (`POST /v1/decisions`) takes a text and a list of questions, and returns a list of answers in the same
order, of which each may be a refusal. Servers add fields of their own: vLLM and SGLang report the label mass, the
probability that the model puts on all options together before they are normalised.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from judge_server.engines.systemone.questions import (
    Distribution,
    TypedQuestion,
    distribution,
    probability,
)
from judge_server.ports import CallFailure

Dialect = Literal["systemone", "decisions"]

_LABEL_MASS = "label_mass"
_TYPES = {"noul": "predicate", "choice": "choice", "score": "score"}


def request_body(
    dialect: Dialect, model: str, state: Mapping[str, Any] | str, questions: Sequence[TypedQuestion]
) -> dict[str, Any]:
    """Return the body of a request that asks these questions about a state."""
    if dialect == "systemone":
        return {"model": model, "state": state, "questions": {q.id: _systemone_question(q) for q in questions}}
    text = state if isinstance(state, str) else json.dumps(state, ensure_ascii=False, indent=1)
    return {"model": model, "input": text, "questions": [_decisions_question(q) for q in questions]}


def read_answers(
    dialect: Dialect, body: Mapping[str, Any], questions: Sequence[TypedQuestion]
) -> dict[str, Distribution | CallFailure]:
    """Return the answers of a body by question id. A question without an answer is absent."""
    if dialect == "systemone":
        answers, diagnostics = body.get("answers"), body.get("diagnostics")
        given = answers if isinstance(answers, dict) else {}
        extra = diagnostics if isinstance(diagnostics, dict) else {}
        return {q.id: _read_systemone(q, given[q.id], extra.get(q.id)) for q in questions if q.id in given}
    listed = body.get("answers")
    if not isinstance(listed, list) or len(listed) != len(questions):
        count = len(listed) if isinstance(listed, list) else "no"
        failure = CallFailure("engine", f"the endpoint gave {count} answers to {len(questions)} questions")
        return {q.id: failure for q in questions}
    return {q.id: _read_decision(q, answer) for q, answer in zip(questions, listed, strict=True)}


def token_usage(body: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return the input tokens, those of them that were cached, and the output tokens; -1 for what is no count."""
    usage = body.get("usage")
    if not isinstance(usage, dict):
        return (0, 0, 0) if usage is None else (-1, 0, 0)
    details = usage.get("input_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return _count(usage.get("input_tokens")), _count(cached), _count(usage.get("output_tokens"))


def _count(value: Any) -> int:
    if value is None:
        return 0
    return value if isinstance(value, int) and not isinstance(value, bool) else -1


def _systemone_question(question: TypedQuestion) -> dict[str, Any]:
    asked: dict[str, Any] = {"type": question.type, "instructions": question.instructions}
    descriptions = [option.description or None for option in question.options]
    if question.type == "choice":
        asked["criteria"] = dict(zip(question.labels, descriptions, strict=True))
    elif question.type == "score":
        asked["criteria"] = [given or label for given, label in zip(descriptions, question.labels, strict=True)]
    elif all(descriptions):
        asked["criteria"] = {"true": descriptions[0], "false": descriptions[1]}
    return asked


def _decisions_question(question: TypedQuestion) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "type": _TYPES[question.type],
        "name": question.id,
        "instructions": question.instructions,
    }
    if question.type == "noul":
        yes, no = question.options
        if yes.description and no.description:
            asked["instructions"] += f"\nTrue means: {yes.description}\nFalse means: {no.description}"
        return asked
    listed, name = ("choices", "value") if question.type == "choice" else ("levels", "label")
    asked[listed] = [
        {name: option.label} | ({"description": option.description} if option.description else {})
        for option in question.options
    ]
    return asked


def _read_systemone(question: TypedQuestion, answer: Any, diagnostics: Any) -> Distribution | CallFailure:
    if not isinstance(answer, dict):
        return CallFailure("parse", f"the answer to a {question.type} question is {answer!r:.40}, not an object")
    kind = answer.get("type", question.type)
    if kind != question.type:
        return CallFailure("parse", f"a {question.type} question was answered with {kind!r:.40}")
    mass = _reported_mass(answer, diagnostics)
    if question.type == "noul":
        return _noul(question, answer.get("noul"), mass)
    shares = answer.get("probabilities")
    if not isinstance(shares, dict) or set(shares) != set(question.labels):
        return CallFailure("parse", f"the probabilities of a {question.type} question are not those of its options")
    if question.type == "score" and (wrong := _wrong_score(question, answer.get("score"))):
        return wrong
    return distribution(question, [shares[name] for name in question.labels], mass=mass, picked=answer.get("choice"))


def _reported_mass(answer: Mapping[str, Any], diagnostics: Any) -> Any:
    """Return the label mass that vLLM gives in `diagnostics` and SGLang in the answer; None if there is none."""
    if isinstance(diagnostics, dict) and _LABEL_MASS in diagnostics:
        return diagnostics[_LABEL_MASS]
    return next((value for name, value in answer.items() if name.endswith(_LABEL_MASS)), None)


def _read_decision(question: TypedQuestion, answer: Any) -> Distribution | CallFailure:
    kind = answer.get("type") if isinstance(answer, dict) else answer
    if not isinstance(answer, dict) or kind not in (_TYPES[question.type], "refusal"):
        return CallFailure("parse", f"a {_TYPES[question.type]} question was answered with {kind!r:.40}")
    if answer.get("name", question.id) not in (question.id, None):
        return CallFailure(
            "engine", f"the answer to {question.id} is named {answer['name']!r:.40}; answers are mixed up"
        )
    if kind == "refusal":
        return CallFailure("parse", "the decision model refused to answer the question")
    if question.type == "noul":
        return _noul(question, answer.get("probability"), None)
    listed = answer.get("probabilities")
    items = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    key = "label" if question.type == "score" else "value"
    names = [item.get(key) for item in items]
    if len(names) != len(question.labels) or any(names.count(label) != 1 for label in question.labels):
        return CallFailure("parse", f"the probabilities of a {question.type} question are not those of its options")
    if question.type == "score" and (wrong := _wrong_score(question, answer.get("score"))):
        return wrong
    shares = [items[names.index(name)].get("probability") for name in question.labels]
    return distribution(question, shares, picked=answer.get("choice"))


def _noul(question: TypedQuestion, given: Any, mass: Any) -> Distribution | CallFailure:
    yes = probability(given)
    return distribution(question, [given, None if yes is None else 1.0 - yes], mass=mass)


def _wrong_score(question: TypedQuestion, score: Any) -> CallFailure | None:
    highest = len(question.options) - 1
    if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= highest:
        return CallFailure("parse", f"the score is {score!r:.40}, not a number from 0 to {highest}")
    return None
