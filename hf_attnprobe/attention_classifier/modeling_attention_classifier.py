"""Attention classifiers as Transformers models: encode, attend, decode (Enc, φ, Dec of Jain & Wallace 2019, Section 2).

Shapes: *batch* texts, *keys* token positions, *hidden* the encoder's width, *classes* labels.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPooling, SequenceClassifierOutput
from transformers.utils import can_return_tuple

from .configuration_attention_classifier import AttentionClassifierConfig


class BiLSTMEncoder(nn.Module):
    """One bidirectional LSTM layer; padding is never read, so the backward direction starts at the last real token."""

    def __init__(self, config):
        super().__init__()
        self.lstm = nn.LSTM(config.embedding_size, config.encoder_size, batch_first=True, bidirectional=True)

    def forward(self, embeddings: Tensor, attention_mask: Tensor) -> Tensor:
        real = attention_mask.bool()
        if (real[:, 1:] & ~real[:, :-1]).any():  # packing reads the first positions, whatever they hold
            raise ValueError("expected padding on the right only; set tokenizer.padding_side = 'right'")
        lengths = real.sum(-1).clamp(min=1).cpu()
        packed = pack_padded_sequence(embeddings, lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=embeddings.shape[1])
        return states


class CNNEncoder(nn.Module):
    """Convolutions of several widths side by side, ReLU; one state per token, no pooling."""

    def __init__(self, config):
        super().__init__()
        n_filters = config.encoder_size // len(config.kernel_sizes)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(config.embedding_size, n_filters, size, padding=size // 2) for size in config.kernel_sizes
        )

    def forward(self, embeddings: Tensor, attention_mask: Tensor) -> Tensor:
        # Padding must look like the zero border that an unpadded text has.
        embeddings = (embeddings * attention_mask.unsqueeze(-1)).transpose(1, 2)
        return torch.cat([convolution(embeddings) for convolution in self.convolutions], dim=1).relu().transpose(1, 2)


class MLPEncoder(nn.Module):
    """Token-wise linear layer and tanh: no context at all (the papers' "average" encoder)."""

    def __init__(self, config):
        super().__init__()
        self.linear = nn.Linear(config.embedding_size, config.encoder_size)

    def forward(self, embeddings: Tensor, attention_mask: Tensor) -> Tensor:
        return self.linear(embeddings).tanh()


class NoEncoder(nn.Module):
    """The embeddings themselves."""

    def __init__(self, config):
        super().__init__()

    def forward(self, embeddings: Tensor, attention_mask: Tensor) -> Tensor:
        return embeddings


class AdditiveAttention(nn.Module):
    """score_t = v · tanh(W h_t + b)."""

    def __init__(self, config):
        super().__init__()
        size = config.attention_size or config.hidden_size // 2
        self.projection = nn.Linear(config.hidden_size, size)
        self.query = nn.Linear(size, 1, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        return self.query(self.projection(states).tanh()).squeeze(-1)


class DotProductAttention(nn.Module):
    """score_t = w · h_t / √hidden."""

    def __init__(self, config):
        super().__init__()
        self.query = nn.Linear(config.hidden_size, 1, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        return self.query(states).squeeze(-1) / states.shape[-1] ** 0.5


class UniformAttention(nn.Module):
    """score_t = 0: every real token gets 1/T."""

    def __init__(self, config):
        super().__init__()

    def forward(self, states: Tensor) -> Tensor:
        return states.new_zeros(states.shape[:-1])


ENCODERS = {"bilstm": BiLSTMEncoder, "cnn": CNNEncoder, "mlp": MLPEncoder, "none": NoEncoder}
ATTENTIONS = {"additive": AdditiveAttention, "dot_product": DotProductAttention, "uniform": UniformAttention}


class AttentionClassifierPreTrainedModel(PreTrainedModel):
    config_class = AttentionClassifierConfig
    base_model_prefix = "attention_classifier"
    supports_gradient_checkpointing = False

    def save_pretrained(self, *args, **kwargs):
        """As everywhere; the checkpoint also names the classes for both Auto classes, whichever of the two is saved."""
        self.config.auto_map = {
            "AutoConfig": "configuration_attention_classifier.AttentionClassifierConfig",
            "AutoModel": "modeling_attention_classifier.AttentionClassifierModel",
            "AutoModelForSequenceClassification": (
                "modeling_attention_classifier.AttentionClassifierForSequenceClassification"
            ),
        }
        super().save_pretrained(*args, **kwargs)

    def _init_weights(self, module):
        """PyTorch's own defaults, with which the papers' code trained: N(0, 1) word vectors, U(±1/√fan_in) elsewhere."""
        if isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=1.0)
            if module.padding_idx is not None:
                init.zeros_(module.weight[module.padding_idx])
        elif isinstance(module, (nn.Linear, nn.Conv1d, nn.LSTM)):
            fan_in = module.hidden_size if isinstance(module, nn.LSTM) else module.weight[0].numel()
            for parameter in module.parameters(recurse=False):
                init.uniform_(parameter, -(fan_in**-0.5), fan_in**-0.5)


class AttentionClassifierModel(AttentionClassifierPreTrainedModel):
    """Embeddings, encoder and attention: the context vector Σ_t a_t h_t without a read-out."""

    def __init__(self, config):
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.embedding_size, padding_idx=config.pad_token_id)
        self.encoder = ENCODERS[config.encoder](config)
        self.attention = ATTENTIONS[config.attention](config)
        self.post_init()

    def get_input_embeddings(self):
        return self.embeddings

    def set_input_embeddings(self, value):
        self.embeddings = value

    def default_attention_mask(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """Every position that is not padding, [batch, keys]; all of them where only ``inputs_embeds`` came."""
        if input_ids is None or self.config.pad_token_id is None:
            shape, device = (inputs_embeds if input_ids is None else input_ids).shape[:2], self.device
            return torch.ones(shape, dtype=torch.long, device=device)
        return (input_ids != self.config.pad_token_id).long()

    def content_mask(self, attention_mask: Tensor, input_ids: Tensor | None = None) -> Tensor:
        """Tokens that may receive attention, bool [batch, keys]: no padding, no start, no end.

        Without ``input_ids`` (only ``inputs_embeds`` came) start and end are the first and last unpadded position.
        """
        content = attention_mask.bool()
        specials = [i for i in (self.config.bos_token_id, self.config.eos_token_id) if i is not None]
        if input_ids is not None:
            return content & ~torch.isin(input_ids, torch.tensor(specials, device=input_ids.device))
        place, length = attention_mask.cumsum(-1), attention_mask.sum(-1, keepdim=True)
        if self.config.bos_token_id is not None:
            content = content & (place != 1)
        return content & (place != length) if self.config.eos_token_id is not None else content

    def encode(self, embeddings: Tensor, attention_mask: Tensor) -> Tensor:
        """Encoder states h, [batch, keys, hidden], from word vectors [batch, keys, embedding]."""
        return self.encoder(embeddings, attention_mask)

    def attend(self, states: Tensor, content_mask: Tensor) -> Tensor:
        """Attention a, [batch, keys]: sums to 1 over the content, exactly 0 elsewhere; all 0 for an empty text."""
        scores = self.attention(states).masked_fill(~content_mask, torch.finfo(states.dtype).min)
        return scores.softmax(-1) * content_mask

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        **kwargs,
    ) -> BaseModelOutputWithPooling:
        """``last_hidden_state`` h [batch, keys, hidden], ``pooler_output`` Σ_t a_t h_t [batch, hidden].

        ``attentions`` is a tuple of one tensor [batch, 1, 1, keys]: one layer, one head, one query.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("expected exactly one of input_ids and inputs_embeds")
        if attention_mask is None:
            attention_mask = self.default_attention_mask(input_ids, inputs_embeds)
        embeddings = self.embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        states = self.encode(embeddings, attention_mask)
        attention = self.attend(states, self.content_mask(attention_mask, input_ids))
        wanted = self.config.output_attentions if output_attentions is None else output_attentions
        return BaseModelOutputWithPooling(
            last_hidden_state=states,
            pooler_output=torch.einsum("bk,bkh->bh", attention, states),
            attentions=(attention[:, None, None, :],) if wanted else None,
        )


class AttentionClassifierForSequenceClassification(AttentionClassifierPreTrainedModel):
    """A linear read-out of the context vector. Two labels: one logit z, returned as [0, z]; more: one logit each."""

    def __init__(self, config):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.attention_classifier = AttentionClassifierModel(config)
        self.classifier = nn.Linear(config.hidden_size, 1 if config.num_labels == 2 else config.num_labels)
        self.post_init()

    def decode(self, context: Tensor) -> Tensor:
        """Logits [..., classes] of a context vector [..., hidden]; linear, so Σ_t a_t decode(h_t) = decode(Σ_t a_t h_t)."""
        logits = self.classifier(context)
        return torch.cat([torch.zeros_like(logits), logits], dim=-1) if self.num_labels == 2 else logits

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs,
    ) -> SequenceClassifierOutput:
        """Logits [batch, classes]; ``attentions`` (on request) a tuple of one tensor [batch, 1, 1, keys].

        ``labels`` [batch], integers, add the mean cross-entropy; for two labels that is the papers' binary one.
        """
        outputs = self.attention_classifier(
            input_ids,
            attention_mask,
            inputs_embeds=inputs_embeds,
            output_attentions=output_attentions,
            return_dict=True,
        )
        logits = self.decode(outputs.pooler_output)
        loss = None if labels is None else self.loss_function(labels, logits, self.config, **kwargs)
        states_wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        return SequenceClassifierOutput(
            loss=loss,
            logits=logits,
            hidden_states=(outputs.last_hidden_state,) if states_wanted else None,
            attentions=outputs.attentions,
        )


AttentionClassifierModel.register_for_auto_class("AutoModel")
AttentionClassifierForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")
