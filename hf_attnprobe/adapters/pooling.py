"""Base class for adapters to modules that pool a bag of instances by attention.

Such a module encodes every instance, computes one attention score per instance, and classifies the
mean of the states, weighted by the softmax of the scores (Ilse et al. 2018). An adapter names these
parts of a module; `PoolingAdapter` computes everything else from them.

If states do not depend on other instances, the states of a bag are computed once. Deleting or
exchanging instances then only changes a weighted sum. Large bags are processed in parts, so that
memory stays bounded.
"""

import copy
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hf_attnprobe.adapters.pretrained import ScaledGradients
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.functional.divergence import compute_shifted_probability
from hf_attnprobe.functional.fingerprint import compute_fingerprint
from hf_attnprobe.functional.grouped_effects import measure_texts_in_groups
from hf_attnprobe.protocol import (
    AttentionModelBase,
    Batch,
    ExchangeableStates,
    LinearReadout,
    Observation,
    Site,
)


MAX_ELEMENTS_PER_STEP = 2**22
"""Largest number of elements in an intermediate tensor, except for tensors of a single bag.

In float64, such a tensor takes 32 MiB."""
MAX_PASSES_PER_BAG = 256
"""Largest number of passes over edited copies of a bag that measure the effects of its instances.

If a model needs a pass for each edit, the instances of larger bags are edited in groups."""
MAX_SPARSE_SET = 16
"""Largest number of changed instances whose terms are subtracted from the sum over the bag.

For more instances, the sum over the bag is computed again by a matrix product, which is faster."""
MAX_SUBTRACTED_SHARE = 0.5
"""Largest share of the attention that is subtracted from the sum over the bag.

If an instance has more attention, the sum over the other instances is computed directly, because
subtracting nearly equal numbers would lose precision."""
MAX_SCORE_INCREASE = 10.0
"""Largest amount by which the score of a new instance may exceed all scores of the bag.

If it exceeds them by more, the attention over the edited bag is computed from scratch."""
CHECK_TOLERANCE = 1e-6
"""Largest relative difference that `PoolingAdapter.self_check` attributes to rounding."""


class BagState(NamedTuple):
    """Intermediate results of a forward pass over a batch of bags.

    Attributes:
        vectors: Input vectors of the instances, `[batch, instances, size]`.
        states: States that attention averages, `[batch, instances, width]`.
    """

    vectors: Tensor
    states: Tensor


