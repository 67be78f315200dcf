"""`RubricReward.split`: one judging of each batch, and a reward function for each component of its rubric."""

import asyncio
import json
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hypothesis_examples import examples
from tests.trainer_client.trl.judges import FakeJudgeTransport, Trainer, groups, response, rewarding, stream, summary
from trainer_client import AsyncClient, Client, InvalidRequest
from trainer_client.advantages import component_advantages
from trainer_client.trl.reward import RubricReward

RUBRIC = [
    {"id": "a", "description": "Is right.", "weight": 3, "tags": ["truth"]},
    {"id": "b", "description": "Is short.", "weight": 1, "tags": ["style"]},
    {"id": "c", "description": "Is kind."},
]
ROWS: tuple[Any, ...] = (["p", "p"], ["1", "2"])


def answering(components: dict[str, float | None], weights: dict[str, float], **more: Any) -> Any:
    """A judge that gives every response these components."""

    def answer(body: dict[str, Any]) -> httpx2.Response:
        fields = {"components": components, **more}
        return stream(*groups(body, lambda _: response(0.5, **fields), component_weights=weights), summary())

    return FakeJudgeTransport(answer)


ALL = answering({"truth": 1.0, "style": 0.0, "untagged": 0.5}, {"truth": 0.6, "style": 0.2, "untagged": 0.2})


async def called(functions: list[Any], trainer: Trainer | None = None, rows: Any = ROWS) -> dict[str, Any]:
    """The rewards of each function, called as TRL does."""
    logs = {"log_metric": trainer.log_metric} if trainer else {}
    rewards = await asyncio.gather(*(function(*rows, **logs) for function in functions))
    return {function.__name__: given for function, given in zip(functions, rewards, strict=True)}


async def test_all_functions_of_a_split_share_one_request_and_one_log() -> None:
    judge = answering({"truth": 1.0, "style": 0.0, "untagged": 0.5}, {})
    functions = rewarding(judge, RUBRIC, components="tag").split()
    trainer = Trainer(functions)
    assert await called(functions, trainer) == {
        "rubric/truth": [1.0, 1.0],
        "rubric/style": [0.0, 0.0],
        "rubric/untagged": [0.5, 0.5],
    }
    assert len(judge.asked) == 1
    assert judge.asked[0]["reward"]["components"] == "tag"
    assert trainer.metrics["rubric/unscored"] == [0.0]
    assert functions[0].whole.last is not None
    await called(functions, trainer)
    assert len(judge.asked) == 2, "the same arguments, given again, are another batch"


async def test_functions_that_are_called_one_after_another_share_a_request_too() -> None:
    judge = answering({"a": 1.0, "b": 0.0, "c": 0.5}, {})
    functions = rewarding(judge, RUBRIC, components="criterion").split()
    for _ in range(2):
        rows = (["p", "p"], ["1", "2"])
        assert [await function(*rows) for function in functions] == [[1.0] * 2, [0.0] * 2, [0.5] * 2]
    assert len(judge.asked) == 2


async def test_two_batches_at_a_time_are_not_mixed_up() -> None:
    def answer(body: dict[str, Any]) -> httpx2.Response:
        return stream(
            *groups(body, lambda said: response(1.0, components={"a": float(said["text"]), "b": 0.0, "c": 0.0})),
            summary(),
        )

    functions = rewarding(FakeJudgeTransport(answer), RUBRIC, components="criterion").split()
    one, other = (["p"], ["0.25"]), (["p"], ["0.75"])
    found = await asyncio.gather(called(functions, rows=one), called(functions, rows=other))
    assert [rewards["rubric/a"] for rewards in found] == [[0.25], [0.75]]


