"""The prefilter command: scores of rows, selection, and errors."""

import json

import pytest

from tests.trainer_client.trl.methods.certain import certainties
from tests.trainer_client.trl.training import policy, tokenizer
from trainer_client.dro import select_groups, variance_score
from trainer_client.trl import prefilter

pytestmark = pytest.mark.trl

REFERENCE = "Final answer: 14"
RESPONSES = ["It is 7, doubled.\nFinal answer: 14", "Who knows?\nFinal answer: 15", "no idea at all", ""]
REASONING = ["It is 7, doubled.\n", "Who knows?\n", "no idea at all", ""]
OPEN = ["--p-min", "0", "--p-max", "1"]  # an untrained model's probabilities are all below the default clip


def row(number=0, **more):
    return {"prompt": f"({number}+3)+4)*2=?\n", "reference_answer": REFERENCE, "responses": RESPONSES} | more


@pytest.fixture
def run(tmp_path, capsys):
    """Run the command on rows; return the kept lines, each row's outcome, and the output."""
    policy(tmp_path / "policy")
    words = tokenizer()
    words.save_pretrained(tmp_path / "policy")

    def run(rows, *options, **passed):
        lines = [given if isinstance(given, str) else json.dumps(given) for given in rows]
        data, out, scores = (tmp_path / f"{name}.jsonl" for name in ("rows", "kept", "scores"))
        data.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        files = ["--model", str(tmp_path / "policy"), "--data", str(data), "--out", str(out), "--scores", str(scores)]
        prefilter.main([*files, *OPEN, *options], **passed)
        outcomes = [json.loads(line) for line in scores.read_text().splitlines()]
        return out.read_text(encoding="utf-8").splitlines(), outcomes, capsys.readouterr()

    return run


def expected(tmp_path, prompt, reasoning=REASONING, **clip):
    return variance_score(certainties(tmp_path, prompt, reasoning, REFERENCE), **{"p_min": 0.0, "p_max": 1.0} | clip)


def test_a_score_measures_how_the_certainty_of_the_reference_varies_with_the_reasoning(tmp_path, run):
    _, outcomes, _ = run([row(0), row(1)], "--top", "1")
    assert [one["score"] for one in outcomes] == [
        pytest.approx(expected(tmp_path, row(number)["prompt"]), rel=1e-3) for number in (0, 1)
    ]


def test_the_clip_and_the_share_of_tokens_are_options(tmp_path, run):
    options = ["--top", "1", "--tokens", "0.5", "--p-min", "0.003", "--p-max", "0.004"]
    _, (outcome,), _ = run([row()], *options)
    clip = {"top_fraction": 0.5, "p_min": 0.003, "p_max": 0.004}
    assert outcome["score"] == pytest.approx(expected(tmp_path, row()["prompt"], **clip), rel=1e-3)
    assert outcome["score"] != pytest.approx(expected(tmp_path, row()["prompt"]), rel=1e-3)


def test_kept_rows_are_written_unchanged_and_in_order(run):
    lines = [
        f'{{"prompt":  "{number}+ü=?", "reference_answer":"14","responses":["{number}","x" ],"id":{number}.0}}'
        for number in range(9)
    ]
    kept, outcomes, _ = run(["", *lines[:5], "  ", *lines[5:]], "--top", "0.4", "--random", "0.5", "--seed", "5")
    chosen = select_groups([one["score"] for one in outcomes], top_fraction=0.4, random_fraction=0.5, seed=5)
    assert kept == [lines[place] for place in chosen]
    assert [one["line"] for one in outcomes] == [2, 3, 4, 5, 6, 8, 9, 10, 11]


@pytest.mark.parametrize(("retained", "top"), [(0.18, 0.089), (0.16, 0.067), (0.125, 0.028)])
def test_the_papers_retained_shares_select_by_score(retained, top):
    given = prefilter._parser().parse_args(["--model", "m", "--data", "d", "--out", "o", "--retain", str(retained)])
    assert prefilter._top_share(given) == pytest.approx(top, abs=5e-4)
    assert (given.group, given.top_p, given.temperature) == (16, 0.95, 1.0)


def test_a_share_to_retain_includes_the_random_rows(run):
    rows = [row(number, responses=[str(number), "a" * (1 + number)]) for number in range(10)]
    kept, outcomes, _ = run(rows, "--retain", "0.6", "--random", "0.2")
    assert [one["kept"] for one in outcomes].count("score") == 5
    assert len(kept) == 6


