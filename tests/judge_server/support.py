"""Helpers for tests of judging: batches, scripts for the scripted engine, judges, plans, requests."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from judge_server.engines.scripted import ScriptedEngine, by_hash
from judge_server.judging.plan import GroupPlanner, ResponsePlan
from judge_server.judging.preparation import Preparer
from judge_server.judging.prompts import PromptForm, PromptTemplates
from judge_server.judging.prompts.fencing import MARKER
from judge_server.judging.prompts.library import TemplateLibrary
from judge_server.judging.questions import YES_NO, JudgingConfig, PreparedConfig
from judge_server.judging.shown import GroupContext
from judge_server.ports import Batch, Call, CallFailure, LabelChoice, Reply, TokenChoice
from judge_server.scheduling.admission import QueueRules
from judge_server.scheduling.call_runner import RetryTimes
from judge_server.scheduling.executor import LocalExecutor
from judge_server.scoring.cache import MemoryCache
from judge_server.scoring.judge import Judge
from trainer_client.text.thinking import judged_content
from trainer_client.wire import Criterion, Group, JudgingOptions, JudgingProtocol, as_response

CRITERIA = [
    {"id": "fact", "kind": "factual", "description": "States that 7 is prime.", "weight": 3},
    {"id": "process", "kind": "process", "description": "Gives a reason.", "weight": 1},
    {"id": "suggest", "kind": "suggest", "description": "Divides by 2, 3 and 5.", "weight": 2},
    {"id": "pitfall", "kind": "pitfall", "description": "Calls 1 a prime.", "weight": 0},
    {"id": "bonus", "kind": "bonus", "description": "Mentions the sieve.", "weight": 1},
    {"id": "answer", "kind": "answer", "description": "The final answer is yes.", "weight": 2},
    {"id": "point", "kind": "point", "description": "Is polite.", "weight": 1},
]

STEPPED = "### Step 1: try\n7 is not a multiple of 2.\n### Step 2: conclude\nSo \\boxed{yes}"


FENCED = re.compile(rf"<{MARKER}>\n(.*?)\n</{MARKER}>", re.DOTALL)
"""A text in its fence."""


def bracketed(rendered: str) -> str:
    """The rendered text with brackets for fences, which are easier to read in a test."""
    return FENCED.sub(r"[\1]", rendered)


def batch(*questions: str, shared: str = "7 is prime.\n", steps: Sequence[int] | None = None) -> Batch:
    """A batch of these yes-or-no questions about one text; with `steps`, each asks for a step too."""
    then = None if steps is None else LabelChoice(tuple(str(n) for n in (*steps, 0, -1)), ", step ")
    calls = tuple(Call(question, TokenChoice(YES_NO, then)) for question in questions)
    return Batch("Answer yes or no.", shared, calls)


def group(*responses: str, **fields: Any) -> Group:
    """A group of the wire contract."""
    return Group.model_validate({"id": "g", "prompt": "Is 7 prime?", "responses": responses or ("Yes.",)} | fields)


def criteria(*descriptions: str) -> list[Criterion]:
    """Criteria with these texts."""
    return [Criterion(id=f"c{i}", description=text) for i, text in enumerate(descriptions)]


def description_in(question: str) -> str:
    """The criterion's text in a question of the default templates."""
    return question.partition("\n")[0].partition(": ")[2]


def prepared(protocol: JudgingProtocol = "binary", fingerprint: str = "sha256:f", **config: Any) -> PreparedConfig:
    """A judge's templates and fingerprint for a judging config."""
    made = JudgingConfig(protocol, **({"per_call": "all"} if protocol == "checklist" else {}) | config)
    used = TemplateLibrary(None).find(made.template)
    alone, together = (
        PromptTemplates(PromptForm(protocol, made.rationale, several, steps=made.steps), used.templates)
        for several in (False, True)
    )
    return PreparedConfig(made, alone, together, fingerprint, declaration=used.declaration)


