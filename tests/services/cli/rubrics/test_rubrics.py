"""`adjudge rubrics` for teams: publish, find, compare, move aliases, tag and retire."""

import json
import re
from functools import partial
from pathlib import Path

import pytest
from click.testing import Result

from adjudge_services.cli.output import out
from tests.services.command import adjudge, failure_of

pytestmark = pytest.mark.usefixtures("migrated")

FIRST = [
    {"id": "answer", "kind": "factual", "weight": 3, "description": "The final answer is 80 km/h."},
    {"id": "method", "kind": "process", "description": "Divides the distance by the time."},
    {"id": "units", "description": "Names the units."},
]
SECOND = [
    {"id": "method", "kind": "process", "weight": 2, "description": "Divides the whole distance by the time."},
    {"id": "units", "kind": "pitfall", "tags": ["style"], "description": "Names the units."},
    {"id": "answer", "kind": "factual", "weight": 3, "description": "The final answer is 80 km/h."},
    {"id": "polite", "description": "Is [bold]polite[/bold]."},
]


rubrics = partial(adjudge, "rubrics", env={"COLUMNS": "200"})


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Two files, of which the first is published as `team/speed@1` and the second as `team/speed@2`."""
    paths = (tmp_path / "first.json", tmp_path / "second.json")
    for path, criteria in zip(paths, (FIRST, SECOND), strict=True):
        path.write_text(json.dumps({"criteria": criteria}))
        assert rubrics("publish", "team/speed", path).exit_code == 0
    return paths


def said(result: Result) -> str:
    """Check that a command failed and printed nothing else; return its error on one line."""
    assert result.stdout == ""
    return failure_of(result)


def test_publishing_the_same_criteria_again_changes_nothing_and_text_like_markup_is_shown_as_written(
    files: tuple[Path, Path],
) -> None:
    assert "unchanged: team/speed@2" in rubrics("publish", "team/speed", files[1]).stdout
    assert "Is [bold]polite[/bold]." in rubrics("show", "team/speed@2").stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["show", "team/x"], "Did you mean 'team/speed'"),
        (["show", "[/red]"], "name@3"),
        (["publish", "Bad Name", "FILE"], "lower-case"),
        (["publish", "x", "EMPTY"], "unknown format"),
    ],
)
def test_an_invalid_command_gives_one_message(
    files: tuple[Path, Path], tmp_path: Path, arguments: list[str], says: str
) -> None:
    (tmp_path / "empty.json").write_text("{}")
    paths = {"FILE": files[0], "EMPTY": tmp_path / "empty.json"}
    assert says in said(rubrics(*[paths.get(argument, argument) for argument in arguments]))


def test_a_file_is_read_alike_by_all_commands_whatever_its_line_ends(tmp_path: Path) -> None:
    text = "Points: 1, Item: Names the dose.\nIn milligrams.\nPoints: 2, Item: Names the drug.\n"
    for number, ends in enumerate(("\n", "\r\n")):
        (tmp_path / f"dose{number}.txt").write_bytes(text.replace("\n", ends).encode())
    rubrics("import", tmp_path / "dose0.txt", exit_code=0)
    rubrics("publish", "dose1", tmp_path / "dose1.txt", exit_code=0)
    assert "unchanged: dose1@1" in rubrics("import", tmp_path / "dose1.txt").stdout
    digests = {json.loads(rubrics("show", name, "--json").stdout)["digest"] for name in ("dose0", "dose1")}
    assert len(digests) == 1


def test_a_file_that_is_not_utf_8_is_refused_with_the_line(tmp_path: Path) -> None:
    file = tmp_path / "latin.yaml"
    file.write_bytes("criteria:\n- {id: a, description: Café}\n".encode("latin-1"))
    assert "line 2: this is not UTF-8 text; save the file as UTF-8" in said(rubrics("publish", "team/cafe", file))
    scored = adjudge("score", file, "--rubric", file, exit_code=1)
    assert f"--rubric: {file}: line 2: this is not UTF-8 text" in scored.stderr


def test_fields_published_beside_the_criteria_are_shown(files: tuple[Path, Path]) -> None:
    rubrics("publish", "team/b", files[0], "--tag", "math", "--tag", "sure", "--meta", "ticket=7", "--author", "Ada")
    shown = rubrics("show", "team/b").stdout
    assert "made by   Ada" in shown
    assert "ticket    7" in shown
    assert "math, sure" in rubrics("history", "team/b").stdout
    again = rubrics("publish", "team/b", files[0], "--meta", "ticket=8")
    assert "stay as they were published" in again.stdout
    assert "ticket    7" in rubrics("show", "team/b").stdout


def test_fields_of_the_file_are_kept_and_options_override_them(tmp_path: Path) -> None:
    heading = {
        "tags": ["algebra"],
        "metadata": {"owner": "Ann", "ticket": "7"},
        "lineage": {"author": "Ann", "model": "m"},
    }
    (tmp_path / "a.json").write_text(json.dumps({**heading, "criteria": FIRST}))
    rubrics("publish", "team/a", tmp_path / "a.json", "--tag", "sure", "--meta", "ticket=8", "--author", "Bob")
    exported = json.loads(rubrics("export", "team/a", "--format", "native").stdout)
    assert exported["tags"] == ["algebra", "sure"]
    assert exported["metadata"] == {"owner": "Ann", "ticket": "8"}
    assert exported["lineage"] == {"author": "Bob", "model": "m"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--meta", "ticket"], "--meta takes KEY=VALUE"),
        (["--meta", "=7"], "--meta takes KEY=VALUE"),
        (["--tag", "No Tag"], "tags.0"),
        (["--parent", "9"], "there is no team/speed@9 to descend from; its versions are 1 to 2"),
        (["--author", " "], "author"),
    ],
)
def test_an_invalid_version_is_refused(files: tuple[Path, Path], options: list[str], says: str) -> None:
    files[0].write_text(json.dumps({"criteria": FIRST[:2]}))
    error = said(rubrics("publish", "team/speed", files[0], *options))
    assert says in error
    assert "pydantic" not in error
    assert "team/speed@2" in rubrics("show", "team/speed").stdout


def test_a_diff_is_shown_criterion_by_criterion(files: tuple[Path, Path]) -> None:
    shown = rubrics("diff", "team/speed", "1").stdout
    for part in (
        "team/speed@1 → team/speed@2",
        "+ polite  point, weight 1  Is [bold]polite[/bold].",
        "- Divides the distance by the time.",
        "+ Divides the whole distance by the time.",
        "method  weight 1 → 2",
        "units  kind point → pitfall",
        "units  tags none → style",
        "answer  place 1 → 3",
        "1 added, 1 reworded, 1 reweighted, 2 changed, 1 moved, 0 unchanged",
    ):
        assert part in shown
    assert "- polite" in rubrics("diff", "team/speed", "2", "1").stdout
    assert json.loads(rubrics("diff", "team/speed", "1", "--json").stdout)["after"]["version"] == 2
    same = ["team/speed@1", "team/speed@1 team/speed@2", "team/speed@1 team/speed", "team/speed@1 2", "team/speed 1 2"]
    assert {rubrics("diff", *one.split()).stdout for one in same} == {shown}
    assert "are different rubrics" in said(rubrics("diff", "team/speed@1", "team/other@2"))
    assert "name two versions" in said(rubrics("diff", "team/speed"))
    assert "Did you mean" in said(rubrics("diff", "team/sped", "1"))


def test_a_weight_that_changed_by_little_is_shown_in_full(files: tuple[Path, Path]) -> None:
    for weight in (0.1, 0.10000001):
        files[0].write_text(json.dumps({"criteria": [{"id": "a", "description": "Adds.", "weight": weight}]}))
        rubrics("publish", "team/sum", files[0], exit_code=0)
    assert "a  weight 0.1 → 0.10000001" in rubrics("diff", "team/sum@1").stdout


def test_lists_and_searches_show_tags_and_aliases(files: tuple[Path, Path]) -> None:
    rubrics("publish", "team/other", files[0], "--tag", "math")
    rubrics("alias", "team/speed", "production", "1")
    listed = rubrics("list").stdout
    assert "production → 1" in listed
    assert "math" in listed
    assert "team/speed" not in rubrics("list", "--tag", "math").stdout
    assert "team/other" not in rubrics("search", "DIVIDES", "pol").stdout
    assert "team/speed" in rubrics("search", "DIVIDES", "pol").stdout
    assert "no rubrics" in rubrics("search", "nothing").stdout
    assert "the first 1" in rubrics("list", "--limit", "1").stdout
    assert "team/other" not in rubrics("list", "team/s").stdout


def test_a_history_shows_parents_aliases_and_reasons(files: tuple[Path, Path]) -> None:
    rubrics("publish", "team/speed", files[0], "--parent", "1")
    rubrics("alias", "team/speed", "production", "2")
    rubrics("retire", "team/speed@1", "Rewards [guessing].")
    shown = rubrics("history", "team/speed").stdout
    assert "Rewards [guessing]." in shown
    assert "production" in shown
    assert "the newest 1" in rubrics("history", "team/speed", "--limit", "1").stdout
    assert "Did you mean 'team/speed'" in said(rubrics("history", "team/sped"))


def test_an_alias_is_created_moved_shown_and_removed(files: tuple[Path, Path]) -> None:
    assert "no aliases" in rubrics("alias", "team/speed").stdout
    assert rubrics("alias", "team/speed", "production", "1").stdout == "team/speed@production → 1\n"
    assert rubrics("alias", "team/speed", "production", "2", "--from", "1").stdout == (
        "team/speed@production → 2 (was 1)\n"
    )
    assert rubrics("alias", "team/speed", "production").stdout == "team/speed@production → 2\n"
    assert "team/speed@2" in rubrics("show", "team/speed@production").stdout
    assert "which pointed to version 2" in rubrics("alias", "team/speed", "production", "--remove").stdout
    assert "no aliases" in rubrics("alias", "team/speed").stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["production", "2", "--from", "2"], "stands for version 1 now"),
        (["production", "--remove", "--from", "2"], "stands for version 1 now"),
        (["production", "9"], "Did you mean 'team/speed@2'"),
        (["canary"], "has no alias 'canary'"),
        (["canary", "--remove"], "There is no rubric 'team/speed@canary'"),
        (["latest", "1"], "always points to the newest"),
        (["--remove"], "--remove takes the name and the alias"),
        (["--from", "1"], "--from needs a version"),
    ],
)
def test_an_invalid_move_is_refused_and_the_alias_stays(
    files: tuple[Path, Path], arguments: list[str], says: str
) -> None:
    rubrics("alias", "team/speed", "production", "1")
    assert says in said(rubrics("alias", "team/speed", *arguments))
    assert rubrics("alias", "team/speed").stdout == "team/speed@production → 1\n"


def test_tags_are_shown_replaced_and_cleared(files: tuple[Path, Path]) -> None:
    assert rubrics("tag", "team/speed").stdout == "no tags\n"
    assert rubrics("tag", "team/speed", "b", "a").stdout == "a, b\n"
    assert rubrics("tag", "team/speed").stdout == "a, b\n"
    assert rubrics("tag", "team/speed", "--clear").stdout == "no tags\n"
    assert "--clear takes no tags" in said(rubrics("tag", "team/speed", "a", "--clear"))
    assert "tags.0" in said(rubrics("tag", "team/speed", "No Tag"))


def test_retiring_reports_the_new_meaning_of_the_name_and_its_aliases(files: tuple[Path, Path]) -> None:
    rubrics("alias", "team/speed", "production", "2")
    retired = rubrics("retire", "team/speed@2", "Rewards guessing.").stdout
    assert "team/speed now means version 1" in retired
    assert "team/speed@production still points to it" in retired
    assert "Rewards guessing." in rubrics("show", "team/speed@2").stdout
    assert "no version of team/speed is in use now" in rubrics("retire", "team/speed@1", "Old.").stdout
    assert "2 retired" in rubrics("list").stdout
    assert "restored team/speed@2" in rubrics("retire", "team/speed@2", "--restore").stdout
    assert "retired" not in rubrics("list").stdout
    assert "this version is retired" in rubrics("publish", "team/speed", files[0]).stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["team/speed@1"], "give either a reason"),
        (["team/speed@1", " "], "the reason is empty"),
        (["team/speed@1", "Old.", "--restore"], "give either a reason"),
        (["team/speed", "Old."], "write 'team/speed@2'"),
        (["team/speed@9", "Old."], "Did you mean 'team/speed@2'"),
    ],
)
def test_a_version_that_cannot_be_retired_stays(files: tuple[Path, Path], arguments: list[str], says: str) -> None:
    assert says in said(rubrics("retire", *arguments))
    assert "retired" not in rubrics("list").stdout


def test_an_audit_at_80_columns_loses_only_the_ends_of_digests(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    rubrics("retire", "team/speed@1", "It is too easy.")
    monkeypatch.setattr(out, "width", 80)
    shown = adjudge("audit").stdout
    header, *lines = shown.splitlines()
    assert all(len(line) <= 80 for line in lines)
    start, end = header.index("subject"), header.index("before")
    assert "".join(line[start:end].strip() for line in lines).count("team/speed@") == 3
    assert "…" not in "".join(line[: header.index("after")] for line in lines)
    assert len(re.findall(r"^\d{4}-\d\d-\d\d \d\d:\d\dZ  .* version\.(?:published|retired) ", shown, re.MULTILINE)) == 3
