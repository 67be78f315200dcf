"""The walkthroughs for eight GPUs and for Slurm: data, commands and scripts, as far as they run without a GPU."""

import json
import os
import re
import runpy
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

pytest.importorskip("trl")

from accelerate.commands.launch import launch_command_parser
from trl import TrlParser

from judge_server.engines import engine_from_url
from judge_server.evaluation.capacity import published_rates
from tests.docs.pages import ROOT, blocks
from tests.trainer_client.trl.training import policy, tokenizer
from trainer_client.rewards import check_rubric
from trainer_client.trl import RubricGRPOConfig

pytestmark = pytest.mark.trl

FOLDER = ROOT / "examples/cluster"
EIGHT = ROOT / "docs/how-to/put-the-judge-on-the-training-node.md"
ESTIMATE = ROOT / "docs/how-to/estimate-the-time-of-a-training-step.md"
SLURM = ROOT / "docs/how-to/run-on-slurm.md"
TWO_NODES = ROOT / "docs/how-to/run-on-two-nodes.md"
GSM8K = [  # in the data set's own format, with its calculator annotations
    {"question": f"A pen costs {n} dollars. What do 1,000 pens and a {n} dollar bag cost?",
     "answer": f"The pens cost {n}*1000=$<<{n}*1000={n}000>>{n}000.\nIn all that is ${n}000+{n}.\n#### {n},00{n}"}
    for n in range(1, 5)
]  # fmt: skip
SRUN = 'while [[ $1 == -* ]]; do shift; done; SLURM_NODEID=1 exec "$@"'
SCONTROL = '[[ $1 == show ]] && printf "node-a\\nnode-b\\n" || echo "$*" >> requeued'
ACCELERATE = 'printf "%s\\n" "$@" > launched; env > given; mkdir -p "$MAKES"; exit "$STATUS"'


def run_script(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: object) -> None:
    """Run a script in this process, which has imported torch and TRL already."""
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    runpy.run_path(str(FOLDER / name), run_name="__main__")


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Rows made by `rows.py` from problems in GSM8K's format."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    source, made = tmp_path / "gsm8k.jsonl", tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps(one) + "\n" for one in GSM8K), encoding="utf-8")
    run_script(monkeypatch, "rows.py", made, "--source", source)
    return made


def test_the_rows_have_a_step_wise_rubric_the_step_format_and_the_ground_truth(rows: Path) -> None:
    found = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
    assert len(found) == len(GSM8K)
    for row in found:
        check_rubric(json.loads(row["rubric"]), "stepwise")
    first, second, answer = json.loads(found[2]["rubric"])
    assert first["description"].endswith("The pens cost 3*1000=$3000.")
    assert second["description"].endswith("In all that is $3000+3.")
    assert answer["verification"] == {"method": "math"}
    assert found[2]["ground_truth"] == "3003"
    assert "### Step N:" in found[2]["prompt"]


def test_a_run_that_is_started_again_continues_from_its_checkpoint(
    rows: Path, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = policy(tmp_path / "model")
    made.config.max_position_embeddings = 1024
    made.save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    monkeypatch.setenv("ADJUDGE_URL", url)
    tiny = "--use_cpu --bf16 false --use_vllm false --max_completion_length 8 --gradient_accumulation_steps 1"
    settings = [
        *("--config", FOLDER / "gsm8k.yaml", "--model", tmp_path / "model", "--rows", rows, *shlex.split(tiny)),
        *("--output_dir", tmp_path / "out", "--save_steps", 1, "--judge_lease_s", 3600),
    ]
    steps = []
    for last in (1, 2):
        run_script(monkeypatch, "train.py", *settings, "--max_steps", last)
        state = json.loads((tmp_path / f"out/checkpoint-{last}/trainer_state.json").read_text())
        steps.append([one["step"] for one in state["log_history"] if "rubric/pass/answer" in one])
        assert all(one["rubric/failed_verdicts"] == 0 for one in state["log_history"] if "rubric/pass/answer" in one)
    assert steps == [[1], [1, 2]]
    assert (tmp_path / "out/last/model.safetensors").exists()
    while "sleep" in httpx2.get(f"{url}/readyz").json():  # long before the lease ends
        time.sleep(0.1)


def launches(page: Path) -> list[list[str]]:
    """The arguments of each `accelerate launch` on a page."""
    lines = [line for block in blocks(page, "bash") for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line.split("accelerate launch", 1)[1]) for line in lines if "accelerate launch" in line]


