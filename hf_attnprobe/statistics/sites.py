"""The rows of one site, a text per row. Pure."""

import pandas as pd

from hf_attnprobe.statistics.summary import PREDICTION, one_row_per_text


def site_of_model(rows: pd.DataFrame) -> tuple[int, int] | None:
    """Layer and head that stand for the model's attention.

    All heads at once where they were tested so, else the only head; None where several
    heads were tested one by one.
    """
    tested = rows[rows.test != PREDICTION]
    places = tested[["layer", "head"]].drop_duplicates()
    sites = set(zip(places.layer.tolist(), places["head"].tolist(), strict=True))
    if (-1, -1) in sites:
        return -1, -1
    heads = [site for site in sites if min(site) >= 0]
    return heads[0] if len(heads) == 1 else None


def predictions_of(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows about predictions, a text per row."""
    own = rows[rows.test == PREDICTION].drop_duplicates(["example_id", "statistic"])
    return own.pivot(index="example_id", columns="statistic", values="value")


def at_site(rows: pd.DataFrame, site: tuple[int, int]) -> pd.DataFrame:
    """Texts by statistics at one site."""
    layer, head = site
    wide = one_row_per_text(rows[(rows.layer == layer) & (rows["head"] == head)])
    names = wide.columns.get_level_values("statistic")
    return wide.set_axis(names, axis=1).loc[:, ~names.duplicated()]
