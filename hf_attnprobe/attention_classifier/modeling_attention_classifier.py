"""Attention classifiers as Transformers models: encode, attend, decode (Enc, φ, Dec of Jain & Wallace 2019, Section 2).

Shapes: *batch* texts, *keys* token positions, *hidden* the encoder's width, *classes* labels; in hierarchical models
also *sentences* of a text, and *rows*, all sentences of a batch.
"""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.utils import can_return_tuple

from .configuration_attention_classifier import AttentionClassifierConfig
from .layers_attention_classifier import ATTENTIONS, ENCODERS, attend
from .regularisers_attention_classifier import (
    RegularisedClassifierOutput,
    RegularisedModelOutput,
    Regulariser,
    connect,
)
from .sentences_attention_classifier import SentenceReader, Sentences, find_sentences


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
        """PyTorch's own defaults, with which the papers' code trained: N(0, 1) word vectors, U(±1/√fan_in) elsewhere.

        GRUs as Serrano & Smith (2019) have them: Xavier-uniform input weights, orthogonal recurrent ones, no bias.
        """
        if isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=1.0)
            if module.padding_idx is not None:
                init.zeros_(module.weight[module.padding_idx])
        elif isinstance(module, (nn.Linear, nn.Conv1d, nn.LSTM, nn.LSTMCell)):
            recurrent = isinstance(module, (nn.LSTM, nn.LSTMCell))
            fan_in = module.hidden_size if recurrent else module.weight[0].numel()
            for parameter in module.parameters(recurse=False):
                init.uniform_(parameter, -(fan_in**-0.5), fan_in**-0.5)
        elif isinstance(module, nn.GRU):
            start = {"weight_ih": init.xavier_uniform_, "weight_hh": init.orthogonal_}
            for name, parameter in module.named_parameters():
                start.get(name[:9], init.zeros_)(parameter)


