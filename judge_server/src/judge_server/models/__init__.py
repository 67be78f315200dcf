"""Judge models as files: which are known, where they live, how they come here whole.

A model is one GGUF file. This package fetches it, checks it and says where it is; it loads nothing, and knows
neither engines nor terminals. `fetch` turns any reference an engine URL or a user may give into a path.
"""

from judge_server.models.cache import ModelEntry, ModelState, installed_path, model_entries, model_path, models_dir
from judge_server.models.catalogue import CATALOGUE, DEFAULT, MirrorPart, Model, next_smaller
from judge_server.models.errors import CorruptModel, ModelError, ModelUnavailable, NotAModel, UnknownModel, WrongHash
from judge_server.models.fetch import fetch
from judge_server.models.installed import check_installed
from judge_server.models.progress import SILENT, DownloadProgress
from judge_server.models.reference import HubFile, parse_model_reference
from judge_server.models.verify import file_sha256, verify

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
