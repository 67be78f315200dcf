"""Answers to learn from: written where none is given, and compared with the ground truth.

A program compares where it can (math-verify, in a process that can be killed); only answers in words that are not the
same words go to the model.
"""

import asyncio
import re
from typing import Literal

from judge_server.checks import Check, Checker
from judge_server.generation.wording import GeneratorTemplates
from judge_server.generation.writer import Writer, WriterFailed
from judge_server.ports import CallFailure
from trainer_client.final_answer import extract_final_answer
from trainer_client.wire.verification import ExactVerification, MathVerification, Verification

ANSWER_PROMPTS = GeneratorTemplates("solver.system", "answer")
AGREEMENT_PROMPTS = GeneratorTemplates("checker.system", "agreement")

COMPARE_TIMEOUT_S = 30.0
"""How long one comparison may take, its process included."""

Agreement = Literal["right", "wrong", "unknown"]
"""Whether an answer is the known one; `unknown` where it states none, or the comparison did not end."""

_FORMULA = re.compile(r"[0-9\\^=+*/<>|√π∞]")


async def write_answer(
    writer: Writer,
    question: str,
    *,
    prompt_templates: GeneratorTemplates,
    max_tokens: int,
    temperature: float,
    seed: int,
) -> str:
    """A comprehensive solution that ends in a line `Final answer: …`; raises as `Writer.prose`."""
    system, prompt = prompt_templates("solver.system"), prompt_templates("answer", question=question)
    return await writer.write_text(prompt, system=system, max_tokens=max_tokens, temperature=temperature, seed=seed)


class AnswerComparer:
    """Compares answers with the ground truth. Its processes start with the first comparison; `close` ends them."""

    def __init__(self, prompt_templates: GeneratorTemplates) -> None:
        self._wording = prompt_templates
        self._checker = Checker(workers=1)

    async def compare(self, writer: Writer, answer: str, *, question: str, ground_truth: str) -> Agreement:
        """Whether an answer is right.

        Raises:
            Discarded: from the model, which is asked where the ground truth is words.
            WriterFailed: the model gave no answer, or the comparing process died.
        """
        final = extract_final_answer(answer)
        in_words = _FORMULA.search(ground_truth) is None
        if final is not None or not in_words:
            compared = await self._compare_by_program(answer, final, ground_truth)
            if compared == "right" or not in_words:
                return compared
        prompt = self._wording("agreement", question=question, ground_truth=ground_truth, answer=answer)
        label = await writer.choose(["yes", "no"], prompt, system=self._wording("checker.system"))
        return "right" if label == "yes" else "wrong"

    async def _compare_by_program(self, answer: str, final: str | None, ground_truth: str) -> Agreement:
        """By the final answer; an answer that marks none is searched for one, as math-verify does it."""
        programs: tuple[Verification, ...] = (MathVerification(method="math", of="response"),)
        if final is not None:
            programs = (MathVerification(method="math"), ExactVerification(method="exact"))
        for verification in programs:
            deadline = asyncio.get_running_loop().time() + COMPARE_TIMEOUT_S
            found = await self._checker.run(Check(verification, answer, final, ground_truth), deadline)
            if not isinstance(found, CallFailure):
                return "right" if found.score == 1.0 else "wrong"
            if found.kind == "engine":
                raise WriterFailed(found.detail)
            if found.kind != "parse":
                return "unknown"
        return "unknown"

    async def close(self) -> None:
        """End the processes."""
        await self._checker.close()
