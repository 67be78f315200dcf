"""The page of a group: its responses side by side, their verdicts, and the advantages of each method."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from markupsafe import Markup, escape
from starlette.responses import Response

from judge_server.api.console.charts import signed
from judge_server.api.console.labels import GroupLabels
from judge_server.api.console.rendering import PageRouter, Row, Table, Value, Visit, csv_response
from judge_server.api.console.responses import (
    TEXT_LIMIT,
    ShownResponse,
    TextPart,
    group_address,
    outcome_of,
    show_records,
)
from judge_server.errors import NotFound
from judge_server.ports import LedgerReader
from judge_server.scoring.recorded import storable_text
from judge_server.scoring.rewards import effective_weights, step_rewards
from rubric_store.ledger.rows import LabelFilter, ResponseFilter
from trainer_client.dropout import read_sample
from trainer_client.ranking import compared_with
from trainer_client.steps import WHOLE_RESPONSE
from trainer_client.wire import Criterion, Verdict
from trainer_client.wire.rewards import RewardRules

NUMBER, REWARD = "number", "reward"
"""The orders of responses, beside that by the verdict on a criterion (`c3` for the fourth one)."""

RUBRIC, DIFFERING, RATE = "rubric", "differing", "rate"
"""The orders of criteria."""


class MatrixRow(NamedTuple):
    """A criterion in the matrix: its place in `Group.names`, its id, itself if the rubric has it, and its verdicts.

    `differs` tells whether the verdicts on it differ between the responses, or between the two that are compared. A
    verdict is None if a response was not judged by the criterion.
    """

    place: int
    name: str
    criterion: Criterion | None
    verdicts: tuple[Verdict | None, ...]
    differs: bool


class Group(NamedTuple):
    """A group, with a page of its responses.

    `next_href` is the page with further responses, empty if there are none. `whole` tells whether all of its responses
    are here. `prompt` and `grounding` are texts as JSON, None if the ledger does not have them.
    """

    responses: tuple[ShownResponse, ...]
    prompt: str | None
    grounding: str | None
    next_href: str = ""
    whole: bool = True
    gathered: bool = False

    @property
    def names(self) -> list[str]:
        """The ids that verdicts have, in the order of the rubric; of a ranking, in that of the opponents."""
        names = list(dict.fromkeys(name for one in self.responses for name in one.by_criterion))
        if self.responses[0].record.request.mode == "ranking":
            names.sort(key=lambda name: compared_with(name) or 0)
        return names

    @property
    def has_declared(self) -> bool:
        """Whether rewards under the rubric's own weights stand beside those that were answered."""
        return any(one.declared_reward is not None for one in self.responses)

    @property
    def weights(self) -> Mapping[str, float]:
        """The weights that rewarded the group, by criterion; none if those of the rubric did.

        None either if the group is not all here, or if the request has several groups of its id.
        """
        one, numbers = self.responses[0], {each.number for each in self.responses}
        alone = len(numbers) == len(self.responses) and not self.gathered
        if not self.whole or not alone or one.rules is None or not one.criteria:
            return {}
        with suppress(ValueError):  # a verdict is missing
            return effective_weights(one.criteria, [each.verdicts for each in self.responses], one.rules.reward)
        return {}

    @property
    def table(self) -> Table:
        """The matrix as a table: a row per verdict."""
        headings = (
            "response", "reward", "criterion", "weight", "status", "score", "probability", "raw probability", "failure",
        )  # fmt: skip
        used, both = self.weights, self.has_declared
        rows = []
        for one in self.responses:
            weights = {criterion.id: criterion.weight for criterion in one.criteria or ()}
            for verdict in one.verdicts:
                failure = None if verdict.failure is None else f"{verdict.failure.kind}: {verdict.failure.detail}"
                judged = (verdict.status, verdict.score, verdict.probability, verdict.raw_probability, failure)
                cells = (one.number, one.reward, verdict.criterion, weights.get(verdict.criterion), *judged)
                rows.append(Row((*cells, one.declared_reward, used.get(verdict.criterion)) if both else cells))
        return Table((*headings, "declared reward", "weight used") if both else headings, tuple(rows))


