"""The module that verl imports: it registers estimators by name and passes steps around verl's trainer."""

import inspect
import json
import math
import runpy
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.trainer_client.small_tokenizers import byte_level
from tests.trainer_client.verl.recorded import (
    ESTIMATOR_KEYWORDS,
    ESTIMATOR_OPTIONAL,
    QUEUE_PARAMETERS,
    REGISTER_PARAMETERS,
    TRAINER_METHOD,
    Registry,
    fake_module,
)
from trainer_client.advantages import component_advantages, stepwise_advantages
from trainer_client.steps import split_steps
from trainer_client.text.offsets import TokenOffsets
from trainer_client.verl.estimators import ESTIMATORS, steps_context

pytestmark = pytest.mark.trl

CORE, TRAINERS = "verl.trainer.ppo.core_algos", "verl.trainer.ppo.v1"
TEXTS = [
    "### Step 1: We add 3.\n### Step 2: Then 日本語.",
    "### Step 1: We add 4.\n### Step 2: ok",
    "no step 1",
    "too late",
]
DELTAS = [{1: 0.4, 2: -0.5, 0: 1.0}, {1: 0.0, 2: 0.5}, {}, {}]
BASE = [1.0, 0.0, 0.5, None]


def trainer_class():
    """A class with the method of verl's `PPOTrainer` that runs the estimator on a test's rows."""

    class PPOTrainer:
        def __init__(self, estimator, rows):
            self.config = SimpleNamespace(algorithm=SimpleNamespace(adv_estimator=estimator))
            self.tokenizer, self.rows, self.seen = byte_level(), rows, []

        def _compute_advantage(self, batch, metrics):
            """Verl's own."""
            self.seen.append((batch, metrics))
            estimate = ESTIMATORS[self.config.algorithm.adv_estimator]
            return estimate(**self.rows)[0]

    return PPOTrainer


class Queue:
    """`transfer_queue` with given rows and a record of what was fetched."""

    def __init__(self, ids, extra_fields):
        self.fetched, self.extra_fields = [], extra_fields
        self._held = {
            "responses": torch.nested.nested_tensor([torch.tensor(row) for row in ids], layout=torch.jagged),
            "response_mask": torch.nested.nested_tensor([torch.ones(len(row)) for row in ids], layout=torch.jagged),
            "extra_fields": extra_fields,
        }

    def kv_batch_get(self, keys, partition_id, select_fields):
        self.fetched.append((keys, partition_id))
        return {field: self._held[field] for field in select_fields}


def scored(ids, text, base, deltas):
    """A response's extra fields, as verl and its worker's reward function make them."""
    spans = {step.number: (step.start, step.end) for step in split_steps(text)}
    steps = [[number, *spans.get(number, (0, len(text))), delta] for number, delta in deltas.items()]
    return {"reward_extra_info": {"score": base, "steps": json.dumps(steps)}, "max_global_steps": 1}


def batch_of(ids):
    width = max(map(len, ids))
    rewards, mask = torch.zeros(len(ids), width), torch.zeros(len(ids), width, dtype=torch.int64)
    for row, (own, base) in enumerate(zip(ids, BASE, strict=True)):
        rewards[row, len(own) - 1] = float("nan") if base is None else base
        mask[row, : len(own)] = 1
    index = np.array(["u"] * len(ids), dtype=object)
    return {"token_level_rewards": rewards, "response_mask": mask, "index": index}


@pytest.fixture
def ids():
    tokenizer = byte_level()
    return [[*tokenizer.encode(text), tokenizer.eos_token_id] for text in TEXTS]


