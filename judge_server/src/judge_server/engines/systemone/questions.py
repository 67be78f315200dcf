"""Calls as typed questions about a state, and answers as replies.

A choice between yes and no is a `noul` question, grades from 0 on are the levels of a `score` question, and every other
choice is a `choice` question. The label choice after a verdict, such as the step that decides it, is a question of its
own in the same request. Nothing else can be asked of a decision model.

An answer is not trusted: probabilities that are missing, no numbers, outside 0..1 or of a wrong sum fail their call.

Requests and answers have two dialects: System One, and OpenAI's decisions.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from judge_server.ports import Batch, Call, CallFailure, JsonOutput, LabelChoice, Option, Reply, TextOutput, TokenChoice

QuestionType = Literal["noul", "choice", "score"]

SUM_TOLERANCE = 0.02
"""How far the probabilities of an answer may be from a sum of 1, because servers round each."""

_YES_NO = ("yes", "no")
_MAX_LEVELS = 10

WRITES_NOTHING = (
    "a decision model answers typed questions and writes no text; ask for one verdict per call, without reasons"
)


@dataclass(frozen=True, slots=True)
class TypedQuestion:
    """A question, its type, and its options in order: for `noul` yes before no, for `score` the lowest level first."""

    id: str
    type: QuestionType
    instructions: str
    options: tuple[Option, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the options."""
        return tuple([option.label for option in self.options])


@dataclass(frozen=True, slots=True)
class Distribution:
    """An answer: the share of each option, in order, and the probability of all options together, if it is known.

    `picked` is the label that the server names as its answer; None for types without one.
    """

    shares: tuple[float, ...]
    mass: float | None = None
    picked: str | None = None


def state_of(batch: Batch) -> dict[str, Any] | str:
    """Return the state that the questions of a batch are about: an object if the shared text is one, else that text.

    The system message is part of it: as `guidelines`, or before the text.
    """
    shared = batch.shared
    if shared.startswith("{"):
        try:
            named = json.loads(shared)
        except (ValueError, RecursionError):
            named = None
        if isinstance(named, dict):
            return {"guidelines": batch.system} | named if batch.system else named
    return f"{batch.system}\n\n{shared}" if batch.system else shared


def questions_of(number: int, call: Call, max_options: int) -> tuple[TypedQuestion, ...] | CallFailure:
    """Return what to ask for the call with this number: its question, and the one after it if there is one."""
    answer = call.answer
    if isinstance(answer, JsonOutput | TextOutput) or call.reasoning is not None or call.think_tokens:
        return CallFailure("engine", WRITES_NOTHING)
    instructions = call.question.strip() or "Is it so?"
    if isinstance(answer, LabelChoice):
        asked: tuple[TypedQuestion, ...] = (_label_question(f"c{number}", instructions, answer),)
    else:
        asked = (TypedQuestion(f"c{number}", _type_of(answer), instructions, answer.options),)
        if answer.then is not None:
            ask = f"{instructions}\n{answer.then.ask or answer.then.lead}"
            asked += (_label_question(f"c{number}.then", ask, answer.then),)
    for question in asked:
        if len(question.options) > max_options:
            return CallFailure(
                "engine",
                f"the question has {len(question.options)} options, and this decision model takes {max_options}; "
                "judge responses of fewer steps, or raise the engine's ?options= if the endpoint takes more",
            )
    return asked


def _label_question(id_: str, instructions: str, choice: LabelChoice) -> TypedQuestion:
    return TypedQuestion(id_, "choice", instructions, tuple([Option(label, (label,)) for label in choice.labels]))


def _type_of(choice: TokenChoice) -> QuestionType:
    labels = tuple([option.label for option in choice.options])
    if labels == _YES_NO:
        return "noul"
    levels = tuple(map(str, range(len(labels))))
    return "score" if labels == levels and 2 <= len(labels) <= _MAX_LEVELS else "choice"