class GroupView:
    """How a group is shown.

    Args:
        group: the group.
        order: the order of responses; unknown ones are that by number.
        rows: the order of criteria; unknown ones are that of the rubric.
        pair: the numbers of two responses to read side by side; others are ignored.
        whole: whether texts are shown whole.
    """

    def __init__(
        self, group: Group, *, order: str = "", rows: str = "", pair: tuple[int | None, int | None] = (None, None),
        whole: bool = False,
    ) -> None:  # fmt: skip
        self.group, self.whole = group, whole
        self.order = order if order in (REWARD, *(f"c{place}" for place in range(len(group.names)))) else NUMBER
        self.rows = rows if rows in (DIFFERING, RATE) else RUBRIC
        numbered = {one.number: one for one in group.responses}
        chosen = [numbered[number] for number in pair if number in numbered]
        self.pair: tuple[ShownResponse, ...] = tuple(chosen) if len(chosen) == 2 and chosen[0] != chosen[1] else ()
        """The two responses to read side by side; empty without them."""

    @property
    def responses(self) -> tuple[ShownResponse, ...]:
        """The responses of the matrix, in order."""
        responses = self.group.responses
        if self.order == NUMBER:
            return responses
        if self.order == REWARD:
            return tuple(sorted(responses, key=lambda one: _descending(one.reward)))
        name = self.group.names[int(self.order.removeprefix("c"))]
        return tuple(sorted(responses, key=lambda one: _descending(_strength(one.by_criterion.get(name)))))

    @property
    def shown(self) -> tuple[ShownResponse, ...]:
        """The responses whose texts are shown."""
        return self.pair or self.responses

    @property
    def matrix(self) -> tuple[MatrixRow, ...]:
        """A row for each criterion, in order."""
        responses, rows = self.responses, []
        criteria = {one.id: one for one in self.group.responses[0].criteria or ()}
        for place, name in enumerate(self.group.names):
            verdicts = tuple([one.by_criterion.get(name) for one in responses])
            compared = [one.by_criterion.get(name) for one in self.pair] if self.pair else verdicts
            outcomes = {outcome_of(verdict) for verdict in compared if verdict is not None}
            rows.append(MatrixRow(place, name, criteria.get(name), verdicts, len(outcomes) > 1))
        if self.rows == DIFFERING:
            rows.sort(key=lambda row: not row.differs)
        elif self.rows == RATE:
            rows.sort(key=lambda row: _rate(row.verdicts))
        return tuple(rows)

    def href(self, **changed: Value) -> str:
        """The address of this page with other settings."""
        left, right = (one.number for one in self.pair) if self.pair else (None, None)
        settings: dict[str, Value] = {
            "order": None if self.order == NUMBER else self.order,
            "rows": None if self.rows == RUBRIC else self.rows,
            "left": left,
            "right": right,
            "whole": 1 if self.whole else None,
        }
        return group_address(self.group.responses[0].record.response, **(settings | changed))


def _strength(verdict: Verdict | None) -> float | None:
    """How far a verdict says yes: its score, and among equal scores its probability."""
    if verdict is None or verdict.score is None:
        return None
    return verdict.score + (0.0 if verdict.probability is None else verdict.probability / 1000)


def _descending(value: float | None) -> tuple[bool, float]:
    return value is None, -(value or 0.0)


def _rate(verdicts: Sequence[Verdict | None]) -> float:
    """The share of passed verdicts; above 1 without any, so that such criteria come last."""
    scores = [verdict.score for verdict in verdicts if verdict is not None and verdict.score is not None]
    return sum(score >= 0.5 for score in scores) / len(scores) if scores else 2.0


async def read_group(ledger: LedgerReader, wanted: ResponseFilter) -> Group | None:
    """A page of a group's responses; None if the group does not exist."""
    records = await ledger.responses(wanted._replace(limit=wanted.limit + 1))
    if not records:
        return None
    gathered = False
    if len(records) == 1 and wanted.after is None:
        step, prompt = records[0].request.step, records[0].response.prompt
        others = wanted._replace(request=None, first=step, last=step, limit=wanted.limit + 1)
        same = [
            one for one in await ledger.responses(others) if (one.request.step, one.response.prompt) == (step, prompt)
        ]
        gathered = len(same) > 1
        records = same if gathered else records
    shown = records[: wanted.limit]
    row, last = shown[0].response, shown[-1].response
    also = [digest for digest in (row.prompt, row.grounding) if digest is not None]
    responses, texts = await show_records(ledger, shown, also=also)
    if gathered:  # each has the number 1 in its own request
        responses = [replace(one, number=number) for number, one in enumerate(responses, 1)]
    more = len(records) > len(shown)
    return Group(
        tuple(responses),
        texts.get(row.prompt),
        None if row.grounding is None else texts.get(row.grounding),
        group_address(last, after=last.place) if more and not gathered else "",
        whole=not more and wanted.after is None,
        gathered=gathered,
    )


