"""The rewards of a scored file as a table for a terminal: reward, verdicts, steps."""

from collections import Counter
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from trainer_client.wire import GroupRewards, ResponseReward, Verdict

_VERDICTS_A_LINE = 3


def rewards_table(groups: Sequence[GroupRewards]) -> Table:
    """One row per response.

    A verdict reads `s1 ✓ 0.87 @2`: criterion, satisfied, probability, step; `s1 0.68 (2.7)`: criterion, score, the
    expected grade; or `s1 ✓ math`: criterion, satisfied, the program that says so.
    """
    stepwise = any(response.steps for group in groups for response in group.responses)
    table = Table(show_lines=stepwise, header_style="bold")
    table.add_column("group")
    table.add_column("#", justify="right")
    table.add_column("reward", justify="right")
    table.add_column("verdicts", no_wrap=True)
    if stepwise:
        table.add_column("steps", no_wrap=True)
    for group in groups:
        for index, response in enumerate(group.responses):
            cells = [Text(group.id if index == 0 else ""), Text(str(index + 1)), _reward(response)]
            cells.append(_verdicts(response.verdicts))
            table.add_row(*cells, *([_steps(response)] if stepwise else []))
    return table


def _reward(response: ResponseReward) -> Text:
    if response.reward is None:
        return Text("none", style="bold red")
    style = "yellow" if response.policy_applied or response.status != "scored" else "bold"
    note = f" ({response.policy_applied})" if response.policy_applied else ""
    return Text(f"{response.reward:.3f}{note}", style=style)


def _verdicts(verdicts: Sequence[Verdict]) -> Text:
    cells = [_verdict(verdict) for verdict in verdicts]
    width = max(len(cell) for cell in cells)
    for cell in cells:
        cell.pad_right(width - len(cell))
    rows = [Text("  ").join(cells[i : i + _VERDICTS_A_LINE]) for i in range(0, len(cells), _VERDICTS_A_LINE)]
    return Text("\n").join(rows)


def _verdict(verdict: Verdict) -> Text:
    if verdict.failure is not None:
        return Text(f"{verdict.criterion} ! {verdict.failure.kind}", style="red")
    style = "green" if verdict.score else "dim"
    if verdict.grade is not None:
        text = f"{verdict.criterion} {verdict.score:.2f} ({verdict.grade:.1f})"
    else:
        text = f"{verdict.criterion} {'✓' if verdict.score else '✗'}"
    if verdict.probability is not None:
        text += f" {verdict.probability:.2f}"
    elif verdict.method != "judge":
        text += f" {verdict.method}"
    if verdict.step is not None:
        text += f" @{verdict.step}"
    return Text(text, style=style)


def _steps(response: ResponseReward) -> Text:
    lines = []
    for step in response.steps:
        if step.number == 0 and step.delta is None:
            continue
        name = "whole" if step.number == 0 else f"{step.number} [{step.start}:{step.end}]"
        lines.append(f"{name} {'–' if step.delta is None else f'{step.delta:+.2f}'}")
    return Text("\n".join(lines))


def unscored_reasons(groups: Sequence[GroupRewards]) -> Counter[str]:
    """Why responses have no reward from their verdicts, counted by failure kind; each response counts once."""
    return Counter(
        next((v.failure.kind for v in response.verdicts if v.failure), "no reward")
        for group in groups
        for response in group.responses
        if response.status == "unscored"
    )
