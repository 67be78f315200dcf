"""Answers of a service over a wide range of requests, kept so that a change of the inside can be seen from outside.

A few hundred requests are drawn at random, always the same ones, over modes, protocols, failures, uncertain verdicts,
dropout, penalties, votes, turns and defences. Kept of each: the answer, whether as a whole or as a stream; its rows in
the ledger; the rewards that are recomputed from these under other rules; and how the console explains the rewards.

Run `python -m tests.judge_server.golden_answers` in the root folder to keep today's answers, after reading how they
differ.
"""

import asyncio
import gzip
import hashlib
import html
import json
import random
import re
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from judge_server.api.app import create_app
from judge_server.api.service import Service
from judge_server.engines.scripted import ScriptedEngine, by_hash
from judge_server.ledger import Recorder
from judge_server.ports import Batch, Call, CallFailure, Reply
from rubric_store import RubricStore, RubricTexts, SQLLedger, migrations
from tests.fixtures.short_intervals import RECORDER_TIMES
from tests.judge_server import support
from tests.judge_server.support import STEPPED
from trainer_client.wire import NOT_LINEAR, PROTOCOLS_FOR

KEPT = Path(__file__).parent / "golden" / "answers.jsonl.gz"
REQUESTS_EACH = 12
"""Requests drawn for each pair of a mode and a protocol."""

Case = tuple[str, dict[str, Any]]
"""A name, and what was answered."""

RUBRICS: dict[str, list[dict[str, Any]]] = {
    "plain": [
        {"id": "fact", "kind": "factual", "description": "States that 7 is prime.", "weight": 3},
        {"id": "proof", "kind": "factual", "description": "Proves it.", "weight": 1},
        {"id": "process", "kind": "process", "description": "Gives a reason.", "weight": 0.5},
        {"id": "free", "description": "Is short.", "weight": 0},
        {"id": "shadow", "description": "Names Euclid.", "weight": 2, "shadow": True},
        {"id": "answer", "kind": "answer", "description": "The final answer is yes.", "weight": 2},
    ],
    "signed": [
        {"id": "good", "description": "Is right.", "weight": 4},
        {"id": "bad", "description": "Calls 1 a prime.", "weight": -2},
        {"id": "trap", "kind": "pitfall", "description": "Guesses.", "weight": -1},
        {"id": "suggest", "kind": "suggest", "description": "Divides by 2, 3 and 5.", "weight": 2},
        {"id": "bonus", "kind": "bonus", "description": "Mentions the sieve.", "weight": 1},
        {"id": "final", "kind": "answer", "description": "Says yes.", "weight": 1},
    ],
    "mistakes": [
        {"id": "m1", "kind": "pitfall", "description": "Calls 1 a prime.", "weight": -2},
        {"id": "m2", "kind": "pitfall", "description": "Is rude.", "weight": -0.25},
        {"id": "m3", "kind": "pitfall", "description": "Guesses.", "weight": -1},
    ],
    "programs": [
        {"id": "judged", "description": "Is right.", "weight": 2},
        {
            "id": "exact",
            "kind": "answer",
            "description": "Ends in yes.",
            "verification": {"method": "exact", "expected": "yes"},
        },
        {"id": "length", "description": "Has a number.", "verification": {"method": "regex", "pattern": "[0-9]"}},
        {"id": "ten", "description": "Is clear.", "scale": 10, "weight": 3},
    ],
    "turns": [
        {"id": "each", "description": "Is polite.", "applies_to": "each_turn"},
        {"id": "last", "description": "Answers.", "applies_to": "last_turn", "weight": 2},
        {"id": "whole", "kind": "answer", "description": "Is right."},
    ],
}

TURNS = [
    {"role": "user", "content": "Is 7 prime?"},
    {"role": "assistant", "content": "I think so."},
    {"role": "user", "content": "Sure?"},
    {"role": "assistant", "content": "Yes: no number from 2 to 6 divides it. yes"},
]
TEXTS: list[Any] = [
    STEPPED,
    "No.",
    "### Step 1: guess\nYes, 7 is odd.",
    "<think>Hm, 7 = 2 * 3 + 1.</think>So \\boxed{yes}",
    "",
    "7 is a prime number, and 1 is not.\n\nAnswer: yes",
    TURNS,
]
_SUITED = {
    "weighted_mean": ("plain", "programs"),
    "factual_override": ("plain", "plain", "programs"),
    "partial_credit": ("plain", "programs"),
    "gate": ("plain", "programs"),
    "points": ("signed", "plain"),
    "clipped_points": ("signed", "mistakes", "plain"),
    "absolute_points": ("signed", "mistakes", "plain"),
}
BANDS = [None, None, None, [0.3, 0.6], [0.0, 0.1]]


