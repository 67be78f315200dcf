"""A resources server for NeMo Gym whose rewards come from a rubric: save it as `resources_servers/rubrics/app.py`."""

from typing import Any

from fastapi import Request
from nemo_gym.base_resources_server import (
    BaseMultiRewardVerifyResponse,
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.judge import JudgeError
from pydantic import ConfigDict, Field

from trainer_client import (
    AsyncClient,
    ConnectionFailed,
    JudgingFailed,
    NotReady,
    Overloaded,
    ServerError,
    TimedOut,
)

OUTAGES = (ConnectionFailed, JudgingFailed, NotReady, Overloaded, ServerError, TimedOut)


class Config(BaseResourcesServerConfig):
    url: str
    rubric: str
    run: str | None = None
    mode: str = "weighted_mean"
    components: str | None = None  # criterion, kind or tag
    deadline_s: float = 60.0


class VerifyRequest(BaseVerifyRequest):
    model_config = ConfigDict(extra="allow")
    verifier_metadata: dict[str, Any] = Field(default_factory=dict)


class VerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")


class ComponentsResponse(BaseMultiRewardVerifyResponse):
    model_config = ConfigDict(extra="allow")


class RubricServer(SimpleResourcesServer):
    config: Config

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        self._judge = AsyncClient(self.config.url, run=self.config.run)  # its key is ADJUDGE_API_KEY

    async def verify(self, request: Request, body: VerifyRequest) -> VerifyResponse:
        prompt = body.responses_create_params.input
        if not isinstance(prompt, str):
            prompt = [message.model_dump(include={"role", "content"}, exclude_none=True) for message in prompt]
        group = {"id": "q", "prompt": prompt, "responses": [body.response.output_text]} | body.verifier_metadata
        try:
            answer = await self._judge.rewards(
                [group],
                self.config.rubric,
                self.config.mode,
                components=self.config.components,
                on_failure="error",
                deadline_s=self.config.deadline_s,
            )
        except OUTAGES as error:  # a mistake in the setup is raised as it is
            raise JudgeError(str(error)) from error
        judged = answer.groups[0]
        scored = judged.responses[0]
        criteria = {f"criterion/{v.criterion}": v.score for v in scored.verdicts if v.score is not None}
        if self.config.components is None:
            return VerifyResponse(**body.model_dump(), reward=scored.reward, **criteria)
        parts = {name: judged.component_weights[name] * value for name, value in scored.components.items()}
        return ComponentsResponse(**body.model_dump(), reward=scored.reward, reward_components=parts, **criteria)


if __name__ == "__main__":
    RubricServer.run_webserver()
