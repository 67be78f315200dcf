"""Recorded groups of a run judged again: what is asked, what is recorded, and what changed."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from adjudge_services.settings import Settings
from judge_server.engines.scripted import ScriptedEngine, by_hash
from judge_server.ports import Batch, Call, CallFailure, Reply
from judge_server.scheduling.executor import LocalExecutor
from judge_server.scoring.cache import MemoryCache
from judge_server.scoring.combined import AnyJudge
from judge_server.scoring.judge import Judge
from tests.fixtures.migrated import NewSQLite
from tests.services.operations.in_process import end_of, results_of, serving_within
from trainer_client import AsyncClient, InvalidRequest
from trainer_client.wire import RewardAnswer, RubricDropout

RUBRIC = {
    "criteria": [
        {"id": "right", "description": "Is right.", "weight": 3},
        {"id": "polite", "description": "Is polite."},
        {"id": "named", "description": "Names the answer.", "verification": {"method": "math"}},
    ]
}


SIMPLE = {"criteria": RUBRIC["criteria"][:2]}


class FlakyJudges:
    """Judges by name whose engines fail on what contains a word, and that count and keep their calls.

    They answer by hash; `second` by another hash than `default`. Their caches can be emptied.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fails_on = "broken"
        self.caches: list[MemoryCache] = []

    def of(self, settings: Settings) -> dict[str, AnyJudge]:
        """Build the judges."""
        return {name: self._judge(name) for name in ("default", "second")}

    def _judge(self, name: str) -> Judge:
        def script(batch: Batch, call: Call) -> Reply | CallFailure:
            text = batch.shared + call.question
            self.asked.append(text)
            if self.fails_on and self.fails_on in text:
                return CallFailure("engine", "the engine is broken")
            return by_hash(replace(batch, system=f"{name} {batch.system}"), call)

        self.caches.append(MemoryCache())
        return Judge(LocalExecutor(ScriptedEngine(script, weights_digest=name)), self.caches[-1])

    async def forget(self) -> None:
        """Forget all calls, and all verdicts in the caches."""
        self.asked.clear()
        for cache in self.caches:
            await cache.close()


@pytest.fixture
def judges() -> FlakyJudges:
    return FlakyJudges()


@pytest.fixture
async def transport(
    data_dir: Path, new_sqlite: NewSQLite, judges: FlakyJudges
) -> AsyncIterator[httpx2.AsyncBaseTransport]:
    new_sqlite(data_dir / "adjudge.db")
    async with serving_within(judges_of=judges.of) as serving:
        yield serving


@pytest.fixture
async def client(transport: httpx2.AsyncBaseTransport) -> AsyncIterator[AsyncClient]:
    async with AsyncClient("http://localhost", transport=transport) as connected:
        yield connected


def groups(count: int, broken: int = 0) -> list[dict[str, Any]]:
    """Groups of four responses, of which the first of every `broken`-th group breaks the engine."""
    return [
        {
            "id": f"q{n}",
            "prompt": f"What is {n} + {n}?",
            "ground_truth": str(2 * n),
            "reference_answer": f"It is {2 * n}.",
            "grounding": f"The sum of {n} and {n} is {2 * n}.",
            "responses": [
                f"Answer {n}.{r}{' broken' if broken and not r and not n % broken else ''} \\boxed{{{2 * n}}}"
                for r in range(4)
            ],
        }
        for n in range(count)
    ]


async def judged(client: AsyncClient, sent: list[dict[str, Any]], *, run: str, **options: Any) -> RewardAnswer:
    """Reward groups in a run."""
    client.run = run
    answer = await client.rewards(sent, **options)
    await written(client, run)
    return answer


async def written(client: AsyncClient, run: str) -> None:
    """Wait until the ledger has the run."""
    async with asyncio.timeout(30):
        while True:
            if run in [one.run async for one in client.runs()]:
                return
            await asyncio.sleep(0.05)


async def recorded(client: AsyncClient, run: str) -> list[Any]:
    """The recorded verdicts of a run."""
    await written(client, run)
    return [one async for one in client.recorded_verdicts(run)]


async def reverified(client: AsyncClient, **request: Any) -> Any:
    """The operation that judges a run again, at its end."""
    done = await end_of(client, (await client.submit({"kind": "reverify", "run": "run"} | request)).id)
    assert done.state == "done", done.problem
    return done


