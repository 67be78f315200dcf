"""SkyRL: an environment of one turn whose reward is a rubric's.

Register it under a name, and give the rows of the dataset that name as `env_class`:

    skyrl_gym.register(
        id="rubric",
        entry_point="trainer_client.adapters.skyrl:RubricEnv",
        kwargs={"client": "http://judge:8000", "rubric": "math/quadratics"},
    )

SkyRL cannot leave a trajectory out, so one that could not be judged raises `NoReward` once the deadline and its retries
are over.
"""

from collections.abc import Mapping
from typing import Any

from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from trainer_client.adapters.scorer import RubricScorer

__all__ = ["RubricEnv"]


class RubricEnv(BaseTextEnv):  # type: ignore[misc]
    """An environment that ends with the policy's response, and rewards it by a rubric.

    The judge sees the columns `rubric`, `grounding`, `reference_answer` and `ground_truth` of a row; those of its
    `reward_spec` and its `extra_info` stand in for columns that the row lacks. For episodes of several turns, override
    `step`, and take the last reward from `judge` with the messages of the episode.

    Args:
        env_config: the settings of this environment in SkyRL's configuration, which come before `settings`.
        extras: the row of the dataset.
        settings: the arguments of `RubricScorer`, given as `kwargs` when the environment is registered.
    """

    def __init__(self, env_config: Any = None, extras: Mapping[str, Any] | None = None, **settings: Any) -> None:
        super().__init__()
        self._scorer = RubricScorer(**(settings | _settings(env_config)))
        self._row = _row(extras or {})
        self._prompt: Any = ""
        self._metrics: dict[str, float] = {}

    def init(self, prompt: Any) -> tuple[Any, dict[str, Any]]:
        """Keep the prompt for the judge."""
        self._prompt = prompt
        return super().init(prompt)  # type: ignore[no-any-return]

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Reward the response, and end the episode.

        Raises:
            NoReward: it could not be judged.
        """
        return BaseTextEnvStepOutput(
            observations=[], reward=self.judge(action), done=True, metadata=dict(self._metrics)
        )

    def judge(self, response: str | list[dict[str, Any]]) -> float:
        """Return the reward of a response, a text or the messages after the prompt.

        Raises:
            NoReward: it could not be judged.
        """
        scored = self._scorer.score_blocking(self._prompt, response, self._row)
        scores = scored.components or scored.scores
        self._metrics = {f"rubric/{name}": score for name, score in scores.items()}
        return self._scorer.require(scored)

    def get_metrics(self) -> dict[str, Any]:
        """The score of each criterion, or the component rewards if the settings ask for `components`."""
        return dict(self._metrics)


_IGNORED = ("env_class", "max_turns", "data_source", "prompt", "reward_spec", "extra_info")


def _row(extras: Mapping[str, Any]) -> dict[str, Any]:
    row = {name: value for name, value in extras.items() if name not in _IGNORED}
    for part in ("extra_info", "reward_spec"):
        for name in ("rubric", "grounding", "reference_answer", "ground_truth"):
            value = (extras.get(part) or {}).get(name)
            if value is not None:
                row.setdefault(name, value)
    return row


def _settings(given: Any) -> dict[str, Any]:
    """The settings as a dict, from a dict, a dataclass or an OmegaConf container."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        items = dict(given)
    elif hasattr(given, "__dataclass_fields__"):
        items = {name: getattr(given, name) for name in given.__dataclass_fields__}
    else:
        items = {name: given[name] for name in given}
    return {name: value for name, value in items.items() if value is not None}
