"""Labelled data sets by name: a user's own rows, and public data sets in the form in which each is published."""

import ast
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from judge_server.evaluation.labelled import (
    DatasetError,
    Example,
    LabelledPair,
    LabelledResponse,
    criterion,
    json_lines,
    labelled_response,
    labelled_steps,
    read_rows,
    up_to_first_wrong,
)


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader, what its labels are, and whether anything may be fitted on them."""

    read: Callable[[Path], Iterator[Example]]
    labelled_by: str
    measured_only: bool = False


def processbench(file: Path) -> Iterator[Example]:
    """Yield solutions with people's index of the first wrong step (ProcessBench: `steps`, `label`, -1 for none)."""
    for row in rows(file):
        steps, first = row["steps"], None if row["label"] < 0 else row["label"] + 1
        labels = up_to_first_wrong(len(steps), first)
        yield labelled_steps(row["id"], row["problem"], steps, labels, row.get("split", ""))


def prm800k(file: Path) -> Iterator[Example]:
    """Yield solutions with people's rating of each step (PRM800K: 1 and 0 count as right, -1 as wrong).

    Of the completions offered for a step, the one that the labeller continued with is taken, or the first one where
    they stopped. A step that the labeller wrote is right.
    """
    for number, row in enumerate(rows(file), 1):
        texts, labels = [], {}
        for place, step in enumerate(row["label"]["steps"], 1):
            chosen = step["chosen_completion"]
            if chosen is None and step["human_completion"]:
                texts.append(step["human_completion"]["text"])
                labels[place] = 1.0
                continue
            if not step["completions"]:
                break
            completion = step["completions"][chosen or 0]
            texts.append(completion["text"])
            if completion["rating"] is not None:
                labels[place] = float(completion["rating"] >= 0)
        if labels:
            yield labelled_steps(f"prm800k-{number}", row["question"]["problem"], texts, labels)


def prmbench(file: Path) -> Iterator[Example]:
    """Yield solutions into which mistakes were written, with the steps that are wrong (PRMBench).

    The same problem comes once for each kind of mistake, with the kind before its `idx` in the published file, and is
    one row here. Solutions whose wrong steps lie beyond their last step, a few of them, are left out.
    """
    for row in rows(file):
        steps, wrong, kind = row["modified_process"], set(row["error_steps"]), str(row.get("classification", ""))
        if wrong and max(wrong) > len(steps):
            continue
        labels = {number: float(number not in wrong) for number in range(1, len(steps) + 1)}
        question = row.get("modified_question") or row.get("question") or row["original_question"]
        yield labelled_steps(str(row["idx"]).removeprefix(f"{kind}_"), question, steps, labels, kind)


def llmbar(file: Path) -> Iterator[Example]:
    """Yield pairs of outputs with the one that people agree is better (LLMBar: `output_1`, `output_2`, `label`)."""
    for row in rows(file):
        texts = row["input"], row["input"], row["output_1"], row["output_2"]
        yield LabelledPair(*texts, "a" if str(row["label"]) == "1" else "b", str(row.get("subset", "")))


def judgebench(file: Path) -> Iterator[Example]:
    """Yield pairs of answers of which one is right (JudgeBench: `response_A`, `response_B`, `label`)."""
    for row in rows(file):
        if row["label"] in ("A>B", "B>A"):
            texts = str(row["pair_id"]), row["question"], row["response_A"], row["response_B"]
            yield LabelledPair(*texts, "a" if row["label"] == "A>B" else "b", str(row.get("source", "")))


def rewardbench(file: Path) -> Iterator[Example]:
    """Yield pairs with the response that its subset holds for the better one (RewardBench: `chosen`, `rejected`)."""
    for row in rows(file):
        texts = row["prompt"], row["prompt"], row["chosen"], row["rejected"]
        yield LabelledPair(*texts, "a", str(row.get("subset", "")))


LLM_RUBRIC = {
    "Q1": "The assistant's turns read naturally.",
    "Q2": "What the assistant says is backed by sources that it cites.",
    "Q3": "Each source that the assistant cites supports what it is cited for.",
    "Q4": "The sources that the assistant cites are good ones.",
    "Q5": "The assistant does not repeat itself.",
    "Q6": "The assistant stays on the topic that the user asks about.",
    "Q7": "The assistant tells the user all that they want to know.",
    "Q8": "The assistant says things in few words.",
    "Q0": "The user would be satisfied with the conversation.",
}
"""LLM-Rubric's questions about a conversation, as statements in our words."""


def llm_rubric(file: Path) -> Iterator[Example]:
    """Yield conversations with a person's answers from 1 to 4 to nine questions (LLM-Rubric), as labels in [0, 1]."""
    for row in rows(file):
        turns = "\n\n".join(f"{turn['role']}: {turn['content']}" for turn in row["conversation"]["messages"])
        answers = {name: str(row["human"].get(name)) for name in LLM_RUBRIC}
        asked = [
            (name, text, (int(answers[name]) - 1) / 3 if answers[name] in ("1", "2", "3", "4") else None)
            for name, text in LLM_RUBRIC.items()
        ]
        yield labelled_response(row["human"]["text_id"], "Hold a conversation with the user.", turns, asked)


