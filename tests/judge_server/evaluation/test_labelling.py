"""Which verdicts to label first, labels as a data set, and agreement between people."""

import json
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.evaluation.labelled import LabelledResponse, read_rows
from judge_server.evaluation.labelling import (
    JUDGE,
    agreements,
    consensus,
    labelled_groups,
    labels_to_halve,
    maps_so_far,
    preview_calibration,
    rank,
)
from judge_server.intervals import wilson
from rubric_store.ledger.rows import LabelFilter, LabelledUse, LabelRow, UseRecord, VerdictRow
from tests.rubric_store.ledger_rows import AT, PROJECT, RUBRIC, request, verdict
from trainer_client.wire import Criterion
from trainer_client.wire.runs import MonitorFinding

PLAIN = {RUBRIC: (Criterion(id="c0", description="Is short."),)}
SHADOW = {RUBRIC: (Criterion(id="c0", description="Is short.", shadow=True),)}
NAMED = f"{RUBRIC.hex()}/{{}}"
"""A criterion by its rubric and its id."""

PITFALL = {RUBRIC: (Criterion(id="c0", description="Is wrong.", shadow=True, weight=-1.0),)}


def judged(number: int, *votes: VerdictRow, failure: str | None = None, reward: float | None = None) -> UseRecord:
    """A use of a verdict with these votes."""
    rows = request(number, [[f"{number}.{vote}" for vote in range(len(votes))]], votes=len(votes))
    uses = [use._replace(failure=failure) for use in rows.uses]
    return UseRecord(rows.requests[0], rows.responses[0]._replace(reward=reward), list(zip(uses, votes, strict=True)))


def said(probability: float, **fields: object) -> VerdictRow:
    """A verdict with this probability."""
    return verdict("v", score=float(probability >= 0.5), probability=probability, **fields)


def numbers(uses: Sequence[UseRecord], **options: object) -> list[int]:
    """The uses offered for labelling, in order."""
    ranked = rank(uses, options.pop("rubrics", PLAIN), **options)  # type: ignore[arg-type]
    return [int.from_bytes(one.use.request.request, "big") for one in ranked]


def test_verdicts_on_a_criterion_with_a_monitor_warning_come_early_from_the_step_it_began() -> None:
    about = {"message": "m", "action": "a", "evidence": {}, "step": 9}
    found = MonitorFinding(monitor="shadow_divergence", severity="critical", subject="c0", began=1, **about)
    sure, close = judged(1, said(0.99)), judged(2, said(0.6))
    assert numbers([sure, close], findings=[found]) == [2, 1]
    assert numbers([sure, judged(3, said(0.9))], findings=[found]) == [3, 1]
    assert numbers([sure, close], findings=[found], why="monitor") == [2, 1]
    for other in ({"began": 2}, {"subject": "c1"}, {"subject": None}, {"severity": "info"}):
        assert numbers([sure, close], findings=[found.model_copy(update=other)], why="monitor") == []


def test_the_probability_nearest_to_one_half_comes_first() -> None:
    assert numbers([judged(1, said(0.99)), judged(2, said(0.45)), judged(3, said(0.7)), judged(4, said(0.52))])[:3] == [
        4,
        2,
        3,
    ]
    assert numbers([judged(1, said(0.99)), judged(2, said(0.45))], why="close") == [2]


def test_a_close_verdict_is_worth_less_once_its_criterion_has_labels() -> None:
    close, surer = judged(1, said(0.5)), judged(2, said(0.7))
    other = surer._replace(votes=[(surer.votes[0][0]._replace(criterion="c1"), surer.votes[0][1])])
    assert numbers([close, other]) == [1, 2]
    assert numbers([close, other], labelled={NAMED.format("c0"): 8}) == [2, 1]
    assert numbers([close, other], labelled={NAMED.format("c0"): 8, NAMED.format("c1"): 8}) == [1, 2]


@given(st.integers(1, 400), st.floats(0, 1))
def test_the_labels_that_are_asked_for_halve_the_interval(n: int, rate: float) -> None:
    agreed = round(rate * n)

    def width(labels: int) -> float:
        low, high = wilson(agreed / n * labels, labels)
        return high - low

    more = labels_to_halve(agreed, n)
    assert width(n + more) <= width(n) / 2 < width(n + more - 1)


