"""Adapters for the attention classifiers: encode the tokens, attend to them, classify.

These models are small and their attention is explicit, so no hooks are needed. A replay reuses the
encoder states and computes only the read-out again.
"""

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hf_attnprobe.adapters.classifier.leave_one_out import (
    DELETION_METHODS,
    JOINT_READOUTS,
    ClassifierState,
    Readout,
    compute_leave_one_out_outputs,
    compute_lstm_gradient_times_input,
    create_readout,
    trace_lstm,
)
from hf_attnprobe.adapters.classifier.unit_exchange import EditedCopies, compute_exchanged_outputs
from hf_attnprobe.adapters.deletion import ErasureSettings, compute_erased_probs
from hf_attnprobe.adapters.exchange import compute_exchanged_probs, read_unit_token_ids
from hf_attnprobe.adapters.pretrained import PretrainedModelInfo, ScaledGradients
from hf_attnprobe.functional.divergence import compute_shifted_probability
from hf_attnprobe.models.attention_classifier.modeling_attention_classifier import (
    AttentionClassifierForSequenceClassification,
)
from hf_attnprobe.protocol import (
    AttentionModelBase,
    Batch,
    Observation,
    Site,
)


MAX_DELETION_TOKENS = 4096
"""Maximum number of tokens in a forward pass that measures the effect of deletions."""


