"""What a soak is made of: links that part, faults in order, seconds that are as before, and answers that are wrong."""

import math
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import islice
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any

import pytest
from benchmarks.soak.expected_answers import ExpectedAnswer, compare_answers
from benchmarks.soak.faults import FAULTS, Fault, order
from benchmarks.soak.figures import by_kind, p99, recovered_s
from benchmarks.soak.links import Network, port_to_keep
from benchmarks.soak.trainer import next_beat
from benchmarks.soak.workload import CRITERIA, RESPONSES, bulk_subjects, group_of, subject_of

PATIENCE_S = 20.0


class Echo(BaseRequestHandler):
    """Says what it hears."""

    def handle(self) -> None:
        with suppress(OSError):
            while data := self.request.recv(1000):
                self.request.sendall(data)


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that says what it hears."""
    ThreadingTCPServer.daemon_threads = True
    with ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.fixture
def network() -> Iterator[Network]:
    """A network without links."""
    with closing(Network()) as made:
        yield made


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE_S)


def echoed(connection: socket.socket, text: bytes) -> bytes:
    connection.sendall(text)
    return connection.recv(1000)


def test_a_link_carries_what_is_said_and_that_an_end_is_gone(network: Network, echo: int) -> None:
    with connected(network.link("it", echo)) as connection:
        assert echoed(connection, b"hello") == b"hello"
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1000) == b""


def test_a_cut_link_resets_connections_and_refuses_new_ones_until_it_heals(network: Network, echo: int) -> None:
    port = network.link("it", echo)
    with connected(port) as connection:
        assert echoed(connection, b"hello") == b"hello"
        network.become("it", "cut")
        with pytest.raises(ConnectionResetError):
            connection.recv(1000)
    with pytest.raises(ConnectionRefusedError):
        connected(port)
    network.heal()
    with connected(port) as connection:
        assert echoed(connection, b"again") == b"again"


def test_a_frozen_link_holds_what_is_said_and_hands_it_over_when_it_heals(network: Network, echo: int) -> None:
    port = network.link("it", echo)
    with connected(port) as old:
        assert echoed(old, b"hello") == b"hello"
        network.become("it", "frozen")
        with connected(port) as new:
            for connection in (old, new):
                connection.sendall(b"held")
                connection.settimeout(0.2)
                with pytest.raises(TimeoutError):
                    connection.recv(1000)
                connection.settimeout(PATIENCE_S)
            network.heal()
            assert [connection.recv(1000) for connection in (old, new)] == [b"held"] * 2


def test_a_link_that_forgets_carries_new_connections_only_and_tells_nobody(network: Network, echo: int) -> None:
    port = network.link("it", echo)
    with connected(port) as old:
        assert echoed(old, b"hello") == b"hello"
        network.become("it", "frozen")
        old.sendall(b"held")
        network.become("it", "open", forget=True)
        with connected(port) as new:
            assert echoed(new, b"again") == b"again"
        old.settimeout(0.2)
        with pytest.raises(TimeoutError):
            old.recv(1000)


def test_connections_go_to_the_targets_by_turns_and_past_one_that_refuses(network: Network, echo: int) -> None:
    port = network.link("it", port_to_keep(), echo)
    for _ in range(3):
        with connected(port) as connection:
            assert echoed(connection, b"hello") == b"hello"


def test_every_kind_of_fault_comes_before_any_comes_twice_and_a_seed_gives_one_order() -> None:
    kinds = list(FAULTS)
    drawn = list(islice(order(7, kinds), 2 * len(kinds)))
    assert set(Counter(kind for kind, _ in drawn).values()) == {2}
    assert {kind for kind, _ in drawn[: len(kinds)]} == set(kinds)
    assert drawn == list(islice(order(7, kinds), 2 * len(kinds)))
    assert {n for _, n in drawn} == {1, 2}


def test_requests_are_as_before_from_the_first_window_after_which_none_is_slow() -> None:
    fault = Fault("a judge killed", "judge-1", 10.0, 20.0)
    slow_until = 23.5
    requests = [(began / 10, 3.0 if 10.0 <= began / 10 < slow_until else 0.5) for began in range(600)]
    assert recovered_s(requests, fault, 50.0, 0.5) == 4.0
    assert recovered_s([(began, 3.0) for began, _ in requests], fault, 50.0, 0.5) == math.inf
    assert recovered_s([], fault, 50.0, 0.5) == math.inf
    (row,) = by_kind(requests, [fault], 50.0, 0.5)
    assert (row["p99 s under it"], row["p99 s from 10 s after"], row["recovered s, most"]) == (3.0, 0.5, 4.0)
    assert (row["p99 as before then"], row["none slow after 10 s"]) == (1, 1)


def test_one_slow_request_of_many_is_told_and_does_not_move_the_99th_percentile() -> None:
    fault = Fault("nothing", "nobody", 10.0, 20.0)
    requests = [(began / 10, 3.0 if began == 400 else 0.5) for began in range(600)]
    (row,) = by_kind(requests, [fault], 50.0, 0.5)
    assert (row["p99 as before then"], row["none slow after 10 s"]) == (1, 0)
    (slow,) = by_kind([(began, 3.0) for began, _ in requests], [fault], 50.0, 0.5)
    assert (slow["p99 as before then"], slow["none slow after 10 s"]) == (0, 0)


def test_the_99th_percentile_is_the_value_that_one_in_a_hundred_exceeds() -> None:
    assert p99([float(n) for n in range(1, 101)]) == 99.0
    assert math.isnan(p99([]))


def test_a_group_is_the_same_whenever_it_is_asked_for_and_some_are_asked_for_twice() -> None:
    assert group_of(1_000_007) == group_of(1_000_007)
    assert len(group_of(1)["responses"]) == RESPONSES
    asked = [subject_of(1, request) for request in range(1, 101)]
    assert len(set(asked)) < len(asked)
    assert not {subject_of(1, n) for n in range(100)} & {subject_of(2, n) for n in range(100)}
    assert not set(bulk_subjects(1, 9)) & set(bulk_subjects(2, 9))


KNOWN = {1: ExpectedAnswer([1.0] + [0.0] * (RESPONSES - 1), ["1" * CRITERIA] + ["0" * CRITERIA] * (RESPONSES - 1))}


def answer(verdicts: str, reward: float | None, failures: dict[str, int] | None = None) -> dict[str, Any]:
    """An answer about group 1 that says this of its first response, and what is right of the others."""
    right = KNOWN[1]
    return {
        "subject": 1,
        "rewards": [reward, *right.rewards[1:]],
        "verdicts": [verdicts, *right.verdicts[1:]],
        "failures": failures or {},
    }


def test_right_answers_and_named_failures_are_not_held_against_anybody() -> None:
    about = compare_answers([answer("1111", 1.0), answer("1-11", None, {"engine": 1})], KNOWN)
    assert about.violations == []
    assert about.failures == {"engine": 1}


@pytest.mark.parametrize(
    "made_up",
    [
        answer("1011", 0.7),
        answer("1111", 0.9),
        answer("1111", None),
        answer("1-11", 0.0, {"engine": 1}),
        answer("1-11", None),
        answer("111", 1.0),
        answer("1?11", 1.0),
    ],
    ids=[
        "another verdict",
        "another reward",
        "no reward",
        "a reward of a failure",
        "no name",
        "too few",
        "no yes or no",
    ],
)
def test_whatever_is_made_up_is_seen(made_up: dict[str, Any]) -> None:
    assert compare_answers([made_up], KNOWN).violations


@pytest.mark.parametrize(
    ("now", "beat"),
    [(10.5, 12.0), (12.0, 12.0), (12.1, 14.0), (19.9, 20.0)],
    ids=["early", "in time", "late", "very late"],
)
def test_who_is_late_waits_for_the_next_beat_of_its_own(now: float, beat: float) -> None:
    assert next_beat(10.0, 2.0, now) == beat


def test_without_a_period_the_next_request_begins_at_once() -> None:
    assert next_beat(10.0, 0.0, 17.0) == 17.0