def contractnli(file: Path) -> Iterator[Example]:
    """Yield contracts with hypotheses as criteria, which are met if the contract entails them (ContractNLI).

    Reads the published JSON (`documents` and `labels`), and JSONL with a contract and its `criteria` per line.
    """
    contracts = _published_contracts(file) if file.suffix == ".json" else rows(file)
    for row in sorted(contracts, key=lambda row: len(row["text"])):
        asked = [(one["id"], one["hypothesis"], one["choice"] == "Entailment") for one in row["criteria"]]
        yield labelled_response(row["id"], "Draw up a non-disclosure agreement.", row["text"], asked)


def _published_contracts(file: Path) -> Iterator[dict[str, Any]]:
    published = json.loads(file.read_text(encoding="utf-8"))
    for document in published["documents"]:
        annotations = document["annotation_sets"][0]["annotations"]
        yield {
            "id": document["id"],
            "text": document["text"],
            "criteria": [
                {"id": name, "hypothesis": published["labels"][name]["hypothesis"], "choice": found["choice"]}
                for name, found in annotations.items()
            ],
        }


def infobench(file: Path) -> Iterator[Example]:
    """Yield responses with experts' yes-no questions about them, and the verdict on each (InfoBench: `eval`)."""
    for row in rows(file):
        answered = zip(row["decomposed_questions"], row["eval"], strict=True)
        asked = [(f"q{n}", question, met) for n, (question, met) in enumerate(answered, 1)]
        prompt = f"{row['instruction']}\n\n{row['input']}".strip()
        yield labelled_response(row["id"], prompt, row["output"], asked, row.get("subset", ""))


def healthbench(file: Path) -> Iterator[Example]:
    """Yield conversations with criteria and verdicts: of physicians, or of another judge.

    Reads HealthBench's meta-evaluation (`completion`, `rubric`, `binary_labels`; met if most physicians say so, and
    left out if they are split), and rows of responses with another judge's verdicts (`rubrics`, `responses`).
    """
    for row in rows(file):
        prompt = "\n\n".join(f"{message['role']}: {message['content']}" for message in row["prompt"])
        if "binary_labels" in row:
            votes = row["binary_labels"]
            if 2 * sum(votes) != len(votes):
                asked = [("c1", row["rubric"], 2 * sum(votes) > len(votes))]
                yield labelled_response(row["prompt_id"], prompt, row["completion"], asked, row.get("category", ""))
            continue
        judged = zip(row["rubrics"], ast.literal_eval(row["responses"]), strict=True)
        asked = [
            (f"c{n}", rubric["criterion"], bool(verdict["response_dict"]["criteria_met"]))
            for n, (rubric, verdict) in enumerate(judged, 1)
        ]
        yield labelled_response(row["prompt_id"], prompt, row["prompt_response"][-1]["content"], asked)


def biggen(file: Path) -> Iterator[Example]:
    """Yield responses with a person's score from 1 to 5 by an instance's own rubric (BiGGen: `human_score`)."""
    for row in rows(file):
        if row.get("human_score") is None:
            raise DatasetError(
                f"{file}: row {row.get('id')} has no human_score; use the split human_eval of the benchmark's results"
            )
        rubric = row["score_rubric"]
        guide = "\n".join(f"{n}: {rubric[f'score{n}_description']}" for n in range(1, 6))
        asked = criterion("c1", rubric["criteria"]).model_copy(update={"scoring_guide": guide})
        yield LabelledResponse(
            str(row["id"]),
            f"{row.get('system_prompt') or ''}\n\n{row['input']}".strip(),
            row["response"],
            (asked,),
            {"c1": (float(row["human_score"]) - 1) / 4},
            str(row.get("capability", "")),
            reference_answer=row.get("reference_answer"),
        )


SUMMEVAL = {
    "coherence": "The sentences of the summary fit together into a well-organized whole.",
    "consistency": "The source supports every fact in the summary.",
    "fluency": "Every sentence of the summary is well formed and reads easily.",
    "relevance": "The summary selects what is important in the source, and nothing else.",
}


