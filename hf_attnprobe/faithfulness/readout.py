"""The read-out of a model where it is linear: logits = Σ_t a_t · token_logits_t."""

from torch import Tensor

from hf_attnprobe.attention_model import LinearReadout, Observation


def linear_logits(observation: Observation) -> Tensor | None:
    """Logits of each token alone [batch, keys, classes]; None where it is not linear."""
    model = observation.model
    if model.lacks(LinearReadout) is not None:
        return None
    return model.token_logits(observation)
