"""Results of a run: statistics of the rubrics, a plot, one file per split, and rows for trainers.

Each file is rebuilt from `rubrics.jsonl` and replaced atomically. The plot needs matplotlib, an optional dependency;
without it, only the plot is missing.

All trainer rows have the same columns, so that a file can be loaded as one table. The grounding, the ground truth and
the reference answer, which the policy must not see, have separate columns that trainers show only to the judge.

A run works in a folder: its database, the JSONL files written from it, and the split of each source.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, Self, get_args

from filelock import FileLock, Timeout

from judge_server.generation.validity import rates_by_kind
from trainer_client.wire.base import AnswerModel

DATABASE_FILE = "operations.db"
RUBRICS_FILE, DISCARDED_FILE, PUBLISHED_FILE, FAILED_FILE = (
    "rubrics.jsonl",
    "discarded.jsonl",
    "published.jsonl",
    "failed.jsonl",
)
_LOCK_FILE = ".lock"
_RUBRIC_FIELDS = (
    *("key", "line", "id", "name", "split", "source_digest", "digest", "criteria", "metadata", "tags", "flags"),
    *("parent", "record", "usage"),
)
_DISCARD_FIELDS = ("key", "line", "id", "reason", "detail", "usage")


class FolderInUse(ValueError):
    """Another run is using the folder; the message says what to do."""


class RunFolder:
    """The files of a run, locked for one run at a time. Use it as a context manager.

    Attributes:
        made: the keys of the inputs that have a rubric.
        discarded: the keys of discarded inputs, with the reason.
        published: the keys of the rubrics that are in the store.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = path / DATABASE_FILE
        self.made: set[str] = set()
        self.discarded: dict[str, str] = {}
        self.published: set[str] = set()

    def __enter__(self) -> Self:
        """Create the folder if necessary, and lock it.

        Raises:
            FolderInUse: another run is using the folder.
            ValueError: the folder has results of a release that kept them in JSONL files only.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            try:
                stack.enter_context(FileLock(self.path / _LOCK_FILE, timeout=0))
            except Timeout:
                raise FolderInUse(f"another run is using {self.path}; wait for it, or use another folder") from None
            if (self.path / RUBRICS_FILE).exists() and not self.database.exists():
                raise ValueError(
                    f"{self.path} has results but no {DATABASE_FILE}, so an earlier release wrote it, which kept its "
                    "state elsewhere; use another folder"
                )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the files and release the lock."""
        self._stack.close()

    @contextmanager
    def rewritten(self) -> Iterator[None]:
        """Write the files anew with what the block adds, and keep them open for `add` and `fail`.

        They replace the earlier files when the block ends, so a reader never sees less than was there.
        """
        names = (RUBRICS_FILE, DISCARDED_FILE, PUBLISHED_FILE, FAILED_FILE)
        self._files = {name: self._stack.enter_context(_create(self.path / f"{name}.new")) for name in names}
        yield
        for name in names:
            (self.path / f"{name}.new").replace(self.path / name)

    def add(self, result: Mapping[str, Any]) -> bool:
        """Append the result of a chunk: a rubric, or a discard, which has a `reason`.

        Returns whether the input had no outcome before. A rubric that an earlier chunk made and this one published is
        only added to the published ones.
        """
        key = result["key"]
        is_new = key not in self.made and key not in self.discarded
        if "reason" in result:
            self.discarded[key] = result["reason"]
            self._append(DISCARDED_FILE, {name: result[name] for name in _DISCARD_FIELDS})
            return is_new
        if is_new:
            self.made.add(key)
            self._append(RUBRICS_FILE, {name: result[name] for name in _RUBRIC_FIELDS})
        if "reference" in result:
            self.published.add(key)
            self._append(PUBLISHED_FILE, {name: result[name] for name in ("key", "reference", "digest")})
        return is_new

    def fail(self, line: int, kind: str, detail: str) -> None:
        """Record a line that is invalid, repeats another, could not be published, or failed in the engine."""
        self._append(FAILED_FILE, {"line": line, "kind": kind, "detail": detail})

    def rubrics(self) -> Iterator[dict[str, Any]]:
        """Yield the records of the rubrics, in the order in which they were made."""
        return read_records(self.path / RUBRICS_FILE)

    def _append(self, name: str, record: Mapping[str, Any]) -> None:
        file = self._files[name]
        file.write(json.dumps(record, ensure_ascii=False) + "\n")
        file.flush()


