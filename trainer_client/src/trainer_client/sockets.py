"""Connections to a service that no proxy stands before, and how they learn that its host is gone when nobody tells.

A host that loses its power, or a firewall that forgets a connection, says nothing. Whoever waits for an answer that
takes minutes would then wait for all of them. So the system asks whether the host is there, and gives up in the end.
"""

import socket
import ssl
from typing import Any

import httpx2

KEEPALIVE_IDLE_S = 15
"""Seconds of silence after which the system asks the other host whether it is there."""

PROBE_INTERVAL_S = 5
PROBE_COUNT = 3

DEAD_PEER_TIMEOUT_S = KEEPALIVE_IDLE_S + PROBE_COUNT * PROBE_INTERVAL_S
"""Seconds after which a host that says nothing, or takes nothing, is gone."""

SocketOption = tuple[int, int, int]


def keepalive_options() -> list[SocketOption]:
    """The options of a socket that breaks `DEAD_PEER_TIMEOUT_S` after the other host went; those that this system has."""
    wanted = [
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPALIVE", KEEPALIVE_IDLE_S),  # what macOS calls it
        ("TCP_KEEPINTVL", PROBE_INTERVAL_S),
        ("TCP_KEEPCNT", PROBE_COUNT),
        ("TCP_USER_TIMEOUT", DEAD_PEER_TIMEOUT_S * 1000),  # for what was sent and not taken, which nobody asks about
    ]
    available = [(getattr(socket, name, None), value) for name, value in wanted]
    known = [(socket.IPPROTO_TCP, option, value) for option, value in available if option is not None]
    return [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *known]


def transport_options(url: httpx2.URL) -> dict[str, Any]:
    """The keyword arguments of a transport that reaches an address without a proxy.

    Where nothing is encrypted, no authority's certificate is read: reading them all takes 20 ms for each client.
    """
    verify: ssl.SSLContext | bool = True if url.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return {"socket_options": keepalive_options(), "verify": verify}
