"""The pages on deploying show existing commands, create the secret that the chart reads, and offer every value set."""

import re

import pytest

from judge_server.ports import SCOPE_PERMISSIONS
from tests.deploy.chart import FOLDER, NAMESPACE, VALUE_SETS, containers, environment, objects
from tests.deploy.tools import HELM, ROOT, needs_tools, run
from tests.docs.pages import blocks, code_spans, table
from tests.services.command_tree import commands

PAGE = ROOT / "docs/how-to/deploy-with-helm.md"
PROCESSES = ROOT / "docs/explanation/api-and-judges.md"
KEYS = ROOT / "docs/reference/deployment.md"
NAMES = ("deploy-with-docker-compose", "deploy-with-helm", "upgrade-without-losing-verdicts", "roll-back-a-release")
COMMANDS = "".join(block for name in NAMES for block in blocks(ROOT / f"docs/how-to/{name}.md", "bash"))


def test_every_process_and_every_command_exists() -> None:
    processes = [re.findall(r"`adjudge (\w+)`", row["process"]) for row in table(PROCESSES, "The processes")]
    assert {(name,) for found in processes for name in found} <= commands().keys()
    shown = re.findall(r"(?:run --rm migrate|-- adjudge) (\w+) (\w+)", COMMANDS)
    assert len(shown) >= 3
    assert set(shown) <= commands().keys()


def test_every_scope_of_a_key_exists() -> None:
    assert set(re.findall(r"--scope (\S+)", COMMANDS)) <= SCOPE_PERMISSIONS.keys()


def test_every_value_set_is_offered() -> None:
    offered = {name for span in code_spans(PAGE) for name in re.findall(r"^helm/adjudge/ci/(.+)-values\.yaml$", span)}
    assert (
        offered
        == set(VALUE_SETS)
        == {path.stem.removesuffix("-values") for path in (ROOT / "helm/adjudge/ci").glob("*.yaml")}
    )


@needs_tools
@pytest.mark.parametrize("values", VALUE_SETS)
def test_the_pages_name_every_key_of_the_secret_that_the_chart_reads(values: str) -> None:
    made = set(re.findall(r"--from-literal=([a-z-]+)=", COMMANDS))
    references = [
        entry["valueFrom"]["secretKeyRef"]
        for _, container in containers(values)
        for entry in container.get("env", [])
        if "valueFrom" in entry
    ]
    read = {reference["key"] for reference in references if not reference.get("optional")}
    optional = {reference["key"] for reference in references if reference.get("optional")}
    scaled = {ref["key"] for found in objects(values) for ref in found.get("spec", {}).get("secretTargetRef", [])}
    extra = {"cpu-dev": {"postgres-password", "redis-password"}}.get(values, set())
    assert read == made | extra
    assert (scaled | extra | optional) <= set(code_spans(KEYS))


@needs_tools
def test_helms_timeout_exceeds_the_deadline_of_the_migration() -> None:
    (job,) = [found for found in objects("production") if found["kind"] == "Job"]
    shown = re.findall(r"^helm (?:install|upgrade) .+$", COMMANDS, re.MULTILINE)
    assert len(shown) >= 2
    for command in shown:
        minutes = re.search(r" --timeout (\d+)m\b", command)
        assert minutes, command
        assert 60 * int(minutes[1]) > job["spec"]["activeDeadlineSeconds"]


@needs_tools
def test_the_page_names_the_deadline_of_the_migration() -> None:
    (job,) = [f for f in objects("production", "--set", "migrate.deadlineSeconds=1200") if f["kind"] == "Job"]
    assert job["spec"]["activeDeadlineSeconds"] == 1200
    assert "migrate.deadlineSeconds" in code_spans(PAGE)


@needs_tools
@pytest.mark.parametrize("toolbox", [True, False])
def test_the_notes_create_the_first_key_in_a_pod_with_the_database_url(toolbox: bool) -> None:
    values = ("--set", f"toolbox.enabled={str(toolbox).lower()}")
    installed = run(
        HELM, "install", "adjudge", FOLDER, "--namespace", NAMESPACE, "--dry-run=client",
        "--values", FOLDER / "ci/production-values.yaml", *values,
    )  # fmt: skip
    assert installed.returncode == 0, installed.stderr
    (name,) = re.findall(r"exec deploy/(\S+) -- adjudge keys create", installed.stdout.partition("NOTES:")[2])
    (pod,) = [
        found["spec"]["template"]["spec"]
        for found in objects("production", *values)
        if found["kind"] == "Deployment" and found["metadata"]["name"] == name
    ]
    assert "ADJUDGE_DATABASE_URL" in environment(pod["containers"][0])
    assert f"deploy/{name}" in PAGE.read_text(encoding="utf-8")
