"""Charts of one audit, in the order of the questions. Pure.

Each follows a figure of a paper and says in one sentence what is to be seen.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple

import numpy as np
import pandas as pd

from hf_attnprobe.core import formatting as markdown
from hf_attnprobe.plots.chart import Chart, Reference, Series
from hf_attnprobe.statistics.estimates import MIN_SHOWN, Estimate
from hf_attnprobe.statistics.evidence import Evidence
from hf_attnprobe.statistics.questions import EVERY_QUESTION
from hf_attnprobe.statistics.rows import Rows, Texts
from hf_attnprobe.statistics.sampling import sample
from hf_attnprobe.statistics.summary import (
    BY_ROUNDING,
    at_site,
    attention_bin,
    bin_names,
    js_by_gap,
    position,
    predictions_of,
    quantiles,
)
from hf_attnprobe.statistics.wording import CLASSES, Words


MOST_CLASSES = 4
"""Series of predicted classes that can be told apart; more are not divided."""
EXACT = "exact"
NO_ENDS = (float("nan"), float("nan"))


class Group(NamedTuple):
    """Texts that are drawn together: their name in legends, their class, their numbers.

    Without a class they are all texts.
    """

    name: str
    number: int | None
    evidence: Evidence

    @property
    def values(self) -> Texts:
        """Their statistics, read by name."""
        return self.evidence.texts


@dataclass(frozen=True)
class SiteEvidence(Evidence):
    """The numbers of one site, and of its groups of texts.

    Attributes:
        groups: by predicted class, where there are few of them; else all texts.
    """

    groups: tuple[Group, ...] = ()

    @property
    def values(self) -> Texts:
        """Statistics by text, read by name; only such as have values."""
        return self.texts

    def __contains__(self, name: str) -> bool:
        return name in self.texts

    def rankings(self, family: str) -> dict[str, str]:
        """Statistics ``family@ranking`` that have values, by ranking, in table order.

        Single random orders are left out, their mean ``random`` stands for them.
        """
        names = [n for n in self.texts if n.startswith(f"{family}@")]
        keys = {n.partition("@")[2]: n for n in sorted(names, key=position)}
        return {k: n for k, n in keys.items() if not k.startswith("random_")}


def evidence_at(
    rows: Rows | pd.DataFrame,
    classes: Sequence[str],
    *,
    site: tuple[int, int],
    words: Words,
) -> SiteEvidence:
    """The statistics at a site, from the rows.

    Args:
        rows: of an audit.
        classes: their names.
        site: layer and head, see :func:`~hf_attnprobe.statistics.summary.site_of_model`.
        words: of the kind of prediction.
    """
    texts = at_site(rows, site).known(MIN_SHOWN)
    everything = Evidence(texts, words=words)
    predictions = predictions_of(rows)
    groups = tuple(_classes(everything, predictions, classes))
    groups = groups or (Group("all texts", None, everything),)
    return SiteEvidence(**vars(everything), groups=groups)


def _classes(everything: Evidence, predictions: Texts, classes: Sequence[str]) -> Iterator[Group]:
    """The predicted classes, if they are known and few."""
    number = predictions.of(everything.texts.index).values("predicted_class")
    found = sorted(int(k) for k in pd.unique(number) if k == k)
    if 2 <= len(found) <= MOST_CLASSES and found[0] >= 0 and found[-1] < len(classes):
        for k in found:
            members = number == k
            if members.sum() >= MIN_SHOWN:
                yield Group(f"predicted {classes[k]}", k, everything.where(members))


def kind_of_distance(evidence: SiteEvidence) -> str:
    """Whether the distances are exact, a lower bound, or mixed."""
    exact = evidence.mean("epsilon_max_jsd_exact")
    if not exact.n or exact.value == 0:
        return "found"
    if exact.value == 1:
        return EXACT
    return f"exact in {exact.value:.0%}, else found"


def said(estimate: Estimate) -> str:
    """A number with its interval, for a sentence."""
    return markdown.interval(estimate.value, estimate.ci95, digits=2)


def series_of_means(means: Mapping[str, Estimate]) -> Series:
    """Means over the texts with the ends of their intervals, by place."""
    estimates = means.values()
    ends = [estimate.ci95 or NO_ENDS for estimate in estimates]
    low, high = zip(*ends, strict=True)
    values = tuple(estimate.value for estimate in estimates)
    sizes = tuple(estimate.n or 0 for estimate in estimates)
    return Series("mean over texts", tuple(means), values, low, high, sizes)


def series_of_medians(name: str, texts: Iterable[tuple[str, np.ndarray]]) -> Series:
    """Medians with the ends of the middle half of the texts; NaN without texts.

    Args:
        texts: places with their values, one after the other.
    """
    found = [(place, *quantiles(values), int((~np.isnan(values)).sum())) for place, values in texts]
    x, low, middle, high, sizes = zip(*found, strict=True)
    return Series(name, x, middle, low, high, sizes)


RANKING_NAMES = {
    "random": "random order",
    "attention": "attention",
    "gradient": "gradient of attention",
    "product": "attention × gradient",
    "leave_one_out": "leaving out",
    "input_gradient": "gradient × input",
    "margin": "margins",
    "effective_attention": "effective attention",
    "norm_based": "norm-based",
    "integrated_gradient": "integrated gradients",
    "mean_attention": "mean attention",
    "last_layer_attention": "last layer's attention",
    "last_layer": "last layer's attention",
    "rollout": "attention rollout",
}


def ranking_name(key: str) -> str:
    """Name of a ranking in charts.

    >>> ranking_name("leave_one_out"), ranking_name("my_ranking")
    ('leaving out', 'my ranking')
    """
    return RANKING_NAMES.get(key, key.replace("_", " "))


def audit_charts(
    rows: Rows | pd.DataFrame,
    classes: Sequence[str],
    *,
    site: tuple[int, int],
    words: Words = CLASSES,
) -> tuple[Chart, ...]:
    """The charts of one audit at one site.

    Args:
        rows: of the audit.
        classes: names of the classes.
        site: layer and head, see :func:`~hf_attnprobe.statistics.summary.site_of_model`.
        words: of the kind of prediction.
    """
    if not len(rows):
        return ()
    return charts_of(evidence_at(rows, classes, site=site, words=words))


def charts_of(evidence: SiteEvidence) -> tuple[Chart, ...]:
    """All charts of the given evidence."""
    smallest = next(iter(shown_epsilons(evidence)), "")
    compared, suffices, plausible = (by_ranking(evidence, r) for r in RANKED)
    found = (
        tau_histogram(evidence, "leave_one_out"),
        tau_histogram(evidence, "gradient"),
        js_against_attention(evidence),
        fraction_to_flip(evidence),
        compared,
        suffices,
        permutation_by_max_attention(evidence),
        adversarial_distance(evidence),
        distance_by_max_attention(evidence, smallest),
        plausible,
    )
    return tuple(map(_named, filter(None, found)))


def _named(chart: Chart) -> Chart:
    """Returns a chart whose title begins with the name of its question."""
    title = f"{chart.title[:1].lower()}{chart.title[1:]}"
    for asked in EVERY_QUESTION.values():
        if chart.key in asked.charts:
            return replace(chart, title=f"{asked.name}: {title}")
    return chart


# --- does attention rank the tokens as importance does? histograms of τ ---------------


BIN_WIDTH = 0.1
EDGES = np.linspace(-1, 1, 21).round(10)
TAUS = {
    "leave_one_out": Chart(
        "tau_leave_one_out",
        "Rank correlation of attention with leaving tokens out",
        (),
        "Jain & Wallace 2019, Table 2 (drawn as in Figure 2)",
        "histogram",
        "Kendall τ with leaving tokens out",
        "share of texts",
        (),
        x_range=(-1.0, 1.0),
        bin_width=BIN_WIDTH,
    ),
    "gradient": Chart(
        "tau_gradient",
        "Rank correlation of attention with gradients",
        (),
        "Jain & Wallace 2019, Figure 2",
        "histogram",
        "Kendall τ with gradients",
        "share of texts",
        (),
        x_range=(-1.0, 1.0),
        bin_width=BIN_WIDTH,
    ),
}


def tau_histogram(evidence: SiteEvidence, measure: str) -> Chart | None:
    """Kendall τ-b of attention with a measure of importance, by predicted class.

    Args:
        evidence: of one site.
        measure: ``leave_one_out`` or ``gradient``.

    Returns:
        None without such values.
    """
    column = f"attention_{measure}_tau"
    if column not in evidence:
        return None
    groups = [g for g in evidence.groups if len(g.values.known_values(column))]
    return replace(
        TAUS[measure],
        sentences=_tau_sentences(evidence, groups, measure),
        series=tuple(_histogram(group, column) for group in groups),
        references=(Reference("chance", 0.0, "x"),),
    )


def _histogram(group: Group, column: str) -> Series:
    taus = group.values.known_values(column)
    counts, _ = np.histogram(taus, EDGES)
    shares = counts / len(taus)
    places = tuple(EDGES[:-1].tolist())
    return Series(group.name, places, tuple(shares.tolist()), n=tuple(counts.tolist()))


def _tau_sentences(evidence: SiteEvidence, groups: list[Group], measure: str) -> tuple[str, ...]:
    column, significant = (
        f"attention_{measure}_tau",
        f"attention_{measure}_significant",
    )
    parts = []
    for group in groups:
        tau = group.evidence.mean(column)
        share = group.evidence.mean(significant)
        sure = f", {share.value:.0%} of them significant" if share.n else ""
        parts.append(f"{said(tau)} for {group.name} ({tau.n} texts{sure})")
    n_undefined = len(evidence.values) - len(evidence.values.known_values(column))
    left_out: tuple[str, ...] = ()
    if n_undefined:
        texts = "text has" if n_undefined == 1 else "texts have"
        left_out = (f"{n_undefined} {texts} no τ: not reached, or nothing to rank.",)
    by_chance = evidence.mean("significant_by_chance")
    chance = "0 is chance and 1 the same order"
    if by_chance.n:
        chance += f"; unrelated orders agree significantly in {by_chance.value:.1%} of texts"
    return f"Mean τ is {', '.join(parts)}.", f"{chance}.", *left_out


# --- how far the output, or attention, moves, by the largest attention weight ---------


BARS = "middle half of the texts"
X_LABEL = "largest attention weight of the text"


PERMUTATION = Chart(
    "permutation_by_max_attention",
    "Output change when the weights are shuffled over the tokens",
    (),
    "Jain & Wallace 2019, Figure 6",
    "dots",
    X_LABEL,
    "output change, median over shuffles",
    (),
    bars=BARS,
    y_range=(0.0, 1.0),
)
BY_MAX_ATTENTION = Chart(
    "adversarial_by_max_attention",
    "How far attention can be moved with the output within",
    (),
    "Jain & Wallace 2019, Figure 8",
    "dots",
    X_LABEL,
    "ε-max JSD",
    (),
    bars=BARS,
    y_range=(0.0, 0.7),
)


def permutation_by_max_attention(evidence: SiteEvidence) -> Chart | None:
    """Median change of the output under shuffles, in four bins; None without values."""
    if not {"median_tvd", "max_attention"} <= set(evidence.values):
        return None
    words = evidence.words
    return replace(
        PERMUTATION,
        sentences=_sentences_by_bin(
            evidence,
            "median_tvd",
            "Shuffling which token gets which weight moves the output by",
            "0 says that it does not matter which token got which weight.",
        ),
        y_label=f"{PERMUTATION.y_label} ({words.measured})",
        series=tuple(_by_bin(evidence, "median_tvd")),
        y_range=None if words.is_number else PERMUTATION.y_range,
    )


def distance_by_max_attention(evidence: SiteEvidence, epsilon: str) -> Chart | None:
    """How far attention can be moved within ε, in four bins; None without values."""
    column = f"epsilon_max_jsd@{epsilon}"
    if column not in evidence or "max_attention" not in evidence:
        return None
    references: tuple[Reference, ...] = ()
    yardstick = ""
    if "largest_jsd" in evidence:
        ceiling = _median(evidence, "largest_jsd")
        references = (Reference("median of the farthest attention of all", ceiling),)
        yardstick = (
            f"The nearer to {ceiling:.2f}, the median of the farthest attention of all, "
            "the less the output pins the weights down."
        )
    return replace(
        BY_MAX_ATTENTION,
        title=f"{BY_MAX_ATTENTION.title} {epsilon}",
        sentences=_sentences_by_bin(
            evidence,
            column,
            f"With the output within {epsilon} attention can be moved by a JSD of",
            yardstick,
            least="" if kind_of_distance(evidence) == EXACT else "at least ",
        ),
        y_label=f"{BY_MAX_ATTENTION.y_label} (ε = {epsilon}), nats",
        series=tuple(_by_bin(evidence, column)),
        references=references,
    )


def _in_bins(texts: Texts, column: str) -> dict[str, np.ndarray]:
    """A column's values by the bin of the largest weight, in the order of the bins."""
    bins = attention_bin(texts.values("max_attention"))
    values = texts.values(column)
    is_known = ~np.isnan(values)
    return {name: values[is_known & (bins == name)] for name in bin_names()}


