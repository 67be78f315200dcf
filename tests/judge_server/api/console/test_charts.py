"""Parts of the console that need no service: ranges of axes, curves, and texts in parts."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from judge_server.api.console.charts import (
    Flag,
    Label,
    Mark,
    Point,
    axis_labels,
    curve,
    nice_range,
    round_steps,
    sparkline,
)
from judge_server.api.console.responses import read_text


@given(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9), st.booleans())
def test_a_range_of_round_numbers_covers_its_values(one: float, other: float, whole: bool) -> None:
    low, high = min(one, other), max(one, other)
    first, last, ticks = nice_range(low, high, whole=whole)
    slack = 1e-6 * max(1.0, abs(low), abs(high))
    assert first - slack <= low <= high <= last + slack
    assert 2 <= len(ticks) <= 9
    assert ticks == sorted(ticks)


@given(st.integers(0, 10**9), st.integers(0, 10**6))
def test_ticks_of_steps_are_round_and_within_the_range(first: int, span: int) -> None:
    ticks = round_steps(first, first + span)
    assert ticks == [tick for tick in ticks if first <= tick <= first + span]
    assert min(2, span + 1) <= len(ticks) <= 6
    distances = {b - a for a, b in itertools.pairwise(ticks)}
    assert len(distances) <= 1
    for distance in distances:
        assert str(distance).rstrip("0") in ("1", "2", "5")
        assert all(tick % distance == 0 for tick in ticks)


@given(st.integers(1, 200), st.integers(2, 6))
def test_axis_labels_include_both_ends_and_are_evenly_spaced(count: int, most: int) -> None:
    names = [str(i) for i in range(count)]
    shown = [int(name) for name in axis_labels(names, most)]
    assert shown[0] == 0
    assert shown[-1] == count - 1
    assert len({b - a for a, b in itertools.pairwise(shown)}) <= 1


@given(st.lists(st.none() | st.floats(-1e6, 1e6), max_size=50))
def test_any_values_can_be_drawn(values: list[float | None]) -> None:
    assert "nan" not in sparkline(values, "x")
    if any(value is not None for value in values):
        marks = [Mark("<t>", "/a?b=1&c=2")] * len(values)
        points = [Point(10.0 * i, 10.0 * i, 10.0 * i + 10, value, 1.0) for i, value in enumerate(values)]
        flags = [Flag(5.0, "<1>", "critical", Mark("<t>", "/f"))]
        drawn = curve(points, marks, [Label(0.0, "<a>")], "<n>", beside=[("other", points[:1])], flags=flags)
        assert "<1>" not in drawn.flags
        assert "<t>" not in drawn.svg
        assert "<n>" not in drawn.svg
        assert drawn.svg.count('href="/a?b=1&amp;c=2"') == len(values)


def test_a_long_text_and_a_conversation_are_shown_in_parts() -> None:
    assert read_text('"abcdef"', 4)[0] == ("", "abcd", 2)
    message = '[{"role":"assistant","content":"x","reasoning_content":"y","tool_calls":[{"id":"1"}]}]'
    assert [part.role for part in read_text(message, None)] == [
        "assistant, reasoning",
        "assistant",
        "assistant, tool calls",
    ]
    assert read_text(None, 4) == []
