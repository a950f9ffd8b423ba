"""Recomputation of an audit's numbers and answers from its Parquet table, in plain pandas.

Nothing is imported from the package, so that errors in the package cannot hide here. The thresholds
are read from the table in the documentation.
"""

import re
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.optimize
import scipy.stats


MIN_TEXTS = 30
"""Smallest number of texts for an answer."""
RULES_PAGE = Path(__file__).parents[2] / "docs" / "verdicts.md"
"""Page of the documentation with the table of rules."""


def read_thresholds():
    """Read (partly, yes) of each rule, by its name in lower case, from the printed table."""
    thresholds = {}
    for line in RULES_PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if len(cells) == 6 and re.fullmatch(r"[A-Z][\w: ]+", cells[0]):
            yes = 0.0 if cells[4] == "above 0" else float(cells[4])
            partly = yes if cells[3] == "–" else float(cells[3])
            thresholds[cells[0].lower()] = partly, yes
    return thresholds


def read_rows(folder):
    """Read the rows of a folder of Parquet files; a value may have been written twice."""
    rows = pd.read_parquet(folder)
    rows = rows.fillna({"layer": -1, "head": -1}).astype({"layer": int, "head": int})
    return rows.drop_duplicates(["test", "statistic", "layer", "head", "example_id"])


def choose_class(classes):
    """Choose the most frequent class of some copies; −1 for a tie, or if there is no class."""
    counts = classes[classes >= 0].value_counts()
    most_frequent = counts.index[counts == counts.max()]
    return most_frequent[0] if len(most_frequent) == 1 else -1


def merge_copies(rows):
    """Merge the rows of texts that the model reads alike, to their mean and the smallest id."""
    is_identity = (rows.test == "prediction") & (rows.statistic == "identity")
    identities = rows[is_identity].set_index("example_id").value
    smallest_ids = identities.groupby(identities).transform(lambda copies: copies.index.min())
    merged_ids = rows.example_id.map(smallest_ids)
    columns = ["test", "statistic", "layer", "head"]
    rows = rows.assign(example_id=merged_ids.fillna(rows.example_id).astype(int))
    groups = rows.groupby([*columns, "example_id"]).value
    merged = groups.mean()
    is_class = merged.index.get_level_values("test") == "prediction"
    names = merged.index.get_level_values("statistic").str.partition("@").get_level_values(0)
    is_class &= names.isin(["predicted_class", "label"])
    chosen = groups.agg(choose_class)
    return merged.where(~is_class, chosen).reset_index()


def pivot_site(rows, layer, head):
    """Pivot the rows of one site to texts × statistics."""
    site_rows = rows[(rows.layer == layer) & (rows["head"] == head)]
    site_rows = site_rows[site_rows.test != "prediction"]
    return site_rows.pivot(index="example_id", columns="statistic", values="value")


def pivot_predictions(rows):
    """Pivot the rows that describe predictions to texts × statistics."""
    prediction_rows = rows[rows.test == "prediction"]
    return prediction_rows.pivot(index="example_id", columns="statistic", values="value")


def compute_accuracy(predictions):
    """Compute the accuracy, and the accuracy of always predicting the most frequent answer.

    Returns:
        Accuracy of the model and of the baseline, the graded number, and the number of texts. For
        predicted numbers: two mean absolute errors, R², and the number of texts.
    """
    if "labelled_value" in predictions:
        labelled = predictions[predictions.labelled_value.notna()]
        labels, mean = labelled.labelled_value, labelled.labelled_value.mean()
        squared_error = ((labels - labelled.value) ** 2).sum()
        r_squared = 1 - squared_error / ((labels - mean) ** 2).sum()
        error = (labels - labelled.value).abs().mean()
        return error, (labels - mean).abs().mean(), r_squared, len(labelled)
    if "correct" not in predictions:
        labelled = predictions[predictions.label >= 0]
        accuracy = (labelled.predicted_class == labelled.label).mean()
        majority = labelled.label.value_counts(normalize=True).iloc[0]
        return accuracy, majority, accuracy - majority, len(labelled)
    labelled = predictions[predictions.correct.notna()]
    accuracy, majority = labelled.correct.mean(), None
    labels = labelled.filter(regex="^label@")
    if len(labels.columns):
        majority = np.mean([max(column.mean(), 1 - column.mean()) for _, column in labels.items()])
    shares = labelled.filter(regex="^label_share@")
    if len(shares.columns):
        majority = shares.mean().max()
    difference = None if majority is None else accuracy - majority
    return accuracy, majority, difference, len(labelled)


