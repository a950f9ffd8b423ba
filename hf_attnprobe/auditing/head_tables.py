"""A model with many heads as layer × head tables, and what they say. Pure: statistics in, lines out."""

from collections.abc import Sequence

from scipy.stats import spearmanr

from hf_attnprobe.auditing.verdict import only_silenced
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
FORETOLD = {"first_order_uniform": "uniform_tvd", "first_order_zero": "zero_tvd"}
MATTERS, AGREES = 0.05, 0.3  # of 1; τ


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
    """Markdown tables, layers down and heads across, one per statistic; a dash where a head was not tested."""
    lines = []
    for name, title in TITLES.items():
        values = by_head(statistics, name)
        if not values:
            continue
        n_heads = max(head for _, head in values) + 1
        lines += [
            "",
            f"### {name}: {title}",
            "",
            f"| layer | {' | '.join(f'head {h}' for h in range(n_heads))} |",
        ]
        lines.append("|---" * (n_heads + 1) + "|")
        for layer in sorted({layer for layer, _ in values}):
            cells = (
                f"{values[layer, h]:.2f}" if (layer, h) in values else "–"
                for h in range(n_heads)
            )
            lines.append(f"| {layer} | {' | '.join(cells)} |")
    return lines + layer_table(statistics)


def layer_table(statistics: Sequence[Statistic]) -> list[str]:
    """A Markdown table of what is said of layers as a whole, layers down and readings across."""
    columns = {name: by_head(statistics, name) for name in OF_LAYERS}
    columns = {OF_LAYERS[name]: values for name, values in columns.items() if values}
    if not columns:
        return []
    lines = [
        "",
        "### rank correlation of a layer's readings with leave-one-out",
        "",
        f"| layer | {' | '.join(columns)} |",
    ]
    lines.append("|---" * (len(columns) + 1) + "|")
    for site in sorted({site for values in columns.values() for site in values}):
        cells = (
            f"{values[site]:.2f}" if site in values else "–"
            for values in columns.values()
        )
        lines.append(f"| {site[0]} | {' | '.join(cells)} |")
    return lines


def prune_table(curve: PruneCurve) -> list[str]:
    """A Markdown table of accuracy against the number of heads removed."""
    lines = ["| heads removed | predictions kept | accuracy |", "|---|---|---|"]
    points = zip(curve.n_removed, curve.agreement, curve.accuracy, strict=True)
    return lines + [
        f"| {n} | {agreement:.3f} | {accuracy:.3f} |"
        for n, agreement, accuracy in points
    ]


def head_sentences(statistics: Sequence[Statistic]) -> list[str]:
    """What the tables say, in plain words."""
    lines = []
    for name, said in (
        ("uniform_tvd", "their pattern is replaced by uniform attention"),
        ("median_tvd", "shuffled"),
    ):
        values = by_head(statistics, name)
        moved = sorted((v, site) for site, v in values.items() if v >= MATTERS)[::-1]
        if values:
            listed = (
                ", ".join(f"{layer}.{head} ({v:.2f})" for v, (layer, head) in moved[:8])
                or "none"
            )
            lines.append(
                f"Assignment: {len(moved)} of {len(values)} heads move the output by {MATTERS} of 1 or more when {said}: {listed}."
            )
    lines += _agreement(statistics)
    moved = by_head(statistics, "epsilon_max_jsd@0.05")
    if moved:
        free = sum(v >= 0.4 for v in moved.values())
        lines.append(
            f"Uniqueness: the attention of {free} of {len(moved)} heads can be moved by .40 (of at most .69) or farther "
            "with the output within .05."
        )
    return [
        *lines,
        *_erasure(statistics),
        *_removal(statistics),
        *only_silenced(statistics),
        *screen_sentences(statistics),
    ]


def _erasure(statistics: Sequence[Statistic]) -> list[str]:
    never = by_head(statistics, "never_flips@attention")
    if not never:
        return []
    flipping = sum(v <= 1 - MATTERS for v in never.values())
    return [
        f"Erasure: in {flipping} of {len(never)} heads, erasing weights, the largest first, flips the decision in "
        f"{MATTERS:.0%} of the texts or more."
    ]


def _removal(statistics: Sequence[Statistic]) -> list[str]:
    """Against random tokens, which every head shares."""
    attention, random = (
        by_head(statistics, f"comprehensiveness@{name}")
        for name in ("attention", "random")
    )
    above = {
        site: attention[site] - random[site]
        for site in attention.keys() & random.keys()
    }
    if not above:
        return []
    best = max(sorted(above), key=above.__getitem__)
    telling = sum(v >= MATTERS for v in above.values())
    return [
        f"Removal: without the tokens they attend to most, {telling} of {len(above)} heads cost the predicted class "
        f"{MATTERS} of probability or more beyond what random tokens cost; the most is {best[0]}.{best[1]} with "
        f"{above[best]:+.2f}."
    ]


def _agreement(statistics: Sequence[Statistic]) -> list[str]:
    values, yardstick = (
        by_head(statistics, f"{name}_leave_one_out_tau")
        for name in ("attention", "gradient")
    )
    if not values:
        return []
    best = max(values, key=values.__getitem__)
    agreeing = sum(v >= AGREES for v in values.values())
    compared = (
        f"; gradients reach {next(iter(yardstick.values())):.2f}" if yardstick else ""
    )
    return [
        f"Importance: {agreeing} of {len(values)} heads rank the tokens as leaving them out does at τ {AGREES:.2f} or better; "
        f"the best is {best[0]}.{best[1]} with {values[best]:.2f}{compared}."
    ]


def screen_sentences(statistics: Sequence[Statistic]) -> list[str]:
    """How well the first-order screen ranked the heads that were then tested (Spearman's ρ over heads)."""
    lines = []
    for foretold, found in FORETOLD.items():
        estimates, exact = by_head(statistics, foretold), by_head(statistics, found)
        both = sorted(estimates.keys() & exact.keys())
        if len(both) > 2:
            rho = spearmanr(
                [estimates[s] for s in both], [exact[s] for s in both]
            ).statistic
            lines.append(
                f"Screen: {foretold} ranked {len(both)} tested heads as {found} did with Spearman ρ {rho:.2f}."
            )
    return lines
