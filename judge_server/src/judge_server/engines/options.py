"""Options of an engine URL: typed, and a misspelt one is refused rather than ignored."""

from urllib.parse import SplitResult, parse_qsl


class UrlOptions:
    """Reads `?name=value` pairs; `reject_unknown` complains of any that nobody asked for."""

    def __init__(self, url: SplitResult) -> None:
        self._url = url.geturl()
        self._values = dict(parse_qsl(url.query))
        self._known: list[str] = []

    def number(self, name: str, default: float) -> float:
        """A number of at least zero."""
        self._known.append(name)
        text = self._values.get(name)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value < float("inf"):
            raise ValueError(f"{self._url}: {name}={text} should be a number of at least 0")
        return value

    def integer(self, name: str, default: int) -> int:
        """A whole number of at least one."""
        self._known.append(name)
        text = self._values.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and int(text) > 0):
            raise ValueError(f"{self._url}: {name}={text} should be a whole number of at least 1")
        return int(text)

    def text(self, name: str) -> str | None:
        """Any text; None where the option is not given."""
        self._known.append(name)
        return self._values.get(name)

    def reject_unknown(self) -> None:
        """Raise `ValueError` for an option that was not read."""
        others = sorted(set(self._values) - set(self._known))
        if others:
            raise ValueError(f"{self._url}: unknown option {others[0]!r}; it takes {', '.join(self._known)}")
