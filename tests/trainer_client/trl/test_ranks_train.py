"""Two ranks with halves of every group train like one process with all of it."""

import json
import os
import subprocess
import sys

import pytest
import torch

from tests.fixtures.ports import unused_port
from tests.trainer_client.trl.training import policy, weights

pytestmark = [pytest.mark.trl, pytest.mark.slow]

TWO_GROUPS = {"gradient_accumulation_steps": 2, "steps_per_generation": 2}  # one on each of two ranks
REFILLED = {"method_options": {"dynamic_sampling": True}, "max_refill_rounds": 3, **TWO_GROUPS}
TRAININGS = {
    "srar": {"method": "srar"},
    "grounded": {"method": "grounded", "beta": 0.1},
    "rubric": {"method": "rubric", "loss_type": "dr_grpo", "scale_rewards": "none"},
    "gdpo": {"method": "gdpo", **TWO_GROUPS},
    "refilled": {"method": "grounded", **REFILLED},
    "refilled rgr": {"method": "rgr", **REFILLED},
    "rgr": {"method": "rgr"},
    "rgr with a server": {"method": "rgr"},
    "dro": {"method": "dro", "method_options": {"every": 1, "p_min": 0.0, "p_max": 1.0}},
    "ruscarl": {"method": "ruscarl", "method_options": {"decay": "constant"}},
    "ruscarl corrected": {
        "method": "ruscarl",
        "method_options": {"decay": "constant", "ratio": "corrected"},
        "num_iterations": 2,
    },
    "ruscarl with a server": {"method": "ruscarl", "method_options": {"decay": "constant", "ratio": "scaffolded"}},
}
LOGGED = {
    "srar": {"rewards/RubricReward/mean", "rubric/left_out", "groups/unscored", "steps/scored"},
    "grounded": {"measures/pass_at_8", "measures/diversity", "measures/loops", "measures/novelty/median"},
    "rgr": {"rgr/refined", "rgr/refine", "rgr/satisfied", "rgr/too_long", "rgr/shaped_weight", "measures/off_policy"},
    "dro": {"dro/reward", "dro/accepted", "dro/threshold"},
    "ruscarl": {"scaffold/prompts", "scaffold/progress", "scaffold/too_long"},
}


def start(folder, url, ranks, **settings):
    """Run all trainings in sequence with this many processes."""
    trainings = {
        name: {"per_device_train_batch_size": 8 // ranks, **given, **settings} for name, given in TRAININGS.items()
    }
    for name in trainings:
        policy(folder / name / "policy")
        trainings[name]["server"] = ranks > 1 and name.endswith("server")
    command = [sys.executable, "-m", "tests.trainer_client.trl.rank_process", str(folder), url, json.dumps(trainings)]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(unused_port()), "WORLD_SIZE": str(ranks)}
    processes = []
    for rank in range(ranks):
        place = {**meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}
        environment = {**os.environ, "TRL_EXPERIMENTAL_SILENCE": "1", "OMP_NUM_THREADS": "1", **place}
        processes.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    try:
        for process in processes:
            said, _ = process.communicate(timeout=600)
            assert process.returncode == 0, said[-3000:]
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def trained(tmp_path_factory, url):
    """A folder with the results of each training by one process and by two."""
    folder = tmp_path_factory.mktemp("trained")
    start(folder, url, 1, max_steps=2)
    start(folder, url, 2, max_steps=2)
    return folder


@pytest.mark.parametrize("name", TRAININGS)
def test_two_ranks_end_with_the_weights_of_one_process(trained, name):
    alone, first, second = (torch.load(trained / name / f"rank{n}.pt") for n in ("0-of-1", "0-of-2", "1-of-2"))
    assert "Num processes: 2" in first["device"]
    assert alone["weights"].dtype == torch.float64
    assert (alone["weights"] - weights(policy(trained / name / "policy", torch.float64))).abs().max() > 1e-3
    torch.testing.assert_close(first["weights"], alone["weights"], atol=1e-6, rtol=0)
    torch.testing.assert_close(second["weights"], first["weights"], atol=0, rtol=0)
    half = 4 * TRAININGS[name].get("steps_per_generation", 1)
    assert [rank["log"][0]["first"] for rank in (alone, first, second)] == [0, 0, half]


@pytest.mark.parametrize("name", TRAININGS)
def test_two_ranks_log_the_metrics_of_one_process(trained, name):
    alone, first = (torch.load(trained / name / f"rank0-of-{ranks}.pt")["log"][:2] for ranks in (1, 2))
    families = (
        "rewards/",
        "rubric/left",
        "groups/",
        "steps/",
        "rgr/",
        "dro/",
        "scaffold/",
        "measures/",
        "refill/",
        "policy/",
    )
    for mine, theirs in zip(alone, first, strict=True):
        wanted = {key: value for key, value in mine.items() if key.startswith(families)}
        assert {key: value for key, value in theirs.items() if key.startswith(families)} == pytest.approx(wanted)
    assert LOGGED.get(TRAININGS[name]["method"], set()) <= alone[0].keys() | alone[1].keys()


def test_the_compared_features_were_exercised(trained):
    """One group was refined and one was not, scaffolds were shown, and DRO's filter kept one group of two."""
    logs = {name: torch.load(trained / name / "rank0-of-1.pt")["log"] for name in TRAININGS}
    assert [one["rgr/refined"] for one in logs["rgr"][:2]] == [1 / 8, 0.0]
    assert logs["srar"][0]["measures/loops"] == 1 / 8
    assert logs["ruscarl"][0]["scaffold/prompts"] == 0.75
    assert logs["ruscarl corrected"][0]["policy/self_internalization_gap"] != 0.0
    assert [one["refill/left"] for one in logs["refilled"][:2] + logs["refilled rgr"][:2]] == [0.0] * 4
    assert min(one["refill/rounds"] for one in logs["refilled"][:2]) >= 1
    assert logs["refilled rgr"][0]["measures/off_policy"] == 1 / 8
    assert [one["dro/accepted"] for one in logs["dro"][:2]] == [1.0, 0.0]
    assert logs["dro"][1]["dro/variance"] == 1.0
