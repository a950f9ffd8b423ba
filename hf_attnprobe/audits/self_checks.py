"""Checks an audit: before anything is written, as rows come, and when it goes on.

What is recorded of a text is what the model says of it alone. The model runs as its users run
it, on all that the tokenizer gives for one text, without adapter, batch or padding. So this
finds inputs that were lost on the way, models that look at padding or at the texts beside, and
rows of a model that changed since.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence

import pandas as pd
import torch
from transformers import PreTrainedTokenizerBase

from hf_attnprobe.adapters.language_model.adapter import LanguageModelAdapter
from hf_attnprobe.audits.site_selection import check_query
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.hardware import in_halves
from hf_attnprobe.core.options import Options
from hf_attnprobe.faithfulness.options import TargetOptions
from hf_attnprobe.faithfulness.registry import AuditPreview, load_tests
from hf_attnprobe.faithfulness.uniform_attention import uniform_attention
from hf_attnprobe.inference.batching import (
    sort_by_length,
    collate,
    split_for_model,
    describe_text,
)
from hf_attnprobe.inference.encoding import ImageReader, Text
from hf_attnprobe.protocol import (
    AttentionModelBase,
    Batch,
    Observation,
    Site,
)
from hf_attnprobe.statistics.sampling import random_order
from hf_attnprobe.storage.rows import said_of


N_TEXTS_CHECKED_AFTER, N_TEXTS_CHECKED_BEFORE = 8, 2
"""Texts that are recomputed, or changed, after an audit, and before one that goes on."""
CHANGED_MODEL_CAUSE = (
    "model, tokenizer or hooks have changed since; bring them back, or choose another --output-dir"
)
UNSUPPORTED_EDIT_CAUSE = "this model's prompts cannot be changed, please report it; the rows are kept"
BATCH_DEPENDENCE_CAUSE = (
    "it changed meanwhile, or looks at padding or at the texts beside; the rows are kept, "
    "try --batch-size 1 in another --output-dir"
)


def draw_texts(texts: Sequence[Text], held: pd.DataFrame, n_texts: int, seed: int) -> list[Text]:
    """Returns the longest text that has rows, and others drawn by a hash of their ids and the seed."""
    known = set(held.index)
    by_id = {text.example_id: text for text in texts if text.example_id in known}
    by_length = sorted(by_id, key=lambda k: (by_id[k].n_tokens, k))
    longest = by_length[-1:]
    others = [k for k in random_order(by_id, seed) if k not in longest]
    drawn = [*longest, *others][:n_texts]
    return [by_id[k] for k in drawn]


def check_recorded_prediction(
    adapter: AttentionModelBase,
    batch: Batch,
    held: pd.DataFrame,
    *,
    where: str,
    cause: str,
) -> None:
    """Checks that the recorded row of a text equals what the model computes for it alone.

    A model that cannot be run by itself is not asked.

    Args:
        batch: of one text.
        held: the predictions of these texts, and maybe others, a text per row and a statistic
            per column.
        where: the rows are, in words.
        cause: why a text may come out differently, and what to do.

    Raises:
        AttnProbeError: a probability, or number, differs by more than rounding.
    """
    native = adapter.compute_native_probs(batch)
    if native is None:
        return
    (example_id,) = batch.example_ids
    said = said_of(adapter, batch, native)
    found = held.loc[example_id].dropna().to_dict()
    name = "value" if "value" in found else "probability"
    predicted = int(found["predicted_class"])
    is_class = name == "probability" and predicted >= 0
    own = float(native[0, predicted] if is_class else said[name])
    allowed = compute_tolerance(adapter, own)
    if not abs(found[name] - own) <= allowed:
        raise AttnProbeError(
            f"expected the model's own probabilities, it gives {own:.6g} for text "
            f"{example_id} by itself, {where} is {found[name]:.6g}, more than "
            f"{allowed:.1e} away: {cause}"
        )


def check_prompt_edits(adapter: LanguageModelAdapter, batch: Batch) -> None:
    """Checks a deletion and a knockout in a prompt against passes of the user's own model.

    Raises:
        AttnProbeError: a probability differs by more than rounding.
    """
    (example_id,) = batch.example_ids
    units = batch.content_mask[0].nonzero()[:, 0].tolist()
    unit = random_order(units, example_id)[0]
    away = adapter.away_from_own_model(adapter.observe(batch), unit)
    for change, error in away.items():
        if not error <= compute_tolerance(adapter, 1.0):
            raise AttnProbeError(
                f"expected the {change} of unit {unit + 1} of text {example_id} as the "
                f"model itself computes it, probabilities differ by {error:.1e}: {UNSUPPORTED_EDIT_CAUSE}"
            )


def compute_tolerance(adapter: AttentionModelBase, number: float) -> float:
    """Rounding of the coarser of the two: the model as it is, and as it is audited."""
    given = getattr(adapter, "user_model", adapter.model)
    weights = [*adapter.model.parameters(), *given.parameters()]
    kinds = {weight.dtype for weight in weights}
    coarsest = max(torch.finfo(kind).eps for kind in kinds if kind.is_floating_point)
    return min(1000 * coarsest, 0.1) * max(1.0, abs(number))  # of a number, in its unit


# --- half precision --------------------------------------------------------------------------


logger = logging.getLogger(__name__)
N_PRECISION_TEXTS = 8
LOGGED_DIFFERENCE, MAX_DIFFERENCE = 0.01, 0.1
"""Largest difference of a probability, or of an edit's change of the output, from float32."""


