"""`adjudge doctor URL`: what was found out about a judge's engine, and what is done about each gap."""

import asyncio
import time
from dataclasses import asdict, dataclass, replace

import typer
from rich.markup import escape
from rich.table import Table

from adjudge_services.cli.output import exit_with_error, format_seconds, out, pluralize, print_json
from adjudge_services.judges import build_engine
from adjudge_services.settings import Settings
from judge_server.engines.openai.engine import OpenAIEngine
from judge_server.engines.openai.http import EndpointError
from judge_server.engines.openai.probe import Endpoint
from judge_server.errors import EngineStartError
from judge_server.judging.questions import YES_NO
from judge_server.judging.replies import MIN_CHOICE_MASS, read_yes_no
from judge_server.ports import Batch, Call, CallFailure, Engine, EngineIdentity, JudgeResult, TokenChoice

THINK_TOKENS = 1024
"""The tokens that a model which thinks before each answer gets for the easy question."""

WIDTH = 80
_LOW_MASS = 0.5
_CHOICE = TokenChoice(YES_NO)
_QUESTION = Call("Is the word 'apple' in this list? Answer yes or no.", _CHOICE)


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


async def ask_easily(
    engine: Engine, *, think_tokens: int = 0, min_choice_mass: float = MIN_CHOICE_MASS
) -> JudgeResult | CallFailure:
    """Ask an engine an easy question, whose answer is yes, and return the verdict."""
    call = replace(_QUESTION, think_tokens=think_tokens)
    batch = Batch("Answer with one word: yes or no.", "apple, pear, plum\n", (call,))
    outcome = await anext(outcome async for _, outcome in engine.answer(batch))
    if isinstance(outcome, CallFailure):
        return outcome
    return read_yes_no(_CHOICE, outcome, min_choice_mass=min_choice_mass)


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
    try:
        engine = build_engine(settings, engine_url)
    except ValueError as error:
        exit_with_error(str(error))
    has_key = settings.engine_api_key is not None
    found = asyncio.run(diagnose(engine, url, has_key=has_key, min_choice_mass=settings.min_choice_mass))
    if as_json:
        print_json(asdict(found))
    else:
        width = min(WIDTH, out.width)
        out.print(escape(found.summary), highlight=False, width=width)
        table = Table("part", "found", "what is done about it", title_justify="left", width=width)
        for finding in found.findings:
            table.add_row(*map(escape, (finding.part, finding.found, finding.done)))
        if found.findings:
            out.print(table)
    raise typer.Exit(0 if found.can_judge else 1)
