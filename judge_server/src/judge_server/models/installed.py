"""Whether a model that lies here is whole and unaltered. Fetches nothing; every engine asks before it loads one."""

from pathlib import Path

from judge_server.models.cache import read_record
from judge_server.models.catalogue import Model
from judge_server.models.reference import HubFile
from judge_server.models.verify import check_bytes, check_gguf, file_sha256, verify


def check_installed(target: Model | HubFile | Path, path: Path) -> str:
    """Read the whole file at `path` and return its SHA-256, in hexadecimal.

    A catalogued model must have the catalogue's bytes, a hub file those it was fetched with. Of a file whose hash
    nobody recorded, all that is checked is that it is GGUF.

    Raises:
        CorruptModel: it is cut short or altered; the message says what to run.
        NotAModel: it is no GGUF file.
    """
    if isinstance(target, Model):
        verify(path, target)
        return target.sha256
    if isinstance(target, HubFile) and (record := read_record(path)):
        check_bytes(path, name=target.name, size=record.size, sha256=record.sha256)
        return record.sha256
    check_gguf(path)
    return file_sha256(path)
