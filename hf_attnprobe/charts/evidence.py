"""What charts are made of: the texts of one site, and how they are grouped. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from hf_attnprobe import markdown
from hf_attnprobe.charts.chart import Series
from hf_attnprobe.published import Published
from hf_attnprobe.statistics.estimates import Estimate, mean_estimates
from hf_attnprobe.statistics.summary import at_site, position, predictions_of
from hf_attnprobe.statistics.wording import Words


MOST_CLASSES = 4
"""Series of predicted classes that can be told apart; more are not divided."""
BESIDE_RANDOM = ("comprehensiveness@", "sufficiency@", "auprc@")
BEYOND = "beyond random: "
EXACT = "exact"
NOTHING = Estimate(float("nan"), None, 0)


@dataclass(frozen=True)
class Group:
    """Texts that are drawn together.

    Attributes:
        name: in legends.
        number: of the predicted class; None for all texts.
        values: their statistics, a text per row.
    """

    name: str
    number: int | None
    values: pd.DataFrame

    @cached_property
    def means(self) -> dict[str, Estimate]:
        """Of every statistic, with intervals."""
        values = self.values.to_numpy(dtype=np.float64)
        means = mean_estimates(values)
        return dict(zip(self.values.columns, means, strict=True))


@dataclass(frozen=True)
class Evidence:
    """The numbers of one site.

    Attributes:
        everything: all texts.
        groups: by predicted class, where there are few of them; else all texts.
        words: of the kind of prediction.
        published: where the papers' numbers are, if they have any.
    """

    everything: Group
    groups: tuple[Group, ...]
    words: Words
    published: Published | None = None

    @property
    def values(self) -> pd.DataFrame:
        """Statistics by text."""
        return self.everything.values

    def __contains__(self, name: str) -> bool:
        return name in self.values and bool(self.values[name].notna().any())

    def mean(self, name: str) -> Estimate:
        """A statistic over all texts, with its interval; n is 0 where there is none."""
        return self.everything.means.get(name, NOTHING)

    def beyond_random(self, name: str) -> Estimate:
        """The statistic of a ranking minus that of a random one, paired by text."""
        return self.mean(f"{BEYOND}{name}")

    def rankings(self, family: str) -> dict[str, str]:
        """Statistics ``family@ranking`` that have values, by ranking, in table order.

        Single random orders are left out, their mean ``random`` stands for them.
        """
        names = [n for n in self.values if n.startswith(f"{family}@") and n in self]
        keys = {n.partition("@")[2]: n for n in sorted(names, key=position)}
        return {k: n for k, n in keys.items() if not k.startswith("random_")}


def evidence_at(
    rows: pd.DataFrame,
    classes: Sequence[str],
    *,
    site: tuple[int, int],
    words: Words,
    published: Published | None = None,
) -> Evidence:
    """The evidence that rows hold at a site.

    Args:
        rows: of an audit.
        classes: their names.
        site: layer and head, see :func:`~hf_attnprobe.statistics.summary.site_of_model`.
        words: of the kind of prediction.
        published: what the papers call data and model.
    """
    known = at_site(rows, site).dropna(axis=1, how="all")
    values = _with_differences(known)
    everything = Group("all texts", None, values)
    groups = tuple(_classes(everything, predictions_of(rows), classes))
    return Evidence(everything, groups or (everything,), words, published)


def _with_differences(values: pd.DataFrame) -> pd.DataFrame:
    """With what rankings have beyond a random one, to be resampled with the rest."""
    further = {}
    for name in values:
        random = f"{name.partition('@')[0]}@random"
        if name.startswith(BESIDE_RANDOM) and name != random and random in values:
            further[f"{BEYOND}{name}"] = values[name] - values[random]
    return pd.concat([values, pd.DataFrame(further, index=values.index)], axis=1)


def _classes(
    everything: Group, predictions: pd.DataFrame, classes: Sequence[str]
) -> Iterator[Group]:
    """The predicted classes, where they are known and few."""
    if "predicted_class" not in predictions:
        return
    number = predictions.predicted_class.reindex(everything.values.index)
    found = sorted(int(k) for k in number.dropna().unique())
    if 2 <= len(found) <= MOST_CLASSES and found[0] >= 0 and found[-1] < len(classes):
        for k in found:
            texts = everything.values[number == k]
            yield Group(f"predicted {classes[k]}", k, texts)


def kind_of_distance(evidence: Evidence) -> str:
    """Whether the distances are exact, a lower bound, or mixed."""
    exact = evidence.mean("epsilon_max_jsd_exact")
    if not exact.n or exact.value == 0:
        return "found"
    if exact.value == 1:
        return EXACT
    return f"exact in {exact.value:.0%}, else found"


def said(estimate: Estimate) -> str:
    """A number with its interval, as sentences have it."""
    return markdown.interval(estimate.value, estimate.ci95, digits=2)


def series_of_means(name: str, means: Mapping[str, Estimate]) -> Series:
    """Means with the ends of their intervals, by place."""
    nothing = float("nan"), float("nan")
    low, high = zip(*(m.ci95 or nothing for m in means.values()), strict=True)
    values = tuple(m.value for m in means.values())
    sizes = tuple(m.n or 0 for m in means.values())
    return Series(name, tuple(means), values, low, high, sizes)


def series_of_medians(name: str, texts: Mapping[str, pd.Series]) -> Series:
    """Medians with the ends of the middle half of the texts, by place; NaN without texts."""
    ends = [values.quantile([0.25, 0.5, 0.75]) for values in texts.values()]
    low, middle, high = zip(*ends, strict=True)
    sizes = tuple(int(values.notna().sum()) for values in texts.values())
    return Series(name, tuple(texts), middle, low, high, sizes)


RANKING_NAMES = {
    "random": "random order",
    "attention": "attention",
    "gradient": "gradient of attention",
    "product": "attention × gradient",
    "leave_one_out": "leave-one-out",
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
    """What a ranking is called in charts.

    >>> ranking_name("leave_one_out"), ranking_name("my_ranking")
    ('leave-one-out', 'my ranking')
    """
    return RANKING_NAMES.get(key, key.replace("_", " "))
