"""Whatever would stop an audit later stops it here, before anything is written."""

from collections.abc import Mapping, Sequence

import torch

from hf_attnprobe.attention_model import (
    AttentionModelBase,
    Batch,
    Observation,
    Site,
)
from hf_attnprobe.auditing.selection import check_query
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.faithfulness import AuditPreview, tests
from hf_attnprobe.hardware.memory import in_halves
from hf_attnprobe.inference.batching import collate, text_in_words
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.options import Options


def rehearse(
    adapter: AttentionModelBase,
    texts: Sequence[Text],
    chosen: Mapping[str, Options],
    sites: Sequence[Site],
    *,
    pad_token_id: int,
    rationales: bool,
) -> None:
    """Runs the model on the longest and the shortest texts, and asks every test.

    Args:
        texts: of the audit, or a sample of them.
        chosen: the tests that will run, with their options.
        sites: heads that the options name.
        pad_token_id: what texts are padded with.
        rationales: whether the data says what people marked.

    Raises:
        AttnProbeError: edits that do not arrive, probabilities that are not the model's
            own, or what a test refuses.
    """
    by_length = sorted(texts, key=lambda text: text.n_content)

    def check_longest(some: Sequence[Text]) -> None:
        longest = collate(adapter, some, pad_token_id)
        adapter.self_check(longest)
        check_probabilities(adapter, longest)

    for _ in in_halves(by_length[-4:], check_longest, name=text_in_words):
        pass
    shortest = adapter.observe(collate(adapter, by_length[:1], pad_token_id))
    beside = [by_length[0], max(texts, key=lambda text: text.n_tokens)]
    check_padding(shortest, collate(adapter, beside, pad_token_id))
    if sites[0].query is not None:
        check_query(shortest, sites[0].query)
    preview = AuditPreview(shortest, sites, rationales)
    for name, options in chosen.items():
        tests()[name].check(preview, options)


def check_padding(alone: Observation, padded: Batch) -> None:
    """Checks that a text is predicted alike beside a longer one.

    Of some models it is not, by themselves: they pool, convolve or sample over padding.

    Args:
        alone: a text by itself.
        padded: the same text first, and another one.

    Raises:
        AttnProbeError: its probabilities differ by more than rounding.
    """
    adapter = alone.model
    grouped = adapter.prediction.grouped
    before = grouped(alone.probs)[0]
    after = grouped(adapter.observe(padded).probs)[0][: len(before)]
    if "reads" in alone.batch.inputs:  # places and candidates stand elsewhere
        before, after = before.amax(-1), after.amax(-1)
    error, allowed = float((after - before).abs().max()), _tolerance(adapter, before)
    if not error <= allowed:
        raise AttnProbeError(
            "expected predictions that do not depend on padding, those of "
            f"{type(adapter.model).__name__} change by {error:.1e} where text "
            f"{padded.example_ids[0]} is padded to {padded.mask.shape[1]} tokens; this "
            "kind of model cannot be audited in batches"
        )


def check_probabilities(adapter: AttentionModelBase, batch: Batch) -> None:
    """Checks that what is audited says what the model itself says.

    Raises:
        AttnProbeError: a probability differs by more than rounding.
    """
    native = adapter.native_probs(batch)
    if native is None:
        return
    probs = adapter.observe(batch).probs
    allowed = _tolerance(adapter, native)
    differences = (probs - native).detach().abs().amax(-1)
    error, row = float(differences.max()), int(differences.argmax())
    if not error <= allowed:
        if native.isnan().any():  # as weights of a training that diverged give
            raise AttnProbeError(
                "expected probabilities of the model, it gives NaN on text "
                f"{batch.example_ids[row]}; check its weights and --dtype"
            )
        raise AttnProbeError(
            f"expected the model's own probabilities, those that would be audited differ "
            f"from them by {error:.1e} on text {batch.example_ids[row]}, more than "
            f"{allowed:.1e}; this model cannot be audited, please report it"
        )


def _tolerance(adapter: AttentionModelBase, native: torch.Tensor) -> float:
    """Rounding of the coarser of the two: the model as it is, and as it is audited."""
    given = getattr(adapter, "given", adapter.model)
    weights = [*adapter.model.parameters(), *given.parameters()]
    kinds = {weight.dtype for weight in weights}
    coarsest = max(torch.finfo(kind).eps for kind in kinds if kind.is_floating_point)
    largest = max(1.0, float(native.abs().max()))  # of a number, in its unit
    return min(1000 * coarsest, 0.1) * largest