async def test_failed_verdicts_are_asked_again_and_no_others(client: AsyncClient, judges: FlakyJudges) -> None:
    first = await judged(client, groups(50, broken=10), rubric=RUBRIC, run="run", step=3)
    before = [response.reward for group in first.groups for response in group.responses]
    assert [place for place, reward in enumerate(before) if reward is None] == list(range(0, 200, 40))
    known = [reward for place, reward in enumerate(before) if place % 40 in (1, 2, 3)]
    mean = sum(known) / len(known)
    await judges.forget()
    judges.fails_on = ""
    done = await reverified(client)
    assert (done.progress.done, done.progress.failed) == (5, 0)
    assert len(judges.asked) == 2 * 5 == done.usage.judge_calls
    assert all("broken" in text for text in judges.asked)
    assert done.summary == {
        "run": "run", "into": "run/reverified", "groups": 5, "responses": 20, "verdicts": 60, "failed_before": 10,
        "failed_after": 0, "compared": 50, "changed": 0, "rewarded_before": 15, "rewarded_after": 20,
        "rewards": 15, "rewards_changed": 0,
        "mean_reward_before": pytest.approx(mean), "mean_reward_after": pytest.approx(mean),
    }  # fmt: skip
    results = await results_of(client, done.id)
    assert [(one["id"], one["step"]) for one in results] == [(f"q{n}", 3) for n in range(0, 50, 10)]
    assert results[0]["before"]["responses"][0]["reward"] is None
    assert results[0]["before"]["responses"][0]["scores"] == {"right": None, "polite": None, "named": 1.0}
    assert results[0]["responses"][0]["reward"] is not None
    again = await recorded(client, "run/reverified")
    assert {(one.group, one.step) for one in again} == {(f"q{n}", 3) for n in range(0, 50, 10)}
    assert len(await recorded(client, "run")) == 600


async def test_the_new_run_is_what_the_same_request_gives_to_a_judge_that_works(
    client: AsyncClient, judges: FlakyJudges
) -> None:
    options: dict[str, Any] = {
        "rubric": RUBRIC, "step": 7, "rationale": True, "votes": 3, "temperature": 0.7, "defences": ["normalise"],
        "grounding_characters": 20, "mode": "points", "format_weight": 0.3,
    }  # fmt: skip
    await judged(client, groups(6, broken=2), run="run", **options)
    judges.fails_on = ""
    expected = await judged(client, groups(6, broken=2), run="other", **options)
    done = await reverified(client, verdicts="all")
    results = await results_of(client, done.id)
    names = ("reward", "status", "verdicts")
    rewarded = [[{name: response[name] for name in names} for response in one["responses"]] for one in results]
    for mine, theirs in zip(rewarded, expected.groups, strict=True):
        for one, response in zip(mine, theirs.responses, strict=True):
            assert one["reward"] == response.reward
            assert [v["score"] for v in one["verdicts"]] == [v.score for v in response.verdicts]
    assert {one["fingerprint"] for one in results} == {expected.judge.fingerprint if expected.judge else None}


async def test_another_judge_and_another_rubric_judge_the_same_responses(client: AsyncClient) -> None:
    await judged(client, groups(20), rubric=RUBRIC, run="run", step=1)
    other = await reverified(client, verdicts="all", judge="second", into="run/second")
    assert other.summary["verdicts"] == 240
    assert 20 < other.summary["changed"] < 140
    free = {"criteria": [{"id": "good", "description": "Is this a good answer to the prompt?"}]}
    done = await reverified(client, verdicts="all", rubric=free, into="run/free")
    assert (done.summary["verdicts"], done.summary["changed"]) == (80, 0)
    assert {one.verdict.criterion for one in await recorded(client, "run/free")} == {"good"}


async def test_a_share_takes_the_same_groups_each_time(client: AsyncClient) -> None:
    await judged(client, groups(60), rubric=RUBRIC, run="run")
    some = [await reverified(client, verdicts="all", share=0.3, into=f"some{n}") for n in range(2)]
    found = [[one["id"] for one in await results_of(client, done.id)] for done in some]
    assert found[0] == found[1]
    assert 8 < len(found[0]) < 30


@pytest.mark.parametrize("saturated", [False, ("right", "polite")])
async def test_rubric_dropout_leaves_out_the_same_criteria(
    client: AsyncClient, saturated: bool | tuple[str, ...]
) -> None:
    dropout = RubricDropout(keep=0.5, saturated=saturated)
    await judged(client, groups(10), rubric=RUBRIC, run="run", step=2, dropout=dropout)
    done = await reverified(client, verdicts="all")
    assert done.usage.judge_calls == 0
    assert (done.summary["groups"], done.summary["rewards"], done.summary["rewards_changed"]) == (10, 40, 0)


