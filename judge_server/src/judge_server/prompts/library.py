"""The sets of prompt templates a server has beside its default, by name: the package's, and folders in one folder.

The package has one for each paper's judge. A set of the user's own goes before one of the package's of the same name.
"""

from importlib.resources import files
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from judge_server.errors import InvalidRequest
from judge_server.prompts.declaration import TemplateSet, load_set
from judge_server.prompts.sources import InvalidTemplate
from trainer_client.wire import FieldError
from trainer_client.wire.judging import TemplateName

_FIELD = "judging.template"
_NAME = TypeAdapter(TemplateName)


def builtin_sets() -> dict[str, Path]:
    """The folders of the package's sets, by name."""
    return _sets_in(Path(str(files("judge_server.prompts") / "templates" / "sets")))


class TemplateLibrary:
    """Sets are read when they are first asked for, and then stay as they were read until the process ends.

    Args:
        folder: of the user's own sets; None for the package's alone.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._sets: dict[str, TemplateSet] = {}

    @property
    def names(self) -> list[str]:
        """The names of the sets that a request can name."""
        return sorted(self.folders)

    @property
    def folders(self) -> dict[str, Path]:
        """The folder of each set by its name; the user's own where both have one."""
        own = _sets_in(self._folder) if self._folder is not None and self._folder.is_dir() else {}
        return builtin_sets() | own

    def find(self, name: str | None) -> TemplateSet:
        """The set of a name; one that replaces nothing for no name.

        Raises:
            InvalidRequest: there is no such set, or it cannot be used. A set of the user's own that cannot be used is
                not replaced by the package's.
        """
        if name is None:
            return TemplateSet()
        if name not in self._sets:
            self._sets[name] = self._read(name)
        return self._sets[name]

    def _read(self, name: str) -> TemplateSet:
        folder = self.folders.get(name)
        if folder is None:
            raise template_error(f"this server has no set of templates {name!r}; {self._there()}")
        try:
            return load_set(folder)
        except InvalidTemplate as error:
            raise template_error(f"the set of templates {name!r} cannot be used: {error}") from error

    def _there(self) -> str:
        there = f"it has {', '.join(self.names)}"
        if self._folder is None:
            return f"{there}; for sets of your own start it with ADJUDGE_TEMPLATES_DIR"
        return (
            there if self._folder.is_dir() else f"{there}; the folder that its ADJUDGE_TEMPLATES_DIR names is not there"
        )


def template_error(message: str) -> InvalidRequest:
    """The error of a request whose set of templates cannot be used."""
    return InvalidRequest(f"{_FIELD}: {message}", errors=(FieldError(field=_FIELD, message=message),))


def _sets_in(folder: Path) -> dict[str, Path]:
    return {path.name: path for path in folder.iterdir() if path.is_dir() and _nameable(path.name)}


def _nameable(name: str) -> bool:
    try:
        _NAME.validate_python(name)
    except ValidationError:
        return False
    return True
