"""What pages of every area use: the addresses of pages, and tables of numbers."""

from typing import NamedTuple
from urllib.parse import urlencode

from judge_server.api.auth import CONSOLE

Value = str | int | float | None


class Row(NamedTuple):
    """A row of a table, and the address that its first value links to, if any."""

    values: tuple[Value, ...]
    href: str = ""


class Table(NamedTuple):
    """The numbers of a chart."""

    headings: tuple[str, ...]
    rows: tuple[Row, ...]


def address(page: str, **parameters: Value) -> str:
    """The address of a page of the console; parameters that are None or empty are left out, except the run."""
    given = {name: value for name, value in parameters.items() if value not in (None, "") or name == "run"}
    return f"{CONSOLE}/{page}" + (f"?{urlencode(given)}" if given else "")
