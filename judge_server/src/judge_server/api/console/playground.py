"""The playground: judge pasted responses with a rubric, and see prompts, replies and rewards."""

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, get_args

from pydantic import ValidationError
from starlette.responses import Response

from judge_server.api.console.forms import Form
from judge_server.api.console.groups import HeatStep, Segment, segments, shade
from judge_server.api.console.rendering import PageRouter, Visit, address
from judge_server.api.console.responses import TextPart, outcome_of
from judge_server.api.console.rubrics import MANY_CRITERIA
from judge_server.api.http.problems import INTERNAL_ERROR_DETAIL
from judge_server.api.scoring import prepare
from judge_server.errors import ServiceError, invalid_field, invalid_request
from judge_server.ports import RubricTexts
from judge_server.scheduling.time_sharing import LARGE_CHARACTERS, run_in_thread, run_inline_or_in_thread
from judge_server.scoring.explanation import Explanation, RecordedReward, explain
from judge_server.scoring.rubrics import find_rubric
from judge_server.scoring.scorer import JudgedVerdict, StreamPart
from trainer_client.rewards import ResponseFacts
from trainer_client.steps import WHOLE_RESPONSE, has_format
from trainer_client.text.thinking import judged_content, opened_by
from trainer_client.wire import (
    DEFAULT_JUDGE,
    Criterion,
    FailurePolicy,
    GroupRewards,
    JudgingProtocol,
    ResponseReward,
    RewardMode,
    RewardRequest,
    RewardSummary,
    as_response,
    groups,
)
from trainer_client.wire.base import NotStrictJsonError, strict_json
from trainer_client.wire.ledger import RewardRules
from trainer_client.wire.problems import field_errors
from trainer_client.wire.rewards import NEEDS_NO_RUBRIC, PROTOCOLS_FOR

RUN = "playground"
"""The run under which the playground's requests are recorded."""

_GROUP = "playground"
_MAX_RUBRIC_CHARACTERS = 256 * 1024
_DEADLINE_S = 60.0
_FIELD_CHARACTERS = 300
_MATERIAL = ("ground_truth", "reference_answer", "grounding")


