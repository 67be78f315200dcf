"""Call `POST /v1/systemone` with a client that speaks System One: `python decision_clients.py CLIENT URL`.

It runs in an environment that has the client and nothing of this project, and prints the probabilities that the client
received, as JSON.
"""

import asyncio
import json
import os
import sys
from typing import Any

RUBRIC = ("States that 7 is prime.", "Calls 1 a prime.")
STATE = {"question": "Is 7 prime?", "response": "7 is prime."}


def typesafe(url: str) -> list[Any]:
    """Use TypeSafe's own SDK: one question of each type."""
    from typesafe_sdk import Choice, Noul, Score, TypeSafeClient

    questions = {
        "prime": Noul(instructions=RUBRIC[0]),
        "tone": Choice(instructions="What is its tone?", criteria={"calm": None, "angry": "It shouts."}),
        "reason": Score(instructions="How good is its reason?", criteria=["none", "some", "full"]),
    }
    answered = TypeSafeClient(api_key="none", base_url=url).system_one(
        state=STATE, model="default", questions=questions
    )
    return [
        answered.nouls["prime"].noul,
        *answered.choices["tone"].probabilities.values(),
        *answered.scores["reason"].probabilities.values(),
    ]


def verifiers(url: str) -> list[Any]:
    """Use the decision judge of verifiers: one question of the type `score`."""
    from verifiers.v1.judges.decision import DecisionJudge, DecisionJudgeConfig

    judge = DecisionJudge(DecisionJudgeConfig(model="default", base_url=f"{url}/v1/systemone"))
    return [asyncio.run(judge.evaluate(**STATE, answer="Yes.")).parsed]


def deepeval(url: str) -> list[Any]:
    """Use DeepEval's decision model, based on TypeSafe's SDK."""
    from deepeval.models import TypeSafeModel
    from deepeval.models.system_one.schema import NoulQuestion

    model = TypeSafeModel(model="default", api_key="none", base_url=url)
    answered, _ = model.decide(STATE, {"prime": NoulQuestion(instructions=RUBRIC[0])})
    return [answered.nouls["prime"].probability]


def autorubric(url: str) -> list[Any]:
    """Use a rubric of autorubric, with its criteria asked in each framing."""
    from autorubric import Criterion, Rubric
    from autorubric.decision import DecisionModelConfig
    from autorubric.graders import CriterionGrader

    rubric = Rubric([Criterion(name=str(n), requirement=text, weight=1.0) for n, text in enumerate(RUBRIC)])
    found: list[Any] = []
    for framing in ("noul", "noul_framed", "choice"):
        config = DecisionModelConfig(model="default", api_base=url, api_key="none", binary_framing=framing)
        grader = CriterionGrader(judge_model_config=config)
        graded = asyncio.run(rubric.grade(to_grade=STATE["response"], grader=grader, query=STATE["question"]))
        assert graded.error is None, graded.error
        found += [vote.probabilities["MET"] for report in graded.report for vote in report.votes]
    return found


def litellm(url: str) -> list[Any]:
    """Use LiteLLM, as for a vLLM server."""
    import litellm as client

    questions = {"prime": {"type": "noul", "instructions": RUBRIC[0]}}
    answered = client.systemone(model="hosted_vllm/default", api_base=url, state=STATE, questions=questions)
    return [answered.answers["prime"].noul]


if __name__ == "__main__":
    os.environ |= {"OPENAI_API_KEY": "none", "PRIME_API_KEY": "none", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    os.environ |= {"DEEPEVAL_TELEMETRY_OPT_OUT": "1", "TYPESAFE_API_KEY": "none"}
    clients = {made.__name__: made for made in (typesafe, verifiers, deepeval, autorubric, litellm)}
    print(json.dumps(clients[sys.argv[1]](sys.argv[2])))