@pytest.fixture
def carried(monkeypatch, ids):
    """Import `trainer_client.verl.stepwise` with a fake verl; return its trainer class and its queue."""
    fields = [scored(*row) for row in zip(ids, TEXTS, BASE, DELTAS, strict=True)]
    fields[2] = {"max_global_steps": 1}
    fields[3] = SimpleNamespace(data=fields[3])  # tensordict holds non-tensors like this
    queue, trainer = Queue(ids, fields), trainer_class()
    fake_module(monkeypatch, TRAINERS, PPOTrainer=trainer)
    fake_module(monkeypatch, "transfer_queue", kv_batch_get=queue.kv_batch_get)
    runpy.run_module("trainer_client.verl.stepwise")
    return trainer, queue


@pytest.mark.parametrize("estimator", ESTIMATORS.values())
def test_an_estimator_accepts_verls_arguments(estimator):
    inspect.signature(estimator).bind(**dict.fromkeys((*ESTIMATOR_KEYWORDS, *ESTIMATOR_OPTIONAL)))


def test_importing_the_plugin_registers_the_estimators_once(monkeypatch):
    registry = Registry()
    fake_module(monkeypatch, CORE, register_adv_est=registry.register_adv_est)
    assert tuple(inspect.signature(registry.register_adv_est).parameters) == REGISTER_PARAMETERS
    for _ in range(2):
        runpy.run_module("trainer_client.verl.plugin")
    assert registry.known == ESTIMATORS


def test_importing_the_reward_function_needs_neither_verl_nor_torch():
    code = "import sys; sys.modules.update(verl=None, torch=None, trl=None); import trainer_client.verl"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_steps_reach_the_estimator_on_the_sampled_tokens(carried, ids):
    trainer, queue = carried
    rows = batch_of(ids)
    batch, metrics = SimpleNamespace(keys=["k"] * 4, partition_id="train"), {}
    running = trainer("adjudge_stepwise", rows)
    for _ in range(2):
        advantages = running._compute_advantage(batch, metrics=metrics)
    offsets = TokenOffsets(byte_level())
    spans = [offsets.place(own, text).steps(split_steps(text)) for own, text in zip(ids, TEXTS, strict=True)]
    expected = stepwise_advantages(BASE, DELTAS, spans, list(map(len, ids)))
    for row, tokens in enumerate(expected):
        assert advantages[row, : len(tokens)].numpy() == pytest.approx(tokens, abs=1e-5)
    assert running.seen == [(batch, metrics)] * 2
    assert queue.fetched == [(["k"] * 4, "train")] * 2


def test_component_rewards_reach_the_estimator_beside_steps(carried, ids):
    trainer, queue = carried
    weights = {"a": 0.75, "b": 0.25}
    components = [{"a": 1.0, "b": 0.0}, {"a": 0.0, "b": math.nan}, {"a": 0.5, "b": 1.0}, {"a": 1.0, "b": 1.0}]
    for place, (row, text) in enumerate(zip(components, TEXTS, strict=True)):
        info = {"score": BASE[place], "component_weights": json.dumps(weights), "steps": "[]", "rubric_reward": 1.0}
        info |= {f"rubric/{name}": reward for name, reward in row.items()}
        queue.extra_fields[place] = {"reward_extra_info": info, "text": text}
    for _ in range(2):
        runpy.run_module("trainer_client.verl.gdpo")
    batch = SimpleNamespace(keys=["k"] * 4, partition_id="train")
    advantages = trainer("adjudge_gdpo", batch_of(ids))._compute_advantage(batch, {})
    known = [{"a": 1.0, "b": 0.0}, {"a": 0.0}, {"a": 0.5, "b": 1.0}, {}]
    [expected] = component_advantages([known], [weights])
    assert advantages[:, 0].numpy() == pytest.approx(expected, abs=1e-6)
    assert queue.fetched == [(["k"] * 4, "train")]
    trainer("adjudge_stepwise", batch_of(ids))._compute_advantage(batch, {})
    assert queue.fetched == [(["k"] * 4, "train")] * 2


