"""Find the criteria of a run that tell its responses apart no more, so that dropout may leave them out."""

import logging

from judge_server.errors import invalid_field
from judge_server.intervals import wilson
from judge_server.ports import LedgerReader
from trainer_client.wire import RewardRequest

log = logging.getLogger("adjudge")

WINDOW_GROUPS = 128
"""How many of the last groups that were judged by a criterion say whether it is saturated."""

SATURATED_FROM = 0.9
"""A criterion is saturated if all responses meet it in at least this share of these groups, by the 95% interval."""


async def with_saturated_criteria(
    request: RewardRequest, project_id: str, ledger: LedgerReader | None
) -> RewardRequest:
    """Return the request with the names of the saturated criteria, if its dropout asks for them.

    Steps from the request's own on are not read, so that its verdicts do not decide which of them are asked. If the
    ledger cannot be read, no criterion is left out.

    Raises:
        InvalidRequest: the service keeps no ledger.
    """
    dropout = request.dropout
    if dropout is None or dropout.saturated is not True:
        return request
    if ledger is None:
        raise invalid_field(
            "dropout.saturated",
            "this service keeps no ledger, in which saturated criteria could be found; name them, or leave it out",
        )
    assert request.run is not None
    assert request.step is not None
    run = request.reverifies or request.run
    try:
        found = await ledger.criterion_groups(project_id, run, request.step, WINDOW_GROUPS)
    except ConnectionError as error:
        log.warning("the ledger cannot be read, so saturated criteria are judged in every group: %s", error)
        found = {}
    saturated = tuple([name for name, (met, groups) in found.items() if wilson(met, groups)[0] >= SATURATED_FROM])
    return request.model_copy(update={"dropout": dropout.model_copy(update={"saturated": saturated})})
