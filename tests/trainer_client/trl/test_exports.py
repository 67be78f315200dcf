"""The exports of `trainer_client.trl`, and the imports they cause."""

import subprocess
import sys

import pytest

import trainer_client.trl as package


def imported(code):
    """The slow packages that a fresh interpreter has imported after this code."""
    code += "; import sys; print(*[name for name in ('torch', 'transformers', 'trl') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    "code",
    [
        "import trainer_client.trl",
        "from trainer_client.trl import RubricReward, RubricRewardWarning, TooManyUnscored",
    ],
)
def test_neither_the_package_nor_its_reward_imports_trl_or_torch(code):
    assert imported(code) == []


def test_the_trainer_imports_trl():
    assert "trl" in imported("from trainer_client.trl import RubricGRPOTrainer")


def test_every_exported_name_exists_and_is_listed():
    for name in package.__all__:
        assert getattr(package, name).__name__ == name
        assert name in dir(package)


def test_any_other_name_raises_attribute_error():
    with pytest.raises(AttributeError, match=r"module 'trainer_client\.trl' has no attribute 'RubricRewards'"):
        _ = package.RubricRewards
