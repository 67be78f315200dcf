"""The sets of prompt templates a server has beside its own, by name: the folders in one folder."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from judge_server.errors import InvalidRequest
from judge_server.prompts.sources import TemplateRefused, read_set
from trainer_client.wire import FieldError
from trainer_client.wire.judging import TemplateName

_FIELD = "judging.template"
_NAME = TypeAdapter(TemplateName)


class TemplateLibrary:
    """Sets are read when they are first asked for, and then stay as they were read until the process ends."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._sets: dict[str, Mapping[str, str]] = {}

    @property
    def names(self) -> list[str]:
        """The names of the sets there are: the folders that a request can name."""
        if self._folder is None or not self._folder.is_dir():
            return []
        return sorted(path.name for path in self._folder.iterdir() if path.is_dir() and _nameable(path.name))

    def find(self, name: str | None) -> Mapping[str, str]:
        """The templates that a set replaces, by file name; none for no name.

        Raises:
            InvalidRequest: there is no such set, or one of its templates cannot be used.
        """
        if name is None:
            return {}
        if name not in self._sets:
            self._sets[name] = self._read(name)
        return self._sets[name]

    def _read(self, name: str) -> Mapping[str, str]:
        if self._folder is None or name not in self.names:
            raise _refused(f"this server has no set of templates {name!r}; {self._there()}")
        try:
            return read_set(self._folder / name)
        except TemplateRefused as error:
            raise _refused(f"the set of templates {name!r} cannot be used: {error}") from error

    def _there(self) -> str:
        if self._folder is None:
            return "it has none: start it with ADJUDGE_TEMPLATES_DIR, or leave template out"
        if not self._folder.is_dir():
            return "the folder that its ADJUDGE_TEMPLATES_DIR names is not there"
        return f"it has {', '.join(self.names)}" if self.names else "its ADJUDGE_TEMPLATES_DIR holds none"


def _nameable(name: str) -> bool:
    try:
        _NAME.validate_python(name)
    except ValidationError:
        return False
    return True


def _refused(message: str) -> InvalidRequest:
    return InvalidRequest(f"{_FIELD}: {message}", errors=(FieldError(field=_FIELD, message=message),))
