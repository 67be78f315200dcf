"""Recipes: each script trains a tiny model for a few steps, and each config has its paper's settings."""

import json
import runpy
import sys
from pathlib import Path

import pytest
from examples.recipes import run as recipes_run

from tests.trainer_client.trl.training import CRITERIA, PLAIN, policy, tokenizer
from trainer_client.trl import RubricGRPOConfig
from trainer_client.trl.config import RECIPES

pytestmark = pytest.mark.trl

SCRIPTS = sorted(
    path.stem for path in Path(recipes_run.__file__).parent.glob("*.py") if path.stem not in ("run", "__init__")
)
CPU = {"use_cpu": True, "bf16": False, "report_to": "none"}
TINY = {
    **CPU, "max_completion_length": 12, "max_steps": 2, "num_generations": 4, "per_device_train_batch_size": 4,
    "disable_tqdm": True, "save_strategy": "no", "gradient_checkpointing": False, "logging_steps": 1,
}  # fmt: skip


def test_every_recipe_has_a_script():
    assert sorted(name.replace("-", "_") for name in RECIPES) == SCRIPTS


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_trains(tmp_path, url, monkeypatch, script):
    model = tmp_path / "policy"
    made = policy(model)
    made.config.max_position_embeddings = 4096
    made.save_pretrained(model)
    tokenizer().save_pretrained(model)
    criteria = CRITERIA if script in ("srar", "rar") else [{**one, "kind": "factual"} for one in PLAIN]
    row = {"rubric": json.dumps(criteria), "ground_truth": "14", "reference_answer": "14"}
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join(json.dumps({"prompt": f"({n}+3)*2=?\n", **row}) for n in range(4)))
    kept = []
    train = recipes_run.RubricGRPOTrainer.train
    monkeypatch.setattr(recipes_run.RubricGRPOTrainer, "train", lambda self: (kept.append(self), train(self)))
    settings = [part for name, value in TINY.items() for part in ("--set", f"{name}={json.dumps(value)}")]
    monkeypatch.setattr(
        sys, "argv", ["x", str(model), str(data), url, str(tmp_path / "out"), "--prompts", "2", *settings]
    )
    runpy.run_module(f"examples.recipes.{script}", run_name="__main__")
    assert kept[0].state.global_step == 2
    assert {"reward", "loss"} <= kept[0].state.log_history[0].keys()


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("processes", [1, 8])
def test_a_generation_has_the_papers_prompts_and_updates(tmp_path, monkeypatch, name, processes):
    monkeypatch.setenv("WORLD_SIZE", "1")
    made = RubricGRPOConfig.recipe(name, str(tmp_path), **CPU)
    found = RECIPES[name]
    assert made.generation_batch_size == found.prompts * made.num_generations
    assert made.steps_per_generation == found.updates * made.gradient_accumulation_steps
    arguments = found.arguments(None, {})
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    spread = found.arguments(None, {"per_device_train_batch_size": 1})
    group = spread["num_generations"]
    assert spread["steps_per_generation"] * processes == arguments["steps_per_generation"] * group


@pytest.mark.parametrize(
    ("name", "stated"),
    [
        ("rgr", {"max_completion_length": 5120, "max_steps": 400, "entropy_coef": 0.01, "beta": 0.0, "top_p": 1.0}),
        ("rgr-rubric", {"max_completion_length": 5120, "beta": 0.001, "method": "rubric"}),
        ("srar", {"max_completion_length": 8192, "max_steps": 200, "weight_decay": 0.1, "delta": 10.0}),
        ("dro", {"num_generations": 16, "top_p": 0.95, "warmup_steps": 0.2, "mask_truncated_completions": True}),
        ("ruscarl", {"max_completion_length": 4096, "num_train_epochs": 5, "beta": 0.001, "top_k": 20}),
    ],
)
def test_a_recipe_has_its_papers_settings(tmp_path, name, stated):
    made = RubricGRPOConfig.recipe(name, str(tmp_path), **CPU)
    assert {setting: getattr(made, setting) for setting in stated} == stated


@pytest.mark.parametrize("name", ["srar", "rar", "dapo"])
def test_srar_and_its_baselines_refill_by_accuracy(tmp_path, name):
    made = RubricGRPOConfig.recipe(name, str(tmp_path), **CPU)
    method = made.build_method()
    assert (made.max_refill_rounds, method.dynamic_sampling, method.filter_metric) == (10, True, "accuracy")


def test_given_settings_override_a_recipes(tmp_path):
    assert RubricGRPOConfig.recipe("srar", str(tmp_path), learning_rate=1e-5, **CPU).learning_rate == 1e-5


def test_a_given_option_keeps_the_recipes_other_options(tmp_path):
    made = RubricGRPOConfig.recipe("srar", str(tmp_path), method_options={"normalise": False}, **CPU)
    assert made.method_options == {"dynamic_sampling": True, "filter_metric": "accuracy", "normalise": False}


def test_a_generation_that_does_not_divide_evenly_names_the_setting_to_change(tmp_path):
    with pytest.raises(ValueError, match=r"not a multiple of .* \(24\); set per_device_train_batch_size to a divisor"):
        RubricGRPOConfig.recipe("dro", str(tmp_path), per_device_train_batch_size=24, **CPU)


def test_an_unknown_recipe_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match="recipe is 'ppo'; use one of rgr, rgr-outcome"):
        RubricGRPOConfig.recipe("ppo", str(tmp_path))
