"""This package's attention classifiers as :class:`AttentionModel`.

Encode, attend, decode: no hooks are needed.
"""

import copy
from abc import abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from hf_attnprobe.adapters.classifier.leave_one_out import (
    DELETION_METHODS,
    ClassifierState,
    compute_gradient_times_input,
    compute_leave_one_out_outputs,
    create_readout,
    trace_lstm,
)
from hf_attnprobe.adapters.deletion import compute_erased_probs
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


TOKENS_PER_PASS = 4096  # of shortened texts


class SingleHeadAdapter(PretrainedModelInfo, ScaledGradients, AttentionModelBase):
    """Base class of the adapters of all attention classifiers.

    It works on a frozen copy in ``dtype``; the user's model stays as it was. The default
    is float64: leave-one-out ranks differences of 1e-8 where a prediction is saturated,
    and in float32 such ranks change with the batch.

    Args:
        model: the classifier; one loaded through ``trust_remote_code`` is of another
            class with the same content.
        dtype: what to compute in.
        mask_id: the token that stands in for an erased one.
    """

    layer = 0  # of the attention that is read and edited
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
        nn.Module.to(self.model, dtype)  # as .to, whose annotation hides its arguments
        self.base = self.model.attention_classifier
        self.mask_id = mask_id
        for module in self.model.modules():
            if isinstance(module, nn.RNNBase):
                # in eval mode cuDNN refuses a backward pass, on a CPU it is slow
                module.train()

    def sites(self) -> list[Site]:
        return [Site(self.layer)]

    @property
    def _resumable(self) -> bool:
        """Whether leave-one-out can resume from the states of the whole text."""
        config = self.model.config
        connection = getattr(config, "residual_connection", "none")
        return config.encoder in DELETION_METHODS and connection == "none"

    def get_visible_keys(self, observation: Observation, layer: int) -> Tensor:
        return observation.batch.mask[:, None]

    def select_row(self, observation: Observation, values: Tensor, site: Site) -> Tensor:
        return values[:, site.query or 0]

    def compute_native_probs(self, batch: Batch) -> Tensor | None:
        inputs = batch.tokenizer_output or batch.inputs
        given = {n: v.to(batch.mask.device) for n, v in inputs.items() if n != "units"}
        return self.compute_native_output(given).logits.softmax(-1)

    # Capabilities

    def get_states(self, observation: Observation, site: Site) -> Tensor:
        return observation.state.states

    def compute_head_values(self, observation: Observation) -> tuple[Tensor, ...]:
        """The encoder's states; attention averages them directly."""
        return (observation.state.states[:, None],)

    def replay_exchanged(
        self,
        observation: Observation,
        site: Site,
        units: Tensor,
        states: Mapping[int, Tensor],
    ) -> Tensor:
        """See the protocol: a unit's weight goes to the new state, as if it was one more key."""
        weights = observation.attention[self.layer].expand(len(units), -1, -1, -1, -1)
        place = units[:, :, None, None, None]
        moved = torch.cat([weights.scatter(-1, place, 0), weights.gather(-1, place)], -1)
        return self._probs_beside(observation, moved, states[self.layer])

    @abstractmethod
    def _probs_beside(self, observation: Observation, attention: Tensor, state: Tensor) -> Tensor:
        """Probabilities [copies, batch, classes] with one more state behind those of the text.

        Shape: attention [copies, batch, 1, 1, keys + 1], state [batch, 1, hidden].
        """

    def get_output_projections(self) -> tuple[Tensor, ...]:
        weight, width = (
            self.base.embeddings.weight,
            self.model.config.hidden_size,
        )
        return (torch.eye(width, dtype=weight.dtype, device=weight.device)[None],)

    def compute_scaled_gradient(
        self, observation: Observation, target: Tensor, scale: float, hold: bool
    ) -> Tensor:
        with torch.enable_grad():
            factor = torch.full_like(
                observation.batch.inputs["input_ids"],
                scale,
                dtype=observation.probs.dtype,
                requires_grad=True,
            )
            probs = self._scaled_probs(observation, factor, hold_attention=hold)
            # Of texts without words nothing depends on the factor.
            explained = compute_shifted_probability(probs, target).sum() + 0 * factor.sum()
            (slope,) = torch.autograd.grad(explained, factor)
        return slope

    def compute_attention_gradient(self, observation: Observation, target: Tensor) -> list[Tensor]:
        with torch.enable_grad():
            weights = observation.attention[self.layer].clone()
            weights.requires_grad_()
            edited = {self.layer: weights[None]}
            probs = self.replay(observation, edited)[0]
            explained = compute_shifted_probability(probs, target).sum()
            (slope,) = torch.autograd.grad(explained, weights)
        return [slope]

    @torch.no_grad()
    def compute_zero_embedding_probs(self, observation: Observation) -> Tensor:
        ids = observation.batch.inputs["input_ids"]
        factor = torch.zeros_like(ids, dtype=observation.probs.dtype)
        return self._scaled_probs(observation, factor, hold_attention=True)

    @abstractmethod
    def _scaled_probs(
        self, observation: Observation, factor: Tensor, *, hold_attention: bool
    ) -> Tensor:
        """Probabilities when each explained word vector is multiplied by its factor.

        Args:
            factor: [batch, keys].
            hold_attention: lets no gradient flow through the attention.
        """


