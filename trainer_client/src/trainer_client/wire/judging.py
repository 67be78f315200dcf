"""How the judge is asked: the options of every request for a judgement."""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from trainer_client.modes import JudgingProtocol
from trainer_client.wire.base import STRICT_NUMBER, Flag, RequestModel, SafeInt
from trainer_client.wire.names import Name
from trainer_client.wire.options import Option

ReasoningPart = Literal["strip", "keep", "only"]
OpeningTag = Literal[
    "<think>",
    "<thinking>",
    "<thought>",
    "<reasoning>",
    "<seed:think>",
    "<longcat_think>",
    "◁think▷",
    "[THINK]",
    "<|begin_of_thought|>",
    "<|START_THINKING|>",
    "<|inner_prefix|>",
    "<|channel>thought",
    "<|channel|>analysis<|message|>",
]
"""A tag that opens a thinking block; `trainer_client.text.thinking` has those that close it."""

PromptOpens = OpeningTag | Literal["none"]
"""The tag of the thinking block that the policy's prompt leaves open, or `none` if it leaves none open."""

Defence = Literal["normalise", "no_content", "decoy"]
"""A defence against responses that are written to deceive the judge; `JudgingOptions` says what each one does."""

DecoyPolicy = Literal["flag", "fail"]
"""What becomes of a response that meets its decoy criterion; `JudgingOptions.on_decoy` says what each one means."""

StepRule = Literal["headings", "turns", "paragraphs", "given"]
"""What the steps of a response are; `JudgingOptions.steps` says what each one means."""

DEFAULT_DEFENCES: tuple[Defence, ...] = ("normalise", "no_content")
Priority = Literal["online", "bulk"]
"""`online`: latency matters, as in a training step. `bulk`: online requests go first."""

JudgeName = Name
"""The name of one of a service's judges."""

DEFAULT_JUDGE = "default"
"""The judge of requests that do not name one."""

TemplateName = Name

CriteriaPerCall = Annotated[
    Annotated[int, Field(ge=1, le=512), Tag("(number)")] | Annotated[Literal["all"], Tag("(all)")],
    Discriminator(lambda value: "(all)" if isinstance(value, str) else "(number)"),
]
"""A number of criteria, or `all` of a rubric's criteria."""

LEAST_PASSAGES, MOST_PASSAGES = 500, 20_000
"""The fewest and the most characters of passages that a request can ask for: those of fifty long sentences."""

RATIONALE_TOKENS = 160
"""The maximum length of a rationale, in the judge's tokens."""

VOTING_TEMPERATURE = 0.7
"""The default sampling temperature of votes."""


class ComparisonOptions(RequestModel):
    """How the judge is asked, whatever it is asked about.

    Attributes:
        rationale: have the judge write its reasons before the verdict, and return them.
        think_tokens: the maximum length of a thinking judge's thoughts, in its tokens. The thoughts are not stored.
        reasoning: which part of a response the judge sees: the response without its thinking block (`strip`), all of it
            (`keep`), or only the thinking block (`only`).
        prompt_opens: the tag of the thinking block that the policy's chat template opens at the end of the prompt,
            such as `<think>`, or `none` if it opens none. A response then begins with thinking, and one that never
            closes the block has no answer. A prompt that itself ends with such a tag needs no option.
        grounding_characters: the maximum length of the grounding shown to the judge, in characters. It is cut at the
            end of a sentence, or of a word if no sentence ends nearby, and the answer reports how much was left out.
            Defaults to all of it.
        template: the name of one of the server's sets of prompt templates; defaults to the server's default set.
    """

    rationale: Flag = False
    think_tokens: SafeInt = Field(default=0, ge=0, le=32_768)
    reasoning: ReasoningPart = "strip"
    prompt_opens: Annotated[PromptOpens | None, Option(metavar="TAG")] = None
    grounding_characters: Annotated[int, Field(ge=1), STRICT_NUMBER] | None = None
    template: TemplateName | None = None