LEVELS = 5
"""The shades of a colour; the largest advantage of a group has the darkest one."""


class HeatStep(NamedTuple):
    """A step: its number, its span in code points, its delta (None without one) and the advantage of its tokens.

    `style` is the class of its colour: `p1` to `p5` for positive values, `n1` to `n5` for negative ones, or `z`. The
    colour is that of the advantage, or of the delta where there is none.
    """

    number: int
    start: int
    end: int
    delta: float | None
    advantage: float | None
    style: str

    @property
    def title(self) -> str:
        """The step in words."""
        told = f"step {self.number}: " + ("no delta" if self.delta is None else f"delta {signed(self.delta)}")
        return told if self.advantage is None else f"{told}, advantage {signed(self.advantage)}"


class Segment(NamedTuple):
    """A piece of a text, and the step that it belongs to; None outside all steps."""

    text: str
    step: HeatStep | None


class ResponseHeat(NamedTuple):
    """The steps of a response, and the delta of the whole response; None without one."""

    steps: tuple[HeatStep, ...]
    whole: float | None


def response_advantages(group: Group) -> dict[int, float]:
    """The group-relative advantage of each response by its number; empty with fewer than two rewards, or on a part."""
    from trainer_client.advantages import group_advantages  # numpy, which no other page needs

    rewards = [one.reward for one in group.responses]
    if not group.whole or sum(reward is not None for reward in rewards) < 2:
        return {}
    advantages = group_advantages(rewards, ddof=1)
    return {
        one.number: float(value)
        for one, value in zip(group.responses, advantages, strict=True)
        if one.reward is not None
    }


def heat_of(group: Group) -> dict[int, ResponseHeat]:
    """The steps of each response by the response's number; responses without steps are absent."""
    spans = {one.number: _spans(one) for one in group.responses}
    if not any(spans.values()):
        return {}
    deltas = {one.number: _deltas(one, spans[one.number]) for one in group.responses}
    mode = group.responses[0].record.request.mode
    advantages = _step_advantages(group, deltas, spans) if mode == "stepwise" and group.whole else {}
    coloured = {
        number: {step: value for step, *_ in own if (value := advantages.get(number, deltas[number]).get(step))}
        for number, own in spans.items()
    }
    largest = max((abs(value) for values in coloured.values() for value in values.values()), default=0.0)
    found = {}
    for number, own in spans.items():
        steps = [
            HeatStep(
                step, start, end, deltas[number].get(step), advantages.get(number, {}).get(step),
                shade(coloured[number].get(step, 0.0), largest),
            )
            for step, start, end in own
        ]  # fmt: skip
        if steps:
            found[number] = ResponseHeat(tuple(steps), deltas[number].get(WHOLE_RESPONSE))
    return found


def segments(part: TextPart, steps: Sequence[HeatStep]) -> list[Segment]:
    """A text, cut at the borders of its steps, in order."""
    cut, at = [], 0
    for step in sorted(steps, key=lambda one: one.start):
        cut += [Segment(part.text[at : step.start], None), Segment(part.text[step.start : step.end], step)]
        at = max(at, step.end)
    return [one for one in (*cut, Segment(part.text[at:], None)) if one.text]


def strip(steps: Sequence[HeatStep], length: int) -> Markup:
    """The steps of a text of a length as a strip of colours; the page lists the same values as text.

    An empty text has none.
    """
    if not length:
        return Markup("")
    drawn = [
        f'<rect class="{step.style}" x="{1000 * step.start / length:.2f}" y="0" '
        f'width="{1000 * (step.end - step.start) / length:.2f}" height="10"><title>{escape(step.title)}</title></rect>'
        for step in steps
    ]
    return Markup(  # noqa: S704 # nosec B704
        f'<svg class="strip" viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true">{"".join(drawn)}</svg>'
    )


def _spans(response: ShownResponse) -> list[tuple[int, int, int]]:
    """The steps of a response, without the whole response, which comes first."""
    stored = response.record.response.spans
    return [] if stored is None else [tuple(span) for span in json.loads(stored) if span[0] != WHOLE_RESPONSE]


