"""Compare the recorded interface of verl with verl itself, where installed; `make install` leaves it out."""

import asyncio
import inspect
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.trainer_client.fake_service import REWARDS, ScriptedReply
from tests.trainer_client.small_tokenizers import byte_level
from tests.trainer_client.verl.batches import laid_out
from tests.trainer_client.verl.recorded import (
    ESTIMATOR_KEYWORDS,
    QUEUE_PARAMETERS,
    REGISTER_PARAMETERS,
    REWARD_KEYWORDS,
    TRAINER_METHOD,
    VERSION,
)
from trainer_client.advantages import component_advantages, group_advantages
from trainer_client.verl.estimators import (
    ESTIMATORS,
    ComponentRewards,
    StepTokens,
    components_context,
    steps_context,
)

pytestmark = pytest.mark.trl

verl = pytest.importorskip("verl")

CORE = "verl.trainer.ppo.core_algos"
ROW = {"prompt": "6 times 7?", "rubric": "math/q@3"}


def imported(name):
    return pytest.importorskip(name)


def parameters(function):
    return tuple(inspect.signature(function).parameters)


@pytest.fixture(autouse=True)
def registered():
    """verl with the plugin imported, as `VERL_USE_EXTERNAL_MODULES` does."""
    imported("trainer_client.verl.plugin")


def settings(*overrides):
    """verl's whole configuration with these overrides."""
    hydra = imported("hydra")
    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        return hydra.compose("ppo_trainer", overrides=list(overrides))


def data(tensors, **columns):
    columns = {name: np.array([value], dtype=object) for name, value in columns.items()}
    batch = imported("tensordict").TensorDict(tensors, batch_size=len(next(iter(tensors.values()))))
    return verl.DataProto(batch=batch, non_tensor_batch=columns)


def test_the_version_is_the_recorded_one():
    assert verl.__version__ == VERSION


def test_the_recorded_signatures_are_verls():
    assert parameters(imported(CORE).register_adv_est) == REGISTER_PARAMETERS
    assert parameters(imported("verl.trainer.ppo.v1").PPOTrainer._compute_advantage) == TRAINER_METHOD
    assert parameters(imported("transfer_queue").kv_batch_get) == QUEUE_PARAMETERS


@pytest.mark.parametrize("name", ESTIMATORS)
def test_verl_calls_an_estimator_with_the_recorded_arguments(name, monkeypatch):
    seen = {}

    def estimate(**keywords):
        seen.update(keywords)
        return keywords["token_level_rewards"], keywords["token_level_rewards"]

    monkeypatch.setitem(imported(CORE).ADV_ESTIMATOR_REGISTRY, name, estimate)
    batch = laid_out([1.0, 0.0], [1, 2], ["u", "u"])
    made = data({key: batch[key] for key in ("token_level_rewards", "response_mask")})
    made.non_tensor_batch.update(uid=batch["index"], steps=np.array(["[]", "[]"], dtype=object))
    imported("verl.trainer.ppo.ray_trainer").compute_advantage(made, name, config={})
    assert seen.keys() == set(ESTIMATOR_KEYWORDS)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_verl_computes_advantages_by_a_registered_name(name):
    config = settings(f"algorithm.adv_estimator={name}", "+algorithm.adjudge.max_unscored=0.9").algorithm
    rewards = [1.0, None, 0.0, 0.5]
    batch = laid_out(rewards, [3, 2, 3, 1], ["u"] * 4)
    made = data({key: batch[key] for key in ("token_level_rewards", "response_mask")})
    made.non_tensor_batch["uid"] = batch["index"]
    components = [ComponentRewards({} if reward is None else {"all": reward}) for reward in rewards]
    with steps_context([StepTokens({}, {})] * 4), components_context(components):
        out = imported("verl.trainer.ppo.ray_trainer").compute_advantage(made, name, config=config)
    baseline = "leave_one_out" if name == "adjudge_leave_one_out" else "mean"
    assert out.batch["advantages"][:, 0].tolist() == pytest.approx(
        group_advantages(rewards, baseline=baseline, ddof=int(name != "adjudge_stepwise")), rel=1e-5
    )


COMPONENTS = [{"a": 1.0, "b": 0.0}, {"a": 0.0, "b": 0.5}, {"a": 0.0, "b": 0.0}, {"a": 1.0, "b": 1.0}]
GROUPS = ["u", "u", "v", "v"]


