"""Rows of a reward call become groups of a request, by their shared columns, under ids equal on all ranks."""

import json

import numpy as np
import pytest
from PIL import Image

from tests.trainer_client.trl.judges import CRITERIA, FakeJudgeTransport, Trainer, rewarding
from trainer_client import InvalidRequest
from trainer_client.rows.reading import RowReader, prompt_digest

torch = pytest.importorskip("torch")


def read(
    prompts, completions=None, ids=None, *, own=None, rubric="r", step=None, stop_token_ids=None,
    without_rubric="refuse", **columns
):  # fmt: skip
    """Read rows with these columns; `own` is the column `rubric`."""
    completions, columns = completions or ["1"] * len(prompts), {"rubric": own, **columns}
    reader = RowReader(rubric=rubric, without_rubric=without_rubric, step=step, stop_token_ids=stop_token_ids)
    return reader.read(prompts, completions, ids, columns)


async def sent(judge, prompts, completions=None, **columns):
    """The groups of the last request."""
    await rewarding(judge)(prompts, completions or ["1"] * len(prompts), **columns)
    return judge.asked[-1]["groups"]


def test_rows_with_equal_judged_columns_form_one_group_in_any_position():
    rows = read(["a", "b", "a", "b"], grounding=["x", "x", "x", "y"])
    assert [group.rows for group in rows.groups] == [[0, 2], [1], [3]]


@pytest.mark.parametrize("column", ["rubric", "grounding", "reference_answer", "ground_truth"])
def test_each_column_separates_groups_and_a_missing_value_is_a_value(column):
    rows = read(["a"] * 3, **{"own" if column == "rubric" else column: ["x", None, "x"]})
    assert [group.rows for group in rows.groups] == [[0, 2], [1]]


def test_ids_are_equal_on_ranks_with_different_parts_of_a_group():
    whole = read(["a", "b", "b"], ground_truth=[1, 2, 2], step=3)
    share = read(["b"], ground_truth=[2], step=3)
    assert share.groups[0].id == whole.groups[1].id
    assert share.groups[0].id != whole.groups[0].id


def test_ids_differ_between_steps_and_between_text_and_messages_of_the_same_content():
    messages = [{"role": "user", "content": "a"}]
    ids = {
        read([prompt], step=step).groups[0].id for prompt in ("a", messages, json.dumps(messages)) for step in (1, 2)
    }
    assert len(ids) == 6


def seen(*, red=0, kind="image"):
    """A small picture as data sets hold it, of one color."""
    pixels = np.zeros((2, 3, 3), np.uint8)
    pixels[0, 0, 0] = red
    match kind:
        case "image":
            return Image.fromarray(pixels)
        case "array":
            return pixels
        case "tensor":
            return torch.from_numpy(pixels)
        case "list of tensors":
            return [torch.from_numpy(pixels), torch.ones(2)]
        case _:
            return {"bytes": pixels.tobytes(), "path": None}


KINDS = ["image", "array", "tensor", "list of tensors", "bytes"]


def looking(picture):
    return [{"role": "user", "content": [{"type": "image", "image": picture}, {"type": "text", "text": "What is it?"}]}]


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_that_differ_only_by_their_picture_are_apart(kind):
    reds = [0, 7, 0, 7]
    inside = read([looking(seen(red=red, kind=kind)) for red in reds])
    beside = read(["a"] * 4, image=[seen(red=red, kind=kind) for red in reds])
    assert [group.rows for group in inside.groups] == [group.rows for group in beside.groups] == [[0, 2], [1, 3]]
    again = read([looking(seen(red=7, kind=kind))])
    assert again.groups[0].id == inside.groups[1].id  # as on another rank
    assert inside.groups[0].fields["prompt"][0].content == "[image]\nWhat is it?"


@pytest.mark.parametrize("kind", KINDS)
def test_the_digest_of_a_prompt_is_that_of_its_content(kind):
    """A scaffold's draw depends on it; a resumed run decodes its pictures again."""
    red, again, other = [prompt_digest(looking(seen(red=red, kind=kind))) for red in (7, 7, 0)]
    assert red == again != other


def test_an_id_does_not_depend_on_the_order_of_a_messages_fields():
    one, other = [{"role": "user", "content": "a"}], [{"content": "a", "role": "user", "name": None}]
    assert read([one]).groups[0].id == read([other]).groups[0].id


def test_the_constructors_rubric_is_part_of_the_id_and_equals_the_same_rubric_in_a_row():
    assert read(["a"], rubric="r").groups[0].id != read(["a"], rubric="s").groups[0].id
    assert len(read(["a", "a"], rubric="r", own=["r", None]).groups) == 1