def _deltas(response: ShownResponse, spans: Sequence[tuple[int, int, int]]) -> dict[int, float]:
    """The deltas of a response, also that of the whole response (0); empty if they cannot be computed."""
    criteria, verdicts = response.criteria or (), response.verdicts
    if len(criteria) != len(verdicts):
        return {}
    sample = read_sample(criteria, verdicts)
    rules = response.rules or RewardRules()
    try:
        rewarded = step_rewards(criteria, verdicts, rules.reward.use, [(WHOLE_RESPONSE, 0, 0), *spans], sample=sample)
    except ValueError:  # of a release with other rules for steps
        return {}
    return {step.number: step.delta for step in rewarded if step.delta is not None}


def _step_advantages(
    group: Group, deltas: dict[int, dict[int, float]], spans: dict[int, list[tuple[int, int, int]]]
) -> dict[int, dict[int, float]]:
    """The advantage of each step of each response, computed with a step in the place of a token."""
    from trainer_client.advantages import stepwise_advantages  # numpy, which no other page needs

    numbers = [one.number for one in group.responses]
    advantages = stepwise_advantages(
        [one.reward for one in group.responses],
        [deltas[number] for number in numbers],
        [{step: (i, i + 1) for i, (step, _, _) in enumerate(spans[number])} for number in numbers],
        [len(spans[number]) for number in numbers],
        ddof=1,
    )
    return {
        number: {step: float(own[i]) for i, (step, _, _) in enumerate(spans[number])}
        for number, own in zip(numbers, advantages, strict=True)
    }


def shade(value: float, largest: float) -> str:
    """The style of a value: the class of its colour, of which the largest value has the darkest."""
    if not value:
        return "z"
    level = max(1, round(LEVELS * abs(value) / largest))
    return f"{'p' if value > 0 else 'n'}{level}"


router = PageRouter()

_RESPONSES_A_PAGE = 32


@router.get("/group")
async def group(visit: Visit) -> Response:
    """The page of a group."""
    shown = await _read(visit)
    view = GroupView(
        shown,
        order=visit.text("order"),
        rows=visit.text("rows"),
        pair=(visit.whole_number("left"), visit.whole_number("right")),
        whole=visit.query.get("whole") == "1",
    )
    record = shown.responses[0].record
    csv_href = group_address(record.response).replace("/group?", "/group.csv?")
    rubric = record.response.rubric
    known = None
    if rubric is not None:
        known = await visit.service.rubrics.find(visit.project, f"sha256:{rubric.hex()}")
    return visit.page(
        "group.html.jinja", group=shown, view=view, request_row=record.request, run=record.request.run,
        heat=heat_of(shown), advantages=response_advantages(shown), csv_href=csv_href,
        weights=shown.weights,
        limit=None if view.whole else TEXT_LIMIT, rubric=f"sha256:{rubric.hex()}" if rubric else None,
        rubric_version=known,
        labels=await _labels(visit, shown),
    )  # fmt: skip


async def _labels(visit: Visit, shown: Group) -> GroupLabels | None:
    """The labels of a group for a key that may label; None for others, and if this process keeps no labels."""
    identity, store = visit.identity, visit.service.labels
    if store is None or "labels:write" not in identity.permissions:
        return None
    rows = [one.record.response for one in shown.responses]
    wanted = LabelFilter(identity.project_id, rows[0].run, tuple(dict.fromkeys(row.request for row in rows)))
    return GroupLabels(await store.labels(wanted), identity.actor)


@router.get("/group.csv")
async def group_csv(visit: Visit) -> Response:
    """The verdicts of a group."""
    shown = await _read(visit)
    return csv_response(shown.table, "group.csv")


async def _read(visit: Visit) -> Group:
    ledger, project, run = visit.ledger, visit.project, visit.run
    name, key = visit.text("group"), b""
    with suppress(ValueError):
        key = bytes.fromhex(visit.text("request"))
    after = visit.whole_number("after")
    wanted = ResponseFilter(
        project, storable_text(run), request=key, group_id=storable_text(name), limit=_RESPONSES_A_PAGE,
        after=None if after is None else (key, min(after, 2**31 - 1)),
    )  # fmt: skip
    found = await read_group(ledger, wanted) if len(key) == 16 else None
    if found is None:
        raise NotFound(
            f"This project's ledger has no group {name!r} of this request in run {run!r}. The run's responses link to "
            "its groups."
        )
    return found
