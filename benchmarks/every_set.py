"""What every set of a text's units costs: seconds per text, and the share of what a matrix product reaches.

    OMP_NUM_THREADS=1 python benchmarks/every_set.py --model minilm-sst --dataset sst --limit 1000

Of texts of up to ``--units`` units, by the test ``shapley``, in float32 on the CPU clock. Operations are counted as
PyTorch runs them, padding included.
"""

import argparse
import time

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoTokenizer
from work import peak

from hf_attnprobe import Data, wrap
from hf_attnprobe.checkpoints.loading import load_model
from hf_attnprobe.faithfulness.options import Shapley
from hf_attnprobe.faithfulness.shapley import shapley
from hf_attnprobe.inference.batching import collate, sort_by_length
from hf_attnprobe.inference.choices import encode_examples
from hf_attnprobe.protocol import ALL, Site


def main() -> None:
    """Prints texts, sets, seconds per text, and operations per second beside the peak."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--limit", type=int, default=1000)
    parser.add_argument("--units", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=8)
    given = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    adapter = wrap(load_model(given.model), dtype=torch.float32)
    texts = encode_examples(tokenizer, Data(given.dataset).load_examples(), adapter).texts
    few = sort_by_length([text for text in texts if text.n_content <= given.units][: given.limit])
    options, site = Shapley(exact_units=given.units), Site(ALL, ALL)
    n_sets, seconds = 0, 0.0
    for start in range(0, len(few), given.batch_size):
        batch = collate(adapter, few[start : start + given.batch_size], tokenizer.pad_token_id)
        n_sets += int((2 ** batch.content_mask.sum(-1)).sum())
        begun = time.process_time()
        shapley(adapter.observe(batch), site, options)
        of_last = time.process_time() - begun
        seconds += of_last
    # The last batch has the longest texts.
    with FlopCounterMode(display=False) as counter:
        shapley(adapter.observe(batch), site, options)
    rate, most = counter.get_total_flops() / of_last / 1e9, peak(torch.float32, seconds=3) / 1e9
    print(f"{len(few)} texts of up to {given.units} units, {n_sets:,} sets")
    print(f"{seconds / len(few):.2f} s a text, {1e3 * seconds / n_sets:.2f} ms a set")
    print(
        f"the longest texts: {rate:.0f} Gflop/s, {rate / most:.0%} of a matrix product's {most:.0f}"
    )


if __name__ == "__main__":
    main()
