"""Test ``single_token``: can the model distinguish single tokens?

Tutek & Šnajder 2020, Section 4.3.

Question
    If attention weights measure how important tokens are, different tokens should lead to different
    decisions. How much do the predictions differ if the text consists of a single token?

Measure
    The model reads each token alone, together with the special tokens. The test reports the
    predicted class's smallest and largest probability over these one-token texts, their range, and
    the standard deviation.

Comparison
    The same model with states that are tied to their words. The paper finds wide ranges with tying
    and narrow ranges without it.

Interpretation
    Range near 0: every token gives the same prediction. Range near 1: some tokens support the class
    and others oppose it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hf_attnprobe.faithfulness.options import SingleToken
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.protocol import EditableInputs, Observation, Site


READINGS = {
    "lowest_probability": (
        "the single token that opposes the prediction most gives it {mean:.2f} {amount}"
    ),
    "highest_probability": (
        "the single token that supports the prediction most gives it {mean:.2f} {amount}"
    ),
    "probability_range": (
        "single tokens of a text give {prediction} between a lowest and a highest value that are "
        "{mean:.2f} {amount} apart"
    ),
    "probability_std": (
        "over single tokens, {prediction} has a standard deviation of {mean:.2f} {amount}"
    ),
}


@dataclass(frozen=True)
class SingleTokenResult:
    """Statistics from the test ``single_token``, tensors ``[batch]``.

    All are NaN in texts without a token. The last two are also NaN in one-token texts.

    Attributes:
        lowest_probability: Smallest probability, over the single tokens, of the class that is
            predicted for the whole text.
        highest_probability: Largest probability of this class over the single tokens.
        probability_range: Largest probability minus smallest probability.
        probability_std: Standard deviation over the tokens (population form).
    """

    lowest_probability: Tensor
    highest_probability: Tensor
    probability_range: Tensor
    probability_std: Tensor


@register_test(
    readings=READINGS,
    summary="gives each token to the model alone",
    needs=(EditableInputs,),
    default="on request",
)
@torch.no_grad()
def single_token(
    observation: Observation,
    site: Site,
    options: SingleToken = SingleToken(),
    *,
    seed: int = 0,
) -> SingleTokenResult:
    """Measure how much the predicted class's probability differs between one-token texts.

    Args:
        observation: Model outputs and attention for a batch.
        site: Unused, because the input is edited and not the attention.
        options: Explained class.
        seed: Unused, because the test is deterministic.

    Returns:
        Statistics per text.
    """
    observation = observation.with_target(options.target)
    content = observation.batch.content_mask
    probs = predict_single_tokens(observation)
    probs = torch.where(observation.target_sign > 0, probs, 1 - probs)
    lowest = probs.masked_fill(~content, torch.inf).amin(-1)
    highest = probs.masked_fill(~content, -torch.inf).amax(-1)
    n_tokens = content.sum(-1)
    mean = (probs * content).sum(-1) / n_tokens
    variance = ((probs - mean[:, None]).square() * content).sum(-1) / n_tokens
    has_token, has_several_tokens = n_tokens > 0, n_tokens > 1
    return SingleTokenResult(
        torch.where(has_token, lowest, torch.nan),
        torch.where(has_token, highest, torch.nan),
        torch.where(has_several_tokens, highest - lowest, torch.nan),
        torch.where(has_several_tokens, variance.sqrt(), torch.nan),
    )


def predict_single_tokens(observation: Observation) -> Tensor:
    """Predict from single units: all other units of the text are removed.

    Args:
        observation: Model outputs and attention for a batch.

    Returns:
        Probabilities of the explained class given each unit alone, ``[batch, keys]``. The values at
        padding and special tokens have no meaning.
    """
    model = observation.model.require(EditableInputs)
    n_texts, n_keys = observation.batch.content_mask.shape
    # Row i of the identity matrix is a mask that only contains key i.
    single_units = torch.eye(n_keys, dtype=torch.bool, device=observation.probs.device)
    removed = ~single_units[:, None].expand(-1, n_texts, -1)
    probs = model.erase_inputs(observation, removed)
    return observation.compute_explained_probs(probs).t()