def labelled_use(number: int, raw: float, met: bool) -> LabelledUse:
    """A verdict with a label by one person."""
    use = judged(number, said(raw, raw_probability=raw))
    return LabelledUse(use, [label(use, "ann", met)])


def test_a_preview_says_what_calibrating_would_do() -> None:
    """The judge says no to everything, and is surer of what is not met."""
    found = [labelled_use(n, 0.4 if n % 2 else 0.1, bool(n % 2)) for n in range(16)]
    preview = preview_calibration(found)
    assert preview is not None
    assert (preview.labels, preview.before, preview.after) == (16, 0.5, 1.0)


def test_an_uncertain_verdict_is_no_disagreement_in_a_preview() -> None:
    sure = [labelled_use(n, 0.9 if n % 2 else 0.1, bool(n % 2)) for n in range(12)]
    unsure = [
        LabelledUse(use, [label(use, "ann", bool(n % 2))])
        for n in range(12, 24)
        if (use := judged(n, said(0.55, raw_probability=0.55), failure="uncertain"))
    ]
    assert preview_calibration([*sure, *unsure]) is None


def test_a_panels_verdicts_are_not_calibrated() -> None:
    members = json.dumps([{"judge": "a", "score": 1.0, "probability": 0.9}])
    uses = [judged(n, said(0.4, raw_probability=0.4, members=members)) for n in range(16)]
    assert preview_calibration([LabelledUse(use, [label(use, "ann", True)]) for use in uses]) is None
    assert maps_so_far([LabelledUse(use, [label(use, "ann", True)]) for use in uses]) is None


def test_labels_of_an_earlier_model_are_left_out() -> None:
    """The earlier model's probabilities are opposed to the labels; together, nothing could be fitted."""
    earlier = [labelled_use(n, 0.4 if n % 2 else 0.9, bool(n % 2)) for n in range(40)]
    earlier = [one._replace(use=one.use._replace(request=one.use.request._replace(model="earlier"))) for one in earlier]
    later = [labelled_use(n, 0.4 if n % 2 else 0.1, bool(n % 2)) for n in range(40, 56)]
    assert preview_calibration([*earlier, *later]) == preview_calibration(later)
    assert preview_calibration(later) is not None


def test_the_verdict_nearest_to_the_threshold_that_the_labels_tell_comes_first() -> None:
    """People say yes from 0.3 on, so what is nearest to 0.3 is in doubt, and what is near 0.5 is not."""
    found = [
        labelled_use(n, p, p > 0.3) for n, p in enumerate((0.05, 0.1, 0.15, 0.2, 0.25, 0.35, 0.4, 0.45, 0.5, 0.6) * 4)
    ]
    near, far = judged(101, said(0.3, raw_probability=0.3)), judged(102, said(0.52, raw_probability=0.52))
    assert numbers([near, far]) == [102, 101]
    assert numbers([near, far], maps=maps_so_far(found)) == [101, 102]


def test_nothing_is_previewed_on_few_labels_or_labels_that_oppose_the_judge() -> None:
    assert preview_calibration([labelled_use(n, 0.4, bool(n % 2)) for n in range(7)]) is None
    assert preview_calibration([labelled_use(n, 0.1 if n % 2 else 0.9, bool(n % 2)) for n in range(40)]) is None


def test_judges_that_disagree_come_before_one_that_is_sure() -> None:
    members = [{"judge": "a", "score": 1.0, "probability": 0.9}, {"judge": "b", "score": 0.0, "probability": 0.1}]
    split = said(0.9, members=json.dumps([*members, {"judge": "c", "failure": "timeout"}]))
    agreed = said(0.9, members=json.dumps([members[0], members[0]]))
    (first, second) = rank([judged(1, agreed), judged(2, split)], PLAIN)
    assert (first.use.request.request_id, first.reasons) == ("req_2", {"disagreement": 1.0})
    assert second.reasons == {}
    assert numbers([judged(1, agreed), judged(2, split)], why="disagreement") == [2]


