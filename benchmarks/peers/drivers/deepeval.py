"""deepeval: its `GEval` in strict mode, with scores of 0 or 1 and the criterion as the evaluation step, one call each.

The model is its `LocalModel`, for servers of the OpenAI API. It opens a client for each call and makes two attempts.
"""

import os

from deepeval.metrics import GEval
from deepeval.models import LocalModel
from deepeval.test_case import LLMTestCase, SingleTurnParams

from benchmarks.peers.driving import LONGEST_REPLY, DriverConfig, Score, SingleCallDriver, WorksheetJudge, drive, failed


def make(setting: DriverConfig) -> WorksheetJudge:
    """Create the judge: one model, and a metric per judgement, since a metric stores its score."""
    os.environ["DEEPEVAL_PER_ATTEMPT_TIMEOUT_SECONDS_OVERRIDE"] = str(setting.timeout_s)
    model = LocalModel(
        model=setting.model,
        base_url=setting.url,
        api_key="none",
        temperature=0,
        timeout=setting.timeout_s,
        generation_kwargs={"max_tokens": LONGEST_REPLY},
    )

    async def ask(question: str, response: str, criterion: str) -> Score:
        metric = GEval(
            name=criterion[:3],
            evaluation_steps=[f"Check whether the actual output satisfies this criterion. {criterion}"],
            evaluation_params=[SingleTurnParams.INPUT, SingleTurnParams.ACTUAL_OUTPUT],
            model=model,
            strict_mode=True,
        )
        try:
            return float(
                await metric.a_measure(LLMTestCase(input=question, actual_output=response), _show_indicator=False)
            )
        except Exception as error:  # noqa: BLE001 - any error means that there is no score
            return failed(error)

    return SingleCallDriver(setting, ask)


if __name__ == "__main__":
    drive(make)
