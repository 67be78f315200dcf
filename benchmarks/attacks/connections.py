"""Attacks on connections and on the service's disk: idle, slow and malformed peers, disconnects, spool faults."""

import asyncio
import json
import socket
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from benchmarks.attacks.cases import criterion, request
from benchmarks.attacks.target import Attack, Target

IDLE, SLOW = 400, 50
_HOLD_S = 8.0
_DRIP_S = 0.5
_LARGE = "/static-offline-docs/swagger-ui-bundle.js"


def head(on: Target, *lines: str) -> bytes:
    """Build the head of a POST request with the attacker's key and further header lines."""
    usual = ("Host: localhost", f"Authorization: Bearer {on.key}", "Content-Type: application/json")
    return "\r\n".join(["POST /v1/rewards HTTP/1.1", *usual, *lines, "", ""]).encode()


async def idle_connections(on: Target) -> None:
    """Open 400 connections and send nothing."""
    async with AsyncExitStack() as held:
        for _ in range(IDLE):
            with suppress(OSError):
                await held.enter_async_context(on.connection())
                on.counts["connected"] += 1
        await asyncio.sleep(_HOLD_S)


async def slow_senders(on: Target) -> None:
    """Send a head or a body one byte at a time, on 50 connections."""

    async def drip(sent: bytes) -> None:
        with suppress(OSError):
            async with on.connection() as (reader, writer):
                writer.write(sent)
                answer = asyncio.ensure_future(on.count_answer(reader, "a slow sender"))
                try:
                    with suppress(OSError):
                        while not answer.done():
                            writer.write(b" ")
                            await writer.drain()
                            await asyncio.sleep(_DRIP_S)
                    await answer
                finally:
                    answer.cancel()

    starts = (
        head(on, "Content-Length: 100000") + b"{",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
        head(on, "Transfer-Encoding: chunked") + b"3e8\r\n{",
    )
    await asyncio.wait([asyncio.ensure_future(drip(starts[n % 3])) for n in range(SLOW)], timeout=_HOLD_S)


async def slow_readers(on: Target) -> None:
    """Request megabytes and read nothing, on 50 connections."""
    requests = f"GET {_LARGE} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * 20
    async with AsyncExitStack() as held:
        for _ in range(SLOW):
            with suppress(OSError):
                _, writer = await held.enter_async_context(on.connection())
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                writer.transport.pause_reading()  # type: ignore[attr-defined] # every socket's transport has it
                writer.write(requests)
                on.counts["connected"] += 1
        await asyncio.sleep(_HOLD_S)


async def trailers(on: Target) -> None:
    """Send trailers after the body: ordinary, forbidden, many, and very long ones."""
    chunked = head(on, "Transfer-Encoding: chunked", "Connection: close") + b"1\r\n{\r\n1\r\n}\r\n0\r\n"
    lines = (
        b"Content-Type: text/plain\r\n",
        b"A: b\r\n" * 1000,
        b"A: " + b"b" * 200_000 + b"\r\n",
        b"Authorization: x\r\n",
    )
    await on.at_once(*(on.raw(chunked + line + b"\r\n") for line in lines))


async def broken_heads(on: Target) -> None:
    """Send heads that are too large, ambiguous, or not HTTP."""
    sent = (
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /%00 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 2000 + b"\r\n",
        b"GET / HTTP/1.1\r\nA: " + b"a" * 1_000_000,
        b"\x16\x03\x01\x02\x00\x01\x00" * 100 + b"\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        head(on, "Content-Length: 1", "Transfer-Encoding: chunked"),
        head(on, "Content-Length: 1", "Content-Length: 2"),
        head(on, "Content-Length: -1"),
        head(on, "Content-Length: " + "9" * 100),
        head(on, "Transfer-Encoding: chunked") + b"fffffffffffffffff\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, close\r\nUpgrade: h2c\r\n\r\n",
    )
    await on.at_once(*(on.raw(one) for one in sent))


async def callers_who_leave(on: Target) -> None:
    """Send valid requests and disconnect soon after, or in the middle of the body."""
    criteria = [criterion(f"c{n}") for n in range(8)]
    for _ in range(20):
        responses = [f"Answer {on.draw.random()}" for _ in range(16)]
        body = json.dumps(request(criteria, *responses)).encode()
        whole = head(on, f"Content-Length: {len(body)}") + body
        with suppress(OSError):
            async with on.connection() as (_, writer):
                writer.write(whole if on.draw.random() < 0.7 else whole[: on.draw.randrange(len(whole))])
                await writer.drain()
                await asyncio.sleep(on.draw.random() / 10)
                on.counts["given up"] += 1


def _folder_in_use(spool: Path) -> Path | None:
    folders = [path for path in spool.iterdir() if path.is_dir() and (path / "lock").exists()] if spool.exists() else []
    return max(folders, default=None)


async def folders_in_spool(on: Target) -> None:
    """Create folders with the names of the service's next spool files."""
    folder = None if on.spool is None else _folder_in_use(on.spool)
    if folder is None:
        on.counts["skipped"] += 1
        await asyncio.sleep(_HOLD_S)
        return
    latest, made = 0, []
    try:
        for _ in range(round(_HOLD_S / 0.02)):
            numbers = [int(path.stem) for path in folder.glob("*.*") if path.stem.isdecimal() and path not in made]
            if numbers and max(numbers) > latest:
                latest = max(numbers)
                for number in range(latest + 1, latest + 6):
                    path = folder / f"{number:012d}.rows"
                    with suppress(FileExistsError):
                        path.mkdir()
                        made.append(path)
                        on.counts["folders made"] += 1
            await asyncio.sleep(0.02)
    finally:
        for path in made:
            with suppress(OSError):
                path.rmdir()


async def full_disk(on: Target) -> None:
    """Fill the spool's file system with one file."""
    if on.spool is None or not on.small_disk:
        on.counts["skipped"] += 1
        await asyncio.sleep(_HOLD_S)
        return
    ballast = on.spool / "ballast"
    try:
        for _ in range(round(_HOLD_S)):
            with suppress(OSError), ballast.open("ab", buffering=0) as file:
                while file.write(b"\0" * 2**20):
                    pass
            on.counts["filled"] += 1
            await asyncio.sleep(1.0)
    finally:
        ballast.unlink(missing_ok=True)


CONNECTIONS: dict[str, Attack] = {
    "400 idle connections": idle_connections,
    "50 slow senders": slow_senders,
    "50 slow readers": slow_readers,
    "trailers": trailers,
    "broken heads": broken_heads,
    "callers who leave": callers_who_leave,
    "folders in the spool": folders_in_spool,
    "the spool's disk full": full_disk,
}
