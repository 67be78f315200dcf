"""Which judge model suits a machine."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from adjudge_services.cli.main import app
from judge_server.engines import engine_from_url
from judge_server.judging.prompts.library import builtin_sets
from judge_server.models.candidates import CANDIDATES, Candidate, Machine, fits, recommended, why_not_on_hub
from tests.judge_server.models.fake_hub import CONTENT, Site

GB = 10**9


def there(_: Candidate) -> str:
    """The hub has everything."""
    return ""


def offline(candidate: Candidate) -> str:
    """The hub has nothing."""
    return "" if candidate.file is None else "not on the hub"


@pytest.mark.parametrize(
    ("machine", "hub", "name"),
    [
        (Machine(2, 24 * GB), there, "llamacpp://qwen2.5-coder-1.5b"),
        (Machine(2, 24 * GB), offline, "llamacpp://qwen2.5-coder-1.5b"),
        (Machine(16, 64 * GB), there, "llamacpp://hf/unsloth/Qwen3.5-4B-GGUF/Qwen3.5-4B-Q4_K_M.gguf"),
        (Machine(16, 64 * GB), offline, "llamacpp://qwen2.5-coder-1.5b"),
        (Machine(16, 64 * GB, (24 * GB,)), there, "vllm://Qwen/Qwen3.5-4B"),
        (Machine(16, 64 * GB, (8 * GB,)), there, "vllm://Qwen/Qwen3.5-2B"),
        (Machine(1, 24 * GB), offline, "llamacpp://qwen2.5-coder-0.5b"),
        (Machine(2, 1 * GB), there, "llamacpp://qwen2.5-coder-0.5b"),
    ],
)
def test_the_first_model_that_fits_and_is_fast_enough_is_recommended(machine: Machine, hub: object, name: str) -> None:
    found = recommended(fits(machine, hub))  # type: ignore[arg-type]
    assert found is not None
    assert found.candidate.engine_url == name


def test_nothing_is_recommended_where_nothing_fits() -> None:
    assert recommended(fits(Machine(64, GB // 10), there)) is None


def test_the_hub_is_asked_only_about_models_that_would_suit() -> None:
    asked: list[Candidate] = []
    fits(Machine(2, 24 * GB), lambda one: asked.append(one) or "")  # type: ignore[func-returns-value]
    assert asked
    assert all(one.runner == "llama.cpp" and not one.obstacle for one in asked)


def test_a_model_with_an_obstacle_is_shown_and_never_recommended() -> None:
    found = fits(Machine(64, 512 * GB, (80 * GB,)), there)
    assert {one.candidate.name for one in found if "reasons before" in one.problem} == {"gpt-oss-120b", "gpt-oss-20b"}


def test_models_with_a_form_of_their_own_name_a_set_that_is_there() -> None:
    expected = {one.name: one.template for one in CANDIDATES if one.template}
    assert expected == {"granite-guardian-4.1-8b": "granite-guardian"}
    assert {"granite-guardian", "granite-requirements"} <= builtin_sets().keys()


@pytest.mark.parametrize("candidate", [one for one in CANDIDATES if one.runner == "llama.cpp"])
def test_every_engine_url_can_be_served(candidate: Candidate) -> None:
    assert engine_from_url(candidate.engine_url)


def test_the_hub_is_asked_for_the_very_file(site: Site) -> None:
    hosted = next(one for one in CANDIDATES if one.file is not None)
    assert "hub: " in why_not_on_hub(hosted)
    assert hosted.file is not None
    site.files[f"/{hosted.file.repository}/resolve/main/{hosted.file.file}"] = CONTENT
    assert why_not_on_hub(hosted) == ""


def test_the_command_says_what_to_run_next(site: Site, cache: Path) -> None:
    result = CliRunner().invoke(app, ["models", "recommend"])
    assert result.exit_code == 0, result.output
    assert "adjudge serve --engine llamacpp://qwen2.5-coder" in result.stdout
    assert "adjudge bakeoff labelled.jsonl" in result.stdout
    asked = json.loads(CliRunner().invoke(app, ["models", "recommend", "--json"]).stdout)
    assert asked["machine"]["cores"] >= 1
    assert asked["recommended"] in {one["engine"] for one in asked["models"] if one["problem"] is None}
    assert not cache.exists()


def test_a_model_with_a_form_of_its_own_is_compared_in_it(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 24576\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    site.files["/ibm-granite/granite-guardian-4.1-8b/resolve/main/config.json"] = CONTENT
    said = " ".join(CliRunner().invoke(app, ["models", "recommend"]).stdout.split())
    guardian = "--judge vllm://ibm-granite/granite-guardian-4.1-8b"
    assert f"labelled.jsonl {guardian} --template default --template granite-guardian" in said
    assert "Recommended: granite-guardian-4.1-8b in vLLM." in said
    assert "ask with --template granite-guardian" in said
