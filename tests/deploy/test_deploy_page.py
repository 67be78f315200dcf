"""`docs/deploy.md` shows commands that exist, makes the secret that the chart reads, and offers every value set."""

import re

import pytest

from adjudge_services.cli.main import app
from judge_server.access.identity import OPENS
from tests.deploy.chart import VALUE_SETS, containers, objects
from tests.deploy.tools import ROOT, needs_tools
from tests.docs.pages import blocks, code_spans, table

PAGE = ROOT / "docs/deploy.md"
CONSOLE = "".join(blocks(PAGE, "console"))


def commands() -> set[tuple[str, ...]]:
    """Every command of `adjudge` that there is, and its group."""
    groups = [(group.name, group.typer_instance) for group in app.registered_groups]
    below = [(name, command.name) for name, group in groups if group for command in group.registered_commands]
    alone = {(str(name),) for name, group in groups if group and group.info.invoke_without_command}
    commands = {(str(command.name),) for command in app.registered_commands}
    return commands | alone | {(str(a), str(b)) for a, b in below}


def test_every_process_and_every_command_exists() -> None:
    processes = [re.findall(r"`adjudge (\w+)`", row["process"]) for row in table(PAGE, "The processes")]
    assert {(name,) for found in processes for name in found} <= commands()
    shown = re.findall(r"(?:run --rm migrate|-- adjudge) (\w+) (\w+)", CONSOLE)
    assert len(shown) >= 3
    assert set(shown) <= commands()


def test_every_scope_of_a_key_exists() -> None:
    assert set(re.findall(r"--scope (\S+)", CONSOLE)) <= OPENS.keys()


def test_every_value_set_is_offered() -> None:
    offered = {name for span in code_spans(PAGE) for name in re.findall(r"^helm/adjudge/ci/(.+)\.yaml$", span)}
    assert offered == set(VALUE_SETS) == {path.stem for path in (ROOT / "helm/adjudge/ci").glob("*.yaml")}


@needs_tools
@pytest.mark.parametrize("values", VALUE_SETS)
def test_the_page_names_every_key_of_the_secret_that_the_chart_reads(values: str) -> None:
    made = set(re.findall(r"--from-literal=([a-z-]+)=", CONSOLE))
    read = {
        entry["valueFrom"]["secretKeyRef"]["key"]
        for _, container in containers(values)
        for entry in container.get("env", [])
        if "valueFrom" in entry and not entry["valueFrom"]["secretKeyRef"].get("optional")
    }
    scaled = {ref["key"] for found in objects(values) for ref in found.get("spec", {}).get("secretTargetRef", [])}
    extra = {"cpu-dev": {"postgres-password", "redis-password"}}.get(values, set())
    assert read == made | extra
    assert (scaled | extra) <= set(code_spans(PAGE))
