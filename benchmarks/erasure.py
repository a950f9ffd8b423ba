"""Erasure on a flat classifier: cumulative sums against the paper's loop, and smallest sets against a forward pass.

    OMP_NUM_THREADS=1 python benchmarks/erasure.py --model flan-imdb --dataset path/to/imdb --limit 2000

(a) How far each ranking must go until the decision flips (Serrano & Smith 2019, Section 4.3): eight orders, five of
them random. The plain side, in float32 as in the paper, erases one weight per step of all texts of a batch, divides the
rest, decodes the contexts of the whole batch, and stops when every text has flipped or is used up. Ours, in float64,
sorts the scores and takes the sums. Encoder states, token logits, attention and scores are given to both.
(b) The exact smallest sets of all texts against one forward pass of the model, float32 as loaded.

Both sides take turns in one process on one torch thread; texts are tokenized before the clock starts. Bars: (a) 100
times, (b) below the forward pass.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from hf_attnprobe import (
    AttentionClassifierConfig,
    AttentionClassifierForSequenceClassification,
    build_tokenizer,
)
from hf_attnprobe.adapters import wrap
from hf_attnprobe.checkpoints.loading import load_model, load_tokenizer
from hf_attnprobe.data.examples import load_examples
from hf_attnprobe.functional.erasure import (
    compute_removal_order,
    count_removals_to_flip,
    find_minimal_flip_set,
)
from hf_attnprobe.functional.intervention import draw_permutations
from hf_attnprobe.inference.batching import collate
from hf_attnprobe.inference.encoding import tokenize
from hf_attnprobe.protocol import Batch, Site


RANKINGS = ("random",) * 5 + ("attention", "gradient", "product")
BARS = {"rankings": 100.0, "smallest sets": 1.0}


@dataclass(frozen=True)
class Known:
    """What both sides start from. attention, mask: [batch, keys]. states: [batch, keys, hidden]. token_logits: [batch,
    keys, classes]. scores: [orders, batch, keys]."""

    batch: Batch
    attention: Tensor
    mask: Tensor
    states: Tensor
    token_logits: Tensor
    scores: Tensor


def know(adapter, batch: Batch, seed: int) -> Known:
    """One observation, reduced to what is needed: its gradient graph would fill the memory."""
    observation = adapter.observe(batch)
    attention, mask = observation.read(Site()), batch.content_mask
    slope = observation.attention_gradient[0][:, 0, 0]
    shuffled = draw_permutations(
        mask[:, None],
        RANKINGS.count("random"),
        seed=seed,
        example_ids=batch.example_ids,
    )
    scores = torch.cat(
        [
            shuffled[:, :, 0].double(),
            torch.stack([attention, slope, attention * slope]).double(),
        ]
    )
    return Known(
        batch,
        attention,
        mask,
        observation.state.states.detach(),
        adapter.compute_token_logits(observation),
        scores,
    )


def ours(known: Known) -> Tensor:
    """Removals until the decision flips, [orders, batch]."""
    order = compute_removal_order(known.scores, known.mask)
    return count_removals_to_flip(known.attention, known.token_logits, known.mask, order)


@torch.no_grad()
def plain(known: Known, decode: Callable[[Tensor], Tensor], dtype: torch.dtype) -> Tensor:
    """The same by the paper's loop, order by order; decode: from contexts [batch, hidden] to logits."""
    states, attention = known.states.to(dtype), known.attention.to(dtype)
    orders = compute_removal_order(known.scores, known.mask)
    return torch.stack(
        [_one_order(states, attention, known.mask.sum(-1), order, decode) for order in orders]
    )


