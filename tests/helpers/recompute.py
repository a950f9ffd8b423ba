"""An audit's numbers and answers again, from its Parquet alone, in plain pandas.

Nothing of the package is imported. Thresholds are those of the table that the
documentation prints.
"""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.optimize
import scipy.stats


MIN_TEXTS = 30
RULES_PAGE = Path(__file__).parents[2] / "docs" / "verdicts.md"


def thresholds():
    """(partly, yes) of each rule, by its name in lower case, from the printed table."""
    found = {}
    for line in RULES_PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if len(cells) == 6 and re.fullmatch(r"[A-Z][\w: ]+", cells[0]):
            yes = 0.0 if cells[4] == "above 0" else float(cells[4])
            partly = yes if cells[3] == "–" else float(cells[3])
            found[cells[0].lower()] = partly, yes
    return found


def read(folder):
    """Rows of a folder of Parquet files; a value may have been written twice."""
    rows = pd.read_parquet(folder)
    rows = rows.fillna({"layer": -1, "head": -1}).astype({"layer": int, "head": int})
    return rows.drop_duplicates(["test", "statistic", "layer", "head", "example_id"])


def wide(rows, layer, head):
    """Texts by statistic at one site."""
    here = rows[(rows.layer == layer) & (rows["head"] == head)]
    here = here[here.test != "prediction"]
    return here.pivot(index="example_id", columns="statistic", values="value")


def predictions(rows):
    own = rows[rows.test == "prediction"]
    return own.pivot(index="example_id", columns="statistic", values="value")


def accuracy(own):
    """How good the predictions are, and the same of always saying what is most usual.

    Returns:
        (right, usual, graded, n): of numbers mean absolute errors, and R² as graded.
    """
    if "labelled_value" in own:
        own = own[own.labelled_value.notna()]
        wanted, mean = own.labelled_value, own.labelled_value.mean()
        missed = ((wanted - own.value) ** 2).sum()
        graded = 1 - missed / ((wanted - mean) ** 2).sum()
        off = (wanted - own.value).abs().mean()
        return off, (wanted - mean).abs().mean(), graded, len(own)
    if "correct" not in own:
        own = own[own.label >= 0]
        right = (own.predicted_class == own.label).mean()
        usual = own.label.value_counts(normalize=True).iloc[0]
        return right, usual, right - usual, len(own)
    own = own[own.correct.notna()]
    right, usual = own.correct.mean(), None
    sides = own.filter(regex="^label@")
    if len(sides.columns):
        usual = np.mean([max(column.mean(), 1 - column.mean()) for _, column in sides.items()])
    shares = own.filter(regex="^label_share@")
    if len(shares.columns):
        usual = shares.mean().max()
    return right, usual, None if usual is None else right - usual, len(own)


def mean_and_interval(values):
    """Mean, interval and number of the values that are there.

    Student's t is bent by Hall's cubic, whose root is found by SciPy.
    """
    values = np.asarray(values, dtype=float)
    values = values[~np.isnan(values)]
    n = len(values)
    if n < 2 or np.ptp(values) == 0:
        only = values[0] if n else np.nan
        return only, (only, only), n
    mean, error = values.mean(), scipy.stats.sem(values)
    skewness = scipy.stats.skew(values) / np.sqrt(n)
    cubic = [skewness**2 / 27, skewness / 3, 1, skewness / 6]
    ends = []
    for share in (0.975, 0.025):
        wanted = scipy.stats.t.ppf(share, n - 1)
        t = scipy.optimize.brentq(lambda t, w=wanted: np.polyval(cubic, t) - w, -1e6, 1e6)
        ends.append(np.clip(mean - t * error, values.min(), values.max()))
    return mean, tuple(ends), n


