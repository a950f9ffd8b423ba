"""What the package says of a drawn model: its own tests and rules, without files or pages."""

from collections.abc import Sequence
from typing import Any

from benchmarks.truth.field import mean, single_numbers
from hf_attnprobe.audits.runner import run_batch
from hf_attnprobe.audits.text_scores import choose_model_attention
from hf_attnprobe.faithfulness.exchange import collect_unit_donors
from hf_attnprobe.faithfulness.interchange import collect_donors
from hf_attnprobe.faithfulness.options import InputErasure
from hf_attnprobe.protocol import AttentionModelBase, Batch, Site
from hf_attnprobe.reports.verdict import compute_answer, compute_findings
from hf_attnprobe.statistics.rows import PREDICTION_TEST, Rows, Texts
from hf_attnprobe.statistics.summary import find_model_site, select_site_texts
from hf_attnprobe.storage.rows import NO_SITE, collect_rows


OF_VERDICT = (
    "scale",
    "exchange",
    "erasure",
    "permutation",
    "uniform_attention",
    "correlation",
    "adversarial",
    "interchange",
)
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
    sharpness = model.prediction.compute_standard_sharpness(observed.probs)
    assert sharpness is not None
    model.sharpness = sharpness
    model.unit_donors = collect_unit_donors(model, [batch], seed)
    site, _ = choose_model_attention(model)
    model.donors = collect_donors(model, [batch], [site], seed)
    beam = BEAM if batch.mask.shape[1] <= SHORT else 0
    options = {"input_erasure": InputErasure(beam_width=beam)}
    where: dict[str, list[Site]] = {test: [site] for test in tests}
    where[PREDICTION_TEST] = [NO_SITE]
    return collect_rows([run_batch(model, batch, where, options, seed)])


def texts_of(rows: Rows) -> Texts:
    """What was measured of the attention."""
    site = find_model_site(rows)
    assert site is not None
    return select_site_texts(rows, site)


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
        said_of(rows.select_ids(range(n)), model.label_names, seed=seed) | {"n": n} for n in n_texts
    ]
    said[-1]["field"] = of_field
    return said


def said_of(rows: Rows, label_names: Sequence[str], *, seed: int) -> dict[str, Any]:
    """Faithfulness, its parts, the effect: value, both ends, texts; and all answers."""
    told = compute_findings(rows, label_names, seed=seed)
    about = [f for f in told if f.is_about_attention]
    numbers = {f.rule: [f.value, *(f.ci95 or (None, None)), f.n] for f in about}
    answers = {f.rule: str(f.answer) for f in told}
    texts = texts_of(rows)
    follows = {
        place: mean(texts.get_values(f"follows@{place}")) for place in ("attention", "other")
    }
    answer = str(compute_answer(told))
    return {"answer": answer, "answers": answers, "numbers": numbers, "follows": follows}
