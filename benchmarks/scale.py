"""Does memory stay flat as the texts grow? Synthetic texts on a tiny classifier.

    python benchmarks/scale.py 10000 1000000 --folder scale

For each number of texts: the largest resident set of the plan, of every worker and of the
report (``ru_maxrss`` of that process alone), CPU seconds, wall seconds, and the bytes of
the job's folder. Every step is a process of its own, as a user would start it.
"""

import argparse
import itertools
import json
import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path


WORDS = ["".join(letters) for letters in itertools.product("bdfgk", "aeiou", "lmnrst")]
TESTS = ["uniform_attention"]


def make_texts(file: Path, n_texts: int) -> None:
    """Texts of 5 to 20 words as JSON lines, the label by the first word."""
    draw = random.Random(0)
    with file.open("w") as lines:
        for number in range(n_texts):
            words = draw.choices(WORDS, k=draw.randint(5, 20))
            row = {"example_id": number, "text": " ".join(words)}
            lines.write(json.dumps(row | {"label": int(words[0] < "f")}) + "\n")


def make_model(folder: Path) -> None:
    """A classifier of 8 units with random weights, and its tokenizer."""
    import torch

    from hf_attnprobe import (
        AttentionClassifierConfig,
        AttentionClassifierForSequenceClassification,
        build_tokenizer,
    )

    torch.manual_seed(0)
    tokenizer = build_tokenizer([" ".join(WORDS)] * 10)
    config = AttentionClassifierConfig(
        vocab_size=len(tokenizer), embedding_size=8, encoder="none", encoder_size=8
    )
    AttentionClassifierForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def measured(*command: str) -> dict[str, float]:
    """Runs a command of attnprobe; its largest resident set, CPU and wall time."""
    start = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "hf_attnprobe", *command])
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"attnprobe {' '.join(command)} ended with {status}")
    return {
        "rss_mb": round(usage.ru_maxrss / 1024, 1),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 1),
        "wall_s": round(time.monotonic() - start, 1),
    }


def measure(n_texts: int, folder: Path, partitions: int) -> dict[str, object]:
    """All steps of one job."""
    folder.mkdir(parents=True, exist_ok=True)
    data, model, job = folder / "test.jsonl", folder / "model", folder / "job"
    make_texts(data, n_texts)
    make_model(model)
    asked = ["--model", str(model), "--dataset", str(data), "--tests", *TESTS]
    asked += ["--batch-size", "512", "--dtype", "float32"]
    cut = ["--partitions", str(partitions), "--output-dir", str(job)]
    found: dict[str, object] = {"texts": n_texts, "partitions": partitions}
    found["plan"] = measured("plan", *asked, *cut)
    found["work"] = measured("work", str(job))
    found["report"] = measured("report", str(job), "--output", str(folder / "r.json"))
    sizes = {
        name: sum(f.stat().st_size for f in (job / name).iterdir()) for name in ("texts", "parts")
    }
    return found | {"bytes": sizes}


def main() -> None:
    """Measures every number of texts and prints a line of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", type=int, nargs="+")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--per-partition", type=int, default=5000)
    given = parser.parse_args()
    for n_texts in given.texts:
        partitions = max(2, n_texts // given.per_partition)
        found = measure(n_texts, given.folder / str(n_texts), partitions)
        print(json.dumps(found), flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"this script itself: {peak:.0f} MB")


if __name__ == "__main__":
    main()
