import subprocess
import sys
from pathlib import Path

import pytest

CLIENT = Path(__file__).parents[2] / "trainer_client"
SERVER_PACKAGES = [
    "adjudge_services",
    "alembic",
    "celery",
    "fastapi",
    "jinja2",
    "judge_server",
    "psycopg",
    "redis",
    "rubric_store",
    "sqlalchemy",
    "torch",
]
REPORT = f"""
from importlib.util import find_spec
import sys
import trainer_client, trainer_client.rewards, trainer_client.steps, trainer_client.wire
import trainer_client.advantages, trainer_client.dro, trainer_client.measures, trainer_client.scaffold
assert trainer_client.rewards.reward([{{"weight": 2}}, {{"weight": 2}}], [1, 0], "points") == 0.5
trainer_client.Client("http://judge:8000").close()
print(",".join(name for name in {SERVER_PACKAGES!r} if find_spec(name)), trainer_client.__file__)
"""


@pytest.mark.install
@pytest.mark.slow
def test_the_client_installs_and_imports_without_any_server_package(tmp_path):
    python = tmp_path / "venv" / "bin" / "python"
    run = [sys.executable, "-m", "venv", str(tmp_path / "venv")]
    subprocess.run(run, check=True, cwd=tmp_path, timeout=120)
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-cache-dir", str(CLIENT)]
    subprocess.run(install, check=True, cwd=tmp_path, timeout=600)
    report = subprocess.run(
        [str(python), "-c", REPORT], check=True, cwd=tmp_path, timeout=60, capture_output=True, text=True
    )
    server_packages, imported_from = report.stdout.rstrip("\n").split(" ", 1)
    assert server_packages == ""
    assert Path(imported_from).is_relative_to(tmp_path)
