"""`TrainingMeasures` in a trainer: the input from each method, and the logged values."""

import pytest
from trl import GRPOConfig, GRPOTrainer

from tests.trainer_client.trl.generating import Prompts, batch
from tests.trainer_client.trl.training import (
    BARE,
    PLAIN,
    RIGHT,
    SLIP,
    WRONG,
    dataset,
    policy,
    saying,
    tokenizer,
    trainer,
)
from trainer_client.measures import best_of_n, pass_at_k, self_bleu
from trainer_client.trl import GenerationCallback, TrainingMeasures

pytestmark = pytest.mark.trl

TEXTS = [RIGHT, SLIP, WRONG, BARE]
WEIGHED = [1.0, 1 / 3, 0.0, 0.0]
ROUND = "### Step 1: 3+4=7\n### Step 1: 3+4=7\n"


def length(completions, **_):
    return [float(len(completion)) for completion in completions]


class RecordingCallback(GenerationCallback):
    """Record the inputs, and log the number of calls."""

    def __init__(self):
        self.told, self.losses = [], []

    def on_scored(self, generation):
        self.told.append(generation)
        return {"noted/scored": len(self.told)}

    def on_loss(self, logps, inputs, training):
        self.losses.append((logps, dict(inputs), training))
        return {"noted/losses": len(self.losses)}


def noted(made):
    """The generation batch that the trainer's callbacks get, and the measures computed from it."""
    recorder = RecordingCallback()
    made.add_callback(recorder)
    made.add_callback(TrainingMeasures())
    batch(made)
    (told,) = recorder.told
    logged = {name: value for name, (value, *_) in made._metrics["train"].items()}
    return told, {name: value for name, value in logged.items() if name.startswith("measures/")}


def test_a_step_logs_the_measures_of_its_groups(tmp_path, url):
    made = trainer(tmp_path, url, texts=TEXTS, data=dataset(PLAIN), beta=0.1)
    made.add_callback(TrainingMeasures())
    made.train()
    logged = {name: value for name, value in made.state.log_history[0].items() if name.startswith("measures/")}
    expected = {f"measures/pass_at_{k}": pass_at_k(4, 1, k) for k in (1, 2, 4)}
    expected |= {f"measures/best_of_{k}": best_of_n(WEIGHED, k) for k in (1, 2, 4)}
    expected |= {"measures/zero_rewards": 0.5, "measures/loops": 0.0, "measures/diversity": 1 - self_bleu(TEXTS)}
    expected |= {"measures/novelty/mean": 1.0, "measures/novelty/median": 1.0}
    expected |= {f"measures/novelty/above_{limit}": 0.0 for limit in (2, 10, 100)}
    assert logged == pytest.approx(expected, abs=1e-6)


def test_without_a_reference_model_there_is_no_novelty(tmp_path, url):
    made = trainer(tmp_path, url, texts=[*TEXTS[:3], ROUND], data=dataset(PLAIN))
    made.add_callback(TrainingMeasures())
    made.train()
    logged = made.state.log_history[0]
    assert logged["measures/loops"] == 0.25
    assert not [name for name in logged if "novelty" in name]


def test_an_evaluation_logs_its_own_measures(tmp_path, url):
    made = trainer(tmp_path, url, texts=TEXTS, data=dataset(PLAIN), beta=0.1, per_device_eval_batch_size=4)
    made.eval_dataset = dataset(PLAIN)
    made.add_callback(TrainingMeasures())
    found = made.evaluate()
    assert found["eval_measures/pass_at_4"] == 1.0
    assert found["eval_measures/novelty/median"] == pytest.approx(1.0)


def test_requested_novelty_is_measured_even_without_a_reference_model(tmp_path, url):
    found = []
    for beta in (0.0, 1e-9):
        made = trainer(tmp_path, url, texts=TEXTS, data=dataset(PLAIN), beta=beta, max_steps=3, learning_rate=20.0)
        assert (made.ref_model is None) == (beta == 0.0)
        made.add_callback(TrainingMeasures(novelty=True))
        made.train()
        found.append([one for one in made.state.log_history if "measures/novelty/mean" in one])
    ours, theirs = ([one["measures/novelty/mean"] for one in logged] for logged in found)
    assert len(ours) == 3
    assert ours == pytest.approx(theirs, rel=1e-4)
    assert abs(ours[-1] - 1.0) > 0.01


