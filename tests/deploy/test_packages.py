"""The metadata of the four packages, and the requirements that installing them adds."""

import re
import tomllib
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from tests.deploy.tools import ROOT

PACKAGES = ["trainer_client", "rubric_store", "judge_server", "services"]
LARGE = {"xllamacpp", "vllm", "torch", "transformers", "pip", "matplotlib", "scikit-learn"}
INTERNALS = {"services": ["uvicorn"], "judge_server": ["vllm"], "trainer_client": ["trl"]}
"""Libraries whose internals a package imports; the next minor version may break it."""


def project(package: str) -> dict[str, Any]:
    """Return a package's metadata."""
    found: dict[str, Any] = tomllib.loads((ROOT / package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def requirements(package: str, *extras: str) -> list[Requirement]:
    """Return a package's requirements, including those of extras."""
    found = project(package)
    groups = [found["dependencies"], *(found["optional-dependencies"][extra] for extra in extras)]
    return [Requirement(text) for group in groups for text in group]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_has_the_metadata_that_an_index_shows(package: str) -> None:
    found = project(package)
    assert found["license"] == "Apache-2.0"
    assert (ROOT / package / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert {"Homepage", "Source", "Issues", "Changelog", "Documentation"} <= found["urls"].keys()
    assert len(found["keywords"]) >= 5
    assert len(found["classifiers"]) >= 5
    assert not any("License ::" in classifier for classifier in found["classifiers"])


@pytest.mark.parametrize("package", PACKAGES)
def test_the_readme_of_a_package_links_only_to_urls(package: str) -> None:
    text = (ROOT / package / "README.md").read_text(encoding="utf-8")
    assert len(text) > 300
    assert all(target.startswith("https://") for target in re.findall(r"\]\(([^)]+)\)", text))


def test_the_packages_and_the_citation_have_the_same_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"]
    assert {project(package)["version"] for package in PACKAGES} == {cited}


def test_installing_adjudge_adds_no_engine_and_nothing_large() -> None:
    for package in PACKAGES:
        assert not LARGE & {requirement.name for requirement in requirements(package)}, package
    assert not any(requirement.extras & {"llamacpp", "vllm"} for requirement in requirements("services"))


def test_an_extra_adds_the_embedded_judge() -> None:
    (server,) = [requirement for requirement in requirements("services", "cpu") if requirement.extras == {"llamacpp"}]
    assert server.name == "adjudge-server"
    assert "xllamacpp" in {requirement.name for requirement in requirements("judge_server", "llamacpp")}


@pytest.mark.parametrize(("package", "library"), [(p, name) for p, names in INTERNALS.items() for name in names])
def test_a_library_whose_internals_are_imported_has_an_upper_bound(package: str, library: str) -> None:
    extras = project(package)["optional-dependencies"]
    bounds = [r.specifier for r in requirements(package, *extras) if r.name == library]
    assert bounds
    assert any(not specifier.contains(Version("99.0")) for specifier in bounds), bounds
