"""Groups that are rewarded under weights of their own, over HTTP and in the console."""

import json

import httpx2
import pytest

from tests.judge_server.api.console.pages import checked, links, page
from tests.judge_server.api.recording import post
from tests.judge_server.scoring.test_contrast_weights import body, declared, rewards
from trainer_client.wire import GroupRewards, RewardAnswer


async def test_a_stream_sends_a_group_with_the_weights_of_all_its_responses(recorded: httpx2.AsyncClient) -> None:
    answer = RewardAnswer.model_validate((await recorded.post("/v1/rewards", json=body())).json())
    streamed = await recorded.post("/v1/rewards", json=body(), headers={"Accept": "application/x-ndjson"})
    lines = [json.loads(line) for line in streamed.text.splitlines()]
    groups = [GroupRewards.model_validate(line["group"]) for line in lines if "group" in line]
    assert sorted(map(str, rewards(groups))) == sorted(map(str, rewards(answer.groups)))
    assert all(group.criterion_weights for group in groups)


async def test_a_mode_without_weights_is_refused_where_it_stands(recorded: httpx2.AsyncClient) -> None:
    answer = await recorded.post("/v1/rewards", json=body(reward={"mode": "gate", "weighting": "contrast"}))
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["field"] == "reward"
    assert "leave out weighting, or use mode 'weighted_mean'" in error["message"]


async def test_the_page_of_a_group_shows_both_rewards_and_the_weights(recorded: httpx2.AsyncClient) -> None:
    asked = body()
    asked["groups"] = asked["groups"][:1]
    answer = (await post(recorded, asked)).json()["groups"][0]
    listed = await page(recorded, "responses", run="r")
    address = links(listed, "group")[0].partition("#")[0]
    text = checked(await recorded.get(address))
    assert "declared reward" in text
    assert "×&nbsp;2 → 3" in text
    assert "under the weights of its group" in text
    for response in answer["responses"]:
        components = ", ".join(f"<bdi>{name}</bdi> {value:.2f}" for name, value in response["components"].items())
        assert f"<p>Components: {components}.</p>" in text
    table = (await recorded.get(address.replace("/group?", "/group.csv?"))).text.splitlines()
    assert table[0].endswith("declared reward,weight used")
    used = {line.split(",")[2]: float(line.split(",")[-1] or "nan") for line in table[1:7]}
    assert used["yes"] == answer["criterion_weights"]["yes"]


async def test_the_page_of_a_run_draws_the_reward_under_the_rubrics_own_weights_too(
    recorded: httpx2.AsyncClient,
) -> None:
    answer = (await post(recorded, body(step=0))).json()
    await post(recorded, declared(body(step=1, run="own")))
    found = [one["declared_reward"] for group in answer["groups"] for one in group["responses"]]
    text = await page(recorded, "run", run="r")
    assert 'class="line declared"' in text
    assert "under the rubric’s own weights</span>" in text
    table = (await recorded.get("/console/run/reward.csv", params={"run": "r"})).text.splitlines()
    assert table[0].endswith(",mean declared reward")
    assert float(table[1].split(",")[-1]) == pytest.approx(sum(found) / len(found))
    own = await page(recorded, "run", run="own")
    assert "declared" not in own
    assert 'class="line' in own


async def test_groups_that_share_an_id_are_shown_without_weights(recorded: httpx2.AsyncClient) -> None:
    await post(recorded, body())
    listed = await page(recorded, "responses", run="r")
    text = checked(await recorded.get(links(listed, "group")[0].partition("#")[0]))
    assert "declared reward" in text
    assert " → " not in text
    assert "Components:" not in text


async def test_the_page_of_a_group_under_the_rubrics_own_weights_stays_as_it_was(recorded: httpx2.AsyncClient) -> None:
    await post(recorded, declared(body()))
    listed = await page(recorded, "responses", run="r")
    text = checked(await recorded.get(links(listed, "group")[0].partition("#")[0]))
    assert "declared reward" not in text
    assert " → " not in text
