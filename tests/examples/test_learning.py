"""The learning example's task: solvable problems, solutions with the requested mistakes, rubrics that detect them."""

from typing import Any

import httpx2
import numpy as np
import pytest
from examples.learning.arithmetic import UNEXPLAINED_OPERATOR, ArithmeticOperation, ArithmeticProblem, problems
from examples.learning.rubrics import answer_is_right, pitfall_id, plain_rubric, right_steps, rubric, step_accuracy
from examples.learning.solutions import MISTAKES, Mistake, guesses, possible_mistakes, solution, solution_with
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from judge_server.ports import JudgeResult
from judge_server.verifiers import Check
from judge_server.verifiers.worker import decide
from trainer_client.final_answer import extract_final_answer
from trainer_client.rewards import check_rubric
from trainer_client.steps import has_format, split_steps
from trainer_client.wire import RewardAnswer, RubricContent

SEEDS = st.integers(0, 2**32 - 1)
LENGTHS = st.integers(1, 6)


def one(seed: int, steps: int = 4, unexplained: int = 0) -> ArithmeticProblem:
    return problems(seed, 1, steps=steps, unexplained=unexplained)[0]


def right(problem: ArithmeticProblem) -> str:
    return solution(problem, np.random.default_rng(0))


def found(problem: ArithmeticProblem, response: str) -> dict[str, JudgeResult]:
    """Results of the real checks on the step-wise rubric."""
    steps = tuple(split_steps(response))
    findings = {}
    for criterion in RubricContent.model_validate(rubric(problem)).criteria:
        assert criterion.verification is not None
        finding = decide(
            Check(criterion.verification, response, extract_final_answer(response), None, steps, names_step=True)
        )
        assert isinstance(finding, JudgeResult)
        findings[criterion.id] = finding
    return findings


def satisfied(problem: ArithmeticProblem, response: str) -> set[str]:
    return {id_ for id_, finding in found(problem, response).items() if finding.score == 1.0}


@given(SEEDS, LENGTHS)
def test_a_problem_matches_its_prompt_and_is_reproducible_by_its_seed(seed: int, steps: int) -> None:
    problem = one(seed, steps)
    assert problem == one(seed, steps)
    assert len(problem.operations) == steps
    assert all(0 <= value < 50 for value in problem.values)
    assert eval(problem.prompt.removesuffix("=?\n")) == int(problem.answer)


@given(SEEDS, st.integers(0, 4))
def test_a_problem_has_the_requested_unexplained_signs_and_each_adds_its_operand_twice(
    seed: int, unexplained: int
) -> None:
    problem = one(seed, unexplained=unexplained)
    assert [operator for operator, _ in problem.operations].count(UNEXPLAINED_OPERATOR) == unexplained
    assert all(0 <= value < 50 for value in problem.values)
    for before, operation, after in zip(problem.values, problem.operations, problem.values[1:], strict=False):
        assert operation.operator != UNEXPLAINED_OPERATOR or after == before + operation.operand + operation.operand


def test_the_unexplained_sign_is_nearly_always_guessed_and_always_wrongly() -> None:
    rng = np.random.default_rng(0)
    drawn = problems(0, 500, unexplained=1, steps=1)
    right_ones = np.mean([step_accuracy(problem, solution(problem, rng, 0.1)) for problem in drawn])
    assert 0.0 < right_ones < 0.1
    assert guesses(7, ArithmeticOperation(UNEXPLAINED_OPERATOR, 5)) == [12, 2, 35, 7]
    assert guesses(7, ArithmeticOperation("+", 5)) == []


@given(SEEDS, st.sets(st.integers(1, 4)), st.integers(0, 4))
def test_given_steps_are_right_whatever_mistakes_come_before(
    seed: int, given_steps: set[int], unexplained: int
) -> None:
    problem = one(seed, unexplained=unexplained)
    response = solution(problem, np.random.default_rng(seed), 1.0, given_steps=given_steps)
    reached = {step.number for step in split_steps(response)}  # a skipped step leaves fewer
    said = right_steps(problem, response)
    assert all(said[step - 1] for step in given_steps & reached)
    assert given_steps != {1, 2, 3, 4} or all(said)


def test_solutions_omit_the_answer_as_often_as_requested() -> None:
    rng = np.random.default_rng(0)
    said = [solution(problem, rng, unanswered=0.25) for problem in problems(0, 800)]
    endings = [(extract_final_answer(text) is not None, "\n=" in text) for text in said]
    shares = {ending: endings.count(ending) / 800 for ending in set(endings)}
    assert set(shares) == {(True, False), (True, True), (False, True)}
    assert shares[False, True] == pytest.approx(0.25, abs=0.05)
    assert shares[True, True] == pytest.approx(0.25, abs=0.05)


def test_problems_of_one_seed_are_mostly_different() -> None:
    assert len(set(problems(0, 1000))) > 900
    assert problems(0, 1000) != problems(1, 1000)


@given(SEEDS, LENGTHS)
def test_a_right_solution_satisfies_every_positive_criterion_and_no_pitfall(seed: int, steps: int) -> None:
    problem = one(seed, steps)
    response = right(problem)
    assert has_format(response)
    assert satisfied(problem, response) == {"answer", *(f"right-{k}" for k in range(1, steps + 1))}
    assert (answer_is_right(problem, response), step_accuracy(problem, response)) == (True, 1.0)