async def test_a_row_without_a_rubric_uses_the_constructors():
    judge = FakeJudgeTransport()
    own, *default = await sent(judge, ["a", "b", "c"], rubric=["math/own@2", None, " "])
    assert own["rubric"] == "math/own@2"
    assert all("rubric" not in group for group in default)
    assert judge.asked[0]["rubric"] == "r"


async def test_an_inline_rubric_is_sent_once_for_all_groups():
    judge = FakeJudgeTransport()
    await rewarding(judge, CRITERIA)(["a", "b"], ["1", "1"])
    assert [c["id"] for c in judge.asked[0]["rubric"]["criteria"]] == ["a", "b"]
    assert all("rubric" not in group for group in judge.asked[0]["groups"])


def test_nulls_that_arrow_added_are_dropped_and_those_of_json_text_kept():
    criterion = {"id": "a", "description": "Is JSON."}
    padded = {"method": "json_schema", "schema": {"type": "object", "minimum": None}, "pattern": None}
    [filled] = read(["a"], own=[[{**criterion, "verification": padded}]]).groups[0].rubric.criteria
    assert filled.verification.json_schema == {"type": "object"}
    exact = {"method": "json_schema", "schema": {"const": None}}
    [kept] = read(["a"], own=[json.dumps([{**criterion, "verification": exact}])]).groups[0].rubric.criteria
    assert kept.verification.json_schema == {"const": None}


@pytest.mark.parametrize(("given", "text"), [(5.0, "5"), (np.float32(0.5), "0.5"), (float("nan"), None)])
async def test_a_numeric_ground_truth_is_formatted_as_written_by_hand(given, text):
    [group] = await sent(FakeJudgeTransport(), ["a"], ground_truth=[given])
    assert group.get("ground_truth") == text


async def test_responses_include_their_tokens_and_with_a_trainer_whether_they_stopped():
    judge = FakeJudgeTransport()
    reward = rewarding(judge)
    ids = [[5, 6, 0], [5, 6], [5, 9], []]
    await reward(["a"] * 4, ["1"] * 4, ids, **Trainer(_tokenizer=type("T", (), {"pad_token_id": 9})).logs)
    [group] = judge.asked[0]["groups"]
    assert [(r["tokens"], r["stopped"]) for r in group["responses"]] == [(3, True), (2, False), (2, True), (0, False)]
    await reward(["a"], ["1"], [[5]])
    [group] = judge.asked[1]["groups"]
    assert group["responses"] == [{"text": "1", "tokens": 1}]
    await reward(["a"], ["1"])
    assert judge.asked[2]["groups"][0]["responses"] == [{"text": "1"}]


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"ground_truth": ["x", ["y"]]}, "row 1: ground_truth is of type list"),
        ({"grounding": ["x", {}]}, "row 1: grounding is of type dict"),
        ({"own": ["r", "[1"]}, "row 1: this begins like JSON but is invalid"),
        ({"own": ["r", [{"id": "a"}]]}, "row 1: criteria.0.description"),
        ({"own": ["r", 7]}, "row 1: a rubric cannot be of type int"),
    ],
)
def test_a_row_that_cannot_be_sent_is_a_user_error_that_names_the_row(columns, says):
    with pytest.raises(InvalidRequest, match=says.replace("[", r"\[")):
        read(["a", "b"], **columns)


def test_a_row_without_any_rubric_gets_a_hint_unless_the_mode_needs_none():
    with pytest.raises(InvalidRequest, match=r"row 0: it has no rubric; put one .* give RubricReward a default"):
        read(["a"], rubric=None)
    assert len(read(["a"], rubric=None, without_rubric=None).groups) == 1


@pytest.mark.parametrize("name", ["completions", "completion_ids", "ground_truth"])
def test_a_column_of_different_length_is_refused_by_name(name):
    given = {"completions": ["1", "1"], "ids": [[1], [1]], "ground_truth": ["1", "1"]}
    given["ids" if name == "completion_ids" else name] = [["1"]]
    with pytest.raises(ValueError, match=f"1 {name} for 2 prompts"):
        read(["a", "b"], **given)


async def test_without_rows_no_request_is_sent():
    judge = FakeJudgeTransport()
    assert await rewarding(judge)([], []) == []
    assert judge.asked == []


