"""The pages on verl and OpenRLHF name existing objects, and their code runs as these would run it."""

import asyncio
import importlib.util
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.docs.pages import ROOT, blocks, name, table
from tests.trainer_client.verl.services import JUDGED, SHORT, TOO_LONG, running
from trainer_client import Client, JudgingFailed
from trainer_client.client.keywords import RewardKeywords
from trainer_client.verl import compute_score
from trainer_client.verl.estimators import ESTIMATORS

pytestmark = pytest.mark.trl

PAGE = ROOT / "docs/how-to/train-with-verl.md"
SETTINGS = ROOT / "docs/reference/verl-settings.md"
OPENRLHF_PAGE = ROOT / "docs/how-to/train-with-openrlhf.md"
ADDRESS = "http://127.0.0.1:8000"
(TRY,) = blocks(PAGE, "python")
(OPENRLHF,) = blocks(OPENRLHF_PAGE, "python")
COMMANDS = [*blocks(PAGE, "diff"), *blocks(PAGE, "bash")]
OWN = {"reward_router_address", "reward_model_tokenizer"}
KEYWORDS = {name for name, p in inspect.signature(compute_score).parameters.items() if p.kind is p.KEYWORD_ONLY} - OWN


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service whose judge says yes unless the text is too long."""
    with running("scripted://yes?context=5000", tmp_path_factory.mktemp("data")) as url:
        with Client(url) as client:
            client.publish_rubric("math/short", [SHORT])
            client.publish_rubric("math/judged", [JUDGED])
        yield url


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def named(pattern: str) -> set[str]:
    """The names that match this pattern in the commands."""
    return {name for command in COMMANDS for name in re.findall(pattern, command)}


def test_every_setting_of_the_reward_has_a_row() -> None:
    assert {name for row in table(SETTINGS, "Settings") for name in codes(row["name"])} == KEYWORDS


def test_the_documented_defaults_are_those_of_the_function() -> None:
    said = {
        name: default
        for row in table(SETTINGS, "Settings")
        for name, default in zip(codes(row["name"]), row["default"].replace("`", "").split(", "), strict=True)
    }
    own = {name: inspect.signature(compute_score).parameters[name].default for name in said if name != "url"}
    assert said == {"url": "needed"} | {
        name: "none" if default is None else str(default).removesuffix(".0") for name, default in own.items()
    }


def test_every_estimator_has_a_row() -> None:
    assert [name for row in table(SETTINGS, "Estimators") for name in codes(row["name"])] == list(ESTIMATORS)


def test_the_commands_use_existing_names() -> None:
    assert named(r"adv_estimator=(adjudge\w+)") <= ESTIMATORS.keys()
    assert named(r"reward_kwargs\.(\w+)=") <= KEYWORDS | RewardKeywords.__annotations__.keys()
    assert named(r"pkg://([\w.]+)") == {"trainer_client.verl"}
    modules = {module for line in named(r"EXTERNAL_MODULES=(\S+)") for module in line.split(",")}
    assert modules == {f"trainer_client.verl.{name}" for name in ("plugin", "stepwise", "gdpo")}
    assert all(importlib.util.find_spec(module) for module in modules)


def test_every_penalty_option_on_the_page_exists() -> None:
    said = SETTINGS.read_text(encoding="utf-8")
    options = set(re.findall(r"`(\w+_(?:penalty|factor))`", said))
    assert (
        options == {"length_penalty", "overlong_penalty", "truncation_factor"} <= RewardKeywords.__annotations__.keys()
    )


def test_a_row_can_be_tried_as_shown(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(TRY.replace(ADDRESS, address), name(PAGE), "exec"), {})
    assert capsys.readouterr().out == "1.0 scored \n"


@pytest.fixture
def reward_file(address: str, tmp_path: Path) -> Iterator[ModuleType]:
    """The file, imported as OpenRLHF imports `--reward.remote_url`."""
    path = tmp_path / "reward_func.py"
    path.write_text(OPENRLHF.replace(ADDRESS, address), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("reward_func", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    module.client.close()


def asked(module: ModuleType, query: str, prompt: str, label: object) -> dict[str, torch.Tensor]:
    """Call it as OpenRLHF does: in a thread, with one sample at a time."""
    result = asyncio.run(asyncio.to_thread(module.reward_func, [query], [prompt], [json.dumps(label)]))
    return {"reward": torch.tensor([result["rewards"]]), "score": torch.tensor([result["scores"]])} | {
        name: value.flatten()[0].item() for name, value in result["extra_logs"].items()
    }


def test_openrlhf_gets_the_services_reward(reward_file: ModuleType) -> None:
    [written] = blocks(OPENRLHF_PAGE, "json")
    prompt = "<|im_start|>user\nWhat is 6 times 7?<|im_end|>\n<|im_start|>assistant\n"
    for response, worth in (("42", 1.0), ("It is 42.", 0.0)):
        got = asked(reward_file, f"{prompt}{response}<|im_end|>", prompt, json.loads(written))
        assert got == {"reward": torch.tensor([worth]), "score": torch.tensor([worth]), "rubric": worth}


def test_openrlhf_gets_no_reward_if_judging_failed(reward_file: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    reward_file.client.close()
    reward_file.client = Client(reward_file.client.base_url, retries=0)
    with pytest.raises(JudgingFailed):
        asked(reward_file, f"Hi.{TOO_LONG}", "Hi.", {"rubric": "math/judged@1"})


def test_a_response_that_cannot_be_separated_from_its_prompt_is_refused(reward_file: ModuleType) -> None:
    with pytest.raises(ValueError, match="cannot be told"):
        asked(reward_file, "hi. 42", "Hi.", {"rubric": "math/short@1"})
