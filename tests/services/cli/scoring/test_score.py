"""`adjudge score`: a file of groups in, rewards out; a bad line does not affect the others."""

import gc
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.services.command import adjudge, failure_of
from tests.services.processes import Service
from trainer_client.wire import GroupRewards

pytestmark = pytest.mark.usefixtures("migrated")

RUBRIC = {"criteria": [{"id": "a", "description": "Is right."}, {"id": "b", "description": "Is brief.", "weight": 3}]}
GROUP = {"id": "g1", "prompt": "Is 7 prime?", "responses": ["yes", "no"]}


@pytest.fixture
def rubric(tmp_path: Path) -> str:
    """A rubric file."""
    path = tmp_path / "rubric.json"
    path.write_text(json.dumps(RUBRIC))
    return str(path)


def lines(tmp_path: Path, *rows: Any) -> str:
    """Write a JSONL file of these rows, with strings unchanged; return its path."""
    path = tmp_path / "groups.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def score(*arguments: str, engine: str = "scripted://hash") -> tuple[Result, list[GroupRewards]]:
    """Run the command, and return its JSONL output."""
    result = adjudge("score", *arguments, "--engine", engine)
    return result, [GroupRewards.model_validate_json(line) for line in result.stdout.splitlines()]


def test_every_response_is_scored_and_printed_as_jsonl_in_order(tmp_path: Path, rubric: str) -> None:
    file = lines(tmp_path, GROUP, "", GROUP | {"id": "g2", "responses": ["maybe"]})
    result, groups = score(file, "--rubric", rubric, engine="scripted://yes")
    assert result.exit_code == 0
    assert [(g.id, [r.reward for r in g.responses]) for g in groups] == [("g1", [1.0, 1.0]), ("g2", [1.0])]
    assert "3 responses" in result.stderr


def test_lines_without_an_id_are_named_by_their_number(tmp_path: Path, rubric: str) -> None:
    bare = {key: value for key, value in GROUP.items() if key != "id"}
    _, groups = score(lines(tmp_path, bare, "", bare), "--rubric", rubric)
    assert [group.id for group in groups] == ["line-1", "line-3"]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("{", "JSON"),
        ("7", "object"),
        ({"prompt": "Is 7 prime?", "respnses": ["a"]}, "--column responses=respnses"),
        (GROUP | {"responses": []}, "responses"),
        (GROUP | {"rubric": "<SUGGEST>\n<WRONG> x"}, "rubric"),
        (GROUP | {"rubric": "no/such"}, "no/such"),
    ],
    ids=str,
)
def test_a_bad_line_is_reported_by_its_number_and_the_others_are_scored(
    tmp_path: Path, rubric: str, bad: Any, says: str
) -> None:
    result, groups = score(lines(tmp_path, GROUP, bad, GROUP | {"id": "g3"}), "--rubric", rubric)
    assert result.exit_code == 1
    assert [group.id for group in groups] == ["g1", "g3"]
    (reported,) = [line for line in result.stderr.splitlines() if "groups.jsonl:2:" in line]
    assert says in reported


def test_fields_that_no_group_has_are_named_once_with_the_field_that_was_meant(tmp_path: Path, rubric: str) -> None:
    row = GROUP | {"[/bold]": 1, "grounding_text": "x", "reference_anwser": "y"}
    result, groups = score(lines(tmp_path, row, row | {"id": "g2"}), "--rubric", rubric)
    assert (result.exit_code, len(groups)) == (0, 2)
    assert result.stderr.count("not read: [/bold], grounding_text, reference_anwser") == 1
    assert "'reference_anwser' may be reference_answer: --column reference_answer=reference_anwser" in result.stderr


def test_unscored_responses_are_counted_with_their_reasons(tmp_path: Path, rubric: str) -> None:
    file = lines(tmp_path, GROUP, GROUP | {"id": "g2", "responses": ["x" * 9000]})
    result, groups = score(file, "--rubric", rubric, engine="scripted://hash?context=1000")
    assert result.exit_code == 1
    assert [r.reward is None for g in groups for r in g.responses] == [False, False, True]
    assert "1 of 3 stayed unscored: 1 truncated_input" in result.stderr
    assert "first truncated_input: g2, response 1, " in result.stderr
    assert "1 truncated_input" in result.stderr
    result, groups = score(file, "--rubric", rubric, "--truncate", engine="scripted://hash?context=1000")
    assert result.exit_code == 0
    assert groups[1].responses[0].characters_omitted > 0