def kueue() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((FOLDER / "kueue.yaml").read_text(encoding="utf-8"))
    return loaded


def parsed(command: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, RubricGRPOConfig]:
    """What accelerate and TRL read from a command: how it launches, the script's own settings, and the trainer's."""
    launch = launch_command_parser().parse_args(command)
    assert (ROOT / launch.training_script).samefile(FOLDER / "train.py")
    setup = runpy.run_path(str(FOLDER / "train.py"))["Setup"]
    monkeypatch.chdir(ROOT)
    given = [*launch.training_script_args, "--use_cpu", "--bf16", "false"]
    mine, args = TrlParser((setup, RubricGRPOConfig)).parse_args_and_config(given)
    assert (
        not launch.num_processes
        * args.per_device_train_batch_size
        * args.gradient_accumulation_steps
        % (args.num_generations or 1)
    )
    assert args.method == "srar"
    assert args.use_vllm
    assert args.vllm_mode == "colocate"
    assert args.vllm_enable_sleep_mode
    return launch, mine, args


def test_the_commands_on_the_page_are_read_by_accelerate_and_trl(monkeypatch: pytest.MonkeyPatch) -> None:
    (seven, apart, _), (eight, shared, _) = (parsed(command, monkeypatch) for command in launches(EIGHT))
    assert (seven.num_processes, apart.judge_lease_s) == (7, None)
    assert (eight.num_processes, shared.judge_lease_s) == (8, 1800)
    assert {seven.zero_stage, eight.zero_stage} == {3}


def test_every_judge_on_the_pages_has_an_engine_that_exists() -> None:
    found = [url for page in (EIGHT, TWO_NODES) for block in blocks(page, "bash") for url in
             re.findall(r"--engine '?(vllm://[^'\s]+)", block)]  # fmt: skip
    assert len(found) == 3
    for url in found:
        engine_from_url(url)


def test_the_deadline_on_the_page_follows_from_its_formula() -> None:
    said = ESTIMATE.read_text(encoding="utf-8")
    (numbers,) = re.findall(r"5 × (\d+) × \((\d+) \+ ([\d,]+) \+ (\d+) × 80\) / \(([\d,]+) × 1\) = (\d+) s", said)
    responses, prompt, longest, criteria, speed, seconds = (int(one.replace(",", "")) for one in numbers)
    settings = yaml.safe_load((FOLDER / "gsm8k.yaml").read_text(encoding="utf-8"))
    assert longest == settings["max_completion_length"]
    assert responses == 7 * settings["per_device_train_batch_size"] * settings["gradient_accumulation_steps"]
    assert speed == round(1 / published_rates("llama-3.1-8b-fp8@h100").prefill_s)
    assert seconds == round(5 * responses * (prompt + longest + criteria * 80) / speed) <= settings["deadline_s"]


def test_the_queued_job_trains_with_the_settings_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    (container,) = kueue()["spec"]["template"]["spec"]["containers"]
    name, verb, *launch = [*container["command"], *container["args"]]
    assert (name, verb) == ("accelerate", "launch")
    launched, _, _ = parsed(launch, monkeypatch)
    assert str(launched.num_processes) == container["resources"]["limits"]["nvidia.com/gpu"]


@contextmanager
def judge_job(folder: Path, job: int) -> Iterator[str]:
    """Run `judge.sbatch` with a scripted judge until it is stopped as Slurm does; yield the address it writes."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ADJUDGE_")}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "SLURM_JOB_ID": str(job),
        "ADJUDGE_DIR": str(folder), "ADJUDGE_ENGINE_URL": "scripted://yes", "TMPDIR": str(folder.parent),
    }  # fmt: skip
    said = folder.parent / f"{job}.log"
    with said.open("w") as log:
        process = subprocess.Popen(
            ["bash", FOLDER / "judge.sbatch"], env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
    try:
        while not (address := read(folder / "url")).endswith(f":{20000 + job}\n"):
            assert process.poll() is None, said.read_text()
            time.sleep(0.05)
        yield f"http://127.0.0.1:{20000 + job}"
        process.terminate()
        assert process.wait(60) == 0, said.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert address.startswith("http://")


def read(file: Path) -> str:
    """A file's text; empty if there is none yet."""
    return file.read_text(encoding="utf-8") if file.exists() else ""