def statistics(rows, label_names):
    """(test, statistic, layer, head, group) -> mean, median, std, n, undefined."""
    tested = rows[rows.test != "prediction"]
    predicted = predictions(rows).predicted_class
    groups = {"all": predicted.index}
    for k, name in enumerate(label_names):
        members = predicted.index[predicted == k]
        if len(members):
            groups[name] = members
    found = {}
    for key, column in tested.groupby(["test", "statistic", "layer", "head"]):
        values = column.set_index("example_id").value
        for group, members in groups.items():
            of_group = values.reindex(members)
            real = of_group.dropna()
            found[(*key, group)] = (
                real.mean(),
                real.median(),
                real.std(ddof=0),
                len(real),
                len(of_group) - len(real),
            )
    return found


def site_of_model(rows):
    tested = rows[rows.test != "prediction"]
    sites = {(a, b) for a, b in zip(tested.layer, tested["head"], strict=True)}
    if (-1, -1) in sites:
        return (-1, -1)
    heads = [s for s in sites if s[0] >= 0 and s[1] >= 0]
    return heads[0] if len(heads) == 1 else None


class Graded:
    """A number that is graded: some function of means over texts.

    Attributes:
        columns: [texts, statistics]; a text counts that has all of them.
        of_means: from the means of the columns to the number.
    """

    def __init__(self, columns, of_means=lambda mean: mean):
        self.columns = np.stack([np.asarray(c, dtype=float) for c in columns], 1)
        self.columns = self.columns[~np.isnan(self.columns).any(1)]
        self.of_means = of_means

    @property
    def n(self):
        return len(self.columns)

    @property
    def value(self):
        return self.of_means(*self.columns.mean(0)) if self.n else np.nan

    def interval(self):
        """By Tukey's pseudo-values where several means are in it; None without texts."""
        n = self.n
        if not n:
            return None
        if self.columns.shape[1] == 1 and self.of_means(2.0) == 2.0:
            return mean_and_interval(self.columns[:, 0])[1]
        if n == 1:
            return None
        others = [np.delete(self.columns, k, axis=0).mean(0) for k in range(n)]
        return around(self.value, [self.of_means(*means) for means in others])


def around(value, without):
    """The interval of a number from what it is without each text; None where that is undefined."""
    n = len(without)
    if n < 2 or not np.isfinite(without).all():
        return None
    pseudo = n * value - (n - 1) * np.array(without)
    low, high = mean_and_interval(pseudo)[1]
    return min(low, value), max(high, value)


class Placed:
    """The mean of some parts' places on the scale from a random order to the best one.

    Attributes:
        own: [texts, statistics], as the rows have them.
        parts: functions from such a frame to a place.
    """

    def __init__(self, own, parts):
        asked = [part(own) for part in parts]
        self.own, self.parts = own, parts
        self.n = int(np.any([is_asked for _, is_asked in asked], axis=0).sum())
        self.value = self.place(own)

    def place(self, own):
        with np.errstate(invalid="ignore", divide="ignore"):
            return float(np.mean([part(own)[0] for part in self.parts]))

    def interval(self):
        """Every text left out in turn, all parts together."""
        texts = np.arange(len(self.own))
        found = around(self.value, [self.place(self.own[texts != k]) for k in texts])
        if found is None:
            return None
        low, high = found
        return low, min(high, 1.0)


def importance(own):
    values = own["importance@attention"]
    return values.mean(), values.notna()


def between(start, attention, end):
    """A place from three means over the texts that have all, and which these are."""
    columns = pd.concat([start, attention, end], axis=1)
    is_there = columns.notna().all(axis=1)
    first, middle, last = columns[is_there].mean().to_numpy()
    with np.errstate(all="ignore"):  # no place where the random order is the best
        return (middle - first) / (last - first), is_there


def erasure(own):
    orders = [own[f"fraction_to_lose_lead@{k}"] for k in ("random", "attention", "best")]
    reached = own["lead_is_lost"]
    share = reached.mean()
    way, _ = between(*orders)
    return (way * share if share else 0.0), reached.notna()


def removal(own):
    return between(*(own[f"removal@{k}"] for k in ("random", "attention", "best")))


def mass(own):
    overlap, chance = own["mass@attention"], own["mass_by_chance@attention"]
    return between(chance, overlap, 0 * overlap + 1)