def answer_after_the_first_line(text):
    """A custom rule."""
    return text.index("\n") + 1 if "\n" in text else None


def test_a_custom_answer_rule_is_applied_as_in_training(tmp_path, run):
    responses = ["one\ntwo\nFinal answer: 14", "other\nthree\nFinal answer: 14"]
    _, (outcome,), _ = run(
        [row(responses=responses)], "--top", "1", "--answer-rule", f"{__name__}:{answer_after_the_first_line.__name__}"
    )
    assert outcome["score"] == pytest.approx(expected(tmp_path, row()["prompt"], ["one\n", "other\n"]), rel=1e-3)


def test_the_reason_for_keeping_each_row_is_recorded(run):
    rows = [row(number, responses=[str(number), "a" * (1 + number)]) for number in range(5)]
    kept, outcomes, said = run([*rows, row(reference_answer=None)], "--top", "0.4", "--random", "0.3")
    by_score = sorted((one["score"] for one in outcomes if one["kept"] == "score"), reverse=True)
    assert by_score == sorted((one["score"] for one in outcomes[:5]), reverse=True)[:2]
    assert [one["kept"] for one in outcomes].count("random") == 1
    assert len(kept) == 3
    assert said.out.startswith("kept 3 of 6 rows in ")
    assert (
        f"2 of the 5 scored ones for their score, {by_score[-1]:.4g} or more, and 1 of the other 3 at rand" in said.out
    )
    assert said.out.endswith("; 1 without a score: no reference answer\n")


@pytest.mark.parametrize("nothing", [None, "", " \n"])
def test_a_row_without_a_reference_answer_is_never_kept(run, nothing):
    kept, outcomes, _ = run([row(reference_answer=nothing), row(1)], "--top", "1", "--random", "1")
    assert outcomes[0] == {"line": 1, "score": None, "why": "no reference answer", "kept": None}
    assert kept == [json.dumps(row(1))]


def test_a_row_that_exceeds_the_models_context_is_never_kept(run):
    sampled = row(prompt="x" * 200)
    del sampled["responses"]
    rows = [row(prompt="x" * 250), sampled, row(prompt="x" * 200)]
    kept, outcomes, said = run(rows, "--top", "1", "--random", "1", "--max-tokens", "50")
    assert [one["why"] for one in outcomes] == ["too long", "too long", None]
    assert kept == [json.dumps(rows[2])]
    assert "; 2 without a score: too long" in said.out


def test_responses_are_sampled_where_a_row_has_none(run):
    rows = [{"prompt": f"{number}+1=?", "reference_answer": "2"} for number in range(3)]
    options = ["--top", "1", "--group", "3", "--max-tokens", "6", "--batch", "2"]
    _, outcomes, _ = run([*rows[:2], row(), rows[2]], *options, "--seed", "1")
    _, again, _ = run([*rows[:2], row(), rows[2]], *options, "--seed", "1")
    _, other, _ = run([*rows[:2], row(), rows[2]], *options, "--seed", "2")
    _, larger, _ = run([*rows[:2], row(), rows[2]], *options, "--seed", "1", "--group", "4")
    assert all(one["score"] > 0 for one in outcomes)
    assert again == outcomes
    for changed in (other, larger):
        same = [one["score"] == before["score"] for one, before in zip(changed, outcomes, strict=True)]
        assert same == [False, False, True, False]


def test_prompts_of_messages_use_the_models_chat_template(tmp_path, run):
    words = tokenizer()
    words.chat_template = (
        "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    words.save_pretrained(tmp_path / "policy")
    _, (messages, text), _ = run(
        [row(prompt=[{"role": "user", "content": "1+1=?"}]), row(prompt="[user]1+1=?[assistant]")], "--top", "1"
    )
    assert messages["score"] == text["score"]
    assert text["score"] == pytest.approx(expected(tmp_path, "[user]1+1=?[assistant]"), rel=1e-3)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{", "the line is not valid JSON"),
        ("[1]", "the line is not a JSON object; write an object with prompt and reference_answer"),
        ('{"reference_answer": "2"}', "prompt must be non-empty text, or a list of messages"),
        ('{"prompt": "", "reference_answer": "2"}', "prompt must be non-empty text"),
        ('{"prompt": ["1+1"]}', "a list of messages with role and content"),
        ('{"prompt": "1+1", "reference_answer": ["2"]}', "reference_answer is of type list; it must be text or"),
        ('{"prompt": "1+1", "reference_answer": true}', "reference_answer is of type bool"),
        ('{"prompt": "1+1", "responses": "2"}', "responses must be a list of at least 2 texts"),
        ('{"prompt": "1+1", "responses": ["2"]}', "responses must be a list of at least 2 texts"),
        ('{"prompt": "1+1", "responses": ["2", null]}', "responses must be a list of at least 2 texts"),
    ],
)  # fmt: skip
def test_an_invalid_row_is_named_by_its_file_and_line(run, tmp_path, capsys, line, fault):
    with pytest.raises(SystemExit) as stopped:
        run([row(), "", line], "--top", "1")
    assert stopped.value.code == 1
    said = capsys.readouterr().err
    assert f"{tmp_path / 'rows.jsonl'}:3: " in said
    assert fault in said
    assert "rows.jsonl:1:" not in said
    assert not (tmp_path / "kept.jsonl").exists()