@given(SEEDS, LENGTHS, st.floats(0, 1))
def test_the_rubric_agrees_with_evaluation_and_judges_every_step(seed: int, steps: int, mistake_rate: float) -> None:
    problem = one(seed, steps)
    response = solution(problem, np.random.default_rng(seed), mistake_rate)
    findings = found(problem, response)
    shares = [finding.score for id_, finding in findings.items() if id_.startswith("right-")]
    assert step_accuracy(problem, response) == sum(shares) / steps
    assert answer_is_right(problem, response) == bool(findings["answer"].score)
    there = {step.number for step in split_steps(response)}
    for k in range(1, steps + 1):
        judged = {findings[f"{what}-{k}"].step for what in ("right", "other", "slip", "copy")}
        assert judged == {k if k in there else -1}


@pytest.mark.parametrize("mistake", MISTAKES)
@settings(suppress_health_check=[HealthCheck.filter_too_much])  # not every problem allows every mistake in every step
@given(seed=SEEDS, step=st.integers(1, 4))
def test_a_mistake_is_found_by_its_pitfall_in_its_step(mistake: Mistake, seed: int, step: int) -> None:
    problem = one(seed, unexplained=4 if mistake == "guess" else 0)
    where = 5 if mistake == "box" else step
    assume(mistake in possible_mistakes(problem, where))
    response = solution_with(problem, np.random.default_rng(seed), {where: mistake})
    findings = found(problem, response)
    pitfall = findings[pitfall_id(mistake, step)]
    assert (pitfall.score, pitfall.step) == (1.0, 4 if mistake == "box" else step)
    others = {id_ for id_ in satisfied(problem, response) if id_.startswith(("slip", "copy", "box", "other"))}
    assert others == {pitfall_id(mistake, step)} or mistake == "skip"
    assert {f"right-{k}" for k in range(1, where)} <= satisfied(problem, response)
    assert mistake == "box" or findings[f"right-{step}"].score == 0.0


@given(SEEDS)
def test_a_wrong_copy_leaves_the_answer_right_and_a_wrong_result_propagates(seed: int) -> None:
    problem, rng = one(seed), np.random.default_rng(seed)
    copied = solution_with(problem, rng, {2: "copy"})
    assert (answer_is_right(problem, copied), step_accuracy(problem, copied)) == (True, 0.75)
    for mistake in {"slip", "carry"} & set(possible_mistakes(problem, 1)):
        first, second, *_ = solution_with(problem, rng, {1: mistake}).splitlines()
        assert first.startswith("### Step 1: ")
        assert second.startswith(f"### Step 2: {first.partition('=')[2]}{problem.operations[1].operator}")


def test_mistakes_are_as_frequent_as_requested_and_carries_are_forgotten_more_often() -> None:
    rng = np.random.default_rng(0)
    drawn = problems(0, 2000)
    shares = [
        np.mean([step_accuracy(problem, solution(problem, rng, rate)) for problem in drawn]) for rate in (0.0, 0.1, 0.2)
    ]
    assert shares[0] == 1.0
    assert shares[0] > shares[1] > shares[2]
    carrying = [problem for problem in drawn if "carry" in possible_mistakes(problem, 1)]
    first_steps = [solution(problem, rng, 0.1).partition("\n")[0] for problem in carrying]
    forgotten = [
        said.endswith(f"={problem.values[1] - 10}") for problem, said in zip(carrying, first_steps, strict=True)
    ]
    assert 0.3 < np.mean(forgotten) < 0.5


def test_an_impossible_mistake_is_refused_with_the_possible_ones() -> None:
    possible = ", ".join(possible_mistakes(one(0), 1))
    with pytest.raises(ValueError, match=f"step 1 cannot have the mistake 'box'; possible are: {possible}"):
        solution_with(one(0), np.random.default_rng(0), {1: "box"})


@pytest.mark.parametrize("seed", range(20))
def test_the_rubrics_suit_their_modes(seed: int) -> None:
    check_rubric(RubricContent.model_validate(rubric(one(seed))).criteria, "stepwise")
    for mode in ("weighted_mean", "factual_override", "partial_credit", "gate"):
        check_rubric(RubricContent.model_validate(plain_rubric(one(seed))).criteria, mode)


async def rewards(
    http: httpx2.AsyncClient, make: Any, mode: str, asked: dict[ArithmeticProblem, list[str]]
) -> RewardAnswer:
    groups = [
        {"id": problem.prompt, "prompt": problem.prompt, "responses": responses, "rubric": make(problem)}
        for problem, responses in asked.items()
    ]
    answer = await http.post("/v1/rewards", json={"groups": groups, "reward": {"mode": mode}})
    assert answer.status_code == 200, answer.text
    return RewardAnswer.model_validate(answer.json())


async def test_a_service_rewards_solutions_without_a_judge_call(http: httpx2.AsyncClient) -> None:
    rng = np.random.default_rng(0)
    asked = {problem: [right(problem), *(solution(problem, rng, 0.2) for _ in range(7))] for problem in problems(0, 8)}
    stepwise = await rewards(http, rubric, "stepwise", asked)
    weighed = await rewards(http, plain_rubric, "weighted_mean", asked)
    assert stepwise.usage.judge_calls == weighed.usage.judge_calls == 0
    for (problem, responses), group, plain in zip(asked.items(), stepwise.groups, weighed.groups, strict=True):
        for response, rewarded, valued in zip(responses, group.responses, plain.responses, strict=True):
            correct, share = answer_is_right(problem, response), step_accuracy(problem, response)
            assert rewarded.reward == pytest.approx(0.9 * correct + 0.1)
            assert valued.reward == pytest.approx((correct + share) / 2)
            findings = found(problem, response)
            assert {v.criterion: v.score for v in rewarded.verdicts} == {id_: f.score for id_, f in findings.items()}
            assert {v.criterion: v.step for v in rewarded.verdicts} == {
                id_: 0 if id_ == "answer" else f.step for id_, f in findings.items()
            }
