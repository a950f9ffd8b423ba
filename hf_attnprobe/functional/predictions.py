"""Predictions of any type as one vector per text, so that all faithfulness tests can compare them.

A prediction consists of *parts*, and each part is a decision among *outcomes*. A predicted class is
a single part. A text with several labels has one part per label, an extracted answer has two parts
(start and end), and a tagged text has one part per word.

The prediction vector contains each outcome's probability in each part, divided by the number of parts.
It therefore sums to 1 like a single distribution. The total variation distance between two vectors is
the mean distance over the parts, so tests do not need to know how many parts there are.

A predicted number y is represented by the pair (y − o, o − y) / scale, with an origin o. The total
variation distance is then the change in y, in units of ``scale``. The larger entry indicates on which
side of o the number is.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hf_attnprobe.functional.divergence import compute_shifted_probability, tvd


STANDARD_PROBABILITY = 0.95
"""Median probability of the predicted class after a model's logits are scaled to the standard
temperature, at which models are compared."""
MAX_SHARPNESS = 1e9
"""Largest factor on the logits that the search for the standard temperature tries."""
SEARCH_STEPS = 60
"""Number of times the search interval is halved, which leaves a relative error of about 4e-17."""


def _safe_log(probs: Tensor) -> Tensor:
    """Compute ln p; a probability of 0 is replaced by the smallest positive float."""
    return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()


@dataclass(frozen=True)
class Prediction:
    """Description of a prediction vector, [..., parts · outcomes].

    For example, with the labels "joy" and "fear" there are two parts, one for each label. Each part
    has the outcomes "no" and "yes". A classifier has one part, whose outcomes are the classes.

    Attributes:
        kind: "classes", "labels", "number", "tags", "span", "choice" or "words".
        name: description of the prediction for reports.
        outcomes: outcome names, such as class names; empty if outcomes have no names.
        parts: part names, such as label names; empty if parts have no names.
        n_parts: number of parts; None if it differs between texts.
        n_outcomes: number of outcomes per part; None if it differs between texts.
        decides: whether there is a decision that can flip. This is False for a number without a
            threshold.
        scale: unit in which changes in a number are measured.
        origin: origin of a number, which is the decision threshold if there is one.
        has_rest: whether the last outcome combines many unlikely outcomes. It is never the
            decision.
    """

    kind: str
    name: str
    outcomes: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    n_parts: int | None = 1
    n_outcomes: int | None = None
    decides: bool = True
    scale: float = 1.0
    origin: float = 0.0
    has_rest: bool = False

    @property
    def is_number(self) -> bool:
        """Whether the prediction is a number, or several numbers."""
        return self.kind == "number"

    @property
    def has_one_part(self) -> bool:
        """Whether every text has exactly one part."""
        return self.n_parts == 1

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names by which reports group texts, such as class names; empty without a decision."""
        return self.outcomes if self.has_one_part and self.decides else ()

    @property
    def target_names(self) -> tuple[str, ...]:
        """Names of the classes or labels that a test can explain; empty if there are none."""
        if self.kind == "labels":
            return self.parts
        if self.has_one_part and not self.is_number:
            return self.outcomes
        return ()

    def group_by_part(self, probs: Tensor) -> Tensor:
        """Convert prediction vectors to one distribution per part.

        Args:
            probs: prediction vectors, [..., parts · outcomes].

        Returns:
            Distributions, [..., parts, outcomes]; parts that a text does not have are 0.
        """
        if self.n_parts is None:
            parts = probs.unflatten(-1, (-1, self.n_outcomes or 1))
            is_present = parts.sum(-1) > 0
            n_present = is_present.sum(-1).clamp_min(1)
            return parts * n_present[..., None, None]
        parts = probs.unflatten(-1, (self.n_parts, -1))
        if self.has_one_part:
            return parts
        return parts * self.n_parts

    def compute_standard_sharpness(self, probs: Tensor) -> float | None:
        """Compute the factor on all logits that makes the median top probability .95.

        This defines the standard temperature, at which models are compared. The top probability is
        that of the predicted outcome, averaged over the parts. It is .95 regardless of the number
        of classes. For a number, the factor makes its standard deviation 1.

        Args:
            probs: prediction vectors for a sample of texts, [texts, entries].

        Returns:
            The factor; None if there is none, because all texts have the same number, or because
            the most probable outcomes are tied in most of the texts.

        Raises:
            ValueError: all probabilities but one are rounded to 0 in some text, so that its margin
                is unknown. This happens for margins above 103 nats in float32, and above 745 nats
                in float64.

        In this example, the margins of three texts are 1, 2 and 4 nats. The median text gets the
        margin ln 19, because its probability is then 19/20. The factor is ln(19) / 2 = 1.47:

        >>> probs = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 4.0]]).softmax(-1)
        >>> round(Prediction("classes", "").compute_standard_sharpness(probs), 2)
        1.47
        """
        if self.is_number:
            numbers = probs[:, 0].double()
            standard_deviation = numbers.std(correction=0)
            return float(1 / standard_deviation) if standard_deviation > 0 else None
        grouped = self.group_by_part(probs).double()
        is_present = grouped.sum(-1) > 0
        runner_up = grouped.topk(2, dim=-1).values[..., 1].masked_fill(~is_present, 1)
        n_saturated = int((runner_up == 0).any(-1).sum())
        # A text can have a single possible answer or choice, whose probability is 1.
        if n_saturated and self.kind in ("classes", "labels"):
            raise ValueError(
                f"all probabilities but one are rounded to 0 in {n_saturated} of {len(probs)} texts"
            )
        # The function increases, so its root is found by halving the interval of the logarithm.
        low, high = -math.log(MAX_SHARPNESS), math.log(MAX_SHARPNESS)
        if self._compute_median_top_probability(probs, math.exp(high)) < STANDARD_PROBABILITY:
            return None
        for _ in range(SEARCH_STEPS):
            middle = (low + high) / 2
            top = self._compute_median_top_probability(probs, math.exp(middle))
            if top < STANDARD_PROBABILITY:
                low = middle
            else:
                high = middle
        return math.exp(high)

    def _compute_median_top_probability(self, probs: Tensor, sharpness: float) -> float:
        """Compute the median over texts of the largest probability, averaged over the parts."""
        grouped = self.group_by_part(self.sharpen(probs, sharpness))
        is_present = grouped.sum(-1) > 0
        top = (grouped.amax(-1) * is_present).sum(-1) / is_present.sum(-1)
        return float(top.quantile(0.5))

    def compute_decision_margins(self, probs: Tensor, decisions: Tensor) -> Tensor:
        """Compute by how much given outcomes are more probable than the best other outcome.

        Args:
            probs: prediction vectors, [..., batch, entries].
            decisions: outcome indices, int64 [batch, parts]; see :meth:`decide`.

        Returns:
            Differences of log-probabilities in nats, averaged over the parts, float64 [..., batch].
            Negative if another outcome is more probable.
        """
        grouped = self.group_by_part(probs).double()
        is_present = grouped.sum(-1) > 0
        log_probs = _safe_log(grouped)
        is_decided = torch.nn.functional.one_hot(decisions, grouped.shape[-1]).bool()
        is_decided = is_decided.expand(log_probs.shape)
        decided = log_probs.masked_fill(~is_decided, -torch.inf).amax(-1)
        best_other = log_probs.masked_fill(is_decided, -torch.inf).amax(-1)
        margins = (decided - best_other).masked_fill(~is_present, 0)
        return margins.sum(-1) / is_present.sum(-1)

    def sharpen(self, probs: Tensor, sharpness: float) -> Tensor:
        """Change the temperature of predictions, by multiplying all logits by a factor.

        Each part becomes softmax(sharpness · log p), because logits equal log p up to a constant.
        A predicted number is simply multiplied by the factor.

        Args:
            probs: prediction vectors, [..., entries].
            sharpness: factor on the logits, the inverse of the temperature.

        Returns:
            Prediction vectors, float64 [..., entries].
        """
        if self.is_number:
            return probs.double() * sharpness
        grouped = self.group_by_part(probs).double()
        is_present = grouped.sum(-1, keepdim=True) > 0
        log_probs = _safe_log(grouped)
        if self.kind in ("choice", "span"):
            # Outcomes that a text does not have must keep probability 0.
            log_probs = log_probs.masked_fill(grouped == 0, -torch.inf)
        log_probs = log_probs.masked_fill(~is_present, 0)
        sharpened = (sharpness * log_probs).softmax(-1) * is_present
        n_present = is_present.sum(-2, keepdim=True).clamp_min(1)
        return (sharpened / n_present).flatten(-2)

    def decide(self, probs: Tensor) -> Tensor:
        """Find the most probable outcome in each part.

        Args:
            probs: prediction vectors, [..., entries].

        Returns:
            Outcome indices, int64 [..., parts].
        """
        grouped = self.group_by_part(probs)
        if self.has_rest:
            grouped = grouped[..., :-1]
        return grouped.argmax(-1)

    def count_targets(self, probs: Tensor) -> int:
        """Count the classes or labels that a test can explain.

        Args:
            probs: prediction vectors, [..., entries].

        Returns:
            Number of classes, labels or choices.
        """
        if self.kind == "choice":
            return probs.shape[-1]
        return len(self.target_names)

    def has_flipped(self, before: Tensor, after: Tensor, target: int | None = None) -> Tensor:
        """Check whether the decision of any part differs between two predictions.

        Args:
            before: prediction vectors, [..., entries].
            after: prediction vectors, [..., entries].
            target: index of a class or label. If given, the decision is only whether this class
                or label is predicted; a change between two other classes does not count.

        Returns:
            bool [...].
        """
        if target is None:
            return (self.decide(before) != self.decide(after)).any(-1)
        return self.is_target_predicted(before, target) != self.is_target_predicted(after, target)

    def is_target_predicted(self, probs: Tensor, target: int | None) -> Tensor:
        """Check whether a given class or label is predicted.

        Args:
            probs: prediction vectors, [..., entries].
            target: index of a class or label; with None, the result is True for all texts.

        Returns:
            bool [...].
        """
        if target is None:
            return torch.ones_like(probs[..., 0], dtype=torch.bool)
        decisions = self.decide(probs)
        if self.kind == "labels":
            return decisions[..., target] == 1
        return decisions[..., 0] == target

    def select_explained_entries(self, probs: Tensor, target: int | None = None) -> Tensor:
        """Find the entries of a prediction vector that a test explains.

        By default, these are the probabilities of the decisions. With a target, it is the
        probability of this class or label.

        Args:
            probs: prediction vectors, [batch, parts · outcomes].
            target: index of a class or label; None selects the decision in each part.

        Returns:
            Indices into the prediction vector, int64 [batch], or [batch, parts] if there are
            several parts. The tests explain the sum of these entries.
        """
        if target is not None:
            # Each label has two entries, "no" and "yes"; the second one is explained.
            entry = 2 * target + 1 if self.kind == "labels" else target
            return torch.full_like(probs[:, 0], entry, dtype=torch.long)
        decisions = self.decide(probs)
        n_parts = decisions.shape[-1]
        n_outcomes = probs.shape[-1] // n_parts
        part_offsets = torch.arange(n_parts, device=probs.device) * n_outcomes
        entries = decisions + part_offsets
        return entries[:, 0] if self.has_one_part else entries

    def compute_part_distances(self, before: Tensor, after: Tensor) -> Tensor:
        """Compute the total variation distance between two predictions for each part.

        Args:
            before: prediction vectors, [..., entries].
            after: prediction vectors, [..., entries].

        Returns:
            Distances in [0, 1], [..., parts]; for a number, its change in units of ``scale``.
        """
        return tvd(self.group_by_part(before), self.group_by_part(after))

    def compute_distance(self, before: Tensor, after: Tensor) -> Tensor:
        """Compute the mean distance over the parts without loss of precision.

        If a model is confident, the largest probability is near 1, where floats are coarse. Its
        change is therefore computed from the probabilities of all other outcomes; see
        :func:`~hf_attnprobe.functional.divergence.compute_shifted_probability`.

        Args:
            before: prediction vectors, [batch, entries].
            after: prediction vectors, [batch, keys, entries].

        Returns:
            Mean total variation distances, [batch, keys].
        """
        probs_after = self.group_by_part(after)
        probs_before = self.group_by_part(before)[:, None]
        decisions = probs_before.argmax(-1).expand(probs_after.shape[:-1])
        n_outcomes = probs_after.shape[-1]
        is_decided = torch.nn.functional.one_hot(decisions, n_outcomes).bool()
        probs_before = probs_before.expand_as(probs_after)
        decided_prob = probs_before.masked_fill(~is_decided, 0).sum(-1)
        is_large = decided_prob > 0.5
        shifted_before = compute_shifted_probability(probs_before, decisions, is_large)
        shifted_after = compute_shifted_probability(probs_after, decisions, is_large)
        decided_change = (shifted_after - shifted_before).abs()
        other_changes = (probs_after - probs_before).abs().masked_fill(is_decided, 0)
        part_distances = (decided_change + other_changes.sum(-1)) / 2
        total = part_distances.sum(-1)
        if self.n_parts is not None:
            return total / self.n_parts
        is_present = probs_before.sum(-1) != 0
        return total / is_present.sum(-1)

    def compute_accuracy(self, probs: Tensor, labels: Tensor) -> Tensor:
        """Compute each text's accuracy: the share of labelled parts that are predicted correctly.

        Args:
            probs: prediction vectors, [..., batch, entries].
            labels: int [batch] or [batch, parts], −1 for a part without a label. For numbers:
                float, NaN for a part without a label.

        Returns:
            Accuracies in [0, 1], float64 [..., batch]; NaN for a text without labels.
        """
        decisions = self.decide(probs)
        labels = labels.to(probs.device)
        if self.is_number:
            # Outcome 0 is a number above the origin, and outcome 1 is any other number.
            true_outcome = (labels <= self.origin).long()
            labels = true_outcome.where(~labels.isnan(), -1)
        labels = labels[:, None] if labels.dim() == 1 else labels
        is_labelled = labels >= 0
        is_correct = (decisions == labels) & is_labelled
        accuracy = is_correct.sum(-1).double() / is_labelled.sum(-1)
        return accuracy.where(is_labelled.any(-1), torch.nan)

    def decode_number(self, probs: Tensor) -> Tensor:
        """Convert prediction vectors back to the predicted numbers.

        Args:
            probs: prediction vectors, [..., entries].

        Returns:
            Numbers in the unit of the labels, [..., parts].
        """
        return self.group_by_part(probs)[..., 0] * self.scale + self.origin