def _by_bin(evidence: SiteEvidence, column: str) -> list[Series]:
    return [
        series_of_medians(group.name, _in_bins(group.values, column).items())
        for group in evidence.groups
        if len(group.values)
    ]


def _sentences_by_bin(
    evidence: SiteEvidence,
    column: str,
    begin: str,
    yardstick: str,
    *,
    least: str = "",
) -> tuple[str, ...]:
    """The median of the lowest and of the highest bin that has texts."""
    bins = _in_bins(evidence.values, column)
    held = [name for name, texts in bins.items() if len(texts)]
    said = " and ".join(
        f"{least}{np.median(bins[name]):.2f} in the {_texts(len(bins[name]))} whose "
        f"largest weight is in {name}"
        for name in dict.fromkeys([*held[:1], *held[-1:]])
    )
    return (
        f"{begin} {said} (medians over texts).",
        *([yardstick] if yardstick else []),
    )


def _texts(n: int) -> str:
    return "one text" if n == 1 else f"{n} texts"


# --- could attention have looked elsewhere? distances beside their ceiling ------------


LN_2 = math.log(2)
GRID = np.append(np.arange(0, 0.69, 0.02).round(2), LN_2)
ROUNDING = 1e-9  # a distance is reached up to rounding
PAPERS_EPSILONS = (0.01, 0.05)
MOST_EPSILONS = 3


