"""What an audit costs with its control, beside the same audit without.

    OMP_NUM_THREADS=1 python benchmarks/control_cost.py --model sst-bilstm --dataset sst

Both take turns in one process, with all tests that suit the model, on the CPU clock; the first turn warms up and does
not count.
"""

import argparse
import time
from statistics import median

import torch
from transformers import AutoTokenizer

from hf_attnprobe import AuditOptions, Data, audit
from hf_attnprobe.checkpoints.loading import load_model


def seconds(model, tokenizer, data: Data, control: str) -> float:
    """CPU seconds of one audit."""
    start = time.process_time()
    audit(
        model,
        data,
        options=AuditOptions(control=control),
        tokenizer=tokenizer,
        progress=False,
    )
    return time.process_time() - start


def main() -> None:
    """Prints seconds with and without, and their ratio."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--limit", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model(given.model)
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    data = Data(given.dataset, test_limit=given.limit)
    seconds(model, tokenizer, Data(given.dataset, test_limit=20), "randomised")
    ratios = []
    for _ in range(given.repeats):
        alone = seconds(model, tokenizer, data, "none")
        beside = seconds(model, tokenizer, data, "randomised")
        ratios.append(beside / alone)
        print(f"without {alone:.1f} s, with {beside:.1f} s, {ratios[-1]:.2f} times")
    low, high = min(ratios), max(ratios)
    print(f"median {median(ratios):.2f} times ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