def _one_order(states: Tensor, attention: Tensor, lengths: Tensor, order: Tensor, decode) -> Tensor:
    first, weights = decode(_contexts(attention, states)).argmax(-1), attention.clone()
    found = torch.full(lengths.shape, torch.nan, dtype=torch.float64)
    for n in range(1, int(lengths.max())):
        weights.scatter_(1, order[:, n - 1 : n], 0)
        weights /= weights.sum(-1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
        flipped = (
            (decode(_contexts(weights, states)).argmax(-1) != first) & (n < lengths) & found.isnan()
        )
        found[flipped] = n
        if not (found.isnan() & (n < lengths - 1)).any():
            break
    return found


def _contexts(weights: Tensor, states: Tensor) -> Tensor:
    return torch.bmm(weights.unsqueeze(1), states)[:, 0]


def smallest(known: Known) -> Tensor:
    """Sizes of the smallest sets, [batch]."""
    return find_minimal_flip_set(known.attention, known.token_logits, known.mask).size


@torch.no_grad()
def forward(model, batch: Batch) -> Tensor:
    """Logits."""
    return model(
        input_ids=batch.inputs["input_ids"],
        attention_mask=batch.inputs["attention_mask"],
    ).logits


def build(texts: Sequence[str], seed: int):
    """A classifier of the paper's size with random weights, large enough that attention is far from uniform."""
    torch.manual_seed(seed)
    tokenizer = build_tokenizer(list(texts))
    config = AttentionClassifierConfig(
        vocab_size=len(tokenizer), embedding_size=200, encoder_size=50, num_labels=2
    )
    model = AttentionClassifierForSequenceClassification(config).eval()
    with torch.no_grad():
        model.classifier.weight *= 30
        for parameter in model.attention_classifier.attention.parameters():
            parameter *= 5
    return model, tokenizer


def prepare(arguments) -> tuple[object, object, list[Batch]]:
    """Model, adapter and batches of texts of like length."""
    examples = load_examples(
        arguments.dataset,
        arguments.split,
        dataset_config=arguments.config,
        limit=arguments.limit,
    )
    if arguments.model:
        model, tokenizer = (
            load_model(arguments.model).eval(),
            load_tokenizer(arguments.model),
        )
    else:
        model, tokenizer = build(examples["text"][:], arguments.seed)
    adapter, size = wrap(model), arguments.batch_size
    texts = tokenize(tokenizer, examples, adapter).texts
    texts = sorted(texts, key=lambda text: (text.n_content, text.example_id))
    return (
        model,
        adapter,
        [collate(adapter, texts[k : k + size], 0) for k in range(0, len(texts), size)],
    )


def timed(
    function: Callable, items: Sequence, clock: Callable[[], float]
) -> tuple[float, list[Tensor]]:
    """Seconds over all items, and the results."""
    start = clock()
    results = [function(item) for item in items]
    return clock() - start, results


def differing(one: Sequence[Tensor], other: Sequence[Tensor]) -> tuple[int, int]:
    """How many of how many fractions differ."""
    pairs = [(a.nan_to_num(-1), b.nan_to_num(-1)) for a, b in zip(one, other, strict=True)]
    return sum(int((a != b).sum()) for a, b in pairs), sum(a.numel() for a, _ in pairs)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model",
        help="a flat classifier of attnprobe train (default: one with random weights)",
    )
    parser.add_argument("--dataset", required=True, help="name, folder or Hub id")
    parser.add_argument("--config", help="configuration of the data set")
    parser.add_argument("--split", default="test")
    parser.add_argument(
        "--limit",
        type=int,
        default=2000,
        help="only the first so many texts (default: %(default)s)",
    )
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--clock",
        default="wall",
        choices=("wall", "cpu"),
        help="cpu where the machine is not idle",
    )
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    torch.set_num_threads(1)
    clock = {"wall": time.perf_counter, "cpu": time.process_time}[arguments.clock]
    model, adapter, batches = prepare(arguments)
    known = [know(adapter, batch, arguments.seed) for batch in batches]
    lengths = torch.cat([k.mask.sum(-1) for k in known]).double()
    sides = {
        "ours": (ours, known),
        "plain": (lambda k: plain(k, model.decode, torch.float32), known),
        "smallest sets": (smallest, known),
        "forward": (lambda batch: forward(model, batch), batches),
    }
    seconds, results = {name: [] for name in sides}, {}
    for function, items in sides.values():
        function(items[0])  # to warm up
    for _ in range(arguments.repeats):
        for name, (function, items) in sides.items():
            spent, results[name] = timed(function, items, clock)
            seconds[name].append(spent)
    report(lengths, {name: median(spent) for name, spent in seconds.items()})
    double = [plain(k, adapter.model.decode, torch.float64) for k in known]
    for name, other in (("float64", double), ("float32", results["plain"])):
        print(
            "ours and plain in {}: {} of {} fractions differ".format(
                name, *differing(results["ours"], other)
            )
        )
    below = sum(
        int((a < b).sum()) for a, b in zip(results["ours"], results["smallest sets"], strict=True)
    )
    print(f"rankings that need less than the smallest set: {below}")


def report(lengths: Tensor, spent: dict[str, float]) -> None:
    """The table."""
    flips, forward_pass = (
        spent["plain"] / spent["ours"],
        spent["smallest sets"] / spent["forward"],
    )
    print(
        f"{len(lengths)} texts, {lengths.mean():.0f} words on average, {lengths.max():.0f} at most; one torch thread"
    )
    print("\n| part | plain s | ours s | ratio | bar |\n|---|---|---|---|---|")
    print(
        f"| eight rankings | {spent['plain']:.3f} | {spent['ours']:.4f} | {flips:.0f}x | {BARS['rankings']:.0f}x |"
    )
    print(
        f"| smallest sets (against one forward pass) | {spent['forward']:.3f} | {spent['smallest sets']:.4f} "
        f"| {forward_pass:.3f} of it | below {BARS['smallest sets']:.0f} |\n"
    )


if __name__ == "__main__":
    main()
