"""Ways to generate: rollouts that record their prompts, rollouts that are equal on all ranks, and a vLLM server."""

import zlib

from trl.generation.vllm_generation import VLLMGeneration

from tests.trainer_client.trl.training import RIGHT


class Prompts:
    """A rollout function that records its prompts and returns its texts in turn, `later` after the first call."""

    def __init__(self, *texts, later=None):
        self.asked, self.texts, self.later = [], texts, later or texts

    def __call__(self, prompts, trainer):
        texts = self.later if self.asked else self.texts
        self.asked.append(list(prompts))
        words = trainer.processing_class
        ids = [words(texts[row % len(texts)])["input_ids"] for row in range(len(prompts))]
        return {
            "prompt_ids": [words(prompt)["input_ids"] for prompt in prompts],
            "completion_ids": [[*row, words.eos_token_id] for row in ids],
            "logprobs": [[0.0] * (len(row) + 1) for row in ids],
        }


class ScriptedRollout:
    """A deterministic rollout function that gives the same responses on any number of ranks.

    The prompt and the response's index over all ranks determine its text; a refined response depends on the prompt
    alone, since the number of responses generated beside it depends on the ranks.
    """

    def __init__(self, *texts):
        self.texts = texts

    def text(self, prompt, place):
        place = 0 if "<previous_answer>" in prompt else place
        return self.texts[(zlib.crc32(prompt.encode()) + place) % len(self.texts)]

    def __call__(self, prompts, trainer):
        words, first = trainer.processing_class, trainer.accelerator.process_index * len(prompts)
        texts = [self.text(prompt, first + row) for row, prompt in enumerate(prompts)]
        ids = [[*words(text)["input_ids"], words.eos_token_id] for text in texts]
        return {
            "prompt_ids": [words(prompt)["input_ids"] for prompt in prompts],
            "completion_ids": ids,
            "logprobs": [[0.0] * len(row) for row in ids],
        }


class HalfConstantRollout(ScriptedRollout):
    """Returns its first text for even prompts, whatever the index, and its other texts for odd ones."""

    def text(self, prompt, place):
        return ScriptedRollout(*self.texts[1:]).text(prompt, place) if int(prompt[1]) % 2 else self.texts[0]


class Server:
    """A vLLM server's client that records the prompts and answers each with `n` responses."""

    def __init__(self, words):
        self.words, self.asked, self.said, self.reciting = words, [], [RIGHT], None

    def generate(self, prompts, n, **_):
        asked = [self.words.decode(ids) for ids in prompts]
        self.asked.append((n, asked))
        if self.reciting is None:
            texts = [self.said.pop(0) if len(self.said) > 1 else self.said[0]] * (n * len(prompts))
        else:
            texts = [self.reciting.text(asked[place // n], place) for place in range(n * len(prompts))]
        said = [[*self.words(text)["input_ids"], self.words.eos_token_id] for text in texts]
        return {
            "prompt_ids": prompts,
            "completion_ids": said,
            "logprobs": [[[0.0]] * len(row) for row in said],
            "logprob_token_ids": [[[token] for token in row] for row in said],
        }


def with_server(made):
    """Let a trainer generate as with `use_vllm=True` and `vllm_mode="server"`, from a fake server."""
    generation = object.__new__(VLLMGeneration)
    vars(generation).update(
        mode="server", accelerator=made.accelerator, vllm_client=Server(made.processing_class), temperature=1.0,
        top_p=1.0, top_k=0, min_p=None, repetition_penalty=1.0, max_completion_length=16, logprobs=0,
        structured_outputs_regex=None, generation_kwargs=None, enable_sleep_mode=False, sync_weights=lambda: None,
    )  # fmt: skip
    made.rollout_func, made.use_vllm, made.vllm_generation, made._last_loaded_step = None, True, generation, -1
    return generation.vllm_client


def batch(made):
    made.model.train()
    return made._generate_and_score_completions([dict(row) for row in made.train_dataset for _ in range(4)])
