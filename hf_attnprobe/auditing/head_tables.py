"""A model with many heads as layer × head tables, and what they say.

Pure: statistics in, lines out.
"""

from collections.abc import Mapping, Sequence

from scipy.stats import spearmanr

from hf_attnprobe import markdown
from hf_attnprobe.auditing.verdict import ELSEWHERE, zero_ablation_only
from hf_attnprobe.faithfulness.prune_curve import PruneCurve
from hf_attnprobe.statistics.summary import Statistic


TITLES = {
    "median_tvd": "output change when the head's attention is shuffled (median of the shuffles, mean over texts)",
    "uniform_tvd": "output change with uniform attention in the head",
    "zero_tvd": "output change with the head silenced",
    "mean_tvd": "output change with the head's output replaced by its mean over other texts",
    "resample_tvd": "output change with the head's output taken from another text",
    "epsilon_max_jsd@0.05": "how far the attention can be moved with the output within .05 (at most .69; a lower bound)",
    "attention_leave_one_out_tau": "rank correlation of attention with leave-one-out",
    "attention_gradient_tau": "rank correlation of attention with gradients",
    "attention_times_gradient_tau": "rank correlation of attention × gradient with leave-one-out",
    "effective_attention_tau": "rank correlation of effective attention with leave-one-out",
    "norm_based_tau": "rank correlation of the norms of weighted values with leave-one-out",
    "never_flips@attention": "share of texts whose decision holds however many of the head's weights are erased, largest first",
    "fraction_to_flip@attention": "fraction of the head's weights erased, largest first, when the decision flips (texts that flip)",
    "comprehensiveness@attention": "loss of probability without the tokens the head attends to most (mean of the top 1 to 50%)",
    "first_order_uniform": "screen: first-order effect of uniform attention",
}
OF_LAYERS = {
    "mean_attention_tau": "mean attention",
    "rollout_tau": "rollout",
    "layer_norm_based_tau": "norm-based",
    "value_zeroing_tau": "value zeroing",
    "value_zeroing_rollout_tau": "value zeroing, rolled out",
}
SCREENED = {"first_order_uniform": "uniform_tvd", "first_order_zero": "zero_tvd"}
"""What the screen estimates of a head, and what the test then measures there."""
MATTERS = 0.05  # total variation, share of texts, or probability
AGREES = 0.3  # τ
N_LISTED = 8  # heads named in a sentence

ByHead = Mapping[tuple[int, int], float]


def by_head(statistics: Sequence[Statistic], name: str) -> dict[tuple[int, int], float]:
    """The mean of a statistic over all texts, by (layer, head)."""
    return {
        (s.layer, s.head): s.mean
        for s in statistics
        if s.statistic == name and s.group == "all" and s.n
    }


def has_heads(statistics: Sequence[Statistic]) -> bool:
    """Whether the model has more than one head."""
    return len({(s.layer, s.head) for s in statistics}) > 1


def head_tables(statistics: Sequence[Statistic]) -> list[str]:
    """Markdown tables, one per statistic, layers down and heads across.

    A head that was not tested has a dash.
    """
    lines = []
    for name, title in TITLES.items():
        values = by_head(statistics, name)
        if values:
            lines += markdown.section(f"{name}: {title}", _head_table(values), level=3)
    return lines + layer_table(statistics)


def _head_table(values: ByHead) -> list[str]:
    heads = range(max(head for _, head in values) + 1)
    rows = []
    for layer in sorted({layer for layer, _ in values}):
        cells = [markdown.number(values.get((layer, h)), digits=2) for h in heads]
        rows.append([layer, *cells])
    return markdown.table(["layer", *(f"head {h}" for h in heads)], rows)


def layer_table(statistics: Sequence[Statistic]) -> list[str]:
    """A Markdown table of explanations of whole layers, layers down."""
    columns = {
        title: by_head(statistics, name)
        for name, title in OF_LAYERS.items()
        if by_head(statistics, name)
    }
    sites = sorted({site for values in columns.values() for site in values})
    rows = []
    for site in sites:
        cells = [markdown.number(v.get(site), digits=2) for v in columns.values()]
        rows.append([site[0], *cells])
    title = "rank correlation of a layer's readings with leave-one-out"
    table = markdown.table(["layer", *columns], rows) if rows else []
    return markdown.section(title, table, level=3)


