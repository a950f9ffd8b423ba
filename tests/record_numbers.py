"""Record all numbers that audits of eight small models compute, or compare them with an earlier record.

    python -m tests.record_numbers FOLDER              # at the commit before
    python -m tests.record_numbers FOLDER --compare    # at the commit after

Use it for changes that should not affect any number, such as renaming or moving code. Every row of every test and every
number of every summary is compared, with a tolerance of 1e-12. Make both records on the same machine, since trainings
differ between machines in the last bits.
"""

import argparse
import json
import math
import os
import shutil
import tempfile
from pathlib import Path


os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

import torch

from hf_attnprobe import (
    Answers,
    AttentionClassifierConfig,
    audit,
    build_tokenizer,
    make_rationale_dataset,
    train_classifier,
)
from hf_attnprobe.audits.options import AuditOptions
from hf_attnprobe.data.specs import Data
from hf_attnprobe.demonstration import DemoOptions, demo
from hf_attnprobe.faithfulness.options import Adversarial, InputErasure, Permutation
from hf_attnprobe.faithfulness.registry import load_tests
from hf_attnprobe.protocol import AnswersFromPassage
from hf_attnprobe.retraining.options import Adversary, Seeds
from hf_attnprobe.retraining.run import retrain
from hf_attnprobe.storage.rows import read_rows
from hf_attnprobe.studies.run import study
from hf_attnprobe.studies.steps import Steps, StudyOptions
from hf_attnprobe.training.classifier import build_model
from hf_attnprobe.training.options import TrainingOptions
from tests.helpers import tiny_language_models, tiny_models


TOLERANCE = 1e-12
"""Largest relative or absolute difference between two numbers that count as equal."""
TEXTS = (
    "the plot was dull . the cast was fine ! we left .",
    "a moving film",
    "word",
    "the cast was dull . unheardof words here ? a fine plot .",
    "zzz qqq . the film",
    "fine . dull",
)
SIZES = {"embedding_size": 12, "encoder_size": 6}
QUICKLY = {"epochs": 2, "learning_rate": 0.01, "batch_size": 16}
SMALL = SIZES | QUICKLY


def record_demo(folder: Path) -> None:
    """Run `attnprobe demo`, which trains and audits a classifier."""
    options = DemoOptions(n_examples=300, epochs=2)
    demo(folder / "demo", options=options, progress=False)


def record_bert(folder: Path) -> None:
    """Run every test at every head of a BERT with random weights, on data with human rationales."""
    data = make_rationale_dataset(60, seed=0)["test"]
    tokenizer = build_tokenizer(data["text"])
    tokenizer.model_max_length = 64
    bert = tiny_models.saved(
        folder / "bert", tiny_models.bert(tokenizer, heads=3, width=24, spread=0.5), tokenizer
    )
    few = Data(data, test_limit=6)
    every = [name for name, test in load_tests().items() if AnswersFromPassage not in test.needs]
    every += [Permutation(n_permutations=5), Adversarial(n_steps=3, n_starts=2)]
    every += [InputErasure(beam_width=2)]
    audit(bert, few, every, output_dir=folder / "bert-audit", progress=False)
    screened = ["default", Permutation(n_permutations=5), InputErasure(by="mask")]
    options = AuditOptions(screen=2, level="token", seed=3)
    given = {"options": options, "output_dir": folder / "bert-screened", "progress": False}
    audit(bert, few, screened, **given)


VOCABULARY = "the a film plot cast was is dull fine moving who what ann bob lives in rome".split()  # noqa: SIM905
"""Words of the random texts that are audited."""


def draw_words(n_words: int, generator: torch.Generator) -> list[str]:
    """Draw random words."""
    numbers = torch.randint(len(VOCABULARY), (n_words,), generator=generator)
    return [VOCABULARY[number] for number in numbers.tolist()]