def test_votes_that_disagree_count_as_disagreement() -> None:
    (found,) = rank([judged(1, said(0.9), said(0.95), said(0.1))], PLAIN)
    assert found.reasons["disagreement"] == pytest.approx(2 / 3)
    assert found.probability == pytest.approx(0.65)


def test_a_shadow_criterion_that_contradicts_the_reward_is_offered() -> None:
    gamed, honest = judged(1, said(0.02), reward=0.95), judged(2, said(0.97), reward=0.95)
    assert numbers([gamed, honest], rubrics=SHADOW, why="shadow") == [1]
    assert numbers([gamed, honest], rubrics=PITFALL, why="shadow") == [2]
    assert numbers([gamed, honest], rubrics=PLAIN, why="shadow") == []


def test_an_uncertain_verdict_is_close_whatever_the_band() -> None:
    assert numbers([judged(1, said(0.9), failure="uncertain")], why="close") == [1]


def test_verdicts_of_the_same_call_are_offered_once() -> None:
    use = judged(1, said(0.5))
    again = use._replace(request=use.request._replace(request_id="req_9"))
    assert len(rank([use, again], PLAIN)) == 1


# -- the data set


class Labels:
    """A store with a few labelled verdicts of one request."""

    def __init__(self, uses: Sequence[UseRecord], labels: Sequence[dict[str, bool]], texts: dict[bytes, str]) -> None:
        self._uses, self._texts = uses, texts
        self._labels = [
            [label(one, person, met) for person, met in by.items()] for one, by in zip(uses, labels, strict=True)
        ]

    async def labelled_uses(self, _: LabelFilter) -> list[LabelledUse]:
        return [LabelledUse(use, rows) for use, rows in zip(self._uses, self._labels, strict=True)]

    async def texts(self, _: str, digests: Sequence[bytes]) -> dict[bytes, str]:
        return {digest: self._texts[digest] for digest in digests if digest in self._texts}


def label(use: UseRecord, person: str, met: bool) -> LabelRow:
    """A person's label of a use."""
    row = use.votes[0][0]
    return LabelRow(row.project_id, row.run, row.request, row.place, row.slot, person, row.criterion, met, AT)


def uses_of_group() -> tuple[list[UseRecord], dict[bytes, str]]:
    """Two responses of a group, two verdicts on each, and the texts."""
    rows = request(1, [["a", "b"], ["c", "d"]])
    made = [
        UseRecord(rows.requests[0], rows.responses[use.place], [(use, given)])
        for use, given in zip(rows.uses, rows.verdicts, strict=True)
    ]
    criteria = [
        {"id": "c0", "description": "Is short.", "verification": {"method": "regex", "pattern": "x"}},
        {"id": "c1", "description": "Is right.", "shadow": True},
    ]
    texts = {rows.responses[0].prompt: '"Prompt?"', RUBRIC: json.dumps(criteria)}
    return made, texts | {rows.responses[place].response: json.dumps(f"response {place}") for place in (0, 1)}


async def test_labels_become_groups_that_evaluations_can_read(tmp_path: object) -> None:
    uses, texts = uses_of_group()
    by = [
        {"ada": True},
        {"ada": False, "bob": False},
        {"ada": True, "bob": False},
        {"ada": True, "bob": True, "eve": False},
    ]
    found = await labelled_groups(Labels(uses, by, texts), LabelFilter(PROJECT, "run"))  # type: ignore[arg-type]
    assert (found.labels, found.left_out, found.people) == (3, {"people are split": 1}, ("ada", "bob", "eve"))
    file = tmp_path / "labels.jsonl"  # type: ignore[operator]
    file.write_text("".join(json.dumps(row) + "\n" for row in found.rows))
    examples = list(read_rows(file))
    assert examples == found.examples()
    assert all(isinstance(one, LabelledResponse) for one in examples)
    assert [(one.response, one.labels) for one in examples if isinstance(one, LabelledResponse)] == [
        ("response 0", {"c0": 1.0, "c1": 0.0}), ("response 1", {"c1": 1.0}),
    ]  # fmt: skip
    (first, _) = examples
    assert isinstance(first, LabelledResponse)
    assert (first.row, first.prompt) == ("req_1/g", "Prompt?")
    assert [(one.id, one.verification.method) for one in first.criteria if one.verification] == [
        ("c0", "judge"),
        ("c1", "judge"),
    ]