def test_verls_own_gdpo_gives_the_same_advantages_for_responses_of_one_token():
    """It normalises over the tokens of the batch, and ours over its responses."""
    batch = laid_out([1.0] * 4, [1] * 4, GROUPS, width=1)
    columns = {f"rubric/{name}": np.array([one[name] for one in COMPONENTS]) for name in "ab"}
    config = {"gdpo_reward_keys": list(columns), "gdpo_reward_weights": [3.0, 1.0]}
    shape = {"prompts": torch.zeros(4, 1), "attention_mask": torch.ones(4, 2, dtype=torch.int64)}
    theirs, _ = imported(CORE).get_adv_estimator_fn("gdpo")(
        **batch, config=config, non_tensor_batch=columns, batch=shape
    )
    with components_context([ComponentRewards(one, {"a": 3.0, "b": 1.0}) for one in COMPONENTS]):
        ours, _ = ESTIMATORS["adjudge_gdpo"](**batch)
    assert ours.tolist() == pytest.approx(np.array(theirs.tolist()), abs=1e-5)


def test_verls_v1_trainer_computes_advantages_from_component_rewards(monkeypatch):
    tensordict = imported("tensordict")
    base, queue = imported("verl.trainer.ppo.v1.trainer_base"), imported("transfer_queue")
    imported("trainer_client.verl.gdpo")
    components = [*COMPONENTS[:3], {"a": 1.0, "b": math.nan}]
    scores = [torch.tensor([0.0] * n + [1.0]) for n in range(4)]
    info = [{f"rubric/{k}": v for k, v in one.items()} | {"component_weights": "{}"} for one in components]
    held = {
        "uid": tensordict.NonTensorStack(*GROUPS),
        "response_mask": torch.nested.as_nested_tensor([torch.ones_like(one) for one in scores], layout=torch.jagged),
        "rm_scores": torch.nested.as_nested_tensor(scores, layout=torch.jagged),
        "extra_fields": tensordict.NonTensorStack(*({"reward_extra_info": one} for one in info)),
    }
    put = {}

    def kv_batch_get(keys, partition_id, select_fields):
        return tensordict.TensorDict({name: held[name] for name in select_fields if name in held}, batch_size=4)

    monkeypatch.setattr(queue, "kv_batch_get", kv_batch_get)
    monkeypatch.setattr(queue, "kv_batch_put", lambda keys, partition_id, fields: put.update(fields.items()))
    batch = queue.KVBatchMeta(keys=[f"{u}_0_{n}" for n, u in enumerate(GROUPS)], partition_id="train", tags=[{}] * 4)
    trainer = SimpleNamespace(config=settings("algorithm.adv_estimator=adjudge_gdpo"))
    base.PPOTrainer._compute_advantage(trainer, batch, metrics={})
    found = [row.tolist() for row in put["advantages"].unbind()]
    known = [{k: v for k, v in one.items() if not math.isnan(v)} for one in components]
    expected = np.concatenate(component_advantages([known[:2], known[2:]]))
    assert [row[0] for row in found] == pytest.approx(list(expected), abs=1e-6)
    assert [len(row) for row in found] == [1, 2, 3, 4]


def test_verls_reward_loop_finds_the_function_and_keeps_its_extra_info(service):
    response = {"reward": None, "status": "unscored", "verdicts": []}
    service.script(ScriptedReply(body={**REWARDS, "groups": [{"id": "g", "responses": [response]}]}))
    config = settings(
        "reward.custom_reward_function.path=pkg://trainer_client.verl",
        f"+reward.custom_reward_function.reward_kwargs.url={service.url}",
        "+reward.custom_reward_function.reward_kwargs.run=verl-1",
    )
    function = imported("verl.trainer.ppo.reward").get_custom_reward_fn(config)
    naive = imported("verl.experimental.reward_loop.reward_manager.naive").NaiveRewardManager
    tokenizer = byte_level()
    ids = torch.tensor([[*tokenizer.encode("It is 42."), tokenizer.eos_token_id]])
    row = data(
        {"responses": ids, "attention_mask": torch.ones_like(ids)},
        data_source="math",
        reward_model={"ground_truth": "42", "style": "rule"},
        extra_info=dict(ROW),
        tool_extra_fields={"max_global_steps": 3},
    )

    async def run():
        return await naive(config, tokenizer, function).run_single(row)

    result = asyncio.run(run())
    assert math.isnan(result["reward_score"])
    assert result["reward_extra_info"]["unscored"] == 1.0
    [asked] = service.asked
    assert (asked.json["run"], asked.json["step"]) == ("verl-1", 3)
    [group] = asked.json["groups"]
    assert (group["responses"], group["rubric"], group["ground_truth"]) == (["It is 42."], "math/q@3", "42")


