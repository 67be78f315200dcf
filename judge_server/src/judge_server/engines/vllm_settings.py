"""How vLLM is to load a model, as an engine URL says it."""

from dataclasses import dataclass

from judge_server.engines.options import UrlOptions

DTYPES = ("auto", "bfloat16", "float16", "float32")


@dataclass(frozen=True, slots=True)
class VllmSettings:
    """Settings of an engine; None leaves the choice to vLLM.

    Attributes:
        context_tokens: the longest prompt with its answer; None for what the model was made for.
        gpu_memory: the share of the device's memory that vLLM may take, above 0 and at most 1.
        dtype: the type the model computes in, one of `DTYPES`.
        eager: start without compiling the model.
        tensor_parallel: how many GPUs share the model.
        concurrency: how many batches may be in flight.
    """

    context_tokens: int | None = None
    gpu_memory: float | None = None
    dtype: str = "auto"
    eager: bool = False
    tensor_parallel: int = 1
    concurrency: int = 64


class VllmOptions(UrlOptions):
    """The options of a `vllm://` URL."""

    def settings(self) -> VllmSettings:
        """The settings they make; raises `ValueError` where one says nothing sensible, or is none of vLLM's."""
        settings = VllmSettings(
            context_tokens=self.integer("context", 0) or None,
            gpu_memory=self._share("gpu_memory"),
            dtype=self._one_of("dtype", DTYPES),
            eager=self.integer("eager", 0) > 0,
            tensor_parallel=self.integer("tensor_parallel", 1),
            concurrency=self.integer("concurrency", 64),
        )
        self.reject_unknown()
        return settings

    def _share(self, name: str) -> float | None:
        share = self.number(name, 0.0)
        if share > 1:
            raise ValueError(f"{self._url}: {name}={share:g} should be a share, above 0 and at most 1")
        return share or None

    def _one_of(self, name: str, words: tuple[str, ...]) -> str:
        word = self.text(name) or words[0]
        if word not in words:
            raise ValueError(f"{self._url}: {name}={word} should be one of {', '.join(words)}")
        return word