def _create(path: Path) -> IO[str]:
    return path.open("w", encoding="utf-8", errors="backslashreplace", newline="\n")


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the complete records of a JSONL file, in order; nothing if the file does not exist.

    Raises:
        ValueError: a complete line is not a record, so another program wrote to the file; the message names the line.
    """
    if not path.exists():
        return
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if not isinstance(record, dict):
                raise ValueError(f"{path}:{number} is not a JSON record; correct or remove it, or use another folder")
            yield record


def read_failures(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the problems that the last run in a folder recorded: `line`, `kind` and `detail`."""
    return read_records(path / FAILED_FILE)


def first_discards(path: Path, reasons: Collection[str]) -> dict[str, tuple[int, str]]:
    """Return the first discard in a folder for each of these reasons: its line and detail."""
    first: dict[str, tuple[int, str]] = {}
    for record in read_records(path / DISCARDED_FILE):
        if record["reason"] in reasons:
            first.setdefault(record["reason"], (record["line"], record["detail"]))
    return first


Split = Literal["train", "validation", "test"]

SHARES: dict[Split, float] = {"train": 0.70, "validation": 0.15, "test": 0.15}
"""The share of sources in each split (Rubric-Grounded RL: 70/15/15)."""

_RANGE = 2**64


def split_of(source_digest: str) -> Split:
    """Assign a source to a split: hash its digest to a number in [0, 1) and cut that range by `SHARES`."""
    position = int.from_bytes(hashlib.sha256(source_digest.encode()).digest()[:8], "big") / _RANGE
    if position < SHARES["train"]:
        return "train"
    return "validation" if position < SHARES["train"] + SHARES["validation"] else "test"


class Distribution(AnswerModel):
    """Count, minimum, quartiles, maximum, mean and population standard deviation; all 0 if there are no values."""

    count: int = 0
    least: float = 0.0
    lower: float = 0.0
    median: float = 0.0
    upper: float = 0.0
    most: float = 0.0
    mean: float = 0.0
    deviation: float = 0.0

    @classmethod
    def of(cls, counts: Mapping[float, int]) -> "Distribution":
        """Summarise values, given with their counts. Quartiles are values that occur, without interpolation."""
        import numpy as np  # takes long to import

        values = np.repeat(np.array(list(counts), dtype=float), list(counts.values()))
        if not len(values):
            return cls()
        marks = np.quantile(values, (0, 0.25, 0.5, 0.75, 1), method="inverted_cdf").tolist()
        shape = dict(zip(("least", "lower", "median", "upper", "most"), marks, strict=True))
        return cls(count=len(values), **shape, mean=float(values.mean()), deviation=float(values.std()))


class CorpusStatistics(AnswerModel):
    """Statistics of a corpus of rubrics.

    Attributes:
        inputs: number of inputs.
        rubrics: number of inputs that gave a rubric.
        criteria_per_rubric, weights, description_characters: distributions over rubrics, and over all their criteria.
        criteria_counts, weight_counts, length_counts: how often each value occurs, keyed by the value as text; lengths
            are rounded down to a multiple of `LENGTH_STEP` characters.
        kinds: number of criteria of each kind.
        tags: number of criteria with each of the `MOST_TAGS` most common tags, most common first.
        splits: number of rubrics in each split.
        flags: number of rubrics with each flag.
        discarded: number of inputs without a rubric, by reason, most common first.
        validity: counts and rates of valid criteria by kind (`rates_by_kind`), for criteria whose validity was judged.
    """

    inputs: int
    rubrics: int
    criteria_per_rubric: Distribution
    weights: Distribution
    description_characters: Distribution
    criteria_counts: dict[str, int]
    weight_counts: dict[str, int]
    length_counts: dict[str, int]
    kinds: dict[str, int]
    tags: dict[str, int]
    splits: dict[str, int]
    flags: dict[str, int]
    discarded: dict[str, int]
    validity: dict[str, dict[str, float | int | None]]