def free_job() -> int:
    """A job number whose port is free."""
    for job in range(os.getpid() % 10_000, 10_000):
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", 20000 + job)):
                return job
    raise AssertionError("every port is taken")


@pytest.mark.slow  # four commands of adjudge, one after the other, twice
def test_a_judge_job_that_is_queued_again_keeps_its_key_and_its_ledger(tmp_path: Path) -> None:
    folder, request = tmp_path / "judge", ROOT / "examples/judging/gate.binary.json"
    body = json.loads(request.read_text(encoding="utf-8")) | {"run": "math/slurm"}
    with judge_job(folder, free_job()) as address:
        key = {"Authorization": f"Bearer {read(folder / 'key').strip()}"}
        assert httpx2.post(f"{address}/v1/rewards", json=body, headers=key).status_code == 200
    assert (folder / "key").stat().st_mode & 0o777 == 0o600
    with judge_job(folder, free_job()) as address:
        found = httpx2.get(f"{address}/v1/runs", headers=key).json()["runs"]
        assert [run["run"] for run in found] == ["math/slurm"]


@pytest.fixture
def slurm(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins for Slurm's and accelerate's commands on the path, and the shared folder of a judge."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, does in (("srun", SRUN), ("scontrol", SCONTROL), ("accelerate", ACCELERATE)):
        (commands / name).write_text(f"#!/bin/bash\n{does}\n")
        (commands / name).chmod(0o755)
    (tmp_path / "url").write_text(f"{url}\n")
    (tmp_path / "key").write_text("adj_key\n")
    given = {
        "PATH": f"{commands}:{os.environ['PATH']}", "ADJUDGE_DIR": str(tmp_path), "OUT": str(tmp_path / "out"),
        "SLURM_JOB_ID": "9", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "node-[a-b]",
    }  # fmt: skip
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def train_on_slurm(slurm: Path, status: int, makes: str) -> int:
    """Run `trainer.sbatch` with the page's settings; return its exit status."""
    (line,) = (one for block in blocks(SLURM, "bash") for one in block.splitlines() if "trainer.sbatch" in one)
    settings = shlex.split(line.partition("trainer.sbatch")[2])
    environment = os.environ | {"STATUS": str(status), "MAKES": str(slurm / "out" / makes)}
    done = subprocess.run(["bash", FOLDER / "trainer.sbatch", *settings], cwd=slurm, env=environment, check=False)
    return done.returncode


def test_each_node_launches_its_share_of_the_trainer_with_the_judges_address(
    slurm: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train_on_slurm(slurm, 0, "checkpoint-50") == 0
    verb, *command = read(slurm / "launched").splitlines()
    launch, _, args = parsed(command, monkeypatch)
    assert verb == "launch"
    assert (launch.num_machines, launch.num_processes, launch.machine_rank) == (2, 16, 1)
    assert (launch.main_process_ip, launch.deepspeed_multinode_launcher) == ("node-a", "standard")
    assert args.output_dir == str(slurm / "out")
    assert {f"ADJUDGE_URL={url}", "ADJUDGE_API_KEY=adj_key"} <= set(read(slurm / "given").splitlines())
    assert not (slurm / "requeued").exists()


def test_a_trainer_that_fails_is_queued_again_only_if_it_made_progress(slurm: Path) -> None:
    assert train_on_slurm(slurm, 1, "checkpoint-50") == 1
    assert read(slurm / "requeued") == "requeue 9\n"
    assert train_on_slurm(slurm, 1, "checkpoint-50") == 1
    assert read(slurm / "requeued") == "requeue 9\n"
    assert train_on_slurm(slurm, 1, "checkpoint-100") == 1
    assert read(slurm / "requeued") == "requeue 9\n" * 2


def test_a_trainer_near_its_time_limit_is_queued_again_before_it_is_stopped(slurm: Path) -> None:
    environment = os.environ | {"ADJUDGE_DIR": str(slurm / "without a judge")}
    process = subprocess.Popen(["bash", FOLDER / "trainer.sbatch"], cwd=slurm, env=environment)
    while not (slurm / "out").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGUSR1)
    for child in re.findall(r"\d+", read(Path(f"/proc/{process.pid}/task/{process.pid}/children"))):
        os.kill(int(child), signal.SIGTERM)  # the pause between two looks for the judge
    assert process.wait(30) == 0
    assert read(slurm / "requeued") == "requeue 9\n"
