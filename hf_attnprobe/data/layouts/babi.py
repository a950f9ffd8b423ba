"""bAbI stories with a question, and the sentences that answer it (Weston et al. 2015).

Read are the text files of the archive tasks_1-20_v1-2, and the same as Parquet with
columns `sentences`, `question`, `label` and `supporting_facts`. As in the code of Jain &
Wallace (2019) a text is the story's sentences so far, joined by " . ", without question
mark or last full stop. The rationale is the words of the supporting sentences.
"""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hf_attnprobe.data.layouts.files import Contents, Row, find, lines_of, require
from hf_attnprobe.errors import AttnProbeError


if TYPE_CHECKING:
    import datasets


log = logging.getLogger(__name__)
STEMS = {
    "babi1": "qa1_single-supporting-fact",
    "babi2": "qa2_two-supporting-facts",
    "babi3": "qa3_three-supporting-facts",
}
# The versions with 10,000 questions, which the paper takes, come first.
PLACES = (
    "",
    "en-10k",
    "tasks_1-20_v1-2/en-10k",
    "en",
    "tasks_1-20_v1-2/en",
)


def read_babi(folder: Path, name: str) -> Contents | None:
    """Rows of `text`, `text_pair`, `label` and `rationale`; None without such files."""
    stem = STEMS[name]
    files = {split: f"{stem}_{split}.txt" for split in ("train", "test")}
    place = find(folder, list(files.values()), PLACES)
    if place is not None:
        _say_which(place, place.name == "en")
        paths = {split: require(place, files[split], name) for split in files}
        return Contents({split: _stories(paths[split]) for split in paths})
    task = stem.partition("_")[0]
    for place in (folder / f"{task}_10k", folder / task, folder):
        if list(place.glob("train*.parquet")):
            _say_which(place, place.name == task)
            return _parquet(place, int(name[-1]))
    return None


def _say_which(place: Path, is_small: bool) -> None:
    if is_small:
        log.warning(f"{place} is the version with 1,000 questions, the paper takes 10,000")


def _stories(path: Path) -> list[Row]:
    """A row for every question of a file."""
    rows = []
    sentences: dict[str, str] = {}  # of the story so far, by the number of their line
    for number, line in lines_of(path):
        place, _, text = line.partition(" ")
        if place == "1":
            sentences = {}
        question, *rest = text.split("\t")
        if not rest:
            sentences[place] = text
            continue
        facts = rest[1].split() if len(rest) == 2 else []
        if not facts or not set(facts) <= sentences.keys():
            raise AttnProbeError(
                f"{path}, line {number}: expected a question, its answer and the lines "
                f"that support it, separated by tabs, got {line!r}; bring the file again"
            )
        order = list(sentences)
        supporting = [order.index(fact) for fact in facts]
        rows.append(_row(sentences.values(), supporting, question, rest[0].strip()))
    return rows


def _parquet(place: Path, task: int) -> Contents:
    """The splits of a folder of Parquet files."""
    import datasets

    files = {}
    for split in ("train", "validation", "test"):
        found = sorted(str(path) for path in place.glob(f"{split}*.parquet"))
        if found:
            files[split] = found
    splits = {}
    # files of this machine, which have no revision
    loaded = datasets.load_dataset("parquet", data_files=files)  # nosec B615
    for split, examples in loaded.items():
        _check(examples, place, task)
        names = examples.features["label"].names
        splits[split] = [
            _row(
                row["sentences"],
                row["supporting_facts"],
                row["question"],
                names[row["label"]],
            )
            for row in examples
        ]
    return Contents(splits)


def _check(examples: "datasets.Dataset", place: Path, task: int) -> None:
    """Raises AttnProbeError where columns are missing or of another task."""
    features = examples.features
    needed = ("sentences", "supporting_facts", "question", "label")
    lacking = [column for column in needed if column not in features]
    if lacking or not hasattr(features["label"], "names"):
        raise AttnProbeError(
            f"expected the columns {', '.join(needed)} with named labels in the Parquet "
            f"files of {place}, got {', '.join(features)}; `attnprobe datasets "
            f"babi{task}` says what to bring"
        )
    others = {row["task"] for row in examples if "task" in row} - {task}
    if others:
        raise AttnProbeError(
            f"expected questions of task {task} in {place}, got task {min(others)}; give "
            "the folder of the task itself"
        )


def _row(sentences: Iterable[str], supporting: Sequence[int], question: str, answer: str) -> Row:
    words: list[str] = []
    rationale: list[int] = []
    for place, sentence in enumerate(sentences):
        if place:
            words.append(".")
        own = sentence.strip().removesuffix(".").split()
        if place in supporting:
            rationale += range(len(words), len(words) + len(own))
        words += own
    return {
        "text": " ".join(words),
        "text_pair": question.strip().removesuffix("?").strip(),
        "label": answer,
        "rationale": rationale,
    }