def test_novelty_is_relative_to_the_initial_policy(tmp_path, url):
    made = trainer(tmp_path, url, texts=TEXTS, data=dataset(PLAIN), beta=1e-9, max_steps=3, learning_rate=20.0)
    made.add_callback(TrainingMeasures())
    made.train()
    first, *_, last = [one for one in made.state.log_history if "measures/novelty/mean" in one]
    assert first["measures/novelty/mean"] == pytest.approx(1.0)
    assert abs(last["measures/novelty/mean"] - 1.0) > 0.01


def test_novelty_uses_the_unmodified_reference_and_not_the_methods_bound(tmp_path, url):
    made = trainer(tmp_path, url, texts=TEXTS, data=dataset(PLAIN), method="grounded", reward=None, beta=0.1)
    recorder = RecordingCallback()
    made.add_callback(recorder)
    made.current_gradient_accumulation_steps = 1
    inputs = batch(made)
    inputs["ref_per_token_logps"] = inputs["ref_per_token_logps"] - 50.0
    made._compute_loss(made.model, inputs)
    ((logps, seen, training),) = recorder.losses
    assert (logps - seen["ref_per_token_logps"]).min() > 40
    assert training
    assert logps.grad_fn is None


def test_refined_responses_are_off_policy(tmp_path, url):
    factual = [{**criterion, "kind": "factual"} for criterion in PLAIN]
    made = trainer(tmp_path, url, data=dataset(factual), method="rgr", entropy_coef=0.0)
    made.model.config.max_position_embeddings = 2048
    made.rollout_func = Prompts(WRONG, SLIP, WRONG, WRONG, later=(RIGHT,))
    told, found = noted(made)
    assert told.completions[3] == RIGHT
    assert found["measures/off_policy"] == 0.25 == made._metrics["train"]["rgr/refined"][0]


@pytest.mark.parametrize(("ratio", "share"), [("plain", 0.5), ("corrected", 0.5), ("scaffolded", None)])
def test_responses_to_a_scaffold_are_off_policy_if_the_plain_prompt_is_trained_on(tmp_path, url, ratio, share):
    options = {"pattern": "binary", "full": 2, "decay": "constant", "ratio": ratio, "weights": False}
    made = trainer(
        tmp_path,
        url,
        data=dataset(PLAIN),
        method="ruscarl",
        method_options=options,
        max_steps=10,
        max_completion_length=16,
    )
    made.rollout_func = Prompts(RIGHT, WRONG)
    _, found = noted(made)
    assert found.get("measures/off_policy") == share


def test_the_measured_rewards_are_those_that_the_advantages_use(tmp_path, url):
    options = {"gates": False, "variance_filter": False}
    data = dataset(PLAIN, reference_answer=[RIGHT, RIGHT])
    made = trainer(tmp_path, url, texts=TEXTS, data=data, method="dro", num_generations=4, method_options=options)
    told, found = noted(made)
    assert told.rewards == pytest.approx(
        [reward for start in (0, 4) for reward in made.method.rewards(made._local_rollouts[start : start + 4])]
    )
    assert found["measures/best_of_4"] == pytest.approx((max(told.rewards[:4]) + max(told.rewards[4:])) / 2)
    assert list(told.completions[:4]) == TEXTS


def test_a_callback_gets_each_functions_rewards_and_the_missing_ones(tmp_path, url):
    def sometimes(prompts, **_):
        return [None if row % 4 == 1 else 0.5 for row in range(len(prompts))]

    given = {"rewards": [sometimes], "required_rewards": ["sometimes"]}
    made = trainer(tmp_path, url, texts=TEXTS, data=dataset(PLAIN), **given)
    told, found = noted(made)
    assert told.functions["sometimes"] == [0.5, None, 0.5, 0.5] * 2
    assert told.functions["RubricReward"] == [1.0, None, 0.0, 0.0] * 2
    assert told.rewards == [1.5, None, 0.5, 0.5] * 2
    assert (told.group_size, told.first, told.off_policy, told.training) == (4, 0, None, True)
    assert found["measures/best_of_1"] == pytest.approx(2.5 / 3)