def compute_mean_interval(values):
    """Compute mean, interval and number of the defined values.

    Student's t is transformed by Hall's cubic function, which SciPy inverts.
    """
    values = np.asarray(values, dtype=float)
    values = values[~np.isnan(values)]
    n = len(values)
    if n < 2 or np.ptp(values) == 0:
        single_value = values[0] if n else np.nan
        return single_value, (single_value, single_value), n
    mean, error = values.mean(), scipy.stats.sem(values)
    skewness = scipy.stats.skew(values) / np.sqrt(n)
    cubic = [skewness**2 / 27, skewness / 3, 1, skewness / 6]
    ends = []
    for level in (0.975, 0.025):
        quantile = scipy.stats.t.ppf(level, n - 1)
        t = scipy.optimize.brentq(lambda t, q=quantile: np.polyval(cubic, t) - q, -1e6, 1e6)
        ends.append(np.clip(mean - t * error, values.min(), values.max()))
    return mean, tuple(ends), n


def compute_statistics(rows, label_names):
    """Compute (mean, median, std, n, undefined) by (test, statistic, layer, head, group).

    Reports do not list the means of statistics about positions, which one sentence describes.
    """
    test_rows = rows[rows.test != "prediction"]
    test_rows = test_rows[~test_rows.statistic.str.contains("_position@")]
    predicted = pivot_predictions(rows).predicted_class
    groups = {"all": predicted.index}
    for k, name in enumerate(label_names):
        members = predicted.index[predicted == k]
        if len(members):
            groups[name] = members
    statistics = {}
    for key, column in test_rows.groupby(["test", "statistic", "layer", "head"]):
        values = column.set_index("example_id").value
        for group, members in groups.items():
            group_values = values.reindex(members)
            defined_values = group_values.dropna()
            statistics[(*key, group)] = (
                defined_values.mean(),
                defined_values.median(),
                defined_values.std(ddof=0),
                len(defined_values),
                len(group_values) - len(defined_values),
            )
    return statistics


def find_model_site(rows):
    """Find all attention, or the only tested head; None if there are several heads."""
    test_rows = rows[rows.test != "prediction"]
    sites = {(layer, head) for layer, head in zip(test_rows.layer, test_rows["head"], strict=True)}
    if (-1, -1) in sites:
        return (-1, -1)
    heads = [site for site in sites if site[0] >= 0 and site[1] >= 0]
    return heads[0] if len(heads) == 1 else None


class GradedNumber:
    """A graded number, which is a function of means over texts.

    Attributes:
        columns: values [texts, statistics] of the texts that have all statistics.
        function: function from the means of the columns to the number.
    """

    def __init__(self, columns, function=lambda mean: mean):
        self.columns = np.stack([np.asarray(column, dtype=float) for column in columns], 1)
        self.columns = self.columns[~np.isnan(self.columns).any(1)]
        self.function = function

    @property
    def n(self):
        return len(self.columns)

    @property
    def value(self):
        return self.function(*self.columns.mean(0)) if self.n else np.nan

    def compute_interval(self):
        """Compute the interval, with Tukey's pseudo-values for several means; None without texts."""
        n = self.n
        if not n:
            return None
        if self.columns.shape[1] == 1 and self.function(2.0) == 2.0:
            return compute_mean_interval(self.columns[:, 0])[1]
        if n == 1:
            return None
        means_without_text = [np.delete(self.columns, k, axis=0).mean(0) for k in range(n)]
        values_without_text = [self.function(*means) for means in means_without_text]
        return compute_jackknife_interval(self.value, values_without_text)


def compute_jackknife_interval(value, values_without_text):
    """Compute the interval of a number from its values without each text; None if undefined."""
    n = len(values_without_text)
    if n < 2 or not np.isfinite(values_without_text).all():
        return None
    pseudo_values = n * value - (n - 1) * np.array(values_without_text)
    low, high = compute_mean_interval(pseudo_values)[1]
    return min(low, value), max(high, value)


class ScalePosition:
    """Mean position of several parts on the scale from a random order to the best order.

    Attributes:
        frame: texts × statistics.
        parts: functions from such a frame to a position and the texts that count.
    """

    def __init__(self, frame, parts):
        measured = [part(frame) for part in parts]
        self.frame, self.parts = frame, parts
        self.n = int(np.any([is_counted for _, is_counted in measured], axis=0).sum())
        self.value = self.compute_position(frame)

    def compute_position(self, frame):
        with np.errstate(invalid="ignore", divide="ignore"):
            return float(np.mean([part(frame)[0] for part in self.parts]))

    def compute_interval(self):
        """Compute the interval by leaving out each text in turn, for all parts together."""
        texts = np.arange(len(self.frame))
        values_without_text = [self.compute_position(self.frame[texts != k]) for k in texts]
        interval = compute_jackknife_interval(self.value, values_without_text)
        if interval is None:
            return None
        low, high = interval
        return low, min(high, 1.0)


