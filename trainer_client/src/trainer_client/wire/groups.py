"""Groups of responses to a prompt, and the conversations that prompts and responses consist of.

A group is a prompt, the responses (rollouts) to it, and additional texts for the judge. A prompt or a response is a
text or a list of messages, tool calls included.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    JsonValue,
    StringConstraints,
    Tag,
    field_validator,
    model_validator,
)

from trainer_client.wire.base import LIMIT_ERRORS, Count, Flag, RequestList, RequestModel
from trainer_client.wire.criteria import Criterion
from trainer_client.wire.judging import DEFAULT_JUDGE, JudgeName, StepRule
from trainer_client.wire.options import Option
from trainer_client.wire.rubrics import RubricContent

MAX_IMAGES = 64
"""The most images of a message."""

IMAGE = "[image]"
"""What stands for an image in the text of a message."""

ImageData = Annotated[
    str,
    StringConstraints(pattern=r"^data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/]+={0,2}$", max_length=20_000_000),
]
"""An image as a data URL. The service fetches nothing, so that what was judged is what was sent."""


class TextPart(RequestModel):
    """A part of a message's content that is text."""

    type: Literal["text"]
    text: str


class ImageUrl(RequestModel):
    """An image of a message's content."""

    url: ImageData


class ImagePart(RequestModel):
    """A part of a message's content that is an image, for judges that take images."""

    type: Literal["image_url"]
    image_url: ImageUrl


class Function(RequestModel):
    """The function of a tool call as the policy wrote it, with its arguments as JSON text or as an object.

    Attributes:
        name: the name of the function.
        arguments: its arguments, as JSON text or as an object.
    """

    name: str
    arguments: str | dict[str, JsonValue] = ""


class ToolCall(RequestModel):
    """A tool call, in the format of chat templates and chat APIs.

    Attributes:
        function: what is called.
        id: the id that the message with the result refers to.
        type: the type of the call.
    """

    function: Function
    id: str | None = None
    type: Literal["function"] = "function"


class Message(RequestModel):
    """One message of a conversation.

    Attributes:
        role: who speaks, such as `user`, `assistant` or `tool`.
        content: what is said: a text, a list of parts, or null if the message only calls tools.
        reasoning_content: a thinking block that is not part of `content`.
        tool_calls: the tools that the message calls.
        tool_call_id: the call whose result the message is.
        name: the tool that a message of role `tool` comes from.
        images: the images of the parts, each of which is `[image]` in the content.
    """

    role: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: RequestList[ToolCall] = Field(default=(), max_length=128)
    tool_call_id: str | None = None
    name: str | None = None
    images: RequestList[ImageData] = Field(default=(), max_length=MAX_IMAGES)

    @model_validator(mode="before")
    @classmethod
    def _take_images(cls, value: Any) -> Any:
        content = value.get("content") if isinstance(value, dict) else None
        if not isinstance(content, list | tuple):
            return value
        urls = [url for part in content if (url := _image_url(part)) is not None]
        return {**value, "images": urls} if urls else value

    @model_validator(mode="after")
    def _has_content(self) -> "Message":
        if self.content is None and self.reasoning_content is None and not self.tool_calls:
            raise ValueError("this message has neither content nor tool_calls; write content '' for an empty message")
        return self

    @field_validator("content", mode="before")
    @classmethod
    def _parts_are_text(cls, content: Any) -> Any:
        if not isinstance(content, list | tuple):
            return content
        texts = []
        for part in content:
            kind = part.get("type") if isinstance(part, dict) else getattr(part, "type", None)
            if kind == "image_url":
                texts.append(IMAGE)
            elif kind == "text":
                texts.append(TextPart.model_validate(part).text)
            else:
                raise ValueError(
                    f"a part of type {kind!r} cannot be judged; use only parts of type 'text' and 'image_url'"
                )
        return "\n".join(texts)


def _image_url(part: Any) -> Any:
    """Return the URL of a part that is an image, or the part itself if it has none; None for another part."""
    if isinstance(part, ImagePart):
        return part.image_url.url
    if not isinstance(part, dict) or part.get("type") != "image_url":
        return None
    image = part.get("image_url")
    return image.get("url", part) if isinstance(image, dict) else part


def _response_tag(value: Any) -> str:
    if isinstance(value, str):
        return "(text)"
    return "(messages)" if isinstance(value, list | tuple) else "(response)"


MAX_MESSAGES = 4096
"""The most messages of a prompt or a response."""

_Messages = Annotated[tuple[Message, ...], Field(max_length=MAX_MESSAGES, fail_fast=True), LIMIT_ERRORS]

Prompt = Annotated[
    Annotated[str, Tag("(text)")] | Annotated[_Messages, Tag("(messages)")],
    Discriminator(lambda value: "(text)" if isinstance(value, str) else "(messages)"),
]
"""A prompt: text, or the messages of a conversation."""


