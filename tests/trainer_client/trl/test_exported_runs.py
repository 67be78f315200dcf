"""A run that a service judged and `adjudge export` wrote trains TRL's own trainers."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from datasets import load_dataset
from transformers import PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from tests.fixtures.waiting import wait_until
from tests.services.command import adjudge
from tests.trainer_client.trl.training import BARE, CRITERIA, RIGHT, SLIP, WRONG, policy, tokenizer
from trainer_client import Client

pytestmark = pytest.mark.trl

STEPS = 10
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


@pytest.fixture(scope="module", params=["texts", "messages"])
def run(request: pytest.FixtureRequest, url: str) -> str:
    """A run of six prompts, which are texts or messages, with four responses each."""
    name = f"exported-{uuid4().hex}"
    texts: Sequence[Any] = [f"({n}+3)+4)*2=?" for n in range(6)]
    if request.param == "messages":
        texts = [[{"role": "user", "content": text}] for text in texts]
    groups = [
        {"id": f"g{n}", "prompt": text, "responses": [RIGHT, SLIP, WRONG, BARE], "ground_truth": "14"}
        for n, text in enumerate(texts)
    ]
    with Client(url, run=name) as client:
        client.rewards(groups, {"criteria": CRITERIA}, mode="stepwise", step=1)
    wait_until(lambda: httpx2.get(f"{url}/v1/ledger").json()["waiting"] == 0)
    return name


def words() -> PreTrainedTokenizerFast:
    """A tokenizer with a template for messages."""
    made = tokenizer()
    made.chat_template = TEMPLATE
    return made


def settings(folder: Path) -> dict[str, Any]:
    """Settings of every trainer: ten steps on a CPU."""
    return {
        "output_dir": str(folder / "out"),
        "max_steps": STEPS,
        "per_device_train_batch_size": 2,
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 1,
        "gradient_checkpointing": False,
        "max_length": 128,
    }


def trained(trainer: Any) -> list[float]:
    """The losses of a training."""
    trainer.train()
    assert trainer.state.global_step == STEPS
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_pairs_of_a_run_train_dpo_for_ten_steps(run: str, url: str, tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"pairs.{ending}"
    adjudge("export", run, "--as", "pairs", "--all-pairs", "--url", url, "-o", file, exit_code=0)
    data = load_dataset({"jsonl": "json"}.get(ending, ending), data_files=str(file), split="train")
    assert len(data) >= 6
    assert all(row["chosen_reward"] > row["rejected_reward"] for row in data)
    trainer = DPOTrainer(
        policy(tmp_path / "model"),
        args=DPOConfig(**settings(tmp_path), learning_rate=0.01),
        train_dataset=data,
        processing_class=words(),
    )
    losses = trained(trainer)
    assert len(losses) == STEPS
    assert losses[-1] < losses[0]


def test_the_best_responses_of_a_run_train_sft_for_ten_steps(run: str, url: str, tmp_path: Path) -> None:
    file = tmp_path / "best.jsonl"
    adjudge("export", run, "--as", "best", "--url", url, "-o", file, exit_code=0)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["completion"] for row in rows] in ([RIGHT] * 6, [[{"role": "assistant", "content": RIGHT}]] * 6)
    trainer = SFTTrainer(
        policy(tmp_path / "model"),
        args=SFTConfig(**settings(tmp_path), learning_rate=0.01),
        train_dataset=load_dataset("json", data_files=str(file), split="train"),
        processing_class=words(),
    )
    losses = trained(trainer)
    assert losses[-1] < losses[0]