def script(batch: Batch, call: Call) -> Reply | CallFailure:
    """Answer by hash; some calls time out, and some get an answer that is not in the form asked for."""
    drawn = hashlib.sha256(f"{batch.shared}{call.question}{call.sample}".encode()).digest()[0]
    if drawn % 9 == 0:
        return CallFailure("timeout", "it took too long")
    reply = by_hash(batch, call)
    if drawn % 11 == 0:
        return reply._replace(masses=None, chosen=None, text="I would rather not say.")
    return reply


def requests() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The name, the path and the body of each request."""
    for mode, protocols in PROTOCOLS_FOR.items():
        for protocol in protocols or (None,):
            for number in range(REQUESTS_EACH):
                name = f"{mode}-{protocol or 'none'}-{number}"
                body = _drawn(random.Random(name), mode, protocol)
                run = f"{mode}-{protocol or 'none'}"
                yield name, "/v1/rewards", body | {"run": run, "step": number}


def _drawn(draw: random.Random, mode: str, protocol: str | None) -> dict[str, Any]:
    reward: dict[str, Any] = {"mode": mode}
    judging: dict[str, Any] = {}
    body: dict[str, Any] = {"reward": reward, "judging": judging}
    soft = mode not in NOT_LINEAR and protocol in ("binary", "stepwise")
    if protocol not in (None, "comparison"):
        judging["protocol"] = protocol
    if soft and draw.random() < 0.3:
        reward["use"] = "probability"
    if protocol in ("binary", "stepwise") and (band := draw.choice(BANDS)):
        body |= {"uncertain_band": band, "on_uncertain": draw.choice(["null", "zero", "skip"])}
    if mode == "stepwise":
        reward["format_weight"] = draw.choice([0.0, 0.1, 0.5])
    if mode == "gate":
        reward["gate_fraction"] = draw.choice([0.2, 0.5, 1.0])
    if mode == "ranking":
        reward["schedule"] = draw.choice(["all_pairs", "swiss", "pivot"])
        reward["use"] = draw.choice(["verdict", "probability"])
    if mode not in NOT_LINEAR and draw.random() < 0.25:
        body["dropout"] = {"keep": draw.choice([0.4, 0.7]), "seed": draw.randrange(5)}
    if draw.random() < 0.4:
        reward |= draw.choice(
            [
                {"length_penalty": {"target_tokens": 100, "coefficient": 0.001}},
                {"length_penalty": {"target_tokens": 400, "coefficient": 0.001, "excess_only": True}},
                {"overlong_penalty": {"limit_tokens": 500, "buffer_tokens": 300}},
                {"truncation_factor": 0.25, "overlong_penalty": {"limit_tokens": 450, "buffer_tokens": 100}},
            ]
        )
    if mode not in ("likert", "outcome", "ranking") and draw.random() < 0.15:
        reward["kinds"] = draw.choice([["factual", "answer"], ["point", "answer"], ["answer"]])
    if protocol in ("binary", "graded") and draw.random() < 0.25:
        judging |= {"votes": 3, "rationale": True}
    if protocol in ("binary", "stepwise") and draw.random() < 0.15:
        judging |= {"defences": ["normalise", "no_content", "decoy"], "on_decoy": draw.choice(["flag", "fail"])}
    if protocol == "binary" and draw.random() < 0.15:
        judging |= draw.choice([{"contextual_calibration": True}, {"rationale": True}])
    if protocol == "stepwise":
        judging["steps"] = draw.choice(["headings", "headings", "paragraphs", "turns"])
    judging["reasoning"] = draw.choice(["strip", "strip", "keep"])
    body["on_failure"] = draw.choice(["null", "zero", "zero_unparseable", "skip", "skip", "error"])
    names = [*_SUITED.get(mode, ("plain", "signed", "programs")), *(["turns"] if protocol == "binary" else [])]
    if draw.random() < 0.05:
        names = list(RUBRICS)
    groups = []
    for place in range(draw.choice([1, 2])):
        responses = [
            {"text": text, "tokens": draw.randrange(600), "stopped": draw.random() < 0.8}
            for text in draw.sample(TEXTS[:-1] if mode == "ranking" else TEXTS, draw.choice([3, 4]))
        ]
        group: dict[str, Any] = {"id": f"g{place}", "prompt": f"Is 7 prime? ({draw.randrange(100)})"}
        group |= {"responses": responses, "ground_truth": draw.choice(["yes", "no"])}
        if mode not in ("likert", "outcome"):
            group["rubric"] = {"criteria": RUBRICS[draw.choice(names)]}
        groups.append(group)
    return body | {"groups": groups}


@asynccontextmanager
async def service(folder: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a service with a ledger in this folder."""
    url = f"sqlite+aiosqlite:///{folder / 'golden.db'}"
    await asyncio.to_thread(migrations.upgrade, url)
    ledger, store = SQLLedger(url), RubricStore(url)
    recorder = Recorder(ledger, folder / "spool", times=RECORDER_TIMES)
    judge = await support.judge(ScriptedEngine(script))
    app = create_app(
        Service(rubrics=store, rubric_texts=RubricTexts(), judges={"default": judge}, recorder=recorder, ledger=ledger)
    )
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://adjudge.test", timeout=120) as http:
        yield http
    await judge.close()
    await asyncio.to_thread(recorder.close)
    await ledger.close()
    await store.close()