def test_a_rubric_may_be_published_or_part_of_the_line(tmp_path: Path, rubric: str) -> None:
    adjudge("rubrics", "publish", "team/a", rubric)
    own = "<SUGGEST> Says so.\n<ANSWER> The answer is yes."
    result, groups = score(lines(tmp_path, GROUP, GROUP | {"rubric": own}), "--rubric", "team/a@1", "--mode", "points")
    assert result.exit_code == 0
    judged, own_ones = [[verdict.criterion for verdict in group.responses[0].verdicts] for group in groups]
    assert judged == ["a", "b"]
    assert len(own_ones) == 2
    assert groups[0].rubric != groups[1].rubric


@pytest.mark.parametrize("arguments", [["--rubric", "no/such"], []])
def test_without_a_known_rubric_nothing_is_scored(tmp_path: Path, arguments: list[str]) -> None:
    result, groups = score(lines(tmp_path, GROUP), *arguments)
    assert (result.exit_code, groups) == (1, [])
    assert "rubric" in result.stderr


def test_limit_scores_only_the_first_lines(tmp_path: Path, rubric: str) -> None:
    file = lines(tmp_path, GROUP, GROUP | {"id": "g2"}, "{")
    result, groups = score(file, "--rubric", rubric, "--limit", "1")
    assert (result.exit_code, [group.id for group in groups]) == (0, ["g1"])


def test_output_writes_the_same_jsonl_to_a_file(tmp_path: Path, rubric: str) -> None:
    file = lines(tmp_path, GROUP)
    printed, _ = score(file, "--rubric", rubric)
    written, _ = score(file, "--rubric", rubric, "--output", str(tmp_path / "out.jsonl"))
    assert written.stdout == ""
    assert (tmp_path / "out.jsonl").read_text() == printed.stdout


@pytest.mark.parametrize(
    ("judge", "says"),
    [
        ('{"cascade": [', '{"cascade": [ is not a cascade or panel: '),
        ('{"cascade": ["scripted://yes"]}', '{"cascade": ["scripted://yes"]} is not a cascade or panel: '),
        ("scripted://maybe", "scripted://maybe"),
    ],
)
def test_the_output_is_left_as_it_was_if_the_judge_cannot_be_opened(
    tmp_path: Path, rubric: str, judge: str, says: str
) -> None:
    output = tmp_path / "rewards.jsonl"
    output.write_text("earlier")
    refused = adjudge("score", lines(tmp_path, GROUP), "--rubric", rubric, "--judge", judge, "-o", output)
    assert says in failure_of(refused)
    assert output.read_text() == "earlier"


