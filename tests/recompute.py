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
    """Rows of a folder of Parquet parts; a text may have been written twice."""
    rows = pd.read_parquet(folder)
    return rows.drop_duplicates(["test", "statistic", "example_id", "layer", "head"])


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
        usual = np.mean(
            [max(column.mean(), 1 - column.mean()) for _, column in sides.items()]
        )
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
        t = scipy.optimize.brentq(
            lambda t, w=wanted: np.polyval(cubic, t) - w, -1e6, 1e6
        )
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


def graded_numbers(rows, control):
    """Per rule the values [texts] whose mean is graded, and what they are a bound of.

    Returns:
        By rule (lowest, highest): equal unless the number is only known to lie between.
    """
    site = site_of_model(rows)
    if site is None:
        return {}
    own = wide(rows, *site)
    other = None if control is None else wide(control, *site).reindex(own.index)

    def has(frame, name):
        return frame is not None and name in frame and frame[name].notna().any()

    found = {}
    tau = "attention_leave_one_out_tau"
    if has(own, tau):
        values = own[tau]
        if has(other, tau):
            values = own[tau] - other[tau]
        found["importance"] = values, values
    if has(own, "median_tvd"):
        values = own["median_tvd"]
        if has(other, "median_tvd"):
            values = own["median_tvd"] - other["median_tvd"]
        found["assignment"] = values, values
    share = "share_of_largest@0.01"
    if has(own, share):
        highest = 1 - own[share]
        lowest = highest * 0
        if (own["epsilon_max_jsd_exact"].dropna() == 1).all():
            lowest = highest
        elif has(own, "share_of_largest_upper@0.01"):
            lowest = 1 - own["share_of_largest_upper@0.01"]
        found["uniqueness"] = lowest, highest
    for name in ("way_to_best@attention", "way_to_best_tried@attention"):
        if has(own, name):
            found["erasure"] = own[name], own[name]
            break
    for ranking in ("attention", "mean_attention"):
        name = f"comprehensiveness@{ranking}"
        if has(own, name) and has(own, "comprehensiveness@random"):
            values = own[name] - own["comprehensiveness@random"]
            found["removal"] = values, values
            break
    return found


def beyond_control(rows, control):
    """Values [texts] that must be above 0 on average for an answer above no."""
    site = site_of_model(rows)
    if site is None or control is None:
        return {}
    own = wide(rows, *site)
    other = wide(control, *site).reindex(own.index)
    found = {}
    for name in ("way_to_best@attention", "way_to_best_tried@attention"):
        if name in own and name in other and own[name].notna().any():
            found["erasure"] = own[name] - other[name]
            break
    for ranking in ("attention", "mean_attention"):
        pair = f"comprehensiveness@{ranking}", "comprehensiveness@random"
        if set(pair) <= set(own) and set(pair) <= set(other):
            ours, theirs = (frame[pair[0]] - frame[pair[1]] for frame in (own, other))
            found["removal"] = ours - theirs
            break
    return found


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
            "yes" if end >= yes else "partly" if end >= partly else "no"
            for end in (low, high)
        ]
    between = {"partly"} if set(grades) == {"no", "yes"} and partly != yes else set()
    return set(grades) | between
