"""The two training scripts: they differ as the training page shows, and both train."""

import ast
import json
import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl")

from tests.docs.pages import ROOT, blocks
from tests.trainer_client.trl.training import policy, tokenizer

pytestmark = pytest.mark.trl

FOLDER = ROOT / "examples/training"
ADDRESS = "http://127.0.0.1:8000"


def lines(name: str, without: str | None = None) -> list[str]:
    """A script's lines of code, without docstring, blank lines and one of its functions."""
    source = (FOLDER / name).read_text(encoding="utf-8")
    docstring, *body = ast.parse(source).body
    left_out = [docstring, *(part for part in body if isinstance(part, ast.FunctionDef) and part.name == without)]
    gone = {line for part in left_out for line in range(part.lineno, (part.end_lineno or part.lineno) + 1)}
    return [line for number, line in enumerate(source.splitlines(), 1) if line.strip() and number not in gone]


def changes(sign: str) -> list[str]:
    """The lines that the page removes or adds, with the script's address."""
    (diff,) = blocks(ROOT / "docs/how-to/use-adjudge-with-trl.md", "diff")
    shown = [line.removeprefix(sign).removeprefix(" ") for line in diff.splitlines() if line.startswith(sign)]
    return [line.replace("http://judge:8000", ADDRESS) for line in shown]


def test_the_scripts_differ_by_the_diff_on_the_page_and_the_unneeded_function() -> None:
    (reward,) = changes("-")
    importing, instead = changes("+")
    plain = lines("plain.py", without=reward.strip().removeprefix("reward_funcs=").removesuffix(","))
    assert plain != lines("plain.py")
    after = plain.index("from trl import GRPOConfig, GRPOTrainer") + 1
    changed = [instead if line.strip() == reward.strip() else line for line in plain]
    assert [*changed[:after], importing, *changed[after:]] == lines("rubric.py")
    assert changed != plain


@pytest.mark.parametrize("name", ["plain.py", "rubric.py"])
def test_a_script_trains_a_model_from_a_local_folder(
    name: str, tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    policy(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    script = (FOLDER / name).read_text(encoding="utf-8")
    for there, here in (("max_steps=100", "max_steps=1, use_cpu=True"), (ADDRESS, url)):
        assert there in script or (there, name) == (ADDRESS, "plain.py")
        script = script.replace(there, here)
    run = train(capsys, tmp_path, name, script)
    assert "'train_loss'" in run
    assert ("'rubric/pass/arithmetic'" in run) == (name == "rubric.py")
    assert "'rubric/failed_verdicts': '0'" in run or name == "plain.py"


def test_the_checkpoint_of_the_best_held_out_reward_is_kept_and_loaded(
    tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "select_checkpoint.py"
    policy(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    script = (FOLDER / name).read_text(encoding="utf-8")
    quick = "max_steps=3, use_cpu=True, learning_rate=0.05, max_completion_length=32"
    for there, here in (("max_steps=100", quick), (ADDRESS, url), ("_steps=10,", "_steps=1,")):
        assert there in script
        script = script.replace(there, here)
    said = train(capsys, tmp_path, name, script)
    states = [json.loads(file.read_text()) for file in (tmp_path / "out").glob("checkpoint-*/trainer_state.json")]
    last = max(states, key=lambda state: state["global_step"])
    evaluated = [one for one in last["log_history"] if "eval_reward" in one]
    assert all("eval_rubric/pass/answer" in one for one in evaluated)  # the option that the page offers to select by
    rewards = {one["step"]: one["eval_reward"] for one in evaluated}
    assert sorted(rewards) == [1, 2, 3]
    assert len(set(rewards.values())) > 1
    best = max(rewards, key=lambda step: (rewards[step], -step))
    assert f"step {best} has the best held-out reward, {rewards[best]:.3f}" in said
    loaded, chosen, other = (
        (tmp_path / "out" / folder / "model.safetensors").read_bytes()
        for folder in ("best", f"checkpoint-{best}", f"checkpoint-{3 if best != 3 else 2}")
    )
    assert loaded == chosen
    assert loaded != other


def train(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, script: str) -> str:
    """Run a script beside the problems, with the model in the folder `model`; return its output.

    It runs in this process, which has imported torch and TRL already.
    """
    (tmp_path / name).write_text(script, encoding="utf-8")
    (tmp_path / "problems.jsonl").write_bytes((FOLDER / "problems.jsonl").read_bytes())
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        patch.setattr(sys, "argv", [name, "model"])
        patch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
        runpy.run_path(name, run_name="__main__")
    return capsys.readouterr().out
