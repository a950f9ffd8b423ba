"""The scores of a text's tokens, from the same functions that the tests use.

A text is run alone, so that its numbers depend on no other one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from hf_attnprobe.attention_model import (
    ALL,
    AttentionModelBase,
    Decisions,
    Differentiable,
    EditableInputs,
    Observation,
    Site,
)
from hf_attnprobe.charts.shown_text import (
    ADVERSARY_EPSILON,
    ADVERSARY_JSD,
    ADVERSARY_PROBABILITY,
    ShownText,
)
from hf_attnprobe.faithfulness.adversarial import Adversarial, adversarial
from hf_attnprobe.faithfulness.correlation import Correlation, correlation
from hf_attnprobe.faithfulness.erasure import Erasure, smallest_set
from hf_attnprobe.functional.divergence import small_side
from hf_attnprobe.inference.batching import collate
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.options import Options
from hf_attnprobe.single_texts.decisions import labelled, predicted
from hf_attnprobe.single_texts.tokens import Strings, as_read, tokens_of_units


SHOWN_EPSILON = 0.05
"""The output's distance within which the shown adversary is the farthest, where known."""
EVERYTHING: Mapping[str, Options] = {
    "adversarial": Adversarial(),
    "correlation": Correlation(),
    "erasure": Erasure(),
}
"""Tests that between them have all that is shown."""
AGREEMENT = {
    "attention_gradient_tau": "rank correlation τ of attention with gradients",
    "attention_leave_one_out_tau": "rank correlation τ of attention with leaving out",
    "gradient_leave_one_out_tau": "rank correlation τ of gradients with leaving out",
}


