"""An audit's numbers and answers again, from its Parquet alone, in plain pandas.

Nothing of the package is imported. Thresholds are those of the table that the
documentation prints.
"""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet
import scipy.optimize
import scipy.stats


MIN_TEXTS = 30
RULES_PAGE = Path(__file__).parent.parent / "docs" / "verdicts.md"


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
    """Rows of a folder of Parquet parts; a text may have been written twice.

    A null in a list is no value, NaN one that is undefined: pandas alone cannot tell them apart.
    """
    values = []
    for part in sorted(Path(folder).glob("*.parquet")):
        table = pyarrow.parquet.read_table(part)
        sites = json.loads(table.schema.metadata[b"PANDAS_ATTRS"])["sites"]
        for row in table.to_pylist():
            test, text = row.pop("test"), row.pop("example_id")
            for name, found in row.items():
                values += [
                    (test, name, text, *site, value)
                    for site, value in zip(sites[test], found or (), strict=False)
                    if value is not None
                ]
    keys = ["test", "statistic", "example_id", "layer", "head"]
    return pd.DataFrame(values, columns=[*keys, "value"]).drop_duplicates(keys)


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


def read_draws(folder):
    """The rows of every draw of the control, by the name of its folder."""
    found = sorted(folder.glob("control/draw-*"))
    return {draw.name: read(draw / "rows") for draw in found}


def read_control(folder):
    """The control's rows, every value the mean over the draws that have one."""
    draws = read_draws(folder)
    if not draws:
        return None
    key = ["test", "statistic", "example_id", "layer", "head"]
    return pd.concat(draws.values()).groupby(key, as_index=False).value.mean()


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
        with np.errstate(invalid="ignore", divide="ignore"):
            without = [self.of_means(*means) for means in others]
        if not np.isfinite(without).all():
            return None
        pseudo = n * self.value - (n - 1) * np.array(without)
        low, high = mean_and_interval(pseudo)[1]
        return min(low, self.value), min(max(high, self.value), 1.0)


def beyond_chance(own, chance):
    """As Cohen's kappa."""
    return (own - chance) / (1 - chance)


def way(attention, random, best):
    return 1 - (attention - best) / (random - best)


def graded_numbers(rows, control, members):
    """What is graded of some texts, by rule.

    Returns:
        By rule (lowest, highest): one object unless the number is only known to lie
        between; and the rules whose control was not run.
    """
    site = site_of_model(rows)
    if site is None:
        return {}, set()
    own = wide(rows, *site).reindex(members)
    other = own.iloc[:, :0]
    if control is not None:
        other = wide(control, *site).reindex(members)

    def has(frame, name):
        return name in frame and frame[name].notna().any()

    found, alone = {}, set()

    def put(rule, names, agreement, with_control):
        columns = [own[name] for name in names]
        if all(has(other, name) for name in names):
            columns += [other[name] for name in names]
            found[rule] = (Graded(columns, with_control),) * 2
        else:
            found[rule] = (Graded(columns, agreement),) * 2
            alone.add(rule)

    gamma = "attention_leave_one_out_agreement"
    if has(own, gamma):
        put("importance", [gamma], lambda mean: mean, beyond_chance)
    if has(own, "median_tvd"):
        names = "median_tvd", "median_share_of_log_odds"
        larger = max((n for n in names if has(own, n)), key=lambda n: own[n].mean())
        found["assignment"] = (Graded([own[larger]]),) * 2
    share = "share_of_largest@0.01"
    if has(own, share):
        highest = Graded([1 - own[share]])
        lowest = Graded([0 * own[share]])
        if (own["epsilon_max_jsd_exact"].dropna() == 1).all():
            lowest = highest
        elif has(own, "share_of_largest_upper@0.01"):
            lowest = Graded([1 - own["share_of_largest_upper@0.01"]])
        found["uniqueness"] = lowest, highest
    orders = [f"fraction_to_lose_lead@{k}" for k in ("attention", "random", "best")]
    if not has(own, orders[0]):
        orders = [
            "fraction_to_flip@attention",
            "fraction_to_flip@random",
            "minimal_fraction",
        ]
    if all(has(own, name) for name in orders):
        put("erasure", orders, way, lambda *m: beyond_chance(way(*m[:3]), way(*m[3:])))
    for ranking in ("attention", "mean_attention"):
        pair = f"comprehensiveness@{ranking}", "comprehensiveness@random"
        if has(own, pair[0]) and has(own, pair[1]):
            put("removal", pair, np.subtract, lambda a, r, x, y: a - r - (x - y))
            break
    return found, alone


def attention_does_nothing(rows, members):
    """Low and high of the mean of the worst shuffle; NaN where it is not known."""
    own = wide(rows, *site_of_model(rows)).reindex(members)
    for name in ("largest_change", "largest_drawn_change"):
        if name in own and own[name].notna().any():
            return mean_and_interval(own[name])
    return np.nan, (np.nan, np.nan), 0


DECIDING = {"importance", "assignment", "erasure", "removal"}
RANKING = DECIDING - {"assignment"}
OPEN = "cannot say"


def verdict(answers):
    """The whole from the answers by question: what any answer to the open ones gives."""
    first = next((rule for rule, said in answers.items() if said == OPEN), None)
    if first is not None:
        grades = ("no", "partly", "yes")
        leaves = {verdict({**answers, first: grade}) for grade in grades}
        if len(leaves) == 1:
            return leaves.pop()
        sides = {"yes", "mostly yes"}, {"no", "mostly no"}
        mostly = [s for s in sides if leaves <= s]
        return f"mostly {min(mostly[0], key=len)}" if mostly else OPEN
    if {rule for rule in RANKING if answers.get(rule) == "no"} == RANKING:
        return "no"
    if not set(answers) >= DECIDING:
        return OPEN
    if {answers[rule] for rule in DECIDING} == {"yes"}:
        return "yes"
    if answers["assignment"] == "no":
        return "mostly no"
    for side in ("yes", "no"):
        if 2 * list(answers.values()).count(side) > len(answers):
            return f"mostly {side}"
    return "partly"


def control_is_blunt(rows, control, members):
    """Whether the control attends less sharply than .8 of the model's largest weight."""
    site = site_of_model(rows)
    if site is None or control is None:
        return False
    own = wide(rows, *site).reindex(members)
    other = wide(control, *site).reindex(members)
    if "max_attention" not in own or "max_attention" not in other:
        return False
    return other["max_attention"].mean() < 0.8 * own["max_attention"].mean()


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