DISTANCE = Chart(
    "adversarial_distance",
    "How far attention can be moved with nearly the same output",
    (),
    "Jain & Wallace 2019, Figure 7 (there as densities)",
    "curve",
    "JSD from the model's attention, nats",
    "share of texts moved at least so far",
    (),
    x_range=(0.0, LN_2),
    y_range=(0.0, 1.0),
)


def shown_epsilons(evidence: SiteEvidence) -> list[str]:
    """The papers' ε if they were tested, else up to three others, as keys."""
    names = [n for n in evidence.values if n.startswith("epsilon_max_jsd@")]
    keys = sorted((n.partition("@")[2] for n in names), key=float)
    papers = [key for key in keys if float(key) in PAPERS_EPSILONS]
    return papers or keys[:MOST_EPSILONS]


def adversarial_distance(evidence: SiteEvidence) -> Chart | None:
    """For each ε, the share of texts whose attention can be moved at least this far.

    A line of each ε, a second one where what is found and what cannot be exceeded
    differ, and one of the farthest attention of all.
    """
    epsilons = shown_epsilons(evidence)
    if not epsilons:
        return None
    kind = kind_of_distance(evidence)
    series = []
    for key in epsilons:
        series.append(_reached(evidence, f"epsilon_max_jsd@{key}", f"ε = {key}, {kind}"))
        upper = f"epsilon_max_jsd_upper@{key}"
        if upper in evidence:
            series.append(_reached(evidence, upper, f"ε = {key}, at most"))
    if "largest_jsd" in evidence:
        series.append(_reached(evidence, "largest_jsd", "any output (ceiling)"))
    return replace(
        DISTANCE,
        sentences=_distance_sentences(evidence, epsilons, kind),
        series=tuple(series),
    )


