"""`python -m benchmarks.client_step`: measure the client's cost in a training step, without the wait for the judge.

The step has 64 prompts with 8 responses of 1,000 tokens each, under 12 criteria whose verdicts name steps, as SRaR
trains. The answer is recorded once from a service with the scripted engine and then replayed by an in-memory transport
that waits as long as a judge would; this wait is subtracted. The tokens of the steps are aligned during the wait and,
for comparison, after it. The cost of HTTP is measured separately, with a server on a loopback port that sends the same
bytes at once; the server's CPU time is subtracted.
"""

import argparse
import asyncio
import gc
import pickle
import random
import socket
import statistics
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import IO, Any

import httpx2
import torch
from rich.progress import track
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from benchmarks.load import spread
from benchmarks.report import publish
from benchmarks.server import running_service
from trainer_client import AsyncClient
from trainer_client.client.answers import RewardStreamParser
from trainer_client.client.calls import rewards_request
from trainer_client.rows.reading import RowBatch, RowReader
from trainer_client.trl import RubricReward, ScoredGeneration, TrainingMeasures
from trainer_client.trl.methods import Rollout, ScoredResponse, Srar
from trainer_client.trl.rollouts.batch import AdvantageBatch, StepReader
from trainer_client.trl.rollouts.generation import GeneratedRows
from trainer_client.trl.scoring.results import SentResponse, reward_metrics, verdict_summaries
from trainer_client.wire import Group
from trainer_client.wire.groups import Response

Parts = Mapping[str, Callable[[], Any]]

TOTAL = ("RubricReward", "HTTP on loopback", "steps read", "rollouts gathered", "advantages")
"""The parts that add up to a step; all others are contained in these or are not in every step."""
PLACED, CALL_ALONE = "tokens placed, during the wait", "RubricReward, if they are placed after it"
BEFORE = "whole step, if they are placed after it"
WAITING = ("RubricReward", CALL_ALONE)
WAIT_S = 0.25
"""The simulated time of the judge, longer than the work that overlaps it."""
COLLECT_RARELY = (100_000, 20, 100)
"""The garbage collection thresholds that `docs/how-to/use-adjudge-with-trl.md` recommends."""

KINDS = ("suggest", "pitfall", "bonus")
STEPS = 8
_WORDS = 4000
_LETTERS = "etaoinshrdlucmfwypvbgk"
_PIECE = 1 << 16
_NDJSON = "application/x-ndjson"
_HEAD = f"HTTP/1.1 200 OK\r\nContent-Type: {_NDJSON}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()


@dataclass(frozen=True)
class Step:
    """The arguments of a reward function, in rows, and the tokenizer of the tokens."""

    tokenizer: PreTrainedTokenizerFast
    prompts: list[str]
    completions: list[str]
    completion_ids: list[list[int]]
    columns: dict[str, list[Any]]
    group_size: int

    @property
    def rows(self) -> int:
        """The number of responses."""
        return len(self.completions)


def make_step(prompts: int, group_size: int, tokens: int, criteria: int, seed: int = 0) -> Step:
    """Generate a step whose responses are solutions in steps that end with EOS after about `tokens` tokens."""
    draw = random.Random(seed)
    words = ["".join(draw.choices(_LETTERS, k=draw.choice((2, 3, 4, 5, 6, 8)))) for _ in range(_WORDS)]
    tokenizer = _tokenizer(" ".join(draw.choices(words, k=100_000)))
    texts, ids = [], []
    for _ in range(prompts * group_size):
        text = _solution(draw, words, tokens)
        own = tokenizer(text)["input_ids"][: tokens - 1]
        texts.append(tokenizer.decode(own))
        ids.append([*own, tokenizer.eos_token_id])
    rubric = [
        {
            "id": f"c{number}",
            "kind": KINDS[number % len(KINDS)],
            "description": f"The response carries out part {number} of the argument and says why it holds.",
        }
        for number in range(criteria - 1)
    ]
    rubric.append({"id": "answer", "kind": "answer", "description": "The answer is 14."})
    questions = [f"Problem {number}: {' '.join(draw.choices(words, k=60))}?" for number in range(prompts)]
    rows = [question for question in questions for _ in range(group_size)]
    columns: dict[str, list[Any]] = {"rubric": [rubric] * len(rows), "ground_truth": ["14"] * len(rows)}
    return Step(tokenizer, rows, texts, ids, columns, group_size)


def _solution(draw: random.Random, words: list[str], tokens: int) -> str:
    each = tokens // STEPS  # a word is a token or more
    steps = (f"### Step {number}: {' '.join(draw.choices(words, k=each))}." for number in range(1, STEPS + 1))
    return "\n".join(steps)


