"""How much of the texts a tokenizer does not know."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.inference.images import ImageReader


MOST_UNKNOWN = 0.5
"""Share of unknown tokens beyond which texts are not audited."""

WORTH_SAYING = 0.1
"""Share beyond which a report says it."""


def unknown_share(texts: Sequence[Text], tokenizer: PreTrainedTokenizerBase | ImageReader) -> float:
    """The share, from 0 to 1, of the content tokens that are the unknown token.

    Raises:
        AttnProbeError: more than half of them.
    """
    if isinstance(tokenizer, ImageReader):
        return 0.0
    unknown = tokenizer.unk_token_id
    is_end = unknown in (tokenizer.bos_token_id, tokenizer.eos_token_id)
    if unknown is None or is_end:  # byte by byte, as GPT-2: nothing is unknown
        return 0.0
    n_unknown, n_tokens = 0, 0
    for ids, special in (sequence for text in texts for sequence in text.sequences):
        for token, is_special in zip(ids, special, strict=True):
            n_unknown += token == unknown
            n_tokens += token == unknown or not is_special
    share = n_unknown / n_tokens if n_tokens else 0.0
    if share > MOST_UNKNOWN:
        raise AttnProbeError(
            f"expected texts in words that the tokenizer knows, {share:.0%} of their "
            f"tokens are {tokenizer.unk_token}; load the tokenizer saved with the model, "
            "or audit it on texts like those it was trained on"
        )
    return share


def unknown_note(share: float) -> str | None:
    """What a report says about unknown tokens; None where they are few."""
    if share <= WORTH_SAYING:
        return None
    return (
        f"The tokenizer does not know {share:.0%} of the tokens of these texts: what the "
        "model says there it says of the unknown token."
    )