def summeval(file: Path) -> Iterator[Example]:
    """Yield summaries with experts' mean scores from 1 to 5 on four qualities (SummEval), as labels in [0, 1].

    Reads rows with all summaries of an article (`text`, `machine_summaries` and a list per quality), and rows with one
    summary (`text`, `decoded`, `expert_annotations`).
    """
    for row in rows(file):
        if "text" not in row:
            raise DatasetError(f"{file}: row {row.get('id')} has no text; pair the annotations with their articles")
        if "machine_summaries" in row:
            scored = [
                (summary, {name: row[name][place] for name in SUMMEVAL})
                for place, summary in enumerate(row["machine_summaries"])
            ]
        else:
            experts = row["expert_annotations"]
            scored = [(row["decoded"], {name: sum(one[name] for one in experts) / len(experts) for name in SUMMEVAL})]
        for summary, scores in scored:
            asked = [(name, text, (float(scores[name]) - 1) / 4) for name, text in SUMMEVAL.items()]
            yield labelled_response(row["id"], "Summarize the article.", summary, asked, grounding=row["text"])


SUPPORTED = "What the response states is supported by the source."
ANSWER_SUPPORTED = "The answer is what the findings of the source support."


def wice(file: Path) -> Iterator[Example]:
    """Yield sentences of Wikipedia and whether the page that they cite supports them (WiCE: `claim`, `evidence`).

    Met if people say that all of it is supported; partly is not met.
    """
    for row in rows(file):
        name, source = row.get("id") or row["meta"]["id"], "\n".join(row["evidence"])
        asked = [("supported", SUPPORTED, row["label"] == "supported")]
        yield labelled_response(name, "Write one sentence for an encyclopedia.", row["claim"], asked, grounding=source)


def pubmedqa(file: Path) -> Iterator[Example]:
    """Yield research questions answered with yes, and whether the abstract says so (PubMedQA, labelled by experts).

    Reads the published JSON (by number, in capitals) and rows with `question`, `contexts` and `final_decision`. Those
    decided as maybe are left out.
    """
    for row in rows(file):
        for one in [row] if "question" in row else _published(row):
            if one["final_decision"] == "maybe":
                continue
            asked = [("supported", ANSWER_SUPPORTED, one["final_decision"] == "yes")]
            source = "\n".join(one["contexts"] if "contexts" in one else one["context"]["contexts"])
            name = one["id"] if "id" in one else one["pubid"]
            yield labelled_response(name, one["question"], "Yes.", asked, grounding=source)


def _published(abstracts: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for number, abstract in abstracts.items():
        yield {"id": number} | {name.lower(): value for name, value in abstract.items()}


def rows(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSONL file, or of a JSON file with a list of them."""
    if file.suffix == ".json":
        try:
            listed = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DatasetError(f"{file} cannot be read: {error}") from None
        yield from listed if isinstance(listed, list) else [listed]
        return
    for _, row in json_lines(file):
        yield row


READERS: Mapping[str, Reader] = {
    "jsonl": Reader(read_rows, "the file's author"),
    "processbench": Reader(processbench, "people"),
    "prm800k": Reader(prm800k, "people"),
    "prmbench": Reader(prmbench, "construction"),
    "llmbar": Reader(llmbar, "people"),
    "judgebench": Reader(judgebench, "programs"),
    "rewardbench": Reader(rewardbench, "people or construction"),
    "llm-rubric": Reader(llm_rubric, "people"),
    "contractnli": Reader(contractnli, "people"),
    "infobench": Reader(infobench, "GPT-4 or people"),
    "healthbench": Reader(healthbench, "physicians or a judge", measured_only=True),
    "biggen": Reader(biggen, "people"),
    "summeval": Reader(summeval, "people"),
    "wice": Reader(wice, "people"),
    "pubmedqa": Reader(pubmedqa, "experts"),
}
"""The readers by name. A data set is named `READER:PATH`; without a reader it is `jsonl`."""


def read_dataset(
    dataset: str, columns: Mapping[str, str] | None = None, notify: Callable[[str], None] = lambda _: None
) -> tuple[Reader, list[Example]]:
    """Read `READER:PATH`, or the path or URL of a file of your own rows; return the reader and the examples in order.

    `columns` and `notify` are as for `read_rows`.

    Raises:
        DatasetError: the file cannot be read, has another form, or has no example.
    """
    name, colon, path = dataset.partition(":")
    known = bool(colon) and name in READERS
    own = not known or name == "jsonl"
    reader, file = (READERS[name], path) if known else (READERS["jsonl"], dataset)
    if columns and not own:
        raise DatasetError(f"the reader {name!r} knows its columns; leave out --column")
    if colon and not known and "://" not in dataset and not Path(dataset).exists():
        raise DatasetError(f"there is no reader {name!r}; use one of {', '.join(READERS)}")
    try:
        examples = list(read_rows(file, columns, notify) if own else reader.read(Path(file)))
    except DatasetError:
        raise
    except (KeyError, TypeError, IndexError, ValueError, SyntaxError) as error:
        if own:
            raise DatasetError(str(error)) from None
        what = f"a field {error} is missing" if isinstance(error, KeyError) else str(error)
        raise DatasetError(f"{file} does not have the form that the reader {name!r} expects: {what}") from None
    if not examples:
        raise DatasetError(f"{file} has no labelled example")
    return reader, examples
