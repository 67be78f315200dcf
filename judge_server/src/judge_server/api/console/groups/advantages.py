"""The advantages of a group's responses and of their steps, as a trainer with default options computes them.

They are computed from the recorded rewards and verdicts by `group_advantages` (GRPO), `step_deltas` and
`stepwise_advantages` (SRaR), where the advantage of a step is that of the response plus the step's own.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

from judge_server.api.console.charts import signed
from judge_server.api.console.groups.group_view import Column, Group
from judge_server.api.console.responses.shown import TextPart
from judge_server.scoring.scorer import step_rewards
from trainer_client.dropout import read_sample
from trainer_client.steps import WHOLE_RESPONSE

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

    rewards = [column.response.reward for column in group.columns]
    if not group.whole or sum(reward is not None for reward in rewards) < 2:
        return {}
    advantages = group_advantages(rewards, ddof=1)
    return {
        column.number: float(value)
        for column, value, reward in zip(group.columns, advantages, rewards, strict=True)
        if reward is not None
    }


def heat_of(group: Group) -> dict[int, ResponseHeat]:
    """The steps of each response by the response's number; responses without steps are absent."""
    spans = {column.number: _spans(column) for column in group.columns}
    if not any(spans.values()):
        return {}
    deltas = {column.number: _deltas(column, spans[column.number]) for column in group.columns}
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
                _style(coloured[number].get(step, 0.0), largest),
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
    """The steps of a text of a length as a strip of colours; the page lists the same values as text."""
    drawn = [
        f'<rect class="{step.style}" x="{1000 * step.start / length:.2f}" y="0" '
        f'width="{1000 * (step.end - step.start) / length:.2f}" height="10"><title>{escape(step.title)}</title></rect>'
        for step in steps
    ]
    return Markup(  # noqa: S704 # nosec B704
        f'<svg class="strip" viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true">{"".join(drawn)}</svg>'
    )


def _spans(column: Column) -> list[tuple[int, int, int]]:
    """The steps of a response, without the whole response, which comes first."""
    stored = column.response.record.response.spans
    return [] if stored is None else [tuple(span) for span in json.loads(stored) if span[0] != WHOLE_RESPONSE]


def _deltas(column: Column, spans: Sequence[tuple[int, int, int]]) -> dict[int, float]:
    """The deltas of a response, also that of the whole response (0); empty if they cannot be computed."""
    one = column.response
    criteria, verdicts = one.criteria or (), one.verdicts
    if len(criteria) != len(verdicts):
        return {}
    sample = read_sample(
        criteria,
        by_program=[verdict.method != "judge" for verdict in verdicts],
        left_out=[verdict.status == "left_out" for verdict in verdicts],
    )
    scores, named = [verdict.score for verdict in verdicts], [verdict.step for verdict in verdicts]
    try:
        rewarded = step_rewards(criteria, scores, named, [(WHOLE_RESPONSE, 0, 0), *spans], sample=sample)
    except ValueError:  # of a release with other rules for steps
        return {}
    return {step.number: step.delta for step in rewarded if step.delta is not None}


def _step_advantages(
    group: Group, deltas: dict[int, dict[int, float]], spans: dict[int, list[tuple[int, int, int]]]
) -> dict[int, dict[int, float]]:
    """The advantage of each step of each response, computed with a step in the place of a token."""
    from trainer_client.advantages import stepwise_advantages  # numpy, which no other page needs

    columns = group.columns
    advantages = stepwise_advantages(
        [column.response.reward for column in columns],
        [deltas[column.number] for column in columns],
        [{step: (i, i + 1) for i, (step, _, _) in enumerate(spans[column.number])} for column in columns],
        [len(spans[column.number]) for column in columns],
        ddof=1,
    )
    return {
        column.number: {step: float(own[i]) for i, (step, _, _) in enumerate(spans[column.number])}
        for column, own in zip(columns, advantages, strict=True)
    }


def _style(value: float, largest: float) -> str:
    if not value:
        return "z"
    level = max(1, round(LEVELS * abs(value) / largest))
    return f"{'p' if value > 0 else 'n'}{level}"
