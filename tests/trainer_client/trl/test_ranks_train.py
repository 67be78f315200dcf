"""Two ranks that hold halves of every group train as one process that holds all of it."""

import json
import os
import subprocess
import sys

import pytest
import torch

from tests.fixtures.ports import unused_port
from tests.trainer_client.trl.training import policy, weights

pytestmark = pytest.mark.trl


def run(folder, url, ranks, **settings):
    """Train with this many processes; the parameters and the log of each."""
    settings = {"per_device_train_batch_size": 8 // ranks, **settings}
    command = [sys.executable, "-m", "tests.trainer_client.trl.rank_process", str(folder), url, json.dumps(settings)]
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
            said, _ = process.communicate(timeout=240)
            assert process.returncode == 0, said[-3000:]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [torch.load(folder / f"rank{rank}-of-{ranks}.pt") for rank in range(ranks)]


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "srar"},
        {"method": "grounded", "beta": 0.1},
        {"method": "rubric", "loss_type": "dr_grpo", "scale_rewards": "none"},
    ],
    ids=lambda settings: settings["method"],
)
def test_two_ranks_move_the_policy_as_one_process_does(tmp_path, url, settings):
    policy(tmp_path / "policy")
    (alone,) = run(tmp_path, url, 1, max_steps=2, **settings)
    first, second = run(tmp_path, url, 2, max_steps=2, **settings)
    assert "Num processes: 2" in first["device"]
    assert alone["weights"].dtype == torch.float64
    assert (alone["weights"] - weights(policy(tmp_path / "policy", torch.float64))).abs().max() > 1e-3
    torch.testing.assert_close(first["weights"], alone["weights"], atol=1e-6, rtol=0)
    torch.testing.assert_close(second["weights"], first["weights"], atol=0, rtol=0)
    assert [rank["log"][0]["first"] for rank in (alone, first, second)] == [0, 0, 4]
    measures = [name for name in alone["log"][0] if name.startswith("measures/")]
    assert {"measures/pass_at_8", "measures/diversity", "measures/loops"} <= set(measures)
    assert alone["log"][0]["measures/loops"] == 1 / 8
    assert ("measures/novelty/median" in measures) == ("beta" in settings)
    for name in ("rewards/RubricReward/mean", "rubric/left_out", "groups/unscored", *measures):
        assert first["log"][1][name] == pytest.approx(alone["log"][1][name]), name