async def answers(http: httpx2.AsyncClient) -> list[Case]:
    """Everything that the service says about all requests."""
    cases: list[Case] = []
    runs: dict[str, str] = {}
    for number, (name, path, body) in enumerate(requests()):
        if number % 3 == 2:
            may_fail = "error" in (body["on_failure"], body.get("on_uncertain"))
            # what is recorded of a stream that fails depends on which group was done first
            sent = body | {"run": f"{body['run']}-failing"} if may_fail else body
            reply = await http.post(path, json=sent, headers={"Accept": "application/x-ndjson"})
            cases.append((f"stream {name}", _streamed(reply)))
        else:
            reply = await http.post(path, json=body)
            cases.append((f"rewards {name}", {"status": reply.status_code, "answer": reply.json()}))
        if number % 4 == 0:
            asked = {key: body[key] for key in ("judging", "uncertain_band", "groups", "run") if key in body}
            reply = await http.post("/v1/verdicts", json=asked | {"run": f"{asked['run']}-verdicts"})
            cases.append((f"verdicts {name}", {"status": reply.status_code, "answer": reply.json()}))
        runs.setdefault(body["run"], body["reward"]["mode"])
    cases += await _compared(http)
    while (await http.get("/v1/ledger")).json()["waiting"]:  # noqa: ASYNC110 - a thread writes it
        await asyncio.sleep(0.02)
    for run, mode in runs.items():
        cases += [(f"rows {run}", {"verdicts": await _rows(http, run)}), *await _recomputed(http, run, mode)]
        cases.append((f"console {run}", {"explanations": await _explanations(http, run)}))
    return [(name, _comparable(told)) for name, told in cases]


def _streamed(reply: httpx2.Response) -> dict[str, Any]:
    """The status of a stream and its parts; where a group has an error, this alone.

    Whether other groups come before it depends on which is done first, and where none does, it is the whole answer.
    """
    parts = _parts(reply.text)
    for problem in [part["problem"] for part in parts if "problem" in part]:
        return {"status": problem["status"], "parts": [_kind(problem)]}
    return {"status": reply.status_code, "parts": parts}


def _parts(text: str) -> list[Any]:
    """The parts of a stream, in an order that does not depend on which group was done first."""
    parts = [json.loads(line) for line in text.splitlines()]
    if "detail" in parts[-1]:  # what was known when the first group with an error was done
        parts = [_kind(parts[-1])]
    return sorted(parts, key=lambda part: str((part.get("group") or {}).get("id") or part.get("id")))


