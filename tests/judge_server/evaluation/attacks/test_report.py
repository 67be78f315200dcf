"""Attack reports: a judge that falls for known attacks gets exactly the figures that follow."""

from collections.abc import Sequence

import pytest

from judge_server.evaluation.attacks.corpus import read_corpus, read_tasks
from judge_server.evaluation.attacks.report import (
    ALL,
    HIDDEN,
    VISIBLE,
    AttackPlan,
    KindFigures,
    chosen_attacks,
    measure_attacks,
    plan_attacks,
    under_rubric,
)
from judge_server.evaluation.judging import Judgement
from judge_server.evaluation.labelled import LabelledResponse
from judge_server.evaluation.metrics import Estimate
from trainer_client.wire import Criterion, Failure, Verdict

PLAN = plan_attacks(read_tasks(), read_corpus(), limit=160)


def answers(
    plan: AttackPlan, fooled: Sequence[str] = (), *, suspicious: Sequence[str] | None = None, failing: str = ""
) -> list[Judgement]:
    """Answers of a judge that accepts only these kinds of attack and met criteria."""

    def answer(example: LabelledResponse, kind: str) -> Judgement:
        verdicts = {}
        for name, label in example.labels.items():
            failed = kind == failing != ""
            verdicts[name] = Verdict(
                criterion=name,
                status="failed" if failed else "ok",
                score=None if failed else float(label or kind in fooled),
                method="no_content" if kind == "empty" else "judge",
                failure=Failure(kind="engine", detail="away") if failed else None,
            )
        flag = None if suspicious is None else kind in suspicious
        return Judgement(example, "", verdicts, model="m", fingerprint="f", suspicious=flag)

    kinds = ["unattacked"] * len(plan.targets) + [case.attack.kind.name for case in plan.cases]
    kinds += ["honest"] * len(plan.honest)
    return [answer(example, kind) for example, kind in zip(plan.examples, kinds, strict=True)]


def by_kind(answered: Sequence[Judgement]) -> dict[str, KindFigures]:
    """The figures of each row."""
    return {one.kind: one for one in measure_attacks(PLAN, "", answered).kinds}


def test_a_judge_that_falls_for_two_kinds_accepts_exactly_those() -> None:
    found = by_kind(answers(PLAN, ["flattery", "opener"]))
    for name, one in found.items():
        if name not in (ALL, VISIBLE, HIDDEN):
            share = float(name in ("flattery", "opener"))
            assert (one.inputs, one.n, one.failed) == (10, 20, 0)
            assert one.unattacked.value == 0.0
            assert one.attacked == one.added == Estimate(share, share, share)
    assert found[ALL].added.value == pytest.approx(2 / 16)
    assert found[VISIBLE].added.value == pytest.approx(1 / 7)
    assert found[HIDDEN].added.value == pytest.approx(1 / 9)
    assert found[ALL].added.low < 2 / 16 < found[ALL].added.high
    assert {name for name, one in found.items() if one.uncalled.value == 1.0} == {"empty"}


def test_a_response_accepted_without_the_attack_too_adds_nothing() -> None:
    answered = answers(PLAN, ["unattacked", *{case.attack.kind.name for case in PLAN.cases} - {"claim"}])
    found = by_kind(answered)
    assert found["flattery"].added.value == 0.0
    assert found["claim"].added.value == -1.0
    assert found[ALL].unattacked.value == 1.0


def test_failed_verdicts_are_counted_and_left_out_of_shares() -> None:
    found = by_kind(answers(PLAN, ["flattery"], failing="language"))
    assert (found["language"].n, found["language"].failed) == (0, 20)
    assert found[ALL].added.value == pytest.approx(20 / (15 * 20))


def test_a_suspicious_response_is_not_accepted_and_a_suspicious_honest_one_is_a_cost() -> None:
    result = measure_attacks(PLAN, "", answers(PLAN, ["flattery", "claim"], suspicious=["flattery"]))
    found = {one.kind: one for one in result.kinds}
    assert found["flattery"].added.value == 0.0
    assert found["flattery"].flagged.value == 1.0
    assert found["claim"].added.value == 1.0
    assert (result.honest.value, result.honest_flagged.value, result.honest_n) == (1.0, 0.0, 48)
    harmed = measure_attacks(PLAN, "", answers(PLAN, suspicious=["honest"]))
    assert (harmed.honest.value, harmed.honest_flagged.value) == (0.0, 1.0)


def test_a_judge_without_answers_has_a_problem() -> None:
    assert measure_attacks(PLAN, "", "it does not start").problem == "it does not start"
    refused = [Judgement(one, "", problem="too long") for one in PLAN.examples]
    assert measure_attacks(PLAN, "", refused).problem == "too long"


def test_kinds_and_responses_take_turns() -> None:
    few = chosen_attacks(read_corpus(), 32)
    assert len({attack.id for attack in few}) == 32
    kinds = [attack.kind.name for attack in few]
    assert kinds[:16] == kinds[16:] == list(dict.fromkeys(kinds))
    assert len({case.target for case in PLAN.cases}) == len(PLAN.targets) == 24
    twice = plan_attacks(read_tasks(), few, None, 2)
    assert [case.attack.id for case in twice.cases] == [attack.id for attack in few for _ in range(2)]
    assert all(a.target != b.target for a, b in zip(twice.cases[::2], twice.cases[1::2], strict=True))


def test_only_unmet_criteria_that_a_response_wants_to_meet_are_attacked() -> None:
    criteria = (
        Criterion(id="met", description="m"),
        Criterion(id="unmet", description="u"),
        Criterion(id="pitfall", description="p", kind="pitfall"),
        Criterion(id="negative", description="n", weight=-1),
        Criterion(id="unlabelled", description="l"),
    )
    labels = {"met": 1.0, "unmet": 0.0, "pitfall": 0.0, "negative": 0.0}
    one = LabelledResponse("r", "p?", "text", criteria, labels)
    plan = plan_attacks([one], read_corpus(), 4)
    assert [c.id for c in plan.targets[0].criteria] == [c.id for c in plan.cases[0].attacked.criteria] == ["unmet"]
    assert [c.id for c in plan.honest[0].criteria] == ["met"]
    with pytest.raises(ValueError, match="nothing to attack"):
        plan_attacks([LabelledResponse("r", "p?", "text", criteria[:1], {"met": 1.0})], read_corpus())


def test_under_another_rubric_every_response_is_unmet() -> None:
    plan = plan_attacks(under_rubric(read_tasks(), [Criterion(id="own", description="Is about boats.")]), read_corpus())
    assert len(plan.targets) == 48
    assert plan.honest == ()
    assert {tuple(case.attacked.labels.items()) for case in plan.cases} == {(("own", 0.0),)}
