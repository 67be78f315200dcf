"""The learning example's runs: each has a configuration, and evaluation counts plain questions only."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("trl")

from examples.learning import __main__ as command
from examples.learning.accuracy_callback import AccuracyCallback, read_problem, write_problem
from examples.learning.arithmetic import problems
from examples.learning.runs import EXPERIMENTS, RUNS
from examples.learning.solutions import solution
from examples.learning.train import GROUP, dataset, settings

from trainer_client.trl.callbacks import ScoredGeneration

pytestmark = pytest.mark.trl


def watched(said: list[str], asked: list[str], off_policy: list[bool] | None) -> dict[str, float]:
    watch = AccuracyCallback()
    assert watch(completions=said, problem=asked) == [0.0] * len(said)
    scored = ScoredGeneration([0.0] * len(said), {}, len(said), said, 0, off_policy, training=True)
    assert watch.on_scored(scored) == {}
    (step,) = watch.steps
    return step


def test_a_written_problem_is_read_back_unchanged() -> None:
    (problem,) = problems(0, 1, steps=4, unexplained=2)
    assert read_problem(write_problem(problem)) == problem


def test_responses_to_longer_prompts_do_not_count() -> None:
    problem, other = problems(0, 2, steps=4)
    right = solution(problem, np.random.default_rng(0))
    unanswered = right.partition("\\boxed")[0]
    asked = [write_problem(problem)] * 3 + [write_problem(other)]
    said = [right, unanswered, right, right]
    everything = watched(said, asked, None)
    assert everything["answer"] == everything["faithful"] == 0.5
    assert (everything["answered"], everything["solved"], everything["plain"]) == (0.75, 0.5, 1.0)
    assert everything["steps"] == 0.75 == watched(said, asked, [False] * 4)["steps"]
    plain = watched(said, asked, [True, False, True, False])
    assert (plain["answer"], plain["solved"], plain["answered"], plain["plain"]) == (0.0, 0.0, 0.5, 0.5)


@pytest.mark.parametrize("name", RUNS)
def test_a_run_has_settings_and_problems_with_rubrics(name: str) -> None:
    run = RUNS[name]
    config = settings(run, 0, 2)
    assert (config.num_generations, config.temperature, config.top_p, config.top_k) == (GROUP, 1.0, 1.0, 0)
    assert config.method == run.method
    rows = dataset(run, 0, 2)
    assert len(rows) == 2 * EXPERIMENTS[run.experiment].prompts
    unexplained = {sum(sign == "@" for sign, _ in read_problem(row["problem"]).operations) for row in rows}
    assert unexplained == {EXPERIMENTS[run.experiment].unexplained}
    assert all(json.loads(row["rubric"])["criteria"] for row in rows)


def test_labels_differ_within_an_experiment() -> None:
    for experiment in EXPERIMENTS:
        labels = [run.label for run in RUNS.values() if run.experiment == experiment]
        assert len(labels) == len(set(labels)) > 1


def test_a_table_shows_the_last_steps_of_each_run_over_its_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "CACHE", tmp_path)
    for seed, end in enumerate((0.25, 0.75)):
        file = command.result("dro-gated", seed, None)
        assert file.name == f"dro-gated-{seed}-{EXPERIMENTS['unanswered'].steps}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        steps = [{"answered": 1.0, "answer": 0.0, "steps": 0.0}] * 30
        steps += [{"answered": 0.5, "answer": end, "steps": 1.0}] * 10
        file.write_text(json.dumps(steps), encoding="utf-8")
    head, _, row = command.table(EXPERIMENTS["unanswered"], ["dro-gated"], [0, 1], None).splitlines()
    assert head == "| run | responses with an answer | right answers | right steps |"
    assert row == "| DRO | 0.500 (0.500..0.500) | 0.500 (0.250..0.750) | 1.000 (1.000..1.000) |"