async def test_rubric_dropout_draws_as_for_the_first_run_however_often_it_is_judged_again(client: AsyncClient) -> None:
    await judged(client, groups(10), rubric=RUBRIC, run="run", step=2, dropout={"keep": 0.5})
    await reverified(client, verdicts="all")
    await written(client, "run/reverified")
    done = await reverified(client, run="run/reverified", verdicts="all", into="again")
    assert (done.summary["rewards"], done.summary["rewards_changed"]) == (40, 0)
    assert (done.summary["compared"], done.usage.judge_calls) == (80, 0)


async def test_verdicts_that_are_uncertain_or_left_out_are_not_counted_as_failed(client: AsyncClient) -> None:
    options: dict[str, Any] = {"dropout": {"keep": 0.5}, "uncertain_band": [0.2, 0.8], "on_uncertain": "skip"}
    await judged(client, groups(10), rubric=RUBRIC, run="run", **options)
    done = await reverified(client, verdicts="all")
    assert 0 < done.summary["compared"] < 80
    assert (done.summary["failed_before"], done.summary["failed_after"]) == (0, 0)
    before = [response for one in await results_of(client, done.id) for response in one["before"]["responses"]]
    assert any(None in response["scores"].values() for response in before)


async def test_a_reference_answer_that_is_empty_is_shown_as_before(client: AsyncClient) -> None:
    beside = {"reference_answer": "", "ground_truth": "", "grounding": ""}
    await judged(client, [one | beside for one in groups(5)], rubric=SIMPLE, run="run")
    done = await reverified(client, verdicts="all")
    assert (done.summary["compared"], done.usage.judge_calls, done.summary["rewards_changed"]) == (40, 0, 0)


async def test_a_run_is_found_by_a_name_that_the_database_cannot_store(client: AsyncClient) -> None:
    client.run = "a\0b"
    await client.rewards(groups(1), rubric=SIMPLE)
    await written(client, "a\N{REPLACEMENT CHARACTER}b")
    done = await reverified(client, run="a\0b", verdicts="all", into="again")
    assert done.summary["rewards"] == 4


async def test_options_that_do_not_fit_the_recorded_ones_are_refused_with_the_reason(client: AsyncClient) -> None:
    await judged(client, groups(1), rubric=SIMPLE, run="run")
    request = {"kind": "reverify", "run": "run", "verdicts": "all", "judging": {"protocol": "likert"}, "into": "likert"}
    done = await end_of(client, (await client.submit(request)).id)
    assert done.state == "failed"
    assert "the last said: reward.mode 'weighted_mean' does not support" in (done.problem or "")


async def test_verdicts_without_rewards_are_judged_again_too(client: AsyncClient, judges: FlakyJudges) -> None:
    client.run = "run"
    await client.verdicts(groups(4, broken=2), rubric=RUBRIC)
    await written(client, "run")
    judges.fails_on = ""
    done = await reverified(client)
    assert (done.summary["groups"], done.summary["failed_before"], done.summary["failed_after"]) == (2, 4, 0)
    assert (done.summary["rewards"], done.summary["mean_reward_after"]) == (0, None)


async def test_verdicts_without_rewards_keep_their_uncertain_band(client: AsyncClient) -> None:
    client.run = "run"
    answer = await client.verdicts(groups(4), rubric=SIMPLE, uncertain_band=[0.2, 0.8])
    await written(client, "run")
    results = await results_of(client, (await reverified(client, verdicts="all")).id)
    again = [verdict["status"] for one in results for response in one["responses"] for verdict in response["verdicts"]]
    assert again == [v.status for group in answer.groups for response in group.responses for v in response.verdicts]
    assert set(again) == {"ok", "uncertain"}


async def test_what_cannot_be_judged_again_is_counted_with_its_reason(client: AsyncClient) -> None:
    text = [{"role": "user", "content": "Look: [image sha256:" + "0" * 64 + "]"}]
    sent = [*groups(2), {"id": "seen", "prompt": text, "responses": ["Yes."]}]
    await judged(client, sent, rubric=SIMPLE, run="run")
    done = await reverified(client, verdicts="all")
    assert (done.progress.done, done.progress.discarded) == (3, {"with images": 1})
    assert done.summary["groups"] == 2


