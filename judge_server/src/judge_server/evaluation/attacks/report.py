"""Measure how many false accepts attacks bring: the attacked responses against the same responses unattacked.

A false accept is a yes on a criterion that is labelled unmet. Only criteria that a response wants to meet count: not
those of negative weight, and not pitfalls, on which a yes does the attacker harm. Intervals come from resampling rows.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from judge_server.evaluation.attacks.corpus import Attack
from judge_server.evaluation.html import render_page
from judge_server.evaluation.judging import Judgement
from judge_server.evaluation.labelled import MET_FROM, LabelledResponse, in_turn
from judge_server.evaluation.metrics import LEVEL, RESAMPLES, UNDEFINED, Estimate, RowBootstrap, as_json
from trainer_client.wire import Criterion

ALL, VISIBLE, HIDDEN = "all", "all that a program can see", "all others"
"""The names of the rows over several kinds."""


@dataclass(frozen=True, slots=True)
class AttackCase:
    """An attack on one response.

    Attributes:
        attack: the attack.
        target: the place of the unattacked response among the targets.
        attacked: the attacked response, with the criteria that the unattacked one does not meet.
    """

    attack: Attack
    target: int
    attacked: LabelledResponse


@dataclass(frozen=True, slots=True)
class AttackPlan:
    """What is judged: unattacked responses that fail criteria, attacks on them, and responses that meet criteria."""

    targets: tuple[LabelledResponse, ...]
    cases: tuple[AttackCase, ...]
    honest: tuple[LabelledResponse, ...]

    @property
    def examples(self) -> list[LabelledResponse]:
        """Everything to judge, in the order in which `measure_attacks` expects the judgements."""
        return [*self.targets, *(case.attacked for case in self.cases), *self.honest]


class KindFigures(NamedTuple):
    """The false accepts of some attacks.

    Attributes:
        kind: the kind of attack, or a row over several kinds.
        inputs: the number of attack inputs.
        n, rows: the number of verdicts that are compared, and of rows of the data set that they come from.
        failed: the number of verdicts that failed, attacked or unattacked.
        unattacked, attacked: the share of verdicts that are a yes.
        added: the share attacked minus the share unattacked, paired.
        flagged: the share of attacked responses that the judge's decoy criterion shows to be suspicious; undefined
            without decoys.
        uncalled: the share of verdicts on attacked responses that needed no judge.
    """

    kind: str
    inputs: int
    n: int
    rows: int
    failed: int
    unattacked: Estimate
    attacked: Estimate
    added: Estimate
    flagged: Estimate
    uncalled: Estimate


@dataclass(frozen=True, slots=True)
class DefenceResult:
    """The figures of a judge with some defences.

    Attributes:
        name: the defences.
        problem: why there are no figures; empty if there are some.
        model, fingerprint: the judge.
        kinds: figures by kind, after the rows `ALL`, `VISIBLE` and `HIDDEN` where there are such kinds.
        honest: the share of met criteria of unattacked responses that are judged met.
        honest_n: their number.
        honest_flagged: the share of those responses that are suspicious; undefined without decoys.
        refused: the number of responses that the service refused to judge.
    """

    name: str
    problem: str = ""
    model: str = ""
    fingerprint: str = ""
    kinds: tuple[KindFigures, ...] = ()
    honest: Estimate = UNDEFINED
    honest_n: int = 0
    honest_flagged: Estimate = UNDEFINED
    refused: int = 0

    @property
    def overall(self) -> KindFigures:
        """The figures over all kinds."""
        return self.kinds[0]

    def as_json(self) -> dict[str, Any]:
        """Return the figures as JSON; undefined numbers are null."""
        return {
            "defences": self.name,
            "problem": self.problem or None,
            "model": self.model,
            "fingerprint": self.fingerprint,
            "kinds": as_json(self.kinds),
            "honest": as_json({"accepted": self.honest, "flagged": self.honest_flagged, "n": self.honest_n}),
            "refused": self.refused,
        }


@dataclass(frozen=True, slots=True)
class AttackReport:
    """The results of a judge by defences; the first is how the service judges if nothing is said."""

    results: tuple[DefenceResult, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {"level": LEVEL, "resamples": RESAMPLES, "results": [one.as_json() for one in self.results]}

    def page(self, heading: Mapping[str, Any]) -> str:
        """Render the report as an HTML page. `heading` says what was measured: names and texts."""
        return render_page("attacks", heading, report=self)


def plan_attacks(
    responses: Sequence[LabelledResponse],
    attacks: Sequence[Attack],
    limit: int | None = None,
    targets_per_attack: int = 1,
) -> AttackPlan:
    """Choose which attack is made on which response: those that fail a criterion, in turn.

    Args:
        limit: at most so many attacks, kinds in turn, by a fixed hash.
        targets_per_attack: the number of responses that each attack is made on.

    Raises:
        ValueError: no response fails a criterion that it wants to meet.
    """
    targets = tuple([one for response in responses if (one := _with_label(response, met=False)) is not None])
    if not targets:
        raise ValueError("no response fails a criterion of positive weight, so there is nothing to attack")
    honest = tuple([one for response in responses if (one := _with_label(response, met=True)) is not None])
    order = sorted(range(len(targets)), key=lambda place: _hash(f"{targets[place].row}\0{targets[place].response}"))
    cases = []
    for turn, attack in enumerate(chosen_attacks(attacks, limit)):
        for offset in range(min(targets_per_attack, len(targets))):
            place = order[(turn * targets_per_attack + offset) % len(order)]
            target = targets[place]
            text = attack.apply(target.response, target.criteria, _text_of(target.prompt))
            cases.append(AttackCase(attack, place, replace(target, response=text, task=attack.kind.name)))
    return AttackPlan(targets, tuple(cases), honest)


def chosen_attacks(attacks: Sequence[Attack], limit: int | None) -> list[Attack]:
    """Return at most `limit` attacks, kinds in turn, each kind in an order fixed by a hash."""
    by_kind: dict[str, list[Attack]] = {}
    for one in sorted(attacks, key=lambda one: _hash(one.id)):
        by_kind.setdefault(one.kind.name, []).append(one)
    return in_turn(by_kind[name] for name in dict.fromkeys(one.kind.name for one in attacks))[:limit]


def under_rubric(responses: Sequence[LabelledResponse], criteria: Sequence[Criterion]) -> list[LabelledResponse]:
    """Return responses under another rubric, of which they meet no criterion because they are about something else."""
    return [
        replace(one, criteria=tuple(criteria), labels={criterion.id: 0.0 for criterion in criteria})
        for one in responses
    ]


def measure_attacks(plan: AttackPlan, name: str, answered: Sequence[Judgement] | str) -> DefenceResult:
    """Compute the figures of a judge with the defences `name`.

    `answered` has the judgements of `plan.examples`, in order; or says why there are none.
    """
    if isinstance(answered, str):
        return DefenceResult(name, answered)
    known = next((one for one in answered if not one.problem), None)
    if known is None:
        return DefenceResult(name, answered[0].problem)
    end = len(plan.targets) + len(plan.cases)
    before, after, honest = answered[: len(plan.targets)], answered[len(plan.targets) : end], answered[end:]
    bootstrap = RowBootstrap([one.row for one in plan.targets])
    pairs = [(case.attack, before[case.target], own) for case, own in zip(plan.cases, after, strict=True)]
    parts = [(ALL, pairs)]
    parts += [(VISIBLE, [one for one in pairs if one[0].kind.visible])]
    parts += [(HIDDEN, [one for one in pairs if not one[0].kind.visible])]
    parts += [
        (kind, [one for one in pairs if one[0].kind.name == kind])
        for kind in dict.fromkeys(case.attack.kind.name for case in plan.cases)
    ]
    accepted = [(one.example.row, yes) for one in honest for yes in _accepts(one).values() if yes is not None]
    flags = [(one.example.row, float(one.suspicious)) for one in honest if one.suspicious is not None]
    met = RowBootstrap([one.row for one in plan.honest])
    return DefenceResult(
        name,
        "",
        known.model,
        known.fingerprint,
        tuple([_figures(part, own, bootstrap) for part, own in parts if own]),
        met.means(accepted, 1)[0],
        len(accepted),
        met.means(flags, 1)[0],
        sum(bool(one.problem) for one in answered),
    )


def _figures(kind: str, pairs: Sequence[tuple[Attack, Judgement, Judgement]], bootstrap: RowBootstrap) -> KindFigures:
    samples, failed = [], 0
    for _, before, after in pairs:
        unattacked, attacked = _accepts(before), _accepts(after)
        for name, was in unattacked.items():
            became = attacked.get(name)
            if was is None or became is None:
                failed += 1
                continue
            by_program = float(after.verdicts[name].method != "judge")
            samples.append((before.example.row, was, became, became - was, by_program))
    flags = [(after.example.row, float(after.suspicious)) for *_, after in pairs if after.suspicious is not None]
    first, second, added, uncalled = bootstrap.means(samples, 4)
    return KindFigures(
        kind,
        len({attack.id for attack, *_ in pairs}),
        len(samples),
        len({row for row, *_ in samples}),
        failed,
        first,
        second,
        added,
        bootstrap.means(flags, 1)[0],
        uncalled,
    )


def _accepts(judgement: Judgement) -> dict[str, float | None]:
    """Return by criterion id whether the verdict is a yes (1 or 0), or None if there is none.

    With decoys, nothing of a suspicious response counts as accepted.
    """
    assert isinstance(judgement.example, LabelledResponse)
    found: dict[str, float | None] = {}
    for name in judgement.example.labels:
        verdict = judgement.verdicts.get(name)
        score = None if verdict is None else verdict.score
        found[name] = None if score is None else float(score >= MET_FROM and not judgement.suspicious)
    return found


def _with_label(response: LabelledResponse, *, met: bool) -> LabelledResponse | None:
    """Return the response with those of its positive criteria that have this label; None if there are none."""
    kept = tuple(
        [
            one
            for one in response.criteria
            if one.weight >= 0 and one.kind != "pitfall" and one.id in response.labels
            if (response.labels[one.id] >= MET_FROM) == met
        ]
    )
    labels = {one.id: response.labels[one.id] for one in kept}
    return replace(response, criteria=kept, labels=labels) if kept else None


def _text_of(prompt: Any) -> str:
    """Return a prompt as text: that of its last message, if it is a conversation."""
    if isinstance(prompt, str):
        return prompt
    last = prompt[-1] if prompt else ""
    content = last.get("content") if isinstance(last, Mapping) else getattr(last, "content", "")
    return content if isinstance(content, str) else ""


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
