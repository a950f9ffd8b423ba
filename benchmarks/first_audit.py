"""The first audit against the papers' own procedures: times, ratios, and whether the numbers agree.

    OMP_NUM_THREADS=1 python benchmarks/first_audit.py --model sst-bilstm --dataset sst --split test

Plain (``plain.py``, float32, as in the papers) and ours (what ``attnprobe audit`` calls, in its default float64 and in
float32) take turns in one process on one torch thread. The forward pass that all parts share is counted in the first
row only. Texts are tokenized before the clock starts; nothing is written to disk.

The papers' programs leave time on the table that any careful programmer would save: a linear read-out lets token
logits be computed once. The last two columns compare with such a loop, which has the same results. What a careful loop
does not change counts as in the plain procedure.
"""

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from statistics import median

import numpy as np
import torch
import work
from sides import EPSILONS, OurSide, PlainSide, Rows

from hf_attnprobe.adapters.pretrained import PretrainedModelInfo
from hf_attnprobe.checkpoints.loading import load_model, load_tokenizer
from hf_attnprobe.data.examples import load_examples
from hf_attnprobe.inference.encoding import tokenize


PLAIN, CAREFUL = "plain", "careful loop"
CAREFUL_PARTS = {"permutation": "careful_permutation", "search": "careful_search"}
"""Methods of the plain side that do a part by the careful loop."""
TIMED = (
    "forward",
    "gradient",
    "leave_one_out",
    "permutation",
    "search",
    "epsilon_max_jsd",
    "tau",
)
LEAVE_ONE_OUT_BARS = {
    "bilstm": ("3x", "5-8x"),
    "cnn": ("2x", "3x"),
    "mlp": ("15x", "35x"),
}
MADE_OF = {  # ours on the left against which of the plain parts
    "whole": TIMED,
    "forward": ("forward",),
    "gradient": ("gradient",),
    "leave_one_out": ("leave_one_out",),
    "permutation": ("permutation",),
    "search": ("search",),
    "exact": ("search", "epsilon_max_jsd"),
    "frontier": ("search", "epsilon_max_jsd"),
    "tau": ("tau",),
}
TITLES = {
    "whole": "the whole audit",
    "forward": "the forward pass (for orientation)",
    "gradient": "gradient × input (for orientation)",
    "leave_one_out": "leave-one-out",
    "permutation": "permutation, beyond the forward pass",
    "search": "the search itself",
    "exact": "exact ε-max JSD at .01 and .05 against the search",
    "frontier": "the exact frontier, nine ε, against the search",
    "tau": "all τ and p against scipy",
}
BARS = {
    "whole": ("10x", "~20x"),
    "permutation": ("50x", "~100x"),
    "search": ("10x", "~50x"),
    "exact": ("200x", "–"),
    "frontier": ("–", "–"),
    "tau": ("20x", "~100x"),
}
WORK = {
    "whole": work.whole,
    "frontier": work.exact,
    "exact": partial(work.exact, n_epsilons=len(EPSILONS)),
}


@dataclass
class Timing:
    """Seconds by part and side, one entry per round, and the latest results."""

    clock: Callable[[], float]
    seconds: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    results: dict[tuple[str, str], object] = field(default_factory=dict)

    def run(self, part: str, side: str, function: Callable) -> None:
        start = self.clock()
        self.results[part, side] = function()
        self.seconds.setdefault((part, side), []).append(self.clock() - start)

    def plain(self, part: str) -> list[float]:
        """Per round, what the plain side needs for the same."""
        return [
            sum(parts)
            for parts in zip(*(self.seconds[x, PLAIN] for x in MADE_OF[part]), strict=True)
        ]

    def careful(self, part: str) -> list[float]:
        """Per round, what the careful loop needs for the same."""
        sides = [(x, CAREFUL if x in CAREFUL_PARTS else PLAIN) for x in MADE_OF[part]]
        return [sum(parts) for parts in zip(*(self.seconds[x] for x in sides), strict=True)]

    def ratios(self, part: str, side: str, yardstick: str = PLAIN) -> list[float]:
        seconds = self.plain(part) if yardstick == PLAIN else self.careful(part)
        return [a / b for a, b in zip(seconds, self.seconds[part, side], strict=True)]


