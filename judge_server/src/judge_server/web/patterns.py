"""Regular expressions that a request brings along: refused before anything else is done, compiled in a worker process.

Compiling one may take minutes, so that never happens on the event loop. Patterns of published rubrics were looked at
when those were published.
"""

import asyncio
from collections.abc import Iterator, Sequence

from judge_server.checks import Checker, CheckOwner
from judge_server.errors import Overloaded
from judge_server.web.problems import invalid_request
from trainer_client.wire import Criterion, FieldError, RubricContent
from trainer_client.wire.verification import RegexVerification

PATTERN_TIMEOUT_S = 30.0
"""How long a request waits at most until a worker has compiled its patterns."""


async def refuse_unusable_patterns(
    checker: Checker,
    project_id: str,
    rubric: str | RubricContent | None,
    own: Sequence[str | RubricContent | None] = (),
    *,
    items: str = "groups",
    deadline_s: float = PATTERN_TIMEOUT_S,
) -> None:
    """Look at the patterns of a request's rubric and of those of its groups; criteria of one's own are in either.

    Raises:
        InvalidRequest: one of them is not a regular expression, or takes too long to compile; says which.
        Overloaded: the workers had no turn for them in time.
    """
    found = [*_patterns("rubric.", rubric)]
    for place, of_item in enumerate(own):
        found += _patterns(f"{items}.{place}.rubric.", of_item)
    await _reject_unusable(checker, project_id, found, deadline_s)


async def refuse_unusable_criteria(checker: Checker, project_id: str, rubric: RubricContent) -> None:
    """Look at the patterns of a rubric that is to be published; raises as `refuse_unusable_patterns` does."""
    await _reject_unusable(checker, project_id, [*_patterns("", rubric)], PATTERN_TIMEOUT_S)


async def _reject_unusable(
    checker: Checker, project_id: str, found: Sequence[tuple[str, str]], deadline_s: float
) -> None:
    if not found:
        return
    deadline = asyncio.get_running_loop().time() + min(deadline_s, PATTERN_TIMEOUT_S)
    owner = CheckOwner(f"{project_id}\0patterns")
    try:
        unusable = await checker.first_unusable([pattern for _, pattern in found], deadline, owner)
    except TimeoutError:
        raise Overloaded(
            "the programs that verify criteria have too much to do to compile this request's patterns; come back later",
            retry_after_s=5,
        ) from None
    if unusable is not None:
        place, why = unusable
        raise invalid_request((FieldError(field=found[place][0], message=why),))


def _patterns(where: str, rubric: str | RubricContent | None) -> Iterator[tuple[str, str]]:
    criteria: Sequence[Criterion] = rubric.criteria if isinstance(rubric, RubricContent) else ()
    for place, criterion in enumerate(criteria):
        if isinstance(criterion.verification, RegexVerification):
            yield f"{where}criteria.{place}.verification.pattern", criterion.verification.pattern
