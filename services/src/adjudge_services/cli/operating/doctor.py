"""`adjudge doctor`: check an installation part by part, or an engine.

Each check returns what it saw, or a `CheckWarning` for something that works but should be changed. A check that fails
raises, with what to do.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from rich.markup import escape
from rich.table import Table

from adjudge_services.cli.lazy import OPTIONS_ONLY
from adjudge_services.cli.options import JsonOption
from adjudge_services.cli.output import format_seconds, out, pluralize, print_json

if not OPTIONS_ONLY:
    from redis.asyncio import Redis
    from redis.exceptions import RedisError

    from adjudge_services.judges import build_engine, judge_links
    from adjudge_services.settings import Settings
    from adjudge_services.store import open_store
    from adjudge_services.wiring import check_queue, has_usable_key, keys_required
    from judge_server.engines.openai.engine import OpenAIEngine
    from judge_server.engines.openai.http import EndpointError
    from judge_server.engines.openai.probe import Endpoint
    from judge_server.errors import EngineStartError
    from judge_server.judging.questions import YES_NO
    from judge_server.judging.replies import read_yes_no
    from judge_server.operations.queues import QUEUE
    from judge_server.ports import Batch, Call, CallFailure, Engine, EngineIdentity, JudgeResult, TokenChoice
    from judge_server.remote.executor import JudgeClient, JudgeUnavailable, identity_digest
    from judge_server.scoring.cache import cache_from_url
    from rubric_store import RubricStore, SQLOperations

THINK_TOKENS = 1024
"""The tokens that a model which thinks before each answer gets for the easy question."""

WIDTH = 80
_LOW_MASS = 0.5

REDIS_TIMEOUT_S = 3.0
"""Timeout for asking the queue's server."""

MAX_CHUNK_WAIT_S = 900
"""Seconds that a chunk may wait before doctor warns; the same as in the alert."""

Check = Callable[["Settings"], Coroutine[Any, Any, str]]
STYLES = {"ok": "green", "warning": "yellow", "wrong": "bold red", "not checked": "dim"}
PREREQUISITES = {"keys": {"rubric store"}, "operations": {"rubric store"}}


