"""What an audit of a language model finds in planted prompts, and what it takes.

    python benchmarks/language_audit.py MODEL [--prompts 60] [--given] [--dtype bfloat16]
    python benchmarks/language_audit.py MODEL --growth

Every one of 8 sentences says an answer of its kind, in four templates that `language.py` does not
have; the model answers by itself, or the right answers are given (a small model says few of
them), and then no weights are shuffled. Growth: one prompt of each size, passages of 200, 800 and 3,200
tokens, 8 to 64 sentences.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hf_attnprobe import Answers, AuditOptions, audit
from hf_attnprobe.statistics.estimates import compute_share_interval


COLOURS = [
    "red",
    "blue",
    "green",
    "yellow",
    "white",
    "black",
    "brown",
    "grey",
    "pink",
    "purple",
    "orange",
    "golden",
]
THINGS = ["box", "lamp", "vase", "clock", "jar", "cup", "bag", "key"]
CITIES = [
    "Oslo",
    "Madrid",
    "Cairo",
    "Lima",
    "Prague",
    "Dublin",
    "Tokyo",
    "Boston",
    "Athens",
    "Vienna",
    "Paris",
    "Rome",
]
GUESTS = [
    "Alice",
    "Bruno",
    "Carla",
    "Denis",
    "Ella",
    "Felix",
    "Greta",
    "Harry",
    "Irene",
    "Jonas",
    "Kira",
    "Leon",
]
TEAMS = [
    "finance",
    "design",
    "legal",
    "sales",
    "support",
    "research",
    "print",
    "travel",
    "press",
    "safety",
    "food",
    "music",
]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
TEMPLATES: Sequence[tuple[str, str, Sequence[str], Sequence[str]]] = (
    ("The {0} vase stands on shelf {1}.", "On which shelf does the {0} vase stand?", COLOURS,
     [str(n) for n in range(11, 40)]),
    ("The train to {0} leaves at {1} in the morning.", "When does the train to {0} leave?", CITIES,
     [f"{hour}:{minute:02}" for hour in (6, 7, 8, 9) for minute in (5, 20, 35, 50)]),
    ("{0} paid {1} euros for the ticket.", "How many euros did {0} pay?", GUESTS,
     [str(n) for n in range(21, 60)]),
    ("The {0} team meets every {1}.", "On which day does the {0} team meet?", TEAMS, DAYS),
)  # fmt: skip
SIZES = ((200, 8), (200, 16), (800, 8), (800, 16), (800, 64), (3200, 16), (3200, 64))
"""Tokens and sentences of a passage."""
FILLER = [
    "and",
    "the",
    "people",
    "of",
    "the",
    "house",
    "said",
    "later",
    "that",
    "they",
    "had",
    "known",
    "it",
    "for",
    "a",
    "long",
    "time",
]


def planted(n: int, n_sentences: int = 8, seed: int = 0) -> list[dict[str, Any]]:
    """Prompts, each with the number of the sentence that is asked for and its answer."""
    draws, rows = random.Random(seed), []
    for k in range(n):
        statement, question, names, values = TEMPLATES[k % len(TEMPLATES)]
        who = draws.sample(names, n_sentences)
        said = draws.choices(values, k=n_sentences)
        asked = draws.randrange(n_sentences)
        # nobody else says the same: then the answer would rest on both
        others = [value for value in values if value != said[asked]]
        said = [said[k] if k == asked else draws.choice(others) for k in range(n_sentences)]
        sentences = [statement.format(*pair) for pair in zip(who, said, strict=True)]
        rows.append(
            {
                "context": " ".join(sentences),
                "question": question.format(who[asked]),
                "asked": asked,
                "value": said[asked],
            }
        )
    return rows


def share(name: str, hits: Sequence[bool]) -> None:
    low, high = compute_share_interval(np.array(sum(hits)), np.array(len(hits)))
    print(f"{name}: {np.mean(hits):.3f} [{low:.3f}, {high:.3f}] of {len(hits)}")


def measure(model: str, n: int, is_given: bool, dtype: str | None) -> None:
    """Prints precision@1 over prompts, the report and its cost."""
    rows = planted(n)
    asked = [{k: row[k] for k in ("context", "question")} for row in rows]
    if is_given:
        asked = [one | {"answer": row["value"]} for one, row in zip(asked, rows, strict=True)]
    start = time.process_time()
    tests = ["sources", "knockout"] if is_given else None
    report = audit(model, Answers(asked), tests, options=AuditOptions(dtype=dtype))
    report.save_html("language_audit.html")
    seconds = time.process_time() - start
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    number_format = dtype or "the model's number format"
    print(f"{seconds:.1f} CPU s in {number_format} with answers and page, {gigabytes:.2f} GB")
    right = {e.example_id: rows[e.example_id]["value"] in e.predicted for e in report.examples}
    own = {k for k in right if right[k] and not is_given}
    share("right answers", [*right.values()])
    frame = report.sentences()
    for some, ids in (("all", set(range(n))), ("right", own)):
        if not ids:
            continue
        for name in ("leave_one_out", "knockout", "attention"):
            first = frame.loc[frame.groupby("example_id")[name].idxmax()]
            places = zip(first.example_id, first.unit, strict=True)
            share(f"{name}, {some}", [u - 1 == rows[k]["asked"] for k, u in places if k in ids])
    print(report)


def measure_growth(model: str) -> None:
    """Prints seconds and memory of a prompt of each size, each in a process of its own."""
    for n_tokens, n_sentences in SIZES:
        command = [sys.executable, __file__, model, "--size", str(n_tokens), str(n_sentences)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        print(done.stdout.splitlines()[-1], flush=True)


def measure_size(model: str, n_tokens: int, n_sentences: int) -> None:
    n_words = max(n_tokens // n_sentences - 2, 3)
    draws = random.Random(0)
    sentences = [
        " ".join(["The", *draws.choices(FILLER, k=n_words)]) + "." for _ in range(n_sentences)
    ]
    sentences[n_sentences // 2] = "The golden key lies in the old boat."
    asked = {"context": " ".join(sentences), "question": "Where does the golden key lie?"}
    given = [{**asked, "answer": "In the old boat."}]
    start = time.process_time()
    report = audit(model, Answers(given), progress=False)
    seconds = time.process_time() - start
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        json.dumps(
            {"tokens": n_tokens, "sentences": n_sentences, "CPU s": round(seconds, 1)}
            | {"GB": round(gigabytes, 2), "said": report.examples[0].importance_summary}
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder or Hub id of a causal language model")
    parser.add_argument("--prompts", type=int, default=60)
    parser.add_argument("--given", action="store_true", help="give the right answers")
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="number format")
    parser.add_argument("--size", type=int, nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.size:
        measure_size(given.model, *given.size)
    elif given.growth:
        measure_growth(given.model)
    else:
        measure(given.model, given.prompts, given.given, given.dtype)


if __name__ == "__main__":
    main()