def compare_with_float32(
    adapter: AttentionModelBase,
    exact: Callable[[], AttentionModelBase] | None,
    texts: Sequence[Text],
    pad_token_id: int,
) -> dict[str, dict[str, float]]:
    """Difference between an audit in half precision and one in float32, on the longest texts.

    Compared are the probabilities, and the change of the output where the attention of
    the last head that can be edited is made uniform.

    Args:
        adapter: computes in half precision.
        exact: makes the same in float32; None where nothing is to be compared.

    Returns:
        What a report records: the largest differences and of how many texts.

    Raises:
        AttnProbeError: a difference above :data:`MAX_DIFFERENCE`, or numbers that overflow.
    """
    if exact is None:
        return {}
    some = sort_by_length(texts)[-N_PRECISION_TEXTS:]
    other, probability, change = exact(), 0.0, 0.0
    for texts in split_for_model(adapter, some):
        ours, theirs = (
            _compute_outputs(model, collate(model, texts, pad_token_id)) for model in (adapter, other)
        )
        differs = [float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True)]
        probability, change = (
            max(probability, differs[0]),
            max(change, differs[1]),
        )
    largest = max(probability, change)
    said = f"{largest:.3f} from float32 on {len(some)} texts"
    if not largest <= MAX_DIFFERENCE:
        raise AttnProbeError(
            f"expected half precision to differ by at most {MAX_DIFFERENCE} from float32, a "
            f"probability or an edit's change differs by {said}; say --dtype float32"
        )
    if largest > LOGGED_DIFFERENCE:
        logger.warning("half precision: probabilities or changes differ by %s", said)
    rounding = {
        "probability": probability,
        "change": change,
        "texts": len(some),
    }
    return {"rounding": rounding}


def _compute_outputs(model: AttentionModelBase, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities [batch, classes] and the changes of an edit [batch], exactly kept."""
    observation = model.observe(batch)
    change = uniform_attention(observation, model.sites()[-1]).uniform_tvd
    return observation.probs.detach().double().cpu(), change.double().cpu()


# --- before anything is written: the rehearsal --------------------------------

N_PREFLIGHT_TEXTS = 4
"""Texts that are tried, as many as fit into a batch."""
TESTED_PADDINGS = (1, 4, 16)
"""Tokens of padding that must change no prediction."""


def run_preflight_checks(
    adapter: AttentionModelBase,
    texts: Sequence[Text],
    chosen: Mapping[str, Options],
    sites: Sequence[Site],
    *,
    tokenizer: PreTrainedTokenizerBase | ImageReader,
    rationales: bool,
    target: str | int | None = None,
) -> None:
    """Runs the model on the longest and the shortest texts, and each test's check.

    Args:
        texts: of the audit, or a sample of them.
        chosen: the tests that will run, with their options.
        sites: heads that the options name.
        tokenizer: that the texts are from.
        rationales: whether the data says what people marked.
        target: the class that the audit explains.

    Raises:
        AttnProbeError: edits that do not arrive, probabilities that are not the model's
            own, a class that the model lacks, or what a test refuses.
    """
    by_length = sorted(texts, key=lambda text: text.n_content)
    n_longest = 1 if adapter.max_batch_size == 1 else N_PREFLIGHT_TEXTS
    pad_token_id = tokenizer.pad_token_id or 0

    def try_longest(some: Sequence[Text]) -> pd.DataFrame | None:
        batch = collate(adapter, some, pad_token_id)
        adapter.self_check(batch)
        if isinstance(adapter, LanguageModelAdapter):
            return None  # its own check has asked the user's model
        said = said_of(adapter, batch, adapter.observe(batch).probs)
        return pd.DataFrame({k: v.tolist() for k, v in said.items()}, index=[*batch.example_ids])

    tried = [
        done
        for some in split_for_model(adapter, by_length[-n_longest:])
        for done in in_halves(some, try_longest, name=describe_text)
    ]
    shortest = adapter.observe(collate(adapter, by_length[:1], pad_token_id))
    short, long = by_length[0], max(texts, key=lambda text: text.n_tokens)
    is_padded = adapter.max_batch_size is None
    if is_padded:
        check_padding(shortest, collate(adapter, [short, long], pad_token_id))
    if is_padded and not isinstance(tokenizer, ImageReader):
        n_free = (adapter.get_max_length(tokenizer) or math.inf) - short.n_tokens
        for n_more in (n for n in TESTED_PADDINGS if n <= n_free):
            padded = collate(adapter, [short], pad_token_id, n_more=n_more)
            check_padding(shortest, padded)
    cause = "this model cannot be audited, please report it"
    for some, said in tried:
        if said is None:
            continue
        for text in some:
            batch = collate(adapter, [text], pad_token_id)
            check_recorded_prediction(adapter, batch, said, where="audited", cause=cause)
    if sites[0].query is not None:
        check_query(shortest, sites[0].query)
    preview = AuditPreview(shortest, sites, rationales)
    shortest.with_target(target)
    for name, options in chosen.items():
        if isinstance(options, TargetOptions):
            shortest.with_target(options.target)
        load_tests()[name].check(preview, options)


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
    grouped = adapter.prediction.group_by_part
    before = grouped(alone.probs.detach())[0]
    after = grouped(adapter.observe(padded).probs.detach())[0][: len(before)]
    if "reads" in alone.batch.inputs:  # places and candidates stand elsewhere
        before, after = before.amax(-1), after.amax(-1)
    error = float((after - before).abs().max())
    allowed = compute_tolerance(adapter, float(before.abs().max()))
    if not error <= allowed and before.isfinite().all():  # see `check_recorded_prediction`
        raise AttnProbeError(
            "expected predictions that do not depend on padding, those of "
            f"{type(adapter.model).__name__} change by {error:.1e} where text "
            f"{padded.example_ids[0]} is padded to {padded.mask.shape[1]} tokens; this "
            "kind of model cannot be audited in batches"
        )
