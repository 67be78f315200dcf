"""The worksheets that every contender judges: real solutions of real problems, and criteria about them.

A worksheet answers one set of problems with one rollout each, about 2 KB. Its texts contain the set's number, so that a
new set is new to every cache, and marks by which the server recognises the pair in any prompt. This module uses only
the standard library, since it also runs in the peers' environments.
"""

import json
import re
import zlib
from functools import cache
from pathlib import Path

PROBLEMS = 8
RESPONSE_MARK = re.compile(r"Worksheet (\d+-\d+)\b")
CRITERION_MARK = re.compile(r"\bK(\d\d): ")

_GENERAL = (
    "Every calculation in the response is carried out correctly.",
    "Every answer says what the number that it gives stands for.",
    "The response gives exactly one final answer to each of the problems.",
    "No sentence of the response contradicts another one.",
)


@cache
def _rows() -> tuple[dict[str, object], ...]:
    lines = Path("examples/gsm8k.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(json.loads(line) for line in lines[:PROBLEMS])


def question(set_number: int) -> str:
    """Write the problems of a set."""
    problems = "\n".join(f"Problem {n}. {row['prompt']}" for n, row in enumerate(_rows(), 1))
    return f"Set {set_number}. Solve each of these problems.\n{problems}"


def response(set_number: int, number: int) -> str:
    """Write a worksheet of a set; its number determines the rollouts, and no two worksheets are alike."""
    draw = zlib.crc32(b"%d" % number)
    answers = []
    for n, row in enumerate(_rows(), 1):
        rollouts = row["responses"]
        assert isinstance(rollouts, list)
        answers.append(f"Problem {n}.\n{rollouts[draw % len(rollouts)]}")
        draw //= len(rollouts)
    return f"Worksheet {set_number}-{number}.\n\n" + "\n\n".join(answers)


def criteria(count: int) -> list[str]:
    """Write the criteria of a rubric, each with its mark: one per problem's final answer, then general ones."""
    answers = [f"The final answer to problem {n} is {row['ground_truth']}." for n, row in enumerate(_rows(), 1)]
    known = [*answers, *_GENERAL]
    return [f"K{n:02}: {known[n % len(known)]}" for n in range(count)]


def pair(response_mark: str, criterion: int) -> str:
    """Return the key of a judgement: a response and a criterion."""
    return f"{response_mark}/{criterion}"


def truth(judged: str) -> bool:
    """Return the scripted server's verdict on a pair: yes for half of them, deterministically."""
    return bool(zlib.crc32(judged.encode()) & 1)


def fault(judged: str, attempt: int) -> float:
    """Return a number in [0, 1) that decides whether an attempt at a pair is faulty, the same for every contender."""
    return zlib.crc32(f"{judged.partition('-')[2]}#{attempt}".encode()) / 2**32
