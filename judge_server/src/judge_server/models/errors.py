"""What can go wrong with a judge model; each message tells the user what to do next."""


class ModelError(Exception):
    """A judge model cannot be had or used; the message is meant for the user as it is."""


class UnknownModel(ModelError):
    """The reference is no catalogued name, no `hf://` address and no file."""


class NotAModel(ModelError):
    """The file is no GGUF model."""


class CorruptModel(ModelError):
    """The file under a model's final name is cut or altered."""


class WrongHash(ModelError):
    """What was downloaded is not the model; nothing of it was kept."""


class ModelUnavailable(ModelError):
    """No source could deliver the model. `reasons` maps each source tried to why it failed."""

    def __init__(self, message: str, reasons: dict[str, str]) -> None:
        super().__init__(message)
        self.reasons = reasons


class SourceFailed(Exception):
    """One source cannot deliver; the next may. Never leaves this package."""