def list_label_names(names: Mapping[Any, str] | None) -> list[str]:
    """Convert ``id2label`` from a model configuration to a list, sorted by id.

    Args:
        names: label names by id; ids can be numbers or strings.

    Returns:
        Label names; empty for None.

    Raises:
        ValueError: an id is not a number.

    >>> list_label_names({"10": "emu", "9": "dog"})
    ['dog', 'emu']
    """
    names = names or {}
    return [str(names[label_id]) for label_id in sorted(names, key=int)]


def make_class_prediction(names: tuple[str, ...] | list[str]) -> Prediction:
    """Create the description of a prediction that chooses one of several classes.

    Args:
        names: class names.

    Returns:
        A prediction with one part and one outcome per class.
    """
    names = tuple(map(str, names))
    return Prediction("classes", f"one of {len(names)} classes", outcomes=names)


def make_label_prediction(names: tuple[str, ...] | list[str]) -> Prediction:
    """Create the description of a multi-label prediction, in which each label may apply or not.

    Args:
        names: label names.

    Returns:
        A prediction with one part per label and the outcomes "no" and "yes".
    """
    names = tuple(map(str, names))
    return Prediction(
        "labels",
        f"{len(names)} labels, each of which may hold",
        outcomes=("no", "yes"),
        parts=names,
        n_parts=len(names),
        n_outcomes=2,
    )


