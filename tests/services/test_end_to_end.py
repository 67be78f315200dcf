"""The whole system with a real judge model: a process, HTTP, the trainer's client, and a model that dies."""

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from judge_server.models.downloads import fetch
from rubric_store import read_rubric
from tests.services.processes import Service, serving
from trainer_client import Client
from trainer_client.rewards import reward
from trainer_client.steps import has_format, step_deltas
from trainer_client.wire import ResponseReward, RubricVersion

pytestmark = pytest.mark.model

MODEL = "qwen2.5-coder-0.5b"
EXAMPLE = json.loads((Path(__file__).parents[2] / "examples" / "srar.jsonl").read_text().splitlines()[0])
SOME = ("suggest", "pitfall", "answer")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fetch the model, and return a new data folder."""
    fetch(MODEL)
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def judging(home: Path) -> Iterator[Service]:
    """A service with the small model; it uses one thread, so that it does not compete with the rest of the machine."""
    with serving(f"llamacpp://{MODEL}?context=1024&threads=1") as service:
        yield service


def child(service: Service) -> psutil.Process:
    """Return the process that holds the model."""
    children = psutil.Process(service.process.pid).children()
    (process,) = [each for each in children if "judge_server.engines.llamacpp.child" in each.cmdline()]
    return process


def publish(client: Client) -> RubricVersion:
    """Publish the example's rubric, with one criterion of each kind that matters to steps."""
    criteria = read_rubric(EXAMPLE["rubric"]).criteria
    return client.publish_rubric("math/example", [next(c for c in criteria if c.kind == kind) for kind in SOME])


def check(response: ResponseReward, text: str, rubric: RubricVersion) -> None:
    """Check that the whole answer follows from its verdicts."""
    headers = [match.start() for match in re.finditer(r"^### Step \d+", text, re.MULTILINE)]
    whole, *steps = response.steps
    assert (whole.number, whole.start, whole.end) == (0, 0, len(text))
    assert [step.start for step in steps] == headers
    assert [step.end for step in steps] == [*headers[1:], len(text)][: len(steps)]
    for step in steps:
        assert text[step.start : step.end].startswith(f"### Step {step.number}")
    assert response.status == "scored"
    for verdict in response.verdicts:
        assert verdict.step in {-1, 0, *(step.number for step in steps)}
        if verdict.method == "no_content":
            assert (text, verdict.score) == ("", 0.0)
            continue
        assert verdict.probability is not None
        assert 0 <= verdict.probability <= 1
        assert verdict.choice_mass is not None
        assert verdict.choice_mass > 0.1  # the model answers with one of the options
    scores = [verdict.score for verdict in response.verdicts]
    assert response.reward == pytest.approx(reward(rubric.criteria, scores, "stepwise", format_ok=has_format(text)))
    deltas = step_deltas(rubric.criteria, scores, [v.step for v in response.verdicts], len(steps))
    assert {s.number: s.delta for s in response.steps if s.delta is not None} == pytest.approx(deltas)


def test_a_trainer_gets_step_rewards_from_a_real_model_even_if_it_dies_and_is_restarted(
    judging: Service,
) -> None:
    texts = EXAMPLE["responses"]
    group = {"id": "q", "prompt": EXAMPLE["prompt"]}
    with Client(judging.url, run="test", timeout_s=120) as client:
        rubric = publish(client)
        judging.wait_until_ready(client)
        answer = client.rewards([group | {"responses": texts}], "math/example@1", "stepwise")
        for response, text in zip(answer.groups[0].responses, texts, strict=True):
            check(response, text, rubric)
        assert answer.judge is not None
        assert answer.judge.model == MODEL
        assert answer.usage.prompt_tokens_reused > answer.usage.prompt_tokens_computed

        again = client.rewards([group | {"responses": texts}], "math/example", "stepwise")
        assert again.usage.judge_calls == 0
        assert [r.reward for r in again.groups[0].responses] == [r.reward for r in answer.groups[0].responses]

        child(judging).kill()
        after = client.rewards([group | {"responses": [texts[0], "Something new."]}], "math/example", "stepwise")
        known, new = after.groups[0].responses
        assert known.reward == answer.groups[0].responses[0].reward
        assert new.status == "scored"  # its calls were held until the model was back
        assert new.reward is not None

        judging.wait_until_ready(client)
        back = client.rewards([group | {"responses": ["Something new."]}], "math/example", "stepwise")
        assert back.usage.judge_calls == 0
        assert back.groups[0].responses[0].reward == new.reward
    assert "Traceback" not in "".join(judging.said)


@pytest.mark.slow
def test_a_model_that_dies_during_a_request_yields_no_reward_for_unjudged_responses(
    judging: Service,
) -> None:
    texts = [f"Response number {n}: xy + 1/(xy) = {n}." for n in range(30)]
    group = {"id": "q", "prompt": EXAMPLE["prompt"], "responses": texts}
    with Client(judging.url, timeout_s=120) as client:
        publish(client)
        judging.wait_until_ready(client)
        process = child(judging)
        first = client.rewards([group | {"responses": texts[:1]}], "math/example", "stepwise")
        assert first.groups[0].responses[0].status == "scored"
        busy = process.cpu_times().user

        def kill_once_busy() -> None:
            pause = threading.Event()
            while process.cpu_times().user < busy + 0.3:
                pause.wait(0.005)
            process.kill()

        killer = threading.Thread(target=kill_once_busy)
        killer.start()
        answer = client.rewards([group], "math/example", "stepwise")
        killer.join()
    responses = answer.groups[0].responses
    assert responses[0].status == "scored"
    for response in responses:
        failed = [verdict for verdict in response.verdicts if verdict.status == "failed"]
        assert {verdict.failure.kind for verdict in failed if verdict.failure} <= {"engine", "timeout"}
        assert all(verdict.score is None for verdict in failed)
        if response.status == "unscored":
            assert response.reward is None


@pytest.mark.slow
def test_a_service_that_stops_or_is_killed_ends_its_model(home: Path) -> None:
    for stop in (Service.stop, lambda service: service.process.kill()):
        with serving(f"llamacpp://{MODEL}?context=1024&threads=1") as service, Client(service.url) as client:
            service.wait_until_ready(client)
            process = child(service)
            stop(service)
            psutil.wait_procs([process], timeout=20)
            assert not process.is_running()