def compute_importance(frame, change=""):
    """Compute the position of the part "importance" and the texts that count."""
    values = frame[f"{change}importance@attention"]
    return values.mean(), values.notna()


def compute_position(start, attention, end):
    """Compute a position from three means over the texts with all values, and these texts."""
    columns = pd.concat([start, attention, end], axis=1)
    is_complete = columns.notna().all(axis=1)
    start_mean, attention_mean, end_mean = columns[is_complete].mean().to_numpy()
    # If the random order is the best one, the position is undefined.
    with np.errstate(all="ignore"):
        return (attention_mean - start_mean) / (end_mean - start_mean), is_complete


def compute_erasure(frame):
    """Compute the position of the part "erasure" and the texts that count."""
    orders = [frame[f"fraction_to_lose_lead@{k}"] for k in ("random", "attention", "best")]
    is_reached = frame["lead_is_lost"]
    share = is_reached.mean()
    position, _ = compute_position(*orders)
    return (position * share if share else 0.0), is_reached.notna()


def compute_removal(frame, change=""):
    """Compute the position of the part "removal" and the texts that count."""
    orders = ("random", "attention", "best")
    return compute_position(*(frame[f"{change}removal@{order}"] for order in orders))


def compute_mass(frame, change=""):
    """Compute the position of the part "mass" and the texts that count."""
    overlap = frame[f"{change}mass@attention"]
    chance = frame[f"{change}mass_by_chance@attention"]
    return compute_position(chance, overlap, 0 * overlap + 1)


DELETION_PARTS = {
    "importance": compute_importance,
    "erasure": compute_erasure,
    "removal": compute_removal,
    "mass": compute_mass,
}
"""Functions that compute the parts of faithfulness if words are deleted, by key."""
EXCHANGE_PARTS = {
    "importance": partial(compute_importance, change="exchange_"),
    "erasure": compute_erasure,
    "removal": partial(compute_removal, change="exchange_"),
    "mass": partial(compute_mass, change="exchange_"),
}
"""Functions that compute the parts of faithfulness if words are exchanged, by key."""
REQUIRED_STATISTICS = {
    "importance": "importance@attention",
    "erasure": "lead_is_lost",
    "removal": "removal@attention",
    "mass": "mass@attention",
}
"""Statistic that a part cannot do without, by key, without the beginning "exchange_"."""


def has_exchanges(frame):
    """Check whether words were exchanged in any of the texts."""
    name = "exchange_importance@attention"
    return name in frame and bool(frame[name].notna().any())


def find_default_classes(frame, predicted):
    """Find the classes in whose texts nothing matters and whose faithfulness is certainly lower.

    Here words are deleted even if they were exchanged as well.
    """
    default_classes = []
    for name in predicted.unique():
        members = predicted.index[predicted == name]
        losses = pd.Series(dtype=float)
        if "largest_loss" in frame:
            losses = frame["largest_loss"].reindex(members)
        _, (_, high), n = compute_mean_interval(losses)
        if not (n and high < 0.1) or len(members) < 10 or len(members) == len(predicted):
            continue
        class_faithfulness = compute_faithfulness(frame.reindex(members), by_deletion=True)
        other_faithfulness = compute_faithfulness(frame.drop(members), by_deletion=True)
        class_interval = class_faithfulness and class_faithfulness.compute_interval()
        other_interval = other_faithfulness and other_faithfulness.compute_interval()
        if other_interval and (class_interval is None or class_interval[1] < other_interval[0]):
            default_classes.append(name)
    return default_classes if len(default_classes) < predicted.nunique() else []


def list_measured_parts(frame, by_deletion=False):
    """List the functions of the parts that were measured and have a scale, by key.

    Words are exchanged if they were exchanged in any text, and otherwise deleted.

    Args:
        frame: texts × statistics.
        by_deletion: use the parts by deletion in any case.
    """
    is_exchanged = has_exchanges(frame) and not by_deletion
    parts = EXCHANGE_PARTS if is_exchanged else DELETION_PARTS
    measured_parts = {}
    for key, part in parts.items():
        statistic = REQUIRED_STATISTICS[key]
        if is_exchanged and key != "erasure":
            statistic = f"exchange_{statistic}"
        is_measured = statistic in frame and frame[statistic].notna().any()
        if is_measured and np.isfinite(ScalePosition(frame, [part]).value):
            measured_parts[key] = part
    return measured_parts


MIN_PART_TEXTS = 10
"""Smallest number of texts of a part that counts, if two parts have as many."""


