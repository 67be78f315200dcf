"""Attacks on the routes in other formats: those of other trainers, scores for rerankers, and decision models."""

import json
from typing import Any
from urllib.parse import urlencode

from benchmarks.attacks.cases import CONTROL_TOKENS, DEADLINE_S, NAMES, criterion
from benchmarks.attacks.fuzzing import UNITS
from benchmarks.attacks.target import Attack, Target

_MOST_ROWS = 4096
_LABEL_BYTES = 400_000
_MOST_QUESTIONS, _MOST_CHOICES, _MOST_LEVELS = 400, 255, 10


def hostile_label(on: Target) -> Any:
    """Draw a label: the judge's inputs, JSON text of some, or what is neither."""
    rubric = [criterion(f"c{n}") for n in range(on.draw.choice((1, 3, 512)))]
    nested: dict[str, Any] = {"rubric": rubric}
    return on.draw.choice(
        (
            {"rubric": rubric, "ground_truth": "12"},
            json.dumps({"rubric": rubric, "grounding": on.draw.choice(UNITS) * 1000}),
            {"rubric": rubric, "reference_answer": on.draw.choice(UNITS) * (_LABEL_BYTES // 20)},
            {"rubric": rubric, "ground_truth": "\\boxed{" * (_LABEL_BYTES // 7)},
            {"rubric": [criterion("a", verification={"method": "regex", "pattern": "(a+)+$"})]},
            {"rubric": "a@" + "9" * 300},
            nested | {"prompt": [{"role": name, "content": name} for name in NAMES]},
            "{" * _LABEL_BYTES,
            " " * _LABEL_BYTES + "{",
            '{"rubric":' * 30_000,
            '{"ground_truth": "a", "ground_truth": "b"}',
            '{"ground_truth": 1e400}',
            '{"rubric": [' + "[]," * 100_000 + "[]]}",
            "$\\{x : x > 0\\}$" * 10_000,
            10**400,
            -0.0,
            True,
            [None] * 10_000,
            None,
            "",
        )
    )


def parameters(on: Target) -> str:
    """Draw the query of a trainer's URL, which is valid in most cases."""
    text = on.draw.choice(UNITS).encode("utf-8", "replace")
    given: dict[str, Any] = {"run": "attack", "deadline_s": DEADLINE_S, "mode": "weighted_mean"}
    given |= on.draw.choice(
        (
            {}, {}, {}, {"use": "probability"}, {"on_failure": "skip"}, {"end": "!"}, {"end": text[:100]},
            {"mode": "group_ranks"}, {"rubric": "a/" * 1000}, {"deadline_s": "1e-300"}, {"run": text * 300},
            {"unknown": text * 500},
        )
    )  # fmt: skip
    return urlencode(given)


async def openrlhf(on: Target) -> None:
    """Send rows for OpenRLHF: thousands of them, or with labels and queries that are hard to read."""
    many = on.draw.random() < 0.5
    rows = on.draw.choice((_MOST_ROWS, 500)) if many else on.draw.randint(1, 4)
    prompt = "p" * 100 if many else on.draw.choice(CONTROL_TOKENS) * 2000
    label = {"rubric": [criterion("a")]} if many else hostile_label(on)
    queries = [prompt + f" {on.draw.random()}" for _ in range(rows)]
    if on.draw.random() < 0.2:
        queries[-1] = "no prompt"
    body = {"query": queries, "prompts": [prompt] * rows, "labels": [label] * rows}
    await on.send("POST", f"/v1/compat/openrlhf?{parameters(on)}", body=json.dumps(body).encode())


async def slime(on: Target) -> None:
    """Send samples for slime with hostile prompts, responses and labels."""

    def body() -> bytes:
        unit = on.draw.choice(UNITS)
        prompt = on.draw.choice(("p", unit * 1000, [{"role": name, "content": unit} for name in NAMES]))
        return json.dumps({"prompt": prompt, "response": unit * 5000, "label": hostile_label(on)}).encode()

    await on.at_once(*(on.send("POST", f"/v1/compat/slime?{parameters(on)}", body=body()) for _ in range(4)))


async def roll(on: Target) -> None:
    """Submit tasks for ROLL in numbers, and ask for their results and for those of tasks that do not exist."""

    def task() -> bytes:
        label = {"rubric": [criterion("a")]} if on.draw.random() < 0.5 else hostile_label(on)
        body = {"prompt": "p", "response": f"{on.draw.random()}", "reward_info": label}
        body |= on.draw.choice(
            (
                {"timeout": on.draw.choice((10.5, 30, 3600, 10**9, -1))},
                {"global_step": on.draw.choice((-1, 10**400, "9" * 6000, "x", 2**63))},
                {"data_id": [[]] * 50_000, "rollout_id": {"a": "b" * 100_000}},
                {"reward_manager": [{"a": "b" * 5000}] * 64},
                {},
            )
        )
        return json.dumps(body).encode()

    ids = [f"roll-{on.draw.getrandbits(128):032x}", "roll-" + "0" * 4000, "\x00", "x"]
    answers: list[str] = []

    async def submit() -> None:
        answer = await on.send("POST", f"/v1/compat/roll/submit_task?{parameters(on)}", body=task())
        if answer is not None and answer.status_code == 200:
            answers.append(answer.json()["reward_request_id"])

    await on.at_once(*(submit() for _ in range(16)))
    asked = [json.dumps({"reward_request_id": one}).encode() for one in [*answers, *ids]]
    await on.at_once(*(on.send("GET", "/v1/compat/roll/task_result", body=body) for body in asked * 2))


def hostile_question(on: Target) -> dict[str, Any]:
    """Draw a typed question, which is valid in most cases."""
    unit = on.draw.choice(UNITS)
    return on.draw.choice(
        (
            {"type": "noul", "instructions": unit * 1000},
            {"type": "noul", "instructions": {"a": [[unit]] * 500}, "criteria": {"true": [None] * 500, "false": unit}},
            {"type": "noul", "instructions": unit * 500_000},
            {"type": "choice", "criteria": {f"{n}": None for n in range(_MOST_CHOICES)}},
            {"type": "choice", "criteria": {f"{n}{unit * 20}": unit for n in range(_MOST_CHOICES)}},
            {"type": "choice", "criteria": {f"{n}{'o' * 20_000}": None for n in range(_MOST_CHOICES)}},
            {"type": "choice", "instructions": json.loads("[" * 60 + "]" * 60), "criteria": dict.fromkeys(NAMES)},
            {"type": "score", "criteria": [f"{n}{unit}" for n in range(_MOST_LEVELS)]},
            {"type": "score", "criteria": [unit * 1500] * _MOST_LEVELS},
            {"type": unit, "criteria": []},
        )
    )


async def decisions(on: Target) -> None:
    """Ask for decisions: hundreds of questions and options, names and states of every form."""
    unit = on.draw.choice(UNITS)
    state = on.draw.choice(
        (
            {"prompt": "p", "response": unit * 1000},
            unit * 20_000,
            {f"{n}": {"response": unit} for n in range(5000)},
            [[unit] * 1000] * 20,
            {"question": "q", "prompt": "p", "answer": unit * 1000, "context": "\\boxed{" * 20_000, "output": "o"},
            json.loads('{"a":' * 60 + "1" + "}" * 60),
        )
    )
    sorts = (
        {f"q{n}": {"type": "noul", "instructions": f"{n}"} for n in range(_MOST_QUESTIONS)},
        {name or "\x00": hostile_question(on) for name in NAMES},
        {"a": hostile_question(on)},
        {"a": hostile_question(on), "b" * 100_000: hostile_question(on)},
        {f"q{n}": {"type": "score", "criteria": ["a", "b", "c"]} for n in range(256)},
    )
    extra = on.draw.choice(({}, {}, {"judging": {"rationale": True}}, {"step": 10**400}, {"priority": "x"}))
    bodies = [
        {"model": on.draw.choice(("default", "default", "default", "m" * 300)), "state": state, "run": "attack"}
        | {"questions": questions, "deadline_s": DEADLINE_S} | extra
        for questions in on.draw.sample(sorts, 2)
    ]  # fmt: skip
    await on.at_once(*(on.send("POST", "/v1/systemone", body=json.dumps(body).encode()) for body in bodies))


async def scores(on: Target) -> None:
    """Ask for scores as of a reranker: thousands of documents, and queries and documents of hostile text."""
    unit = on.draw.choice(UNITS)
    many = on.draw.choice((["d"] * 1000, [unit * 2000] * 20, [{"text": unit}] * 50, [7] * 5000, unit * 100_000, [""]))
    one = on.draw.choice((unit * 1000, [unit] * 1000, "q"))
    await on.send("POST", "/v1/rubrics/attack/versions", json={"criteria": [criterion("a"), criterion("b")]})
    model = {"model": on.draw.choice(("attack", "attack", unit * 50))}
    bodies = (
        ("/v1/score", {"text_1": one, "text_2": many} | model),
        ("/v1/rerank", {"query": one, "documents": many, "top_n": on.draw.choice((0, 1, 10**9, 0.5))} | model),
    )
    await on.at_once(*(on.send("POST", path, body=json.dumps(body).encode()) for path, body in bodies))


FORMATS: dict[str, Attack] = {
    "trainers: rows of OpenRLHF": openrlhf,
    "trainers: samples of slime": slime,
    "trainers: tasks of ROLL": roll,
    "decisions: hostile questions": decisions,
    "scores: hostile documents": scores,
}
