"""Which parts of speech get the attention? Mohankumar et al. 2020, Section 5.4.

Question: does attention lie on the kinds of words that carry the task, or on
          punctuation and function words?
Measure:  by tag, the share of a text's attention that its words have, and their share of
          its tokens; both 0 in a text without such words.
Compare:  the two shares: even attention gives a tag its share of the tokens.
          ``attention_above_share`` is the first minus the second.
Reading:  above 0 the tag gets more attention than its words' number would give it. It says
          nothing of what those words do to the output.

Tags come with the data, in a column ``word_tags`` with one tag per word that white space
separates; :func:`hf_attnprobe.data.labels.tag_words` adds it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hf_attnprobe.attention_model import Observation, Site
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.faithfulness.options import NoOptions
from hf_attnprobe.faithfulness.registry import AuditPreview, register_test
from hf_attnprobe.functional.intervention import normalise
from hf_attnprobe.readings import TestReadings, share


READINGS: TestReadings = {
    "attention_share": share("words tagged {key} get {mean:.1%} of a text's attention"),
    "token_share": share("words tagged {key} are {mean:.1%} of a text's tokens"),
    "attention_above_share": (
        "the share of attention of words tagged {key} is {mean:+.3f} above their share "
        "of the tokens"
    ),
}


@dataclass(frozen=True)
class AttentionByTagResult:
    """Results by tag, all [batch]; shares are in [0, 1].

    Without words that have no tag they add up to 1, over all tags of the data.
    """

    attention_share: Mapping[str, Tensor]
    token_share: Mapping[str, Tensor]
    attention_above_share: Mapping[str, Tensor]


def _check(preview: AuditPreview, options: NoOptions) -> None:
    if not preview.shortest.batch.tags:
        raise AttnProbeError(
            "expected tags of words for the test attention_by_tag, found none that a "
            "fast tokenizer could place in what the model attends to; give the data a "
            "column 'word_tags' with one tag per word (hf_attnprobe.data.labels."
            "tag_words adds one), or leave the test out"
        )


@register_test(
    readings=READINGS,
    does="counts which kinds of words get the attention",
    default="on request",
    groups=True,
    check=_check,
)
@torch.no_grad()
def attention_by_tag(
    observation: Observation,
    site: Site,
    options: NoOptions = NoOptions(),
    *,
    seed: int = 0,
) -> AttentionByTagResult:
    """Shares of the attention of ``site`` by the tags of words.

    Args:
        seed: unused, nothing here is random.
    """
    content = observation.batch.content_mask
    attention = normalise(observation.read(site).double() * content)
    n_tokens = content.sum(-1).double()
    shares, tokens = {}, {}
    for tag, tagged in (observation.batch.tags or {}).items():
        shares[tag] = (attention * tagged).sum(-1)
        tokens[tag] = (tagged & content).sum(-1) / n_tokens
    above = {tag: share - tokens[tag] for tag, share in shares.items()}
    return AttentionByTagResult(shares, tokens, above)