def test_the_weights_are_those_by_which_the_components_add_up() -> None:
    functions = rewarding(ALL, RUBRIC, components="tag").split()
    assert {function.component: function.weight for function in functions} == {
        "truth": 0.6,
        "style": 0.2,
        "untagged": 0.2,
    }
    assert [f.weight for f in rewarding(ALL, RUBRIC, components="kind", mode="gate").split()] == [None]
    assert {f.weight for f in rewarding(ALL, None, components="kind").split()} == {None}


async def test_what_is_not_named_goes_to_the_rest_by_its_weight() -> None:
    functions = rewarding(ALL, RUBRIC, components="tag").split(["style"])
    assert [(f.component, f.weight) for f in functions] == [("style", 0.2), ("rest", pytest.approx(0.8))]
    assert (await called(functions))["rubric/rest"] == [pytest.approx((0.6 * 1.0 + 0.2 * 0.5) / 0.8)] * 2


async def test_the_rest_of_each_row_follows_from_the_weights_of_its_own_rubric() -> None:
    def answer(body: dict[str, Any]) -> httpx2.Response:
        lines = []
        for group in body["groups"]:
            weights = {"x": 0.75, "rest": 0.25} if group["prompt"] == "p" else {"clarity": 0.5, "y": 0.5}
            fields = {"components": {name: float(name == "x") for name in weights}}
            asked = {**body, "groups": [group]}
            lines += groups(asked, lambda _, fields=fields: response(0.5, **fields), component_weights=weights)
        return stream(*lines, summary())

    functions = rewarding(FakeJudgeTransport(answer), None, components="tag").split(["clarity"])
    rubric = [json.dumps(RUBRIC)] * 2
    rewards = await asyncio.gather(*(function(["p", "q"], ["1", "2"], rubric=rubric) for function in functions))
    assert [(f.component, f.weight) for f in functions] == [("clarity", None), ("rest", None)]
    assert rewards == [[None, 0.0], [0.75, 0.0]], "a tag named rest is one of those that are not named"


async def test_a_mode_that_is_not_linear_has_no_rest() -> None:
    functions = rewarding(answering({"a": 1.0}, {}), None, components="tag", mode="gate").split(["a"])
    rows = [json.dumps(RUBRIC)] * 2
    assert [(f.component, await f(*ROWS, rubric=rows)) for f in functions] == [("a", [1.0, 1.0])]
    other = rewarding(answering({"b": 1.0}, {}), None, components="tag", mode="gate").split(["a"])
    with pytest.raises(InvalidRequest, match=r"name all components: split\(\['a', 'b'\]\)"):
        await other[0](*ROWS, rubric=rows)


async def test_penalties_are_a_function_of_their_own() -> None:
    judge = answering({"point": 0.5}, {"point": 1.0}, unpenalised=0.75)
    functions = rewarding(judge, RUBRIC, components="kind", length_penalty={"target_tokens": 1}).split()
    assert [(f.component, f.weight) for f in functions] == [("point", 1.0), ("penalties", 1.0)]
    rewards = await called(functions, rows=(*ROWS, [[1], [2]]))
    assert rewards == {"rubric/point": [0.5] * 2, "rubric/penalties": [-0.25] * 2}


async def test_a_missing_component_leaves_a_response_out_of_a_sum_and_of_nothing_else() -> None:
    judge = answering({"truth": 1.0, "style": None, "untagged": 0.5}, {})
    functions = rewarding(judge, RUBRIC, components="tag").split()
    summed = await called(functions, Trainer(functions, multi_objective_aggregation="sum_then_normalize"))
    assert set(map(tuple, summed.values())) == {(None, None)}
    apart = await called(functions, Trainer(functions, multi_objective_aggregation="normalize_then_sum"))
    assert apart == {"rubric/truth": [1.0] * 2, "rubric/style": [None] * 2, "rubric/untagged": [0.5] * 2}


