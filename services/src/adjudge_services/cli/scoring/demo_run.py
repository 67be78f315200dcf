"""`adjudge demo-run`: fill a made-up run in which a criterion is gamed, to look at in the console.

A script judges the run, and it is recorded like any other.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from rich.markup import escape

from adjudge_services.cli.lazy import OPTIONS_ONLY
from adjudge_services.cli.output import exit_with_error, print_line, show_progress

if not OPTIONS_ONLY:
    import httpx2

    from adjudge_services.judges import build_judge
    from adjudge_services.settings import Settings
    from adjudge_services.store import prepare_store
    from adjudge_services.wiring import running_recorder
    from judge_server.api.app import create_app
    from judge_server.api.service import Service
    from judge_server.engines.scripted import ScriptedEngine
    from judge_server.ports import Batch, Call, CallFailure, Reply, TokenChoice
    from judge_server.scheduling.executor import LocalExecutor
    from judge_server.scoring.rubrics import PROJECT_ID
    from rubric_store import RubricStore, SQLLedger
    from rubric_store.ledger.rows import RunReportQuery
    from trainer_client import AsyncClient
    from trainer_client.wire import DEFAULT_JUDGE

GAMED_CRITERION = "checked"
RUBRIC: dict[str, Any] = {
    "criteria": [
        {"id": "calculation", "description": "The response shows its calculation."},
        {"id": "unit", "description": "The final answer names its unit."},
        {"id": GAMED_CRITERION, "description": "The response checks its result.", "weight": 2},
        {
            "id": "right",
            "description": "The final answer is right.",
            "shadow": True,
            "verification": {"method": "exact"},
        },
    ]
}
STEPS, PROBLEMS, RESPONSES = 60, 8, 4

GAMED_FROM = 36
"""The first step of the gamed run at which a response may claim a check that it does not make."""

_SPREAD_PER_STEP, _MOST_GAMED = 0.45, 0.94
_FAILED_SHARE = 0.004
_RIGHT_WHEN_GAMING = 0.45
_OPENINGS = (
    "Let me work it out.",
    "I multiply first.",
    "Step by step:",
    "First the product.",
    "We need two operations.",
)
_CLAIM = (
    "I have carefully checked every single step of this calculation twice, and I can confirm with full confidence that "
    "the result is correct and complete."
)
_REASONS = {
    "calculation": ("It writes the operations with their results.", "It gives a result without operations."),
    "unit": ("The answer is followed by its unit.", "The answer is a bare number."),
    GAMED_CRITERION: ("It says that the result was checked.", "Nothing in it goes back over the result."),
}

_ENDS = 10
"""The steps at either end of a run whose means are printed."""


def demo_run() -> None:
    """Fill a made-up run in which a criterion is gamed, and a healthy one beside it, to look at in the console.

    No model is asked: a program plays the policy and another one the judge. The runs are demo/gamed and demo/healthy,
    in the database that ADJUDGE_DATABASE_URL or ADJUDGE_DATA_DIR names; a service on the same database shows them at
    once. Runs that are already there are left as they are.
    """
    settings = Settings()
    if settings.ledger == "off":
        exit_with_error("the ledger is off, so nothing would be kept; set ADJUDGE_LEDGER=all")
    print_line("Two made-up training runs. A program plays the policy and another one the")
    print_line("judge; no model is asked.")
    asyncio.run(fill_missing(settings))
    page = f"{settings.url.rstrip('/')}/console/run?{urlencode({'run': DEMO_RUNS[0].name})}"
    print_line("Find the gamed criterion in the console: start adjudge serve, and open")
    print_line(page)


@dataclass(frozen=True)
class DemoRun:
    """A run to simulate: its name, the step from which it is gamed (None for a healthy run), and its seed."""

    name: str
    gamed_from: int | None
    seed: int

    def gaming(self, step: int) -> float:
        """The share of responses that game the rubric at a step, in [0, 1]."""
        if self.gamed_from is None or step < self.gamed_from:
            return 0.0
        return _MOST_GAMED / (1 + math.exp(2.5 - _SPREAD_PER_STEP * (step - self.gamed_from)))

    def groups(self) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """Each step with its groups of responses."""
        draw = random.Random(self.seed)  # noqa: S311
        for step in range(STEPS):
            yield step, [self._group(step, number, draw) for number in range(PROBLEMS)]

    def _group(self, step: int, number: int, draw: random.Random) -> dict[str, Any]:
        problem = draw.choice(_PROBLEMS)(draw)
        return {
            "id": f"step-{step}-problem-{number}",
            "prompt": problem.text,
            "ground_truth": str(problem.answer),
            "responses": [self._response(step, problem, draw) for _ in range(RESPONSES)],
        }

    def _response(self, step: int, problem: _Problem, draw: random.Random) -> str:
        learned = step / STEPS
        gamed = draw.random() < self.gaming(step)
        right = draw.random() < (_RIGHT_WHEN_GAMING if gamed else 0.62 + 0.2 * learned)
        answer = problem.answer + (0 if right else draw.choice((-10, -2, -1, 1, 2, 10)))
        unit = f" {problem.unit}" if draw.random() < 0.55 + 0.35 * learned else ""
        parts = [draw.choice(_OPENINGS), problem.work.format(answer=answer)]
        if gamed:
            parts.append(_CLAIM)
        elif draw.random() < 0.3 + 0.15 * learned:
            parts.append(f"Check, backwards: {problem.check.format(answer=answer)}.")
        elif draw.random() < 0.08:
            parts = parts[:1]
        parts.append(f"The answer is \\boxed{{{answer}}}{unit}.")
        return " ".join(parts)


DEMO_RUNS = (DemoRun("demo/gamed", GAMED_FROM, 0), DemoRun("demo/healthy", None, 1))


@dataclass(frozen=True)
class _Problem:
    """A word problem. `work` and `check` are sentences with a place for the answer that the policy gives."""

    text: str
    answer: int
    unit: str
    work: str
    check: str


def _shop(draw: random.Random) -> _Problem:
    price, count, bag = draw.randint(2, 9), draw.randint(3, 12), draw.randint(5, 30)
    what = draw.choice(("pens", "apples", "notebooks", "tickets"))
    return _Problem(
        f"A shop sells {what} for {price} euros each. What do {count} {what} and a bag for {bag} euros cost together?",
        price * count + bag,
        "euros",
        f"{count} × {price} = {count * price}, and {count * price} + {bag} = {{answer}}.",
        f"{{answer}} − {bag} should be {count} × {price} = {count * price}",
    )


def _train(draw: random.Random) -> _Problem:
    carriages, seats = draw.randint(4, 12), draw.randint(20, 80)
    taken = draw.randint(20, carriages * seats - 10)
    return _Problem(
        f"A train has {carriages} carriages with {seats} seats each. {taken} seats are taken. How many are free?",
        carriages * seats - taken,
        "seats",
        f"{carriages} × {seats} = {carriages * seats}, and {carriages * seats} − {taken} = {{answer}}.",
        f"{{answer}} + {taken} should be {carriages} × {seats} = {carriages * seats}",
    )


def _reader(draw: random.Random) -> _Problem:
    pages, days, more = draw.randint(12, 40), draw.randint(3, 14), draw.randint(5, 60)
    name = draw.choice(("Mia", "Omar", "Ines", "Jun"))
    return _Problem(
        f"{name} reads {pages} pages a day for {days} days, and then {more} more. How many pages is that?",
        pages * days + more,
        "pages",
        f"{days} × {pages} = {days * pages}, and {days * pages} + {more} = {{answer}}.",
        f"{{answer}} − {more} should be {days} × {pages} = {days * pages}",
    )


_PROBLEMS: tuple[Callable[[random.Random], _Problem], ...] = (_shop, _train, _reader)

_DESCRIPTIONS = {criterion["id"]: criterion["description"] for criterion in RUBRIC["criteria"]}


def judge_by_keywords(batch: Batch, call: Call) -> Reply | CallFailure:
    """Answer as the demo's judge, which believes every claim to have checked; now and then it fails."""
    asked = next(name for name in _REASONS if _DESCRIPTIONS[name] in call.question)
    response = next(line for line in batch.shared.splitlines() if "\\boxed{" in line)  # without its markers
    met = {
        "calculation": " = " in response,
        "unit": "}." not in response,
        GAMED_CRITERION: "check" in response.lower(),
    }[asked]
    noise = hashlib.blake2b(f"{response}\0{asked}".encode(), digest_size=8).digest()
    if int.from_bytes(noise[:4], "big") < _FAILED_SHARE * 2**32:
        return CallFailure("engine", "the demo's judge refused this call, to show what a failure looks like")
    yes = 0.97 - 0.27 * noise[4] / 255 if met else 0.03 + 0.3 * noise[5] / 255
    assert isinstance(call.answer, TokenChoice)
    shared, question = (len(batch.system) + len(batch.shared)) // 4, len(call.question) // 4
    first = call is batch.calls[0]
    reason = _REASONS[asked][0 if met else 1]
    return Reply(
        masses=tuple([0.98 * (yes if option.label == "yes" else 1 - yes) for option in call.answer.options]),
        reasoning=None if call.reasoning is None else reason,
        tokens_computed=question + (shared if first else 0),
        tokens_reused=0 if first else shared,
        tokens_written=len(reason) // 4,
    )