def compute_faithfulness(frame, by_deletion=False):
    """Compute the mean of the parts; None with fewer than two parts."""
    parts = [*list_measured_parts(frame, by_deletion).values()]
    large_parts = [p for p in parts if ScalePosition(frame, [p]).n >= MIN_PART_TEXTS]
    if len(large_parts) > 1:
        parts = large_parts
    return ScalePosition(frame, parts) if len(parts) > 1 else None


def select_explained(rows):
    """Select the texts × statistics of the model's site, without texts of default classes.

    Returns:
        The selected texts; None if there are only several heads.
    """
    site = find_model_site(rows)
    if site is None:
        return None
    frame = pivot_site(rows, *site)
    predicted = pivot_predictions(rows).predicted_class.reindex(frame.index)
    default_classes = find_default_classes(frame, predicted[predicted >= 0])
    return frame[~predicted.isin(default_classes)]


def compute_graded_numbers(rows):
    """Compute the graded numbers by rule.

    Returns:
        Lowest and highest number of each rule. They are the same object unless the number is only
        known to lie between the two.
    """
    explained = select_explained(rows)
    if explained is None:
        return {}
    frame = pivot_site(rows, *find_model_site(rows))

    def has_values(name, texts=frame):
        return name in texts and texts[name].notna().any()

    numbers = {}
    faithfulness = compute_faithfulness(explained)
    if faithfulness is not None:
        numbers["faithfulness"] = (faithfulness,) * 2
    for key, part in list_measured_parts(explained).items():
        numbers[key] = (ScalePosition(explained, [part]),) * 2
    for key, statistic in {"path_share": "path_share", "effect": "standard_tvd"}.items():
        if has_values(statistic, explained):
            numbers[key] = (GradedNumber([explained[statistic]]),) * 2
    share = "share_of_largest@0.01"
    if has_values(share):
        highest = GradedNumber([1 - frame[share]])
        lowest = GradedNumber([0 * frame[share]])
        if (frame["epsilon_max_jsd_exact"].dropna() == 1).all():
            lowest = highest
        elif has_values("share_of_largest_upper@0.01"):
            lowest = GradedNumber([1 - frame["share_of_largest_upper@0.01"]])
        numbers["uniqueness"] = lowest, highest
    return numbers


SEED_DEVIATION = 0.04
"""Standard deviation of faithfulness between training seeds."""
CLEAR_DIFFERENCE = 0.2
"""Difference between faithfulness by exchange and by deletion from which a report explains it."""


def is_near_threshold(value, thresholds):
    """Check whether a threshold is fewer than two standard deviations between seeds away."""
    return min(abs(value - threshold) for threshold in thresholds) < 2 * SEED_DEVIATION


def compare_with_deletion(rows):
    """Compare faithfulness by exchange with faithfulness by deletion.

    Returns:
        "only deletion" if no word was exchanged, "higher" or "lower" if faithfulness by deletion
        is clearly so, otherwise "alike"; and the position by deletion, None if not measured.
    """
    explained = select_explained(rows)
    deletion = compute_faithfulness(explained, by_deletion=True)
    if deletion is None:
        return "alike", None
    if not has_exchanges(explained):
        return "only deletion", deletion
    exchange = compute_faithfulness(explained)
    deletion_interval, interval = deletion.compute_interval(), exchange.compute_interval()
    if deletion_interval is None or interval is None:
        return "alike", deletion
    if abs(deletion.value - exchange.value) <= CLEAR_DIFFERENCE:
        return "alike", deletion
    if deletion_interval[0] > interval[1]:
        return "higher", deletion
    return ("lower" if deletion_interval[1] < interval[0] else "alike"), deletion


def count_texts_without_pattern(rows):
    """Count the explained texts whose attention is on a single word."""
    explained = select_explained(rows)
    return int((explained.uniform_tvd.notna() & explained.path_share.isna()).sum())


CANNOT_SAY = "cannot say"
"""Answer of an open question."""


def decide_verdict(answers):
    """Decide the verdict from the answers by question.

    The model is assumed to be better than guessing.
    """
    path_share, score = answers.get("path_share"), answers.get("faithfulness")
    if "no" in (path_share, score):
        return "no"
    if path_share is None or score is None or path_share == CANNOT_SAY:
        return CANNOT_SAY
    return score


def list_possible_answers(interval, n, thresholds):
    """List the answers that an interval does not exclude."""
    partly, yes = thresholds
    low, high = interval
    if n < MIN_TEXTS:
        return {"no", "partly", "yes"} if partly != yes else {"no", "yes"}
    if partly == yes == 0:
        answers = ["yes" if end > 0 else "no" for end in (low, high)]
    else:
        answers = [
            "yes" if end >= yes else "partly" if end >= partly else "no" for end in (low, high)
        ]
    has_gap = set(answers) == {"no", "yes"} and partly != yes
    return set(answers) | ({"partly"} if has_gap else set())