PARTS = {"importance": importance, "erasure": erasure, "removal": removal, "mass": mass}
NEEDED = {
    "importance": "importance@attention",
    "erasure": "lead_is_lost",
    "removal": "removal@attention",
    "mass": "mass@attention",
}


def by_default(own, predicted):
    """The predicted classes in whose texts nothing matters, where the others' are explained better."""
    found = []
    for name in predicted.unique():
        members = predicted.index[predicted == name]
        lost = (
            own["largest_loss"].reindex(members)
            if "largest_loss" in own
            else pd.Series(dtype=float)
        )
        _, (_, high), n = mean_and_interval(lost)
        if not (n and high < 0.1) or len(members) < 10 or len(members) == len(predicted):
            continue
        inside = faithfulness(own.reindex(members))
        outside = faithfulness(own.drop(members))
        ends = outside and outside.interval()
        theirs = inside and inside.interval()
        if ends and (theirs is None or theirs[1] < ends[0]):
            found.append(name)
    return found if len(found) < predicted.nunique() else []


def asked_parts(own):
    """The parts that have a place of their own."""
    measured = [
        part
        for name, part in PARTS.items()
        if NEEDED[name] in own and own[NEEDED[name]].notna().any()
    ]
    return [part for part in measured if np.isfinite(Placed(own, [part]).value)]


def faithfulness(own):
    """The mean of the parts, two at least; else None."""
    parts = asked_parts(own)
    return Placed(own, parts) if len(parts) > 1 else None


def graded_numbers(rows):
    """What is graded, by rule (lowest, highest): one object unless it is only known to lie between."""
    site = site_of_model(rows)
    if site is None:
        return {}
    own = wide(rows, *site)
    predicted = predictions(rows).predicted_class.reindex(own.index)
    default = by_default(own, predicted[predicted >= 0])
    explained = own[~predicted.isin(default)]

    def has(name):
        return name in own and own[name].notna().any()

    found = {}
    whole = faithfulness(explained)
    if whole is not None:
        found["faithfulness"] = (whole,) * 2
    for part in asked_parts(explained):
        found[part.__name__] = (Placed(explained, [part]),) * 2
    if has("standard_tvd"):
        found["effect"] = (Graded([own["standard_tvd"]]),) * 2
    share = "share_of_largest@0.01"
    if has(share):
        highest = Graded([1 - own[share]])
        lowest = Graded([0 * own[share]])
        if (own["epsilon_max_jsd_exact"].dropna() == 1).all():
            lowest = highest
        elif has("share_of_largest_upper@0.01"):
            lowest = Graded([1 - own["share_of_largest_upper@0.01"]])
        found["uniqueness"] = lowest, highest
    return found


def attention_does_nothing(rows):
    """Low and high of the mean of the worst shuffle; NaN where it is not known."""
    own = wide(rows, *site_of_model(rows))
    if "largest_standard_tvd" not in own:
        return np.nan, (np.nan, np.nan), 0
    return mean_and_interval(own["largest_standard_tvd"])


OPEN = "cannot say"


def verdict(answers):
    """The whole from the answers by question, where the model is any good and something moves."""
    effect, score = answers.get("effect"), answers.get("faithfulness")
    if "no" in (effect, score):
        return "no"
    if effect is None or score is None or effect == OPEN:
        return OPEN
    return score


def possible_grades(interval, n, limits):
    """The answers that an interval leaves open."""
    partly, yes = limits
    low, high = interval
    if n < MIN_TEXTS:
        return {"no", "partly", "yes"} if partly != yes else {"no", "yes"}
    if partly == yes == 0:
        grades = ["yes" if end > 0 else "no" for end in (low, high)]
    else:
        grades = [
            "yes" if end >= yes else "partly" if end >= partly else "no" for end in (low, high)
        ]
    between = {"partly"} if set(grades) == {"no", "yes"} and partly != yes else set()
    return set(grades) | between