class SingleHeadAdapter(PretrainedModelInfo, ScaledGradients, AttentionModelBase):
    """Base class for adapters to all attention classifiers.

    The adapter works on a frozen copy of the model in `dtype`; the original model is not changed. The
    default is float64. If a prediction is saturated, leave-one-out ranks differences as small as
    1e-8, and in float32 such ranks would depend on the other texts in the batch.

    Args:
        model: The classifier. A model loaded with `trust_remote_code` is also accepted, although
            it has another class.
        dtype: Data type for all computations.
        mask_id: Id of the token that replaces erased tokens.

    Attributes:
        layer: Number of the attention layer that is read and edited.
        base: The encoder with its attention, without the classification head.
    """

    layer = 0
    model: AttentionClassifierForSequenceClassification

    def __init__(
        self,
        model: AttentionClassifierForSequenceClassification,
        *,
        dtype: torch.dtype = torch.float64,
        mask_id: int | None = None,
    ) -> None:
        super().__init__(model)
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        # The annotations of `PreTrainedModel.to` hide its arguments from the type checker.
        nn.Module.to(self.model, dtype)
        self.base = self.model.attention_classifier
        self.mask_id = mask_id
        for module in self.model.modules():
            if isinstance(module, nn.RNNBase):
                # In eval mode, a backward pass fails with cuDNN and is slow on a CPU.
                module.train()

    def sites(self) -> list[Site]:
        """Return the only site, because the attention layer has a single head."""
        return [Site(self.layer)]

    @property
    def _is_resumable(self) -> bool:
        """Whether leave-one-out can reuse encoder states that a deletion does not change."""
        config = self.model.config
        connection = getattr(config, "residual_connection", "none")
        has_joint_readout = config.attention in JOINT_READOUTS
        return config.encoder in DELETION_METHODS and connection == "none" and has_joint_readout

    @property
    def _erasure_settings(self) -> ErasureSettings:
        """Model properties that are needed to erase tokens."""
        return ErasureSettings(
            pad_id=self.model.config.pad_token_id or 0,
            tokens_per_pass=MAX_DELETION_TOKENS,
            mask_id=self.mask_id,
        )

    def read_unit_contents(self, observation: Observation) -> list[dict[int, Any]]:
        """Read the token ids of every explained unit; see `ExchangeableUnits`."""
        return read_unit_token_ids(observation)

    def get_visible_keys(self, observation: Observation, layer: int) -> Tensor:
        """Return whether each token can receive attention, bool `[batch, 1, keys]`."""
        return observation.batch.mask[:, None]

    def select_row(self, observation: Observation, values: Tensor, site: Site) -> Tensor:
        """Select the attention row of the only query, `[batch, keys]`."""
        return values[:, site.query or 0]

    def compute_native_probs(self, batch: Batch) -> Tensor | None:
        """Compute the probabilities with the original model (without hooks), `[batch, classes]`."""
        inputs = batch.tokenizer_output or batch.inputs
        # "units" is the sentence number of each token. Only the adapter uses it, not the model.
        arguments = {
            name: value.to(batch.mask.device) for name, value in inputs.items() if name != "units"
        }
        return self.compute_native_output(arguments).logits.softmax(-1)

    # Capabilities

    def get_states(self, observation: Observation, site: Site) -> Tensor:
        """Return the encoder states, `[batch, keys, hidden]`."""
        return observation.state.states

    def compute_head_values(self, observation: Observation) -> tuple[Tensor, ...]:
        """Return the encoder states as values, because attention averages them directly."""
        return (observation.state.states[:, None],)

    def replay_interchange(
        self,
        observation: Observation,
        site: Site,
        units: Tensor,
        states: Mapping[int, Tensor],
    ) -> Tensor:
        """Compute the probabilities after exchanging one unit's state; see `ExchangeableStates`.

        The new state is appended as an additional key, which takes over the unit's weight.
        """
        weights = observation.attention[self.layer].expand(len(units), -1, -1, -1, -1)
        index = units[:, :, None, None, None]
        unit_weight = weights.gather(-1, index)
        weights_without_unit = weights.scatter(-1, index, 0)
        extended = torch.cat([weights_without_unit, unit_weight], -1)
        return self._compute_probs_with_state(observation, extended, states[self.layer])

    @abstractmethod
    def _compute_probs_with_state(
        self, observation: Observation, attention: Tensor, state: Tensor
    ) -> Tensor:
        """Compute the probabilities with one additional state appended to the text's states.

        Args:
            observation: The observed batch.
            attention: Attention `[copies, batch, 1, 1, keys + 1]`.
            state: The additional state, `[batch, 1, hidden]`.

        Returns:
            Probabilities `[copies, batch, classes]`.
        """

    def get_output_projections(self) -> tuple[Tensor, ...]:
        """Return an identity matrix, because the head has no output projection."""
        weight = self.base.embeddings.weight
        width = self.model.config.hidden_size
        return (torch.eye(width, dtype=weight.dtype, device=weight.device)[None],)

    def compute_scaled_gradient(
        self, observation: Observation, target: Tensor, scale: float, hold_attention: bool
    ) -> Tensor:
        """Compute gradient × input at scaled embeddings, `[batch, keys]`; see `ScaledGradients`."""
        with torch.enable_grad():
            factor = torch.full_like(
                observation.batch.inputs["input_ids"],
                scale,
                dtype=observation.probs.dtype,
                requires_grad=True,
            )
            probs = self._compute_scaled_probs(observation, factor, hold_attention=hold_attention)
            # The second term connects the result to `factor` even if no text has a word;
            # otherwise autograd would raise an error.
            explained = compute_shifted_probability(probs, target).sum() + 0 * factor.sum()
            (gradient,) = torch.autograd.grad(explained, factor)
        return gradient

    def compute_attention_gradient(self, observation: Observation, target: Tensor) -> list[Tensor]:
        """Compute the gradient with respect to the attention weights; see `Differentiable`."""
        with torch.enable_grad():
            weights = observation.attention[self.layer].clone()
            weights.requires_grad_()
            edits = {self.layer: weights[None]}
            probs = self.replay(observation, edits)[0]
            explained = compute_shifted_probability(probs, target).sum()
            (gradient,) = torch.autograd.grad(explained, weights)
        return [gradient]

    @torch.no_grad()
    def compute_zero_embedding_probs(self, observation: Observation) -> Tensor:
        """Compute the probabilities with all word vectors set to 0, `[batch, classes]`."""
        ids = observation.batch.inputs["input_ids"]
        factor = torch.zeros_like(ids, dtype=observation.probs.dtype)
        return self._compute_scaled_probs(observation, factor, hold_attention=True)

    @abstractmethod
    def _compute_scaled_probs(
        self, observation: Observation, factor: Tensor, *, hold_attention: bool
    ) -> Tensor:
        """Compute the probabilities after multiplying each word vector by a factor.

        Args:
            observation: The observed batch.
            factor: One factor per word vector, `[batch, keys]`.
            hold_attention: Whether attention weights are treated as constants by gradients.

        Returns:
            Probabilities `[batch, classes]`.
        """


