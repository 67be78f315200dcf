"""`python -m benchmarks.agreement.probes DATA`: what a judge's hidden states know beyond its words.

Run `python -m benchmarks.agreement DATA --half fit` and `--half held` first: the words are those of the stored replies.
The hidden states are those at the place where the answer would begin, after each of `--layers`, from transformers with
the same weights (`python -m judge_server.models.convert NAME`). They are kept in `.cache/agreement/states-MODEL`, so a
stopped run resumes.

- **Without labels of the task**: a logistic regression on 50 principal components of the states, fitted on all tasks of
  other data sets, each task with the same weight. `both` adds half of its standardised score to the words' log-odds.
- **With labels of the task**: a probe as `adjudge probe fit` fits it, on a few labels and nothing else, measured on
  other rows; beside Platt scaling of the words on the same labels, as `adjudge calibrate` fits it.

Penalties, components and weights were chosen on the half `fit`; the half `held` is for figures.
"""

import argparse
import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.agreement.contenders import ItemVerdict
from benchmarks.agreement.items import LONGEST, MEASURED_ONLY, TASKS, Half, Item, load_items, tasks_of
from benchmarks.agreement.labels import FEWEST_MEASURED, LABELS
from benchmarks.agreement.metrics import measure
from benchmarks.agreement.store import FOLDER, ReplyStore, StoredEngine, slug
from benchmarks.agreement.tables import notes, table_rows
from benchmarks.agreement.verdicts import load_verdicts, started
from benchmarks.report import publish
from judge_server.evaluation.fitting.calibrations import import_extra, shrunk_platt
from judge_server.evaluation.fitting.probes import fit_probe, normalised
from judge_server.evaluation.metrics import Bools, Floats, VerdictArrays
from judge_server.models.files import models_dir
from judge_server.ports import Batch

COMPONENTS = 50
PENALTY_OF_TASKS = 0.01
"""scikit-learn's C of the probe of other tasks."""

SHARE_OF_PROBE = 0.5

SAME_DATA: Mapping[str, str] = {"faithful": "contractnli", "grounded": "contractnli"}
"""Tasks that are made of another one's data set; others are, whose names begin alike."""


class Sample(NamedTuple):
    """An item, the judge's verdict on it, and its hidden states; shape (layers, hidden)."""

    item: Item
    verdict: ItemVerdict
    states: Floats

    @property
    def log_odds(self) -> float:
        """The log-odds of yes in the judge's words."""
        p = min(max(self.verdict.asked_probability, 1e-3), 1 - 1e-3)
        return float(np.log(p) - np.log1p(-p))


def states_of(samples: Sequence[Sample], layer: int) -> Floats:
    """Return the normalised states of a layer; shape (samples, hidden)."""
    return normalised(np.stack([one.states[layer] for one in samples]).astype(np.float64))


def data_set(task: str) -> str:
    """Return the name of the data set that a task is made of."""
    return SAME_DATA.get(task, task.partition("-")[0])


def other_tasks(samples: Sequence[Sample], states: Floats, left_out: str) -> tuple[Floats, Floats]:
    """Score all samples by words and by a probe that was fitted without one data set.

    Args:
        samples: the samples.
        states: the states of a layer; shape (samples, hidden).
        left_out: the data set on which nothing is fitted.

    Returns:
        the words' log-odds, by their deviation over the other data sets, and the probe's, by its own; shape (samples,).
    """
    tasks = np.array([one.item.task for one in samples])
    others = np.array([data_set(task) != left_out for task in tasks])
    labels = np.array([one.item.label for one in samples])
    scaler = import_extra("sklearn.preprocessing").StandardScaler().fit(states[others])
    wanted = min(COMPONENTS, int(others.sum()) - 1, states.shape[1])
    found = import_extra("sklearn.decomposition").PCA(wanted, random_state=0).fit(scaler.transform(states[others]))
    components = found.transform(scaler.transform(states))
    components /= components[others].std(axis=0)
    sizes = {task: int((tasks[others] == task).sum()) for task in set(tasks[others])}
    weights = np.array([1 / sizes[task] for task in tasks[others]])
    probe = import_extra("sklearn.linear_model").LogisticRegression(C=PENALTY_OF_TASKS, max_iter=3000)
    probe.fit(components[others], labels[others], sample_weight=weights * len(weights) / weights.sum())
    score = probe.decision_function(components)
    words = np.array([one.log_odds for one in samples])
    return words / words[others].std(), score / score[others].std()


