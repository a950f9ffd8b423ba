"""What the package says of a drawn model: its own tests and rules, without files or pages."""

from collections.abc import Sequence
from typing import Any

from benchmarks.truth.field import mean, single_numbers
from hf_attnprobe.audits.runner import run_batch
from hf_attnprobe.audits.text_scores import whole_attention
from hf_attnprobe.faithfulness.interchange import donors_of
from hf_attnprobe.faithfulness.options import InputErasure
from hf_attnprobe.protocol import AttentionModelBase, Batch, Site
from hf_attnprobe.reports.verdict import conclusion, findings
from hf_attnprobe.statistics.rows import PREDICTION, Rows, Texts
from hf_attnprobe.statistics.summary import at_site, site_of_model
from hf_attnprobe.storage.rows import NO_SITE, rows_of_parts


OF_VERDICT = ("scale", "erasure", "permutation", "correlation", "adversarial", "interchange")
OF_FIELD = (*OF_VERDICT, "input_erasure")
BEAM = 3
"""Width of the search that normalises AOPC in texts of more than 8 words."""
SHORT = 20
"""Words: in longer texts that search is left out."""


def rows_of(
    model: AttentionModelBase, batch: Batch, *, seed: int, tests: Sequence[str] = OF_FIELD
) -> Rows:
    """Rows of an audit of all attention, at the standard temperature of these texts."""
    observed = model.observe(batch)
    model.sharpness = model.prediction.standard_sharpness(observed.probs)
    site, _ = whole_attention(model)
    model.donors = donors_of(model, [batch], [site], seed)
    beam = BEAM if batch.mask.shape[1] <= SHORT else 0
    options = {"input_erasure": InputErasure(beam_width=beam)}
    where: dict[str, list[Site]] = {test: [site] for test in tests}
    where[PREDICTION] = [NO_SITE]
    return rows_of_parts([run_batch(model, batch, where, options, seed)])


def texts_of(rows: Rows) -> Texts:
    """What was measured of the attention."""
    site = site_of_model(rows)
    assert site is not None
    return at_site(rows, site)


def measured(
    model: AttentionModelBase,
    batch: Batch,
    *,
    seed: int,
    n_texts: Sequence[int],
    tests: Sequence[str] = OF_FIELD,
) -> list[dict[str, Any]]:
    """What is said of the first texts, for each number of them, as plain data."""
    rows = rows_of(model, batch, seed=seed, tests=tests)
    of_field = single_numbers(model, batch, texts_of(rows)) if "input_erasure" in tests else {}
    said = [
        said_of(rows.of_texts(range(n)), model.label_names, seed=seed) | {"n": n} for n in n_texts
    ]
    said[-1]["field"] = of_field
    return said


def said_of(rows: Rows, label_names: Sequence[str], *, seed: int) -> dict[str, Any]:
    """Faithfulness, its parts, the effect: value, both ends, texts; and all answers."""
    told = findings(rows, label_names, seed=seed)
    about = [f for f in told if f.is_about_attention]
    numbers = {f.rule: [f.value, *(f.ci95 or (None, None)), f.n] for f in about}
    answers = {f.rule: str(f.answer) for f in told}
    texts = texts_of(rows)
    follows = {place: mean(texts.values(f"follows@{place}")) for place in ("attention", "other")}
    answer = str(conclusion(told))
    return {"answer": answer, "answers": answers, "numbers": numbers, "follows": follows}
