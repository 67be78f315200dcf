"""Judge models as files: which are known, where they live, how they come here whole.

A model is one GGUF file. This package fetches it, checks it and says where it is; it loads nothing, and knows
neither engines nor terminals. `fetch` turns any reference an engine URL or a user may give into a path.
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
from judge_server.models.fetch import fetch
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
