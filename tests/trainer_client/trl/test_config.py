"""The config: a method's TRL settings, which the user may override, and clear errors."""

import pytest

pytest.importorskip("trl")

from trl import GRPOConfig, TrlParser

from trainer_client.trl.config import RubricGRPOConfig
from trainer_client.trl.methods import Grounded, Srar

pytestmark = pytest.mark.trl


def config(tmp_path, **settings):
    return RubricGRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none", **settings)


def test_the_plain_method_has_trls_defaults(tmp_path):
    ours, theirs = config(tmp_path), GRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none")
    for name in ("beta", "epsilon", "epsilon_high", "loss_type", "use_bias_correction_kl", "scale_rewards"):
        assert getattr(ours, name) == getattr(theirs, name), name


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("grounded", {"beta": 0.01, "epsilon": 0.2, "epsilon_high": None, "loss_type": "dapo"}),
        ("srar", {"beta": 0.0, "epsilon": 0.2, "epsilon_high": 0.28, "loss_type": "dapo"}),
        ("rar", {"beta": 0.0, "epsilon": 0.2, "epsilon_high": 0.28, "loss_type": "dapo"}),
        ("grounded", {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 10}),
        ("dro", {"top_p": 0.95, "temperature": 1.0, "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 0.2}),
        ("ruscarl", {"top_p": 0.8, "lr_scheduler_type": "constant"}),
        ("rgr", {"top_p": 1.0, "lr_scheduler_type": "linear"}),
    ],
)
def test_a_method_has_its_papers_settings(tmp_path, method, settings):
    made = config(tmp_path, method=method, per_device_train_batch_size=16)
    assert {name: getattr(made, name) for name in settings} == settings


def test_a_given_setting_overrides_the_methods(tmp_path):
    assert config(tmp_path, method="grounded", beta=0.0, loss_type="grpo").beta == 0.0
    own = {"top_p": 1.0, "lr_scheduler_type": "linear", "warmup_steps": 0}
    made = config(tmp_path, method="dro", per_device_train_batch_size=16, **own)
    assert {name: getattr(made, name) for name in own} == own


@pytest.mark.parametrize("method", ["rubric", "rar", "grounded", "srar", "rgr", "dro", "ruscarl", "gdpo"])
def test_vllm_importance_sampling_correction_is_off_by_default(tmp_path, method):
    own = {"method": method, "per_device_train_batch_size": 16}
    assert config(tmp_path, **own).vllm_importance_sampling_correction is False
    told = config(tmp_path, **own, vllm_importance_sampling_correction=True)
    assert told.vllm_importance_sampling_correction is True


def test_method_options_reach_the_method(tmp_path):
    method = config(tmp_path, method="srar", method_options={"normalise": False, "kinds": ["suggest"]}).build_method()
    assert method == Srar(normalise=False, kinds=("suggest",))


def test_trls_scale_rewards_controls_the_scaling_of_advantages(tmp_path):
    assert config(tmp_path, method="grounded", scale_rewards=False).build_method() == Grounded(scale="none")


def test_an_unknown_method_option_is_named_with_the_known_ones(tmp_path):
    with pytest.raises(
        ValueError, match=r"'normalize', which is not an option of method 'srar'; it takes .*normalise \(True\)"
    ):
        config(tmp_path, method="srar", method_options={"normalize": False})


def test_an_unknown_method_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match="use one of rubric, rar, grounded, srar"):
        config(tmp_path, method="ppo")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "srar", "scale_rewards": "batch"}, "scale_rewards is 'batch', but method 'srar'"),
        ({"method": "rgr", "multi_objective_aggregation": "normalize_then_sum"}, "multi_objective_aggregation"),
        ({"scale_rewards": "batch", "method_options": {"ddof": 1}}, "method_options contains ddof"),
        ({"method": "srar", "scale_rewards": "none"}, "scale_rewards is 'none', but method 'srar' always divides"),
        ({"method": "rar", "scale_rewards": False}, "scale_rewards is 'none', but method 'rar' always divides"),
        (
            {"method": "grounded", "method_options": {"sequence_band": [0.5, 2.0]}},
            "importance_sampling_correction is off",
        ),
        ({"method": "rgr", "num_generations": 1}, "at least 2 generations"),
        ({"method": "dro"}, r"num_generations \(16\)\. Make per_device_train_batch_size .* a multiple of 16"),
        ({"method": "srar", "delta": 1.2}, r"delta is 1.2, but it must be above the upper clip .*1.28"),
    ],
)
def test_incompatible_settings_are_refused(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        config(tmp_path, **settings)


def test_a_command_line_accepts_the_same_settings(tmp_path):
    command = [
        "--output_dir", str(tmp_path), "--use_cpu", "True", "--bf16", "False", "--report_to", "none",
        "--method", "srar", "--method_options", '{"normalise": false}',
    ]  # fmt: skip
    (parsed,) = TrlParser((RubricGRPOConfig,)).parse_args_and_config(command)
    assert parsed.epsilon_high == 0.28
    assert parsed.build_method() == Srar(normalise=False)