async def test_labelled_groups_have_what_else_the_judge_was_shown() -> None:
    uses, texts = uses_of_group()
    material = {"grounding": b"g" * 32, "reference_answer": b"r" * 32, "ground_truth": b"t" * 32}
    texts |= {digest: json.dumps(f"the {name}") for name, digest in material.items()}
    uses = [use._replace(response=use.response._replace(**material)) for use in uses]
    labels = Labels(uses, [{"ada": True}] * 4, texts)
    row, *_ = (await labelled_groups(labels, LabelFilter(PROJECT, "run"))).rows  # type: ignore[arg-type]
    assert {name: row[name] for name in material} == {name: f"the {name}" for name in material}


async def test_a_label_whose_texts_cannot_be_judged_again_is_left_out_and_counted() -> None:
    uses, texts = uses_of_group()
    texts[uses[0].response.response] = '[{"role": "assistant", "content": "Yes."}]'
    del texts[uses[2].response.response]
    found = await labelled_groups(Labels(uses, [{"ada": True}] * 4, texts), LabelFilter(PROJECT, "run"))  # type: ignore[arg-type]
    assert found.rows == []
    assert found.left_out == {"the response is a conversation": 2, "the ledger does not have the texts": 2}
    del texts[RUBRIC]
    found = await labelled_groups(Labels(uses, [{"ada": True}] * 4, texts), LabelFilter(PROJECT, "run"))  # type: ignore[arg-type]
    assert found.left_out == {"no criterion was asked about": 4}


# -- agreement


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_kappa_is_cohens(answers: list[tuple[bool, bool, bool]]) -> None:
    found = []
    for number, (judge, ada, bob) in enumerate(answers, 1):
        use = judged(number, said(0.9 if judge else 0.1))
        found.append(LabelledUse(use, [label(use, "ada", ada), label(use, "bob", bob)]))
    by_pair = {(one.first, one.second): one for one in agreements(found)}
    assert set(by_pair) == {(JUDGE, "ada"), (JUDGE, "bob"), ("ada", "bob")}
    for (first, second), columns in ({(JUDGE, "ada"): (0, 1), (JUDGE, "bob"): (0, 2), ("ada", "bob"): (1, 2)}).items():
        one = by_pair[first, second]
        pairs = Counter((row[columns[0]], row[columns[1]]) for row in answers)
        n = len(answers)
        observed = (pairs[True, True] + pairs[False, False]) / n
        yes, other = sum(row[columns[0]] for row in answers) / n, sum(row[columns[1]] for row in answers) / n
        chance = yes * other + (1 - yes) * (1 - other)
        assert (one.n, one.accuracy.value) == (n, pytest.approx(observed))
        if 0 < other < 1:
            assert one.kappa.value == pytest.approx((observed - chance) / (1 - chance))
        else:
            assert np.isnan(one.kappa.value)


def test_agreement_covers_verdicts_that_both_labelled() -> None:
    uses = [judged(1, said(0.9)), judged(2, said(0.1)), judged(3, said(0.9), failure="uncertain")]
    found = [LabelledUse(uses[0], [label(uses[0], "ada", True)]), LabelledUse(uses[1], [label(uses[1], "bob", True)])]
    found.append(LabelledUse(uses[2], [label(uses[2], "ada", True), label(uses[2], "bob", True)]))
    assert {(one.first, one.second): (one.n, one.accuracy.value) for one in agreements(found)} == {
        (JUDGE, "ada"): (1, 1.0), (JUDGE, "bob"): (1, 0.0), ("ada", "bob"): (1, 1.0),
    }  # fmt: skip


@given(st.lists(st.booleans(), min_size=1, max_size=9))
def test_the_majority_decides(votes: list[bool]) -> None:
    use = judged(1, said(0.5))
    labels = [label(use, str(n), met)._replace(at=AT + timedelta(seconds=n)) for n, met in enumerate(votes)]
    yes, no = votes.count(True), votes.count(False)
    assert consensus(labels) is (None if yes == no else yes > no)
