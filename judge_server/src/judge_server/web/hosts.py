"""Who does without a key must have meant this machine.

A page in a browser may give its own host name the address 127.0.0.1, and is then let read what is answered there (DNS
rebinding). The header `Host` tells: the browser sends the page's name.
"""

import ipaddress

from starlette.datastructures import Headers

from judge_server.errors import Forbidden


def require_loopback_host(headers: Headers) -> None:
    """Refuse a request that was meant for another host than this machine's own; one that names none is let in.

    Raises:
        Forbidden: `Host` is neither `localhost` nor an address of the loopback.
    """
    host = headers.get("host")
    if host is None or is_loopback(_name_of(host)):
        return
    raise Forbidden(
        f"Without a key this service answers to localhost and 127.0.0.1, and not to {host[:100]!r}. Ask it by one of "
        "those names, or with an API key: adjudge keys create --scope score"
    )


def is_loopback(name: str) -> bool:
    """Whether a host's name or address stands for this machine alone, wherever it is read."""
    name = name.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _name_of(host: str) -> str:
    """`localhost:8000` without its port, `[::1]:8000` without that and its brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
