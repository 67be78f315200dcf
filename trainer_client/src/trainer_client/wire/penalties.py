"""Penalties of a reward request: on length, and near the generation limit. `trainer_client.penalties` applies them."""

from pydantic import Field, model_validator

from trainer_client.wire.base import Coefficient, Flag, RequestModel, SafeInt


class LengthPenalty(RequestModel):
    """Subtract `coefficient` * (tokens - `target_tokens`) from the reward (RGR-GRPO: 1e-4 and 2000).

    Attributes:
        coefficient: what each token takes from the reward.
        target_tokens: the length without a penalty; a shorter response gains.
        excess_only: leave the reward of shorter responses unchanged.
    """

    coefficient: Coefficient = 1e-4
    target_tokens: SafeInt = Field(default=2000, ge=0)
    excess_only: Flag = False


class OverlongPenalty(RequestModel):
    """Subtract up to 1 from the reward of a response whose length nears the generation limit (DAPO's soft punishment).

    Attributes:
        limit_tokens: the generation limit, where the penalty is 1.
        buffer_tokens: how far below the limit the penalty begins; it grows linearly.
    """

    limit_tokens: SafeInt = Field(ge=1)
    buffer_tokens: SafeInt = Field(ge=1)

    @model_validator(mode="after")
    def _buffer_fits(self) -> "OverlongPenalty":
        if self.buffer_tokens > self.limit_tokens:
            raise ValueError("buffer_tokens exceeds limit_tokens; use at most limit_tokens")
        return self
