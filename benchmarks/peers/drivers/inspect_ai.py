"""inspect_ai: its scorer `model_graded_qa` with its own prompt, called with each criterion as the target.

It asks for reasons before the grade. It marks a sample as unscored if it cannot find a grade. Its retries are unlimited
by default; here there are two, as in the openai SDK.
"""

import math

from inspect_ai.model import ChatMessageUser, GenerateConfig, ModelName, ModelOutput, get_model
from inspect_ai.scorer import Target, model_graded_qa
from inspect_ai.solver import TaskState

from benchmarks.peers.driving import LONGEST_REPLY, DriverConfig, Score, SingleCallDriver, WorksheetJudge, drive, failed

RETRIES = 2


def make(setting: DriverConfig) -> WorksheetJudge:
    """Create the judge: one scorer with one model, and a timeout per attempt."""
    model = get_model(
        f"openai-api/local/{setting.model}",
        base_url=setting.url,
        api_key="none",
        config=GenerateConfig(
            temperature=0.0,
            max_tokens=LONGEST_REPLY,
            max_connections=setting.in_flight,
            max_retries=RETRIES,
            attempt_timeout=math.ceil(setting.timeout_s),
            cache=setting.options.get("cache", False),
        ),
    )
    scorer = model_graded_qa(model=model)

    async def ask(question: str, response: str, criterion: str) -> Score:
        state = TaskState(
            model=ModelName(model),
            sample_id=0,
            epoch=1,
            input=question,
            messages=[ChatMessageUser(content=question)],
            output=ModelOutput.from_content(setting.model, response),
        )
        try:
            score = await scorer(state, Target(criterion))
        except Exception as error:  # noqa: BLE001 - a sample's error, as an evaluation would record it
            return failed(error)
        if score is None or score.value not in ("C", "I"):
            return "unscored"
        return float(score.value == "C")

    return SingleCallDriver(setting, ask)


if __name__ == "__main__":
    drive(make)
