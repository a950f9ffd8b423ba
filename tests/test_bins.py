"""ΔJS in tenths of Δα, against pandas' own cut."""

import numpy as np
import pandas as pd
import pytest

from hf_attnprobe.auditing.numbers import delta_table
from hf_attnprobe.reports.markdown import blocks
from hf_attnprobe.statistics.rows import Rows
from hf_attnprobe.statistics.summary import js_by_gap


def test_every_text_is_in_the_tenth_of_its_gap():
    generator = np.random.default_rng(0)
    gap = pd.Series(generator.uniform(0, 1, 300).round(2))
    js = pd.Series(generator.normal(0.01, 0.02, 300))
    js[::17] = np.nan
    gap[5], gap[6], js[7] = 1.0, 0.3, -1e-15
    found = list(js_by_gap(gap, js))
    edges = np.arange(11) / 10 - 1e-9
    edges[-1] = 1.1
    expected = js.groupby(pd.cut(gap, edges, right=False))
    sizes = expected.count()
    assert [b.n for b in found] == sizes[sizes > 0].tolist()
    assert sum(b.n for b in found) == js.notna().sum()
    for tenth, (_, texts) in zip(found, expected, strict=True):
        texts = texts.dropna()
        assert tenth.median == pytest.approx(texts.median())
        assert tenth.negative == pytest.approx((texts < -1e-9).mean())
        assert tenth.quartiles == pytest.approx(tuple(texts.quantile([0.25, 0.75])))
    assert [b.name for b in found][::9] == ["[0.0, 0.1)", "[0.9, 1.0]"]


def test_the_table_is_of_the_rows():
    rows = pd.DataFrame(
        {
            "example_id": [1, 2, 1, 2],
            "statistic": ["delta_js", "delta_js", "delta_attention", "delta_attention"],
            "value": [0.2, -0.1, 0.95, 0.05],
        }
    ).assign(test="erasure", layer=0, head=0)
    text = "\n".join(blocks(delta_table(Rows.of(rows))))
    assert "| [0.0, 0.1) | 1 | -0.100 [-0.100, -0.100] | 100.0% |" in text
    assert "| [0.9, 1.0] | 1 | 0.200 [0.200, 0.200] | 0.0% |" in text
    assert delta_table(Rows.of(rows[:2])) == [] and delta_table(Rows.of(rows[:0])) == []