class ClassifierAdapter(SingleHeadAdapter):
    """Adapter for a classifier with a linear read-out; see `SingleHeadAdapter` for arguments."""

    def prepare(
        self,
        inputs: Mapping[str, Tensor],
        example_ids: tuple[int, ...],
        labels: Tensor | None = None,
    ) -> Batch:
        """Create a batch from padded tokenizer output; see `AttentionModel.prepare`."""
        ids = inputs["input_ids"].to(self.model.device)
        mask = inputs["attention_mask"].to(self.model.device)
        content = self.base.build_content_mask(mask, ids)
        inputs = {"input_ids": ids, "attention_mask": mask}
        return Batch(inputs, content, content, tuple(example_ids), labels)

    @torch.no_grad()
    def observe(self, batch: Batch) -> Observation:
        """Run one forward pass and record the attention; see `AttentionModel.observe`."""
        ids = batch.inputs["input_ids"]
        mask = batch.inputs["attention_mask"]
        embedding_table = self.base.embeddings
        if self.model.config.encoder == "bilstm" and self._is_resumable:
            lstm = self.base.encoder.get_submodule("lstm")
            traces = trace_lstm(lstm, embedding_table.weight, ids, mask)
            states = torch.cat([trace.get_states() for trace in traces], dim=-1)
            embeddings = states[:0]
        else:
            traces, embeddings = [], embedding_table(ids)
            states = self.base.encode(embeddings, mask)
        token_logits = self.model.decode(states)
        weights = self.base.attend(states, batch.mask)
        attention = weights[:, None, None, :]
        state = ClassifierState(embeddings, traces, states, token_logits)
        probs = self._compute_probs(attention[None], token_logits)[0]
        return Observation(self, batch, probs, (attention,), state)

    def replay(self, observation: Observation, attention: Mapping[int, Tensor]) -> Tensor:
        """Compute the probabilities with edited attention; see `AttentionModel.replay`."""
        return self._compute_probs(attention[self.layer], self.compute_token_logits(observation))

    def _compute_probs(self, attention: Tensor, token_logits: Tensor) -> Tensor:
        """Compute the probabilities from attention weights and the logits of each token alone.

        The classifier is linear, so the logits are bias + Σ_t a_t (token_logits_t - bias). The
        weights a_t need not sum to 1.

        Args:
            attention: Attention weights a_t, `[copies, batch, 1, 1, keys]`.
            token_logits: Logits for each encoder state alone, `[batch, keys, classes]`.

        Returns:
            Probabilities `[copies, batch, classes]`.
        """
        # Adversarial attention is computed exactly, in float64, even if the audit uses float32.
        precise = torch.promote_types(attention.dtype, token_logits.dtype)
        # The weights have shape [batch, copies, keys].
        weights = attention[:, :, 0, 0].transpose(0, 1)
        weights = weights.to(precise)
        bias = self.get_readout_bias().to(precise)
        values = token_logits.to(precise) - bias
        if len(bias) == 2:
            # The first logit is 0, so a sigmoid of the second logit is exact and twice as fast.
            score = weights @ values[..., 1:] + bias[1:]
            prob = score.sigmoid()
            prob = prob.transpose(0, 1)
            return torch.cat([1 - prob, prob], dim=-1)
        logits = weights @ values + bias
        return logits.softmax(-1).transpose(0, 1)

    # Capabilities

    def _compute_probs_with_state(
        self, observation: Observation, attention: Tensor, state: Tensor
    ) -> Tensor:
        extra_logits = self.model.decode(state)
        token_logits = torch.cat([self.compute_token_logits(observation), extra_logits], 1)
        return self._compute_probs(attention, token_logits)

    def compute_token_logits(self, observation: Observation) -> Tensor:
        """Return the logits for each token's encoder state alone, `[batch, keys, classes]`."""
        return observation.state.token_logits

    def get_readout_bias(self) -> Tensor:
        """Return the logits if all attention weights are 0, `[classes]`."""
        weight = self.model.classifier.weight
        return self.model.decode(weight.new_zeros(self.model.config.hidden_size))

    def compute_gradient_times_input(self, observation: Observation, target: Tensor) -> Tensor:
        """Compute gradient × input; see `Differentiable`.

        For a recorded BiLSTM, explicit formulas replace automatic differentiation.
        """
        state = observation.state
        if not state.traces:
            return super().compute_gradient_times_input(observation, target)
        with torch.enable_grad():
            states = state.states.detach().requires_grad_()
            token_logits = self.model.decode(states)
            probs = self._compute_probs(observation.attention[0][None], token_logits)
            explained = compute_shifted_probability(probs[0], target).sum()
            (gradient,) = torch.autograd.grad(explained, states)
        return compute_lstm_gradient_times_input(state.traces, gradient)

    def _compute_scaled_probs(
        self, observation: Observation, factor: Tensor, *, hold_attention: bool
    ) -> Tensor:
        batch = observation.batch
        embeddings = self.base.embeddings(batch.inputs["input_ids"])
        scaled = embeddings * factor[..., None]
        states = self.base.encode(scaled, batch.inputs["attention_mask"])
        attended_states = states.detach() if hold_attention else states
        attention = self.base.attend(attended_states, batch.mask)[None, :, None, None]
        token_logits = self.model.decode(states)
        return self._compute_probs(attention, token_logits)[0]

    @torch.no_grad()
    def compute_leave_one_out(self, observation: Observation) -> Tensor:
        """Compute the probabilities after deleting each token alone; see `EditableInputs`.

        The whole text's encoder states are reused if possible.
        """
        batch = observation.batch
        if not self._is_resumable:
            return super().compute_leave_one_out(observation)
        outputs = compute_leave_one_out_outputs(
            self.model.config.encoder,
            self.base.encoder,
            self._create_readout(),
            observation.state,
            batch.inputs["attention_mask"],
            batch.content_mask,
        )
        return self._compute_output_probs(outputs)

    def _create_readout(self) -> Readout:
        """Combine attention and classification head into one linear map of the states."""
        weight = self.model.classifier.weight
        return create_readout(self.model.config.attention, self.base.attention, weight)

    def _compute_output_probs(self, outputs: Tensor) -> Tensor:
        """Compute the probabilities `[..., classes]` from classifier outputs without the bias."""
        logits = outputs + self.model.classifier.bias
        if logits.shape[-1] > 1:
            return logits.softmax(-1)
        return torch.cat([(-logits).sigmoid(), logits.sigmoid()], dim=-1)

    @torch.no_grad()
    def erase_inputs(
        self, observation: Observation, erased: Tensor, *, operator: str = "deletion"
    ) -> Tensor:
        """Compute the probabilities after erasing tokens; see `EditableInputs`.

        A text without any remaining token gets the probabilities of the classifier's bias alone.
        """
        empty_probs = self.get_readout_bias().softmax(-1)
        return compute_erased_probs(
            observation,
            erased,
            self._run,
            self._erasure_settings,
            operator=operator,
            empty=empty_probs.expand_as(observation.probs),
        )

    @torch.no_grad()
    def exchange_inputs(
        self,
        observation: Observation,
        exchanged: Tensor,
        replacements: Sequence[Mapping[int, Any]],
    ) -> Tensor:
        """Compute the probabilities after replacing tokens; see `ExchangeableUnits`.

        The whole text's encoder states are reused if possible.
        """
        batch = observation.batch
        is_one_token = all(len(ids) == 1 for row in replacements for ids in row.values())
        if not self._is_resumable or not is_one_token:
            return compute_exchanged_probs(
                observation, exchanged, replacements, self._run, self._erasure_settings
            )
        ids = batch.inputs["input_ids"]
        new_ids = ids.cpu().clone()
        has_new_id = torch.zeros(new_ids.shape, dtype=torch.bool)
        for row, text_replacements in enumerate(replacements):
            for position, unit_ids in text_replacements.items():
                new_ids[row, position] = unit_ids.item()
                has_new_id[row, position] = True
        new_ids, has_new_id = new_ids.to(ids.device), has_new_id.to(ids.device)
        # The output of a text without an exchanged unit is known.
        is_new = (exchanged & has_new_id).flatten(0, 1)
        rows = is_new.any(1).nonzero()[:, 0]
        text = rows % len(ids)
        is_new = is_new[rows]
        token_ids = torch.where(is_new, new_ids[text], ids[text])
        probs = observation.probs.repeat(len(exchanged), 1)
        if len(rows):
            outputs = compute_exchanged_outputs(
                self.model.config.encoder,
                self.base.encoder,
                self.base.embeddings.weight,
                self._create_readout(),
                observation.state,
                batch.content_mask,
                EditedCopies(text, is_new, token_ids, batch.inputs["attention_mask"]),
            )
            probs[rows] = self._compute_output_probs(outputs)
        return probs.unflatten(0, exchanged.shape[:2])

    def _run(self, texts: Mapping[str, Tensor]) -> Tensor:
        """Run the model on texts and return the class probabilities, `[texts, classes]`."""
        return self.model(**texts).logits.softmax(-1)
