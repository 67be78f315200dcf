"""`adjudge probe`: fit a probe of a judge's hidden states on labels, and write it as a model file."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import typer
from rich.markup import escape

from adjudge_services.cli.groups import FromRequest
from adjudge_services.cli.lazy import OPTIONS_ONLY
from adjudge_services.cli.options import Asking, DataArgument, JudgeOption, Rows, UsageError
from adjudge_services.cli.output import exit_with_error, out, print_json, print_metrics, show_progress
from trainer_client.wire import VerdictRequest

if not OPTIONS_ONLY:
    import numpy as np

    from adjudge_services.cli.judges.calibrate import read_responses
    from adjudge_services.cli.judges.evaluate import judge_and_dataset, judge_dataset, judging_options
    from adjudge_services.cli.operating.plan import own_engine
    from adjudge_services.judges import build_engine, build_judge
    from adjudge_services.settings import Settings
    from judge_server.engines.llamacpp.engine import LlamaCppEngine
    from judge_server.engines.llamacpp.process import locate_weights
    from judge_server.engines.llamacpp.states import HiddenStates
    from judge_server.evaluation.fitting.calibrations import (
        before_and_after,
        best_method,
        cross_validate,
        digest_of,
    )
    from judge_server.evaluation.fitting.probes import (
        calls_about,
        cross_validate_probe,
        fit_probe,
        require_labels,
    )
    from judge_server.evaluation.html import format_estimate
    from judge_server.evaluation.judging import Judgement
    from judge_server.evaluation.labelled import MET_FROM, LabelledResponse
    from judge_server.evaluation.metrics import Bools, Estimate, Floats, none_if_nan
    from judge_server.evaluation.report import Measured, measured_verdicts
    from judge_server.models.probes import LayeredModel, read_about
    from judge_server.ports import Batch, Reply, TokenChoice
    from judge_server.scheduling.executor import LocalExecutor
    from trainer_client.wire import JudgingOptions

LARGEST_DIFFERENCE = 0.15
"""How far a written probe's probabilities may be from the fitted ones; rounding moves them by less than 0.1."""

CHECKED_PROMPTS = 8

FIGURES = ("balanced_accuracy", "auroc", "ece", "brier")


class Asked(NamedTuple):
    """A labelled verdict of the judge's words, the batch of the only call that asks for it, and the call's prompt."""

    words: Measured
    batch: Batch
    prompt: list[int]


class Question(NamedTuple):
    """What a probe answers: the digest of the wording, and the tokens of yes and no."""

    wording: str
    answers: tuple[int, int]


