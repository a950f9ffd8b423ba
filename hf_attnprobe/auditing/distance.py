"""Distance from the data of texts without some of their tokens.

Erased texts are unlike those that the model was trained on (Hase et al. 2021), and a
number that comes from them is to be seen beside how unlike they are.

The distance is MaSF, by which Madsen et al. (2023, Faithfulness Measurable Masked Language
Models) find out whether masked texts are in distribution. Max-Simes-Fisher: a text's
features are the largest values of its hidden states over its tokens. Each is placed among
those of reference texts, the places of a layer are joined by Simes' rule and the layers by
Fisher's, and each joint number is placed among those of held-out texts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hf_attnprobe import markdown
from hf_attnprobe.attention_model import HeadValues, Observation, Site
from hf_attnprobe.auditing.selection import half_of
from hf_attnprobe.auditing.sweep import Sweep
from hf_attnprobe.functional.intervention import random_generator
from hf_attnprobe.inference.batching import collate
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.statistics.estimates import Estimate, mean_estimate
from hf_attnprobe.statistics.grades import MIN_TEXTS


ERASED = 0.2  # the share of a text's units that are deleted
FAR = 0.05  # p from which on a text is far from the data
MOST_TEXTS = 300
FEWEST_HELD_OUT = 40  # of n texts the smallest p is 1 / (n + 1)
STREAM = 6
AT_ONCE = 32


@dataclass(frozen=True)
class Distance:
    """Shares of erased texts that are farther from the data than 95% of whole texts.

    Attributes:
        attention: without the fifth of their units that has most attention.
        random: without as many random units.
    """

    attention: Estimate
    random: Estimate

    def sentence(self) -> str:
        """States both shares with their intervals."""
        shares = [
            markdown.interval(e.value, e.ci95, digits=2) for e in (self.attention, self.random)
        ]
        return (
            "Distance: without the fifth of their tokens that has most attention, a share of "
            f"{shares[0]} of {self.attention.n} texts is farther from the data than 95% of whole "
            f"texts; without as many random tokens, {shares[1]}. Of whole texts it is .05 (MaSF, "
            "from hidden states)."
        )


def distance_of_erased(sweep: Sweep, site: Site) -> Distance | None:
    """Deletes tokens of some texts and measures how far the rest is from the other texts.

    None where units are sentences, the model shows no states, or texts are too few.
    """
    adapter = sweep.adapter
    if adapter.unit == "sentence" or adapter.lacks(HeadValues):
        return None
    sweep.clock.tests_end("the distance of erased texts from the data")
    texts = sorted(sweep.texts, key=lambda text: text.example_id)
    texts = [text for text in texts if text.n_content > 1][:MOST_TEXTS]
    texts = [Text(t.example_id, t.label, t.inputs) for t in texts]  # no rationales
    halves = [[t for t in texts if half_of(t.example_id) == half] for half in (0, 1)]
    if len(halves[0]) < 2 * FEWEST_HELD_OUT or len(halves[1]) < MIN_TEXTS:
        return None
    reference, held_out = np.array_split(_features(sweep, halves[0]), 2)
    pairs = [_erased(sweep, site, text) for text in halves[1]]
    shares = []
    for erased in zip(*pairs, strict=True):
        features = _features(sweep, erased)
        is_far = masf_p_values(reference, held_out, features) <= FAR
        shares.append(mean_estimate(is_far, share=True))
    return Distance(*shares)


def _observe(sweep: Sweep, texts: Sequence[Text]) -> Observation:
    return sweep.adapter.observe(collate(sweep.adapter, texts, sweep.pad_token_id))


def _features(sweep: Sweep, texts: Sequence[Text]) -> np.ndarray:
    """Largest value over a text's positions, [texts, layers, dimensions]."""
    parts = []
    for start in range(0, len(texts), AT_ONCE):
        observation = _observe(sweep, texts[start : start + AT_ONCE])
        real = observation.batch.mask[:, None, :, None]
        layers = [
            values.masked_fill(~real, -torch.inf).amax(2).flatten(1)
            for values in observation.head_values
        ]
        parts.append(torch.stack(layers, dim=1).double().cpu().numpy())
    return np.concatenate(parts)


def _erased(sweep: Sweep, site: Site, text: Text) -> tuple[Text, Text]:
    """Texts without a fifth of their units: those with most attention, and random ones.

    At least one goes, and one stays.
    """
    observation = _observe(sweep, [text])
    units = observation.batch.content_mask[0].nonzero()[:, 0].tolist()
    n_gone = min(len(units) - 1, max(1, math.ceil(ERASED * len(units))))
    weights = observation.read(site)[0].tolist()
    generator = random_generator(sweep.seed, text.example_id, STREAM)
    most = sorted(units, key=lambda unit: -weights[unit])[:n_gone]
    random = generator.permutation(units)[:n_gone].tolist()
    return _without(observation, text, most), _without(observation, text, random)


def _without(observation: Observation, text: Text, units: Sequence[int]) -> Text:
    """The text without the tokens of some units."""
    flags = torch.zeros_like(observation.batch.content_mask)
    flags[0, list(units)] = True
    erased = observation.model.positions(observation, 0, flags)[0].tolist()
    inputs = {
        name: [v for v, is_gone in zip(values, erased, strict=True) if not is_gone]
        for name, values in text.inputs.items()
    }
    return Text(text.example_id, text.label, inputs)


def masf_p_values(reference: np.ndarray, held_out: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """Probability that a text of the data is as far from the data as each of ``texts``.

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
    """Smallest p of a layer, corrected for its dimensions: [texts, layers]."""
    below = (reference[None] <= features[:, None]).sum(1)
    above = (reference[None] >= features[:, None]).sum(1)
    p = np.sort((np.minimum(below, above) + 1) / (len(reference) + 1), axis=-1)
    n_dimensions = p.shape[-1]
    return (p * n_dimensions / np.arange(1, n_dimensions + 1)).min(-1)


def _share_as_low(known: np.ndarray, values: np.ndarray, *, itself: int) -> np.ndarray:
    """Share of the known values [texts, layers] that are as low, the value itself included."""
    as_low = (known[None] <= values[:, None]).sum(1) - itself
    return (as_low + 1) / (len(known) + 1)


def _fisher(p: np.ndarray) -> np.ndarray:
    """−2 Σ ln p over layers, [texts]."""
    return -2 * np.log(p).sum(-1)