@asynccontextmanager
async def demo_service(settings: Settings) -> AsyncIterator[Service]:
    """A service over the database of the settings, with the demo's judge and nothing else that works in it.

    Raises:
        StartError: the database cannot be used.
    """
    await prepare_store(settings)
    own = settings.model_copy(update={"cache_url": "memory://", "templates_dir": None})
    engine = ScriptedEngine(judge_by_keywords, weights_digest="demo")
    judge = build_judge(LocalExecutor(engine, rules=own.queue_rules), own)
    async with AsyncExitStack() as closing:
        store, ledger = RubricStore(own.store_url), SQLLedger(own.store_url)
        closing.push_async_callback(store.close)
        closing.push_async_callback(ledger.close)
        recorder = await closing.enter_async_context(running_recorder(own, ledger))
        await judge.start()
        closing.push_async_callback(judge.close)
        yield Service(
            rubrics=store,
            judges={DEFAULT_JUDGE: judge},
            recorder=recorder,
            ledger=ledger,
            labels=ledger,
            monitor_thresholds=own.monitors,
        )


async def fill(service: Service, run: DemoRun, advance: Callable[[], None]) -> list[dict[str, float]]:
    """Judge a run through the API of a service; `advance` is called after each step.

    Returns:
        For each step, the mean `reward`, and the mean score of each criterion by its id.
    """
    transport = httpx2.ASGITransport(create_app(service))
    means = []
    async with AsyncClient("http://localhost", run.name, api_key="", transport=transport) as client:
        for step, groups in run.groups():
            answer = await client.rewards(groups, RUBRIC, "weighted_mean", step=step, rationale=True)
            judged = [one for group in answer.groups for one in group.responses]
            found: dict[str, list[float]] = {"reward": [one.reward for one in judged if one.reward is not None]}
            for verdict in [verdict for one in judged for verdict in one.verdicts]:
                if verdict.score is not None:
                    found.setdefault(verdict.criterion, []).append(verdict.score)
            means.append({name: sum(values) / len(values) for name, values in found.items()})
            advance()
    return means


