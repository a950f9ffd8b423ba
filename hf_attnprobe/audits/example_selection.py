"""Chooses the texts that an audit shows, with the reasons.

First the text in which attention and leaving out agree most, the one in which they disagree most,
and a sure but wrong prediction; then one of every predicted class; the rest are drawn by the hash
of their ids, so that ordinary ones are seen too. All follow from the rows.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from hf_attnprobe.audits.audited_model import AuditedModel
from hf_attnprobe.audits.options import AuditOptions
from hf_attnprobe.audits.runner import AuditRunner
from hf_attnprobe.audits.text_scores import Explainer
from hf_attnprobe.core.distributed import process_state
from hf_attnprobe.data.columns import read_column
from hf_attnprobe.inference.encoding import ImageReader, Text
from hf_attnprobe.plots.highlighted_text import (
    AGREEMENT_REASON,
    DISAGREEMENT_REASON,
    PASSAGE_GAIN_LABEL,
    PASSAGE_SHARE_LABEL,
    SINK_SHARE_LABEL,
    WRONG_PREDICTION_REASON,
    HighlightedText,
)
from hf_attnprobe.protocol import ALL, HEAD_SET, AttentionModelBase, Site
from hf_attnprobe.statistics.rows import Rows
from hf_attnprobe.statistics.sampling import by_hash
from hf_attnprobe.statistics.summary import (
    at_site,
    is_right,
    predictions_of,
    site_of_model,
)
from hf_attnprobe.storage.provenance import write_texts


if TYPE_CHECKING:
    import datasets


logger = logging.getLogger(__name__)

MIN_AGREEMENT_TOKENS = 5
"""Shorter texts have too few orders of their tokens to disagree much."""
LEAVE_ONE_OUT_TESTS = {"correlation", "erasure", "input_erasure", "sources", "knockout"}
"""Tests with which it costs as one text more to leave out units."""
COMPARED_DIGITS = 6
"""Values as near as this are equal, whatever the batches they were computed in."""


def select_example_texts(
    subject: AuditedModel,
    sweep: AuditRunner,
    rows: Rows,
    examples: "datasets.Dataset",
    options: AuditOptions,
) -> tuple[HighlightedText, ...]:
    """The texts that an audit shows, written into its folder.

    Scored is by the tests that ran, so it takes no longer than those took for as many
    texts. Of images nothing is shown. The prompts of a language model have their scores in the
    rows, so that all are kept, in their order; a page shows those that have a reason.

    Args:
        rows: of the audit.
        examples: the data that the texts are of.
    """
    tokenizer, site = subject.tokenizer, choose_displayed_site(rows)
    if isinstance(tokenizer, ImageReader) or site is None:
        return ()
    site = site._replace(query=options.query)
    explainer = Explainer(
        sweep.adapter,
        tokenizer,
        site,
        attention_of=describe_attention(sweep.adapter, site, rows),
        target=options.target,
        has_importances=not LEAVE_ONE_OUT_TESTS.isdisjoint(sweep.options),
    )
    prompts = load_scored_prompts(explainer, sweep.texts, rows, examples)
    whys = choose_example_ids(rows, options.shown_texts)
    if prompts:
        shown = [replace(text, why=whys.get(k, "")) for k, text in prompts.items()]
    else:
        texts = {text.example_id: text for text in sweep.texts}
        read = _select_examples(examples, {*whys})
        shown = []
        for k, why in whys.items():
            sweep.clock.tests_end("texts with their scores")
            told = explainer.explain(texts[k], read[k])
            shown.append(replace(told, why=why))
    if process_state().is_main_process:
        try:
            write_texts(sweep.folder.parent, shown)
        except OSError as error:  # the report has them all the same
            logger.warning(
                "cannot write the texts in %s (%s)",
                sweep.folder.parent,
                error.strerror,
            )
    return tuple(shown)


UNIT_STATISTICS = {
    "attention": "unit_attention",
    "knockout": "unit_knockout",
    "leave_one_out": "unit_loss",
}
"""By name of the ranking, the statistic that has its scores, one for each unit."""
MAX_PROMPTS = 1000
"""That are kept with the scores of their units."""


def load_scored_prompts(
    explainer: Explainer,
    texts: Sequence[Text],
    rows: Rows,
    examples: "datasets.Dataset",
) -> dict[int, HighlightedText]:
    """Prompts with the scores of their units, by id; none where the rows have none.

    Args:
        texts: prompts and answers, in tokens.
        rows: of the audit.
        examples: the data that the texts are of.
    """
    wanted = {*UNIT_STATISTICS.values(), "unit_matters"}
    of_units = rows.select(lambda _, name, *__: name.partition("@")[0] in wanted)
    if not any(name.startswith("unit_loss@") for _, name, *_ in of_units.columns):
        return {}
    known = rows.named(PROMPT_STATISTICS)
    site = explainer.site[:2]
    units, numbers = (
        at_site(of_units, site).frame(),
        at_site(known, site).frame(),
    )
    ordered = sorted(texts, key=lambda text: text.example_id)[:MAX_PROMPTS]
    read = _select_examples(examples, {text.example_id for text in ordered})
    return {
        text.example_id: _add_unit_scores(
            explainer.answered(text, read[text.example_id]),
            units.loc[text.example_id],
            numbers.loc[text.example_id],
        )
        for text in ordered
        if text.example_id in units.index
    }


PROMPT_STATISTICS = {
    "sink_share": SINK_SHARE_LABEL,
    "passage_share": PASSAGE_SHARE_LABEL,
    "contextual_gain": PASSAGE_GAIN_LABEL,
    "answer_is_greedy": "",
}
"""By statistic, what it is in the words of a shown text."""


def _add_unit_scores(shown: HighlightedText, units: pd.Series, numbers: pd.Series) -> HighlightedText:
    """A prompt with its scores, by the row of its text."""
    places = range(len(shown.tokens))

    def of_units(statistic: str) -> tuple[float, ...]:
        return tuple(float(units.get(f"{statistic}@{k}", np.nan)) for k in places)

    known = {name: of_units(statistic) for name, statistic in UNIT_STATISTICS.items()}
    matters = of_units("unit_matters")
    was_tested = not np.isnan(matters).all()
    return replace(
        shown,
        scores={name: values for name, values in known.items() if not np.isnan(values).all()},
        matters=tuple(k for k in places if matters[k] == 1) if was_tested else None,
        numbers={said: float(numbers[name]) for name, said in PROMPT_STATISTICS.items() if said},
        is_greedy=bool(numbers["answer_is_greedy"] == 1),
    )


def _select_examples(examples: "datasets.Dataset", ids: set[int]) -> dict[int, Mapping[str, Any]]:
    """What was tokenized of some texts, by id."""
    numbers = read_column(examples, "example_id")
    places = [place for place, number in enumerate(numbers) if number in ids]
    chosen = examples.with_format(None).select(places)
    return {row["example_id"]: row for row in chosen}


AGREEMENT_STATISTICS = (
    "importance@attention",
    "source_agreement@attention",
    "attention_leave_one_out_tau",
)
"""Statistics of how much attention and leaving out agree about a text; the first that there is."""
RANDOM_REASON = "drawn by chance"


def choose_example_ids(rows: Rows, n: int) -> dict[int, str]:
    """Chooses up to ``n`` texts to show: their ids in order, each with the reason.

    Args:
        rows: of the audit.
        n: largest number of texts.
    """
    predictions = predictions_of(rows).frame()
    if n < 1 or not len(predictions):
        return {}
    ids = [int(k) for k in predictions.index]
    predictions = predictions.loc[[ids[k] for k in by_hash(ids)]]
    chosen: dict[int, str] = {}

    def take(found: Iterator[tuple[int, str]], up_to: int) -> None:
        for example_id, why in found:
            if len(chosen) >= up_to:
                return
            chosen.setdefault(int(example_id), why)

    take(_find_agreement_extremes(rows, predictions), min(n, 2))
    take(_find_confident_errors(predictions), min(n, len(chosen) + 1))
    take(((k, RANDOM_REASON) for k in predictions.index), n)
    return chosen


def _find_agreement_extremes(rows: Rows, predictions: pd.DataFrame) -> Iterator[tuple[int, str]]:
    """Yields the texts about which attention and leaving out agree, and disagree, most."""
    site = choose_displayed_site(rows)
    if site is None:
        return
    wide = at_site(rows.named(set(AGREEMENT_STATISTICS)), (site.layer, site.head)).frame()
    known = [name for name in AGREEMENT_STATISTICS if name in wide]
    if not known:
        return
    agreement = wide[known[0]].reindex(predictions.index).round(COMPARED_DIGITS)
    is_long = predictions.n_tokens >= MIN_AGREEMENT_TOKENS
    measured = (agreement[is_long] if is_long.any() else agreement).dropna()
    if len(measured):
        yield measured.idxmax(), AGREEMENT_REASON
        yield measured.idxmin(), DISAGREEMENT_REASON


def _find_confident_errors(predictions: pd.DataFrame) -> Iterator[tuple[int, str]]:
    right = is_right(predictions)
    wrong = predictions[right < 1]
    sure = wrong.probability.round(COMPARED_DIGITS).sort_values(ascending=False, kind="stable")
    return ((k, WRONG_PREDICTION_REASON) for k in sure.index)


def choose_displayed_site(rows: Rows) -> Site | None:
    """The site whose attention is shown: the model's, else the head that matters most.

    That is the one whose zero-ablation moves the output most, or else whose shuffling
    does; without such numbers the first group or head that was tested.
    """
    whole = site_of_model(rows)
    if whole is not None:
        return Site(*whole)
    for statistic in ("zero_tvd", "median_tvd"):
        effects = rows.of_heads(statistic)
        if len(effects):
            layer, head = effects.mean().round(COMPARED_DIGITS).idxmax()
            return Site(int(layer), int(head))
    sites = sorted(rows.sites)
    heads = [site for site in sites if min(site) >= 0]
    return Site(*(heads or sites)[0]) if sites else None


def describe_attention(model: AttentionModelBase, site: Site, rows: Rows) -> str:
    """Names the attention shown; empty if a model has only one."""
    n_heads = len(model.sites())
    if n_heads == 1:
        return ""
    if site.layer == HEAD_SET:
        return f"the mean of the heads of set {site.head}"
    if site.layer == ALL:
        return f"the mean of all {n_heads} heads"
    if site.head == ALL:
        return f"the mean of the heads of layer {site.layer}"
    moves = " that moves the output most" if len(rows.of_heads("zero_tvd")) else ""
    return f"the head{moves}: layer {site.layer}, head {site.head}"
