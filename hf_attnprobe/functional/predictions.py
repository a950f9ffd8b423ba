"""Predictions as one vector per text, which all tests compare.

A prediction has *parts*, each a decision among *outcomes*: one part for a class, a part
per label where several may hold, start and end for an answer in a text, a part per word
that is tagged. The vector has the probability of every outcome of every part, divided by
the number of parts: what one part, drawn at random, says. So it sums to 1, its total
variation distance is the mean of the parts' distances, and no test need know how many
parts there are.

A number y is the pair (y − o, o − y) / scale: half of the pair's L1 change is the change
of y in units of the scale, and its sign says on which side of o it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hf_attnprobe.functional.divergence import small_side, tvd


STANDARD_LEAD = 3.0
"""Nats by which what is predicted leads at the standard temperature: p = .95 of two classes."""


def _log(probs: Tensor) -> Tensor:
    return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()


@dataclass(frozen=True)
class Prediction:
    """The meaning of the entries of a prediction vector [..., parts · outcomes].

    Attributes:
        kind: "classes", "labels", "number", "tags", "span", "choice" or "words".
        name: in words, for reports.
        outcomes: names of a part's outcomes; empty where they have none.
        parts: names of the parts; empty where there is one, or they have none.
        n_parts: None where texts differ in it.
        n_outcomes: None where texts differ in it.
        decides: whether there are decisions that may flip; not for a number without a
            threshold.
        scale, origin: of a number.
        has_rest: whether the last outcome stands for many, and is never decided for.
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
        return self.kind == "number"

    @property
    def has_one_part(self) -> bool:
        return self.n_parts == 1

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the decisions, by which texts are grouped; empty where nothing is decided."""
        return self.outcomes if self.has_one_part and self.decides else ()

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the classes or labels that a test can be asked to explain."""
        if self.kind == "labels":
            return self.parts
        return self.outcomes if self.has_one_part and not self.is_number else ()

    def grouped(self, probs: Tensor) -> Tensor:
        """Returns a vector as distributions [..., parts, outcomes]; absent parts are all 0."""
        if self.n_parts is None:
            parts = probs.unflatten(-1, (-1, self.n_outcomes or 1))
            is_present = parts.sum(-1) > 0
            n_present = is_present.sum(-1).clamp_min(1)
            return parts * n_present[..., None, None]
        parts = probs.unflatten(-1, (self.n_parts, -1))
        if self.has_one_part:
            return parts
        return parts * self.n_parts

    def leads(self, probs: Tensor) -> Tensor:
        """Returns how far what is decided lies before the next outcome, mean over parts.

        Shape: [batch, entries] -> [batch], in nats of log-odds.
        """
        grouped = self.grouped(probs).double()
        present = grouped.sum(-1) > 0
        two, _ = grouped.topk(2, dim=-1)
        likeliest, next_one = _log(two).unbind(-1)
        lead = likeliest - next_one
        lead = lead * present
        return lead.sum(-1) / present.sum(-1)

    def standard_sharpness(self, probs: Tensor) -> float:
        """Returns the factor on all logits with which the median lead is the standard one.

        Of a number the factor with which its standard deviation is 1; 1 where all texts are
        alike, or nothing leads.

        Args:
            probs: of a sample of texts, [texts, entries].

        >>> certain = torch.tensor([[1.0, 9.0], [3.0, 1.0]]).log().softmax(-1)
        >>> round(Prediction("classes", "").standard_sharpness(certain), 2)  # 3 / ((ln 9 + ln 3) / 2)
        1.82
        """
        if self.is_number:
            numbers = probs[:, 0].double()
            spread = numbers.std(correction=0)
            return float(1 / spread) if spread > 0 else 1.0
        median = float(self.leads(probs).quantile(0.5))
        return STANDARD_LEAD / median if median > 0 else 1.0

    def sharpened(self, probs: Tensor, sharpness: float) -> Tensor:
        """Returns what is predicted where all logits are multiplied by ``sharpness``.

        softmax(sharpness · log p) of every part, as logits are log p up to a constant; a
        number is multiplied itself.

        Shape: [..., entries] -> the same, float64.
        """
        if self.is_number:
            return probs.double() * sharpness
        grouped = self.grouped(probs).double()
        present = grouped.sum(-1, keepdim=True) > 0
        logs = _log(grouped)
        if self.kind in (
            "choice",
            "span",
        ):  # what a text does not have stays without probability
            logs = logs.masked_fill(grouped == 0, -torch.inf)
        logs = logs.masked_fill(~present, 0)
        sharp = (sharpness * logs).softmax(-1) * present
        n_present = present.sum(-2, keepdim=True).clamp_min(1)
        return (sharp / n_present).flatten(-2)

    def decision(self, probs: Tensor) -> Tensor:
        """The most probable outcome of every part, int [..., parts]."""
        grouped = self.grouped(probs)
        return (grouped[..., :-1] if self.has_rest else grouped).argmax(-1)

    def n_targets(self, probs: Tensor) -> int:
        """Number of classes or labels that a test can be asked to explain."""
        if self.kind == "choice":
            return probs.shape[-1]
        return len(self.targets)

    def flips(self, before: Tensor, after: Tensor, target: int | None = None) -> Tensor:
        """Whether the decision of any part changes, bool [...].

        Args:
            target: a class or label; then whether it is decided for in one and not in
                the other. A change between two others is none.
        """
        if target is None:
            return (self.decision(before) != self.decision(after)).any(-1)
        return self.is_for(before, target) != self.is_for(after, target)

    def is_for(self, probs: Tensor, target: int | None) -> Tensor:
        """Whether the prediction decides for a class or label, bool [...]; True without one."""
        if target is None:
            return torch.ones_like(probs[..., 0], dtype=torch.bool)
        decided = self.decision(probs)
        if self.kind == "labels":
            return decided[..., target] == 1
        return decided[..., 0] == target

    def explained(self, probs: Tensor, target: int | None = None) -> Tensor:
        """Returns the entries whose sum the tests explain.

        Args:
            probs: [batch, parts · outcomes].
            target: number of a class or label; None: what is decided.

        Returns:
            int [batch], or [batch, parts] where there are several parts.
        """
        if target is not None:
            entry = 2 * target + 1 if self.kind == "labels" else target
            return torch.full_like(probs[:, 0], entry, dtype=torch.long)
        decided = self.decision(probs)
        n_parts = decided.shape[-1]
        n_outcomes = probs.shape[-1] // n_parts
        first = torch.arange(n_parts, device=probs.device) * n_outcomes
        entries = decided + first
        return entries[:, 0] if self.has_one_part else entries

    def distance_by_part(self, before: Tensor, after: Tensor) -> Tensor:
        """Total variation distance of each part, [..., parts]; in scales of a number."""
        return tvd(self.grouped(before), self.grouped(after))

    def distance(self, before: Tensor, after: Tensor) -> Tensor:
        """Returns the mean of :meth:`distance_by_part`, with digits kept where one is next to 1.

        The probability of a part's decision is next to 1 in a confident model and has
        lost its digits there. So its change is taken as that of all others together.

        Args:
            before: [batch, entries].
            after: [batch, keys, entries].

        Returns:
            [batch, keys].
        """
        changed = self.grouped(after)
        whole = self.grouped(before)[:, None]
        decided = whole.argmax(-1).expand(changed.shape[:-1])
        is_decided = F.one_hot(decided, changed.shape[-1]).bool()
        whole = whole.expand_as(changed)
        own = whole.masked_fill(~is_decided, 0).sum(-1)
        is_large = own > 0.5
        side = small_side(whole, decided, is_large)
        changed_side = small_side(changed, decided, is_large)
        of_decided = (changed_side - side).abs()
        of_others = (changed - whole).abs().masked_fill(is_decided, 0)
        by_part = (of_decided + of_others.sum(-1)) / 2
        total = by_part.sum(-1)
        if self.n_parts is not None:
            return total / self.n_parts
        is_present = whole.sum(-1) != 0
        return total / is_present.sum(-1)

    def right(self, probs: Tensor, labels: Tensor) -> Tensor:
        """Returns the share of the labelled parts that are predicted right.

        Args:
            probs: [..., batch, entries].
            labels: int [batch] or [batch, parts], −1 where there is none; of a number
                the numbers, NaN where there is none.

        Returns:
            float64 [..., batch] in [0, 1], NaN for a text without a label.
        """
        decided = self.decision(probs)
        wanted = labels.to(probs.device)
        if self.is_number:
            side = (wanted <= self.origin).long()
            wanted = side.where(~wanted.isnan(), -1)
        wanted = wanted[:, None] if wanted.dim() == 1 else wanted
        known = wanted >= 0
        is_right = (decided == wanted) & known
        share = is_right.sum(-1).double() / known.sum(-1)
        return share.where(known.any(-1), torch.nan)

    def value(self, probs: Tensor) -> Tensor:
        """The predicted number in the data's own unit: [..., parts]."""
        return self.grouped(probs)[..., 0] * self.scale + self.origin


