"""Groups: a prompt, the responses (rollouts) to it, and what the judge may see beside them."""

from typing import Annotated

from pydantic import Discriminator, Field, StringConstraints, Tag

from trainer_client.wire.base import RequestList, RequestModel
from trainer_client.wire.messages import Prompt, ResponseLike
from trainer_client.wire.rubrics import RubricContent

RubricRef = Annotated[str, StringConstraints(min_length=1, max_length=265)]
RubricChoice = Annotated[
    Annotated[RubricRef, Tag("(reference)")] | Annotated[RubricContent, Tag("(inline)")],
    Discriminator(lambda value: "(reference)" if isinstance(value, str) else "(inline)"),
]
"""A rubric by reference, or inline."""
GroupId = Annotated[str, StringConstraints(min_length=1, max_length=256)]
RunName = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class Group(RequestModel):
    """One prompt and the responses (rollouts) to it.

    `grounding`, `reference_answer` and `ground_truth` are shown to the judge only. `rubric` overrides the request's.
    """

    id: GroupId
    prompt: Prompt
    responses: RequestList[ResponseLike] = Field(min_length=1, max_length=4096)
    grounding: str | None = None
    reference_answer: str | None = None
    ground_truth: str | None = None
    rubric: RubricChoice | None = None