def make_number_prediction(
    *, scale: float = 1.0, threshold: float | None = None, n_parts: int = 1
) -> Prediction:
    """Create the description of a predicted number, or of several predicted numbers.

    Args:
        scale: unit in which changes are measured, such as the labels' standard deviation.
        threshold: number at which the decision changes. Without it there is no decision.
        n_parts: how many numbers are predicted.

    Returns:
        A prediction with one part per number.
    """
    sides: tuple[str, ...] = ()
    if threshold is not None:
        sides = (f"above {threshold:g}", f"{threshold:g} or below")
    return Prediction(
        "number",
        "a number" if n_parts == 1 else f"{n_parts} numbers",
        outcomes=sides,
        n_parts=n_parts,
        n_outcomes=2,
        decides=threshold is not None,
        scale=scale,
        origin=threshold or 0.0,
    )


def sum_entries(probs: Tensor, entries: Tensor) -> Tensor:
    """Add up the probabilities at given entries of prediction vectors.

    Args:
        probs: prediction vectors, [..., batch, entries].
        entries: indices of the entries to sum, int64 [batch] or [batch, parts], from
            :meth:`Prediction.select_explained_entries`.

    Returns:
        Sums, [..., batch].
    """
    entries = entries[:, None] if entries.dim() == 1 else entries
    return probs.gather(-1, entries.expand(*probs.shape[:-1], -1)).sum(-1)