def names_in_order(names: Mapping[Any, str] | None) -> list[str]:
    """The names of a configuration's labels (``id2label``), in the order of their numbers.

    Raises:
        ValueError: a key that is no number.

    >>> names_in_order({"10": "emu", "9": "dog"})
    ['dog', 'emu']
    """
    names = names or {}
    return [str(names[key]) for key in sorted(names, key=int)]


def classes(names: tuple[str, ...] | list[str]) -> Prediction:
    """One of several classes."""
    names = tuple(map(str, names))
    return Prediction("classes", f"one of {len(names)} classes", outcomes=names)


def labels(names: tuple[str, ...] | list[str]) -> Prediction:
    """Several labels, each of which may hold: a Bernoulli per label."""
    names = tuple(map(str, names))
    return Prediction(
        "labels",
        f"{len(names)} labels, each of which may hold",
        outcomes=("no", "yes"),
        parts=names,
        n_parts=len(names),
        n_outcomes=2,
    )


def number(*, scale: float = 1.0, threshold: float | None = None, n_parts: int = 1) -> Prediction:
    """A number, or several; with a threshold, on which side of it they are."""
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


def entry_sum(probs: Tensor, entries: Tensor) -> Tensor:
    """The sum of some entries of prediction vectors.

    Args:
        probs: [..., batch, entries].
        entries: int [batch] or [batch, parts], see :meth:`Prediction.explained`.

    Returns:
        [..., batch].
    """
    entries = entries[:, None] if entries.dim() == 1 else entries
    return probs.gather(-1, entries.expand(*probs.shape[:-1], -1)).sum(-1)