def test_many_invalid_rows_are_counted(run, capsys):
    with pytest.raises(SystemExit):
        run(["{"] * 13, "--top", "1")
    said = capsys.readouterr().err
    assert said.count("the line is not valid JSON") == 10
    assert said.endswith("\nand 3 more\n")


@pytest.mark.parametrize(
    ("template", "fault"),
    [
        (None, "prompt has messages, but the model has no chat template"),
        ("{{ raise_exception('no system here') }}", "the model's chat template rejects the prompt: no system here"),
    ],
)
def test_messages_without_tokens_are_an_invalid_row(run, tmp_path, capsys, template, fault):
    words = tokenizer()
    words.chat_template = template
    words.save_pretrained(tmp_path / "policy")
    with pytest.raises(SystemExit):
        run([row(), row(prompt=[{"role": "system", "content": "x"}])], "--top", "1")
    assert f"rows.jsonl:2: {fault}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--top", "1.5"], "top_fraction is 1.5; it is a share in [0, 1]"),
        (["--retain", "0.05"], "--retain is 0.05; it must be from 0.1, the random share"),
        (["--retain", "0.5", "--random", "1"], "--random is 1; with --retain it must be from 0 to less than 1"),
        (["--top", "1", "--top-p", "0"], "0 is not above 0 and at most 1"),
        (["--top", "1", "--answer-rule", "nowhere:rule"], "--answer-rule nowhere:rule: No module named 'nowhere'"),
        (["--top", "1", "--answer-rule", "json"], "write MODULE:FUNCTION"),
        (["--top", "0.5", "--random", "-1"], "random_fraction is -1.0"),
        (["--top", "1", "--tokens", "2"], "top_fraction is 2.0"),
        (["--top", "1", "--p-min", "0.9", "--p-max", "0.1"], "p_min"),
        (["--top", "1", "--group", "1"], "1 is too small; give 2 or more"),
        (["--top", "1", "--temperature", "0"], "0 is not above 0"),
        (["--top", "1", "--out", "{data}"], "must be different files"),
        (["--top", "1", "--out", "{data}.d/kept"], "--out: the folder"),
        (["--top", "1", "--data", "{data}.not"], "No such file"),
    ],
)  # fmt: skip
def test_invalid_options_are_refused_before_a_model_is_loaded(tmp_path, capsys, options, fault):
    data = tmp_path / "rows.jsonl"
    data.write_text(json.dumps(row()) + "\n")
    given = ["--model", str(tmp_path / "nowhere"), "--data", str(data), "--out", str(tmp_path / "kept.jsonl")]
    with pytest.raises(SystemExit) as stopped:
        prefilter.main([*given, *(option.replace("{data}", str(data)) for option in options)])
    assert stopped.value.code != 0
    assert fault in capsys.readouterr().err
    assert data.read_text() == json.dumps(row()) + "\n"


def test_a_missing_model_is_reported(tmp_path, capsys):
    data = tmp_path / "rows.jsonl"
    data.write_text(json.dumps(row()) + "\n")
    with pytest.raises(SystemExit) as stopped:
        prefilter.main(["--model", str(tmp_path), "--data", str(data), "--out", str(tmp_path / "k"), "--top", "1"])
    assert stopped.value.code == 1
    assert str(tmp_path) in capsys.readouterr().err


def test_a_long_run_shows_its_progress(run):
    _, _, said = run([row(number) for number in range(3)], "--top", "1", progress_after_s=0.0)
    assert "scoring" in said.err
    assert "3/3" in said.err
    assert "scoring" not in said.out
