"""The workload of both sides, turn by turn, and the figures computed from the turns."""

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from judge_server.judging.plan import GroupPlanner
from judge_server.judging.questions import JudgingConfig, PreparedConfig
from judge_server.judging.shown import GroupContext
from judge_server.ports import Batch
from judge_server.prompts import PromptForm, PromptTemplates
from trainer_client.text.thinking import judged_content
from trainer_client.wire import Criterion, Group, JudgingProtocol, RubricContent, as_response

RUBRIC = RubricContent(
    criteria=(
        Criterion(id="answer", description="The final answer of the response equals the correct final answer."),
        Criterion(id="arithmetic", description="Every calculation in the response is carried out correctly."),
        Criterion(id="quantities", description="Every quantity given in the problem is used in the response."),
        Criterion(id="order", description="The calculations come in an order in which each uses only known values."),
        Criterion(id="units", description="The response says what the numbers it calculates stand for."),
        Criterion(id="concise", description="The response contains nothing that the problem does not ask for."),
    )
)


class Prompts(NamedTuple):
    """The calls about a response as token ids: the shared prefix, and the rest for each criterion."""

    prefix: list[int]
    questions: list[list[int]]

    @property
    def whole(self) -> list[list[int]]:
        """The complete prompt of each call."""
        return [self.prefix + question for question in self.questions]

    @property
    def ideal(self) -> int:
        """The minimum number of tokens to compute without reuse across responses: the prefix and each question once."""
        return len(self.prefix) + sum(map(len, self.questions))


@dataclass(frozen=True, slots=True)
class Pair:
    """One turn of each side on texts of similar length: the seconds and the ideal number of tokens of each."""

    adjudge_s: float
    adjudge_ideal: int
    adjudge_computed: int
    bare_s: float
    bare_ideal: int

    @property
    def ratio(self) -> float:
        """Tokens per second through Adjudge, divided by those of the bare engine."""
        return (self.adjudge_ideal / self.adjudge_s) / (self.bare_ideal / self.bare_s)


def groups(per_turn: int) -> Iterator[Group]:
    """Yield real problems with `per_turn` real rollouts each, endlessly, numbered so that no prompt recurs."""
    lines = Path("examples/gsm8k.jsonl").read_text(encoding="utf-8").splitlines()
    turn = 0
    while True:
        for line in lines:
            row = json.loads(line)
            turn += 1
            prompt = f"Problem {turn}. {row['prompt']}"
            yield Group.model_validate(row | {"prompt": prompt, "responses": row["responses"][:per_turn]})


def batches(group: Group, protocol: JudgingProtocol = "binary") -> list[Batch]:
    """Plan the calls that Adjudge makes for a group, one batch per response."""
    alone, together = (PromptTemplates(PromptForm(protocol, several=several)) for several in (False, True))
    prepared = PreparedConfig(JudgingConfig(protocol), alone, together, "benchmark")
    context = GroupContext(group.prompt, group.grounding, group.reference_answer, group.ground_truth)
    responses = [judged_content(as_response(response), "strip") for response in group.responses]
    planner = GroupPlanner(prepared, context, RUBRIC.criteria)
    return [planner.plan(response).batch for response in responses]


def figures(pairs: Sequence[Pair], judgements: int) -> dict[str, Any]:
    """Compute a row of figures from the pairs; `judgements` is the number per turn.

    Turns differ in length, so the rates are measured in tokens and converted to judgements by the mean tokens per
    judgement.
    """
    ideal = sum(pair.adjudge_ideal for pair in pairs)
    each = ideal / (len(pairs) * judgements)
    ratios = [pair.ratio for pair in pairs]
    return {
        "pairs": len(pairs),
        "judgements": len(pairs) * judgements,
        "Adjudge /s": statistics.median(pair.adjudge_ideal / pair.adjudge_s for pair in pairs) / each,
        "bare /s": statistics.median(pair.bare_ideal / pair.bare_s for pair in pairs) / each,
        "ratio": statistics.median(ratios),
        "ratio min": min(ratios),
        "ratio max": max(ratios),
        "tokens computed": sum(pair.adjudge_computed for pair in pairs),
        "over ideal": sum(pair.adjudge_computed for pair in pairs) / ideal,
    }