def reply_of(call: Call, asked: Sequence[TypedQuestion], answers: Mapping[str, Any]) -> Reply | CallFailure:
    """Return the reply to a call from the answers by question id; a `Distribution` or a `CallFailure` each.

    A failed answer, or a missing one, fails the call. `choice_mass` is known only if the server reports it.
    """
    found: list[Distribution] = []
    for question in asked:
        answer = answers.get(question.id)
        if answer is None:
            return CallFailure("engine", f"the decision model gave no answer to the {question.type} question")
        if isinstance(answer, CallFailure):
            return answer
        found.append(answer)
    first, *rest = found
    if isinstance(call.answer, LabelChoice):
        return Reply(chosen=first.picked)
    mass = 1.0 if first.mass is None else first.mass
    return Reply(
        masses=tuple([share * mass for share in first.shares]),
        chosen=rest[0].picked if rest else None,
        masses_normalized=first.mass is None,
    )


def distribution(
    question: TypedQuestion, shares: Sequence[Any], *, mass: Any = None, picked: Any = None
) -> Distribution | CallFailure:
    """Check the probabilities of a question's options, in order, and return them with a sum of exactly 1.

    `mass` is the reported probability of all options together, None if there is none. `picked` is the label of a
    `choice`: without one the answer is incomplete, and one that another option clearly exceeds contradicts itself.
    """
    numbers = [number for share in shares if (number := probability(share)) is not None]
    if len(numbers) != len(question.options):
        return _invalid(question, "a probability that is missing or not a number from 0 to 1")
    total = math.fsum(numbers)
    if abs(total - 1.0) > SUM_TOLERANCE:
        return _invalid(question, f"probabilities that add up to {total:.6g}")
    label_mass = None if mass is None else probability(mass)
    if mass is not None and label_mass is None:
        return _invalid(question, f"a label mass of {mass!r:.40}")
    if question.type == "choice":
        if not isinstance(picked, str) or picked not in question.labels:
            return _invalid(question, f"the choice {picked!r:.40}, which was not on offer")
        if max(numbers) - numbers[question.labels.index(picked)] > SUM_TOLERANCE:
            return _invalid(question, f"the choice {picked!r:.40} and a greater probability of another option")
    return Distribution(tuple([number / total for number in numbers]), label_mass, picked)


def probability(value: Any) -> float | None:
    """Return a number from 0 to 1 as it is; None for anything else, NaN and booleans included."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        return None
    return float(value)


def _invalid(question: TypedQuestion, what: str) -> CallFailure:
    return CallFailure(
        "engine", f"the decision model answered a {question.type} question with {what}; check its server"
    )


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
        return CallFailure("engine", f"the answer to a {question.type} question is {answer!r:.40}, not an object")
    kind = answer.get("type", question.type)
    if kind != question.type:
        return CallFailure("engine", f"a {question.type} question was answered with {kind!r:.40}")
    mass = _reported_mass(answer, diagnostics)
    if question.type == "noul":
        return _noul(question, answer.get("noul"), mass)
    shares = answer.get("probabilities")
    if not isinstance(shares, dict) or set(shares) != set(question.labels):
        return CallFailure("engine", f"the probabilities of a {question.type} question are not those of its options")
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
        return CallFailure("engine", f"a {_TYPES[question.type]} question was answered with {kind!r:.40}")
    if answer.get("name", question.id) not in (question.id, None):
        return CallFailure(
            "engine", f"the answer to {question.id} is named {answer['name']!r:.40}; answers are mixed up"
        )
    if kind == "refusal":
        return CallFailure("engine", "the decision model refused to answer the question")
    if question.type == "noul":
        return _noul(question, answer.get("probability"), None)
    listed = answer.get("probabilities")
    items = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    key = "label" if question.type == "score" else "value"
    names = [item.get(key) for item in items]
    if len(names) != len(question.labels) or any(names.count(label) != 1 for label in question.labels):
        return CallFailure("engine", f"the probabilities of a {question.type} question are not those of its options")
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
        return CallFailure("engine", f"the score is {score!r:.40}, not a number from 0 to {highest}")
    return None
