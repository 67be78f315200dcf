"""`MonitorCallback`: watch a run's monitors while it trains, re-judge a control set, and stop the run on a finding."""

import logging
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, get_args

from accelerate.utils import broadcast_object_list

from trainer_client.client.calls import GroupLike, RubricLike, VerdictKeywords, verdicts_request
from trainer_client.client.clients import Client
from trainer_client.errors import AdjudgeError, NotFound
from trainer_client.trl.callbacks import GenerationCallback, ScoredGeneration
from trainer_client.wire.monitors import MonitorFinding, MonitorName, MonitorReport
from trainer_client.wire.rewards import CONTROL_SUFFIX

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ControlSet:
    """Responses that are judged again and again, to notice when the judge changes.

    Attributes:
        groups: prompts with fixed responses, such as a few dozen of the first step.
        rubric: the rubric, as for `Client.verdicts`; None if each group has its own.
        every_steps: judge them again every so many training steps.
        deadline_s: the seconds that the judge has for all of them.
        options: further options of `Client.verdicts`, which should be those that the run is judged with.
    """

    groups: Sequence[GroupLike]
    rubric: RubricLike | None = None
    every_steps: int = 50
    deadline_s: float = 600.0
    options: Mapping[str, Any] = field(default_factory=dict)


class MonitorCallback(GenerationCallback):
    """Fetches what the monitors find in the run, logs it, and stops training on the findings that you choose.

    It works with every trainer of TRL and transformers whose rewards are judged under the run's name. In a
    `RubricGRPOTrainer` it also logs the numbers of findings, under `monitors/critical`, `…/warning` and `…/info`.
    If the service cannot be asked, it warns and training continues.

    Args:
        client: the client of the run's rewards, or the service's address.
        run: the run's name; defaults to the client's run.
        every_steps: ask every so many training steps.
        stop_on: stop on a finding of these monitors, unless it is only `info`.
        control: responses to judge again every so many steps.

    Attributes:
        report: the last report; None before the first.
        stopped_by: the finding that stopped training, if any.

    Raises:
        ValueError: there is no run, a monitor is unknown, or a number of steps is below 1.
    """

    def __init__(
        self,
        client: Client | str,
        *,
        run: str | None = None,
        every_steps: int = 5,
        stop_on: Collection[MonitorName] = ("shadow_divergence", "gold_drift"),
        control: ControlSet | None = None,
    ) -> None:
        self._client = Client(client, run=run) if isinstance(client, str) else client
        name = self._client.run if run is None else run
        if not name:
            raise ValueError("monitors need the name of the run; pass run, the one that the rewards are judged under")
        if unknown := set(stop_on) - {*get_args(MonitorName)}:
            raise ValueError(f"stop_on has {min(unknown)!r}; use some of {', '.join(get_args(MonitorName))}")
        if every_steps < 1 or (control is not None and control.every_steps < 1):
            raise ValueError("every_steps must be at least 1")
        self._run, self._every_steps, self._stop_on, self._control = name, every_steps, frozenset(stop_on), control
        self._worker = ThreadPoolExecutor(1, "adjudge-control-set")
        self._judging: Future[None] | None = None
        self._known: set[tuple[str, str | None]] = set()
        self.report: MonitorReport | None = None
        self.stopped_by: MonitorFinding | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Judge the control set for the first time."""
        if state.is_world_process_zero:
            self._judge_control(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Fetch the findings, and stop training on all ranks if one of them says so."""
        step = state.global_step
        if state.is_world_process_zero and self._control is not None and step % self._control.every_steps == 0:
            self._judge_control(step)
        if step % self._every_steps:
            return
        stopping: list[MonitorFinding | None] = [None]
        if state.is_world_process_zero:
            stopping = [self._ask()]
        (self.stopped_by,) = broadcast_object_list(stopping)
        if self.stopped_by is not None:
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Wait for the control set."""
        self._worker.shutdown()

    def on_scored(self, generation: ScoredGeneration) -> Mapping[str, float]:
        """Log the numbers of findings of the last report."""
        if self.report is None:
            return {}
        found = [finding.severity for finding in self.report.findings]
        return {f"monitors/{severity}": float(found.count(severity)) for severity in ("critical", "warning", "info")}

    def _ask(self) -> MonitorFinding | None:
        """Fetch a report and log what is new in it; return the finding to stop on."""
        try:
            self.report = self._client.run_monitors(self._run)
        except NotFound:  # the ledger has no step yet
            return None
        except AdjudgeError as error:
            logger.warning("the monitors of run %r cannot be asked, and training continues: %s", self._run, error)
            return None
        for finding in self.report.findings:
            if (key := (finding.monitor, finding.subject)) not in self._known:
                self._known.add(key)
                level = logging.INFO if finding.severity == "info" else logging.WARNING
                logger.log(level, "step %d, %s: %s. %s", finding.step, finding.monitor, finding.message, finding.action)
        stopping = (one for one in self.report.findings if one.monitor in self._stop_on and one.severity != "info")
        finding_to_stop_on = next(stopping, None)
        if finding_to_stop_on is not None:
            logger.error("training stops: %s", finding_to_stop_on.message)
        return finding_to_stop_on

    def _judge_control(self, step: int) -> None:
        """Judge the control set in a thread, unless it is being judged already."""
        if self._control is not None and (self._judging is None or self._judging.done()):
            self._judging = self._worker.submit(self._send_control, self._control, step)

    def _send_control(self, control: ControlSet, step: int) -> None:
        options: VerdictKeywords = {"fresh": True, **control.options}  # type: ignore[typeddict-item]
        run, deadline_s = self._run + CONTROL_SUFFIX, control.deadline_s
        try:
            self._client._send(
                verdicts_request(run, control.groups, control.rubric, options, deadline_s=deadline_s, step=step)
            )
        except AdjudgeError as error:
            logger.warning("the control set of run %r could not be judged at step %d: %s", self._run, step, error)