LENGTH_STEP = 20
"""Width of a bin of description lengths, in characters."""

MOST_TAGS = 20
"""Number of tags to count; a corpus may have as many tags as criteria."""


def corpus_statistics(records: Iterable[Mapping[str, Any]], reasons: Sequence[str]) -> CorpusStatistics:
    """Compute statistics from the records of `rubrics.jsonl` and from the reasons of the discarded inputs."""
    sizes, weights, lengths, bins = (Counter[float]() for _ in range(4))
    kinds, tags, splits, flags = (Counter[str]() for _ in range(4))
    judged: list[Mapping[str, Any]] = []
    for record in records:
        judged += record["metadata"].get("validity", {}).get("items", [])
        criteria = record["criteria"]
        sizes[len(criteria)] += 1
        splits[record["split"]] += 1
        flags.update(record["flags"])
        for criterion in criteria:
            weights[criterion["weight"]] += 1
            length = len(criterion["description"])
            lengths[length] += 1
            bins[length // LENGTH_STEP * LENGTH_STEP] += 1
            kinds[criterion["kind"]] += 1
            tags.update(criterion["tags"])
    return CorpusStatistics(
        inputs=sizes.total() + len(reasons),
        rubrics=sizes.total(),
        criteria_per_rubric=Distribution.of(sizes),
        weights=Distribution.of(weights),
        description_characters=Distribution.of(lengths),
        criteria_counts=_by_value(sizes),
        weight_counts=_by_value(weights),
        length_counts=_by_value(bins),
        kinds=dict(kinds.most_common()),
        tags=dict(tags.most_common(MOST_TAGS)),
        splits=dict(sorted(splits.items())),
        flags=dict(flags.most_common()),
        discarded=dict(Counter(reasons).most_common()),
        validity=rates_by_kind(judged),
    )


def _by_value(counts: Mapping[float, int]) -> dict[str, int]:
    return {f"{value:g}": counts[value] for value in sorted(counts)}


NO_MATPLOTLIB = "plots need matplotlib: pip install 'adjudge[plots]'"

_COLOUR = "#3b6ea5"
_SIZE_INCHES = (11.0, 6.5)
_MAX_LABELS = 6


class MatplotlibMissing(Exception):
    """matplotlib is not installed; the message says how to install it."""

    code = "missing-extra"


def plot_statistics(statistics: CorpusStatistics, file: Path, *, title: str) -> None:
    """Plot the statistics into a file, SVG or PNG by its extension.

    Raises:
        MatplotlibMissing: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MatplotlibMissing(NO_MATPLOTLIB) from error
    numbers = {
        "criteria per rubric": statistics.criteria_counts,
        "weights of criteria": statistics.weight_counts,
        "characters of a description": statistics.length_counts,
    }
    words = {
        "kinds of criteria": statistics.kinds,
        "rubrics by split": statistics.splits,
        "inputs without a rubric": statistics.discarded,
    }
    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    for at, (name, counts) in zip(figure.subplots(2, 3).flat, (numbers | words).items(), strict=True):
        at.set_title(name, fontsize=10)
        at.spines[["top", "right"]].set_visible(False)
        if not counts:
            at.text(0.5, 0.5, "none", ha="center", va="center", color="grey")
            at.set_axis_off()
        elif name in numbers:  # a column per number, in order, a few of them labelled
            at.bar(range(len(counts)), list(counts.values()), color=_COLOUR)
            step = -(-len(counts) // _MAX_LABELS)
            at.set_xticks(range(0, len(counts), step), list(counts)[::step])
            at.yaxis.get_major_locator().set_params(integer=True)
        else:  # a bar per word, the first on top
            at.barh(list(counts)[::-1], list(counts.values())[::-1], color=_COLOUR)
            at.tick_params(axis="y", labelsize=8)
            at.xaxis.get_major_locator().set_params(integer=True)
    figure.suptitle(title, parse_math=False)
    figure.savefig(file)


STATISTICS, PLOT, SPLITS = "statistics.json", "statistics.svg", "splits"


def write_results(folder: RunFolder, keys: Set[str], *, title: str) -> CorpusStatistics:
    """Write the results of a run over the inputs with these keys; without matplotlib, leave out the plot."""
    statistics = corpus_statistics(
        (record for record in folder.rubrics() if record["key"] in keys),
        [reason for key, reason in folder.discarded.items() if key in keys],
    )
    _replace(folder.path / STATISTICS, [statistics.model_dump_json(indent=2)])
    with suppress(MatplotlibMissing):
        plot_statistics(statistics, folder.path / PLOT, title=title)
    (folder.path / SPLITS).mkdir(exist_ok=True)
    for split in get_args(Split):
        wanted = (r for r in folder.rubrics() if r["split"] == split and r["key"] in keys)
        _replace(folder.path / SPLITS / f"{split}.jsonl", (json.dumps(r, ensure_ascii=False) for r in wanted))
    return statistics


def read_statistics(path: Path) -> CorpusStatistics | None:
    """Read the statistics of the last completed run in a folder; None if there is none."""
    file = path / STATISTICS
    return CorpusStatistics.model_validate_json(file.read_bytes()) if file.exists() else None


def _replace(file: Path, lines: Iterable[str]) -> None:
    scratch = file.with_name(f"{file.name}.new")
    with _create(scratch) as out:
        out.writelines(f"{line}\n" for line in lines)
    scratch.replace(file)


def trainer_rows(
    folder: Path, split: Split, *, inline: bool = False, messages: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield the trainer rows of one split of a run, in the order of its file.

    A row has `prompt`, `rubric`, `grounding`, `ground_truth` and `reference_answer`; the last three may be None.
    `rubric` is the reference of the published version, or the criteria as JSON text if none was published.

    Args:
        folder: the run's `--output` folder, after the run has ended.
        split: the file of `splits/` to read.
        inline: write the criteria even if a version was published.
        messages: write prompts as chat messages instead of text.

    Raises:
        ValueError: the folder does not belong to a run, or a record has no question; the message says which.
    """
    file = folder / SPLITS / f"{split}.jsonl"
    if not file.is_file():
        raise ValueError(
            f"{file} does not exist; give the --output folder of a completed `adjudge generate`, which has "
            f"{RUBRICS_FILE}"
        )
    references = {} if inline else {one["key"]: one["reference"] for one in read_records(folder / PUBLISHED_FILE)}
    for number, record in enumerate(read_records(file), 1):
        question = record["metadata"].get("question")
        if not isinstance(question, str) or not question.strip():
            raise ValueError(f"{file}:{number}: the record has no question; remove the line")
        kept = record["record"]
        yield {
            "prompt": [{"role": "user", "content": question}] if messages else question,
            "rubric": references.get(record["key"]) or json.dumps({"criteria": record["criteria"]}, ensure_ascii=False),
            "grounding": kept.get("passage"),
            "ground_truth": record["metadata"].get("ground_truth"),
            "reference_answer": kept.get("reference_answer") or kept.get("ideal_answer"),
        }


def write_rows(folder: Path, out: Path, *, inline: bool = False, messages: bool = False) -> dict[Split, int]:
    """Write a run's `train.jsonl`, `validation.jsonl` and `test.jsonl` into a folder; return the rows in each.

    Raises:
        OSError: a file cannot be written.
        ValueError: as `trainer_rows`, before anything is written.
    """
    if out.resolve() == (folder / SPLITS).resolve():
        raise ValueError(f"{out} contains the run's rubrics; write the rows into another folder")
    rows_by_split = {
        split: list(trainer_rows(folder, split, inline=inline, messages=messages)) for split in get_args(Split)
    }
    out.mkdir(parents=True, exist_ok=True)
    for split, rows in rows_by_split.items():
        _replace(out / f"{split}.jsonl", (json.dumps(row, ensure_ascii=False) for row in rows))
    return {split: len(rows) for split, rows in rows_by_split.items()}
