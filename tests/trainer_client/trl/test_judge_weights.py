"""A judge that follows the policy: each checkpoint's adapter becomes the judge's."""

import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from tests.fixtures.served_app import served
from tests.fixtures.waiting import wait_until
from tests.services.processes import listening
from trainer_client import Client, WeightsChanged
from trainer_client.trl.reward import RubricReward

pytest.importorskip("torch")
pytestmark = pytest.mark.trl

RUBRIC = [{"id": "right", "description": "Is right."}]


class JudgeService:
    """The routes of a service about its judge's weights and sleep.

    Attributes:
        weights: the weights that the judge has.
        asked: the requests: verb or version, and the tag expected.
        refuses: whether it refuses to load.
    """

    def __init__(self):
        self.weights = {"judge": "default", "model": "m", "tag": "start", "version": None, "adapter": None}
        self.asked, self.refuses = [], False

    def app(self):
        """The application."""
        app = FastAPI(openapi_url=None)
        path = "/v1/judges/default"

        @app.get(f"{path}/weights")
        async def read():
            return self.weights

        @app.put(f"{path}/weights")
        async def change(request: Request):
            body, expected = await request.json(), request.headers.get("if-match")
            self.asked.append((body["version"], expected))
            if self.refuses:
                return problem("invalid-request", 422)
            if expected != f'"{self.weights["tag"]}"':
                return problem("weights-changed", 412)
            self.weights |= {name: body[name] for name in ("version", "adapter")} | {"tag": f"tag of {body['version']}"}
            return self.weights

        @app.post(f"{path}/{{verb}}")
        async def lease(verb):
            self.asked.append((verb, None))
            return {"judge": "default", "state": "awake" if verb == "wake" else "asleep"}

        return app


def problem(kind, status):
    """A problem of the service."""
    fields = {"type": f"urn:adjudge:{kind}", "title": kind, "status": status, "detail": kind, "request_id": "req_1"}
    fields |= {"retryable": False, "errors": []}
    return JSONResponse(fields, status, media_type="application/problem+json")


@pytest.fixture
def service():
    """A service, and its address."""
    made = JudgeService()
    with served(made.app()) as port:
        yield made, f"http://127.0.0.1:{port}"


def checkpoint(folder, step):
    """A checkpoint of a PEFT model."""
    at = folder / f"checkpoint-{step}"
    at.mkdir(parents=True)
    (at / "adapter_config.json").write_text("{}")
    (at / "adapter_model.safetensors").write_text(f"weights of step {step}")
    (at / "optimizer.pt").write_text("large")


def save(callback, folder, step, *, main=True):
    """What the trainer does after a checkpoint."""
    state = SimpleNamespace(is_world_process_zero=main, global_step=step)
    callback.on_save(SimpleNamespace(output_dir=str(folder)), state, None)


def callback_of(url, folder, **options):
    """A callback for a judge at this address."""
    from trainer_client.trl import JudgeWeightsCallback

    return JudgeWeightsCallback(RubricReward(Client(url, "self/1"), RUBRIC, preflight=False, **options), folder)


def test_each_checkpoints_adapter_becomes_the_judges(service, tmp_path):
    judge, url = service
    callback = callback_of(url, tmp_path / "adapters")
    for step in (10, 20):
        checkpoint(tmp_path, step)
        save(callback, tmp_path, step, main=False)
        save(callback, tmp_path, step)
        assert judge.weights["adapter"] == f"self/1/step-{step}"
        copied = tmp_path / "adapters" / judge.weights["adapter"]
        assert (copied / "adapter_model.safetensors").read_text() == f"weights of step {step}"
        assert sorted(file.name for file in copied.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
        assert callback.weights.version == f"step-{step}"
    assert judge.asked == [("step-10", '"start"'), ("step-20", '"tag of step-10"')]


def test_a_refused_adapter_is_warned_about_and_training_goes_on(service, tmp_path, caplog):
    judge, url = service
    callback = callback_of(url, tmp_path / "adapters")
    judge.refuses = True
    checkpoint(tmp_path, 10)
    with caplog.at_level(logging.WARNING):
        save(callback, tmp_path, 10)
    assert "does not follow the policy to step 10" in caplog.text
    assert callback.weights is None


def test_training_stops_if_somebody_else_changed_the_judge_but_not_if_it_was_restarted(service, tmp_path):
    judge, url = service
    callback = callback_of(url, tmp_path / "adapters")
    for step in (10, 20, 30):
        checkpoint(tmp_path, step)
    save(callback, tmp_path, 10)
    judge.weights |= {"version": None, "adapter": None, "tag": "start"}
    save(callback, tmp_path, 20)
    judge.weights |= {"version": "theirs", "tag": "theirs"}
    with pytest.raises(WeightsChanged):
        save(callback, tmp_path, 30)


def test_a_judge_that_shares_the_gpus_is_woken_for_it(service, tmp_path):
    judge, url = service
    callback = callback_of(url, tmp_path / "adapters", judge_lease_s=600)
    judge.asked.clear()
    checkpoint(tmp_path, 10)
    save(callback, tmp_path, 10)
    assert [what for what, _ in judge.asked] == ["wake", "step-10", "sleep"]


def test_a_checkpoint_without_an_adapter_is_refused(service, tmp_path):
    _, url = service
    (tmp_path / "checkpoint-10").mkdir()
    with pytest.raises(ValueError, match="holds no LoRA adapter"):
        save(callback_of(url, tmp_path / "adapters"), tmp_path, 10)


@pytest.mark.processes
def test_each_step_of_training_is_judged_by_the_adapter_of_the_checkpoint_before(tmp_path, monkeypatch):
    pytest.importorskip("trl")
    from transformers import TrainerCallback

    from tests.trainer_client.trl.training import dataset, trainer
    from trainer_client.trl import JudgeWeightsCallback

    class Adapters(TrainerCallback):
        """Saves an adapter with each checkpoint, as the trainer of a PEFT model does."""

        def on_save(self, args, state, control, **_):
            at = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            (at / "adapter_config.json").write_text("{}")
            (at / "adapter_model.safetensors").write_text(f"weights of step {state.global_step}")

    monkeypatch.setenv("ADJUDGE_DATA_DIR", str(tmp_path / "data"))
    folder = tmp_path / "adapters"
    folder.mkdir()
    serving = ("serve", "--port", "0", "--engine", "scripted://hash")
    with listening(*serving, ADJUDGE_ADAPTERS_DIR=str(folder)) as running, Client(running.url) as client:
        running.wait_until_ready(client)
        reward = RubricReward(Client(running.url, "self/trained"), RUBRIC)
        data, saving = dataset().remove_columns("rubric"), {"save_strategy": "steps", "save_steps": 1}
        texts = ["14", "It is 15."]
        trained = trainer(tmp_path, running.url, texts=texts, data=data, reward=reward, max_steps=3, **saving)
        trained.add_callback(Adapters())
        trained.add_callback(JudgeWeightsCallback(reward, folder))
        trained.train()
        assert client.judge_weights().version == "step-3"
        wait_until(lambda: len(judges_of(client)) == 3)
        assert [step for step, _ in judges_of(client)] == [0, 1, 2]
        assert len({fingerprint for _, fingerprint in judges_of(client)}) == 3


def judges_of(client):
    """The fingerprint of the judge at each step of the run."""
    return sorted({(one.step, one.fingerprint) for one in client.recorded_verdicts(run="self/trained")})