def one_round(timing: Timing, theirs: PlainSide, ours: dict[str, OurSide]) -> None:
    """Every part once on every side, in turns."""
    for part in TIMED:
        timing.run(part, PLAIN, getattr(theirs, part))
        if part in CAREFUL_PARTS:
            timing.run(part, CAREFUL, getattr(theirs, CAREFUL_PARTS[part]))
        for name, side in ours.items():
            side.observe()  # anew, so that nothing is left of an earlier turn
            if part != "epsilon_max_jsd":
                timing.run(
                    part,
                    name,
                    side.observe if part == "forward" else getattr(side, part),
                )
                continue
            timing.run("exact", name, side.exact)
            timing.run("frontier", name, partial(side.exact, None))
    for name, side in ours.items():
        timing.run("whole", name, side.whole)


def table(
    timing: Timing,
    sides: list[str],
    config,
    lengths: list[int],
    peaks: dict[str, float],
) -> str:
    """Markdown: one row per part and dtype."""
    bars = BARS | {"leave_one_out": LEAVE_ONE_OUT_BARS.get(config.encoder, ("–", "–"))}
    lines = [
        "| part | dtype | plain s | ours s | ratio (min–max) | bar | limit | GFLOP | s at peak | share of peak | "
        "careful loop s | ratio (min–max) |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for part, title in TITLES.items():
        operations = sum(WORK.get(part, getattr(work, part, None))(config, n) for n in lengths)
        for side in sides:
            ratios, ours = timing.ratios(part, side), median(timing.seconds[part, side])
            numbers = f"{median(timing.plain(part)):.3f} | {ours:.4f} | {median(ratios):.1f}x ({min(ratios):.1f}–{max(ratios):.1f})"
            bar, limit = bars.get(part, ("–", "–"))
            least = operations / peaks[side]
            left = f"{operations / 1e9:.2f} | {least:.4f} | {least / ours:.0%}"
            careful = timing.ratios(part, side, CAREFUL)
            kinder = f"{median(timing.careful(part)):.3f} | {median(careful):.1f}x ({min(careful):.1f}–{max(careful):.1f})"
            lines.append(f"| {title} | {side} | {numbers} | {bar} | {limit} | {left} | {kinder} |")
    return "\n".join(lines)


def largest(ours: Rows, theirs: Rows) -> float:
    """The largest difference over all texts; a NaN must meet a NaN."""
    worst = 0.0
    for row, value in theirs.items():
        a, b = (
            np.asarray(ours[row], dtype=np.float64),
            np.asarray(value, dtype=np.float64),
        )
        if not np.array_equal(np.isnan(a), np.isnan(b)):
            return float("inf")
        worst = max(worst, float(np.nan_to_num(np.abs(a - b)).max(initial=0)))
    return worst


def compute_differing_share(
    search: Mapping[int, np.ndarray], plain_search: Mapping[int, np.ndarray]
) -> float:
    """Compute the share of texts for which two searches differ by more than 1e-3.

    Args:
        search: Results of a search by text.
        plain_search: Results of the plain search by text.
    """
    n_differing = sum(
        np.abs(search[text] - values).max(initial=0) > 1e-3 for text, values in plain_search.items()
    )
    return n_differing / len(plain_search)


def compare_sides(
    timing: Timing, theirs: PlainSide, side: OurSide, name: str
) -> list[tuple[str, float, float]]:
    """List each comparison with the difference of both sides and the largest allowed difference."""
    result = timing.results
    ours, plains = (
        {x: result[x, key] for x in TIMED if (x, key) in result} for key in (name, PLAIN)
    )
    exact, found = result["exact", name], plains["epsilon_max_jsd"]
    above = max(found[e][row] - exact[e][row] for e in EPSILONS for row in found[e])
    compared = [
        ("probability", largest(side.probability(), theirs.probability()), 1e-5),
        ("attention", largest(side.attention(), theirs.attention()), 1e-5),
        ("gradient × input", largest(ours["gradient"], plains["gradient"]), 1e-5),
        (
            "leave-one-out",
            largest(ours["leave_one_out"], plains["leave_one_out"]),
            1e-5,
        ),
        (
            "median TVD, same permutations",
            largest(ours["permutation"], theirs.permutation(side.orders())),
            1e-5,
        ),
        (
            "share of texts whose search results differ by more than 1e-3, same noise",
            compute_differing_share(ours["search"], plains["search"]),
            0.02,
        ),
        (
            "median TVD of the careful loop, same permutations",
            largest(ours["permutation"], theirs.careful_permutation(side.orders())),
            1e-5,
        ),
        (
            "share of texts whose careful and plain searches differ by more than 1e-3, same noise",
            compute_differing_share(result["search", CAREFUL], plains["search"]),
            0.02,
        ),
        ("JSD of the search above the exact one", max(float(above), 0.0), 1e-5),
        ("τ and p, same ranks", largest(ours["tau"], plains["tau"]), 1e-6),
    ]
    if name == "float64":
        compared.append(
            (
                "search, same noise, plain in float64 too",
                largest(ours["search"], theirs.search_in_double()),
                1e-3,
            )
        )
    return compared


def prepare(
    arguments, limit: int | None
) -> tuple[PlainSide, dict[str, OurSide], object, list[int]]:
    """Both sides over the same texts, with the same noise for the search."""
    model, tokenizer = load_model(arguments.model), load_tokenizer(arguments.model)
    examples = load_examples(arguments.dataset, arguments.split, limit=limit)
    texts = tokenize(tokenizer, examples, PretrainedModelInfo(model)).texts
    documents = {text.example_id: text.inputs["input_ids"] for text in texts}
    random = np.random.default_rng(arguments.seed)
    noise = {row: random.standard_normal((5, len(ids))) for row, ids in documents.items()}
    ours = {
        name: OurSide(
            model,
            texts,
            noise,
            getattr(torch, name),
            arguments.batch_size,
            arguments.seed,
        )
        for name in arguments.dtype
    }
    theirs, lengths = (
        PlainSide(model, documents, noise),
        [len(ids) - 2 for ids in documents.values()],
    )
    ranks = ours[arguments.dtype[0]].rank()
    for side in (theirs, *ours.values()):
        side.take_ranks(ranks)
    return theirs, ours, model.config, lengths


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model", required=True, help="a checkpoint of attnprobe train, two labels"
    )
    parser.add_argument("--dataset", required=True, help="name, folder or Hub id")
    parser.add_argument("--split", default="test")
    parser.add_argument("--limit", type=int, help="only the first so many texts")
    parser.add_argument(
        "--dtype",
        nargs="+",
        default=["float64", "float32"],
        choices=("float64", "float32"),
    )
    parser.add_argument("--batch-size", type=int, default=64, help="of ours, as of attnprobe audit")
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
    one_round(Timing(clock), *prepare(arguments, limit=40)[:2])  # to warm up
    theirs, ours, config, lengths = prepare(arguments, limit=arguments.limit)
    timing = Timing(clock)
    for _ in range(arguments.repeats):
        one_round(timing, theirs, ours)
    peaks = {name: work.peak(getattr(torch, name)) for name in ours}
    print(
        f"{config.encoder}, {len(lengths)} texts, {np.mean(lengths):.1f} words on average, seed {arguments.seed}, torch {torch.__version__}"
    )
    print(
        "matrix product at its best: "
        + ", ".join(f"{name} {rate / 1e9:.0f} GFLOP/s" for name, rate in peaks.items())
    )
    print("\n" + table(timing, list(ours), config, lengths, peaks))
    for name, side in ours.items():
        print(f"\nlargest differences, {name} against plain:")
        for what, difference, allowed in compare_sides(timing, theirs, side, name):
            print(
                f"- {what}: {difference:.1e} ({'within' if difference <= allowed else 'ABOVE'} {allowed:.0e})"
            )


if __name__ == "__main__":
    main()
