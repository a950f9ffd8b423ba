"""Checks rows against the model: what is recorded of a text is what the model says of it alone.

The model runs as its users run it, on all that the tokenizer gives for one text, without
adapter, batch or padding. So this finds inputs that were lost on the way, models that
look at padding or at the texts beside, and rows of a model that changed since.
"""

import logging
from collections.abc import Callable, Sequence

import pandas as pd
import torch

from hf_attnprobe.adapters.language_model.adapter import LanguageModelAdapter
from hf_attnprobe.attention_model import AttentionModelBase, Batch
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.faithfulness.uniform_attention import uniform_attention
from hf_attnprobe.inference.batching import by_length, collate, portions
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.statistics.samples import random_order
from hf_attnprobe.storage.rows import prediction_statistics


N_AFTER, N_BEFORE = 8, 2
"""Texts that are recomputed, or changed, after an audit, and before one that goes on."""
CHANGED = "model, tokenizer or hooks have changed since; bring them back, or choose another --output-dir"
NOT_OWN = "this model's prompts cannot be changed, please report it; the rows are kept"
NOT_ALONE = (
    "it changed meanwhile, or looks at padding or at the texts beside; the rows are kept, "
    "try --batch-size 1 in another --output-dir"
)


def said_of(
    adapter: AttentionModelBase, batch: Batch, probs: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Recorded facts about predictions [batch, entries], each [batch].

    Raises:
        AttnProbeError: a probability that is no number.
    """
    wrong = probs.isnan().flatten(1).any(1).nonzero()[:, 0].tolist()
    if wrong:  # as weights of a training that diverged give
        raise AttnProbeError(
            "expected probabilities of the model, it gives NaN on text "
            f"{batch.example_ids[wrong[0]]}; check its weights and --dtype"
        )
    assert batch.labels is not None  # collate gives −1 to unlabelled texts
    n_tokens = batch.content_mask.sum(-1)
    said = prediction_statistics(
        adapter.prediction, probs, batch.labels, n_tokens
    )
    return (
        said
        if batch.identities is None
        else said | {"identity": batch.identities}
    )


def drawn_texts(
    texts: Sequence[Text], held: pd.DataFrame, n_texts: int, seed: int
) -> list[Text]:
    """Some of the texts that have rows, drawn by a hash of their ids and the seed."""
    known = set(held.index)
    by_id = {
        text.example_id: text for text in texts if text.example_id in known
    }
    return [by_id[k] for k in random_order(by_id, seed)[:n_texts]]


def check_rows(
    adapter: AttentionModelBase,
    texts: Sequence[Text],
    held: pd.DataFrame,
    pad_token_id: int,
    *,
    where: str,
    cause: str,
) -> None:
    """Checks that recorded rows equal what the model computes for each text alone.

    A model that cannot be run by itself is not asked.

    Args:
        held: the predictions of these texts, and maybe others, a text per row and a statistic
            per column.
        where: the rows are, in words.
        cause: why a text may come out differently, and what to do.

    Raises:
        AttnProbeError: a probability, or number, differs by more than rounding.
    """
    for text in texts:
        batch = collate(adapter, [text], pad_token_id)
        native = adapter.native_probs(batch)
        if native is None:
            return
        said = said_of(adapter, batch, native)
        found = held.loc[text.example_id].dropna().to_dict()
        name = "value" if "value" in found else "probability"
        predicted = int(found["predicted_class"])
        is_class = name == "probability" and predicted >= 0
        own = float(native[0, predicted] if is_class else said[name])
        allowed = tolerance(adapter, own)
        if not abs(found[name] - own) <= allowed:
            raise AttnProbeError(
                f"expected the model's own probabilities, it gives {own:.6g} for text "
                f"{text.example_id} by itself, {where} is {found[name]:.6g}, more than "
                f"{allowed:.1e} away: {cause}"
            )


def check_changes(
    adapter: LanguageModelAdapter, texts: Sequence[Text], pad_token_id: int
) -> None:
    """Checks a deletion and a knockout in each text against passes of the user's own model.

    Raises:
        AttnProbeError: a probability differs by more than rounding.
    """
    for text in texts:
        observation = adapter.observe(collate(adapter, [text], pad_token_id))
        units = observation.batch.content_mask[0].nonzero()[:, 0].tolist()
        unit = random_order(units, text.example_id)[0]
        for change, error in adapter.away_from_own_model(
            observation, unit
        ).items():
            if not error <= tolerance(adapter, 1.0):
                raise AttnProbeError(
                    f"expected the {change} of unit {unit + 1} of text {text.example_id} as the "
                    f"model itself computes it, probabilities differ by {error:.1e}: {NOT_OWN}"
                )


def tolerance(adapter: AttentionModelBase, number: float) -> float:
    """Rounding of the coarser of the two: the model as it is, and as it is audited."""
    given = getattr(adapter, "given", adapter.model)
    weights = [*adapter.model.parameters(), *given.parameters()]
    kinds = {weight.dtype for weight in weights}
    coarsest = max(
        torch.finfo(kind).eps for kind in kinds if kind.is_floating_point
    )
    return min(1000 * coarsest, 0.1) * max(
        1.0, abs(number)
    )  # of a number, in its unit


# --- half precision --------------------------------------------------------------------------


logger = logging.getLogger(__name__)
N_TEXTS = 8
WORTH_A_LINE, TOO_MUCH = 0.01, 0.1
"""Largest difference of a probability, or of an edit's change of the output, from float32."""


def compared_with_float32(
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
        AttnProbeError: a difference above :data:`TOO_MUCH`, or numbers that overflow.
    """
    if exact is None:
        return {}
    some = by_length(texts)[-N_TEXTS:]
    other, probability, change = exact(), 0.0, 0.0
    for texts in portions(adapter, some):
        ours, theirs = (
            _outputs(model, collate(model, texts, pad_token_id))
            for model in (adapter, other)
        )
        differs = [
            float((a - b).abs().max())
            for a, b in zip(ours, theirs, strict=True)
        ]
        probability, change = (
            max(probability, differs[0]),
            max(change, differs[1]),
        )
    largest = max(probability, change)
    said = f"{largest:.3f} from float32 on {len(some)} texts"
    if not largest <= TOO_MUCH:
        raise AttnProbeError(
            f"expected half precision to differ by at most {TOO_MUCH} from float32, a "
            f"probability or an edit's change differs by {said}; say --dtype float32"
        )
    if largest > WORTH_A_LINE:
        logger.warning(
            "half precision: probabilities or changes differ by %s", said
        )
    rounding = {
        "probability": probability,
        "change": change,
        "texts": len(some),
    }
    return {"rounding": rounding}


def _outputs(
    model: AttentionModelBase, batch: Batch
) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities [batch, classes] and the changes of an edit [batch], exactly kept."""
    observation = model.observe(batch)
    change = uniform_attention(observation, model.sites()[-1]).uniform_tvd
    return observation.probs.detach().double().cpu(), change.double().cpu()
