"""The images, built once for all tests in this folder."""

import pytest

from tests.deploy.containers.base_images import PYTHON_IMAGE, make_base_images
from tests.deploy.containers.podman import run
from tests.deploy.tools import ROOT

BUILT = ["api", "worker", "client", "judge-cpu"]


@pytest.fixture(scope="session")
def images() -> dict[str, str]:
    """The name of each image that `make images` builds; unchanged layers are not rebuilt."""
    make_base_images()
    built = run(ROOT / "docker/build.sh", *BUILT, BUILDER="buildah", PYTHON_IMAGE=PYTHON_IMAGE, timeout_s=3000)
    names = [line.split()[1] for line in built.stdout.splitlines() if line.startswith("building adjudge-")]
    assert len(names) == len(BUILT), built.stdout
    return dict(zip(BUILT, (f"localhost/{name}" for name in names), strict=True))
