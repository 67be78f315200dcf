"""`adjudge rubrics import`, `export` and `lint` on the command line."""

import json
import os
from functools import partial
from pathlib import Path

import pytest

from tests.services.command import adjudge, failure_of

pytestmark = pytest.mark.usefixtures("migrated")

SRAR = "<SUGGEST> Adds both equations.\n<PITFALL> Forgets the root.\n<ANSWER> Four.\n"
YAML = """tags: [algebra]
metadata: {owner: Ann}
lineage: {author: Ann}
criteria:
  - {id: sum, description: Adds both equations., kind: factual, weight: 3}
  - {id: why, description: Tells why the root is the only one., kind: process, weight: 2, name: Reasons}
"""


rubrics = partial(adjudge, "rubrics")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two rubrics in different formats, a data set of two, and files that are not rubrics."""
    files = tmp_path / "files"
    (files / "math").mkdir(parents=True)
    (files / ".hidden").mkdir()
    (files / "math" / "Quadratics.yaml").write_text(YAML)
    (files / "roots.txt").write_text(SRAR)
    (files / "data.jsonl").write_text('{"id": 7, "questions": ["Is it four?"]}\n{"questions": ["Is it five?"]}\n')
    (files / "notes.md").write_text("Nothing.")
    (files / ".hidden" / "x.yaml").write_text("broken: [")
    return files


def test_a_folder_is_published_under_the_names_of_its_files(folder: Path) -> None:
    first = rubrics("import", str(folder), "--prefix", "team/")
    assert first.exit_code == 0, first.output
    for name in ("team/math/quadratics@1", "team/roots@1", "published 2, unchanged 0"):
        assert name in first.stdout
    listed = rubrics("list", "team/").stdout
    assert all(name in listed for name in ("team/data/7", "team/data/line-2", "team/math/quadratics", "team/roots"))
    again = rubrics("import", str(folder), "--prefix", "team/")
    assert "unchanged: team/roots@1" in again.stdout
    assert "published 0, unchanged 2" in again.stdout


def test_a_broken_file_publishes_nothing_and_every_problem_is_reported_by_line(folder: Path) -> None:
    (folder / "broken.yaml").write_text("criteria:\n- {id: a, description: x}\n- {id: a}\n- {id: b, weight: x}\n")
    (folder / "rows.jsonl").write_text('{"questions": ["Is it?"]}\n{"questions": [3]}\n')
    result = rubrics("import", str(folder))
    assert result.exit_code == 1
    for where in (
        "broken.yaml:3: criteria[1].id",
        "broken.yaml:3: criteria[1].description",
        "rows.jsonl:2: questions[0]",
    ):
        assert where in result.stderr
    for where in ("broken.yaml:4: criteria[2].description", "broken.yaml:4: criteria[2].weight"):
        assert where in result.stderr
    listed = rubrics("list").stdout
    assert "roots" in listed
    assert "broken" not in listed
    assert "rows" not in listed


def rows(*criteria: object) -> str:
    """Lines with a rubric of each criterion."""
    return "".join(json.dumps({"rubrics": [one]}) + "\n" for one in criteria)


GOOD, CHANGED, BAD = (
    {"criterion": "Adds.", "points": 1},
    {"criterion": "Sums.", "points": 1, "annotator": 7},
    {"criterion": "Is kind."},
)


def test_one_bad_row_blocks_the_others_unless_bad_rows_are_skipped(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text(rows(GOOD, CHANGED, *[BAD] * 812))
    refused = rubrics("import", str(file))
    assert refused.exit_code == 1
    assert "2 of its rubrics can be, with --skip-bad" in refused.stdout
    assert "data" not in rubrics("list").stdout
    skipped = rubrics("import", str(file), "--skip-bad")
    assert skipped.exit_code == 0
    assert "published 2, unchanged 0" in skipped.stdout
    assert [cell.strip() for cell in skipped.stdout.splitlines()[-2].split("│")[2:6]] == ["814", "1", "1", "812"]
    assert skipped.stderr.count("this field is required") == 1
    assert "(812 lines; first: line 3, rubrics[0].points)" in skipped.stderr
    assert "data.jsonl:2: changed: rubrics[0].annotator: the field is not kept" in skipped.stderr
    file.write_text(rows(BAD))
    assert rubrics("import", str(file), "--skip-bad").exit_code == 1


def test_the_table_of_an_import_fits_80_columns_and_counts_all_files(folder: Path) -> None:
    (folder / "broken-with-a-long-name-that-is-longer-than-most-file-names-are.yaml").write_text("criteria: 3")
    result = rubrics("import", str(folder))
    table = result.stdout[result.stdout.index("┏") :].splitlines()
    assert max(map(len, table)) <= 80
    assert [cell.strip() for cell in table[-2].split("│")[1:-1]] == ["all 4 files", "5", "4", "0", "1"]


def test_publishing_a_file_says_what_of_it_is_not_kept(tmp_path: Path) -> None:
    file = tmp_path / "test.yaml"
    file.write_text("assert:\n- {type: llm-rubric, value: Is kind., threshold: 0.5}\n- {type: cost, threshold: 1}\n")
    result = rubrics("publish", "team/kind", str(file))
    assert result.exit_code == 0, result.output
    for part in ("threshold of llm-rubric is not kept", "'cost' has no counterpart here"):
        assert part in result.stderr


def test_a_dry_run_reads_everything_and_publishes_nothing(folder: Path) -> None:
    result = rubrics("import", str(folder), "--dry-run")
    assert result.exit_code == 0
    assert result.stdout.count("can be published") == 3
    assert "roots" not in rubrics("list").stdout


def test_two_files_with_one_name_are_reported(folder: Path) -> None:
    (folder / "roots.yaml").write_text(YAML)
    result = rubrics("import", str(folder))
    assert result.exit_code == 1
    assert "roots.txt also names a rubric 'roots'" in result.stderr.replace("\n", " ")


@pytest.mark.parametrize("content", [b"\xff\xfe", b"", b"[" * 100_000, b"PK\x03\x04"])
def test_any_invalid_file_is_refused_without_a_traceback(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    assert "a.json:1" in failure_of(rubrics("import", str(tmp_path / "a.json")))


def test_a_folder_without_rubrics_and_an_unreadable_file_are_reported(tmp_path: Path) -> None:
    assert "no files to import" in rubrics("import", str(tmp_path)).stderr
    if os.geteuid() != 0:
        locked = tmp_path / "a.yaml"
        locked.write_text(YAML)
        locked.chmod(0)
        assert "cannot be read" in rubrics("import", str(tmp_path)).stderr


def test_an_imported_rubric_is_exported_with_its_tags_metadata_and_lineage(folder: Path, tmp_path: Path) -> None:
    rubrics("import", str(folder), "--prefix", "team/")
    shown = rubrics("export", "team/math/quadratics")
    assert shown.exit_code == 0
    assert shown.stderr == ""
    assert (
        "name: team/math/quadratics\ntags:\n- algebra\nmetadata:\n  owner: Ann\nlineage:\n  author: Ann\n"
        in shown.stdout
    )
    out = tmp_path / "out"
    written = rubrics("export", "--prefix", "team/", "--output", str(out))
    assert written.exit_code == 0
    assert sorted(str(path.relative_to(out)) for path in out.rglob("*.yaml")) == [
        "team/data/7.yaml",
        "team/data/line-2.yaml",
        "team/math/quadratics.yaml",
        "team/roots.yaml",
    ]
    back = rubrics("import", str(out))
    assert back.stdout.count("unchanged: ") == 4


def test_export_reports_fields_that_a_format_lacks_and_refuses_rubrics_that_do_not_fit(
    folder: Path, tmp_path: Path
) -> None:
    rubrics("import", str(folder))
    result = rubrics("export", "math/quadratics", "roots", "--format", "rgr", "--output", str(tmp_path / "out"))
    assert result.exit_code == 1
    said = " ".join(result.stderr.split())
    assert 'math/quadratics@1: rgr cannot hold the rubric: tags ["algebra"] is left out' in said
    assert 'criterion why: name "Reasons" is left out' in said
    assert "roots@1: refused criterion s1: RGR has only factual and process criteria" in said
    assert json.loads((tmp_path / "out" / "math" / "quadratics.json").read_text())[0]["weight"] == 3
    assert not (tmp_path / "out" / "roots.json").exists()


def test_an_existing_file_is_replaced_only_with_force(folder: Path, tmp_path: Path) -> None:
    rubrics("import", str(folder))
    (tmp_path / "roots.txt").write_text("mine")
    to = ("roots", "--format", "srar", "--output", str(tmp_path))
    kept = rubrics("export", *to)
    assert (kept.exit_code, (tmp_path / "roots.txt").read_text()) == (1, "mine")
    assert "--force" in kept.stderr
    assert rubrics("export", *to, "--force").exit_code == 0
    assert (tmp_path / "roots.txt").read_text() == SRAR


def test_versions_of_one_name_are_exported_side_by_side(folder: Path, tmp_path: Path) -> None:
    rubrics("import", str(folder))
    (folder / "roots.txt").write_text(SRAR + "<BONUS> Draws it.\n")
    rubrics("import", str(folder))
    rubrics("export", "roots@1", "roots@2", "--output", str(tmp_path / "out"))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["roots@1.yaml", "roots@2.yaml"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["export"], "give either"),
        (["export", "a", "--prefix", "b"], "give either"),
        (["export", "--prefix", "nothing/"], "no rubric's name begins with"),
        (["export", "team/none"], "There is no rubric"),
        (["export", "a", "--format", "toml"], "'toml' is unknown"),
    ],
)
def test_an_invalid_command_is_refused_with_advice(arguments: list[str], says: str) -> None:
    assert says in failure_of(rubrics(*arguments))


def test_lint_checks_files_and_the_store_and_its_exit_status_follows_the_findings(folder: Path) -> None:
    rubrics("import", str(folder))
    clean = rubrics("lint", "roots", str(folder / "roots.txt"))
    assert (clean.exit_code, clean.stdout) == (0, "2 rubrics: 0 errors, 0 warnings, 0 notes\n")
    (folder / "weights.yaml").write_text(
        "criteria:\n- {id: a, description: Adds.}\n- {id: b, description: Tells., weight: 0}\n"
    )
    found = rubrics("lint", str(folder / "weights.yaml"))
    assert found.exit_code == 0
    assert "warning weightless  b" in found.stdout
    assert rubrics("lint", str(folder / "weights.yaml"), "--strict").exit_code == 1
    asked = rubrics("lint", "math/quadratics", "--for", "srar", "--json")
    assert asked.exit_code == 1
    lines = [json.loads(line) for line in asked.stdout.splitlines()]
    assert {line["code"] for line in lines} == {"srar-suggest", "srar-answer", "srar-kind"}
    assert all(line["rubric"] == "math/quadratics@1" and line["advice"] for line in lines)


def test_the_rules_of_a_method_are_checked_only_if_asked(folder: Path) -> None:
    file = str(folder / "math" / "Quadratics.yaml")
    assert rubrics("lint", file).stdout == "1 rubric: 0 errors, 0 warnings, 0 notes\n"
    assert "error   rgr-count  (the rubric)" in rubrics("lint", file, "--for", "rgr").stdout


def test_what_a_generator_noted_is_in_lint_and_in_show(folder: Path) -> None:
    flags = "metadata: {flags: [result_not_named, 'invalid_criteria:2', other]}"
    (folder / "noted.yaml").write_text(YAML.replace("metadata: {owner: Ann}", flags))
    rubrics("publish", "noted", str(folder / "noted.yaml"))
    for linted in (rubrics("lint", "noted"), rubrics("lint", str(folder / "noted.yaml"))):
        assert "warning result_not_named  (the rubric)" in linted.stdout
        assert "the writing model judged 2 of its criteria invalid" in linted.stdout
        assert "2 warnings" in linted.stdout
    shown = rubrics("show", "noted").stdout
    assert "result_not_named: none of its factual criteria contains the ground truth" in shown
    assert "invalid_criteria: the writing model judged 2" in shown


def test_lint_reports_findings_per_hundred_criteria(folder: Path) -> None:
    (folder / "data.jsonl").write_text(
        '{"questions": ["Is it nice?", "Is it four?"]}\n{"questions": ["Is it five?"]}\n'
    )
    result = rubrics("lint", str(folder / "data.jsonl"), "--summary")
    assert "3 criteria" in result.stdout
    assert "33.3" in result.stdout


def test_lint_of_an_unreadable_file_exits_with_2(folder: Path) -> None:
    (folder / "a.json").write_text("{")
    result = rubrics("lint", str(folder / "a.json"))
    assert result.exit_code == 2
    assert "a.json: line 1" in result.stderr


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("team/none", "There is no rubric 'team/none'"),
        ("none.yaml", "There is no file none.yaml either"),
        ("./none.yaml", "There is no file ./none.yaml either"),
    ],
)
def test_lint_of_what_does_not_exist_exits_with_2(given: str, says: str) -> None:
    assert says in rubrics("lint", given, exit_code=2).stderr


def test_each_finding_is_printed_once_also_of_rubrics_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    bad = [{"requirement": "Adds.", "weight": 1}, {"requirement": "Avoids sums.", "weight": -1}]
    file.write_text(json.dumps([{"id": "one", "rubric": bad}, {"id": "two", "rubric": bad}]))
    said = rubrics("lint", file, exit_code=1).stdout
    assert (said.count("good-penalised"), "2 rubrics: 2 errors" in said) == (2, True)
    assert [said.count(f"rows.json: rows/{name}\n") for name in ("one", "two")] == [1, 1]
