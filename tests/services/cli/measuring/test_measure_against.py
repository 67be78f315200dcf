"""`adjudge measure --against`: the judge compares the responses of two files, or of two runs."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from adjudge_services.cli.measuring.measure_file import PromptResponses, pairs_of, side_of_run
from adjudge_services.cli.measuring.measure_ledger import RecordedResponse
from tests.services.command import adjudge
from trainer_client.wire.ledger import RecordedVerdict

pytestmark = pytest.mark.usefixtures("migrated")


def line(prompt: str, *responses: str) -> dict[str, Any]:
    """Return a line of a file."""
    return {"prompt": prompt, "responses": list(responses)}


def against(tmp_path: Path, a: list[Any], b: list[Any], *options: str) -> tuple[Result, dict[str, Any]]:
    """Compare two files by a judge that always takes the first of two; return the result and the JSON."""
    mine, other, found = tmp_path / "a.jsonl", tmp_path / "b.jsonl", tmp_path / "found.json"
    for file, lines in ((mine, a), (other, b)):
        file.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines))
    command = ["measure", str(mine), "--against", str(other), "-o", str(found), "--engine", "scripted://yes"]
    result = adjudge(*command, *options)
    return result, json.loads(found.read_text()) if found.exists() else {}


def test_a_judge_with_full_position_bias_finds_no_winner(tmp_path: Path) -> None:
    result, found = against(tmp_path, [line("?", "x", "y"), line("!", "z")], [line("!", "w"), line("?", "u", "v")])
    assert result.exit_code == 0, result.output
    assert {name: one["value"] for name, one in found["figures"].items()} == {
        "win_rate": 0.5,
        "tie_rate": 1.0,
        "order_agreement": 0.0,
    }
    assert (found["pairs"], found["unmatched"], found["figures"]["win_rate"]["problems"]) == (3, 0, 2)
    assert "win_rate" in result.stdout


def test_prompts_in_only_one_file_are_counted(tmp_path: Path) -> None:
    result, found = against(tmp_path, [line("?", "x"), line("1", "x")], [line("?", "u")])
    assert (result.exit_code, found["unmatched"], found["pairs"]) == (0, 1, 1)
    nothing, _ = against(tmp_path, [line("?", "x")], [line("!", "u")])
    assert nothing.exit_code == 1
    assert "no prompt is in both" in nothing.stderr


def test_an_invalid_comparison_is_refused_with_a_message(tmp_path: Path) -> None:
    one = [line("?", "x")]
    assert "not JSON" in against(tmp_path, ["{"], one)[0].stderr
    assert "--steps cannot be used here" in against(tmp_path, one, one, "--steps")[0].stderr
    assert "--question cannot" in adjudge("measure", __file__, "--question", "Which?").stderr
    assert "does not exist" in adjudge("measure", __file__, "--against", "none.jsonl").stderr
    late, found = against(tmp_path, one, one, "--deadline-s", "0.000001")
    assert (late.exit_code, found["figures"]) == (1, {})


def test_responses_and_equal_prompts_are_paired_in_order() -> None:
    a = [PromptResponses("?", ("a1", "a2", "a3"), {}), PromptResponses("?", ("a4",), {"grounding": "g"})]
    b = [PromptResponses("?", ("b1", "b2"), {}), PromptResponses("?", ("b3",), {}), PromptResponses("!", ("c",), {})]
    problems, unmatched = pairs_of(a, b)
    assert [[(pair.a, pair.b) for pair in pairs] for pairs in problems] == [
        [("a1", "b1"), ("a2", "b2")],
        [("a4", "b3")],
    ]
    assert (problems[1][0].grounding, unmatched) == ("g", 1)


def recorded(text: str | None) -> RecordedResponse:
    """Return a response as a ledger has it."""
    about = {
        "run": "r",
        "step": 1,
        "group": "g",
        "response": 0,
        "rubric": None,
        "request_id": "q",
        "prompt_digest": "p",
    }
    verdict = {"criterion": "outcome", "status": "ok", "score": 1.0}
    prompt = None if text is None else "?"
    given = {**about, "at": "2026-01-01T00:00:00Z", "verdict": verdict, "prompt": prompt, "text": text}
    return RecordedResponse(RecordedVerdict.model_validate(given))


def test_runs_are_compared_by_the_texts_in_the_ledger() -> None:
    (side,) = side_of_run([recorded("x"), recorded("y")], "r")
    assert (side.prompt, side.responses) == ("?", ("x", "y"))
    with pytest.raises(ValueError, match="keeps no texts of run 'r'"):
        side_of_run([recorded(None)], "r")