def _reached(evidence: SiteEvidence, column: str, name: str) -> Series:
    values = np.sort(evidence.values.known_values(column))
    reached = len(values) - np.searchsorted(values, GRID - ROUNDING)
    shares = reached / len(values)
    return Series(name, tuple(GRID.tolist()), tuple(shares.tolist()))


def _distance_sentences(evidence: SiteEvidence, epsilons: list[str], kind: str) -> tuple[str, ...]:
    parts = []
    for key in epsilons:
        median = _median(evidence, f"epsilon_max_jsd@{key}")
        least = "" if kind == EXACT else "at least "
        parts.append(f"{least}{median:.2f} where the output may move by {key}")
    n = len(evidence.values.known_values(f"epsilon_max_jsd@{epsilons[0]}"))
    sentence = (
        f"Median distance (JSD) over {n} texts: {', '.join(parts)} ({evidence.words.distance})"
    )
    if "largest_jsd" in evidence:
        ceiling = _median(evidence, "largest_jsd")
        sentence += f"; {ceiling:.2f} where it may move at will"
    how = {
        EXACT: "These are exact maxima.",
        "found": "These are the farthest that were found, so lower bounds.",
    }.get(kind, f"They are {kind}, which is a lower bound.")
    return (
        f"{sentence}.",
        "A line near the ceiling says that the output hardly pins attention down.",
        how,
    )


