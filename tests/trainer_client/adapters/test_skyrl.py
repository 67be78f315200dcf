"""The environment, created, stepped and read as by SkyRL's generator."""

import pytest

from tests.trainer_client.adapters.conftest import ANSWER, REWARDS, RIGHT, RUBRIC, WRONG, missing

pytest.importorskip("skyrl_gym", reason=missing("skyrl-gym"))

import skyrl_gym
import skyrl_gym.metrics
from skyrl_gym.envs.registration import deregister

from trainer_client.adapters import NoReward

pytestmark = pytest.mark.adapters

PROMPT = [{"role": "user", "content": "7 * 2?"}]


@pytest.fixture(autouse=True)
def registered():
    skyrl_gym.register(id="rubric", entry_point="trainer_client.adapters.skyrl:RubricEnv")
    yield
    deregister("rubric")


def episode(config, said, **row):
    """Run an environment like `skyrl_gym_generator.agent_loop`."""
    extras = {"data_source": "made up", "max_turns": 1, **row}
    env = skyrl_gym.make("rubric", env_config=config, extras=extras)
    chat, _ = env.init(list(PROMPT))
    assert chat == PROMPT
    output = env.step(said)
    env.close()
    return output, env.get_metrics()


def test_an_episode_is_one_response_rewarded_by_the_rubric(url):
    for text, reward in REWARDS.items():
        output, metrics = episode({"client": url, "rubric": RUBRIC}, text)
        assert (output["reward"], output["done"], output["observations"]) == (reward, True, [])
        assert metrics["rubric/exact"] == float(reward == 1.0)


def test_settings_are_given_at_registration(url):
    deregister("rubric")
    settings = {"client": url, "rubric": RUBRIC}
    skyrl_gym.register(id="rubric", entry_point="trainer_client.adapters.skyrl:RubricEnv", kwargs=settings)
    assert episode({}, "It is 14")[0]["reward"] == REWARDS["It is 14"]


def test_component_rewards_are_metrics_where_they_are_asked_for(url):
    rubric = [{**criterion, "tags": ["form"]} for criterion in RUBRIC]
    output, metrics = episode({"client": url, "rubric": rubric, "components": "tag"}, "It is 14")
    assert (output["reward"], metrics) == (0.25, {"rubric/form": 0.25})
    assert skyrl_gym.metrics.aggregate_for_environment("rubric", [metrics, {"rubric/form": 0.75}]) == {
        "rubric/form": 0.5
    }


def test_a_row_provides_its_rubric_and_its_ground_truth_in_skyrls_fields(url):
    row = {"reward_spec": {"method": "rule", "ground_truth": "14"}, "extra_info": {"rubric": ANSWER}}
    assert [episode({"client": url}, said, **row)[0]["reward"] for said in (RIGHT, WRONG)] == [1.0, 0.0]


def test_an_episode_whose_judging_failed_is_an_error(away):
    with pytest.raises(NoReward, match="unreachable"):
        episode({"rubric": RUBRIC, **away}, "14")