def test_the_output_is_left_as_it_was_if_the_service_cannot_be_reached(tmp_path: Path, rubric: str) -> None:
    output = tmp_path / "rewards.jsonl"
    output.write_text("earlier")
    nowhere = ("--url", "http://127.0.0.1:1", "-o", output)
    assert "127.0.0.1:1" in failure_of(adjudge("score", lines(tmp_path, GROUP), "--rubric", rubric, *nowhere))
    (tmp_path / "empty.jsonl").write_text("\n")
    empty = adjudge("score", tmp_path / "empty.jsonl", "--rubric", rubric, "--judge", "scripted://yes", "-o", output)
    assert "has no lines" in failure_of(empty)
    assert output.read_text() == "earlier"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_ends_the_work_in_progress_too(
    tmp_path: Path, rubric: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = lines(tmp_path, *[GROUP | {"id": f"g{n}"} for n in range(100)])
    refused = adjudge("score", file, "--rubric", rubric, "--engine", "scripted://yes", "-o", "/dev/full")
    assert "No space left on device" in failure_of(refused)
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_a_file_is_never_overwritten_by_what_is_read_from_it(tmp_path: Path, rubric: str) -> None:
    file = Path(lines(tmp_path, GROUP | {"reference_answer": "yes", "good": "yes", "bad": "no"}))
    before = file.read_text()
    (tmp_path / "same.jsonl").symlink_to(file)
    for command in (
        ("score", file, "--rubric", rubric, "-o", tmp_path / "same.jsonl"),
        ("filter-easy", file, "-o", tmp_path / "kept.jsonl", "--scores", file),
        ("rubrics", "discriminate", file, "--rubric", rubric, "-o", file),
        ("measure", file, "--plot", file),
        ("measure", rubric, "--against", file, "-o", file),
    ):
        refused = adjudge(*command, exit_code=2)
        assert "is the input, and would be overwritten" in refused.stderr
    assert file.read_text() == before


def test_a_table_of_one_line_says_once_what_was_not_read(tmp_path: Path) -> None:
    file = lines(tmp_path, GROUP | {"rubric": RUBRIC, "level": 1})
    shown = adjudge("score", file, "--engine", "scripted://yes", "--table", exit_code=0)
    assert "point: Is brief." in shown.stdout
    assert shown.stderr.count("not read: level") == 1


def test_names_with_brackets_are_shown_as_they_are(tmp_path: Path, rubric: str) -> None:
    file = Path(lines(tmp_path, GROUP)).rename(tmp_path / "data[v1].jsonl")
    options = ("--rubric", rubric, "--engine", "scripted://yes", "--table", "--run", "a[/b]")
    assert "data[v1].jsonl · weighted_mean" in adjudge("score", file, *options, exit_code=0).stdout
    assert "a[/b] · weighted_mean" in adjudge("recompute", "a[/b]", exit_code=0).stdout
    assert "a[/b]: 1 problem, 2 responses" in adjudge("measure", "--run", "a[/b]", exit_code=0).stdout


def test_a_rubric_of_a_line_that_is_not_kept_as_it_is_is_named(tmp_path: Path, rubric: str) -> None:
    rule = {"criterion": "Has a title.", "points": 1, "tags": ["verifier:rule", "function:has_title"]}
    row = GROUP | {"rubric": [{"criterion": "Is right.", "points": 1}, rule]}
    result, groups = score(lines(tmp_path, GROUP, *[row] * 5), "--rubric", rubric)
    assert [len(group.responses[0].verdicts) for group in groups] == [2, 1, 1, 1, 1, 1]
    assert result.stderr.count("the criterion is left out") == 1
    assert "groups.jsonl: rubric changed: " in result.stderr
    assert "(5 lines; first: line 2, [1])" in result.stderr


def test_the_output_has_no_rewards_of_before_if_no_line_is_scored(tmp_path: Path, rubric: str) -> None:
    output = tmp_path / "rewards.jsonl"
    output.write_text("earlier")
    assert score(lines(tmp_path, "{"), "--rubric", rubric, "-o", str(output))[0].exit_code == 1
    assert output.read_text() == ""


@pytest.mark.parametrize("where", ["nowhere/rewards.jsonl", "."])
def test_an_output_that_cannot_be_written_is_refused_before_anything_is_judged(
    tmp_path: Path, rubric: str, where: str
) -> None:
    file, output = lines(tmp_path, GROUP), tmp_path / where
    refused = [
        adjudge("score", file, "--rubric", rubric, "-o", output),
        adjudge("measure", file, "-o", output),
        adjudge("evaluate", file, "--judge", "scripted://yes", "--html", output),
    ]
    assert [f"{output} cannot be written: " in failure_of(one) for one in refused] == [True] * 3


def test_a_running_service_can_do_the_judging(tmp_path: Path, rubric: str, shared_service: Service) -> None:
    result, groups = score(lines(tmp_path, GROUP), "--rubric", rubric, "--url", shared_service.url)
    assert result.exit_code == 0
    assert len(groups[0].responses) == 2


def test_an_empty_file_and_an_unknown_mode_are_refused(tmp_path: Path, rubric: str) -> None:
    assert score(lines(tmp_path), "--rubric", rubric)[0].exit_code != 0
    assert score(lines(tmp_path, GROUP), "--rubric", rubric, "--mode", "best")[0].exit_code != 0


def test_a_ranking_compares_whole_groups_and_shows_its_position_bias(tmp_path: Path, rubric: str) -> None:
    file = lines(tmp_path, GROUP, GROUP | {"id": "g2", "responses": ["yes", "no", "maybe"]})
    options = [file, "--rubric", rubric, "--mode", "ranking", "--schedule", "swiss"]
    result, groups = score(*options)
    assert result.exit_code == 0, result.output
    assert [(group.id, group.ranking.pairs) for group in groups if group.ranking] == [("g1", 1), ("g2", 2)]
    assert "5 responses" in result.stderr
    shown = adjudge("score", *options, "--table", "--engine", "scripted://hash")
    assert "position bias: the response shown first was preferred in" in shown.stdout


def test_a_group_that_is_weighed_as_a_whole_is_sent_in_one_request(tmp_path: Path, rubric: str) -> None:
    contains = {"method": "contains", "any_of": ["yes"]}
    criteria = [*RUBRIC["criteria"], {"id": "c", "description": "Says yes.", "verification": contains}]
    Path(rubric).write_text(json.dumps({"criteria": criteria}))
    options = ["--rubric", rubric, "--weighting", "contrast"]
    result, (group,) = score(lines(tmp_path, GROUP), *options, engine="scripted://yes")
    assert result.exit_code == 0, result.output
    assert group.criterion_weights["c"] > 1.0
    assert [one.declared_reward for one in group.responses] == [1.0, 0.8]
    assert group.responses[1].reward == pytest.approx(1 - group.criterion_weights["c"] / 5)
