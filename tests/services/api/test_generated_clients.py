"""Clients generated from the OpenAPI document compile: types for TypeScript, and a package for Python."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.judge_server.golden_files import openapi

pytestmark = [pytest.mark.install, pytest.mark.slow]

TYPESCRIPT = ("openapi-typescript@7.13.0", "typescript@5.9.3")
PYTHON = "openapi-python-client==0.29.1"

USE = """
import type { components, operations, paths } from "./api";
type Request = components["schemas"]["RewardRequest"];
type Answer = paths["/v1/rewards"]["post"]["responses"]["200"]["content"]["application/json"];
type Projects = operations["list_projects"]["responses"]["200"]["content"]["application/json"];
export const request: Request = { groups: [{ id: "q", prompt: "p", responses: ["r"] }], rubric: "math/primes" };
export const rewards = (answer: Answer) => answer.groups.map((group) => group.responses.map((one) => one.reward));
export const names = (page: Projects): string[] => page.projects.map((project) => project.id);
"""
WRONG = 'import { request } from "./use";\nexport const group: number = request.groups[0].id;\n'

READ = """
import importlib, json, pkgutil, sys
import made, made.api
modules = [importlib.import_module(found.name) for found in pkgutil.walk_packages(made.__path__, "made.")]
from made.models import RewardAnswer
document = json.load(open("openapi.json"))
example = document["paths"]["/v1/rewards"]["post"]["responses"]["200"]["content"]["application/json"]["example"]
assert RewardAnswer.from_dict(example).to_dict()["groups"] == example["groups"]
routes = [module.__name__.rpartition(".")[2] for module in modules if hasattr(module, "sync_detailed")]
print(json.dumps(routes))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the OpenAPI document."""
    (tmp_path / "openapi.json").write_text(json.dumps(openapi()), encoding="utf-8")
    return tmp_path


def run(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command in the folder."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)


def check(folder: Path, *command: str | Path) -> str:
    """Run a command that must succeed; return its output."""
    ran = run(folder, *command)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    return ran.stdout


@pytest.mark.skipif(shutil.which("npm") is None, reason="SKIPPED: npm is not installed, so no TypeScript was compiled")
def test_generated_typescript_compiles_and_knows_the_messages(folder: Path) -> None:
    check(folder, "npm", "install", "--no-audit", "--no-fund", *TYPESCRIPT)
    tools = folder / "node_modules" / ".bin"
    check(folder, tools / "openapi-typescript", "openapi.json", "--default-non-nullable=false", "-o", "api.d.ts")
    (folder / "use.ts").write_text(USE, encoding="utf-8")
    (folder / "wrong.ts").write_text(WRONG, encoding="utf-8")
    options = ("--noEmit", "--strict", "--target", "es2022", "--module", "esnext", "--moduleResolution", "bundler")
    check(folder, tools / "tsc", *options, "use.ts")
    wrong = run(folder, tools / "tsc", *options, "wrong.ts")
    assert "'string' is not assignable to type 'number'" in wrong.stdout


def test_a_generated_python_client_imports_and_reads_an_answer(folder: Path) -> None:
    check(folder, sys.executable, "-m", "venv", "venv")
    python = folder / "venv" / "bin" / "python"
    check(folder, python, "-m", "pip", "install", "--quiet", PYTHON)
    generator = folder / "venv" / "bin" / "openapi-python-client"
    check(folder, generator, "generate", "--path", "openapi.json", "--output-path", "made", "--meta", "none")
    routes = json.loads(check(folder, python, "-c", READ))
    expected = {each["operationId"] for path in openapi()["paths"].values() for each in path.values()}
    assert set(routes) == expected