class JudgingOptions(ComparisonOptions):
    """How the judge is asked.

    Attributes:
        protocol: the judging protocol; by default that of the reward mode, or `binary` without one.
        criteria_per_call: the number of criteria in one judge call, or `all`; by default all for `checklist`, and 1 for
            the other protocols. `likert` always asks once about the whole response.
        votes: the number of verdicts to sample for each criterion. The answer holds each vote. Needs an option under
            which the judge samples: `rationale`, `think_tokens`, or several criteria per call.
        temperature: the judge's sampling temperature; defaults to 0, or to 0.7 if `votes` is above 1.
        truncate: judge a response that exceeds the judge's context without its middle, and report how much was left
            out. Otherwise such a response fails as `truncated_input`.
        passages: judge a criterion on passages of a text, the sentences that share the most words with it, where the
            response or the grounding has more characters than this; so many characters of each are then shown. The
            verdict names the passages. If no sentence shares a word, the text is shown without its middle. Needs
            `binary` or `graded`, one criterion per call; a response sent as messages is shown whole.
        steps: what the steps of a response are, to which the protocol `stepwise` attributes verdicts: `headings`, its
            `### Step N` headings; `turns`, its messages of role `assistant`, counted from 1 (a text is one turn);
            `paragraphs`, separated by blank lines; `given`, the `steps` of each response of the request.
        defences: what protects the judge from deceitful responses, besides the fences around them. `normalise` shows
            the judge no invisible characters, and spells disguised words in plain letters. `no_content` decides without
            a call that a response that says nothing meets no criterion of positive weight. `decoy` also asks the judge
            about a criterion that no response meets, and marks a response as `suspicious` if it is judged met; only
            for `binary` and `stepwise`.
        contextual_calibration: ask each criterion once more about an empty response to the same prompt, and judge by
            what the response changes: the log-odds of yes with it, less those without it (Zhao et al. 2021). The
            responses of a group share this call. Needs `binary` or `stepwise`, one criterion per call without reasons
            or thoughts, and a judge that returns probabilities. Defaults to false.
        on_decoy: what becomes of a suspicious response: `flag` leaves its verdicts as they are; `fail` makes all of the
            judge's verdicts on it fail as `decoy`, so that `on_failure` decides about its reward.
    """

    protocol: JudgingProtocol | None = None
    criteria_per_call: Annotated[CriteriaPerCall | None, Option(metavar="N|all")] = None
    votes: SafeInt = Field(default=1, ge=1, le=32)
    temperature: Annotated[float, Field(ge=0, le=2), STRICT_NUMBER] | None = None
    truncate: Flag = False
    passages: Annotated[int, Field(ge=LEAST_PASSAGES, le=MOST_PASSAGES), STRICT_NUMBER] | None = None
    steps: StepRule = "headings"
    defences: Annotated[tuple[Defence, ...], Field(max_length=3)] = DEFAULT_DEFENCES
    contextual_calibration: Flag | None = None
    on_decoy: DecoyPolicy = "flag"

    @model_validator(mode="after")
    def _decoy_is_asked(self) -> "JudgingOptions":
        if self.on_decoy == "fail" and "decoy" not in self.defences:
            raise ValueError(
                "on_decoy is 'fail', but no decoy is asked; add 'decoy' to defences, or leave out on_decoy"
            )
        return self

    @model_validator(mode="after")
    def _votes_differ(self) -> "JudgingOptions":
        if self.votes > 1 and self.temperature == 0:
            raise ValueError(
                f"votes is {self.votes} and temperature 0, so all votes would be the same; "
                "leave out temperature (it defaults to 0.7) or set it above 0"
            )
        return self

    @property
    def sampling_temperature(self) -> float:
        """The temperature in force."""
        if self.temperature is not None:
            return self.temperature
        return VOTING_TEMPERATURE if self.votes > 1 else 0.0