def prune_table(curve: PruneCurve) -> list[str]:
    """A Markdown table of accuracy by the number of heads removed."""
    points = zip(curve.n_removed, curve.agreement, curve.accuracy, strict=True)
    rows = [
        [n_removed, f"{agreement:.3f}", f"{accuracy:.3f}"]
        for n_removed, agreement, accuracy in points
    ]
    return markdown.table(["heads removed", "predictions kept", "accuracy"], rows)


def head_sentences(statistics: Sequence[Statistic]) -> list[str]:
    """What the tables say, in plain words."""
    replaced = "their pattern is replaced by uniform attention"
    sentences = (
        _assignment(by_head(statistics, "uniform_tvd"), replaced),
        _assignment(by_head(statistics, "median_tvd"), "shuffled"),
        _importance(
            by_head(statistics, "attention_leave_one_out_tau"),
            by_head(statistics, "gradient_leave_one_out_tau"),
        ),
        _uniqueness(by_head(statistics, "epsilon_max_jsd@0.05")),
        _erasure(by_head(statistics, "never_flips@attention")),
        _removal(
            by_head(statistics, "comprehensiveness@attention"),
            by_head(statistics, "comprehensiveness@random"),
        ),
        zero_ablation_only(statistics),
        *screen_sentences(statistics),
    )
    return [sentence for sentence in sentences if sentence]


def _assignment(values: ByHead, change: str) -> str | None:
    """Heads whose pattern matters, the most important first."""
    if not values:
        return None
    moved = sorted((v, site) for site, v in values.items() if v >= MATTERS)[::-1]
    listed = [f"{layer}.{head} ({v:.2f})" for v, (layer, head) in moved[:N_LISTED]]
    return (
        f"Assignment: {len(moved)} of {len(values)} heads move the output by {MATTERS} "
        f"of 1 or more when {change}: {', '.join(listed) or 'none'}."
    )


def _importance(values: ByHead, baseline: ByHead) -> str | None:
    """Attention against leave-one-out; gradients are the baseline of all heads."""
    if not values:
        return None
    layer, head = max(values, key=values.__getitem__)
    agreeing = sum(v >= AGREES for v in values.values())
    reached = next(iter(baseline.values()), None)
    compared = "" if reached is None else f"; gradients reach {reached:.2f}"
    return (
        f"Importance: {agreeing} of {len(values)} heads rank the tokens as leaving "
        f"them out does at τ {AGREES:.2f} or better; the best is {layer}.{head} with "
        f"{values[layer, head]:.2f}{compared}."
    )


def _uniqueness(values: ByHead) -> str | None:
    if not values:
        return None
    free = sum(v >= ELSEWHERE for v in values.values())
    return (
        f"Uniqueness: the attention of {free} of {len(values)} heads can be moved by "
        ".40 (of at most .69) or farther with the output within .05."
    )


def _erasure(never: ByHead) -> str | None:
    if not never:
        return None
    flipping = sum(v <= 1 - MATTERS for v in never.values())
    return (
        f"Erasure: in {flipping} of {len(never)} heads, erasing weights, the largest "
        f"first, flips the decision in {MATTERS:.0%} of the texts or more."
    )


def _removal(attention: ByHead, random: ByHead) -> str | None:
    """Without a head's tokens, beyond what random tokens cost."""
    sites = sorted(attention.keys() & random.keys())
    if not sites:
        return None
    beyond = {site: attention[site] - random[site] for site in sites}
    layer, head = max(sites, key=beyond.__getitem__)
    telling = sum(v >= MATTERS for v in beyond.values())
    return (
        f"Removal: without the tokens they attend to most, {telling} of {len(beyond)} "
        f"heads cost the predicted class {MATTERS} of probability or more beyond what "
        f"random tokens cost; the most is {layer}.{head} with "
        f"{beyond[layer, head]:+.2f}."
    )


def screen_sentences(statistics: Sequence[Statistic]) -> list[str]:
    """How well the first-order screen ranked the heads that were then tested.

    By Spearman's ρ over heads, of which there must be three.
    """
    lines = []
    for estimate, measured in SCREENED.items():
        estimates, exact = by_head(statistics, estimate), by_head(statistics, measured)
        both = sorted(estimates.keys() & exact.keys())
        if len(both) > 2:
            ours = [estimates[site] for site in both]
            rho = spearmanr(ours, [exact[site] for site in both]).statistic
            lines.append(
                f"Screen: {estimate} ranked {len(both)} tested heads as {measured} did "
                f"with Spearman ρ {rho:.2f}."
            )
    return lines
