"""`adjudge` for shells, which forks from a preforked process: `python -I -S preforked_command.py SOCKET ARGUMENTS`.

It passes on its streams, folder, environment and signals, and ends with the status of the process. It imports little,
because documentation pages run hundreds of commands.
"""

import json
import os
import signal
import socket
import sys

_MORE = 2**20


def main() -> None:
    """Fork, wait, and end as the process did."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MORE)
    connection.connect(sys.argv[1])
    request = {"arguments": sys.argv[2:], "environment": dict(os.environ), "folder": os.getcwd(), "first": ""}
    socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
    pid = int(connection.recv(100))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda got, _: os.kill(pid, got))
    status = int(connection.recv(100))
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
