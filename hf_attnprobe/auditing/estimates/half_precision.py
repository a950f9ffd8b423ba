"""What numbers of 16 bits cost in exactness, seen on a few texts before an audit."""

import logging
from collections.abc import Callable, Sequence

import torch

from hf_attnprobe.attention_model import AttentionModelBase, Batch
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.faithfulness.uniform_attention import uniform_attention
from hf_attnprobe.inference.batching import by_length, collate
from hf_attnprobe.inference.encoding import Text


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
    """How far an audit in half precision is from one in float32, on its longest texts.

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
    ours, theirs = (
        _outputs(model, collate(model, some, pad_token_id)) for model in (adapter, exact())
    )
    probability, change = (float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))
    largest = max(probability, change)
    said = f"{largest:.3f} from float32 on {len(some)} texts"
    if not largest <= TOO_MUCH:
        raise AttnProbeError(
            f"expected half precision to differ by at most {TOO_MUCH} from float32, a "
            f"probability or an edit's change differs by {said}; say --dtype float32"
        )
    if largest > WORTH_A_LINE:
        logger.warning("half precision: probabilities or changes differ by %s", said)
    rounding = {"probability": probability, "change": change, "texts": len(some)}
    return {"rounding": rounding}


def _outputs(model: AttentionModelBase, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities [batch, classes] and the changes of an edit [batch], exactly kept."""
    observation = model.observe(batch)
    change = uniform_attention(observation, model.sites()[-1]).uniform_tvd
    return observation.probs.detach().double().cpu(), change.double().cpu()
