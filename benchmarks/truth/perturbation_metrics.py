"""Published metrics that perturb words without deleting them, for constructed models.

The package deletes words, exchanges them, or erases attention weights. Three published metrics use
other perturbations: soft comprehensiveness and soft sufficiency scale word vectors, and ROAD and
SaCo replace words with an uninformative value. They are implemented here for the scoreboard, see
:mod:`benchmarks.truth.scoreboard`.

Notation: x is a text, y its predicted class, p(y | x) the probability of this class, and a_i the
attention weight of word i, which is the importance that is evaluated. All functions return one
value per text.

A word of a constructed model is a row of a table (see :mod:`benchmarks.truth.model`). Its *vector*
consists of the columns ``value`` and ``rest``, which contain what the word says for each class. The
other columns are its attention score, its four flags (``mark``, ``turn``, ``lock`` and
``summary``), and ``pull``, which is the same for all words of a text.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.truth.model import ConstructedModel
from hf_attnprobe.functional.erasure import compute_removal_rank
from hf_attnprobe.protocol import Batch, Observation, Site


VECTOR_COLUMNS = ("value", "rest")
"""Columns that contain what a word says for each class."""
FLAG_COLUMNS = ("mark", "turn", "lock", "summary")
"""Columns that are 0 or 1 for each word."""
N_SOFT_DRAWS = 16
"""Number of random masks over which the soft metrics are averaged."""
MIN_TOTAL_LOSS = 1e-6
"""Smallest loss of probability without any word vector for which the soft metrics are defined."""
ROAD_SHARES = tuple(tenth / 10 for tenth in range(1, 10))
"""Shares of replaced words in ROAD: 10%, 20%, ..., 90%."""
MAX_SACO_GROUPS = 10
"""Largest number of word groups for SaCo. Shorter texts have one word in each group."""


# --- Soft comprehensiveness and soft sufficiency ----------------------------------------------


def measure_soft_metrics(model: ConstructedModel, batch: Batch, *, seed: int) -> dict[str, Tensor]:
    """Measure soft normalised comprehensiveness and sufficiency.

    Zhao & Aletras 2023 (ACL, "Incorporating Attribution Importance for Improving Faithfulness
    Metrics", Section 3, Soft-NC and Soft-NS). Each element of a word vector is kept or set to 0 at
    random. The probability of keeping it is a_i for sufficiency and 1 - a_i for comprehensiveness.
    With the perturbed text x' and the text 0 whose word vectors are all 0::

        Soft-S(x') = 1 - max(0, p(y | x) - p(y | x'))
        Soft-C(x') = max(0, p(y | x) - p(y | x'))
        Soft-NS    = (Soft-S(x') - Soft-S(0)) / (1 - Soft-S(0))
        Soft-NC    = Soft-C(x') / (1 - Soft-S(0))

    Here, scores and flags of a word stay, so the perturbed text has the attention of the text. The
    results are clipped to [0, 1] and averaged over :data:`N_SOFT_DRAWS` masks.

    Args:
        model: Model that reads the texts.
        batch: Texts.
        seed: Seed for the masks.

    Returns:
        "comprehensiveness" (larger is more faithful) and "sufficiency" (larger is more faithful,
        unlike the sufficiency of DeYoung et al.), each ``[batch]``. NaN if the loss without any
        word vector is at most :data:`MIN_TOTAL_LOSS`.
    """
    observation = model.observe(batch)
    attention = observation.read(Site())
    generator = torch.Generator().manual_seed(seed)
    empty_masks = {name: torch.zeros_like(batch.inputs[name]) for name in VECTOR_COLUMNS}
    total_loss = _measure_positive_loss(observation, _mask_vectors(batch, empty_masks))
    is_defined = total_loss > MIN_TOTAL_LOSS
    keep_probabilities = {"comprehensiveness": 1 - attention, "sufficiency": attention}
    results = {}
    for metric, keep_probability in keep_probabilities.items():
        scores = []
        for _ in range(N_SOFT_DRAWS):
            masks = draw_vector_masks(batch, keep_probability, generator)
            loss = _measure_positive_loss(observation, _mask_vectors(batch, masks))
            lost_share = (loss / total_loss).clamp(0, 1)
            # (Soft-S(x') - Soft-S(0)) / (1 - Soft-S(0)) is 1 minus the share of the total loss.
            scores.append(lost_share if metric == "comprehensiveness" else 1 - lost_share)
        results[metric] = torch.stack(scores).mean(0).masked_fill(~is_defined, torch.nan)
    return results


def draw_vector_masks(
    batch: Batch, keep_probability: Tensor, generator: torch.Generator
) -> dict[str, Tensor]:
    """Draw a mask of 0 and 1 for each element of each word vector.

    Args:
        batch: Texts.
        keep_probability: Probability of 1 for the elements of each word, ``[batch, words]``.
        generator: Source of random numbers.

    Returns:
        Masks ``[batch, words, classes]`` by column.
    """
    masks = {}
    for name in VECTOR_COLUMNS:
        vectors = batch.inputs[name]
        uniform = torch.rand(vectors.shape, dtype=torch.float64, generator=generator)
        masks[name] = (uniform < keep_probability[..., None]).to(vectors.dtype)
    return masks


def _mask_vectors(batch: Batch, masks: Mapping[str, Tensor]) -> Batch:
    """Multiply the word vectors by masks."""
    masked_columns = {name: batch.inputs[name] * mask for name, mask in masks.items()}
    return replace(batch, inputs={**batch.inputs, **masked_columns})


def _measure_positive_loss(observation: Observation, perturbed: Batch) -> Tensor:
    """Measure max(0, p(y | x) - p(y | x')), ``[batch]``."""
    return measure_loss(observation, perturbed).clamp_min(0)


def measure_loss(observation: Observation, perturbed: Batch) -> Tensor:
    """Measure how much probability the predicted class loses: p(y | x) - p(y | x').

    Args:
        observation: Model outputs for the original texts.
        perturbed: Perturbed texts.

    Returns:
        Losses ``[batch]`` in [-1, 1].
    """
    predicted = observation.probs.argmax(-1, keepdim=True)
    perturbed_probs = observation.model.observe(perturbed).probs
    return (observation.probs - perturbed_probs).gather(-1, predicted)[:, 0]


# --- Replacement by the mean ordinary word -----------------------------------------------------


def compute_mean_word(model: ConstructedModel, batch: Batch) -> dict[str, Tensor]:
    """Compute the mean ordinary word of all texts.

    Ordinary words are those with at most the attention that every word would have under uniform
    attention. No knowledge about the construction of a text is used.

    Args:
        model: Model that reads the texts.
        batch: Texts.

    Returns:
        The mean of each column over all ordinary words in all texts. The mean flags are rounded to
        0 or 1, because a formula is only defined for these. ``pull`` is not included.
    """
    attention = model.observe(batch).read(Site())
    even_share = 1 / batch.mask.sum(-1, keepdim=True)
    is_ordinary = batch.mask & (attention <= even_share * (1 + 1e-9))
    mean_word = {}
    for name in ("score", *VECTOR_COLUMNS, *FLAG_COLUMNS):
        mean = batch.inputs[name][is_ordinary].double().mean(0)
        mean_word[name] = mean.round() if name in FLAG_COLUMNS else mean
    return mean_word


def replace_words(batch: Batch, is_replaced: Tensor, mean_word: Mapping[str, Tensor]) -> Batch:
    """Replace words with the mean ordinary word. They keep their positions.

    Args:
        batch: Texts.
        is_replaced: Words to be replaced, bool ``[batch, words]``.
        mean_word: Result of :func:`compute_mean_word`.
    """
    inputs = dict(batch.inputs)
    for name, mean in mean_word.items():
        column = inputs[name]
        mask = is_replaced if column.dim() == 2 else is_replaced[..., None]
        inputs[name] = torch.where(mask, mean.to(column.dtype), column)
    return replace(batch, inputs=inputs)


# --- ROAD --------------------------------------------------------------------------------------


def measure_road(model: ConstructedModel, batch: Batch) -> Tensor:
    """Measure ROAD (Remove and Debias): accuracy if the most attended words are replaced.

    Rong et al. 2022 (ICML, "A Consistent and Efficient Evaluation Strategy for Attribution
    Methods", Section 4; the order MoRF, most relevant first)::

        ROAD = mean over s = 10%, 20%, ..., 90% of 1[argmax p(. | x_s) = label]

    x_s is the text in which the share s of the words with the most attention is imputed. A faithful
    order makes the accuracy fall quickly, so a smaller value is more faithful.

    The paper imputes pixels linearly from their neighbours and adds noise. Words have no such
    neighbourhood, so here a word becomes the mean ordinary word (:func:`compute_mean_word`) without
    noise. The number of replaced words is s times the text length, rounded, and at least 1.

    Args:
        model: Model that reads the texts.
        batch: Texts with labels.

    Returns:
        Mean over the shares s, ``[batch]`` in [0, 1].
    """
    attention = model.observe(batch).read(Site())
    mean_word = compute_mean_word(model, batch)
    steps = compute_removal_rank(attention, batch.mask)
    n_words = batch.mask.sum(-1, keepdim=True)
    is_right = []
    for share in ROAD_SHARES:
        n_replaced = (share * n_words).round().clamp_min(1)
        perturbed = replace_words(batch, batch.mask & (steps < n_replaced), mean_word)
        is_right.append(model.observe(perturbed).probs.argmax(-1) == batch.labels)
    return torch.stack(is_right).double().mean(0)


# --- SaCo --------------------------------------------------------------------------------------


def measure_saco(model: ConstructedModel, batch: Batch) -> Tensor:
    """Measure SaCo, the salience-guided faithfulness coefficient.

    Wu et al. 2024 (CVPR, "On the Faithfulness of Vision Transformer Explanations", Section 3,
    Algorithm 1). The words are sorted by attention and split into groups G_1, ..., G_K of equal
    size. s(G) is the sum of the attention in a group, and d(G) the loss of probability if only this
    group is perturbed. For each pair of groups i < j::

        w_ij = s(G_i) - s(G_j)      if d(G_i) >= d(G_j), else -(s(G_i) - s(G_j))
        SaCo = sum w_ij / sum |w_ij|

    The paper uses K = 10 groups and replaces pixels with the mean of the image. Here, K is at most
    10 and at most the number of words. Groups differ by at most one word, and the first groups are
    the larger ones. A perturbed word becomes the mean ordinary word (:func:`compute_mean_word`),
    because the mean of a text with ten words would still contain a tenth of the deciding word.

    Args:
        model: Model that reads the texts.
        batch: Texts.

    Returns:
        Coefficients ``[batch]`` in [-1, 1], larger is more faithful. NaN if all groups have the
        same attention.
    """
    observation = model.observe(batch)
    attention = observation.read(Site())
    mean_word = compute_mean_word(model, batch)
    groups = group_words(attention, batch.mask)
    n_groups = batch.mask.sum(-1).clamp_max(MAX_SACO_GROUPS)
    saliences, losses = [], []
    for group in range(MAX_SACO_GROUPS):
        is_perturbed = groups == group
        saliences.append((attention * is_perturbed).sum(-1))
        losses.append(measure_loss(observation, replace_words(batch, is_perturbed, mean_word)))
    total = torch.zeros(len(attention), dtype=torch.float64)
    total_weight = torch.zeros_like(total)
    for first in range(MAX_SACO_GROUPS):
        for second in range(first + 1, MAX_SACO_GROUPS):
            difference = (saliences[first] - saliences[second]).masked_fill(second >= n_groups, 0)
            is_consistent = losses[first] >= losses[second]
            total += torch.where(is_consistent, difference, -difference)
            total_weight += difference.abs()
    return (total / total_weight).masked_fill(total_weight <= 1e-12, torch.nan)


def group_words(attention: Tensor, mask: Tensor) -> Tensor:
    """Split the words of each text into groups of equal size, the most attended words first.

    Args:
        attention: Attention weights ``[batch, words]``.
        mask: Whether there is a word, bool ``[batch, words]``.

    Returns:
        Group numbers ``[batch, words]`` from 0; -1 if there is no word. There are at most
        :data:`MAX_SACO_GROUPS` groups.
    """
    rank = compute_removal_rank(attention, mask)
    n_words = mask.sum(-1, keepdim=True)
    n_groups = n_words.clamp_max(MAX_SACO_GROUPS)
    small_size = n_words // n_groups
    n_large = n_words % n_groups
    # The first n_large groups have one more word than the other groups.
    n_words_in_large = n_large * (small_size + 1)
    group_if_large = rank // (small_size + 1)
    group_if_small = n_large + (rank - n_words_in_large) // small_size
    group = torch.where(rank < n_words_in_large, group_if_large, group_if_small)
    return group.masked_fill(~mask, -1)
