"""Our own attention classifiers as an :class:`AttentionModel`: encode, attend, decode, no hooks."""

import copy
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hf_attnprobe.adapters.classifier.leave_one_out import PARTS, leave_one_out_logits
from hf_attnprobe.adapters.classifier.lstm import States, Trace, trace
from hf_attnprobe.adapters.input_erasure import erase_classifier_inputs
from hf_attnprobe.attention_model import (
    AttentionModelBase,
    Batch,
    HeadOutputs,
    Observation,
    Site,
    Stack,
)
from hf_attnprobe.errors import AttnProbeError


class ClassifierState(NamedTuple):
    """What one forward pass leaves for the tests; ``states`` and ``token_logits`` carry the graph to ``factor``.

    factor: ones [batch, keys] on the word vectors; the derivative with respect to it is gradient × input.
    embeddings: the word vectors, or None where the encoder keeps ``traces`` of its run (bilstm) and needs them no more.
    """

    factor: Tensor
    embeddings: Tensor | None
    traces: tuple[Trace, ...]
    states: Tensor
    token_logits: Tensor


class ClassifierAdapter(AttentionModelBase):
    """Reads and edits the attention of an :class:`AttentionClassifierForSequenceClassification`.

    Works on a frozen copy in ``dtype``; the user's model stays as it was. The default is float64: leave-one-out ranks
    differences of 1e-8 where a prediction is saturated, and in float32 such ranks change with the batch.
    """

    layer = 0  # where the attention is that is read and edited
    pads_left = False
    mask_id: int | None = None
    reference = None  # one head, and its mean output is the mean state of other texts: nothing a reader would ask for

    def __init__(self, model, *, dtype: torch.dtype = torch.float64):
        self.model = copy.deepcopy(model).to(dtype).eval().requires_grad_(False)
        self.base = self.model.attention_classifier
        for module in self.model.modules():
            if isinstance(
                module, nn.RNNBase
            ):  # in eval mode cuDNN refuses a backward pass, on a CPU it is slow
                module.train()

    def self_check(self, batch: Batch) -> None:
        """Nothing to check: an edit is an argument of the read-out here, there is no hook that could miss."""

    def lacks(self, capability: type, site: Site | None = None) -> str | None:
        if capability in (HeadOutputs, Stack):
            return "an attention classifier has a single head, in a single layer"
        return super().lacks(capability, site)

    def sites(self) -> list[Site]:
        return [Site(self.layer)]

    def prepare(
        self,
        inputs: Mapping[str, Tensor],
        example_ids: tuple[int, ...],
        labels: Tensor | None = None,
    ) -> Batch:
        inputs = {
            name: inputs[name].to(self.model.device)
            for name in ("input_ids", "attention_mask")
        }
        content = self.base.content_mask(inputs["attention_mask"], inputs["input_ids"])
        return Batch(inputs, content, content, tuple(example_ids), labels)

    def observe(self, batch: Batch) -> Observation:
        with torch.enable_grad():
            factor, embeddings, traces, states = self._encode(**batch.inputs)
            token_logits = self.model.decode(states)
        attention = self.base.attend(states.detach(), batch.mask)[:, None, None, :]
        state = ClassifierState(factor, embeddings, traces, states, token_logits)
        probs = self._probs(attention[None], token_logits.detach())[0]
        return Observation(self, batch, probs, (attention,), state)

    def _encode(self, input_ids: Tensor, attention_mask: Tensor):
        """Factor, embeddings, traces and states of a :class:`ClassifierState`."""
        factor = torch.ones(
            input_ids.shape,
            dtype=self.model.dtype,
            device=input_ids.device,
            requires_grad=True,
        )
        if self.model.config.encoder == "bilstm" and self._resumable:
            traces = trace(
                self.base.encoder.lstm,
                self.base.embeddings.weight,
                input_ids,
                attention_mask,
            )
            return factor, None, traces, States.apply(factor, *traces)
        embeddings = self.base.embeddings(input_ids)
        return (
            factor,
            embeddings,
            (),
            self.base.encode(embeddings * factor.unsqueeze(-1), attention_mask),
        )

    def read(self, observation: Observation, site: Site) -> Tensor:
        return self.read_map(
            observation, observation.attention[site.layer][:, site.head], site
        )

    def visible(self, observation: Observation, layer: int) -> Tensor:
        return observation.batch.mask[:, None]

    def replay(
        self, observation: Observation, attention: Mapping[int, Tensor]
    ) -> Tensor:
        return self._probs(attention[self.layer], self.token_logits(observation))

    def _probs(self, attention: Tensor, token_logits: Tensor) -> Tensor:
        """Softmax of the read-out of Σ_t a_t h_t, [copies, batch, classes]; attention need not sum to 1."""
        weights = attention[:, :, 0, 0].transpose(0, 1)  # [batch, copies, keys]
        bias = self.model.decode(token_logits.new_zeros(self.model.config.hidden_size))
        if len(bias) == 2:  # [0, z]: half the work, and a sigmoid does not cancel
            prob = (
                (weights @ (token_logits - bias)[..., 1:] + bias[1:])
                .sigmoid()
                .transpose(0, 1)
            )
            return torch.cat([1 - prob, prob], dim=-1)
        return (weights @ (token_logits - bias) + bias).softmax(-1).transpose(0, 1)

    def set_reference(self, batch: Batch) -> None:
        """Nothing is kept: the output of the only head is silenced, never replaced."""

    def replay_masked(
        self, observation: Observation, kept: Mapping[int, Tensor]
    ) -> Tensor:
        return self.replay(
            observation,
            {self.layer: observation.attention[self.layer] * kept[self.layer]},
        )

    def replay_outputs(
        self, observation: Observation, site: Site, outputs: Tensor
    ) -> Tensor:
        raise AttnProbeError(
            "expected a Transformer to replace head outputs in, got an attention classifier"
        )

    def read_map(self, observation: Observation, values: Tensor, site: Site) -> Tensor:
        return values[:, site.query or 0]

    def positions(self, observation: Observation, layer: int, units: Tensor) -> Tensor:
        return units

    def head_values(self, observation: Observation) -> tuple[Tensor, ...]:
        """The encoder's states: the attention averages them as they are."""
        return (observation.state.states.detach()[:, None],)

    def states(self, observation: Observation, site: Site) -> Tensor:
        return observation.state.states.detach()

    def layers_below(self, layer: int) -> list[int]:
        raise AttnProbeError(
            "expected a Transformer for an explanation over layers, got an attention classifier"
        )

    @property
    def output_projections(self) -> tuple[Tensor, ...]:
        return (
            torch.eye(
                self.model.config.hidden_size,
                dtype=self.model.dtype,
                device=self.model.device,
            )[None],
        )

    def block_output(
        self, observation: Observation, layer: int, kept: Tensor
    ) -> Tensor:
        raise AttnProbeError(
            "expected a Transformer for an explanation over layers, got an attention classifier"
        )

    def gradient(
        self, observation: Observation, target: Tensor, *, hold_attention: bool = True
    ) -> Tensor:
        state = observation.state
        with torch.enable_grad():
            attention = observation.attention[0][None]
            if not hold_attention:
                attention = self.base.attend(state.states, observation.batch.mask)[
                    None, :, None, None, :
                ]
            explained = (
                self._probs(attention, state.token_logits)[0]
                .gather(-1, target[:, None])
                .sum()
            )
            (slope,) = torch.autograd.grad(explained, state.factor, retain_graph=True)
        return slope

    def attention_gradient(
        self, observation: Observation, target: Tensor
    ) -> list[Tensor]:
        """In closed form: p (z_target − Σ_k p_k z_k) with z_t = W h_t, for the probability p of a linear read-out."""
        logits, probs = (
            self.token_logits(observation) - self.readout_bias(),
            observation.probs,
        )
        place = target[:, None, None].expand(-1, logits.shape[1], 1)
        above_mean = (
            logits.gather(-1, place)[..., 0] - (logits @ probs.unsqueeze(-1))[..., 0]
        )
        return [(probs.gather(-1, target[:, None]) * above_mean)[:, None, None]]

    @property
    def _resumable(self) -> bool:
        """Whether leave-one-out need not encode anew: states that take word vectors along, it does not know."""
        config = self.model.config
        return (
            config.encoder in PARTS
            and getattr(config, "residual_connection", "none") == "none"
        )

    @torch.no_grad()
    def leave_one_out(self, observation: Observation) -> Tensor:
        batch = observation.batch
        if not self._resumable:
            each = torch.eye(
                batch.mask.shape[1], dtype=torch.bool, device=batch.mask.device
            )
            return self.erase_inputs(
                observation, each[:, None].expand(-1, len(batch.mask), -1)
            ).transpose(0, 1)
        mask = batch.inputs["attention_mask"]
        logits = leave_one_out_logits(
            self.model, observation.state, mask, batch.content_mask
        )
        if logits.shape[-1] > 1:
            return logits.softmax(-1)
        return torch.cat([(-logits).sigmoid(), logits.sigmoid()], dim=-1)

    def erase_inputs(
        self, observation: Observation, erased: Tensor, *, by: str = "deletion"
    ) -> Tensor:
        return erase_classifier_inputs(self, observation, erased, by)

    def token_logits(self, observation: Observation) -> Tensor:
        return observation.state.token_logits.detach()

    def readout_bias(self) -> Tensor:
        return self.model.decode(
            self.model.classifier.weight.new_zeros(self.model.config.hidden_size)
        )

    def bytes_per_example(
        self, n_keys: int, n_copies: int, *, backward: bool = True
    ) -> int:
        width = self.model.config.hidden_size
        numbers = n_keys * (60 * width + 8 * n_copies) + n_keys**2 * (
            8 + 4 * self.model.num_labels
        )
        return numbers * self.model.classifier.weight.element_size()