@dataclass(frozen=True, slots=True)
class PlaygroundForm:
    """What was filled in. A rubric that was written takes the place of one that was picked."""

    prompt: str = ""
    responses: Sequence[str] = ("", "")
    rubric: str = ""
    rubric_text: str = ""
    mode: str = "weighted_mean"
    protocol: str = ""
    judge: str = DEFAULT_JUDGE
    on_failure: str = "null"
    rationale: bool = False
    soft: bool = False
    deadline_s: str = "60"
    material: dict[str, str] = field(default_factory=lambda: dict.fromkeys(_MATERIAL, ""))

    @classmethod
    def read(cls, form: Form) -> "PlaygroundForm":
        """The submitted form; responses that were left empty do not count."""
        responses = [text for text in form.texts("response") if text.strip()]
        chosen = {name: form.text(name).strip() for name in ("rubric", "mode", "protocol", "judge", "on_failure")}
        return cls(
            prompt=form.text("prompt"),
            responses=responses or [""],
            rubric_text=form.text("rubric_text") if form.text("rubric_text").strip() else "",
            rationale=bool(form.text("rationale")),
            soft=bool(form.text("soft")),
            deadline_s=form.text("deadline_s").strip() or "60",
            material={name: form.text(name) for name in _MATERIAL},
            **{name: value for name, value in chosen.items() if value},
        )

    @property
    def is_large(self) -> bool:
        """Whether the form takes long to write: by the characters of all texts, and those of a field around each."""
        texts = (self.prompt, self.rubric_text, *self.responses, *self.material.values())
        return sum(map(len, texts)) + _FIELD_CHARACTERS * len(texts) > LARGE_CHARACTERS

    def request(self, texts: RubricTexts | None) -> RewardRequest:
        """The scoring request. Reading a rubric may take a while: call it in a thread.

        Raises:
            InvalidRequest: a field is missing or cannot be used; the errors name it.
        """
        if not any(text.strip() for text in self.responses):
            raise invalid_field("response", "write at least one response")
        prompt, responses = self._conversation()
        group: dict[str, Any] = {"id": _GROUP, "prompt": prompt, "responses": responses}
        group |= {name: text for name, text in self.material.items() if text.strip()}
        judging = {"protocol": self.protocol or None, "rationale": self.rationale or None}
        chosen: dict[str, Any] = {
            "rubric": self._rubric(texts) or None,
            "judging": {name: value for name, value in judging.items() if value} or None,
            "judge": self.judge if self.judge != DEFAULT_JUDGE else None,
            "on_failure": self.on_failure if self.on_failure != "null" else None,
            "deadline_s": deadline if (deadline := _number("deadline_s", self.deadline_s)) != _DEADLINE_S else None,
        }
        reward = {"mode": self.mode} | ({"use": "probability"} if self.soft else {})
        fields = {"run": RUN, "reward": reward, "groups": [group]}
        fields |= {name: value for name, value in chosen.items() if value is not None}
        try:
            return RewardRequest.model_validate(fields)
        except ValidationError as error:
            raise invalid_request(field_errors(error.errors())) from None

    def _conversation(self) -> tuple[Any, list[Any]]:
        """The prompt and the responses, each as text or messages.

        Without a prompt, a response that is a whole conversation is divided at the policy's last turn.
        """
        responses = [_text_or_messages(text) for text in self.responses if text.strip()]
        if self.prompt.strip():
            return _text_or_messages(self.prompt), responses
        if len(responses) == 1 and isinstance(responses[0], list):
            messages = responses[0]
            ends = [n for n, one in enumerate(messages) if one.get("role") not in ("assistant", "tool")]
            if ends and ends[-1] + 1 < len(messages):
                return messages[: ends[-1] + 1], [messages[ends[-1] + 1 :]]
        raise invalid_field("prompt", "write the prompt, or paste a whole conversation as the only response")

    def _rubric(self, texts: RubricTexts | None) -> str | dict[str, Any]:
        if not self.rubric_text:
            return self.rubric
        if len(self.rubric_text) > _MAX_RUBRIC_CHARACTERS:
            raise invalid_field("rubric_text", f"at most {_MAX_RUBRIC_CHARACTERS:,} characters are allowed")
        if texts is None:
            raise invalid_field("rubric_text", "this process reads no rubric files; name a published rubric instead")
        read = texts.read(self.rubric_text.encode(), "rubric.yaml")
        if len(read.rubrics) != 1:
            problems = "\n".join(map(str, read.problems))
            raise invalid_field("rubric_text", problems or f"write one rubric; this text has {len(read.rubrics):,}")
        return read.rubrics[0].document.content.model_dump(mode="json", exclude_unset=True)


EXAMPLE = PlaygroundForm(
    prompt="A train covers 120 km in 1.5 hours. What is its average speed?",
    responses=("120 km / 1.5 h = 80 km/h.", "120 * 1.5 = 180, so 180 km/h."),
    rubric_text="""criteria:
  - id: method
    kind: process
    description: The response divides the distance by the time.
  - id: answer
    kind: factual
    weight: 3
    description: The final answer is 80 km/h.
""",
    mode="factual_override",
)
"""A request to try."""


def _text_or_messages(text: str) -> Any:
    """The messages of a conversation if the text is JSON of some, otherwise the text."""
    if text.lstrip().startswith("["):
        try:
            value = strict_json(text)
        except NotStrictJsonError:
            return text
        if value and isinstance(value, list) and all(isinstance(one, dict) and "role" in one for one in value):
            return value
    return text


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise invalid_field(name, f"{text[:40]!r} is not a number, such as 60") from None


