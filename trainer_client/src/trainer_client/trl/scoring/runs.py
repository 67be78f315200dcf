"""The run that the requests of reward functions are recorded under."""

import logging
from datetime import UTC, datetime
from urllib.parse import urlencode

from trainer_client import AsyncClient
from trainer_client.trl.scoring.context import TrainerContext
from trainer_client.trl.scoring.ranks import CollectiveOrder

logger = logging.getLogger(__name__)


class RunNaming:
    """Names the run of a client, and says once where the console shows it."""

    def __init__(self) -> None:
        self._made: dict[str, str] = {}
        self._linked: set[str] = set()

    async def name(self, client: AsyncClient, context: TrainerContext, order: CollectiveOrder) -> None:
        """Choose the client's own run, or else the trainer's, or one of output folder and time.

        All ranks take part, and agree on the name of the lowest.
        """
        name, given = context.run_name, client.settings.run
        if name is None and given is None and context.is_run:
            own = self._made.get(context.output_dir) or context.make_run_name(datetime.now(UTC))
            agreed = await order.all_gather(own)
            # another function of the trainer may have chosen it meanwhile
            name = self._made[context.output_dir] = context.run_name or agreed[0]
            context.save_run(name)
        run = client.run = given or name
        if run is not None and context.is_run and run not in self._linked:
            self._linked.add(run)
            if context.is_main_process:
                # at this level, because Python shows nothing below it unless logging is configured
                address = f"{client.base_url.rstrip('/')}/console/run?{urlencode({'run': run})}"
                logger.warning("rewards are recorded as run %r: %s", run, address)
                context.link_in_trackers(address)