async def test_the_step_and_all_options_are_sent(monkeypatch):
    judge = FakeJudgeTransport()
    reward = rewarding(judge, mode="factual_override", on_failure="skip", deadline_s=7, votes=3, reasoning="keep")
    await reward(["a"], ["1"], trainer_state=type("State", (), {"global_step": 12}))
    asked = judge.asked[0]
    assert (asked["step"], asked["run"], asked["on_failure"], asked["deadline_s"]) == (12, "run", "skip", 7)
    assert asked["reward"] == {"mode": "factual_override"}
    assert asked["judging"] == {"votes": 3, "reasoning": "keep"}


PENALTY = {"coefficient": 0.1}


@pytest.mark.parametrize(
    ("options", "ids", "logs"),
    [
        ({"length_penalty": PENALTY}, None, {}),
        ({"truncation_factor": 0.5}, [[1]], {}),
        ({"truncation_factor": 0.5}, None, Trainer().logs),
    ],
)
async def test_a_penalty_that_needs_missing_arguments_is_refused_in_their_terms(options, ids, logs):
    with pytest.raises(InvalidRequest, match=f"{next(iter(options))} needs completion_ids"):
        await rewarding(FakeJudgeTransport(), **options)(["a"], ["1"], ids, **logs)


@pytest.mark.parametrize(
    ("options", "logs"), [({"length_penalty": PENALTY}, {}), ({"truncation_factor": 0.5}, Trainer().logs)]
)
async def test_a_penalty_with_its_arguments_is_requested(options, logs):
    judge = FakeJudgeTransport()
    await rewarding(judge, **options)(["a"], ["1"], [[1]], **logs)
    assert judge.asked[0]["reward"] == {"mode": "weighted_mean", **options}


EMPTY = [[], {}, {"criteria": []}, "[]", '{"criteria": []}', np.array([]), {"criteria": None}]


@pytest.mark.parametrize("empty", EMPTY, ids=str)
@pytest.mark.parametrize("rubric", ["r", None])
def test_an_empty_rubric_counts_as_none_where_rows_may_lack_one(empty, rubric):
    rows = read(["a", "b"], own=[empty, CRITERIA], rubric=rubric, without_rubric="outcome", ground_truth=["1", "2"])
    first, second = rows.groups
    assert [criterion.kind for criterion in first.rubric.criteria] == ["answer"]
    assert len(second.rubric.criteria) == len(CRITERIA)
    assert rows.without_rubric == {0}


def test_a_row_without_a_rubric_uses_its_outcome_only_if_there_is_no_default():
    given = {"without_rubric": "outcome", "ground_truth": ["1", "2"]}
    assert read(["a", "b"], own=[None, None], rubric=None, **given).without_rubric == {0, 1}
    assert read(["a", "b"], own=[None, None], rubric="r", **given).without_rubric == set()


@pytest.mark.parametrize("empty", EMPTY[:-1], ids=str)
def test_an_empty_rubric_is_refused_even_if_other_rows_have_one(empty):
    with pytest.raises(InvalidRequest, match=r"row 1: its rubric is empty; put one .* leave the row out"):
        read(["a", "b"], own=[CRITERIA, empty], rubric="r")


def test_a_row_with_neither_rubric_nor_ground_truth_is_refused_by_its_index():
    with pytest.raises(InvalidRequest, match="row 1: it has neither a rubric nor a ground_truth"):
        read(["a", "b"], own=[CRITERIA, None], rubric=None, without_rubric="outcome", ground_truth=["1", None])


def test_an_accepted_row_is_in_no_group():
    rows = read(["a", "b", "a"], own=[None, CRITERIA, []], rubric=None, without_rubric="accept")
    assert [group.rows for group in rows.groups] == [[1]]
    assert set(rows.accepted) == {0, 2}
    assert rows.accepted[0] == rows.accepted[2]


@pytest.mark.parametrize("empty", EMPTY, ids=str)
def test_a_mode_without_a_rubric_accepts_an_empty_one(empty):
    (group,) = read(["a"], own=[empty], rubric=None, without_rubric=None).groups
    assert group.rubric is None


async def test_accepted_rows_are_rewarded_without_the_judge_and_counted():
    judge, trainer = FakeJudgeTransport(), Trainer()
    reward = rewarding(judge, None)
    reward.without_rubric = "accept"
    given = {"rubric": [None, CRITERIA], "log_metric": trainer.log_metric}
    assert await reward(["a", "b"], ["0.25", "0.5"], **given) == [1.0, 0.5]
    assert [group["prompt"] for group in judge.asked[0]["groups"]] == ["b"]
    assert trainer.metrics["rubric/without_rubric"] == [0.5]
    assert await reward(["a"], ["0.25"], rubric=[[]]) == [1.0]
    assert len(judge.asked) == 1