def fit(
    data: DataArgument,
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="The model file to write.", metavar="FILE.gguf")],
    judge: JudgeOption = None,
    layer: Annotated[
        int | None, typer.Option(min=1, help="The layer after which states are read; by default, two thirds up.")
    ] = None,
    rows: Rows,
    options: Annotated[Mapping[str, Any], FromRequest(VerdictRequest, only=("template",))],
    asking: Asking,
) -> None:
    """Fit a probe on labels, from 16 on, and write it as a model: the judge's lower layers, and the probe as its head.

    It judges only the question that it was fitted to: binary verdicts, one criterion a call. It is measured on every
    row by probes that were fitted without that row, beside the judge's words, calibrated on the same labels. A probe
    whose Brier score is no better than theirs is not written.
    """
    check_output(output)
    judge, dataset = judge_and_dataset(judge, data)
    settings = own_engine(judge)
    chosen = judging_options(options)
    _, responses = read_responses(dataset, rows, fitting=True)
    labels = [(one.row, label >= MET_FROM) for one in responses for label in one.labels.values()]
    require_labels([row for row, _ in labels], np.array([met for _, met in labels], dtype=bool))
    with show_progress() as progress:
        progress.add_task("reading the judge's file", total=None)
        weights = locate_weights(llamacpp_engine(settings).model)
        model = LayeredModel(weights.path)
    layers = layer or model.default_layer()
    if layers > model.layers:
        raise UsageError(f"--layer {layers}: {weights.name} has {model.layers} layers")
    judgements = judge_dataset(judge, responses, chosen, asking)
    accepted = [one for one in judgements if one.fingerprint]
    if not accepted:
        raise ValueError(f"no example was judged: {judgements[0].problem}")
    with TemporaryDirectory(prefix="adjudge-", dir=output.absolute().parent) as folder:
        lower, written = Path(folder, "states.gguf"), Path(folder, "probe.gguf")
        with show_progress() as progress:
            task = progress.add_task("planning", total=None)
            model.write_states(lower, layers)
            question, asked = asyncio.run(plan_calls(settings, accepted, chosen))
            progress.update(task, description="reading states", total=len(asked))
            states = asyncio.run(read_states(lower, [one.prompt for one in asked], lambda: progress.advance(task)))
        words = [one.words for one in asked]
        figures, difference = measure(words, states, responses)
        show_figures(f"{weights.name}, after layer {layers}", words, figures, difference)
        if not difference["brier"].value < 0:
            exit_with_error("the probe's Brier score is no better than that of calibrated words; not written")
        about = {
            "asks": question.wording,
            "judge": weights.name,
            "weights": weights.sha256,
            "layer": layers,
            "template": chosen.get("template"),
            "labels": len(words),
            "rows": len({one.row for one in words}),
            "fitted_on": digest_of(words),
            "measured": {name: figures_json(of) for name, of in figures.items()},
        }
        probe = fit_probe([one.row for one in words], states, labels_of(words))
        model.write_probe(written, layers, probe.direction, probe.mean, question.answers, about)
        checked = asked[:CHECKED_PROMPTS]
        expected = probe.probabilities(states[: len(checked)])
        if (distance := asyncio.run(largest_difference(written, checked, expected))) > LARGEST_DIFFERENCE:
            exit_with_error(
                f"the written model's probabilities differ by up to {distance:.2f} from the fitted ones, so this "
                "architecture cannot answer by a probe; nothing was kept"
            )
        written.replace(output)
    out.print(f"wrote {escape(str(output))}; to judge with it: --judge llamacpp://{output.absolute()}", soft_wrap=True)


def show(file: Annotated[Path, typer.Argument(help="A model file.", exists=True, dir_okay=False)]) -> None:
    """Print what a probe was fitted on, and how it was measured, as JSON."""
    about = read_about(file)
    if about is None:
        exit_with_error(f"{file} is not a probe; adjudge probe fit writes one")
    print_json(about)


def check_output(output: Path) -> None:
    """Raise `UsageError` unless a probe can be written to a file without harm to another model."""
    if output.suffix != ".gguf" or not output.absolute().parent.is_dir():
        raise UsageError(f"--output {output}: name a file ending in .gguf, in a folder that exists")
    if output.exists() and (not output.is_file() or read_about(output) is None):
        raise UsageError(f"--output {output} exists and is not a probe; name another file")


def llamacpp_engine(settings: Settings) -> LlamaCppEngine:
    """The engine of the settings, not started. Raises `ValueError` if it is not llama.cpp."""
    engine = build_engine(settings)
    if not isinstance(engine, LlamaCppEngine):
        raise ValueError(
            f"{settings.engine_url}: a probe is fitted to a llama.cpp judge; give --judge llamacpp://MODEL"
        )
    if engine.lora is not None:
        raise ValueError(f"{settings.engine_url}: a probe is fitted to the states of a whole model; leave out ?lora=")
    return engine