def _median(evidence: SiteEvidence, column: str) -> float:
    return quantiles(evidence.values.values(column), [0.5])[0]


# --- does the size of a weight say how much the output rests on it? -------------------


MOST_POINTS = 300
NEEDED = ("delta_attention", "delta_js")


JS_AGAINST_ATTENTION = Chart(
    "js_against_attention",
    "The largest weight erased, against another one",
    (),
    "Serrano & Smith 2019, Figure 3",
    "points",
    "Δα: largest weight minus the other one",
    "ΔJS of the output, nats",
    (),
    (Reference("no difference", 0.0),),
    bars="middle half of the texts",
    x_range=(0.0, 1.0),
)


def js_against_attention(evidence: SiteEvidence) -> Chart | None:
    """ΔJS against Δα: single texts, and the median of all; None without values."""
    if not set(NEEDED) <= set(evidence.values):
        return None
    gap, js = (evidence.values.values(name) for name in NEEDED)
    both = ~np.isnan(gap + js)
    if not both.any():
        return None
    gap, js = gap[both], js[both]
    points = _points(evidence.values.ids()[both], gap, js)
    return replace(
        JS_AGAINST_ATTENTION,
        sentences=_erasure_sentences(gap, js),
        series=(points, _medians(gap, js)),
    )


def _points(ids: np.ndarray, gap: np.ndarray, js: np.ndarray) -> Series:
    shown = sample(range(len(ids)), ids, MOST_POINTS)
    name = "texts"
    if len(shown) < len(ids):
        name = f"texts ({len(shown)} of {len(ids)}, drawn at random)"
    return Series(name, tuple(gap[shown].tolist()), tuple(js[shown].tolist()))


