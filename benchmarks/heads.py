"""Every head of a fine-tuned BERT: ours against the loop a user writes with hooks, against peers, and against the machine.

    OMP_NUM_THREADS=1 python benchmarks/heads.py --model minilm-sst --dataset sst --split test

Ours (what ``attnprobe audit`` calls, on the batches that it plans) and the loop (one full forward pass per head and
permutation, on the same batches with the same permutations) take turns in one process on one torch thread. All heads
of a layer cost the same but for the first, which pays what they share (the drawn permutations, the check that replays may
be short): the first and ``--heads`` − 1 others are timed, and the others scaled up. So are ``--loop-permutations``. Texts are tokenized, and the forward pass that both sides start from is done, before the clock
starts. Peers that are not installed are left out. Peak memory is measured in processes of its own.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import peers
import psutil
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertForSequenceClassification

from hf_attnprobe import AuditOptions, audit
from hf_attnprobe.adapters import wrap
from hf_attnprobe.audits.runner import make_memory_estimator, plan_batches
from hf_attnprobe.checkpoints.loading import load_model, load_tokenizer
from hf_attnprobe.core.options import Options
from hf_attnprobe.data.examples import load_examples
from hf_attnprobe.faithfulness.options import Permutation
from hf_attnprobe.faithfulness.permutation import permutation
from hf_attnprobe.faithfulness.screen import screen
from hf_attnprobe.faithfulness.uniform_attention import uniform_attention
from hf_attnprobe.functional.divergence import tvd
from hf_attnprobe.functional.intervention import make_uniform, permute
from hf_attnprobe.inference.batching import collate
from hf_attnprobe.inference.encoding import Text, tokenize
from hf_attnprobe.protocol import Batch, Observation, Site


BUDGET, BATCH_SIZE, SEED, TOLERANCE = 2 * 10**9, 64, 0, 1e-6
BARS = {"all": 2.0, "top": 30}
OURS, LOOP = "ours", "loop"


@dataclass
class Timing:
    """Seconds by job and side, one entry per round, and GFLOP of one round where they were counted."""

    clock: Callable[[], float]
    seconds: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    gflop: dict[tuple[str, str], float] = field(default_factory=dict)

    def run(self, job: str, side: str, function: Callable[[], object], scale: float = 1.0):
        """Times ``function``, which does 1/``scale`` of the job, and returns what it returns."""
        start = self.clock()
        result = function()
        self.seconds.setdefault((job, side), []).append(scale * (self.clock() - start))
        return result

    def count(self, job: str, side: str, function: Callable[[], object], scale: float = 1.0):
        """Counts the operations of the matrix products in ``function``; not timed, for counting takes time."""
        with FlopCounterMode(display=False) as counter:
            result = function()
        self.gflop[job, side] = scale * counter.get_total_flops() / 1e9
        return result

    def rounds(self, jobs: Sequence[str], side: str) -> list[float]:
        """Per round, the seconds of all ``jobs``."""
        return [
            sum(parts) for parts in zip(*(self.seconds[job, side] for job in jobs), strict=True)
        ]


class HookSide:
    """What a user writes for a BERT: hooks that recompute what one head reads, and a full forward pass per edit.

    Kinder than most such code: it keeps the fused attention of all other heads and is handed attention, permutations
    and the original prediction for nothing.
    """

    def __init__(self, model):
        self.model = model
        self.layers = [layer.attention.self for layer in model.bert.encoder.layer]

    @contextmanager
    def reading(self, layer: int, head: int, weights: Tensor) -> Iterator[None]:
        """While open, the head's output is ``weights`` [batch, queries, keys] · its values."""
        attention, values = self.layers[layer], []
        columns = slice(
            head * attention.attention_head_size,
            (head + 1) * attention.attention_head_size,
        )

        def put(module, args, output):
            context = output[0].clone()
            context[..., columns] = weights @ values.pop()[..., columns]
            return (context, *output[1:])

        handles = [
            attention.value.register_forward_hook(
                lambda module, args, output: values.append(output)
            ),
            attention.register_forward_hook(put),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @torch.no_grad()
    def permutation(
        self, inputs: Mapping[str, Tensor], seen: Observation, site: Site, order: Tensor
    ) -> Tensor:
        """Median change of the output over the permutations in ``order`` [copies, batch, queries, keys]; [batch]."""
        attention, changes = seen.attention[site.layer][:, site.head], []
        for one in order:
            with self.reading(site.layer, site.head, permute(attention, one)):
                changes.append(tvd(self.model(**inputs).logits.softmax(-1), seen.probs))
        return torch.stack(changes).quantile(0.5, dim=0)


class Bench:
    """The model, its texts in the audit's batches, and both sides."""

    def __init__(self, arguments: argparse.Namespace):
        self.model, self.tokenizer = (
            load_model(arguments.model).eval(),
            load_tokenizer(arguments.model),
        )
        examples = load_examples(arguments.dataset, arguments.split, limit=arguments.limit)
        self.strings = dict(zip(examples["example_id"], examples["text"], strict=True))
        self.adapter, self.loop = wrap(self.model, level="token"), HookSide(self.model)
        self.texts = tokenize(self.tokenizer, examples, self.adapter).texts
        self.n_permutations, self.n_looped = (
            arguments.n_permutations,
            arguments.loop_permutations,
        )
        where, pad = {"permutation": self.adapter.sites()}, self.tokenizer.pad_token_id
        options = {"permutation": Permutation(n_permutations=self.n_permutations)}
        enough = BUDGET / BATCH_SIZE
        size = make_memory_estimator(self.adapter, self.texts, where, options, pad, enough, {})
        planned = plan_batches(self.texts, where, {}, size, BUDGET, BATCH_SIZE)
        self.jobs = [texts for _, texts in planned]
        self.batches = [
            collate(self.adapter, texts, self.tokenizer.pad_token_id) for texts in self.jobs
        ]
        self.sites = self.adapter.sites()
        self.n_layers = len(self.adapter.layers)

    def observe(self) -> list[Observation]:
        """Every batch, anew, so that nothing is left of an earlier turn."""
        return [self.adapter.observe(batch) for batch in self.batches]

    def inputs(self, observation: Observation) -> dict[str, Tensor]:
        """What the model itself takes."""
        given = observation.batch.inputs
        return {
            name: given[name]
            for name in ("input_ids", "attention_mask", "token_type_ids")
            if name in given
        }

    def per_site(
        self,
        probe: Callable,
        sites: Sequence[Site],
        seen: Sequence[Observation],
        *options: Options,
    ) -> list:
        """A probe at every site, over all batches."""
        return [probe(one, site, *options, seed=SEED) for site in sites for one in seen]

    def looped(
        self,
        sites: Sequence[Site],
        seen: Sequence[Observation],
        orders: Sequence[Tensor],
    ) -> list[Tensor]:
        """The loop at every site, over all batches; ``orders`` are of the sites' layer."""
        pairs = list(zip(seen, orders, strict=True))
        return [
            self.loop.permutation(self.inputs(one), one, site, order)
            for site in sites
            for one, order in pairs
        ]


def matmul_rate(clock: Callable[[], float], n: int = 1024, n_tries: int = 30) -> float:
    """The best rate of a square matrix product, operations per second, on the clock of everything else."""
    a, b, best = torch.rand(n, n), torch.rand(n, n), float("inf")
    for _ in range(n_tries):
        start = clock()
        a @ b
        best = min(best, clock() - start)
    return 2 * n**3 / best


def layer_name(layer: int) -> str:
    return f"layer {layer}"


def sweep(bench: Bench, timing: Timing, layer: int, n_heads: int) -> None:
    """One layer, all heads × all permutations, both sides in turn."""
    sites = [site for site in bench.sites if site.layer == layer]
    timed, seen, job = sites[:n_heads], bench.observe(), layer_name(layer)
    orders = [one.draw_permutations(layer, bench.n_looped, SEED) for one in seen]
    more = bench.n_permutations / bench.n_looped
    scale = len(sites) / len(timed)
    timing.run(job, LOOP, lambda: bench.looped(timed, seen, orders), scale * more)
    for one in seen:
        one.cache.pop("permutations", None)  # ours draws its permutations on the clock
    options = Permutation(n_permutations=bench.n_permutations)
    first, others = timed[:1], timed[1:]
    # what the heads of a layer share is paid once
    timing.run(job, OURS, lambda: bench.per_site(permutation, first, seen, options))
    scale = (len(sites) - 1) / len(others)
    timing.run(
        "others",
        OURS,
        lambda: bench.per_site(permutation, others, seen, options),
        scale,
    )
    timing.seconds[job, OURS][-1] += timing.seconds["others", OURS].pop()


def check_layer(bench: Bench, timing: Timing, layer: int) -> float:
    """The largest difference of the two sides at one head of a layer, same permutations; counts their operations."""
    sites, seen, job = [Site(layer, 0)], bench.observe(), layer_name(layer)
    orders = [one.draw_permutations(layer, bench.n_looped, SEED) for one in seen]
    n_heads = sum(site.layer == layer for site in bench.sites)
    scale = n_heads * bench.n_permutations / bench.n_looped
    theirs = timing.count(job, LOOP, lambda: bench.looped(sites, seen, orders), scale)
    probe = partial(
        bench.per_site,
        permutation,
        sites,
        seen,
        Permutation(n_permutations=bench.n_looped),
    )
    probe()  # what the heads share is paid here
    ours = timing.count(job, OURS, probe, scale)
    return max(float((a.median_tvd - b).abs().max()) for a, b in zip(ours, theirs, strict=True))


def screened(bench: Bench, seen: Sequence[Observation]) -> list:
    """The screen of all heads: one forward and one backward pass, beyond the one that every test starts from."""
    return bench.per_site(screen, bench.sites, seen)


def uniform_job(bench: Bench, timing: Timing) -> str | None:
    """Uniform attention in one head at a time, all heads, ours and nnsight; how far apart they are."""
    seen, changes = bench.observe(), {}
    ours = timing.run("uniform", OURS, lambda: bench.per_site(uniform_attention, bench.sites, seen))
    changes[OURS] = [result.uniform_tvd for result in ours]
    if not peers.installed("nnsight"):
        return None
    traced = peers.NNsight(bench.model)

    def one_by_one() -> list[Tensor]:
        return [
            tvd(_nnsight_uniform(bench, traced, one, site), one.probs)
            for site in bench.sites
            for one in seen
        ]

    theirs = timing.run("uniform", "nnsight", one_by_one)
    pairs = zip(changes[OURS], theirs, strict=True)
    return f"largest difference {max(float((a - b).abs().max()) for a, b in pairs):.1e}"


def _nnsight_uniform(
    bench: Bench, traced: "peers.NNsight", seen: Observation, site: Site
) -> Tensor:
    flat = make_uniform(
        seen.attention[site.layer][:, site.head],
        bench.adapter.get_visible_keys(seen, site.layer),
    )
    return traced.probabilities(bench.inputs(seen), site.layer, site.head, flat)


def nnsight_permutation_job(bench: Bench, timing: Timing) -> None:
    """Permuted attention in the top layer: one trace per head and permutation, one head of four permutations timed."""
    site, seen, n = Site(bench.n_layers - 1, 0), bench.observe(), min(4, bench.n_looped)
    traced = peers.NNsight(bench.model)
    orders = [one.draw_permutations(site.layer, n, SEED) for one in seen]

    def one_by_one() -> None:
        for one, order in zip(seen, orders, strict=True):
            for edited in permute(one.attention[site.layer][:, site.head], order):
                traced.probabilities(bench.inputs(one), site.layer, site.head, edited)

    n_heads = sum(other.layer == site.layer for other in bench.sites)
    timing.run(
        layer_name(site.layer),
        "nnsight",
        one_by_one,
        n_heads * bench.n_permutations / n,
    )


def leave_one_out_job(bench: Bench, timing: Timing) -> str | None:
    """p without each token, on ours and on the peers; says where the peers' numbers part from ours."""
    seen = bench.observe()
    ours = timing.run(
        "leave-one-out",
        OURS,
        lambda: [bench.adapter.compute_leave_one_out(one) for one in seen],
    )
    texts = [text for job in bench.jobs for text in job]
    targets = [int(p) for one in seen for p in one.probs.argmax(-1)]
    if peers.installed("captum"):
        captum, ids = (
            peers.Captum(bench.model, bench.tokenizer.mask_token_id),
            [t.inputs["input_ids"] for t in texts],
        )
        timing.run(
            "leave-one-out",
            "captum, default",
            lambda: captum.leave_one_out(ids, targets),
        )
        timing.run(
            "leave-one-out",
            "captum, 16 a pass",
            lambda: captum.leave_one_out(ids, targets, per_pass=16),
        )
    if not peers.installed("ferret"):
        return None
    ferret, strings = (
        peers.Ferret(bench.model, bench.tokenizer),
        [bench.strings[t.example_id] for t in texts],
    )
    theirs = timing.run("leave-one-out", "ferret", lambda: ferret.leave_one_out(strings, targets))
    scores = [
        one.read(Site(bench.n_layers - 1, 0))[row][: len(t.inputs["input_ids"])]
        for one, row, t in _rows(bench, seen)
    ]
    timing.run(
        "comprehensiveness",
        "ferret",
        lambda: ferret.comprehensiveness(strings, targets, scores),
    )
    attention = [one.read(Site(bench.n_layers - 1, 0)) for one in seen]

    def own():
        return [
            peers.comprehensiveness(bench.adapter, b, a)
            for b, a in zip(bench.batches, attention, strict=True)
        ]

    timing.run("comprehensiveness", OURS, own)
    return _parted(bench, seen, ours, theirs, targets)


def _rows(bench: Bench, seen: Sequence[Observation]) -> Iterator[tuple[Observation, int, Text]]:
    """Every text with its observation and its row there."""
    for one, job in zip(seen, bench.jobs, strict=True):
        yield from ((one, row, text) for row, text in enumerate(job))


def _parted(
    bench: Bench, seen, ours: list[Tensor], theirs: list[Tensor], targets: list[int]
) -> str:
    """In how many of all deletions ferret's number is another one: there the shorter text was tokenized differently."""
    place = {id(one): number for number, one in enumerate(seen)}
    n_parted, n_all = 0, 0
    for (one, row, _), found, target in zip(_rows(bench, seen), theirs, targets, strict=True):
        content = one.batch.content_mask[row]
        changes = ours[place[id(one)]][row, content, target] - one.probs[row, target]
        if len(changes) != len(found):
            n_parted += len(changes)
        else:
            n_parted += int(((changes - found).abs() > TOLERANCE).sum())
        n_all += len(changes)
    return (
        f"ferret's change differs by more than {TOLERANCE:.0e} in {n_parted} of {n_all} deletions"
    )


def sweep_table(bench: Bench, timing: Timing, rate: float) -> str:
    """Markdown: the exact sweep by layer, and of all layers."""
    names = [layer_name(layer) for layer in range(bench.n_layers)]
    n = bench.n_layers
    lines = [
        "| edits in | loop s | ours s | ratio (min–max) | bar | caching lower layers alone | ours GFLOP (loop) | share of peak, ours (loop) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows = [(name, [name], n / (n - k)) for k, name in enumerate(names)] + [
        ("all layers", names, 2 * n / (n + 1))
    ]
    for title, jobs, limit in rows:
        bar = BARS["all"] if title == "all layers" else BARS["top"] if jobs == names[-1:] else "–"
        theirs, ours = timing.rounds(jobs, LOOP), timing.rounds(jobs, OURS)
        ratios = [a / b for a, b in zip(theirs, ours, strict=True)]
        work = {side: sum(timing.gflop[job, side] for job in jobs) for side in (OURS, LOOP)}
        share = {
            OURS: work[OURS] * 1e9 / rate / median(ours),
            LOOP: work[LOOP] * 1e9 / rate / median(theirs),
        }
        spread = f"{median(ratios):.2f}x ({min(ratios):.2f}–{max(ratios):.2f})"
        lines.append(
            f"| {title} | {median(theirs):.1f} | {median(ours):.2f} | {spread} | {bar} | {limit:.2f} | "
            f"{work[OURS]:.0f} ({work[LOOP]:.0f}) | {share[OURS]:.0%} ({share[LOOP]:.0%}) |"
        )
    return "\n".join(lines)


def screen_line(bench: Bench, timing: Timing, rate: float) -> str:
    """The screen against the exact sweep."""
    sweep_seconds = median(
        timing.rounds([layer_name(layer) for layer in range(bench.n_layers)], OURS)
    )
    seconds, gflop = (
        median(timing.seconds["screen", OURS]),
        timing.gflop["screen", OURS],
    )
    return (
        f"screen of all {len(bench.sites)} heads, forward and backward: {seconds:.3f} s, {gflop:.1f} GFLOP, "
        f"{gflop * 1e9 / rate / seconds:.0%} of peak; our exact sweep takes {sweep_seconds / seconds:.0f}x as long"
    )


def peer_table(timing: Timing) -> str:
    """Markdown: the jobs that peers run too."""
    lines = [
        "| job | ours s | peer | peer s | ratio (min–max) |",
        "|---|---|---|---|---|",
    ]
    for (job, side), theirs in timing.seconds.items():
        if side in (OURS, LOOP):
            continue
        ours = timing.seconds.get((job, OURS))
        title = f"permutations, {job}" if job.startswith("layer") else job
        if ours is None:
            lines.append(f"| {title} | – | {side} | {median(theirs):.2f} | – |")
            continue
        ratios = [a / b for a, b in zip(theirs, ours, strict=False)]
        spread = f"{median(ratios):.2f}x ({min(ratios):.2f}–{max(ratios):.2f})"
        lines.append(f"| {title} | {median(ours):.2f} | {side} | {median(theirs):.2f} | {spread} |")
    return "\n".join(lines)


def memory_of_audit(arguments: argparse.Namespace) -> dict[str, float]:
    """Peak resident memory of the permutation test above the loaded model, in bytes; Linux only.

    The longest texts, in the model's every layer. Heads are audited one after another, so a few of each layer come close
    to the peak of all (more heads add a little, the allocator's). A first audit of one text loads what is imported late.
    """
    model, tokenizer = load_model(arguments.model), load_tokenizer(arguments.model)
    examples = load_examples(arguments.dataset, arguments.split, limit=arguments.limit)
    texts = sorted(
        ({"text": row["text"], "label": row["label"]} for row in examples),
        key=lambda row: len(row["text"]),
    )
    run = partial(
        audit,
        model,
        options=AuditOptions(heads=arguments.memory_heads, memory_budget=arguments.memory_of),
        tokenizer=tokenizer,
        progress=False,
    )
    run(texts[:1], [Permutation(n_permutations=1)])
    loaded = psutil.Process().memory_info().rss
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    several = Permutation(n_permutations=arguments.memory_permutations)
    run(texts[-arguments.memory_texts :], [several])
    status = Path("/proc/self/status").read_text()
    return {
        "loaded": loaded,
        "peak": 1024 * int(re.search(r"VmHWM:\s*(\d+)", status)[1]),
    }


def memory_lines(arguments: argparse.Namespace) -> Iterator[str]:
    """One line per budget, each measured in a process of its own."""
    given = [x for x in sys.argv[1:] if x != "--only-memory"]
    for budget in arguments.memory:
        command = [sys.executable, __file__, *given, "--memory-of", budget]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            yield f"- budget {budget}: failed with exit code {done.returncode}: {done.stderr.strip()[-300:]}"
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        above = (found["peak"] - found["loaded"]) / 1e6
        yield f"- budget {budget}: peak {above:.0f} MB above the loaded process ({found['loaded'] / 1e6:.0f} MB)"


def base_lines(arguments: argparse.Namespace) -> Iterator[str]:
    """Seconds per text of BERT-base's shape, all heads × all permutations, short and long texts; random weights."""
    clock = {"wall": time.perf_counter, "cpu": time.process_time}[arguments.clock]
    torch.manual_seed(SEED)
    model = BertForSequenceClassification(BertConfig(num_labels=2)).eval()
    adapter, n_copies = wrap(model, level="token"), arguments.base_copies
    rate = matmul_rate(clock)
    for n_words in arguments.base_words:
        seen = adapter.observe(random_batch(adapter, n_words))
        replayed, gflop = 0.0, 0.0
        for layer in range(len(adapter.layers)):
            probe = partial(
                permutation,
                seen,
                Site(layer, 0),
                Permutation(n_permutations=n_copies),
                seed=SEED,
            )
            probe()  # what the heads share is paid here
            timing = Timing(clock)
            timing.run("base", OURS, probe)
            timing.count("base", OURS, probe)
            replayed += timing.seconds["base", OURS][0] / n_copies
            gflop += timing.gflop["base", OURS] / n_copies
        n_heads = adapter.n_heads[0]
        forward = Timing(clock)
        with torch.no_grad():
            forward.run("base", LOOP, partial(adapter.compute_native_probs, seen.batch))
        looped = forward.seconds["base", LOOP][0] * len(adapter.layers)
        each = replayed * n_heads
        yield (
            f"- {n_words} words: {each:.1f} s per text and permutation of all {n_heads * len(adapter.layers)} heads "
            f"({each * arguments.n_permutations:.0f} s for {arguments.n_permutations}), {gflop / replayed / rate * 1e9:.0%} of "
            f"the matrix peak; a full pass per edit takes {looped / replayed:.2f}x as long"
        )


def random_batch(adapter, n_words: int) -> Batch:
    """One text of so many random words between [CLS] and [SEP]."""
    ids = torch.randint(1000, 20000, (1, n_words + 2))
    special = torch.zeros_like(ids)
    special[:, [0, -1]] = 1
    ids[:, 0], ids[:, -1] = 101, 102
    inputs = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "special_tokens_mask": special,
    }
    return adapter.prepare(inputs, (0,))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="a fine-tuned BERT, two labels")
    parser.add_argument("--dataset", required=True, help="name, folder or Hub id")
    parser.add_argument("--split", default="test")
    parser.add_argument("--limit", type=int, default=24, help="only the first so many texts")
    parser.add_argument("--n-permutations", type=int, default=32)
    parser.add_argument(
        "--loop-permutations",
        type=int,
        default=4,
        help="of these, how many the loop is timed on",
    )
    parser.add_argument(
        "--heads",
        type=int,
        default=3,
        help="how many of each layer are timed; at least 2",
    )
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument(
        "--clock",
        default="wall",
        choices=("wall", "cpu"),
        help="cpu where the machine is not idle",
    )
    parser.add_argument("--no-peers", dest="peers", action="store_false")
    parser.add_argument(
        "--memory",
        nargs="*",
        default=["500MB", "2GB"],
        help="budgets; none: not measured",
    )
    parser.add_argument("--only-memory", action="store_true")
    parser.add_argument("--memory-texts", type=int, default=12, help="the longest ones")
    parser.add_argument("--memory-heads", type=int, nargs="+", default=[0], help="of each layer")
    parser.add_argument("--memory-permutations", type=int, default=100)
    parser.add_argument(
        "--base-words",
        type=int,
        nargs="*",
        default=[25, 400],
        help="lengths of texts for BERT-base's shape; none: not measured",
    )
    parser.add_argument(
        "--base-copies", type=int, default=4, help="permutations that are timed there"
    )
    parser.add_argument("--only-base", action="store_true")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    return parser.parse_args()