@dataclass(frozen=True, slots=True)
class Snippet:
    """The request in a language to copy."""

    title: str
    code: str


def snippets(request: RewardRequest, base_url: str) -> tuple[Snippet, ...]:
    """A request for curl, for the Python client, and as the reward of a trainer of TRL."""
    body = request.model_dump(mode="json", exclude_unset=True, exclude={"run"})
    code = _on_lines(body, partial(json.dumps, ensure_ascii=False))
    (group,) = body["groups"]
    rubric, mode = body.get("rubric"), body["reward"].pop("mode")
    options = body["reward"] | body.get("judging", {})
    options |= {name: body[name] for name in ("judge", "on_failure", "deadline_s") if name in body}
    keywords = "".join(f", {name}={value!r}" for name, value in options.items())
    row = {name: value for name, value in group.items() if name not in ("id", "responses")}
    return (
        Snippet(
            "curl",
            f"curl -s {base_url}/v1/rewards -H 'Content-Type: application/json' \\\n"
            f"  -H \"Authorization: Bearer $ADJUDGE_API_KEY\" -d @- <<'JSON'\n{code}\nJSON\n",
        ),
        Snippet(
            "Python",
            f"from trainer_client import Client\n\n"
            f"group = {_literal(group)}\n"
            f"rubric = {_literal(rubric)}\n"
            f'with Client("{base_url}") as client:\n'
            f"    answer = client.rewards([group], rubric, {mode!r}{keywords})\n"
            "for response in answer.groups[0].responses:\n"
            "    print(response.reward, [(verdict.criterion, verdict.score) for verdict in response.verdicts])\n",
        ),
        Snippet(
            "TRL",
            "from datasets import Dataset\n"
            "from trl import GRPOConfig, GRPOTrainer\n"
            "from trainer_client.trl import RubricReward\n\n"
            f"rubric = {_literal(rubric)}\n"
            f'reward = RubricReward("{base_url}", rubric, mode={mode!r}{keywords})\n'
            f"dataset = Dataset.from_list([{_literal(row)}])\n"
            "trainer = GRPOTrainer(\n"
            '    model="Qwen/Qwen2.5-1.5B-Instruct",\n'
            "    reward_funcs=reward,\n"
            '    args=GRPOConfig("out"),\n'
            "    train_dataset=dataset,\n"
            ")\n"
            "trainer.train()\n",
        ),
    )


_LINE = 100
_LEVELS_ON_LINES = 5
"""Levels of lists and objects of which each entry has a line of its own; deeper ones stay on one line."""


def _literal(value: Any) -> str:
    return _on_lines(value, repr)


def _on_lines(value: Any, literal: Callable[[Any], str], level: int = 0) -> str:
    """Write a JSON value as code, in time linear in its size; what fits into a line stays in one."""
    whole = literal(value) if not isinstance(value, list | dict) or level == _LEVELS_ON_LINES else None
    if whole is None and len(value) <= _LINE // 2 and len(short := literal(value)) <= _LINE:
        whole = short
    if whole is not None:
        return whole
    begin, end = "{}" if isinstance(value, dict) else "[]"
    parts = (
        [f"{literal(name)}: {_on_lines(one, literal, level + 1)}" for name, one in value.items()]
        if isinstance(value, dict)
        else [_on_lines(one, literal, level + 1) for one in value]
    )
    margin = "\n" + "    " * level
    return f"{begin}{margin}    " + f",{margin}    ".join(parts) + f"{margin}{end}"


class JudgedResponse(NamedTuple):
    """A response of the playground, judged: its place in the request, its answer, its text in parts, and why.

    `messages` are those of a response without steps that was sent as messages, as JSON; None for any other.
    """

    number: int
    answer: ResponseReward
    parts: list[Segment]
    explanation: Explanation
    messages: str | None = None


