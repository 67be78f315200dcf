"""`adjudge templates` on the command line."""

from pathlib import Path

import pytest

from judge_server.judging.prompts.library import (
    ALLOWED_VARIABLES,
    REQUIRED_VARIABLES,
    builtin_sets,
    builtin_templates,
    load_set,
    read_set,
)
from tests.docs.pages import ROOT, blocks
from tests.services.command import adjudge, failure_of


@pytest.fixture
def sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of template sets, set in the environment: one valid and one invalid."""
    folder = tmp_path / "sets"
    for name, text in {"brief": "{{ criterion.description }}", "wrong": "\n{{ criteria }}"}.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "question.j2").write_text(text)
    monkeypatch.setenv("ADJUDGE_TEMPLATES_DIR", str(folder))
    return folder


def test_every_template_of_a_set_is_checked_and_one_invalid_gives_status_1(sets: Path) -> None:
    result = adjudge("templates", "check", sets / "brief")
    assert (result.exit_code, result.stdout) == (0, "ok     brief/question.j2\n")
    (sets / "brief/verdict.j2").write_text("{{ [/red] }}")
    (sets / "brief/holistic.j2").write_text("{{ criterion.description }}")
    result = adjudge("templates", "check", sets / "brief", exit_code=1)
    wrong_holistic, ok, wrong_verdict = result.stdout.splitlines()
    assert wrong_holistic.startswith(
        "wrong  brief/holistic.j2:1: it uses 'criterion', which is not one of its variables"
    )
    assert ok == "ok     brief/question.j2"
    assert wrong_verdict.startswith("wrong  brief/verdict.j2:1: ")


def test_the_current_folder_can_be_checked(sets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(sets / "brief")
    assert adjudge("templates", "check", ".").stdout == "ok     brief/question.j2\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["check", "FOLDER"], "the folder 'sets' holds no template; it may hold binary.system.j2"),
        (["check", "FOLDER/[red]"], "there is no template folder '[red]'"),
        (["show", "--set", "rgrr"], "there is no built-in set 'rgrr'; use one of dro, "),
        (["show", "--set", "rgr", "../srar/set.toml"], "the set 'rgr' has no '../srar/set.toml'; it has binary"),
        (["show", "../question.j2"], "there is no template '../question.j2'; use one of binary.system.j2"),
    ],
)
def test_an_invalid_command_is_refused_with_a_message(sets: Path, arguments: list[str], says: str) -> None:
    assert says in failure_of(adjudge("templates", *(argument.replace("FOLDER", str(sets)) for argument in arguments)))


def test_every_template_is_listed_with_its_variables() -> None:
    listed = adjudge("templates", "show", exit_code=0)
    rows: dict[str, str] = {}
    for line in listed.stdout.splitlines():
        if line.startswith("│"):
            name, *cells = (cell.strip() for cell in line.strip("│").split("│"))
            last = name or list(rows)[-1]  # a narrow terminal wraps long cells
            rows[last] = " ".join([rows.get(last, ""), *cells])
    assert set(rows) == set(ALLOWED_VARIABLES)
    for name, given in ALLOWED_VARIABLES.items():
        assert set(rows[name].replace(",", " ").split()) == given


def test_the_built_in_templates_as_shown_are_a_valid_set(tmp_path: Path) -> None:
    for name in ALLOWED_VARIABLES:
        (tmp_path / name).write_text(adjudge("templates", "show", name).stdout)
    ours = {name: text if text.endswith("\n") else f"{text}\n" for name, text in builtin_templates().items()}
    assert read_set(tmp_path) == ours


def test_sets_are_listed_with_their_state(sets: Path) -> None:
    listed = adjudge("templates", "list", exit_code=0)
    text = " ".join(listed.stdout.split())
    assert "│ brief │ yours │ ok │ question.j2 │" in text
    assert "│ wrong │ yours │ wrong │ wrong/question.j2:2: it uses 'criteria'" in text
    assert "│ rgr │ built-in │ ok │" in text


def test_a_set_that_overrides_a_built_in_one_is_listed_as_such(sets: Path) -> None:
    (sets / "brief").rename(sets / "rgr")
    assert "│ rgr │ yours, overrides built-in │ ok │ question.j2 │" in " ".join(
        adjudge("templates", "list").stdout.split()
    )


def test_a_declaration_is_checked_with_its_set(sets: Path) -> None:
    (sets / "brief/set.toml").write_text('withholds = ["ground_truth"]')
    result = adjudge("templates", "check", sets / "brief")
    assert (result.exit_code, result.stdout) == (0, "ok     brief/question.j2\nok     brief/set.toml\n")
    (sets / "brief/set.toml").write_text('withholds = ["truth"]')
    result = adjudge("templates", "check", sets / "brief", exit_code=1)
    assert "wrong  brief/set.toml: withholds names 'truth'; it can name grounding, " in result.stdout


@pytest.mark.parametrize("name", sorted(builtin_sets()))
def test_a_built_in_set_as_shown_is_a_valid_set(tmp_path: Path, name: str) -> None:
    shown = adjudge("templates", "show", "--set", name).stdout.splitlines()
    for file in shown:
        (tmp_path / file).write_text(adjudge("templates", "show", "--set", name, file).stdout)
    assert load_set(tmp_path) == load_set(builtin_sets()[name])


def test_without_a_custom_folder_the_built_in_sets_are_listed() -> None:
    listed = adjudge("templates", "list", exit_code=0)
    assert all(f"│ {name} │ built-in │ ok" in " ".join(listed.stdout.split()) for name in builtin_sets())


def test_a_missing_folder_of_sets_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADJUDGE_TEMPLATES_DIR", str(tmp_path / "nowhere"))
    assert "nowhere, which is not a folder; set it to a folder of template sets" in failure_of(
        adjudge("templates", "list")
    )


def test_the_documented_template_is_valid_and_every_variable_is_documented(tmp_path: Path) -> None:
    texts = blocks(ROOT / "docs/how-to/change-the-judges-prompt.md", "text")
    (shown,) = [text for text in texts if "{{" in text]
    (tmp_path / "question.j2").write_text(shown)
    adjudge("templates", "check", tmp_path, exit_code=0)
    page = ROOT / "docs/reference/templates.md"
    rows = [row.split("|") for row in page.read_text(encoding="utf-8").splitlines() if row.startswith("| `")]
    documented = {name: row[3:5] for row in rows if len(row) == 6 for name in _spans(row[1])}
    assert {name: _spans(must) for name, (must, _) in documented.items()} == {
        name: REQUIRED_VARIABLES.get(name, frozenset()) for name in ALLOWED_VARIABLES
    }
    assert {name: _spans(must) | _spans(may) for name, (must, may) in documented.items()} == dict(ALLOWED_VARIABLES)
    held = {name for row in rows if len(row) == 4 for name in _spans(row[1])}
    assert held == frozenset().union(*ALLOWED_VARIABLES.values())


def _spans(cell: str) -> frozenset[str]:
    return frozenset(cell.replace("`", "").replace(",", " ").split())