def without_labels(samples: Sequence[Sample], layer: int) -> dict[str, dict[str, ItemVerdict]]:
    """Return the verdicts of the words, of the probe of other tasks, and of both, by the item's key."""
    found: dict[str, dict[str, ItemVerdict]] = {"words": {}, "probe": {}, "both": {}}
    for left_out in dict.fromkeys(data_set(one.item.task) for one in samples):
        words, probe = other_tasks(samples, states_of(samples, layer), left_out)
        both = words + SHARE_OF_PROBE * probe
        for place, one in enumerate(samples):
            if data_set(one.item.task) == left_out:
                for name, score in (("words", words[place]), ("probe", probe[place]), ("both", both[place])):
                    p = float(1 / (1 + np.exp(-score)))
                    found[name][one.item.key] = replace(one.verdict, probability=p, satisfied=p >= 0.5)
    return found


def with_labels(
    samples: Sequence[Sample], layer: int, half: Half, draws: int
) -> dict[str, dict[str, dict[int, dict[str, float]]]]:
    """Return balanced accuracy, AUROC and Brier score by method, task and number of labels; means over draws.

    The methods are `no label` (the words as they ship), `words` (calibrated) and `probe` (without the words).
    """
    states = states_of(samples, layer)
    drawn: dict[str, Any] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for task in dict.fromkeys(one.item.task for one in samples):
        places = [
            place
            for place, one in enumerate(samples)
            if one.item.task == task and (one.item.half == half or (half == "held" and task in MEASURED_ONLY))
        ]
        if len(places) < LABELS[0] + FEWEST_MEASURED:
            continue
        for draw in range(draws):
            rng = np.random.default_rng([draw, 4])
            for k in [k for k in LABELS if len(places) - k >= FEWEST_MEASURED]:
                given, rest = _split(samples, places, k, rng)
                for method, arrays in _methods(samples, states, given, rest):
                    drawn[method][task][k].append(arrays.figures())
    names = ("balanced_accuracy", "auroc", "brier")
    return {
        method: {
            task: {k: {n: float(np.mean([f[n][0] for f in all_])) for n in names} for k, all_ in by_k.items()}
            for task, by_k in by_task.items()
        }
        for method, by_task in drawn.items()
    }


def _split(
    samples: Sequence[Sample], places: Sequence[int], k: int, rng: np.random.Generator
) -> tuple[list[int], list[int]]:
    """Draw k samples of a task by rows, with both labels, and return them and all of other rows."""
    while True:
        order = rng.permutation(sorted({samples[place].item.row for place in places}))
        shuffled = [place for row in order for place in places if samples[place].item.row == row]
        given = shuffled[:k]
        rows = {samples[place].item.row for place in given}
        rest = [place for place in shuffled if samples[place].item.row not in rows]
        if all(len({samples[place].item.label for place in part}) == 2 for part in (given, rest)):
            return given, rest


def _methods(
    samples: Sequence[Sample], states: Floats, given: Sequence[int], rest: Sequence[int]
) -> Iterator[tuple[str, VerdictArrays]]:
    labels: Bools = np.array([one.item.label for one in samples])
    odds = np.array([one.log_odds for one in samples])
    shipped = np.array([one.verdict.probability for one in samples])
    yield "no label", VerdictArrays(labels[rest], shipped[rest] >= 0.5, shipped[rest])
    log_slope, intercept = shrunk_platt(1 / (1 + np.exp(-odds[given])), labels[given])[0]
    calibrated = 1 / (1 + np.exp(-np.exp(log_slope) * odds[rest] - intercept))
    yield "words", VerdictArrays(labels[rest], calibrated >= 0.5, calibrated)
    p = fit_probe([samples[one].item.row for one in given], states[given], labels[given]).probabilities(states[rest])
    yield "probe", VerdictArrays(labels[rest], p >= 0.5, p)


