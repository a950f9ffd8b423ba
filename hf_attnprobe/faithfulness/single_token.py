"""Can the model tell single tokens apart? Tutek & Šnajder 2020, Section 4.3.

Question: if a weight on a state is a statement about the token at its place, the states
          of different tokens should decide differently. Each token alone is the whole
          text: how far apart are the predictions?
Measure:  over the tokens of a text, each fed alone with the special tokens around it,
          the smallest and the largest probability of the class predicted for the whole
          text, their range and standard deviation.
Compare:  the same with states tied to their words, where the paper finds wide ranges,
          and narrow ones without.
Reading:  range near 0: any token gives the same answer; near 1: tokens speak for
          different classes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hf_attnprobe.faithfulness.options import SingleToken
from hf_attnprobe.faithfulness.registry import register_test
from hf_attnprobe.protocol import EditableInputs, Observation, Site


READINGS = {
    "lowest_probability": (
        "the token that speaks most against the prediction gives it {mean:.2f} {amount} when alone"
    ),
    "highest_probability": (
        "the token that speaks most for the prediction gives it {mean:.2f} {amount} when alone"
    ),
    "probability_range": (
        "what single tokens of a text give {said} lies {mean:.2f} {amount} apart"
    ),
    "probability_std": (
        "what single tokens give {said} has a standard deviation of {mean:.2f} {amount}"
    ),
}


@dataclass(frozen=True)
class SingleTokenResult:
    """Probabilities that single tokens give the class predicted for the whole text, all
    [batch].

    Range and standard deviation (over tokens, ddof 0) are NaN for a text of one token, and
    all are NaN for a text of none.
    """

    lowest_probability: Tensor
    highest_probability: Tensor
    probability_range: Tensor
    probability_std: Tensor


@register_test(
    readings=READINGS,
    does="lets each token be read alone",
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
    """Spread of the predicted class's probability over texts of one unit each.

    Each unit is fed as the only one of its text.

    Args:
        site, seed: unused; the input is edited, and nothing here is random.
    """
    observation = observation.explaining(options.target)
    content = observation.batch.content_mask
    probs = single_token_probs(observation)
    probs = torch.where(observation.side > 0, probs, 1 - probs)
    lowest = probs.masked_fill(~content, torch.inf).amin(-1)
    highest = probs.masked_fill(~content, -torch.inf).amax(-1)
    n_tokens = content.sum(-1)
    mean = (probs * content).sum(-1) / n_tokens
    std = (((probs - mean[:, None]).square() * content).sum(-1) / n_tokens).sqrt()
    some, several = n_tokens > 0, n_tokens > 1
    return SingleTokenResult(
        torch.where(some, lowest, torch.nan),
        torch.where(some, highest, torch.nan),
        torch.where(several, highest - lowest, torch.nan),
        torch.where(several, std, torch.nan),
    )


def single_token_probs(observation: Observation) -> Tensor:
    """Returns the probability of the explained class when each unit is the only one.

    Shape: [batch, keys], meaningful where ``content_mask`` is True.
    """
    model = observation.model.require(EditableInputs)
    n_texts, n_keys = observation.batch.content_mask.shape
    alone = torch.eye(n_keys, dtype=torch.bool, device=observation.probs.device)
    others = ~alone[:, None].expand(-1, n_texts, -1)
    probs = model.erase_inputs(observation, others)
    return observation.explained_probs(probs).t()
