"""`contrastive` (SRaR): tagged items, distilled from the differences between right and wrong solutions."""

from pydantic import BaseModel, Field, JsonValue

from judge_server.generation.generator import (
    AGREEMENT_PROMPTS,
    Agreement,
    GeneratedRubric,
    Generator,
    GroundTruth,
    Parameters,
    QuestionRow,
    Responses,
    Sentence,
    bounded,
)
from judge_server.generation.structure import Draft, check_drafts, contains_result, criteria_from_drafts
from judge_server.generation.wording import GeneratorTemplates
from judge_server.generation.writer import RubricDiscarded, Writer
from trainer_client.wire import Criterion
from trainer_client.wire.criteria import MathVerification

KINDS = ("suggest", "pitfall", "bonus", "answer")


class ContrastiveRow(QuestionRow):
    """A problem, its known answer and, optionally, solutions of it."""

    ground_truth: GroundTruth
    solutions: Responses = ()


class ContrastiveParameters(Parameters):
    """How solutions are sampled if the input has none, and how many of them the distillation prompt shows.

    Attributes:
        samples: number of solutions to sample.
        sample_temperature: sampling temperature for solutions.
        shown: maximum number of right solutions, and of wrong ones, in the prompt.
        solution_characters: number of leading characters of each solution in the prompt.
        asked: maximum number of items to ask for (the paper's prompt: 8).
        max_criteria, max_suggest, max_pitfall, max_bonus: maximum number of items to accept, in total and per kind. The
            defaults are the largest counts in the paper's corpus (Table 12), where some rubrics exceed the prompt's 8.
    """

    samples: int = Field(default=4, ge=1, le=64)
    sample_temperature: float = Field(default=0.8, gt=0, le=2)
    shown: int = Field(default=4, ge=1, le=32)
    solution_characters: int = Field(default=4_000, ge=100)
    asked: int = Field(default=8, ge=2, le=64)
    max_criteria: int = Field(default=12, ge=2, le=64)
    max_suggest: int = Field(default=8, ge=1, le=32)
    max_pitfall: int = Field(default=3, ge=0, le=32)
    max_bonus: int = Field(default=2, ge=0, le=32)


class ContrastiveRubric(BaseModel):
    """The model's output: items by tag."""

    suggest: list[Sentence]
    pitfall: list[Sentence]
    bonus: list[Sentence]
    answer: Sentence


class ContrastiveGenerator(Generator[ContrastiveRow, ContrastiveParameters]):
    """Splits solutions into right and wrong by their final answers, then writes items.

    A rubric has suggest items, exactly one answer item, and optionally pitfall and bonus items.
    """

    kind = "contrastive"
    summary = "suggest, pitfall, bonus and answer items from right and wrong solutions (SRaR)"
    Input = ContrastiveRow
    Parameters = ContrastiveParameters
    steps = ("solutions", "split", "distil", "check", "validity")
    prompt_templates = GeneratorTemplates(
        "author.system", "solver.system", "contrastive.solution", "contrastive.rubric", *AGREEMENT_PROMPTS
    )

    async def make(self, row: ContrastiveRow, writer: Writer) -> GeneratedRubric:
        """Make one rubric; see `Generator.make`. Flags: `all_right`, `all_wrong`."""
        solutions = list(row.solutions) or await self._sample_solutions(row, writer)
        halves = await self._split(row, solutions, writer)
        if not halves["right"] and not halves["wrong"]:
            raise RubricDiscarded(
                "no_contrast", f"none of the {len(solutions)} solutions states an answer that can be compared"
            )
        criteria = await self._distill(row, halves, writer)
        one_sided = {"all_right": not halves["wrong"], "all_wrong": not halves["right"]}
        counts: dict[str, JsonValue] = {half: len(members) for half, members in halves.items()}
        return await self.finish(
            writer,
            criteria,
            {"question": row.question, "ground_truth": row.ground_truth},
            correct=row.ground_truth,
            record={"solutions_given": bool(row.solutions), **counts, "right_solutions": list(halves["right"])},
            flags=[name for name, applies in one_sided.items() if applies],
        )

    async def _sample_solutions(self, row: ContrastiveRow, writer: Writer) -> list[str]:
        """Sample solutions, each with its own seed; leave out those that reach the token limit or are empty."""
        parameters = self.parameters
        system = self.prompt_templates("solver.system")
        prompt = self.prompt_templates("contrastive.solution", question=row.question)
        sampled = []
        for number in range(parameters.samples):
            try:
                solution = await writer.write_text(
                    prompt,
                    system=system,
                    max_tokens=parameters.answer_tokens,
                    temperature=parameters.sample_temperature,
                    seed=parameters.seed + number,
                )
            except RubricDiscarded as unusable:
                if unusable.reason == "too_long":
                    raise
                continue
            sampled.append(solution)
        return sampled

    async def _split(self, row: ContrastiveRow, solutions: list[str], writer: Writer) -> dict[Agreement, list[str]]:
        halves: dict[Agreement, list[str]] = {"right": [], "wrong": [], "unknown": []}
        for solution in solutions:
            agreement = await self.answers.compare(
                writer, solution, question=row.question, ground_truth=row.ground_truth
            )
            halves[agreement].append(solution)
        return halves

    async def _distill(
        self, row: ContrastiveRow, halves: dict[Agreement, list[str]], writer: Writer
    ) -> tuple[Criterion, ...]:
        parameters = self.parameters
        right, wrong = (
            [one[: parameters.solution_characters] for one in halves[half][: parameters.shown]]
            for half in ("right", "wrong")
        )
        prompt = self.prompt_templates(
            "contrastive.rubric",
            question=row.question,
            ground_truth=row.ground_truth,
            right=right,
            wrong=wrong,
            max_criteria=min(parameters.asked, parameters.max_criteria),
        )
        shape = bounded(
            ContrastiveRubric,
            suggest=(1, parameters.max_suggest),
            pitfall=(0, parameters.max_pitfall),
            bonus=(0, parameters.max_bonus),
        )
        written = await self.write_draft(writer, shape, prompt)
        texts = {"suggest": written.suggest, "pitfall": written.pitfall, "bonus": written.bonus}
        items = [(kind, text) for kind in texts for text in texts[kind]] + [("answer", written.answer)]
        if len(items) > parameters.max_criteria:
            raise RubricDiscarded("too_many", f"there are {len(items)} items; the limit is {parameters.max_criteria}")
        drafts = [Draft(_strip_tag(text), kind) for kind, text in items]
        check_drafts(drafts, kinds=KINDS, weights=(1, 1), references=halves["right"] + halves["wrong"])
        await self._check_answer(row, drafts[-1].description, writer)
        return tuple(
            one.model_copy(update={"verification": MathVerification(method="math", expected=row.ground_truth)})
            if one.kind == "answer"
            else one
            for one in criteria_from_drafts(drafts)
        )

    async def _check_answer(self, row: ContrastiveRow, item: str, writer: Writer) -> None:
        if contains_result(item, row.ground_truth):
            return
        statement = item.rstrip(" .")
        if (
            await self.answers.compare(writer, statement, question=row.question, ground_truth=row.ground_truth)
            != "right"
        ):
            raise RubricDiscarded(
                "wrong_reference_answer", f"the answer item does not name the correct answer: {item!r}"
            )


def _strip_tag(text: str) -> str:
    """Remove a leading tag such as `<pitfall>` or `pitfall:`, which the item's kind already states."""
    for kind in KINDS:
        for tag in (f"<{kind}>", f"{kind}:"):
            if text.strip().casefold().startswith(tag):
                return text.strip()[len(tag) :].strip()
    return text.strip()