@pytest.mark.parametrize(("version", "stops"), [("1.5.1", True), ("1.6.0", False)])
async def test_a_trl_that_counts_what_is_left_out_as_zero_stops_at_a_missing_component(
    version: str, stops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "trl", SimpleNamespace(__version__=version))
    judge = answering({"truth": 1.0, "style": None, "untagged": 0.5}, {})
    functions = rewarding(judge, RUBRIC, components="tag", on_failure="skip").split()
    apart = await called(functions, Trainer(functions, multi_objective_aggregation="normalize_then_sum"))
    assert apart["rubric/truth"] == [1.0] * 2
    if stops:
        with pytest.raises(InvalidRequest, match=rf"row 0: a component has no reward.* TRL {version} would count"):
            await called(functions, Trainer(functions))
    else:
        assert (await called(functions, Trainer(functions)))["rubric/truth"] == [None] * 2


async def test_a_component_that_a_row_does_not_have_is_none() -> None:
    functions = rewarding(answering({"factual": 1.0}, {"factual": 1.0}), None, components="kind").split()
    assert [function.component for function in functions][:2] == ["point", "factual"]
    rows = [json.dumps([{"id": "a", "kind": "factual", "description": "Is right."}])] * 2
    rewards = await asyncio.gather(*(function(*ROWS, rubric=rows) for function in functions))
    assert [given for given in rewards if given != [None, None]] == [[1.0, 1.0]]


async def test_a_component_without_a_function_stops_training_with_the_way_out() -> None:
    functions = rewarding(ALL, RUBRIC[:2], components="tag").split()
    with pytest.raises(
        InvalidRequest,
        match=r"row 0: .* component 'untagged', for which split\(\) made no function; name all .*'style', 'untagged'",
    ):
        await called(functions)


async def test_failed_judging_gives_none_everywhere() -> None:
    judge = FakeJudgeTransport(lambda body: stream(summary()))
    functions = rewarding(judge, RUBRIC, components="kind").split()
    trainer = Trainer(functions, multi_objective_aggregation="normalize_then_sum")
    assert await called(functions, trainer) == {"rubric/point": [None, None]}


@pytest.mark.parametrize(
    ("options", "names", "says"),
    [
        ({}, None, r"say what they are: RubricReward\(…, components='kind'\)"),
        ({"components": "tag", "extra_rewards": [len]}, None, "give them to the trainer, beside these functions"),
        ({"components": "tag", "rubric": None}, None, "not known before the rubrics of the dataset are read"),
        ({"components": "tag"}, [], r"names is \[\]; give a list of at least one"),
        ({"components": "tag"}, "truth", "names is 'truth'; give a list"),
        ({"components": "tag"}, ["truth", "truth"], "give each name once"),
        ({"components": "tag"}, ["truth", "penalties"], "call none 'rest' or 'penalties'"),
        ({"components": "kind", "weighting": "contrast"}, None, "only the weights of tags stay the same"),
        ({"components": "tag", "mode": "gate"}, ["truth"], "'style', 'untagged' would have no common reward; name all"),
    ],
)
def test_a_split_that_makes_no_sense_is_refused(options: dict[str, Any], names: Any, says: str) -> None:
    reward = rewarding(ALL, **{"rubric": RUBRIC, **options})
    with pytest.raises(ValueError, match=says):
        reward.split(names)


def test_functions_are_pickled_with_what_they_share() -> None:
    functions = RubricReward("http://judge.test", RUBRIC, preflight=False, components="tag").split()
    again = pickle.loads(pickle.dumps(functions))
    assert {function.whole for function in again} == {again[0].whole}


def contains(name: str, text: str, weight: float) -> dict[str, Any]:
    """A criterion that a program decides."""
    verification = {"method": "contains", "all_of": [text]}
    return {"id": name, "description": f"Says {text}.", "weight": weight, "tags": [name], "verification": verification}


PROGRAMS = [contains("digit", "1", 1.0), contains("words", "is", 3.0)]