def doctor(
    url: Annotated[
        str | None,
        typer.Argument(
            help="URL of an engine, or of a server of the OpenAI API, to check in place of the installation."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check an installation part by part and say how to fix it. Exits with 1 if any part fails.

    If ADJUDGE_JUDGES is set, those judges are checked; otherwise the engine of this host is loaded and checked.

    With a URL, print what was found out about the engine there and what is done about each gap. Exits with 1 if it
    cannot judge. The key is ADJUDGE_ENGINE_API_KEY.
    """
    if url is not None:
        report(url, as_json)
    settings = Settings()
    wrong: set[str] = set()
    rows: list[tuple[str, str, str]] = []
    for name, check in (COMMON_CHECKS | (REMOTE_CHECKS if settings.judges else LOCAL_CHECKS)).items():
        if wrong & PREREQUISITES.get(name, set()):
            rows.append((name, "not checked", f"needs the {' and the '.join(sorted(PREREQUISITES[name]))}"))
            continue
        try:
            seen = asyncio.run(check(settings))
            result = "warning" if isinstance(seen, CheckWarning) else "ok"
        except Exception as error:  # noqa: BLE001 - whatever is wrong belongs in the table
            seen, result = str(error) or type(error).__name__, "wrong"
            wrong.add(name)
        rows.append((name, result, seen))
    if as_json:
        print_json([{"check": name, "result": result, "seen": seen} for name, result, seen in rows])
    else:
        table = Table("check", "result", title="adjudge doctor", title_justify="left")
        table.add_column("what was seen", overflow="fold")
        for name, result, seen in rows:
            table.add_row(name, f"[{STYLES[result]}]{result}[/]", escape(seen))
        out.print(table)
    raise typer.Exit(1 if wrong else 0)


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found about one part of an engine, and what is done about it; empty if nothing needs to be."""

    part: str
    found: str
    done: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Whether an engine can judge, in a sentence, and its findings."""

    can_judge: bool
    summary: str
    findings: tuple[Finding, ...]


async def ask_easily(engine: Engine, *, think_tokens: int = 0, min_choice_mass: float) -> JudgeResult | CallFailure:
    """Ask an engine an easy question, whose answer is yes, and return the verdict."""
    choice = TokenChoice(YES_NO)
    question = "Is the word 'apple' in this list? Answer yes or no."
    call = Call(question, choice, think_tokens=think_tokens)
    batch = Batch("Answer with one word: yes or no.", "apple, pear, plum\n", (call,))
    outcome = await anext(outcome async for _, outcome in engine.answer(batch))
    if isinstance(outcome, CallFailure):
        return outcome
    return read_yes_no(choice, outcome, min_choice_mass=min_choice_mass)


async def diagnose(engine: Engine, name: str, *, has_key: bool, min_choice_mass: float) -> Diagnosis:
    """Start an engine, ask it an easy question, and report what was found. Closes the engine."""
    try:
        try:
            identity = await engine.start()
        except EngineStartError as error:
            return _not_started(name, error, has_key=has_key)
        except OSError as error:
            return Diagnosis(False, f"{name} cannot judge: {error}", ())
        endpoint = engine.endpoint if isinstance(engine, OpenAIEngine) else None
        findings = _endpoint_findings(endpoint, has_key=has_key) if endpoint is not None else []
        findings += _identity_findings(identity, endpoint)
        if identity.asks:  # it knows no other question, so an easy one would tell nothing
            return Diagnosis(True, f"{name} is a probe: it answers the question that it was fitted to", tuple(findings))
        began = time.monotonic()
        verdict = await ask_easily(engine, min_choice_mass=min_choice_mass)
        taken = time.monotonic() - began
        thinks = False
        if not isinstance(verdict, JudgeResult) and not identity.capabilities.typed_questions:
            thought = await ask_easily(engine, think_tokens=THINK_TOKENS, min_choice_mass=min_choice_mass)
            if isinstance(thought, JudgeResult):
                verdict, thinks = thought, True
        findings += _verdict_findings(verdict, taken)
        summary = _summary(name, identity, verdict, thinks=thinks)
        return Diagnosis(isinstance(verdict, JudgeResult), summary, tuple(findings))
    finally:
        await engine.close()


def _not_started(name: str, error: EngineStartError, *, has_key: bool) -> Diagnosis:
    cause = error.__cause__
    status = cause.status if isinstance(cause, EndpointError) else 200
    findings = [Finding("reachable", "no" if status is None else "yes")]
    if status is None:
        findings[0] = Finding("reachable", "no", "start the server, or correct the URL")
    elif status in (401, 403):
        remedy = "set ADJUDGE_ENGINE_API_KEY to one that it accepts"
        findings.append(Finding("authentication", "key refused" if has_key else "key required", remedy))
    text = str(error)
    return Diagnosis(False, text if "cannot judge" in text else f"{name} cannot judge: {text}", tuple(findings))


def _endpoint_findings(endpoint: Endpoint, *, has_key: bool) -> list[Finding]:
    dialect = endpoint.dialect
    listed = len(endpoint.models)
    temperatures = {
        "any": Finding("temperature", "any"),
        "positive": Finding("temperature", "0 is refused", "left out, so its own applies: verdicts may vary"),
        "own": Finding("temperature", "only its own", "never sent: verdicts may vary, and votes use its own too"),
    }
    limit = f"{dialect.limit_field}, from {dialect.least_tokens}"
    role = "refused", "its text begins the user message"
    return [
        Finding("reachable", f"yes: {endpoint.maker}"),
        Finding("authentication", "key accepted" if has_key else "no key needed"),
        Finding("models", f"{listed} listed")
        if listed
        else Finding("models", "not listed", "?model= is taken as given"),
        Finding("system role", "taken") if dialect.system_role else Finding("system role", *role),
        temperatures[dialect.temperatures],
        Finding("token limit", limit, "shorter limits are raised to it" if dialect.least_tokens > 1 else ""),
        Finding("reasoning", "yes: it thinks unasked", "set judging.think_tokens, or turn it off at the server")
        if endpoint.thinks
        else Finding("reasoning", "no"),
        Finding("token counts", "estimated", "prompts are shortened a little early")
        if endpoint.counter == "estimate"
        else Finding("token counts", "by the server"),
        Finding("calls per request", "several, by the batch route" if endpoint.batches else "one"),
    ]


def _identity_findings(identity: EngineIdentity, endpoint: Endpoint | None) -> list[Finding]:
    able = identity.capabilities
    answered = "" if endpoint is None or endpoint.answered_as in (None, identity.model) else endpoint.answered_as
    found = [Finding("model", f"{identity.model}{f', answers as {answered}' if answered else ''}")]
    found.append(Finding("context", pluralize(identity.context_tokens, "token")))
    if not able.logprobs:
        found.append(Finding("log-probabilities", "none", "its text is read; verdicts have no probability"))
    elif endpoint is not None:
        found.append(Finding("log-probabilities", f"the {endpoint.dialect.top_logprobs} likeliest tokens"))
    else:
        found.append(Finding("log-probabilities", "yes"))
    if able.typed_questions:
        return found
    labels = able.token_menus or (endpoint is not None and endpoint.dialect.choices)
    constraints = [name for name, has in (("JSON schema", able.json_schema), ("labels", labels)) if has]
    read = "" if able.json_schema else "asked for in words, and checked when read"
    return [
        *found,
        Finding("constraints", " and ".join(constraints) or "none", read),
        Finding("seeds", "repeat an answer")
        if able.seeds
        else Finding("seeds", "no effect", "votes cannot be repeated"),
    ]


def _verdict_findings(verdict: JudgeResult | CallFailure, taken: float) -> list[Finding]:
    time_taken = Finding("time for a verdict", format_seconds(taken))
    if isinstance(verdict, CallFailure):
        return [time_taken, Finding("easy question", "no verdict", "nothing: choose another model or prompt template")]
    said = "yes" if verdict.score >= 0.5 else "no"
    wrong = "" if said == "yes" else "yes would be right: measure this judge before you use it"
    probability = "" if verdict.probability is None else f", P(yes) {verdict.probability:.2f}"
    found = [time_taken, Finding("easy question", said + probability, wrong)]
    if verdict.choice_mass is not None:
        low = verdict.choice_mass < _LOW_MASS
        remedy = "it tends to say something else: try another prompt template or model" if low else ""
        found.append(Finding("mass of yes and no", f"{verdict.choice_mass:.2f}", remedy))
    return found


def _summary(name: str, identity: EngineIdentity, verdict: JudgeResult | CallFailure, *, thinks: bool) -> str:
    if isinstance(verdict, CallFailure):
        return f"{name} cannot judge: {identity.model} gave no verdict on an easy question ({verdict.detail})."
    how = "without probabilities" if verdict.probability is None else "with probabilities"
    condition = " if requests set judging.think_tokens, because it thinks before it answers" if thinks else ""
    return f"{name} can judge: {identity.model} answers {how}{condition}."


def report(url: str, as_json: bool) -> None:
    """Run `adjudge doctor URL`. The key is that of ADJUDGE_ENGINE_API_KEY."""
    settings = Settings()
    engine_url = f"openai+{url}" if url.startswith(("http://", "https://")) else url
    engine = build_engine(settings, engine_url)
    has_key = settings.engine_api_key is not None
    found = asyncio.run(diagnose(engine, url, has_key=has_key, min_choice_mass=settings.min_choice_mass))
    if as_json:
        print_json(asdict(found))
    else:
        width = min(WIDTH, out.width)
        out.print(escape(found.summary), width=width)
        table = Table("part", "found", "what is done about it", title_justify="left", width=width)
        for finding in found.findings:
            table.add_row(*map(escape, (finding.part, finding.found, finding.done)))
        if found.findings:
            out.print(table)
    raise typer.Exit(0 if found.can_judge else 1)


class CheckWarning(str):
    """A warning: what works but should be changed, and how."""

    __slots__ = ()


async def queue(settings: Settings) -> str:
    """Check that the broker answers, and that it neither evicts messages nor refuses them when its memory is full."""
    check_queue(settings)
    if settings.queue_url == "memory://":
        return "memory://: the service runs operations itself"
    address = urlsplit(settings.queue_url)
    where = f"{address.hostname}:{address.port or 6379}{address.path}"
    connection = Redis.from_url(
        settings.queue_url, socket_connect_timeout=REDIS_TIMEOUT_S, socket_timeout=REDIS_TIMEOUT_S
    )
    try:
        memory = await connection.info("memory")
        waiting = int(await connection.llen(QUEUE))
    except RedisError as error:
        raise RuntimeError(f"{where} cannot be used: {error}. Check ADJUDGE_QUEUE_URL, or start the server") from error
    finally:
        await connection.aclose()
    policy = memory.get("maxmemory_policy", "noeviction")
    remedy = "Run CONFIG SET maxmemory-policy volatile-lru there, or use a separate server for the queue"
    if policy.startswith("allkeys"):
        return CheckWarning(
            f"{where} may evict any key when its memory is full ({policy}); if it evicts queued chunks, operations are "
            f"delayed. {remedy}"
        )
    cache = urlsplit(settings.cache_url)
    is_shared = (cache.hostname, cache.port or 6379) == (address.hostname, address.port or 6379)
    if policy == "noeviction" and memory.get("maxmemory") and is_shared:
        return CheckWarning(
            f"{where} holds the verdict cache too and evicts nothing (noeviction); once verdicts fill its memory, no "
            f"chunk can be queued. {remedy}"
        )
    return f"{where}, {waiting} queued"


async def operations(settings: Settings) -> str:
    """Check that operations can be read and progress, and that the model that writes rubrics, if set, answers."""
    now = datetime.now(UTC)
    async with open_store(SQLOperations, settings) as store:
        try:
            counts = await store.counts(now)
        except ConnectionError as error:
            raise RuntimeError(f"the store cannot be read: {error}. Check ADJUDGE_DATABASE_URL") from error
    writer = await _writer(settings)
    waited = 0 if counts.oldest_due_at is None else int((now - counts.oldest_due_at).total_seconds())
    waiting = sum(number for (_, state), number in counts.chunks.items() if state == "queued")
    if waited > MAX_CHUNK_WAIT_S:
        return CheckWarning(
            f"{waiting} chunks are waiting, the oldest for {waited // 60} minutes; start more workers, or see "
            f"docs/runbooks/operations-stuck.md if none are finished; {writer}"
        )
    return f"{waiting} chunks are waiting; {writer}"


async def _writer(settings: Settings) -> str:
    if settings.writer_url is None:
        return "no model writes rubrics (ADJUDGE_WRITER_URL is not set)"
    engine = build_engine(settings, settings.writer_url)
    try:
        return f"{(await engine.start()).model} writes rubrics"
    except EngineStartError as error:
        raise RuntimeError(f"the model that writes rubrics: {error}. Check ADJUDGE_WRITER_URL") from error
    finally:
        await engine.close()


async def keys(settings: Settings) -> str:
    """Check that a usable key exists if keys are required."""
    if not keys_required(settings):
        return f"not required on {settings.host}"
    if not await has_usable_key(settings):
        raise RuntimeError(
            f"on {settings.host} every request needs a key, and there is no usable one; create one with: "
            "adjudge keys create --scope score"
        )
    return f"required on {settings.host}, and a usable one exists"


async def judges(settings: Settings) -> str:
    """Check that all judges in ADJUDGE_JUDGES answer, speak this protocol version, and are identical under one name."""
    found, problems = [], []
    for name, links in judge_links(settings).items():
        seen: dict[str, str] = {}
        for link in links:
            try:
                model, digest = await _judge_process(link)
                seen.setdefault(digest, link.url)
                found.append(f"{name} at {link.url}: {model}")
            except (EngineStartError, JudgeUnavailable) as error:
                problems.append(str(error))
            finally:
                await link.close()
        if len(seen) > 1:
            problems.append(
                f"the judge processes of {name!r} differ in model, weights or server: {', '.join(seen.values())}. Only "
                "those identical to the first that answers are used; start all of them with the same model"
            )
    if problems:
        raise RuntimeError("; ".join(problems))
    return "; ".join(found)


async def _judge_process(link: JudgeClient) -> tuple[str, str]:
    handshake = await link.handshake()
    if handshake.identity is None or not handshake.ready:
        raise JudgeUnavailable(
            f"the judge at {link.url} is not ready yet; wait until its model is loaded, or see its log"
        )
    return handshake.identity.model, identity_digest(handshake.identity)


async def _python(settings: Settings) -> str:
    return sys.version.split()[0]


async def _store(settings: Settings) -> str:
    async with open_store(RubricStore, settings) as store:
        if not await store.ready():
            raise RuntimeError("the store cannot be read; check ADJUDGE_DATABASE_URL")
    return settings.store_url.partition("@")[2] or settings.store_url


async def _cache(settings: Settings) -> str:
    cache = cache_from_url(settings.cache_url)
    try:
        if not await cache.ready():
            raise RuntimeError("the cache cannot be reached; check ADJUDGE_CACHE_URL")
    finally:
        await cache.close()
    return settings.cache_url.rpartition("@")[2]


async def _secret(settings: Settings) -> str:
    settings.signing_key()
    return "ADJUDGE_SIGNING_SECRET" if settings.signing_secret else f"in {settings.data_dir}"


async def _judge(settings: Settings) -> str:
    """Load the engine and ask it an easy question."""
    engine = build_engine(settings)
    try:
        identity = await engine.start()
        if identity.asks:
            return f"{identity.model}: a probe, which answers the question that it was fitted to"
        verdict = await ask_easily(engine, min_choice_mass=settings.min_choice_mass)
        if not isinstance(verdict, JudgeResult):
            raise RuntimeError(f"the model gave no verdict: {verdict.detail}")
        if verdict.probability is None:
            return f"{identity.model}: answers {'yes' if verdict.score else 'no'}, without probabilities"
        mass = "unknown" if verdict.choice_mass is None else f"{verdict.choice_mass:.2f}"
        return f"{identity.model}: P(yes) {verdict.probability:.2f}, choice mass {mass}"
    finally:
        await engine.close()


COMMON_CHECKS: dict[str, Check] = {
    "python": _python,
    "rubric store": _store,
    "verdict cache": _cache,
    "signing secret": _secret,
    "keys": keys,
    "queue": queue,
    "operations": operations,
}
LOCAL_CHECKS: dict[str, Check] = {"judge": _judge}
REMOTE_CHECKS: dict[str, Check] = {"judges": judges}