def _kind(problem: dict[str, Any]) -> dict[str, Any]:
    return {key: problem[key] for key in ("type", "status")}


async def _compared(http: httpx2.AsyncClient) -> list[Case]:
    cases: list[Case] = []
    for number, (rubric, rationale) in enumerate([(None, False), ("plain", False), ("signed", True)]):
        pairs = [
            {"id": f"p{place}", "prompt": f"Is 7 prime? ({number})", "a": one, "b": other}
            for place, (one, other) in enumerate([(STEPPED, "No."), ("Yes.", TURNS), ("Same.", "Same.")])
        ]
        body = {"pairs": pairs, "judging": {"rationale": rationale}}
        body |= {} if rubric is None else {"rubric": {"criteria": RUBRICS[rubric]}}
        reply = await http.post("/v1/comparisons", json=body)
        cases.append((f"comparisons {number}", {"status": reply.status_code, "answer": reply.json()}))
    return cases


async def _rows(http: httpx2.AsyncClient, run: str) -> list[Any]:
    rows: list[Any] = []
    query: dict[str, Any] = {"run": run, "limit": 500}
    while True:
        page = (await http.get("/v1/verdicts", params=query)).json()
        rows += [{**row, "id": None} for row in page["verdicts"]]
        if page["next_cursor"] is None:
            return rows
        query["after"] = page["next_cursor"]


async def _recomputed(http: httpx2.AsyncClient, run: str, mode: str) -> list[Case]:
    rules: list[dict[str, Any]] = [
        {},
        {"on_failure": "zero", "on_uncertain": "zero"},
        {"on_failure": "skip", "on_uncertain": "skip", "uncertain_band": [0.4, 0.55]},
        {
            "reward": {"mode": "graded_mean" if mode == "points" else "clipped_points"},
            "weights": {"fact": 1, "bad": -1},
        },
    ]
    cases: list[Case] = []
    for number, one in enumerate(rules):
        reply = await http.post("/v1/rewards/recompute", json=one | {"run": run})
        cases.append((f"recompute {run} {number}", {"status": reply.status_code, "parts": _parts(reply.text)}))
    return cases


async def _explanations(http: httpx2.AsyncClient, run: str) -> list[str]:
    found: list[str] = []
    responses = (await http.get("/console/responses", params={"run": run})).text
    for address in dict.fromkeys(re.findall(r'href="(/console/group\?[^"#]*)', responses)):
        page = (await http.get(html.unescape(address))).text
        found += [html.unescape(text) for text in re.findall(r"<p(?: class=\"formula\")?>([^<]{20,})</p>", page)]
    return found


_VOLATILE = {
    "request_id", "request", "recorded_at", "created_at", "seconds_queued", "seconds_judging", "at",
    "documentation_url",
}  # fmt: skip


def _comparable(value: Any) -> Any:
    """The value without what differs each time, and with numbers to ten digits."""
    if isinstance(value, dict):
        return {key: _comparable(one) for key, one in sorted(value.items()) if key not in _VOLATILE}
    if isinstance(value, list):
        return [_comparable(one) for one in value]
    return float(f"{value:.10g}") if isinstance(value, float) else value


async def made_now() -> list[Case]:
    """What today's code answers."""
    with tempfile.TemporaryDirectory() as folder:
        async with service(Path(folder)) as http:
            return await answers(http)


def kept() -> list[Case]:
    """What was answered when the answers were kept."""
    with gzip.open(KEPT, "rt", encoding="utf-8") as file:
        return [(name, told) for name, told in map(json.loads, file)]


def differences(before: Any, now: Any, where: str = "") -> Iterator[str]:
    """How two values differ, each as the place and what is there."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted(before.keys() | now.keys()):
            yield from differences(before.get(key), now.get(key), f"{where}.{key}")
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for place, (one, other) in enumerate(zip(before, now, strict=True)):
            yield from differences(one, other, f"{where}.{place}")
    elif before != now:
        yield f"{where}: {before!r} became {now!r}"


def main() -> None:
    """Keep what today's code answers."""
    lines = [
        json.dumps([name, told], ensure_ascii=False, separators=(",", ":")) for name, told in asyncio.run(made_now())
    ]
    KEPT.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))


if __name__ == "__main__":
    main()