MAX_GIVEN_STEPS = 1000
"""The most steps that a request may give for a response."""


class Response(RequestModel):
    """A response with its length, how its generation ended, and its steps.

    Attributes:
        text: the response: a text, or the messages of a turn.
        tokens: its length in the policy's tokens, which length penalties need.
        stopped: whether it ended by itself; false if it was cut off.
        steps: half-open ranges [start, end) of code points, in order and without overlap, for `judging.steps` "given";
            step N is the Nth of them. They refer to the text, or, in messages, to the contents of the assistant's
            messages, joined by blank lines.
    """

    text: Prompt
    tokens: Count | None = None
    stopped: Flag | None = None
    steps: Annotated[tuple[tuple[Count, Count], ...], Field(max_length=MAX_GIVEN_STEPS, fail_fast=True)] = ()

    @model_validator(mode="after")
    def _steps_are_in_order(self) -> "Response":
        before = 0
        for number, (start, end) in enumerate(self.steps, 1):
            if start < before or end <= start:
                raise ValueError(
                    f"step {number} is [{start}, {end}); a step ends after it starts, and starts where the one before "
                    "it ends or later"
                )
            before = end
        return self


ResponseLike = Annotated[
    Annotated[str, Tag("(text)")] | Annotated[_Messages, Tag("(messages)")] | Annotated[Response, Tag("(response)")],
    Discriminator(_response_tag),
]
"""A response: text, the messages of the policy's turn (tool calls and results included), or an object with its length.
"""


def as_response(given: "str | tuple[Message, ...] | Response") -> Response:
    """Convert any form of a response to a `Response`."""
    if isinstance(given, Response):
        return given
    return Response.model_construct(text=given, tokens=None, stopped=None, steps=())


RubricRef = Annotated[str, StringConstraints(min_length=1, max_length=265)]


def _criteria_as_rubric(given: Any) -> Any:
    return {"criteria": given} if isinstance(given, list | tuple) else given


_CRITERIA_OR_RUBRIC = BeforeValidator(
    _criteria_as_rubric,
    json_schema_input_type=RubricContent | Annotated[list[Criterion], Field(min_length=1, max_length=512)],
)
RubricChoice = Annotated[
    Annotated[RubricRef, Tag("(reference)")] | Annotated[RubricContent, _CRITERIA_OR_RUBRIC, Tag("(inline)")],
    Discriminator(lambda value: "(reference)" if isinstance(value, str) else "(inline)"),
]
"""A rubric: a reference, the rubric itself, or a list of its criteria, which becomes the rubric."""

GroupId = Annotated[str, StringConstraints(min_length=1, max_length=256)]
MAX_RUN_CHARACTERS = 256

RunName = Annotated[str, StringConstraints(min_length=1, max_length=MAX_RUN_CHARACTERS)]


class JudgingRequest(RequestModel):
    """What every request for a judgement may name: its run and step, its rubric, and the judge.

    Attributes:
        reverifies: the run whose recorded responses this request judges again. The ledger keeps it as the origin of
            these records, and a verdict that it has of the same call, by the same judge, is not asked again.
    """

    run: RunName | None = None
    step: Count | None = None
    reverifies: RunName | None = None
    rubric: RubricChoice | None = None
    allow_retired: Annotated[Flag, Option("Service and load")] = False
    judge: Annotated[JudgeName, Option("Service and load")] = DEFAULT_JUDGE


class Group(RequestModel):
    """One prompt and the responses (rollouts) to it.

    Only the judge sees `grounding`, `reference_answer` and `ground_truth`. `rubric` overrides the request's rubric.

    Attributes:
        id: a name of your own, which the answer repeats.
        ground_truth: the right final answer, which programs compare with; only the judge sees it.
        responses: the responses, which are judged one by one.
        rubric: the group's own rubric; the request's by default.
    """

    id: GroupId
    prompt: Prompt
    responses: RequestList[ResponseLike] = Field(min_length=1, max_length=4096)
    grounding: str | None = None
    reference_answer: str | None = None
    ground_truth: str | None = None
    rubric: RubricChoice | None = None


def check_given_steps(groups: Sequence[Group], rule: StepRule) -> None:
    """Check that responses give their own steps if and only if the rule says so.

    Raises:
        ValueError: a response has no steps, or has steps that would be ignored; the message names it.
    """
    for g, group in enumerate(groups):
        for r, response in enumerate(group.responses):
            given = isinstance(response, Response) and bool(response.steps)
            if given and rule != "given":
                raise ValueError(
                    f"groups.{g}.responses.{r} has steps, but judging.steps is {rule!r}; set judging.steps to 'given', "
                    "or leave out the steps of the response"
                )
            if rule == "given" and not given:
                raise ValueError(
                    f"groups.{g}.responses.{r} has no steps, and judging.steps is 'given'; write the response as "
                    '{"text": …, "steps": [[start, end], …]}, or choose another value of judging.steps'
                )