def record_pairs_and_tags(folder: Path) -> None:
    """Audit a classifier of text pairs and a token classifier, with all heads."""
    generator = torch.Generator().manual_seed(0)
    tokenizer = tiny_models.word_pieces(VOCABULARY, model_max_length=64)
    pairs = [
        {
            "premise": " ".join(draw_words(6 + number % 3, generator)),
            "hypothesis": " ".join(draw_words(4, generator)),
            "label": number % 3,
        }
        for number in range(12)
    ]
    data = Data(pairs, text_column="premise", text_pair_column="hypothesis")
    model = tiny_models.bert(tokenizer, num_labels=3)
    audit(model, data, tokenizer=tokenizer, output_dir=folder / "pairs", progress=False)
    tags = [
        {
            "tokens": draw_words(7, generator),
            "ner_tags": torch.randint(2, (7,), generator=generator).tolist(),
        }
        for _ in range(12)
    ]
    model = tiny_models.bert(tokenizer, **tiny_models.HEADS["tags"])
    audit(model, tags, tokenizer=tokenizer, output_dir=folder / "tags", progress=False)


def record_language_model(folder: Path) -> None:
    """Audit a Llama with random weights on five prompts."""
    tokenizer = tiny_language_models.tokenizer()
    names, towns = ("Ann", "Bob", "Li"), ("Rome", "Oslo", "Bern")
    prompts = [
        {
            "context": " ".join(
                f"{name} lives in {towns[(prompt + index) % 3]}."
                for index, name in enumerate(names)
            ),
            "question": f"Where does {names[prompt % 3]} live?",
            "answer": towns[2 * prompt % 3],
        }
        for prompt in range(5)
    ]
    model = tiny_language_models.llama(tokenizer)
    audit(
        model,
        Answers(prompts),
        tokenizer=tokenizer,
        output_dir=folder / "prompts",
        progress=False,
    )


def record_hierarchical(folder: Path) -> None:
    """Audit a hierarchical classifier (words and sentences) with random weights."""
    tokenizer = build_tokenizer(TEXTS, sentences=True, min_document_frequency=1)
    torch.manual_seed(0)
    sizes = {"embedding_size": 8, "encoder_size": 4, "attention_size": 4}
    config = AttentionClassifierConfig(encoder="bigru", hierarchical=True, **sizes)
    model = build_model(config, tokenizer, ["negative", "positive"]).eval()
    rows = [{"example_id": k, "text": text, "label": k % 2} for k, text in enumerate(TEXTS)]
    given = {"output_dir": folder / "hierarchical", "progress": False}
    audit(model, rows, ["default", Permutation(n_permutations=5)], tokenizer=tokenizer, **given)


def record_retraining(folder: Path) -> None:
    """Run all retraining tests on a BiLSTM."""
    data = make_rationale_dataset(150, seed=0)
    splits = data["train"], data["validation"]
    given = {"options": TrainingOptions(**QUICKLY), "progress": False}
    train_classifier(
        AttentionClassifierConfig(**SIZES), *splits, output_dir=folder / "base", **given
    )
    kinds = ["default", Seeds(n_seeds=2), Adversary(lambdas=[0.05, 0.001], epochs=3)]
    retrain(folder / "base", data, kinds, output_dir=folder / "retrained", progress=False)


def record_study(folder: Path) -> None:
    """Run a study with trainings, audits and transfers on a grid, and its tables."""
    for name, examples in make_rationale_dataset(150, seed=0).items():
        frame = examples.remove_columns("rationale").to_pandas()
        (folder / "reviews").mkdir(exist_ok=True)
        frame.to_json(folder / "reviews" / f"{name}.jsonl", orient="records", lines=True)
    options = StudyOptions(dataset=f"reviews={folder / 'reviews'}")
    study(tiny, output_dir=folder / "study", options=options, progress=False)