def plan(
    prepared: PreparedConfig,
    of: Group,
    response: Any,
    criteria: Sequence[Criterion],
    *,
    keep: int | None = None,
    votes: int = 1,
) -> ResponsePlan:
    """The plan of one response to a group's prompt."""
    context = GroupContext(of.prompt, of.grounding, of.reference_answer, of.ground_truth)
    return GroupPlanner(
        prepared, context, criteria, JudgingOptions(votes=votes, steps=prepared.config.steps, defences=())
    ).plan(judged_content(as_response(response), "strip"), keep=keep)


def plans(judge: Judge, *responses: str, of: Sequence[Criterion]) -> list[ResponsePlan]:
    """Plans of these responses by the same criteria, with one yes-or-no call per criterion."""
    return [plan(judge.prepared(JudgingConfig("binary")), group(r), r, of) for r in responses]


def request(*responses: Any, **fields: Any) -> dict[str, Any]:
    """A body of `POST /v1/rewards` with every kind of criterion."""
    body: dict[str, Any] = {
        "rubric": {"criteria": CRITERIA},
        "groups": [{"id": "g", "prompt": "Is 7 prime?", "responses": list(responses or ("Yes.",))}],
    }
    return body | fields


async def judge(engine: ScriptedEngine | None = None, **options: Any) -> Judge:
    """A started judge with its own in-memory cache. `retry_times` are fields of `RetryTimes`."""
    options = {"rules": QueueRules(calls=options.pop("queue_calls", 1000)), "cache": MemoryCache()} | options
    executor = LocalExecutor(
        engine or ScriptedEngine(),
        rules=options.pop("rules"),
        adapters=options.pop("adapters", None),
        clock=options.get("clock", time.monotonic),
        retry_times=RetryTimes(**{"pause_s": 0.001, **options.pop("retry_times", {})}),
    )
    named = ("templates", "calibrations", "min_choice_mass", "cache_salt")
    preparer = Preparer(**{name: options.pop(name) for name in named if name in options})
    made = Judge(executor, options.pop("cache"), preparer=preparer, **options)
    await made.start()
    return made


async def deadline_after(seconds: float = 60.0) -> float:
    """A deadline in the loop's time."""
    return asyncio.get_running_loop().time() + seconds


def advance_time(seconds: float = 120.0) -> None:
    """Advance the event loop's time at once, so that every deadline before then expires."""
    loop = asyncio.get_running_loop()
    time_before = loop.time
    loop.time = lambda: time_before() + seconds  # type: ignore[method-assign]


class RecordingScript:
    """A script that counts the questions and answers with `outcome`, by default by hash."""

    def __init__(self, outcome: Callable[[Batch, Call], Reply | CallFailure] = by_hash) -> None:
        self.asked: Counter[str] = Counter()
        self.outcome = outcome

    def __call__(self, batch: Batch, call: Call) -> Reply | CallFailure:
        self.asked[call.question] += 1
        return self.outcome(batch, call)


class GatedEngine(ScriptedEngine):
    """A scripted engine that waits for `gate` before each answer, and records the calls it began."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.gate = asyncio.Semaphore(0)
        self.began: list[str] = []
        self.waiting = asyncio.Event()

    async def answer(self, batch: Batch) -> AsyncIterator[tuple[int, Reply | CallFailure]]:
        """As `ScriptedEngine`, with one permit per call."""
        for index, call in enumerate(batch.calls):
            self.began.append(call.question)
            self.waiting.set()
            await self.gate.acquire()
            self.waiting.clear()
            yield index, by_hash(batch, call)

    async def busy(self) -> None:
        """Wait until a call is waiting at the gate."""
        await asyncio.wait_for(self.waiting.wait(), 10)

    async def has_begun(self, calls: int) -> None:
        """Wait until this many calls have reached the gate; the last call asked must not be among them."""
        async with asyncio.timeout(10):
            while len(self.began) < calls:  # noqa: ASYNC110 - other tasks run between two calls
                await asyncio.sleep(0.001)

    def release(self, calls: int) -> None:
        """Let this many calls through."""
        for _ in range(calls):
            self.gate.release()


def http_scope(path: str, *, method: str = "POST", **headers: str) -> dict[str, Any]:
    """The ASGI scope of a request, for tests that play its server; `_` in the names of headers stands for `-`."""
    named = {"host": "localhost", **{name.replace("_", "-"): value for name, value in headers.items()}}
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in named.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
