"""Judge model files: the catalogue, the local cache, and downloads that are checked and can be resumed.

A model is one GGUF file. This package downloads, checks and locates it but does not load it; it depends neither on
engines nor on the CLI. `fetch` resolves any model reference, from an engine URL or a user, to a path.
"""

from judge_server.models.catalogue import (
    CATALOGUE,
    DEFAULT,
    CorruptModel,
    HubFile,
    MirrorPart,
    Model,
    ModelError,
    ModelUnavailable,
    NotAModel,
    UnknownModel,
    WrongHash,
    next_smaller,
    parse_model_reference,
)
from judge_server.models.downloads import fetch
from judge_server.models.files import (
    SILENT,
    DownloadProgress,
    ModelEntry,
    ModelState,
    check_installed,
    file_sha256,
    installed_path,
    model_entries,
    model_path,
    models_dir,
    verify,
)

__all__ = [
    "CATALOGUE",
    "DEFAULT",
    "SILENT",
    "CorruptModel",
    "DownloadProgress",
    "HubFile",
    "MirrorPart",
    "Model",
    "ModelEntry",
    "ModelError",
    "ModelState",
    "ModelUnavailable",
    "NotAModel",
    "UnknownModel",
    "WrongHash",
    "check_installed",
    "fetch",
    "file_sha256",
    "installed_path",
    "model_entries",
    "model_path",
    "models_dir",
    "next_smaller",
    "parse_model_reference",
    "verify",
]
