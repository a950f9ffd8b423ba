"""Reports of audits for tests that compare them, made of random rows."""

import numpy as np
import pandas as pd

from hf_attnprobe.data.examples import DatasetName
from hf_attnprobe.faithfulness.registry import load_readings
from hf_attnprobe.reports.report import Report
from hf_attnprobe.reports.verdict import compute_findings
from hf_attnprobe.statistics.rows import Rows
from hf_attnprobe.statistics.summary import summarize
from tests.helpers.synthetic_rows import make_rows


N = 80
CLASSES = ("neg", "pos")
IMPORTANCE = "importance@attention"


def tidy(test, statistic, values, ids, **place):
    return make_rows({(test, statistic): values}, ids=ids, **place)


def rows_of(seed, *, moved=0.0, ids=range(N), heads=1):
    """Rows of an audit; what the texts have in common is the same for every seed."""
    ids = np.asarray(ids)
    text = np.random.default_rng([7, 0]).uniform(0.2, 0.4, 1000)[ids]
    noise = np.random.default_rng(seed)
    predicted = (ids + (noise.random(len(ids)) < 0.2)) % 2
    place = {"layer": -1, "head": -1}
    parts = [
        tidy("prediction", "predicted_class", predicted, ids, **place),
        tidy("prediction", "label", ids % 2, ids, **place),
        tidy("prediction", "probability", text + 0.5, ids, **place),
    ]
    for head in range(heads):
        tau = text + moved + noise.normal(size=len(ids)) / 100
        tvd = text / 4 + noise.random(len(ids)) / 100
        chance = 0.2 + noise.random(len(ids)) / 50
        path_share = 0.2 + text / 2 + noise.random(len(ids)) / 100
        parts += [
            tidy("correlation", "attention_leave_one_out_tau", tau, ids, head=head),
            tidy("scale", IMPORTANCE, tau, ids, head=head),
            tidy("scale", "mass@attention", 0.3 + tau / 2, ids, head=head),
            tidy("scale", "mass_by_chance@attention", chance, ids, head=head),
            tidy("correlation", "attention_gradient_tau", tau / 2, ids, head=head),
            tidy("correlation", "attention_leave_one_out_p_value", tau, ids, head=head),
            tidy("permutation", "median_tvd", tvd, ids, head=head),
            tidy("permutation", "standard_tvd", 2 * tvd, ids, head=head),
            tidy("permutation", "largest_standard_tvd", 3 * tvd, ids, head=head),
            tidy("permutation", "max_tvd", tvd * 2, ids, head=head),
            tidy("uniform_attention", "path_share", path_share, ids, head=head),
            tidy("uniform_attention", "uniform_tvd", tvd, ids, head=head),
        ]
    return pd.concat(parts, ignore_index=True)


def report_of(rows, *, model="models/base", options=None, **provenance):
    given = {"correlation": {"target": None}, "scale": {}, "permutation": {"n_permutations": 100}}
    given["uniform_attention"] = {}
    provenance = {
        "model_fingerprint": model,
        "data_fingerprint": "data",
        "dtype": "float64",
        "options": given | (options or {}),
        "tests": ["correlation", "scale", "permutation", "uniform_attention"],
        "classes": list(CLASSES),
        "asked_for": {"model": "models/any", "dataset": "reviews"},
    } | provenance
    return Report(
        model=model,
        dataset=DatasetName("reviews", "test"),
        n=rows.example_id.nunique(),
        seed=0,
        statistics=summarize(rows, CLASSES, load_readings()),
        provenance=provenance,
        findings=compute_findings(rows, CLASSES, seed=0),
        rows=Rows.coerce(rows),
    )


def by_name(comparison):
    return {s.statistic: s for s in comparison.statistics}


def values(rows, statistic):
    return rows[rows.statistic == statistic].set_index("example_id").value