def judged_responses(
    request: RewardRequest, rewarded: GroupRewards, criteria: Sequence[Criterion] | None
) -> list[JudgedResponse]:
    """The responses of the request's group with their verdicts and rewards."""
    shown = []
    for n, (given, answer) in enumerate(zip(request.groups[0].responses, rewarded.responses, strict=True)):
        response = as_response(given)
        opens = opened_by(request.groups[0].prompt, request.judging.prompt_opens)
        judged = judged_content(response, request.judging.reasoning, opens)
        keeps_format = request.judging.steps != "headings" or has_format(judged.text)
        rules, facts = RewardRules.of(request, None), ResponseFacts(keeps_format, response.tokens, response.stopped)
        recorded = RecordedReward(rules, answer.reward, answer.status, facts, declared=answer.declared_reward)
        explanation = explain(recorded, criteria, answer.verdicts)
        messages = None
        if not isinstance(response.text, str) and not any(step.number for step in answer.steps):
            messages = json.dumps([message.model_dump(mode="json") for message in response.text])
        shown.append(JudgedResponse(n + 1, answer, _parts(response, judged.text, answer), explanation, messages))
    return shown


def _parts(response: groups.Response, judged: str, answer: ResponseReward) -> list[Segment]:
    """The text, divided at the steps; spans are those of a text as sent, or of the judged text of messages."""
    text = response.text if isinstance(response.text, str) else judged
    steps = []
    for one in answer.steps:
        if one.number != WHOLE_RESPONSE:
            delta = one.delta or 0.0
            style = shade(delta, max(1.0, abs(delta)))
            steps.append(HeatStep(one.number, one.start, one.end, one.delta, None, style))
    return segments(TextPart("", text), steps)


log = logging.getLogger("adjudge")

router = PageRouter()

REFUSAL_WAIT_S = 0.5
"""How long the playground waits for a refusal before its page begins, so that a refused request has the status of its
error. A later refusal is shown on the page."""

_SUGGESTED_RUBRICS = 100


@router.get("/playground", scope="score")
async def playground(visit: Visit) -> Response:
    """The empty form, one with the rubric that the address names, or an example to try."""
    form = EXAMPLE if visit.text("example") else PlaygroundForm(rubric=visit.text("rubric"))
    return await _page(visit, form)


@router.get("/playground/response", scope="score")
async def another_response(visit: Visit) -> Response:
    """A field for one more response."""
    return visit.page("playground_response.html.jinja", text="")


@router.post("/playground", scope="score")
async def judge(visit: Visit, form: Form) -> Response:
    """Judge what was filled in. A request that is refused gets the form again, with the reason."""
    service = visit.service
    filled = await run_in_thread(PlaygroundForm.read, form)
    try:
        body = await run_in_thread(filled.request, service.rubric_texts)
        address_here = f"{visit.request.url.scheme}://{visit.request.url.netloc}"
        code = await run_inline_or_in_thread(filled.is_large, snippets, body, address_here)
        scorer, ids = await prepare(visit.request, body)
        criteria = await _criteria(visit, body)
        choices = await _choices(visit)
        record_id = int(time.time() * 1e6).to_bytes(8, "big") + secrets.token_bytes(8)
        stream = scorer.stream(body, **ids | {"record_id": record_id}, each_verdict=True)
        first = asyncio.ensure_future(anext(stream))
        done, _ = await asyncio.wait({first}, timeout=REFUSAL_WAIT_S)
        if done:
            first.result()
    except ServiceError as error:
        return await _page(visit, filled, error)
    large = filled.is_large or len(criteria or ()) > MANY_CRITERIA
    recorded = address("group", run=RUN, request=record_id.hex(), group=body.groups[0].id)
    group_href = "" if service.recorder is None else recorded
    parts = _html(visit, body, _begun(first, stream), criteria=criteria, group_href=group_href, large=large)
    try:
        return await run_inline_or_in_thread(
            filled.is_large, visit.console.streamed_page, visit.request, "playground.html.jinja", parts, **choices,
            form=filled, error=None, request_body=body, snippets=code, criteria=criteria,
        )  # fmt: skip
    except BaseException:
        first.cancel()
        raise