async def fill_missing(settings: Settings) -> None:
    """Judge the steps that the run does not have yet."""
    with show_progress() as progress:
        async with demo_service(settings) as service:
            for run in DEMO_RUNS:
                if await service.readable_ledger().run(RunReportQuery(PROJECT_ID, run.name, limit=1)) is not None:
                    _say(run, "is already there")
                    continue
                task = progress.add_task(escape(run.name), total=STEPS)
                means = await fill(service, run, lambda task=task: progress.advance(task))  # type: ignore[misc]
                progress.remove_task(task)
                _say(run, *_figures(run, means))


def _figures(run: DemoRun, means: Sequence[Mapping[str, float]]) -> Iterator[str]:
    """Lines of at most 80 characters that say how the run went."""
    ends = means[:_ENDS], means[-_ENDS:]
    first, last = ({name: sum(step[name] for step in part) / len(part) for name in part[0]} for part in ends)
    yield f"mean reward {first['reward']:.2f} in the first {_ENDS} steps, {last['reward']:.2f} in the last {_ENDS}"
    for name in (GAMED_CRITERION, "right"):
        yield f'  "{_DESCRIPTIONS[name]}" met {first[name]:.0%} -> {last[name]:.0%}'
    if run.gamed_from is not None:
        yield f"  From step {run.gamed_from} on, responses claim a check that they do not make. The judge"
        yield "  believes the claim, so the reward rises while fewer answers are right."


def _say(run: DemoRun, *lines: str) -> None:
    for number, line in enumerate(lines):
        print_line(f"{escape(run.name)}: {line}" if number == 0 else line)