def tiny(s: Steps) -> None:
    """A tiny study"""
    for data in s.grid(dataset=["reviews"]):
        own = s.add("train", "own", data, **data, encoder="mlp", **SMALL)
        for encoder in s.grid(encoder=["mlp", "bilstm"]):
            at = data | encoder
            base = s.add("train", "base", at, **at, **SMALL)
            s.add("audit", "audit", at, model=base, **data)
            s.add("transfer", "transfer", at, model=own, guide=base, **data)
            of_paper = ["fragility", "single_token", "adversarial", "conicity"]
            s.add("audit", "compare", at, model=base, **data, tests=of_paper)
            words = {"words": ["dull", "wonderful"], "epochs": 1}
            s.add("retrain", "deceive", at, model=base, **data, tests={"deception": words})
    room = {"statistic": "epsilon_max_jsd@0.05", "threshold": 0.01, "means": "room"}
    lost = {"score": "transfer/guided/f1", "difference": True}
    s.add_table("Room", audit={"room": room}, transfer={"lost": lost})
    s.add_table("By length", [12, 25], audit={"room": "epsilon_max_jsd@0.05"})


RECORDS = (
    record_demo,
    record_bert,
    record_pairs_and_tags,
    record_language_model,
    record_hierarchical,
    record_retraining,
    record_study,
)


def collect_numbers(folder: Path) -> dict[str, float | str | None]:
    """Return every row and every number of a summary, by file and position in it.

    Times, versions and fingerprints of files are left out.
    """
    numbers: dict[str, float | str | None] = {}
    for rows_folder in sorted({file.parent for file in folder.rglob("*.parquet")}):
        for row in read_rows(rows_folder).itertuples(index=False):
            key = f"{row.test}/{row.statistic}/{row.layer}.{row.head}/{row.example_id}"
            numbers[f"{rows_folder.relative_to(folder)}/{key}"] = row.value
    for file in sorted(folder.rglob("summary.json")):
        for key, value in flatten_numbers(json.loads(file.read_text())):
            numbers[f"{file.relative_to(folder)}{key}"] = value
    return numbers


EXCLUDED_KEYS = ("provenance", "seconds", "versions", "steps", "differences", "arguments")
"""Keys of a summary whose contents are not compared."""


def flatten_numbers(value, key: str = ""):
    """Yield the path and the value of every number in nested data."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name not in EXCLUDED_KEYS:
                yield from flatten_numbers(inner, f"{key}/{name}")
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            yield from flatten_numbers(inner, f"{key}/{name_record(inner, position)}")
    elif isinstance(value, float | int | None):
        yield key, value


NAMING_KEYS = "test statistic method first second group layer head model metric name"
"""Keys whose values identify a record in a list."""


def name_record(record, position: int) -> str:
    """Return a name for a record in a list that does not depend on the order of the list."""
    if not isinstance(record, dict):
        return str(position)
    parts = [Path(str(record[key])).name for key in NAMING_KEYS.split() if key in record]
    return ".".join(parts) or str(position)


def compare(recorded: dict, current: dict) -> list[str]:
    """Return a line for every number that is missing, new or different."""
    lines = [f"missing {key}" for key in recorded.keys() - current.keys()]
    lines += [f"new {key}" for key in current.keys() - recorded.keys()]
    lines += [
        f"{key}: was {recorded[key]}, is {current[key]}"
        for key in recorded.keys() & current.keys()
        if not is_same_number(recorded[key], current[key])
    ]
    return sorted(lines)


def is_same_number(old: float | None, new: float | None) -> bool:
    """Return whether two numbers are equal within the tolerance; NaN equals NaN."""
    if old is None or new is None:
        return old is new
    are_undefined = math.isnan(old) and math.isnan(new)
    return are_undefined or math.isclose(old, new, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def main() -> int:
    """Record the numbers, or compare them and print the differences."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--compare", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as work:
        for step in RECORDS:
            step(Path(work))
        if not arguments.compare:
            shutil.rmtree(arguments.folder, ignore_errors=True)
            arguments.folder.mkdir(parents=True)
            numbers = collect_numbers(Path(work))
            (arguments.folder / "numbers.json").write_text(json.dumps(numbers))
            print(f"{len(numbers)} numbers")
            return 0
        current = collect_numbers(Path(work))
    recorded = json.loads((arguments.folder / "numbers.json").read_text())
    lines = compare(recorded, current)
    print("\n".join(lines[:40]))
    print(f"{len(recorded)} numbers recorded, {len(current)} now, {len(lines)} differ")
    return 1 if lines else 0


if __name__ == "__main__":
    raise SystemExit(main())