@dataclass(frozen=True)
class Explainer:
    """What is shown of texts.

    Attributes:
        model: behind the protocol.
        tokenizer: of the model.
        site: the attention that is shown.
        tests: options of the tests whose numbers are shown, by name.
        seed: of the adversary's search.
        attention_of: which attention it is, in words.
    """

    model: AttentionModelBase
    tokenizer: PreTrainedTokenizerBase
    site: Site
    tests: Mapping[str, Options] = field(default_factory=lambda: dict(EVERYTHING))
    seed: int = 0
    attention_of: str = ""

    def explain(self, text: Text, strings: Sequence[Strings] = ()) -> ShownText:
        """One text with the scores of its tokens.

        Args:
            text: as it was tokenized for the model.
            strings: what was tokenized, of several choices each; where it is not known,
                the tokenizer's pieces are shown.
        """
        batch = collate(self.model, [text], self.tokenizer.pad_token_id or 0)
        observation = self.model.observe(batch).explaining(self.target)
        chosen = int(batch.inputs["chosen"].flatten()[0]) if "chosen" in batch.inputs else 0
        return self.shown(observation, strings[chosen] if strings else None)

    def shown(self, observation: Observation, strings: Strings | None) -> ShownText:
        """The same from an observation of one text."""
        batch, probs = observation.batch, observation.probs
        ids = batch.inputs["input_ids"][0].tolist()
        units = tokens_of_units(batch, 0)
        tokens, glued = as_read(self.tokenizer, ids, units, strings)
        about = self.model.prediction
        said, probability = predicted(about, probs, batch, self.tokenizer)
        label, correct = labelled(about, probs, batch, self.tokenizer)
        scores = {"attention": observation.read(self.site)}
        numbers: dict[str, float] = {}
        if "adversarial" in self.tests:
            adversary, of_adversary = self._adversary(observation)
            scores |= adversary
            numbers |= of_adversary
        scores |= self._importances(observation)
        if {"gradient", "leave_one_out"} <= scores.keys():
            numbers |= self._agreement(observation)
        content, unknown = batch.content_mask[0], self.tokenizer.unk_token_id
        segments = None if batch.segments is None else batch.segments[0][content]
        return ShownText(
            example_id=batch.example_ids[0],
            tokens=tokens,
            predicted=said,
            probability=probability,
            label=label,
            correct=correct,
            scores={name: _floats(v[0][content]) for name, v in scores.items()},
            smallest_set=self._smallest_set(observation),
            numbers={name: n for name, n in numbers.items() if n == n},
            segments=() if segments is None else tuple(segments.tolist()),
            glued=glued,
            unknown=tuple(k for k, unit in enumerate(units) if unit and _all(unit, ids, unknown)),
            attention_of=self.attention_of,
            speaks_for=self._speaks_for(observation),
        )

    @property
    def target(self) -> Any:
        """The class that the tests explain; None: of each text the predicted one."""
        found = [getattr(options, "target", None) for options in self.tests.values()]
        return next((target for target in found if target is not None), None)

    def _adversary(self, observation: Observation) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Other attention with nearly the same output, where attention is one row."""
        is_one_row = [a.shape[1:3] == (1, 1) for a in observation.attention]
        layer = max(self.model.members(self.site))
        options = self.tests["adversarial"]
        assert isinstance(options, Adversarial)
        if len(self.model.sites()) > 1 or not is_one_row[layer]:
            return {}, {}
        site = Site(layer, 0, self.site.query)
        found = adversarial(observation, site, options, seed=self.seed)
        known = list(found.attention)
        if not known:
            return {}, {}
        epsilon = SHOWN_EPSILON if SHOWN_EPSILON in known else known[0]
        # [1, 1, keys]; the search is in float64 whatever the model computes in
        adversary = found.attention[epsilon].to(observation.attention[layer].dtype)
        after = self.model.replay(observation, {layer: adversary[None, :, None]})[0]
        numbers = {
            ADVERSARY_JSD: float(found.epsilon_max_jsd[epsilon][0]),
            ADVERSARY_EPSILON: epsilon,
        }
        if not self.model.prediction.is_number:
            entries = observation.explaining(None)
            numbers[ADVERSARY_PROBABILITY] = float(entries.explained_probs(after)[0])
        return {"adversary": adversary[:, 0]}, numbers

    def _importances(self, observation: Observation) -> dict[str, Tensor]:
        """Gradient × input, and what leaving a token out changes; both signed.

        Their sizes are those that ``correlation`` ranks.
        """
        found: dict[str, Tensor] = {}
        entries = observation.target(None)
        if self.model.prediction.is_number:
            entries = entries - entries % 2  # + is a larger number
        if self._uses(Differentiable):
            model = self.model.require(Differentiable, self.site)
            found["gradient"] = model.gradient(observation, entries)
        if self._uses(EditableInputs):
            size = observation.leave_one_out_importance()
            found["leave_one_out"] = size * _sign(observation, entries)
        return found

    def _uses(self, capability: type) -> bool:
        """Whether the tests use what the model can do: then it costs as one text more."""
        if self.model.lacks(capability, self.site) is not None:
            return False
        return bool({"correlation", "erasure", "input_erasure"} & self.tests.keys())

    def _agreement(self, observation: Observation) -> dict[str, float]:
        options = Correlation(target=self.target)
        found = correlation(observation, self.site, options)
        return {words: float(getattr(found, n)[0]) for n, words in AGREEMENT.items()}

    def _smallest_set(self, observation: Observation) -> tuple[int, ...] | None:
        options = self.tests.get("erasure")
        is_told = isinstance(options, Erasure) and self.model.lacks(Decisions) is None
        if not is_told:
            return None
        assert isinstance(options, Erasure)
        chosen = smallest_set(observation, self.site, options)
        if chosen is None:
            return None
        content = observation.batch.content_mask[0]
        return tuple(chosen[0][content].nonzero().flatten().tolist())

    def _speaks_for(self, observation: Observation) -> str:
        if self.model.prediction.is_number:
            return "a larger number"
        if observation.explains is None:
            return ""
        names = self.model.prediction.targets
        known = observation.explains < len(names)
        return names[observation.explains] if known else str(observation.explains)


def _sign(observation: Observation, entries: Tensor) -> Tensor:
    """1 where the entries' sum is less without a unit, else −1: [batch, keys]."""
    probs, without = observation.probs, observation.leave_one_out
    total = torch.zeros_like(probs).scatter(-1, entries.reshape(len(probs), -1), 1.0)
    is_large = (probs * total).sum(-1) > 0.5
    several = entries.dim() > 1
    before = small_side(probs, entries, is_large)[:, None]
    each = entries[:, None] if several else entries[:, None].expand(without.shape[:2])
    after = small_side(without, each, is_large[:, None])
    return torch.where(after > before, -1.0, 1.0).to(probs)


def _floats(values: Tensor) -> tuple[float, ...]:
    return tuple(values.detach().double().tolist())


def _all(unit: list[int], ids: list[int], unknown: int | None) -> bool:
    """Whether every token of a unit is the unknown one."""
    return unknown is not None and all(ids[place] == unknown for place in unit)


def whole_attention(model: AttentionModelBase) -> tuple[Site, str]:
    """The attention that stands for a model, and which it is in words.

    The only head, or the mean of all of them.
    """
    sites = model.sites()
    if len(sites) == 1:
        return sites[0], ""
    return Site(ALL, ALL), f"the mean of all {len(sites)} heads"