class AttentionClassifierModel(AttentionClassifierPreTrainedModel):
    """Embeddings, encoder and attention: the context vector Σ_t a_t h_t without a read-out.

    A hierarchical model has ``encoder`` and ``attention`` for the words of a sentence, ``sentences`` for what follows.
    """

    def __init__(self, config):
        super().__init__(config)
        self.embeddings = nn.Embedding(
            config.vocab_size, config.embedding_size, padding_idx=config.pad_token_id
        )
        self.dropout = nn.Dropout(config.embedding_dropout)
        self.encoder = ENCODERS[config.encoder](config, config.embedding_size)
        self.attention = ATTENTIONS[config.attention](config)
        if config.hierarchical:
            self.sentences = SentenceReader(config)
        self.regulariser = Regulariser(config)
        self.post_init()

    def get_input_embeddings(self):
        return self.embeddings

    def set_input_embeddings(self, value):
        self.embeddings = value

    def default_attention_mask(
        self, input_ids: Tensor | None, inputs_embeds: Tensor | None
    ) -> Tensor:
        """Every position that is not padding, [batch, keys]; all of them where only ``inputs_embeds`` came."""
        if input_ids is None or self.config.pad_token_id is None:
            shape, device = (
                (inputs_embeds if input_ids is None else input_ids).shape[:2],
                self.device,
            )
            return torch.ones(shape, dtype=torch.long, device=device)
        return (input_ids != self.config.pad_token_id).long()

    def content_mask(
        self, attention_mask: Tensor, input_ids: Tensor | None = None
    ) -> Tensor:
        """Tokens that may receive attention, bool [batch, keys]: no padding, no start, no end, no separator.

        Without ``input_ids`` (only ``inputs_embeds`` came) start and end are the first and last unpadded position.
        """
        content = attention_mask.bool()
        ids = (
            self.config.bos_token_id,
            self.config.eos_token_id,
            self.config.sep_token_id,
        )
        specials = [i for i in ids if i is not None]
        if input_ids is not None:
            return content & ~torch.isin(
                input_ids, torch.tensor(specials, device=input_ids.device)
            )
        place, length = attention_mask.cumsum(-1), attention_mask.sum(-1, keepdim=True)
        if self.config.bos_token_id is not None:
            content = content & (place != 1)
        return (
            content & (place != length)
            if self.config.eos_token_id is not None
            else content
        )

    def encode(self, embeddings: Tensor, attention_mask: Tensor) -> Tensor:
        """States h, [batch, keys, hidden], from word vectors [batch, keys, embedding]."""
        return connect(
            self.encoder(embeddings, attention_mask),
            embeddings,
            self.config.residual_connection,
        )

    def attend(self, states: Tensor, content_mask: Tensor) -> Tensor:
        """Attention a, [batch, keys]: sums to 1 over the content, exactly 0 elsewhere; all 0 for an empty text."""
        return attend(self.attention, states, content_mask)

    def read_words(
        self, embeddings: Tensor, sentences: Sentences, *, hold_attention: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Sentence vectors [rows, hidden] and the attention of words [batch, keys], from word vectors [batch, keys, …].

        ``hold_attention``: no gradient flows through the attention.
        """
        words = embeddings.flatten(0, 1)
        vectors, attention = (
            words.new_zeros(len(sentences.begin), self.config.hidden_size),
            words.new_zeros(len(words)),
        )
        for rows in sentences.groups():
            places, mask = sentences.words(rows)
            states = self.encode(
                words.index_select(0, places.flatten()).unflatten(0, places.shape),
                mask.long(),
            )
            weights = self.attend(states.detach() if hold_attention else states, mask)
            vectors = vectors.index_copy(
                0, rows, torch.einsum("rc,rch->rh", weights, states)
            )
            attention = attention.index_copy(0, places[mask], weights[mask])
        return vectors, attention.view(embeddings.shape[:2])

    def read_sentences(
        self, vectors: Tensor, sentences: Sentences
    ) -> tuple[Tensor, Tensor]:
        """States [batch, sentences, hidden] and attention [batch, sentences], from sentence vectors [rows, hidden]."""
        mask = sentences.mask()
        states = self.sentences.encode(sentences.stack(vectors), mask)
        return states, self.sentences.attend(states, mask)

    def read(
        self,
        embeddings: Tensor,
        attention_mask: Tensor,
        content_mask: Tensor,
        *,
        of_words: bool = True,
        guide: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """States that the context vector is made of, and the attention of every level, [batch, queries, keys].

        ``of_words=False`` leaves out the large map of words in a hierarchical model.
        """
        if guide is not None and self.config.attention != "guided":
            raise ValueError(
                f"expected no guide: the attention of this model is {self.config.attention}, not guided"
            )
        if not self.config.hierarchical:
            states = self.encode(embeddings, attention_mask)
            attention = (
                self.attend(states, content_mask)
                if guide is None
                else guide * content_mask
            )
            return states, (attention[:, None],)
        sentences = find_sentences(content_mask)
        vectors, words = self.read_words(embeddings, sentences)
        states, attention = self.read_sentences(vectors, sentences)
        return states, (
            *([sentences.spread(words)] if of_words else []),
            attention[:, None],
        )

    def regularization(
        self,
        states: Tensor,
        embeddings: Tensor,
        attention_mask: Tensor,
        content_mask: Tensor,
        input_ids: Tensor | None,
    ) -> Tensor | None:
        """What the training loss of every text has besides the task's, [batch]; None while not training, and without any."""
        if not (self.training and self.config.is_regularised):
            return None

        def encode_masked(masked: Tensor) -> Tensor:
            stand_in = self.embeddings.weight[self.config.unk_token_id]
            return self.encode(
                self.dropout(stand_in).where(masked.unsqueeze(-1), embeddings),
                attention_mask,
            )

        return self.regulariser(
            states, embeddings, content_mask, input_ids, encode_masked
        )

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        guide: Tensor | None = None,
        **kwargs,
    ) -> RegularisedModelOutput:
        """``last_hidden_state`` h [batch, keys, hidden], ``pooler_output`` Σ_t a_t h_t [batch, hidden].

        ``attentions`` is a tuple of one tensor [batch, 1, 1, keys]: one layer, one head, one query. Of a hierarchical
        model h are the sentences, and ``attentions`` two tensors, of words [batch, 1, sentences, keys], each sentence a
        query, and of sentences [batch, 1, 1, sentences].

        ``guide``: the attention weights [batch, keys] of a model with ``attention="guided"``, taken as they are at the
        content and 0 elsewhere.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("expected exactly one of input_ids and inputs_embeds")
        if attention_mask is None:
            attention_mask = self.default_attention_mask(input_ids, inputs_embeds)
        embeddings = (
            self.embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        )
        content_mask = self.content_mask(attention_mask, input_ids)
        wanted = (
            self.config.output_attentions
            if output_attentions is None
            else output_attentions
        )
        embeddings = self.dropout(embeddings)
        states, attentions = self.read(
            embeddings, attention_mask, content_mask, of_words=wanted, guide=guide
        )
        return RegularisedModelOutput(
            last_hidden_state=states,
            pooler_output=torch.einsum("bk,bkh->bh", attentions[-1][:, 0], states),
            attentions=tuple(attention[:, None] for attention in attentions)
            if wanted
            else None,
            regularization=self.regularization(
                states, embeddings, attention_mask, content_mask, input_ids
            ),
        )


class AttentionClassifierForSequenceClassification(AttentionClassifierPreTrainedModel):
    """A linear read-out of the context vector. Two labels: one logit z, returned as [0, z]; more: one logit each."""

    def __init__(self, config):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.attention_classifier = AttentionClassifierModel(config)
        self.dropout = nn.Dropout(config.logit_dropout)
        self.classifier = nn.Linear(
            config.hidden_size, 1 if config.num_labels == 2 else config.num_labels
        )
        self.post_init()

    def decode(self, context: Tensor) -> Tensor:
        """Logits [..., classes] of a context vector [..., hidden]; linear, so Σ_t a_t decode(h_t) = decode(Σ_t a_t h_t)."""
        logits = self.classifier(context)
        return (
            torch.cat([torch.zeros_like(logits), logits], dim=-1)
            if self.num_labels == 2
            else logits
        )

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        guide: Tensor | None = None,
        **kwargs,
    ) -> RegularisedClassifierOutput:
        """Logits [batch, classes]; ``attentions`` (on request) and ``guide`` as in :class:`AttentionClassifierModel`.

        ``labels`` [batch], integers, add the mean cross-entropy; for two labels that is the papers' binary one.
        """
        outputs = self.attention_classifier(
            input_ids,
            attention_mask,
            inputs_embeds=inputs_embeds,
            output_attentions=output_attentions,
            guide=guide,
            return_dict=True,
        )
        logits = self.dropout(self.decode(outputs.pooler_output))
        loss = (
            None
            if labels is None
            else self.loss_function(labels, logits, self.config, **kwargs)
        )
        if loss is not None and outputs.regularization is not None:
            n_texts = kwargs.get("num_items_in_batch") or len(
                logits
            )  # more than here where gradients accumulate
            loss = loss + outputs.regularization.sum() / n_texts
        states_wanted = (
            self.config.output_hidden_states
            if output_hidden_states is None
            else output_hidden_states
        )
        return RegularisedClassifierOutput(
            loss=loss,
            logits=logits,
            hidden_states=(outputs.last_hidden_state,) if states_wanted else None,
            attentions=outputs.attentions,
            regularization=outputs.regularization,
        )


AttentionClassifierModel.register_for_auto_class("AutoModel")
AttentionClassifierForSequenceClassification.register_for_auto_class(
    "AutoModelForSequenceClassification"
)