async def test_a_request_for_nothing_is_refused_with_the_reason(client: AsyncClient) -> None:
    with pytest.raises(InvalidRequest, match="no record of run 'run'"):
        await reverified(client)
    await judged(client, groups(1), rubric=RUBRIC, run="run")
    with pytest.raises(InvalidRequest, match="no group of run 'run' is to be judged again; verdicts 'all' judges"):
        await reverified(client)
    with pytest.raises(InvalidRequest, match="into is the run itself"):
        await reverified(client, into="run")
    with pytest.raises(InvalidRequest, match="name the new run with into, because judge is given"):
        await reverified(client, judge="second")


async def test_steps_that_a_request_gave_are_given_again(client: AsyncClient) -> None:
    response = {"text": "One. Two.", "steps": [[0, 4], [5, 9]]}
    group = {"id": "g", "prompt": "Count.", "responses": [response]}
    criteria = [{"id": "final", "kind": "answer", "description": "Says two."}, *SIMPLE["criteria"]]
    options: dict[str, Any] = {"rubric": {"criteria": criteria}, "protocol": "stepwise", "steps": "given"}
    before = await judged(client, [group], run="run", mode="stepwise", **options)
    done = await reverified(client, verdicts="all")
    (result,) = await results_of(client, done.id)
    assert done.usage.judge_calls == 0, json.dumps(result)
    assert result["responses"][0]["reward"] == before.groups[0].responses[0].reward


async def test_steps_in_the_thinking_leave_the_others_their_numbers(client: AsyncClient) -> None:
    thought, cut = "<think>Zero. Half.</think>One. Two.", "<think>Zero. Half."
    steps = [[7, 12], [13, 18], [26, 30], [31, 35]]
    sent = [
        {"id": "g", "prompt": "Count.", "responses": [{"text": thought, "steps": steps}]},
        {"id": "cut", "prompt": "Count.", "responses": [{"text": cut, "steps": steps[:2]}]},
    ]
    criteria = [{"id": "final", "kind": "answer", "description": "Says two."}, *SIMPLE["criteria"]]
    options: dict[str, Any] = {"rubric": {"criteria": criteria}, "protocol": "stepwise", "steps": "given"}
    before = await judged(client, sent, run="run", mode="stepwise", **options)
    done = await reverified(client, verdicts="all")
    assert (done.usage.judge_calls, done.progress.discarded) == (0, {"without steps": 1})
    (result,) = await results_of(client, done.id)
    expected = before.groups[0].responses[0]
    (again,) = result["responses"]
    assert again["reward"] == expected.reward
    assert [one["step"] for one in again["verdicts"]] == [one.step for one in expected.verdicts]


async def test_the_console_shows_both_runs_and_what_changed(
    client: AsyncClient, transport: httpx2.AsyncBaseTransport, judges: FlakyJudges
) -> None:
    await judged(client, groups(4, broken=2), rubric=RUBRIC, run="run", step=1)
    judges.fails_on = ""
    done = await reverified(client)
    await written(client, "run/reverified")
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
        page = (await http.get("/console/run?run=run/reverified")).text
        assert "judged again" in page
        assert "/console/run?run=run%2Freverified&amp;with=run" in page
        assert "judged again" not in (await http.get("/console/run?run=run")).text
        page = (await http.get(f"/console/operation?id={done.id}")).text
    assert "2 groups, 8 responses" in page
    assert "<td>6</td><td>8</td>" in page
    assert "<td>4</td><td>0</td>" in page


async def test_groups_that_are_large_together_are_judged_in_several_requests(client: AsyncClient) -> None:
    sent = [{"id": f"q{n}", "prompt": "Long?", "responses": [f"{n} " * 500_000]} for n in range(5)]
    await judged(client, sent, rubric=SIMPLE, run="run")
    done = await reverified(client, verdicts="all")
    assert (done.summary["groups"], done.summary["rewards_changed"]) == (5, 0)
    assert [one["id"] for one in await results_of(client, done.id)] == [f"q{n}" for n in range(5)]
    assert (done.usage.judge_calls, done.usage.cached) == (0, 10)


async def test_rewards_that_a_policy_made_are_not_compared(client: AsyncClient, judges: FlakyJudges) -> None:
    await judged(client, groups(2, broken=2), rubric=RUBRIC, run="run", on_failure="zero")
    judges.fails_on = ""
    done = await reverified(client)
    assert (done.summary["rewarded_before"], done.summary["rewarded_after"], done.summary["rewards"]) == (3, 4, 3)
