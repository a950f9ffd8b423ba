"""Rehearses an audit, so that errors come before anything is written."""

import math
from collections.abc import Mapping, Sequence

import pandas as pd
from transformers import PreTrainedTokenizerBase

from hf_attnprobe.attention_model import (
    AttentionModelBase,
    Batch,
    Observation,
    Site,
)
from hf_attnprobe.auditing.recomputed import check_rows, said_of, tolerance
from hf_attnprobe.auditing.selection import check_query
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.faithfulness.registry import AuditPreview, tests
from hf_attnprobe.hardware import in_halves
from hf_attnprobe.inference.batching import collate, portions, text_in_words
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.inference.images import ImageReader
from hf_attnprobe.options import Options


N_LONGEST = 4
"""Texts that are tried, as many as fit into a batch."""
PADDINGS = (1, 4, 16)
"""Tokens of padding that must change no prediction."""


def rehearse(
    adapter: AttentionModelBase,
    texts: Sequence[Text],
    chosen: Mapping[str, Options],
    sites: Sequence[Site],
    *,
    tokenizer: PreTrainedTokenizerBase | ImageReader,
    rationales: bool,
) -> None:
    """Runs the model on the longest and the shortest texts, and each test's check.

    Args:
        texts: of the audit, or a sample of them.
        chosen: the tests that will run, with their options.
        sites: heads that the options name.
        tokenizer: that the texts are from.
        rationales: whether the data says what people marked.

    Raises:
        AttnProbeError: edits that do not arrive, probabilities that are not the model's
            own, or what a test refuses.
    """
    by_length = sorted(texts, key=lambda text: text.n_content)
    n_longest = 1 if adapter.texts_at_once == 1 else N_LONGEST
    pad_token_id = tokenizer.pad_token_id or 0

    def try_longest(some: Sequence[Text]) -> pd.DataFrame:
        batch = collate(adapter, some, pad_token_id)
        adapter.self_check(batch)
        said = said_of(adapter, batch, adapter.observe(batch).probs)
        return pd.DataFrame(
            {k: v.tolist() for k, v in said.items()}, index=[*batch.example_ids]
        )

    tried = [
        done
        for some in portions(adapter, by_length[-n_longest:])
        for done in in_halves(some, try_longest, name=text_in_words)
    ]
    shortest = adapter.observe(collate(adapter, by_length[:1], pad_token_id))
    short, long = by_length[0], max(texts, key=lambda text: text.n_tokens)
    is_padded = adapter.texts_at_once is None
    if is_padded:
        check_padding(shortest, collate(adapter, [short, long], pad_token_id))
    if is_padded and not isinstance(tokenizer, ImageReader):
        n_free = (adapter.max_length(tokenizer) or math.inf) - short.n_tokens
        for n_more in (n for n in PADDINGS if n <= n_free):
            padded = collate(adapter, [short], pad_token_id, n_more=n_more)
            check_padding(shortest, padded)
    for some, said in tried:
        cause = "this model cannot be audited, please report it"
        check_rows(
            adapter, some, said, pad_token_id, where="audited", cause=cause
        )
    if sites[0].query is not None:
        check_query(shortest, sites[0].query)
    preview = AuditPreview(shortest, sites, rationales)
    for name, options in chosen.items():
        tests()[name].check(preview, options)


def check_padding(alone: Observation, padded: Batch) -> None:
    """Checks that a text is predicted alike beside a longer one, or padded.

    Of some models it is not, by themselves: they pool, convolve or sample over padding.

    Args:
        alone: a text by itself.
        padded: the same text first.

    Raises:
        AttnProbeError: its probabilities differ by more than rounding.
    """
    adapter = alone.model
    grouped = adapter.prediction.grouped
    before = grouped(alone.probs.detach())[0]
    after = grouped(adapter.observe(padded).probs.detach())[0][: len(before)]
    if "reads" in alone.batch.inputs:  # places and candidates stand elsewhere
        before, after = before.amax(-1), after.amax(-1)
    error = float((after - before).abs().max())
    allowed = tolerance(adapter, float(before.abs().max()))
    if not error <= allowed and before.isfinite().all():  # see `check_rows`
        raise AttnProbeError(
            "expected predictions that do not depend on padding, those of "
            f"{type(adapter.model).__name__} change by {error:.1e} where text "
            f"{padded.example_ids[0]} is padded to {padded.mask.shape[1]} tokens; this "
            "kind of model cannot be audited in batches"
        )