def test_verl_calls_a_reward_function_with_the_recorded_arguments():
    source = inspect.getsource(imported("verl.experimental.reward_loop.reward_manager.naive"))
    assert all(f"{name}=" in source for name in REWARD_KEYWORDS)


def test_verls_own_estimators_spread_nan_over_the_whole_group():
    """The reason why the score of a failed response is NaN: no estimator takes it for a reward."""
    batch = laid_out([1.0, None, 0.0], [1] * 3, ["u"] * 3)
    for name in ("grpo", "rloo"):
        advantages, _ = imported(CORE).get_adv_estimator_fn(name)(**batch)
        assert advantages[:, 0].isnan().all()


TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
CRITERIA = [{"id": f"c{n}", "description": f"Says {n}.", "weight": -1 if n == 3 else n + 1} for n in range(4)]


class Server:
    """Replaces the generation servers: records the prompts, and answers each with the same text."""

    def __init__(self, tokenizer):
        self.tokenizer, self.prompts = tokenizer, []

    async def generate(self, request_id, *, prompt_ids, sampling_params, **_):
        self.prompts.append(self.tokenizer.decode(prompt_ids))
        output = imported("verl.workers.rollout.replica").TokenOutput
        return output(token_ids=self.tokenizer.encode("Forty-two.", add_special_tokens=False))


def scaffolded(row=None, *, session=0, step=1, **options):
    """A response of the agent loop, made as verl's workers make it, and its prompt."""
    agent_loop = imported("verl.experimental.agent_loop.agent_loop")
    entry = {"_target_": "trainer_client.verl.scaffold_loop.ScaffoldedAgentLoop", "total_steps": 101} | options
    config = settings("actor_rollout_ref.rollout.n=4", "actor_rollout_ref.model.path=none", "trainer.use_v1=True")
    tokenizer = byte_level()
    tokenizer.chat_template = TEMPLATE
    server = Server(tokenizer)

    async def run():
        loop = imported("hydra").utils.instantiate(
            entry,
            trainer_config=agent_loop.DictConfigWrap(config=config),
            server_manager=server,
            tokenizer=tokenizer,
            processor=None,
            dataset_cls=object,
            data_config=agent_loop.DictConfigWrap(config.data),
        )
        fields = {"raw_prompt": [{"role": "user", "content": "6 times 7?"}], "extra_info": {"rubric": CRITERIA}}
        told = {"session_id": session, "global_steps": step}
        return await loop.run({}, **fields | told | (row or {}))

    output = asyncio.run(run())
    (prompt,) = server.prompts
    return output, prompt, tokenizer


def test_a_response_is_generated_with_criteria_and_trained_on_without_them():
    output, prompt, tokenizer = scaffolded()
    assert all(f"Says {n}." in prompt for n in range(4))
    assert prompt.index("Points to include") < prompt.index("Points to avoid") < prompt.index("6 times 7?")
    assert tokenizer.decode(output.prompt_ids) == "<user>6 times 7?\n<assistant>"
    assert tokenizer.decode(output.response_ids) == "Forty-two."
    as_generated, prompt, _ = scaffolded(ratio="scaffolded")
    assert tokenizer.decode(as_generated.prompt_ids) == prompt


def test_the_scaffold_fades_within_a_group_and_over_the_steps():
    shown = [sum(f"Says {n}." in scaffolded(session=session)[1] for n in range(4)) for session in range(4)]
    assert shown == [4, 3, 1, 0]
    assert scaffolded(step=60)[1] == "<user>6 times 7?\n<assistant>"
    assert scaffolded({"extra_info": {}})[1] == "<user>6 times 7?\n<assistant>"


@pytest.mark.parametrize(
    ("row", "options", "says"),
    [
        ({"extra_info": {"rubric": "math/q@3"}}, {}, "put them into the column"),
        ({}, {"ratio": "corrected"}, "use one of plain, scaffolded"),
        ({}, {"total_steps": None}, "set total_steps"),
        ({}, {"pattern": "steep"}, "use one of linear"),
    ],
)
def test_a_row_without_a_possible_scaffold_is_refused(row, options, says):
    with pytest.raises(Exception, match=says):
        scaffolded(row, **options)