async def _begun(
    first: "asyncio.Future[StreamPart]", stream: AsyncGenerator[StreamPart, None]
) -> AsyncGenerator[StreamPart, None]:
    """A stream whose first part is already asked for. Closing it cancels the rest."""
    try:
        async with aclosing(stream):
            yield await first
            async for part in stream:
                yield part
    finally:
        first.cancel()
        with suppress(asyncio.CancelledError, ServiceError):
            await asyncio.gather(first, return_exceptions=True)


async def _html(
    visit: Visit,
    body: RewardRequest,
    stream: AsyncGenerator[StreamPart, None],
    *,
    criteria: Sequence[Criterion] | None,
    group_href: str,
    large: bool,
) -> AsyncIterator[str]:
    """The parts of the page as they are known. When the browser goes away, the remaining work is cancelled."""
    began = time.monotonic()
    rewarded: GroupRewards | None = None
    try:
        async with aclosing(stream):
            async for part in stream:
                after_s = time.monotonic() - began
                match part:
                    case JudgedVerdict():
                        yield visit.console.render(
                            "playground_verdict.html.jinja", number=part.response + 1, verdict=part.verdict,
                            outcome=outcome_of(part.verdict), after_s=after_s,
                        )  # fmt: skip
                    case GroupRewards():
                        rewarded = part
                    case RewardSummary():
                        assert rewarded is not None
                        shown = await run_inline_or_in_thread(large, judged_responses, body, rewarded, criteria)
                        yield await run_inline_or_in_thread(
                            large, visit.console.render, "playground_results.html.jinja", responses=shown,
                            criteria=criteria, summary=part, after_s=after_s, group_href=group_href,
                        )  # fmt: skip
    except ServiceError as error:
        yield visit.console.render("playground_problem.html.jinja", error=error)
    except Exception:
        log.exception("request %s failed", visit.request.state.request_id)
        yield visit.console.render("playground_problem.html.jinja", error=ServiceError(INTERNAL_ERROR_DETAIL))


async def _criteria(visit: Visit, body: RewardRequest) -> Sequence[Criterion] | None:
    """The criteria of the request's rubric; empty for a mode that needs none."""
    if body.reward.mode in NEEDS_NO_RUBRIC or body.reward.mode == "ranking" or body.rubric is None:
        return ()
    if not isinstance(body.rubric, str):
        return body.rubric.criteria
    return (await find_rubric(visit.service.rubrics, visit.project, body.rubric)).criteria


async def _page(visit: Visit, form: PlaygroundForm, error: ServiceError | None = None) -> Response:
    shown = replace(form, responses=[*form.responses, ""]) if error is None and len(form.responses) < 2 else form
    response = await run_inline_or_in_thread(
        form.is_large, visit.page, "playground.html.jinja", error.status if error else 200,
        **await _choices(visit),
        form=shown, error=error, request_body=None, snippets=(), criteria=(), stream="",
    )  # fmt: skip
    if error is not None and error.retry_after_s is not None:
        response.headers["Retry-After"] = str(error.retry_after_s)
    return response


async def _choices(visit: Visit) -> dict[str, object]:
    """What the form's fields offer."""
    rubrics = visit.service.rubrics
    page = await rubrics.list(visit.project, prefix="", tag=None, text="", after=None, limit=_SUGGESTED_RUBRICS)
    return {
        "rubrics": [one.name for one in page.rubrics if not one.retired],
        "modes": get_args(RewardMode),
        "protocols": get_args(JudgingProtocol),
        "protocols_for": PROTOCOLS_FOR,
        "judges": visit.service.names,
        "policies": get_args(FailurePolicy),
    }