class PoolingAdapter(ScaledGradients, AttentionModelBase):
    """Base class for adapters to modules that pool a bag of instances by attention.

    A subclass defines `score` and `classify` and, if the module has these parts, `embed` and
    `encode`. The logits are `classify(Σ_i a_i h_i)`, where h_i are the states from `encode` and a
    is the softmax of the scores. A module that computes its attention or its logits otherwise
    overrides `attend` or `predict`; edited bags then need one pass each.

    Args:
        model: The module. The adapter runs a frozen copy in `dtype`; the module is not changed.
        label_names: Class names. None for the class attribute `label_names`.
        dtype: Data type for all computations. Small effects of single instances need float64.

    Attributes:
        instance_column: Column that the module reads: "features" for vectors or "items" for
            integers.
        feature_size: Size of the vectors; None accepts any size.
        unit: Name of one instance in reports, such as "patch".
        n_heads: Number of attention distributions over a bag. For several heads, `score` returns
            `[batch, heads, instances]`, and `classify` receives `[rows, heads, width]`.
        mixes_instances: Whether the state or the score of an instance depends on other instances,
            for example through self-attention. The bag is then encoded again after each edit.
        has_linear_head: Whether `classify` is a linear map with a bias. Tests then compute exact
            results instead of searching for them.
        user_model: The original module.

    Example:
        class MyAdapter(PoolingAdapter):
            label_names = ["normal", "tumour"]
            unit = "patch"

            def encode(self, vectors, mask):
                return self.model.encoder(vectors)

            def score(self, states, mask):
                return self.model.attention(states)[..., 0]

            def classify(self, pooled):
                return self.model.head(pooled)
    """

    instance_column = "features"
    feature_size: int | None = None
    unit = "instance"
    n_heads = 1
    mixes_instances = False
    has_linear_head = False

    def __init__(
        self,
        model: nn.Module,
        *,
        label_names: Sequence[str] | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.user_model = model
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        nn.Module.to(self.model, dtype)
        self.dtype = dtype
        # A state of zeros, `[1, width]`. Its width is known after the first forward pass.
        self._zero_state: Tensor | None = None
        if label_names is None:
            label_names = getattr(type(self), "label_names", ())
        self.label_names = list(label_names)
        if len(self.label_names) < 2:
            raise AttnProbeError(
                f"{type(self).__name__} needs the names of at least two classes. Set the class "
                "attribute label_names, or pass label_names=[…]."
            )

    # Parts of the module, which a subclass defines

    def embed(self, inputs: Tensor) -> Tensor:
        """Return the vectors of the instances; override this method for integers.

        Args:
            inputs: Features `[batch, instances, size]`, or items `[batch, instances]`.

        Returns:
            Vectors `[batch, instances, size]`.
        """
        return inputs

    def encode(self, vectors: Tensor, mask: Tensor) -> Tensor:
        """Compute the states that attention averages; by default, they are the vectors.

        Args:
            vectors: Vectors from `embed`, `[batch, instances, size]`.
            mask: Positions without padding, bool `[batch, instances]`.

        Returns:
            States `[batch, instances, width]`.
        """
        return vectors

    @abstractmethod
    def score(self, states: Tensor, mask: Tensor) -> Tensor:
        """Compute the attention scores, before the softmax.

        Args:
            states: States from `encode`, `[batch, instances, width]`.
            mask: Positions without padding, bool `[batch, instances]`.

        Returns:
            Scores `[batch, instances]`, or `[batch, heads, instances]` for several heads.
        """

    @abstractmethod
    def classify(self, pooled: Tensor) -> Tensor:
        """Compute the logits from pooled states.

        Args:
            pooled: Weighted means of states, `[rows, width]`, or `[rows, heads, width]` for several
                heads.

        Returns:
            Logits `[rows, classes]`. With two classes, one logit for the second class is enough.
        """

    def attend(self, states: Tensor, mask: Tensor) -> Tensor:
        """Compute the attention weights, by default the softmax of the scores over the mask.

        Args:
            states: States from `encode`, `[batch, instances, width]`.
            mask: Positions that may receive attention, bool `[batch, instances]`.

        Returns:
            Weights `[batch, instances]`, or `[batch, heads, instances]` for several heads. They are
            0 outside the mask.
        """
        is_allowed = mask[:, None]
        scores = self._add_head_axis(self.score(states, mask))
        return compute_masked_softmax(scores, is_allowed)

    def predict(self, attention: Tensor, states: Tensor, mask: Tensor) -> Tensor:
        """Compute the logits from attention weights and states, by default by pooling.

        Args:
            attention: Weights `[batch, heads, instances]`, which need not sum to 1.
            states: States from `encode`, `[batch, instances, width]`.
            mask: Positions that were not deleted, bool `[batch, instances]`.

        Returns:
            Logits `[batch, classes]`.
        """
        return self.classify(self._drop_head_axis(attention @ states))

    def run_module(self, inputs: Tensor, mask: Tensor) -> Tensor | None:
        """Compute the logits with the original module; override this method to check the adapter.

        An audit compares these logits with those of the adapter.

        Args:
            inputs: Features `[batch, instances, size]`, or items `[batch, instances]`.
            mask: Positions without padding, bool `[batch, instances]`.

        Returns:
            Logits `[batch, classes]`; None if the adapter is not compared with the module.
        """
        return None

    def compute_empty_logits(self, states: Tensor) -> Tensor:
        """Compute the logits of bags without instances, by default with all attention weights 0.

        Args:
            states: States of the bags before all instances were deleted, `[batch, instances,
                width]`.

        Returns:
            Logits `[batch, classes]`.
        """
        n_bags, n_instances, _ = states.shape
        attention = states.new_zeros(n_bags, self.n_heads, n_instances)
        mask = torch.zeros(n_bags, n_instances, dtype=torch.bool, device=states.device)
        return self.predict(attention, states, mask)

    # The protocol

    def sites(self) -> list[Site]:
        """Return one site for each attention distribution over a bag."""
        return [Site(0, head) for head in range(self.n_heads)]

    def prepare(
        self,
        inputs: Mapping[str, Tensor],
        example_ids: tuple[int, ...],
        labels: Tensor | None = None,
    ) -> Batch:
        """Create a batch from padded bags.

        Args:
            inputs: The column `instance_column`, and an `attention_mask` `[batch, instances]`.
            example_ids: Data set id for each bag.
            labels: Class indices, int `[batch]`.

        Returns:
            The batch, on the module's device.
        """
        device = next(iter(self.model.parameters()), torch.empty(0)).device
        mask = inputs["attention_mask"].to(device).bool()
        bags = inputs[self.instance_column].to(device)
        if bags.is_floating_point():
            bags = bags.to(self.dtype)
        batch_inputs = {self.instance_column: bags, "attention_mask": mask}
        return Batch(batch_inputs, mask, mask, tuple(example_ids), labels)

    @torch.no_grad()
    def observe(self, batch: Batch) -> Observation:
        """Run one forward pass and record the attention; see `AttentionModel.observe`."""
        vectors = self.embed(batch.inputs[self.instance_column])
        states = self.encode(vectors, batch.mask)
        self._zero_state = torch.zeros_like(states[:1, 0])
        attention = self._add_head_axis(self.attend(states, batch.mask))
        probs = self._convert_to_probs(self.predict(attention, states, batch.mask))
        return Observation(self, batch, probs, (attention[:, :, None],), BagState(vectors, states))

    def get_visible_keys(self, observation: Observation, layer: int) -> Tensor:
        """Return whether each instance can receive attention, bool `[batch, 1, instances]`."""
        return observation.batch.mask[:, None]

    def select_row(self, observation: Observation, values: Tensor, site: Site) -> Tensor:
        """Select the attention row of the only query, `[batch, instances]`."""
        return values[:, site.query or 0]

    def replay(self, observation: Observation, attention: Mapping[int, Tensor]) -> Tensor:
        """Compute the probabilities with edited attention; see `AttentionModel.replay`."""
        weights, states = attention[0][:, :, :, 0], observation.state.states
        if not self._pools_linearly:
            mask = observation.batch.mask
            logits = [self.predict(copy_weights, states, mask) for copy_weights in weights]
            return self._convert_to_probs(torch.stack(logits))
        # Adversarial attention is computed exactly, in float64, even if the audit uses float32.
        n_copies, _, n_heads, _ = weights.shape
        # One matrix product per bag. Broadcasting would copy the states for every edited copy.
        rows = weights.transpose(0, 1).flatten(1, 2)
        pooled = (rows @ states.to(weights.dtype)).to(states.dtype)
        pooled = pooled.unflatten(1, (n_copies, n_heads)).transpose(0, 1)
        probs = self._classify_rows(pooled.flatten(0, 1))
        return probs.unflatten(0, weights.shape[:2])

    def self_check(self, batch: Batch) -> None:
        """Check that the attributes `mixes_instances` and `has_linear_head` are correct.

        Args:
            batch: Bags to run the check on.

        Raises:
            AttnProbeError: If an attribute does not describe the module.
        """
        observation = self.observe(batch)
        state, mask = observation.state, batch.mask
        if not self.mixes_instances and mask.shape[1] > 1:
            # Every second instance is removed. The states of the others must not change.
            half = slice(None, None, 2)
            states = self.encode(state.vectors[:, half], mask[:, half])
            expected, is_real = state.states[:, half], mask[:, half]
            scores = self._add_head_axis(self.score(states, is_real))
            all_scores = self._add_head_axis(self.score(state.states, mask))[..., half]
            is_real_score = is_real[:, None].expand_as(scores)
            has_same_states = _is_close(states[is_real], expected[is_real])
            if not has_same_states or not _is_close(
                scores[is_real_score], all_scores[is_real_score]
            ):
                raise AttnProbeError(
                    f"the state or the score of a {self.unit} depends on the other instances of its "
                    f"bag, but {type(self).__name__}.mixes_instances is False. Set "
                    "mixes_instances = True in the adapter."
                )
        if self.has_linear_head:
            # The first and the last state take the role of the pooled states of every head.
            heads = state.states[:, None].expand(-1, self.n_heads, -1, -1)
            first = self._drop_head_axis(heads[:, :, 0])
            second = self._drop_head_axis(heads[:, :, -1])
            logits = self._complete_logits(self.classify((first + second) / 2))
            both = self._complete_logits(self.classify(torch.cat([first, second])))
            mean = both.unflatten(0, (2, -1)).mean(0)
            if not _is_close(logits, mean):
                raise AttnProbeError(
                    f"{type(self).__name__}.has_linear_head is True, but classify is not a linear map "
                    "with a bias. Set has_linear_head = False in the adapter."
                )

    @torch.no_grad()
    def compute_native_probs(self, batch: Batch) -> Tensor | None:
        """Compute the probabilities with `run_module`, or return None if it is not defined."""
        logits = self.run_module(batch.inputs[self.instance_column], batch.mask)
        return None if logits is None else self._convert_to_probs(logits)

    def compute_fingerprint(self) -> str:
        """Compute a hash of the original module's weights, 16 hexadecimal digits."""
        return compute_fingerprint(self.user_model)

    def lacks(self, capability: type, site: Site | None = None) -> str | None:
        """Return the reason why the module lacks a capability, or None if it has it."""
        if capability is LinearReadout and (not self._has_linear_readout):
            return f"the logits of {type(self).__name__} are no linear map of the pooled states"
        if capability is ExchangeableStates and not self._pools_linearly:
            return f"{type(self).__name__} does not pool states by their weighted mean"
        return super().lacks(capability, site)

    # Capabilities

    def compute_scaled_gradient(
        self, observation: Observation, target: Tensor, scale: float, hold_attention: bool
    ) -> Tensor:
        """Compute gradient × input at scaled vectors, `[batch, instances]`; see `ScaledGradients`."""
        with torch.enable_grad():
            factor = torch.full_like(
                observation.batch.mask, scale, dtype=self.dtype, requires_grad=True
            )
            probs = self._compute_scaled_probs(observation, factor, hold_attention=hold_attention)
            explained = compute_shifted_probability(probs, target).sum()
            (gradient,) = torch.autograd.grad(explained, factor)
        return gradient

    def compute_attention_gradient(self, observation: Observation, target: Tensor) -> list[Tensor]:
        """Compute the gradient with respect to the attention weights; see `Differentiable`."""
        with torch.enable_grad():
            weights = observation.attention[0].clone().requires_grad_()
            probs = self.replay(observation, {0: weights[None]})[0]
            explained = compute_shifted_probability(probs, target).sum()
            (gradient,) = torch.autograd.grad(explained, weights)
        return [gradient]

    @torch.no_grad()
    def compute_zero_embedding_probs(self, observation: Observation) -> Tensor:
        """Compute the probabilities with all vectors set to 0, `[batch, classes]`."""
        factor = torch.zeros_like(observation.batch.mask, dtype=self.dtype)
        return self._compute_scaled_probs(observation, factor, hold_attention=True)

    def _compute_scaled_probs(
        self, observation: Observation, factor: Tensor, *, hold_attention: bool
    ) -> Tensor:
        """Compute the probabilities after multiplying each vector by a factor."""
        mask = observation.batch.mask
        states = self.encode(observation.state.vectors * factor[..., None], mask)
        attention = self._add_head_axis(
            self.attend(states.detach() if hold_attention else states, mask)
        )
        return self._convert_to_probs(self.predict(attention, states, mask))

    def get_states(self, observation: Observation, site: Site) -> Tensor:
        """Return the states, `[batch, instances, width]`."""
        return observation.state.states

    def compute_head_values(self, observation: Observation) -> tuple[Tensor, ...]:
        """Return the states as values of every head, because attention averages them directly."""
        return (observation.state.states[:, None].expand(-1, self.n_heads, -1, -1),)

    def compute_token_logits(self, observation: Observation) -> Tensor:
        """Return the logits for each instance's state alone, `[batch, instances, classes]`."""
        states = observation.state.states
        logits = self._complete_logits(self.classify(states.flatten(0, 1)))
        return logits.unflatten(0, states.shape[:2])

    def get_readout_bias(self) -> Tensor:
        """Return the logits if all attention weights are 0, `[classes]`."""
        if self._zero_state is None:
            raise AttnProbeError("the read-out bias is known only after a bag was observed")
        return self._complete_logits(self.classify(self._zero_state))[0]

    def replay_interchange(
        self,
        observation: Observation,
        site: Site,
        units: Tensor,
        states: Mapping[int, Tensor],
    ) -> Tensor:
        """Compute the probabilities after exchanging one state; see `ExchangeableStates`."""
        attention, all_states = observation.attention[0][:, :, 0], observation.state.states
        heads = self.get_heads_by_layer(site)[0]
        bags = torch.arange(len(all_states), device=all_states.device)
        pooled = (attention @ all_states).expand(len(units), -1, -1, -1).clone()
        # The weight of the unit stays, and its state is replaced in the weighted sum.
        unit_weight = attention[bags, :, units][:, :, heads, None]
        difference = states[0] - all_states[bags, units][:, :, None]
        pooled[:, :, heads] += unit_weight * difference
        probs = self._classify_rows(pooled.flatten(0, 1))
        return probs.unflatten(0, units.shape)

    @torch.no_grad()
    def compute_leave_one_out(self, observation: Observation) -> Tensor:
        """Compute the probabilities after deleting each instance alone; see `EditableInputs`.

        The sets are processed in parts, because all sets of a large bag would take n² bytes. If each
        set needs a pass, the instances of large bags are deleted in groups.
        """
        limit = self.max_unit_edits
        if limit is not None and observation.batch.mask.sum(1).max() > limit:
            return self._compute_grouped_leave_one_out(observation, limit)
        n_bags, n_instances = observation.batch.mask.shape
        step = max(1, MAX_ELEMENTS_PER_STEP // (n_bags * n_instances))
        instances = torch.arange(n_instances, device=observation.batch.mask.device)
        parts = []
        for positions in instances.split(step):
            is_deleted = positions[:, None] == instances
            sets = is_deleted[:, None].expand(-1, n_bags, -1)
            parts.append(self.erase_inputs(observation, sets))
        return torch.cat(parts).transpose(0, 1)

    def _compute_grouped_leave_one_out(self, observation: Observation, limit: int) -> Tensor:
        """Compute the leave-one-out probabilities of large bags with a limited number of passes.

        Each instance gets an equal share of its group's change of the probabilities.

        Args:
            observation: The observed bags.
            limit: Largest number of passes per bag.

        Returns:
            Probabilities `[batch, instances, classes]`.
        """
        before = observation.probs
        changes = measure_texts_in_groups(
            observation.batch.mask,
            observation.attention[0].mean(1)[:, 0],
            lambda sets: self.erase_inputs(observation, sets) - before,
            limit,
        )
        return before[:, None] + changes

    @torch.no_grad()
    def erase_inputs(
        self, observation: Observation, erased: Tensor, *, operator: str = "deletion"
    ) -> Tensor:
        """Compute the probabilities after deleting instances; see `EditableInputs`.

        Raises:
            AttnProbeError: If the operator is not "deletion", because there is no mask token, or if
                the module has no finite logits for an empty bag.
        """
        if operator != "deletion":
            raise AttnProbeError(
                f"instances of a bag can only be deleted, got the erasure operator {operator!r}. Use "
                "the operator 'deletion'."
            )
        return self._edit_bags(observation, erased & observation.batch.content_mask, None)

    def read_unit_contents(self, observation: Observation) -> list[dict[int, Any]]:
        """Read the vector or the integer of every instance; see `ExchangeableUnits`."""
        bags = observation.batch.inputs[self.instance_column]
        return [
            {position: bag[position] for position in mask.nonzero()[:, 0].tolist()}
            for bag, mask in zip(bags, observation.batch.content_mask, strict=True)
        ]

    @torch.no_grad()
    def exchange_inputs(
        self,
        observation: Observation,
        exchanged: Tensor,
        replacements: Sequence[Mapping[int, Any]],
    ) -> Tensor:
        """Compute the probabilities after replacing instances; see `ExchangeableUnits`."""
        new_inputs = observation.batch.inputs[self.instance_column].clone()
        has_new = torch.zeros_like(observation.batch.mask)
        for bag, contents in enumerate(replacements):
            for position, content in contents.items():
                if content is not None:
                    new_inputs[bag, position] = content
                    has_new[bag, position] = True
        return self._edit_bags(observation, exchanged & has_new, self.embed(new_inputs))

    # Edited bags

    @property
    def _attends_by_softmax(self) -> bool:
        """Whether the attention is the softmax of the scores."""
        return type(self).attend is PoolingAdapter.attend

    @property
    def _pools_linearly(self) -> bool:
        """Whether the module classifies the weighted mean of the states."""
        return type(self).predict is PoolingAdapter.predict

    @property
    def _edits_sums(self) -> bool:
        """Whether edited bags only need a few terms of a sum, and no forward pass."""
        return not self.mixes_instances and self._attends_by_softmax and self._pools_linearly

    @property
    def max_unit_edits(self) -> int | None:
        """Largest number of edited copies per bag, or None if edited bags need no passes."""
        return None if self._edits_sums else MAX_PASSES_PER_BAG

    @property
    def _has_linear_readout(self) -> bool:
        """Whether the logits are a weighted mean of one logit vector per instance."""
        return self.has_linear_head and self._pools_linearly and self.n_heads == 1

    def _edit_bags(
        self, observation: Observation, changed: Tensor, new_vectors: Tensor | None
    ) -> Tensor:
        """Compute the probabilities after deleting or replacing instances.

        Args:
            observation: The observed bags.
            changed: Instances to delete or replace, bool `[copies, batch, instances]`.
            new_vectors: Vectors that replace those of the changed instances, `[batch, instances,
                size]`; None to delete the instances.

        Returns:
            Probabilities `[copies, batch, classes]`.
        """
        compute_bag = self._edit_sums if self._edits_sums else self._edit_by_running
        by_bag = [
            self._edit_bag(observation, bag, changed[:, bag], new_vectors, compute_bag)
            for bag in range(changed.shape[1])
        ]
        return torch.stack(by_bag, 1)

    def _edit_bag(
        self,
        observation: Observation,
        bag: int,
        changed: Tensor,
        new_vectors: Tensor | None,
        compute_bag: Callable[["_Bag", Tensor], Tensor],
    ) -> Tensor:
        """Compute the probabilities of edited copies of one bag, `[copies, classes]`."""
        mask = observation.batch.mask[bag]
        # A slice, unlike indices, does not copy the tensors of a bag without padding.
        positions = slice(None) if mask.all() else mask.nonzero()[:, 0]
        state = observation.state
        vectors, states = state.vectors[bag, positions], state.states[bag, positions]
        replacement = None if new_vectors is None else new_vectors[bag, positions]
        # Many sets are requested for the same bags, so their scores are computed once.
        scores = observation.remember(
            "attention scores",
            lambda: self._add_head_axis(self.score(state.states, observation.batch.mask)),
        )[bag][:, positions]
        changed = changed[:, positions]
        probs = observation.probs[bag].repeat(len(changed), 1)
        # The output of a bag without a changed instance is known.
        is_edited = changed.any(-1)
        if replacement is None:
            is_empty = changed.all(-1)
            if is_empty.any():
                probs[is_empty] = self._compute_empty_probs(states)
            is_edited &= ~is_empty
        if is_edited.any():
            edited_sets = changed if is_edited.all() else changed[is_edited]
            edited = compute_bag(_Bag(vectors, states, scores, replacement), edited_sets)
            probs[is_edited] = edited
        return probs

    def _compute_empty_probs(self, states: Tensor) -> Tensor:
        """Compute the probabilities of an empty bag, `[1, classes]`."""
        probs = self._convert_to_probs(self.compute_empty_logits(states[None]))
        if not probs.isfinite().all():
            raise AttnProbeError(
                f"{type(self.model).__name__} returns NaN or infinity for a bag without instances. "
                "Override compute_empty_logits in the adapter."
            )
        return probs

    def _edit_by_running(self, bag: "_Bag", changed: Tensor) -> Tensor:
        """Run the module on every edited copy of a bag, without padding within a copy."""
        largest = max(bag.vectors.shape[1], bag.states.shape[1]) * len(bag.vectors)
        parts = []
        for rows in changed.split(max(1, MAX_ELEMENTS_PER_STEP // largest)):
            mask = torch.ones_like(rows) if bag.replacement is not None else ~rows
            if self.mixes_instances:
                vectors = bag.vectors.expand(len(rows), -1, -1)
                if bag.replacement is not None:
                    vectors = torch.where(rows[..., None], bag.replacement, vectors)
                vectors, mask = remove_masked(vectors, mask)
                states = self.encode(vectors, mask)
            else:
                states = bag.states.expand(len(rows), -1, -1)
                if bag.replacement is not None:
                    new_states = self.encode(bag.replacement[None], torch.ones_like(rows[:1]))
                    states = torch.where(rows[..., None], new_states, states)
                states, mask = remove_masked(states, mask)
            attention = self._add_head_axis(self.attend(states, mask))
            parts.append(self._convert_to_probs(self.predict(attention, states, mask)))
        return torch.cat(parts)

    def _edit_sums(self, bag: "_Bag", changed: Tensor) -> Tensor:
        """Compute the probabilities of edited copies from the weighted sum over the whole bag.

        With u_i = exp(score_i), the pooled state is Σ u_i h_i / Σ u_i. Deleting the instances of a
        set removes their terms from both sums, and exchanging them adds new terms.
        """
        everything = torch.ones_like(changed[:1])
        scores = bag.scores
        new_scores, new_states = None, None
        if bag.replacement is not None:
            new_states = self.encode(bag.replacement[None], everything)[0]
            new_scores = self._add_head_axis(self.score(new_states[None], everything))[0]
        n_instances, width = bag.states.shape
        n_values = self.n_heads * max(width, n_instances)
        parts = []
        for rows in changed.split(max(1, MAX_ELEMENTS_PER_STEP // n_values)):
            pooled = _pool_edited(rows, scores, bag.states, new_scores, new_states)
            parts.append(self._classify_rows(pooled))
        return torch.cat(parts)

    # Shapes

    def _add_head_axis(self, weights: Tensor) -> Tensor:
        """Return scores or weights as `[batch, heads, instances]`."""
        return weights[:, None] if weights.dim() == 2 else weights

    def _drop_head_axis(self, pooled: Tensor) -> Tensor:
        """Remove the axis of heads from pooled states if the module has a single head."""
        return pooled[..., 0, :] if self.n_heads == 1 else pooled

    def _classify_rows(self, pooled: Tensor) -> Tensor:
        """Compute the probabilities of pooled states `[rows, heads, width]`, in parts."""
        step = max(1, MAX_ELEMENTS_PER_STEP // pooled[0].numel())
        parts = [
            self._convert_to_probs(self.classify(self._drop_head_axis(rows)))
            for rows in pooled.split(step)
        ]
        return torch.cat(parts)

    def _complete_logits(self, logits: Tensor) -> Tensor:
        """Add the logit 0 of the first class if the module returns one logit for two classes."""
        n_classes = len(self.label_names)
        if logits.shape[-1] == 1 and n_classes == 2:
            logits = torch.cat([torch.zeros_like(logits), logits], -1)
        if logits.shape[-1] != n_classes:
            raise AttnProbeError(
                f"{type(self).__name__} has {n_classes} label names, but the module returns "
                f"{logits.shape[-1]} logits. Correct label_names."
            )
        return logits

    def _convert_to_probs(self, logits: Tensor) -> Tensor:
        """Convert logits to probabilities `[..., classes]`."""
        return self._complete_logits(logits).softmax(-1)


class _Bag(NamedTuple):
    """One bag without padding, and vectors that can replace its own.

    Attributes:
        vectors: Vectors `[instances, size]`.
        states: States `[instances, width]`.
        scores: Attention scores `[heads, instances]`.
        replacement: New vectors `[instances, size]`; None if instances are deleted.
    """

    vectors: Tensor
    states: Tensor
    scores: Tensor
    replacement: Tensor | None


def compute_masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Compute the softmax of scores over a mask; a row without any allowed key becomes 0.

    Args:
        scores: Scores `[..., keys]`.
        mask: Keys that may have a weight, bool, which broadcasts to the scores.

    >>> compute_masked_softmax(torch.zeros(1, 3), torch.tensor([[True, True, False]]))
    tensor([[0.5000, 0.5000, 0.0000]])
    """
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(~mask, lowest).softmax(-1) * mask


def remove_masked(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Remove masked positions from rows, and pad the rows to the longest one.

    Args:
        values: Vectors `[rows, instances, width]`.
        mask: Positions that remain, bool `[rows, instances]`.

    Returns:
        The remaining vectors, in their original order, and their mask.
    """
    n_remaining = int(mask.sum(1).max())
    # A stable sort moves the remaining positions to the front and keeps their order.
    order = (~mask).sort(dim=1, stable=True).indices[:, :n_remaining]
    shortened = values.gather(1, order[..., None].expand(-1, -1, values.shape[-1]))
    remaining = mask.gather(1, order)
    return shortened * remaining[..., None], remaining


def _pool_edited(
    changed: Tensor,
    scores: Tensor,
    states: Tensor,
    new_scores: Tensor | None,
    new_states: Tensor | None,
) -> Tensor:
    """Compute the pooled states of edited copies of a bag.

    Args:
        changed: Deleted or replaced instances, bool `[rows, instances]`.
        scores: Attention scores `[heads, instances]`.
        states: States `[instances, width]`.
        new_scores: Scores of the replacements, `[heads, instances]`; None for deletions.
        new_states: States of the replacements; None for deletions.

    Returns:
        Pooled states `[rows, heads, width]`.
    """
    shift = scores.amax(-1, keepdim=True)
    weights = (scores - shift).exp()
    removed = changed.to(weights.dtype) @ weights.T
    has_few = changed.sum(1) <= MAX_SPARSE_SET
    is_small = has_few & (removed <= MAX_SUBTRACTED_SHARE * weights.sum(-1)).all(1)
    new_weights = None
    if new_scores is not None:
        # Weights above this limit would make the sum over the old instances imprecise.
        difference = new_scores - shift
        is_small &= ~(changed & (difference > MAX_SCORE_INCREASE).any(0)).any(1)
        new_weights = difference.clamp(max=MAX_SCORE_INCREASE).exp()
    pooled = states.new_empty(len(changed), len(scores), states.shape[1])
    if is_small.any():
        pooled[is_small] = _change_terms(
            changed[is_small], weights, states, new_weights, new_states
        )
    if not is_small.all():
        rows = changed[~is_small][:, None]
        if new_scores is None or new_states is None:
            pooled[~is_small] = (
                compute_masked_softmax(scores.expand(len(rows), -1, -1), ~rows) @ states
            )
        else:
            edited_weights = torch.where(rows, new_scores, scores).softmax(-1)
            old_part = (edited_weights * ~rows) @ states
            pooled[~is_small] = old_part + (edited_weights * rows) @ new_states
    return pooled


def _change_terms(
    changed: Tensor,
    weights: Tensor,
    states: Tensor,
    new_weights: Tensor | None,
    new_states: Tensor | None,
) -> Tensor:
    """Pool edited copies by subtracting the terms of a few instances and adding new terms.

    Args:
        changed: Deleted or replaced instances, bool `[rows, instances]`.
        weights: Attention weights up to a common factor, `[heads, instances]`.
        states: States `[instances, width]`.
        new_weights: Weights of the replacements, with the same factor; None for deletions.
        new_states: States of the replacements; None for deletions.

    Returns:
        Pooled states `[rows, heads, width]`.
    """
    row, instance = changed.nonzero(as_tuple=True)
    weight_changes = -weights.T[instance]
    terms = weight_changes[..., None] * states[instance][:, None]
    if new_weights is not None and new_states is not None:
        added_weights = new_weights.T[instance]
        terms += added_weights[..., None] * new_states[instance][:, None]
        weight_changes = weight_changes + added_weights
    sums = (weights @ states).repeat(len(changed), 1, 1).index_add_(0, row, terms)
    masses = weights.sum(-1).repeat(len(changed), 1).index_add_(0, row, weight_changes)
    return sums / masses[..., None]


def _is_close(actual: Tensor, expected: Tensor) -> bool:
    """Return whether two tensors differ at most by rounding."""
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    return torch.allclose(actual, expected, rtol=CHECK_TOLERANCE, atol=CHECK_TOLERANCE * scale)