class ClassifierAdapter(SingleHeadAdapter):
    """Reads and edits the attention of a classifier with a linear read-out.

    See :class:`SingleHeadAdapter` for the arguments.
    """

    def prepare(
        self,
        inputs: Mapping[str, Tensor],
        example_ids: tuple[int, ...],
        labels: Tensor | None = None,
    ) -> Batch:
        ids = inputs["input_ids"].to(self.model.device)
        mask = inputs["attention_mask"].to(self.model.device)
        content = self.base.content_mask(mask, ids)
        inputs = {"input_ids": ids, "attention_mask": mask}
        return Batch(inputs, content, content, tuple(example_ids), labels)

    @torch.no_grad()
    def observe(self, batch: Batch) -> Observation:
        ids = batch.inputs["input_ids"]
        mask = batch.inputs["attention_mask"]
        table = self.base.embeddings
        if self.model.config.encoder == "bilstm" and self._resumable:
            lstm = self.base.encoder.get_submodule("lstm")
            traces = trace_lstm(lstm, table.weight, ids, mask)
            states = torch.cat([one.get_states() for one in traces], dim=-1)
            embeddings = states[:0]
        else:
            traces, embeddings = [], table(ids)
            states = self.base.encode(embeddings, mask)
        token_logits = self.model.decode(states)
        weights = self.base.attend(states, batch.mask)
        attention = weights[:, None, None, :]
        state = ClassifierState(embeddings, traces, states, token_logits)
        probs = self._probs(attention[None], token_logits)[0]
        return Observation(self, batch, probs, (attention,), state)

    def replay(self, observation: Observation, attention: Mapping[int, Tensor]) -> Tensor:
        return self._probs(attention[self.layer], self.compute_token_logits(observation))

    def _probs(self, attention: Tensor, token_logits: Tensor) -> Tensor:
        """Returns the softmax of the read-out of Σ_t a_t h_t; attention need not sum to 1.

        Shape: attention [copies, batch, 1, 1, keys] -> [copies, batch, classes].
        """
        # An exact adversary is found in float64, whatever the audit computes in.
        finest = torch.promote_types(attention.dtype, token_logits.dtype)
        weights = attention[:, :, 0, 0].transpose(0, 1)  # [batch, copies, keys]
        weights = weights.to(finest)
        bias = self.get_readout_bias().to(finest)
        values = token_logits.to(finest) - bias
        if len(bias) == 2:  # [0, z]: half the work, and a sigmoid does not cancel
            score = weights @ values[..., 1:] + bias[1:]
            prob = score.sigmoid()
            prob = prob.transpose(0, 1)
            return torch.cat([1 - prob, prob], dim=-1)
        logits = weights @ values + bias
        return logits.softmax(-1).transpose(0, 1)

    # Capabilities

    def _probs_beside(self, observation: Observation, attention: Tensor, state: Tensor) -> Tensor:
        beside = self.model.decode(state)
        return self._probs(attention, torch.cat([self.compute_token_logits(observation), beside], 1))

    def compute_token_logits(self, observation: Observation) -> Tensor:
        return observation.state.token_logits

    def get_readout_bias(self) -> Tensor:
        weight = self.model.classifier.weight
        return self.model.decode(weight.new_zeros(self.model.config.hidden_size))

    def compute_gradient_times_input(self, observation: Observation, target: Tensor) -> Tensor:
        """See the protocol; through a BiLSTM that was traced by formula."""
        state = observation.state
        if not state.traces:
            return super().compute_gradient_times_input(observation, target)
        with torch.enable_grad():
            states = state.states.detach().requires_grad_()
            token_logits = self.model.decode(states)
            probs = self._probs(observation.attention[0][None], token_logits)
            explained = compute_shifted_probability(probs[0], target).sum()
            (slope,) = torch.autograd.grad(explained, states)
        return compute_gradient_times_input(state.traces, slope)

    def _scaled_probs(
        self, observation: Observation, factor: Tensor, *, hold_attention: bool
    ) -> Tensor:
        batch = observation.batch
        embeddings = self.base.embeddings(batch.inputs["input_ids"])
        scaled = embeddings * factor[..., None]
        states = self.base.encode(scaled, batch.inputs["attention_mask"])
        read = states.detach() if hold_attention else states
        attention = self.base.attend(read, batch.mask)[None, :, None, None]
        token_logits = self.model.decode(states)
        return self._probs(attention, token_logits)[0]

    @torch.no_grad()
    def compute_leave_one_out(self, observation: Observation) -> Tensor:
        batch = observation.batch
        if not self._resumable:
            return super().compute_leave_one_out(observation)
        mask = batch.inputs["attention_mask"]
        config, head = self.model.config, self.model.classifier
        readout = create_readout(config.attention, self.base.attention, head.weight)
        outputs = compute_leave_one_out_outputs(
            config.encoder,
            self.base.encoder,
            readout,
            observation.state,
            mask,
            batch.content_mask,
        )
        logits = outputs + head.bias
        if logits.shape[-1] > 1:
            return logits.softmax(-1)
        return torch.cat([(-logits).sigmoid(), logits.sigmoid()], dim=-1)

    @torch.no_grad()
    def erase_inputs(
        self, observation: Observation, erased: Tensor, *, operator: str = "deletion"
    ) -> Tensor:
        """See the protocol; a text without tokens is classified by the bias."""
        bias = self.get_readout_bias().softmax(-1)
        return compute_erased_probs(
            observation,
            erased,
            self._run,
            operator=operator,
            mask_id=self.mask_id,
            empty=bias.expand_as(observation.probs),
            pad_id=self.model.config.pad_token_id or 0,
            tokens_per_pass=TOKENS_PER_PASS,
        )

    def _run(self, texts: Mapping[str, Tensor]) -> Tensor:
        """Probabilities [n, classes] of texts."""
        return self.model(**texts).logits.softmax(-1)