def _tokenizer(text: str) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(
        [text], trainers.BpeTrainer(vocab_size=8000, show_progress=False, initial_alphabet=alphabet)
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>")


class ReplayTransport(httpx2.AsyncBaseTransport):
    """Forwards the first request to the service and answers every further request with the same bytes.

    Attributes:
        request: the body of the first request.
        answer: the service's answer to it.
        wait_s: the delay of each answer, which simulates the judge.
    """

    def __init__(self) -> None:
        self.request = self.answer = b""
        self.wait_s = 0.0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Answer a request."""
        if not self.answer:
            self.request = await request.aread()
            async with httpx2.AsyncHTTPTransport() as service:
                response = await service.handle_async_request(request)
                content = await response.aread()
            if response.status_code != 200:
                raise RuntimeError(f"HTTP {response.status_code}: {content[:300]!r}")
            self.answer = content
        await asyncio.sleep(self.wait_s)
        return httpx2.Response(200, headers={"Content-Type": _NDJSON}, stream=_Pieces(self.answer))


class _Pieces(httpx2.AsyncByteStream):
    def __init__(self, content: bytes) -> None:
        self._content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._content), _PIECE):
            yield self._content[start : start + _PIECE]


@dataclass
class Instant:
    """A server that answers without delay: its URL, and the CPU seconds that it has used."""

    url: str
    seconds: float = 0.0


@contextmanager
def instant_server(answer: bytes) -> Iterator[Instant]:
    """Serve an answer on a loopback port, one connection at a time, with a chunk per line like the service."""
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(line), line) for line in answer.splitlines(keepends=True))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = Instant(f"http://127.0.0.1:{listening.getsockname()[1]}")

        callers: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:  # the socket was shut down
                    return
                callers[:] = [connection]
                with connection, connection.makefile("rb") as incoming:
                    while _read(incoming):
                        connection.sendall(_HEAD + chunks)
                        server.seconds = time.thread_time()  # set before the caller can see the end of the answer
                        connection.sendall(b"0\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            for connection in callers:
                with suppress(OSError):  # the caller has closed it
                    connection.shutdown(socket.SHUT_RDWR)
            thread.join()


def _read(incoming: IO[bytes]) -> bool:
    """Read a request to its end; False if the caller has closed the connection."""
    length = 0
    while line := incoming.readline().strip().lower():
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    return length > 0 and len(incoming.read(length)) == length


async def exchange(client: httpx2.AsyncClient, url: str, body: bytes) -> int:
    """Send a body, read the answer without parsing it, and return its size in bytes."""
    async with client.stream("POST", url, content=body, headers={"Accept": _NDJSON}) as response:
        return sum([len(piece) async for piece in response.aiter_bytes()])


class Trainer:
    """A stand-in for TRL's trainer, with the attributes that the client uses."""

    log_completions = False

    def __init__(self, step: Step) -> None:
        self.reward_funcs: list[Any] = []
        self.eos_token_ids = [step.tokenizer.eos_token_id]
        self._tokenizer = step.tokenizer

    def log_metric(self, name: str, value: float) -> None:
        """Ignore the value."""

    def log_extra(self, column: str, values: Sequence[str]) -> None:
        """Ignore the value."""


def reward_call(runner: asyncio.Runner, reward: RubricReward, step: Step) -> Callable[[], list[float | None]]:
    """Return a function that calls the reward function as the trainer does."""
    trainer = Trainer(step)
    logs = {"log_metric": trainer.log_metric, "log_extra": trainer.log_extra}

    def call() -> list[float | None]:
        return runner.run(reward(step.prompts, step.completions, step.completion_ids, **logs, **step.columns))

    return call


def parts(step: Step, reward: RubricReward, call: Callable[[], Any], replay: ReplayTransport) -> Parts:
    """Return the parts to measure in memory, by name, in the order of a step; sub-parts follow their part."""
    method, client = Srar(), AsyncClient("http://judge.test", "run")
    trainer = SimpleNamespace(method=method, rubric_reward=reward, _tokenizer=step.tokenizer)
    reader = StepReader(trainer)
    rewards = call()
    assert reward.last is not None
    rows = reward.last.rows
    rollouts = [Rollout(tokens=len(ids), reward=r) for ids, r in zip(step.completion_ids, rewards, strict=True)]
    read = reader.read(rollouts, GeneratedRows([], [], step.completion_ids))
    ids = torch.zeros(step.rows, max(map(len, step.completion_ids)), dtype=torch.long)
    stop_token_ids = {step.tokenizer.eos_token_id}
    scored = ScoredGeneration(rewards, {}, step.group_size, step.completions, 0, None, True)
    measures = TrainingMeasures()
    sent = [SentResponse.of(Response(text=row.text), {}) for row in rows]

    def read_all() -> RowBatch:
        reader = RowReader(stop_token_ids=stop_token_ids)
        return reader.read(step.prompts, step.completions, step.completion_ids, step.columns)

    grouped = read_all()
    prepared = rewards_request("rewards", {"groups": _groups(grouped)}, "stepwise", {})

    def call_alone() -> None:
        reward.overlapped_work = None
        call()
        reward.overlapped_work = reader.place

    def advantages() -> None:
        batch = AdvantageBatch.from_rollouts(method, read, step.group_size)
        batch.tensor(slice(0, step.rows), ids)
        _ = batch.means

    return {
        "RubricReward": call,
        "- rows to groups": read_all,
        "- request to JSON": lambda: client.stream_rewards(_groups(grouped), None, "stepwise"),
        "- answer from JSON": lambda: [*map(RewardStreamParser("", prepared).read, replay.answer.split(b"\n"))],
        "- metrics": lambda: reward_metrics(rows, [], 0.0, set()),
        PLACED: lambda: list(reader.place(sent, step.completion_ids)),
        "steps read": lambda: reader.read(rollouts, GeneratedRows([], [], step.completion_ids)),
        "- their deltas": lambda: [
            method.deltas(ScoredResponse(row.answer, row.criteria)) for row in rows if row.answer and row.criteria
        ],
        "rollouts gathered": lambda: pickle.loads(pickle.dumps(read)),
        "advantages": advantages,
        CALL_ALONE: call_alone,
        "table of completions, where wanted": lambda: verdict_summaries(rows),
        "TrainingMeasures, where wanted": lambda: measures.on_scored(scored),
    }


def _groups(rows: RowBatch) -> list[Group]:
    return [
        Group.model_validate(
            {**group.fields, "rubric": group.rubric, "responses": [rows.responses[row] for row in group.rows]}
        )
        for group in rows.groups
    ]


def measure(parts: Parts, http: Callable[[], float], repeats: int) -> dict[str, list[float]]:
    """Measure the milliseconds of each part and of the whole step, `repeats` times."""
    times: dict[str, list[float]] = {name: [] for name in ("whole step", *parts, "HTTP on loopback", BEFORE)}
    for repeat in track(range(repeats + 1), "measuring", transient=True):
        milliseconds = {"HTTP on loopback": http()}
        for name, part in parts.items():
            started = time.perf_counter()
            part()
            seconds = time.perf_counter() - started
            milliseconds[name] = 1000 * (seconds - WAIT_S if name in WAITING else seconds)
        milliseconds["whole step"] = sum(milliseconds[name] for name in TOTAL)
        milliseconds[BEFORE] = (
            milliseconds["whole step"] - milliseconds["RubricReward"] + milliseconds[CALL_ALONE] + milliseconds[PLACED]
        )
        for name, value in milliseconds.items() if repeat else ():  # the first repeat is a warm-up
            times[name].append(value)
    return times


def _ratio(times: Mapping[str, Sequence[float]]) -> float:
    return statistics.median(now / before for now, before in zip(times["whole step"], times[BEFORE], strict=True))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--group", type=int, default=8, help="responses per prompt")
    parser.add_argument("--tokens", type=int, default=1000, help="tokens per response")
    parser.add_argument("--criteria", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--collect-rarely", action="store_true", help=f"gc.set_threshold{COLLECT_RARELY}")
    given = parser.parse_args(arguments)
    if given.collect_rarely:
        gc.set_threshold(*COLLECT_RARELY)
    step = make_step(given.prompts, given.group, given.tokens, given.criteria)
    replay = ReplayTransport()
    with asyncio.Runner() as runner:
        with running_service("scripted://hash") as (url, _):
            client = AsyncClient(url, transport=replay)
            reward = RubricReward(client, deadline_s=600.0).with_defaults(**Srar().reward_defaults)
            call = reward_call(runner, reward, step)
            call()
        replay.wait_s = WAIT_S
        with instant_server(replay.answer) as server:
            caller = httpx2.AsyncClient()

            def http() -> float:
                started, used = time.perf_counter(), server.seconds
                runner.run(exchange(caller, f"{server.url}/v1/rewards", replay.request))
                return 1000 * (time.perf_counter() - started - (server.seconds - used))

            times = measure(parts(step, reward, call, replay), http, given.repeats)
            runner.run(caller.aclose())
    figures = [{"part": name, **spread("ms", own), "mean": statistics.mean(own)} for name, own in times.items()]
    publish(
        "client_step",
        f"The client's part of a step: {given.prompts} prompts x {given.group} responses of {given.tokens:,} tokens x "
        f"{given.criteria} criteria, step by step; {given.repeats} times",
        figures,
        [
            f"the request has {len(replay.request) / 1e6:.1f} MB, the answer {len(replay.answer) / 1e6:.1f} MB",
            f"whole step: {' + '.join(TOTAL)}",
            f"RubricReward: without the {1000 * WAIT_S:.0f} ms of waiting for the judge",
            f"whole step / the same with the tokens placed after the wait: {_ratio(times):.2f}, median of the repeats",
            "gathered: pickled and unpickled, as for other ranks",
            "the longest times, and so the means, include Python's garbage collection of the whole process"
            + (", rare here" if given.collect_rarely else ""),
        ],
    )


if __name__ == "__main__":
    main()