def speed(arguments: argparse.Namespace) -> None:
    """Times everything and prints the tables."""
    clock = {"wall": time.perf_counter, "cpu": time.process_time}[arguments.clock]
    bench, timing = Bench(arguments), Timing(clock)
    lengths = [len(text.inputs["input_ids"]) for text in bench.texts]
    print(
        f"{bench.n_layers} layers, {len(bench.sites)} heads, {bench.n_permutations} permutations, {len(lengths)} texts of "
        f"{sum(lengths) / len(lengths):.1f} tokens in batches of {[len(job) for job in bench.jobs]}; torch {torch.__version__}"
    )
    rate = matmul_rate(clock)
    print(f"matrix product at its best: {rate / 1e9:.0f} GFLOP/s")
    differences = [check_layer(bench, timing, layer) for layer in range(bench.n_layers)]
    timing.count("screen", OURS, partial(screened, bench, bench.observe()))
    for _ in range(arguments.repeats):
        for layer in range(bench.n_layers):
            sweep(bench, timing, layer, arguments.heads)
        timing.run("screen", OURS, partial(screened, bench, bench.observe()))
    within = "within" if max(differences) <= TOLERANCE else "ABOVE"
    print(
        f"\n{sweep_table(bench, timing, rate)}\n\nlargest difference to the loop, same permutations: "
        f"{max(differences):.1e} ({within} {TOLERANCE:.0e})"
    )
    print(screen_line(bench, timing, rate))
    if arguments.peers:
        with_peers(bench, timing, arguments.repeats)


def with_peers(bench: Bench, timing: Timing, repeats: int) -> None:
    """The jobs that peers run, and what they found."""
    for name in ("nnsight", "captum", "ferret"):
        if not peers.installed(name):
            print(f"{name} is not installed, left out")
    for _ in range(repeats):
        remarks = [uniform_job(bench, timing), leave_one_out_job(bench, timing)]
        if peers.installed("nnsight"):
            nnsight_permutation_job(bench, timing)
    print("\n" + peer_table(timing))
    print("\n".join(f"- {remark}" for remark in remarks if remark))


def main() -> None:
    arguments = parse()
    torch.set_num_threads(1)
    if arguments.memory_of is not None:
        print(json.dumps(memory_of_audit(arguments)))
        return
    if not arguments.only_memory and not arguments.only_base:
        speed(arguments)
    if arguments.base_words and not arguments.only_memory:
        print("\nBERT-base's shape, random weights, one text at a time:")
        print("\n".join(base_lines(arguments)), flush=True)
    if arguments.memory:
        print("\npeak memory of the permutation test:")
        print("\n".join(memory_lines(arguments)))


if __name__ == "__main__":
    main()