def _medians(gap: np.ndarray, js: np.ndarray) -> Series:
    """Median in each tenth of Δα that contains texts."""
    bins = list(js_by_gap(gap, js))
    low, high = zip(*(b.quartiles for b in bins), strict=True)
    return Series(
        f"median of all {len(js)} texts, by tenths of Δα",
        tuple(b.middle for b in bins),
        tuple(b.median for b in bins),
        low,
        high,
        tuple(b.n for b in bins),
        joined=True,
    )


def _erasure_sentences(gap: np.ndarray, js: np.ndarray) -> tuple[str, ...]:
    negative = (js < -BY_ROUNDING).mean()
    sentence = (
        "Without the largest weight the output moves by a median of "
        f"{np.median(js):.3f} nats more than without another one drawn at random "
        f"({len(js)} texts; 0 is no difference, ln 2 = .69 the most there is); in "
        f"{negative:.0%} of them the other one moves it more."
    )
    wide = js[gap >= 0.5]
    if len(wide):
        where = (
            f"Where the largest weight is at least .5 larger ({len(wide)} texts) the "
            f"median is {np.median(wide):.3f}."
        )
        return sentence, where
    return (sentence,)


# --- how much must go before the decision flips, by ranking? --------------------------


SMALLEST = "minimal_fraction"
RANKING = "in the order of a ranking"
SMALLEST_SET, BEST_TRIED = "smallest set", "best ranking of each text"
LEAST = {
    SMALLEST_SET: "the least there is",
    BEST_TRIED: "the least that was tried",
}
ORDERS = {"attention": "attention's order", "random": "a random order"}
"""That a sentence names."""
OPTIMAL = "margin"  # the order that the smallest set is read from


FRACTION_TO_FLIP = Chart(
    "fraction_to_flip",
    "Tokens to erase before the decision flips",
    (),
    "Serrano & Smith 2019, Figure 5",
    "dots",
    "tokens erased in the order of",
    "share of tokens erased at the flip",
    (),
    bars="middle half of the texts",
    y_range=(0.0, 1.0),
)


def fraction_to_flip(evidence: SiteEvidence) -> Chart | None:
    """Share of the tokens erased when the decision flips, beside the smallest possible.

    All orders are on the same texts, those that some set (or some order that was tried)
    flips; an order that never does counts as all tokens.
    """
    orders = evidence.rankings("fraction_to_flip")
    if not orders:
        return None
    best_name, best = _least(evidence, orders)
    orders.pop(OPTIMAL, None)
    shown = ((ranking_name(key), evidence.values.values(name)) for key, name in orders.items())
    series = [
        series_of_medians(RANKING, shown),
        series_of_medians(LEAST[best_name], [(best_name, best)]),
    ]
    return replace(
        FRACTION_TO_FLIP,
        sentences=_flip_sentences(evidence, best_name, best),
        series=tuple(series),
    )


def _least(evidence: SiteEvidence, orders: dict[str, str]) -> tuple[str, np.ndarray]:
    """The exact minimum, or for each text the best of the rankings."""
    if SMALLEST in evidence:
        return SMALLEST_SET, evidence.values.values(SMALLEST)
    tried = [name for key, name in orders.items() if key != "random"] or list(orders.values())
    return BEST_TRIED, reduce(np.fmin, map(evidence.values.values, tried))


