"""How far texts are from others: MaSF, as Madsen et al. (2023, Faithfulness Measurable
Masked Language Models) use it to find out whether masked texts are in distribution.

Max-Simes-Fisher: a text's features are the largest values of its hidden states over its
tokens. Each is placed among those of reference texts, the places of a layer are joined
by Simes' rule and the layers by Fisher's, and each joint number is placed among those of
held-out texts. Pure numpy.
"""

import numpy as np


def masf_p_values(reference: np.ndarray, held_out: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """How likely a text of the data is as far from the data as each of ``texts``.

    Args:
        reference: features [texts, layers, dimensions] that places are taken from.
        held_out: of other texts of the data, [texts, layers, dimensions].
        texts: of the texts in question, [texts, layers, dimensions].

    Returns:
        [texts], in (0, 1]; uniform for further texts of the data.
    """
    theirs = _simes(reference, held_out)
    ours = _simes(reference, texts)
    own = _fisher(_share_as_low(theirs, theirs, itself=1))
    new = _fisher(_share_as_low(theirs, ours, itself=0))
    as_far = (own[None] >= new[:, None]).sum(1)
    return (as_far + 1) / (len(own) + 1)


def _simes(reference: np.ndarray, features: np.ndarray) -> np.ndarray:
    """The smallest p of a layer, corrected for its dimensions: [texts, layers]."""
    below = (reference[None] <= features[:, None]).sum(1)
    above = (reference[None] >= features[:, None]).sum(1)
    p = np.sort((np.minimum(below, above) + 1) / (len(reference) + 1), axis=-1)
    n_dimensions = p.shape[-1]
    return (p * n_dimensions / np.arange(1, n_dimensions + 1)).min(-1)


def _share_as_low(known: np.ndarray, values: np.ndarray, *, itself: int) -> np.ndarray:
    """Share of the known values [texts, layers] that are as low, with the value itself."""
    as_low = (known[None] <= values[:, None]).sum(1) - itself
    return (as_low + 1) / (len(known) + 1)


def _fisher(p: np.ndarray) -> np.ndarray:
    """−2 Σ ln p over layers, [texts]."""
    return -2 * np.log(p).sum(-1)