def test_a_response_without_a_judgement_has_no_components(carried, ids):
    trainer, queue = carried
    queue.extra_fields[:] = [{}] * 4
    runpy.run_module("trainer_client.verl.gdpo")
    batch = SimpleNamespace(keys=["k"] * 4, partition_id="train")
    assert not trainer("adjudge_gdpo", batch_of(ids))._compute_advantage(batch, {}).any()


def test_the_fake_queue_has_the_recorded_parameters():
    assert tuple(inspect.signature(Queue.kv_batch_get).parameters) == ("self", *QUEUE_PARAMETERS)


def test_another_estimator_fetches_no_steps(carried, ids):
    trainer, queue = carried
    batch = SimpleNamespace(keys=[], partition_id="train")
    trainer("adjudge_group", batch_of(ids))._compute_advantage(batch, {})
    assert queue.fetched == []


def test_a_trainer_is_wrapped_once_and_its_method_keeps_signature_and_docstring(carried):
    trainer, _ = carried
    wrapped = trainer._compute_advantage
    runpy.run_module("trainer_client.verl.stepwise")
    assert trainer._compute_advantage is wrapped
    assert tuple(inspect.signature(wrapped).parameters) == TRAINER_METHOD
    assert wrapped.__doc__ == "Verl's own."


@pytest.mark.parametrize(
    ("module", "remedy"), [("stepwise", "step_deltas=fold"), ("gdpo", "Use adv_estimator=adjudge_group")]
)
@pytest.mark.parametrize("method", [None, lambda self, batch: None, lambda self, batch, metrics, timing: None])
def test_a_trainer_with_a_different_signature_is_refused(monkeypatch, method, module, remedy):
    fake_module(
        monkeypatch, TRAINERS, PPOTrainer=type("PPOTrainer", (), {"_compute_advantage": method} if method else {})
    )
    fake_module(monkeypatch, "transfer_queue")
    with pytest.raises(RuntimeError, match=rf"PPOTrainer\._compute_advantage takes .*{remedy}"):
        runpy.run_module(f"trainer_client.verl.{module}")


def test_an_error_also_ends_the_steps_context():
    with pytest.raises(KeyError), steps_context([]):
        raise KeyError
    with pytest.raises(RuntimeError, match="called without steps"):
        ESTIMATORS["adjudge_stepwise"](torch.zeros(0, 0), torch.zeros(0, 0), [])


@pytest.mark.parametrize(
    ("rule", "steps", "expected"),
    [
        ("turns", [(1, 0, 8, 0.5), (2, 10, 15, -1.0)], {1: "Look up.</s>", 2: "It is 80.</s>"}),
        ("paragraphs", [(1, 0, 10, 0.5), (2, 10, 19, -1.0)], {1: "Look up.", 2: "It is 80."}),
    ],
)
def test_steps_of_messages_reach_the_sampled_tokens(monkeypatch, rule, steps, expected):
    fake_module(monkeypatch, TRAINERS, PPOTrainer=trainer_class())
    fake_module(monkeypatch, "transfer_queue")
    read_steps = runpy.run_module("trainer_client.verl.stepwise")["read_steps"]
    tokenizer, said = byte_level(), ["Look up.", "It is 80."]
    first, result, last = (tokenizer.encode(text) for text in (said[0], "Look up. It is 80.", said[1]))
    ids = [*first, tokenizer.eos_token_id, *result, *last, tokenizer.eos_token_id]
    mask = [1] * (len(first) + 1) + [0] * len(result) + [1] * (len(last) + 1)
    messages = [
        {"role": "assistant", "content": said[0]},
        {"role": "tool", "content": "Look up. It is 80."},
        {"role": "assistant", "content": said[1]},
    ]
    info = {"steps": json.dumps(steps), "step_rule": rule, "reasoning": "strip"}
    read = read_steps(TokenOffsets(tokenizer), ids, info, mask, messages)
    assert read.deltas == {1: 0.5, 2: -1.0}
    assert {number: tokenizer.decode(ids[slice(*span)]) for number, span in read.spans.items()} == expected
