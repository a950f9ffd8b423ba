"""ΔJS in tenths of Δα, against pandas' own cut."""

import numpy as np
import pandas as pd
import pytest

from hf_attnprobe.statistics.summary import bin_js_by_gap


def test_every_text_is_in_the_tenth_of_its_gap():
    generator = np.random.default_rng(0)
    gap = pd.Series(generator.uniform(0, 1, 300).round(2))
    js = pd.Series(generator.normal(0.01, 0.02, 300))
    js[::17] = np.nan
    gap[5], gap[6], js[7] = 1.0, 0.3, -1e-15
    found = list(bin_js_by_gap(gap, js))
    edges = np.arange(11) / 10 - 1e-9
    edges[-1] = 1.1
    expected = js.groupby(pd.cut(gap, edges, right=False))
    sizes = expected.count()
    assert [b.n for b in found] == sizes[sizes > 0].tolist()
    assert sum(b.n for b in found) == js.notna().sum()
    for tenth, (_, texts) in zip(found, expected, strict=True):
        texts = texts.dropna()
        assert tenth.median == pytest.approx(texts.median())
        assert tenth.negative_share == pytest.approx((texts < -1e-9).mean())
        assert tenth.quartiles == pytest.approx(tuple(texts.quantile([0.25, 0.75])))
    assert [b.name for b in found][::9] == ["[0.0, 0.1)", "[0.9, 1.0]"]