class CountingTransport(httpx2.AsyncHTTPTransport):
    """A transport that keeps the paths of its requests."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: list[str] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.paths.append(request.url.path)
        return await super().handle_async_request(request)


SAID = ("14", "It is 14", "It is", "nothing")


def grpo(folder: Path, functions: list[Any], *, texts: Sequence[str] = SAID, **given: Any) -> Any:
    """TRL's own trainer, with two groups of four scripted responses in a step."""
    from tests.trainer_client.trl.training import plain_trainer

    return plain_trainer(folder, functions, *texts, **given)


@pytest.mark.trl
def test_the_components_of_a_published_rubric_are_looked_up(url: str) -> None:
    with Client(url) as client:
        client.publish_rubric("tests/split", PROGRAMS)
        functions = RubricReward(client, "tests/split", components="tag").split()
    assert [(function.component, function.weight) for function in functions] == [("digit", 0.25), ("words", 0.75)]


@pytest.mark.trl
@pytest.mark.parametrize("aggregation", ["sum_then_normalize", "normalize_then_sum"])
def test_trls_grpo_trains_on_the_components_of_one_judging(tmp_path: Path, url: str, aggregation: str) -> None:
    pytest.importorskip("trl")
    transport = CountingTransport()
    functions = RubricReward(AsyncClient(url, transport=transport), PROGRAMS, components="tag").split()
    trainer = grpo(
        tmp_path,
        functions,
        max_steps=2,
        log_completions=True,
        multi_objective_aggregation=aggregation,
        reward_weights=[function.weight for function in functions],
    )
    trainer.train()
    assert transport.paths == ["/v1/rewards"] * 2, "one for each step"
    log = trainer.state.log_history[0]
    assert (log["rewards/rubric/digit/mean"], log["rewards/rubric/words/mean"]) == (0.5, 0.5)
    assert log["reward"] == pytest.approx((0.25 + 1.0 + 0.75 + 0.0) / 4)
    assert log["rubric/unscored"] == 0.0
    assert list(trainer._logs["rewards"]["rubric/words"])[:4] == [0.0, 1.0, 1.0, 0.0]
    last = functions[0].whole.last
    assert last is not None
    assert [row.reward for row in last.rows][:4] == [0.25, 1.0, 0.75, 0.0]


VALUE = st.none() | st.integers(-4, 4).map(lambda quarters: quarters / 4)
COMPONENTS = st.lists(st.tuples(VALUE, VALUE, VALUE), min_size=8, max_size=8)


@pytest.mark.trl
def test_component_advantages_are_those_of_trls_normalize_then_sum(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from tests.trainer_client.trl.training import dataset

    weights = {"a": 1.0, "b": 0.5, "c": 2.0}
    columns: dict[str, Any] = {}

    def giving(name: str) -> Any:
        def reward(prompts: Any, **_: Any) -> list[float | None]:
            return list(columns[name])

        return reward

    trainer = grpo(
        tmp_path,
        [giving(name) for name in weights],
        multi_objective_aggregation="normalize_then_sum",
        reward_weights=list(weights.values()),
    )
    inputs = [dict(row) for row in dataset().remove_columns("rubric").select(range(2)) for _ in range(4)]

    @settings(max_examples=examples(100))
    @given(COMPONENTS)
    def agree(batch: list[tuple[float | None, ...]]) -> None:
        columns.update(zip(weights, zip(*batch, strict=True), strict=True))
        responses = [dict(zip(weights, one, strict=True)) for one in batch]
        found = component_advantages([responses[:4], responses[4:]], [weights, weights], eps=1e-4)
        torch.set_default_dtype(torch.float64)  # with single precision, TRL magnifies what cancels by 1 / eps
        try:
            expected = trainer._generate_and_score_completions([dict(row) for row in inputs])["advantages"]
        finally:
            torch.set_default_dtype(torch.float32)
        assert np.concatenate(found) == pytest.approx(expected.tolist(), abs=1e-6)

    agree()