def _flip_sentences(evidence: SiteEvidence, best_name: str, best: np.ndarray) -> tuple[str, ...]:
    parts = []
    for key, order in ORDERS.items():
        mean = evidence.mean(f"fraction_to_flip@{key}")
        if mean.n:
            parts.append(f"{said(mean)} of the tokens in {order}")
    n = int((~np.isnan(best)).sum())
    tested = [evidence.mean(name).n for name in ("no_set_flips", "no_order_flips")]
    n_texts = max(filter(None, tested), default=len(evidence.values))
    what = "some set" if best_name == SMALLEST_SET else "some tried order"
    never = evidence.mean("never_flips@attention")
    failing: tuple[str, ...] = ()
    if never.n:
        failing = (
            f"Attention's order never flips {never.value:.0%} of them, which counts as all tokens.",
        )
    return (
        f"{evidence.words.decision.capitalize()} flips after {', '.join(parts)}, where "
        f"the {best_name} has {np.nanmean(best):.2f} (means over the {n} of {n_texts} texts "
        f"that {what} flips; drawn are medians).",
        *failing,
    )


# --- what rankings of the tokens are worth, beside a random one -----------------------


class Ranked(NamedTuple):
    """A chart of what each ranking is worth; its words are filled in by the kind of prediction.

    Attributes:
        family: the statistics ``family@ranking``.
        chart: without its numbers.
        said: of one ranking, with its number.
        yardstick: how it is to be read.
    """

    family: str
    chart: Chart
    said: str
    yardstick: str


RANKED = (
    Ranked(
        "comprehensiveness",
        Chart(
            "comprehensiveness",
            "What is lost without the tokens that a ranking puts first",
            (),
            "DeYoung et al. 2020, comprehensiveness",
            "dots",
            "ranking",
            "{words.lost} without them",
            (),
        ),
        "Without the first tokens of {name} {words.said} loses {value} {words.amount}{words.aside}",
        "A ranking that is no better than random says nothing of the prediction. Texts with "
        "tokens erased are unlike those of the training.",
    ),
    Ranked(
        "sufficiency",
        Chart(
            "sufficiency",
            "What is lost on the first tokens of a ranking alone",
            (),
            "DeYoung et al. 2020, sufficiency",
            "dots",
            "ranking",
            "{words.lost} on them alone",
            (),
        ),
        "On the first tokens of {name} alone {words.said} loses {value} "
        "{words.amount}{words.aside}",
        "Here less is better. Texts with tokens erased are unlike those of the training.",
    ),
    Ranked(
        "auprc",
        Chart(
            "plausibility",
            "Agreement of rankings with the words that people marked",
            (),
            "DeYoung et al. 2020, Section 4 (AUPRC)",
            "dots",
            "ranking",
            "area under the precision-recall curve",
            (),
            y_range=(0.0, 1.0),
        ),
        "Against the words that people marked, the ranking of {name} has area {value} (1 is all "
        "of them in front)",
        "People agreeing with a ranking does not make it faithful.",
    ),
)


def by_ranking(evidence: SiteEvidence, ranked: Ranked) -> Chart | None:
    """Means with their intervals, random as a line too; None without values."""
    found = evidence.rankings(ranked.family)
    if not found:
        return None
    means = {ranking_name(key): evidence.mean(name) for key, name in found.items()}
    random = found.get("random")
    references = [Reference("random order", evidence.mean(random).value)] if random else []
    return replace(
        ranked.chart,
        sentences=_ranking_sentences(evidence, found, ranked),
        y_label=ranked.chart.y_label.format(words=evidence.words),
        series=(series_of_means(means),),
        references=tuple(references),
    )


def _ranking_sentences(
    evidence: SiteEvidence, found: dict[str, str], ranked: Ranked
) -> tuple[str, ...]:
    own = [key for key in ("attention", "mean_attention") if key in found]
    key = [*own, *found][0]
    mean = evidence.mean(found[key])
    sentence = ranked.said.format(name=ranking_name(key), value=said(mean), words=evidence.words)
    if "random" in found and key != "random":
        random = evidence.mean(found["random"])
        difference = evidence.beyond(found[key], found["random"])
        sentence += f"; random has {said(random)}, a difference of {said(difference)}"
    return f"{sentence} ({mean.n} texts).", ranked.yardstick
