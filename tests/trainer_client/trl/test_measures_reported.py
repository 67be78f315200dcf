"""A trainer's measures on the page of its run: refinements, scaffolds and gates, over a real service."""

import json
import time

import httpx2
import pytest

from tests.trainer_client.trl.generating import Prompts
from tests.trainer_client.trl.judges import FakeJudgeTransport, problem, rewarding
from tests.trainer_client.trl.test_dro import ANSWER, TEXTS
from tests.trainer_client.trl.training import PLAIN, RIGHT, SLIP, WRONG, dataset, trainer
from trainer_client import Client
from trainer_client.trl import RubricReward

pytestmark = pytest.mark.trl

FACTUAL = [{**criterion, "kind": "factual" if criterion["id"] == "answer" else "process"} for criterion in PLAIN]
NEVER = {**ANSWER[0], "id": "never", "verification": {"method": "contains", "all_of": ["never said"]}}
METHODS = {
    "rgr": ((WRONG, SLIP, WRONG, WRONG), dataset(FACTUAL), {"length_penalty": None}, {"rgr/refined": 0.25}),
    "ruscarl": (
        (RIGHT, WRONG),
        dataset(PLAIN),
        {"pattern": "binary", "full": 2, "decay": "constant", "weights": False},
        {"scaffold/prompts": 0.5, "scaffold/too_long": 0.0},
    ),
    "dro": (
        TEXTS,
        dataset([*ANSWER, NEVER], reference_answer=["Final answer: 14"] * 2),
        {"variance_filter": False, "p_min": 0.0, "p_max": 1.0},
        {"dro/accepted": 0.0, "dro/coverage": 1.0, "dro/no_answer": 0.25},
    ),
}


@pytest.mark.parametrize("method", METHODS)
def test_a_runs_page_shows_the_measures_of_its_method(tmp_path, url, method):
    texts, data, options, expected = METHODS[method]
    run = f"measured/{method}"
    made = trainer(
        tmp_path, url, data=data, method=method, method_options=options, reward=RubricReward(Client(url, run)),
        max_steps=2, mask_truncated_completions=False,
    )  # fmt: skip
    made.model.config.max_position_embeddings = 2048
    made.rollout_func = Prompts(*texts, later=(RIGHT,) if method == "rgr" else None)
    made.train()
    logged = {name: [row[name] for row in made.state.log_history if name in row] for name in expected}
    while httpx2.get(page := f"{url}/console/run?run={run}").status_code == 404:  # until the run is in the ledger
        time.sleep(0.1)
    assert "What the trainer reports" in httpx2.get(page).text
    text = httpx2.get(f"{url}/console/run/measures.csv", params={"run": run, "first": 0, "last": 1}).text
    lines = [line.split(",") for line in text.splitlines()[1:]]
    reported = {name: [float(mean) for one, _, _, mean in lines if one == name] for name in expected}
    assert {name: values[0] for name, values in reported.items()} == pytest.approx(expected)
    assert reported == {name: pytest.approx(values) for name, values in logged.items()}


def test_a_refused_report_is_a_warning_and_training_continues(tmp_path, caplog):
    judge = FakeJudgeTransport()
    judge.measures = lambda body: problem("not-found", 404)
    made = trainer(
        tmp_path, "", reward=rewarding(judge, {"criteria": PLAIN}, mode="graded_mean"), texts=("1", "0"), max_steps=2
    )
    made.train()
    assert made.state.global_step == 2
    assert caplog.text.count("measures of training were not reported, and training continues") == 1
    assert [json.loads(body)["step"] for body in judge.reported] == [0, 1]