async def plan_calls(
    settings: Settings, judged: Sequence[Judgement], options: Mapping[str, Any]
) -> tuple[Question, list[Asked]]:
    """Return the question, and the labelled verdicts of judgements with the prompts that asked for them."""
    engine, asked = llamacpp_engine(settings), list[Asked]()
    judge = build_judge(LocalExecutor(engine), settings.model_copy(update={"cache_url": "memory://"}))
    await judge.start()
    try:
        if judge.identity.capabilities.typed_questions:
            raise ValueError(f"{judge.identity.model} is a decision model, which has no prompts to read states after")
        for one in judged:
            assert isinstance(one.example, LabelledResponse)
            calls = await calls_about(judge, one.example, options)
            for words in measured_verdicts(one):
                if words.raw_probability is not None and words.score is not None and words.criterion in calls:
                    batch, call = calls[words.criterion]
                    prompt = await engine.prompt_tokens(batch, call)
                    asked.append(Asked(words, replace(batch, calls=(call,)), prompt))
        if not asked:
            raise ValueError("no labelled verdict has a probability of the judge's own; a probe needs some")
        answer = asked[0].batch.calls[0].answer
        assert isinstance(answer, TokenChoice)
        yes, no = [await engine.option_token(option) for option in answer.options]
        wording = judge.prepared_for(JudgingOptions.model_validate(dict(options)), "binary").wording
    finally:
        await judge.close()
    return Question(wording, (yes, no)), asked


async def read_states(model: Path, prompts: Sequence[list[int]], advance: Callable[[], None]) -> Floats:
    """Return the state after each prompt; shape (n, hidden)."""
    reader = HiddenStates(context_tokens=max(map(len, prompts)) + 1, threads=os.cpu_count() or 1)
    await reader.start(model)
    try:
        states = []
        for prompt in prompts:
            states.append(await reader.of(prompt))
            advance()
    finally:
        await reader.close()
    return np.stack(states)


async def largest_difference(file: Path, asked: Sequence[Asked], expected: Floats) -> float:
    """Return how far a written probe's probabilities are from the expected ones."""
    engine = LlamaCppEngine(str(file), context_tokens=max(len(one.prompt) for one in asked) + 1)
    await engine.start()
    try:
        replies = [reply for one in asked async for _, reply in engine.answer(one.batch)]
    finally:
        await engine.close()
    found = [reply.masses or (0.0, 0.0) if isinstance(reply, Reply) else (0.0, 0.0) for reply in replies]
    # Both answers together must have nearly all of the mass, and what is missing counts as a difference.
    return float(max(np.abs(np.array(found) - np.column_stack([expected, 1 - expected])).ravel()))


def labels_of(words: Sequence[Measured]) -> Bools:
    """Whether each criterion is met; shape (n,)."""
    return np.array([one.label >= MET_FROM for one in words], dtype=bool)


def measure(
    words: Sequence[Measured], states: Floats, responses: Sequence[LabelledResponse]
) -> tuple[dict[str, dict[str, Estimate]], dict[str, Estimate]]:
    """Measure the judge's words, calibrated words and a probe, each by what was fitted without the row.

    Returns:
        the figures by name, and those of the probe minus those of calibrated words.
    """
    descriptions = {(one.row, c.id): c.description for one in responses for c in one.criteria}
    calibrated = cross_validate(words, descriptions, method=best_method(len(words)))
    found = cross_validate_probe([one.row for one in words], states, labels_of(words))
    both = before_and_after(calibrated._replace(raw=calibrated.calibrated, calibrated=found))
    plain = before_and_after(calibrated)["raw"]
    return {"words": plain, "calibrated words": both["raw"], "probe": both["calibrated"]}, both["difference"]


def show_figures(
    judge: str,
    words: Sequence[Measured],
    figures: Mapping[str, Mapping[str, Estimate]],
    difference: Mapping[str, Estimate],
) -> None:
    """Print the figures of the judge's words and of the probe."""
    moved = difference["balanced_accuracy"]
    how = "better than" if moved.low > 0 else "worse than" if moved.high < 0 else "as well as, for all that is shown,"
    out.print(f"[bold]The probe decides {how} calibrated words: {format_estimate(moved)} in balanced accuracy.[/]")
    rows = len({one.row for one in words})
    out.print(f"{escape(judge)}; {len(words):,} labels of {rows:,} rows, each judged by fits without its row")
    print_metrics(
        {name: {f.replace("_", " "): format_estimate(of[f]) for f in FIGURES} for name, of in figures.items()}
    )


def figures_json(figures: Mapping[str, Estimate]) -> dict[str, Any]:
    """Figures with their intervals, as JSON."""
    return {name: {key: none_if_nan(value) for key, value in figures[name]._asdict().items()} for name in FIGURES}