def curve_rows(found: Mapping[str, Mapping[str, Mapping[int, Mapping[str, float]]]]) -> list[dict[str, Any]]:
    """Return a row per task and number of labels, and for the means over tasks with 32 and with 64."""
    rows = []
    tasks = list(found["words"])
    for k in LABELS:
        having = [task for task in tasks if k in found["words"][task]]
        for name, some in [*((task, [task]) for task in having), (f"mean of {len(having)}", having)]:
            if not some:
                continue
            row: dict[str, Any] = {"labels": k, "task": name}
            for figure in ("balanced_accuracy", "auroc", "brier"):
                row[figure.replace("_", " ")] = " / ".join(
                    f"{np.mean([own[task][k][figure] for task in some]):.2f}" for own in found.values()
                )
            rows.append(row)
    return rows


def read_states(model: str, items: Sequence[Item], layers: Sequence[int]) -> dict[str, Floats]:
    """Return the states of items by key, shape (layers, hidden); those not stored are computed by transformers."""
    folder = FOLDER / f"states-{slug(model)}"
    folder.mkdir(parents=True, exist_ok=True)
    files = {item.key: folder / f"{item.key}.npy" for item in items}
    missing = [item for item in items if not files[item.key].exists()]
    if missing:
        for item, states in _compute(model, missing, layers):
            np.save(files[item.key], states.astype(np.float16))
    return {key: np.load(file) for key, file in files.items()}


async def _batches(model: str, items: Sequence[Item]) -> list[Batch]:
    async with started(["adjudge"], StoredEngine(ReplyStore.of_model(model), None)) as by_name:
        return [by_name["adjudge"].batches(item)[0] for item in items]


def _compute(model: str, items: Sequence[Item], layers: Sequence[int]) -> Iterator[tuple[Item, Floats]]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = models_dir() / "hf" / model
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is missing; run python -m judge_server.models.convert {model}")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for item, batch in zip(items, asyncio.run(_batches(model, items)), strict=True):
        turns = [
            {"role": "system", "content": batch.system},
            {"role": "user", "content": batch.shared + batch.calls[0].question},
        ]
        ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        with torch.inference_mode():
            states = network(**ids, output_hidden_states=True, logits_to_keep=1).hidden_states
        yield item, np.stack([states[layer][0, -1].numpy() for layer in layers])


def main() -> None:
    """Print both tables for each layer, and write them to JSON files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with the data sets")
    parser.add_argument("--model", default="qwen2.5-coder-1.5b")
    parser.add_argument("--half", choices=["fit", "held"], default="held", help="the half whose figures are shown")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), help="default: all but healthbench")
    parser.add_argument("--layers", nargs="+", type=int, default=[10, 14, 18, 22, 26, 28], help="layers to compute")
    parser.add_argument("--layer", type=int, default=18, help="the layer to probe, one of --layers")
    parser.add_argument("--size", type=int, default=150, help="maximum items per task and half")
    parser.add_argument("--longest", type=int, default=LONGEST, help="maximum characters of an item's texts")
    parser.add_argument("--draws", type=int, default=30)
    given = parser.parse_args()
    if given.layer not in given.layers:
        parser.error(f"--layer {given.layer} is not among --layers {' '.join(map(str, given.layers))}")
    names = [name for name in given.tasks or TASKS if name != "healthbench"]
    halves: Sequence[Half] = ("fit", "held")
    loaded = [
        load_items(given.data, half, [n for n in names if n in tasks_of(half)], given.size, given.longest)
        for half in halves
    ]
    items = [item for by_task in loaded for own in by_task.values() for item in own]
    verdicts = load_verdicts(items, "adjudge", given.model)
    known = [item for item in items if item.key in verdicts]
    if not known:
        parser.error(f"no reply of {given.model} is stored; run python -m benchmarks.agreement {given.data} first")
    states = read_states(given.model, known, given.layers)
    samples = [Sample(item, verdicts[item.key], states[item.key]) for item in known]
    place = given.layers.index(given.layer)
    contenders = without_labels(samples, place)
    agreement = measure(known, contenders)
    publish(
        f"probes_{slug(given.model)}",
        f"Hidden states after layer {given.layer}, {given.model}, each data set left out of fitting",
        table_rows(agreement, list(contenders)),
        notes(list(contenders)),
    )
    curves = with_labels(samples, place, given.half, given.draws)
    publish(
        f"probes_labels_{given.half}_{slug(given.model)}",
        f"With labels of the task, {given.model}, layer {given.layer}, half {given.half}: {' / '.join(curves)}",
        curve_rows(curves),
        [f"{given.draws} draws"],
        detail=curves,
    )


if __name__ == "__main__":
    main()
