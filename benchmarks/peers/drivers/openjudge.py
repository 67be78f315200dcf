"""OpenJudge: its `LLMGrader` with a template that asks for a score of 0 or 1 and a reason, one call a criterion.

The wording of the template is ours, after the shape of the graders that the package ships.
"""

from openjudge.graders.llm_grader import LLMGrader
from openjudge.graders.schema import GraderScore
from openjudge.models.openai_chat_model import OpenAIChatModel

from benchmarks.peers.driving import LONGEST_REPLY, DriverConfig, Score, SingleCallDriver, WorksheetJudge, drive, failed

TEMPLATE = """
Grade the response by one criterion.

Query:
{query}

Response:
{response}

Criterion: {criterion}

Score 1 if the response satisfies the criterion and 0 if it does not. Answer in JSON:
{{"reason": "<a short explanation>", "score": <0 or 1>}}
"""


def make(setting: DriverConfig) -> WorksheetJudge:
    """Create the judge: one grader, which is given the criterion with each call."""
    model = OpenAIChatModel(
        model=setting.model,
        api_key="none",
        base_url=setting.url,
        timeout=setting.timeout_s,
        temperature=0.0,
        max_tokens=LONGEST_REPLY,
    )
    grader = LLMGrader(model=model, name="criterion", template=TEMPLATE)

    async def ask(question: str, response: str, criterion: str) -> Score:
        try:
            graded = await grader.aevaluate(query=question, response=response, criterion=criterion)
        except Exception as error:  # noqa: BLE001 - any error means that there is no score
            return failed(error)
        return float(graded.score) if isinstance(graded, GraderScore) else str(graded)

    return SingleCallDriver(setting, ask)


if __name__ == "__main__":
    drive(make)
