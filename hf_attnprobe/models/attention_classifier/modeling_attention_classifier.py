"""Attention classifiers as Transformers models: encode, attend, decode.

These are Enc, φ and Dec of Jain & Wallace 2019, Section 2. Shapes: *batch* texts,
*keys* token positions, *hidden* the encoder's width, *classes* labels; in
hierarchical models also *sentences* of a text, and *rows*, all sentences of a batch. In
models of pairs a text is two texts in one sequence.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.utils import can_return_tuple

from .configuration_attention_classifier import AttentionClassifierConfig
from .layers_attention_classifier import ATTENTIONS, ENCODERS, attend
from .pairs_attention_classifier import (
    QUERIED_ATTENTIONS,
    Pair,
    PairDecoder,
    QueryReader,
    all_if_none,
    check_answers,
    find_candidates,
    split_pair,
)
from .regularisers_attention_classifier import (
    RegularisedClassifierOutput,
    RegularisedModelOutput,
    Regulariser,
    connect,
)
from .sentences_attention_classifier import (
    SentenceReader,
    Sentences,
    find_sentences,
)


class AttentionClassifierPreTrainedModel(PreTrainedModel):
    config: AttentionClassifierConfig
    config_class = AttentionClassifierConfig
    base_model_prefix = "attention_classifier"
    supports_gradient_checkpointing = False

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """As in Transformers; the checkpoint names the classes of both Auto classes."""
        self.config.auto_map = {
            "AutoConfig": "configuration_attention_classifier.AttentionClassifierConfig",
            "AutoModel": "modeling_attention_classifier.AttentionClassifierModel",
            "AutoModelForSequenceClassification": (
                "modeling_attention_classifier.AttentionClassifierForSequenceClassification"
            ),
        }
        super().save_pretrained(*args, **kwargs)

    def _init_weights(self, module: nn.Module) -> None:
        """PyTorch's defaults, with which the papers' code trained.

        Word vectors N(0, 1), U(±1/√fan_in) elsewhere. GRUs as in Serrano & Smith 2019:
        Xavier-uniform input weights, orthogonal recurrent ones, no bias.
        """
        if isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=1.0)
            if module.padding_idx is not None:
                init.zeros_(module.weight[module.padding_idx])
        elif isinstance(module, (nn.LSTM, nn.LSTMCell)):
            _init_uniform(module, module.hidden_size)
        elif isinstance(module, (nn.Linear, nn.Conv1d)):
            _init_uniform(module, module.weight[0].numel())
        elif isinstance(module, nn.GRU):
            for name, parameter in module.named_parameters():
                if name.startswith("weight_ih"):
                    init.xavier_uniform_(parameter)
                elif name.startswith("weight_hh"):
                    init.orthogonal_(parameter)
                else:
                    init.zeros_(parameter)


def _init_uniform(module: nn.Module, fan_in: int) -> None:
    bound = fan_in**-0.5
    for parameter in module.parameters(recurse=False):
        init.uniform_(parameter, -bound, bound)


class AttentionClassifierModel(AttentionClassifierPreTrainedModel):
    """Embeddings, encoder and attention: the context vector Σ_t a_t h_t, no read-out.

    A hierarchical model has ``encoder`` and ``attention`` for the words of a sentence,
    and ``sentences`` for the sentences of the text. A model of pairs has
    ``query_reader`` for the second text; everything else is for the first.
    """

    def __init__(self, config: AttentionClassifierConfig) -> None:
        super().__init__(config)
        self.embeddings = nn.Embedding(
            config.vocab_size,
            config.embedding_size,
            padding_idx=config.pad_token_id,
        )
        self.dropout = nn.Dropout(config.embedding_dropout)
        self.encoder = ENCODERS[config.encoder](config, config.embedding_size)
        kinds = QUERIED_ATTENTIONS if config.query_encoder else ATTENTIONS
        self.attention = kinds[config.attention](config)
        if config.query_encoder:
            self.query_reader = QueryReader(config)
        if config.hierarchical:
            self.sentences = SentenceReader(config)
        self.regulariser = Regulariser(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        assert isinstance(value, nn.Embedding)  # the only table this model reads
        self.embeddings = value

    def default_attention_mask(
        self, input_ids: Tensor | None, inputs_embeds: Tensor | None
    ) -> Tensor:
        """Every position that is not padding, int64 [batch, keys].

        All positions where only ``inputs_embeds`` are given.
        """
        if input_ids is not None and self.config.pad_token_id is not None:
            return (input_ids != self.config.pad_token_id).long()
        inputs = inputs_embeds if input_ids is None else input_ids
        assert inputs is not None  # ``forward`` checks that one of both is given
        return torch.ones(inputs.shape[:2], dtype=torch.long, device=self.device)

    def content_mask(self, attention_mask: Tensor, input_ids: Tensor | None = None) -> Tensor:
        """Tokens that may receive attention: no padding, start, end or separator.

        Args:
            attention_mask: [batch, keys].
            input_ids: int64 [batch, keys]. Without them (``inputs_embeds`` are given)
                start and end are the first and the last unpadded position.

        Returns:
            bool [batch, keys].
        """
        config = self.config
        content = attention_mask.bool()
        if input_ids is not None:
            ids = (
                config.bos_token_id,
                config.eos_token_id,
                config.sep_token_id,
            )
            special_ids = [i for i in ids if i is not None]
            specials = torch.tensor(special_ids, device=input_ids.device)
            return content & ~torch.isin(input_ids, specials)
        position = attention_mask.cumsum(-1)
        if config.bos_token_id is not None:
            content = content & (position != 1)
        if config.eos_token_id is not None:
            content = content & (position != attention_mask.sum(-1, keepdim=True))
        return content

    def encode(self, embeddings: Tensor, attention_mask: Tensor) -> Tensor:
        """States h [batch, keys, hidden] of word vectors [batch, keys, embedding]."""
        states = self.encoder(embeddings, attention_mask)
        return connect(states, embeddings, self.config.residual_connection)

    def attend(self, states: Tensor, content_mask: Tensor, query: Tensor | None = None) -> Tensor:
        """Attention a [batch, keys] over states [batch, keys, hidden].

        It sums to 1 over the content and is exactly 0 elsewhere; all 0 for an empty
        text.

        Args:
            query: what a model of pairs asks, [batch, hidden].
        """
        return attend(self.attention, states, content_mask, query)

    def embed(self, input_ids: Tensor, pair: Pair | None = None) -> Tensor:
        """Word vectors [batch, keys, embedding]; of a pair each text's own."""
        if pair is None:
            return self.embeddings(input_ids)
        is_first = pair.first.bool()
        of_first = self.embeddings(input_ids)
        of_second = self.query_reader.embeddings(input_ids)
        return torch.where(is_first.unsqueeze(-1), of_first, of_second)

    def read_query(self, embeddings: Tensor, pair: Pair, input_ids: Tensor | None = None) -> Tensor:
        """What the second text asks, q [batch, hidden].

        Args:
            embeddings: word vectors of both texts [batch, keys, embedding].
            pair: where the texts are.
            input_ids: int64 [batch, keys], see :meth:`content_mask`.
        """
        ids = None if input_ids is None else pair.of_second(input_ids)
        content = self.content_mask(pair.second, ids)
        return self.query_reader(pair.of_second(embeddings), pair.second, content)

    def candidates(self, input_ids: Tensor | None, first: Tensor) -> Tensor | None:
        """The answers that the first text allows, bool [batch, classes]; None is all.

        Args:
            input_ids: int64 [batch, keys].
            first: tokens of the first text, [batch, keys].

        Raises:
            ValueError: no ``input_ids`` to find them in.
        """
        answers = self.config.answer_token_ids
        if answers is None:
            return None
        if input_ids is None:
            raise ValueError(
                "expected input_ids to find the candidates in, got only inputs_embeds; "
                "pass candidates=[batch, classes]"
            )
        return find_candidates(input_ids, first, list(answers))

    def read_words(
        self,
        embeddings: Tensor,
        sentences: Sentences,
        *,
        hold_attention: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """The first level of a hierarchical model.

        Args:
            embeddings: word vectors [batch, keys, embedding].
            sentences: where the sentences are.
            hold_attention: lets no gradient flow through the attention.

        Returns:
            Sentence vectors [rows, hidden] and the attention of words [batch, keys].
        """
        words = embeddings.flatten(0, 1)
        vectors = words.new_zeros(len(sentences.begin), self.config.hidden_size)
        attention = words.new_zeros(len(words))
        for rows in sentences.groups():
            positions, mask = sentences.words(rows)
            inputs = words.index_select(0, positions.flatten())
            states = self.encode(inputs.unflatten(0, positions.shape), mask.long())
            weights = self.attend(states.detach() if hold_attention else states, mask)
            contexts = torch.einsum("rc,rch->rh", weights, states)
            vectors = vectors.index_copy(0, rows, contexts)
            attention = attention.index_copy(0, positions[mask], weights[mask])
        return vectors, attention.view(embeddings.shape[:2])

    def read_sentences(self, vectors: Tensor, sentences: Sentences) -> tuple[Tensor, Tensor]:
        """The second level of a hierarchical model.

        Args:
            vectors: sentence vectors [rows, hidden].
            sentences: where the sentences are.

        Returns:
            States [batch, sentences, hidden] and attention [batch, sentences].
        """
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
        query: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """States and attention.

        Args:
            embeddings: word vectors [batch, keys, embedding].
            attention_mask, content_mask: [batch, keys].
            of_words: whether a hierarchical model returns the large map of words.
            guide: imposed attention [batch, keys].
            query: what a model of pairs asks, [batch, hidden].

        Returns:
            The states that the context vector is made of, [batch, keys, hidden] (of
            sentences in a hierarchical model), and the attention of every level,
            [batch, queries, keys].
        """
        if guide is not None and self.config.attention != "guided":
            raise ValueError(
                "expected no guide: the attention of this model is "
                f"{self.config.attention}, not guided"
            )
        if not self.config.hierarchical:
            states = self.encode(embeddings, attention_mask)
            if guide is None:
                attention = self.attend(states, content_mask, query)
            else:
                attention = guide * content_mask
            return states, (attention[:, None],)
        sentences = find_sentences(content_mask)
        vectors, words = self.read_words(embeddings, sentences)
        states, attention = self.read_sentences(vectors, sentences)
        if of_words:
            return states, (sentences.spread(words), attention[:, None])
        return states, (attention[:, None],)

    def regularization(
        self,
        states: Tensor,
        embeddings: Tensor,
        attention_mask: Tensor,
        content_mask: Tensor,
        input_ids: Tensor | None,
    ) -> Tensor | None:
        """The penalties in the training loss of every text, [batch].

        None in eval mode, and for a model without penalties.
        """
        if not (self.training and self.config.is_regularised):
            return None

        def encode_masked(masked: Tensor) -> Tensor:
            mask_vector = self.dropout(self.embeddings.weight[self.config.unk_token_id])
            inputs = mask_vector.where(masked.unsqueeze(-1), embeddings)
            return self.encode(inputs, attention_mask)

        return self.regulariser(states, embeddings, content_mask, input_ids, encode_masked)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        guide: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        candidates: Tensor | None = None,
        **kwargs: Any,
    ) -> RegularisedModelOutput:
        """Encode and attend.

        Args:
            input_ids: int64 [batch, keys]; or ``inputs_embeds`` instead.
            attention_mask: [batch, keys]; default: all but padding.
            inputs_embeds: word vectors [batch, keys, embedding].
            output_attentions: whether ``attentions`` are returned.
            guide: the attention weights [batch, keys] of a model with
                ``attention="guided"``, taken as they are at the content, 0 elsewhere.
            token_type_ids: int64 [batch, keys], for models of pairs: 0 in the first
                text, 1 in the second.
            candidates: bool [batch, classes], for models of pairs: the answers that are
                allowed; default: see ``answer_token_ids`` of the configuration.

        Returns:
            ``last_hidden_state`` h [batch, keys, hidden], ``pooler_output`` Σ_t a_t h_t
            [batch, hidden], and ``attentions``, a tuple of one tensor
            [batch, 1, 1, keys]: one layer, one head, one query. In a hierarchical model
            h are sentences, and ``attentions`` two tensors: of words
            [batch, 1, sentences, keys], each sentence a query, and of sentences
            [batch, 1, 1, sentences]. In a model of pairs they are of the first text,
            with attention 0 at the second, which is ``query_state`` [batch, hidden].
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("expected exactly one of input_ids and inputs_embeds")
        if attention_mask is None:
            attention_mask = self.default_attention_mask(input_ids, inputs_embeds)
        pair = None
        if self.config.query_encoder:
            pair = split_pair(attention_mask, token_type_ids)
            attention_mask = pair.first
        if inputs_embeds is None:
            assert input_ids is not None  # one of both is given
            inputs_embeds = self.embed(input_ids, pair)
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        content_mask = self.content_mask(attention_mask, input_ids)
        embeddings = self.dropout(inputs_embeds)
        query = None
        if pair is not None:
            query = self.read_query(embeddings, pair, input_ids)
            if candidates is None:
                candidates = self.candidates(input_ids, pair.first)
            else:
                candidates = all_if_none(candidates.bool())
        states, levels = self.read(
            embeddings,
            attention_mask,
            content_mask,
            of_words=output_attentions,
            guide=guide,
            query=query,
        )
        attentions = tuple(attention[:, None] for attention in levels)
        return RegularisedModelOutput(
            last_hidden_state=states,
            pooler_output=torch.einsum("bk,bkh->bh", levels[-1][:, 0], states),
            attentions=attentions if output_attentions else None,
            regularization=self.regularization(
                states, embeddings, attention_mask, content_mask, input_ids
            ),
            query_state=query,
            candidates=candidates,
        )


class AttentionClassifierForSequenceClassification(AttentionClassifierPreTrainedModel):
    """A linear read-out of the context vector.

    Two labels: one logit z, returned as [0, z]; more labels: one logit each. A model of
    pairs reads context and query out with a tanh layer, one logit for each label.
    """

    def __init__(self, config: AttentionClassifierConfig) -> None:
        super().__init__(config)
        assert config.num_labels is not None  # the configuration has checked it
        self.num_labels = config.num_labels
        self.attention_classifier = AttentionClassifierModel(config)
        self.dropout = nn.Dropout(config.logit_dropout)
        n_logits = 1 if self.num_labels == 2 else self.num_labels
        self.classifier: Any  # a PairDecoder or an nn.Linear
        if config.query_encoder:
            self.classifier = PairDecoder(config)
        else:
            self.classifier = nn.Linear(config.hidden_size, n_logits)
        self.post_init()

    def decode(self, context: Tensor, query: Tensor | None = None) -> Tensor:
        """Logits [..., classes] of a context vector [..., hidden].

        Without ``query`` linear, so Σ_t a_t decode(h_t) = decode(Σ_t a_t h_t).

        Args:
            query: what a model of pairs asks, [..., hidden].
        """
        if query is not None:
            return self.classifier(context, query)
        logits = self.classifier(context)
        if self.num_labels == 2:
            logits = torch.cat([torch.zeros_like(logits), logits], dim=-1)
        return logits

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
        token_type_ids: Tensor | None = None,
        candidates: Tensor | None = None,
        **kwargs: Any,
    ) -> RegularisedClassifierOutput:
        """Classify; the other arguments are those of :class:`AttentionClassifierModel`.

        Args:
            labels: int64 [batch]; adds the mean cross-entropy, which for two labels is
                the papers' binary one.

        Returns:
            ``logits`` [batch, classes], −∞ for labels that are no candidates;
            ``attentions`` on request.

        Raises:
            ValueError: a label to train on that is no candidate of its text.
        """
        outputs = self.attention_classifier(
            input_ids,
            attention_mask,
            inputs_embeds=inputs_embeds,
            output_attentions=output_attentions,
            guide=guide,
            token_type_ids=token_type_ids,
            candidates=candidates,
            return_dict=True,
        )
        logits = self.decode(outputs.pooler_output, outputs.query_state)
        logits = self.dropout(logits)
        if outputs.candidates is not None:
            logits = logits.masked_fill(~outputs.candidates, -torch.inf)
            if labels is not None and self.training:
                check_answers(labels, outputs.candidates)
        loss = None
        if labels is not None:
            loss = self.loss_function(labels, logits, self.config, **kwargs)
            if outputs.regularization is not None:
                # More texts than here where gradients accumulate.
                n_texts = kwargs.get("num_items_in_batch") or len(logits)
                loss = loss + outputs.regularization.sum() / n_texts
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        return RegularisedClassifierOutput(
            loss=loss,
            logits=logits,
            hidden_states=(outputs.last_hidden_state,) if output_hidden_states else None,
            attentions=outputs.attentions,
            regularization=outputs.regularization,
        )


AttentionClassifierModel.register_for_auto_class("AutoModel")
AttentionClassifierForSequenceClassification.register_for_auto_class(
    "AutoModelForSequenceClassification"
)