def test_a_callbacks_measures_are_logged(tmp_path, url):
    made = trainer(tmp_path, url, texts=TEXTS, data=dataset(PLAIN), max_steps=2)
    made.add_callback(RecordingCallback())
    made.train()
    assert [one["noted/scored"] for one in made.state.log_history[:2]] == [1.0, 2.0]
    assert [one["noted/losses"] for one in made.state.log_history[:2]] == [1.0, 2.0]


def test_a_trainer_that_provides_no_measures_is_refused(tmp_path):
    settings = GRPOConfig(str(tmp_path), use_cpu=True, bf16=False, report_to="none", num_generations=2)
    with pytest.raises(ValueError, match="TrainingMeasures needs a RubricGRPOTrainer"):
        GRPOTrainer(
            policy(tmp_path / "policy"), lambda prompts, **_: [0.0] * len(prompts), settings,
            train_dataset=dataset(), processing_class=tokenizer(), rollout_func=saying(*TEXTS),
            callbacks=[TrainingMeasures()],
        )  # fmt: skip


def test_a_length_penalty_changes_neither_what_is_right_nor_what_counts_as_zero(tmp_path, url):
    penalty = {"coefficient": 0.01, "target_tokens": 100}  # longer than every response, so that each gains
    factual = [{**criterion, "kind": "factual"} for criterion in PLAIN]
    made = trainer(
        tmp_path, url, texts=TEXTS, data=dataset(factual), method="rgr", method_options={"length_penalty": penalty}
    )
    made.model.config.max_position_embeddings = 64  # no refinement fits
    told, found = noted(made)
    assert min(told.rewards) > 0.0
    assert told.judged == pytest.approx(WEIGHED * 2)
    assert told.unpenalised == pytest.approx(WEIGHED * 2, abs=1e-6)
    assert found["measures/zero_rewards"] == pytest.approx(0.5)
    assert found["measures/pass_at_1"] == pytest.approx(0.25)
    assert found["measures/best_of_4"] == pytest.approx(1.0, abs=1e-6)


def test_a_right_answer_without_the_format_is_right(tmp_path, url):
    made = trainer(tmp_path, url, texts=["\\boxed{14}", RIGHT, WRONG, SLIP], method="srar")
    told, found = noted(made)
    assert told.rewards[:2] == pytest.approx([0.9, 1.0])
    assert told.correct == [True, True, False, False] * 2
    assert found["measures/pass_at_1"] == pytest.approx(0.5)


def test_under_dro_the_judge_decides_what_is_right_and_the_curve_shows_trained_rewards(tmp_path, url):
    options = {"gates": False, "variance_filter": False}
    data = dataset(PLAIN[-1:], reference_answer=[RIGHT, RIGHT])
    made = trainer(tmp_path, url, texts=TEXTS, data=data, method="dro", num_generations=4, method_options=options)
    told, found = noted(made)
    assert max(told.rewards) < 1.0
    assert told.judged == [1.0, 0.0, 0.0, 0.0] * 2
    assert found["measures/pass_at_1"] == pytest.approx(0.25)
    assert made._metrics["train"]["reward"] == pytest.approx([sum(told.rewards) / 8])
    assert made._metrics["train"]["rewards/RubricReward/mean"] == [0.25]


def test_without_a_judge_accuracy_is_not_measured(tmp_path):
    data = dataset(PLAIN, reference_answer=["14", "14"])
    options = {"variance_filter": False}
    made = trainer(tmp_path, "http://judge.test", texts=TEXTS, data=data, method="dro", num_generations=4,
                   method_options=options, functions=[length])  # fmt: skip
    _, found = noted(made)
    assert "measures/pass_at_1" not in found
    assert "measures/best_of_1" in found


def test_an_evaluation_applies_no_penalty(tmp_path, url):
    factual = [{**criterion, "kind": "factual"} for criterion in PLAIN]
    made = trainer(tmp_path, url, texts=TEXTS, data=dataset(factual), method="rgr", per_device_eval_batch_size=4)
    made.model.config.max_position_embeddings = 64
    made.eval_dataset = dataset(factual)
    batch(made)
    assert made.rubric_reward.last.rows[0].reward > 1.0
    found = made.evaluate()
    assert found["eval_reward"] == pytest.approx(sum(WEIGHED) / 4, abs=1e-6)
    assert found["eval_rewards/RubricReward/mean"] == pytest.approx(sum(WEIGHED) / 4, abs=1e-6)
    batch(made)
    assert made.rubric_reward.last.rows[0].reward > 1.0
