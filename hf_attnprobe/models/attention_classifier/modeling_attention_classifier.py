"""Attention classifiers as Transformers models: encode, attend, decode.

These steps are Enc, φ and Dec in Jain & Wallace 2019, Section 2. Shapes use the dimensions *batch*
(texts), *keys* (token positions), *hidden* (encoder width) and *classes* (labels). Hierarchical
models also have *sentences* (in a text) and *rows* (all sentences in a batch). Pair models read two
texts in one sequence.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.utils import can_return_tuple

from .configuration_attention_classifier import AttentionClassifierConfig
from .layers_attention_classifier import ATTENTION_CLASSES, ENCODER_CLASSES, attend
from .pairs_attention_classifier import (
    QUERIED_ATTENTION_CLASSES,
    Pair,
    PairDecoder,
    QueryReader,
    allow_all_if_none,
    check_label_candidates,
    find_candidates,
    split_pair,
)
from .regularisers_attention_classifier import (
    RegularisedClassifierOutput,
    RegularisedModelOutput,
    Regulariser,
    connect_word_vectors,
)
from .sentences_attention_classifier import (
    SentenceReader,
    Sentences,
    find_sentence_positions,
)


class AttentionClassifierPreTrainedModel(PreTrainedModel):
    """Base class with weight initialisation and saving."""

    config: AttentionClassifierConfig
    config_class = AttentionClassifierConfig
    base_model_prefix = "attention_classifier"
    supports_gradient_checkpointing = False

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Save the model so that the Auto classes of Transformers can load it.

        Args:
            *args: Arguments of :meth:`PreTrainedModel.save_pretrained`.
            **kwargs: Keyword arguments of :meth:`PreTrainedModel.save_pretrained`.
        """
        # The model has its own code. Transformers loads each Auto class from the file and class
        # that are named here.
        self.config.auto_map = {
            "AutoConfig": "configuration_attention_classifier.AttentionClassifierConfig",
            "AutoModel": "modeling_attention_classifier.AttentionClassifierModel",
            "AutoModelForSequenceClassification": (
                "modeling_attention_classifier.AttentionClassifierForSequenceClassification"
            ),
        }
        super().save_pretrained(*args, **kwargs)

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise a module's weights as in the published code of the reproduced papers.

        This code uses PyTorch's defaults: N(0, 1) for word vectors and U(±1/√fan_in) elsewhere.
        GRUs are initialised as in Serrano & Smith 2019, with Xavier-uniform input weights,
        orthogonal recurrent weights, and biases of 0.
        """
        if isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=1.0)
            if module.padding_idx is not None:
                init.zeros_(module.weight[module.padding_idx])
        elif isinstance(module, (nn.LSTM, nn.LSTMCell)):
            _init_uniform_weights(module, module.hidden_size)
        elif isinstance(module, (nn.Linear, nn.Conv1d)):
            _init_uniform_weights(module, module.weight[0].numel())
        elif isinstance(module, nn.GRU):
            for name, parameter in module.named_parameters():
                if name.startswith("weight_ih"):
                    init.xavier_uniform_(parameter)
                elif name.startswith("weight_hh"):
                    init.orthogonal_(parameter)
                else:
                    init.zeros_(parameter)


def _init_uniform_weights(module: nn.Module, fan_in: int) -> None:
    """Initialise a module's parameters uniformly between −1/√fan_in and 1/√fan_in.

    Args:
        module: Module whose own parameters are initialised, without those of submodules.
        fan_in: Number of inputs of a neuron.
    """
    bound = fan_in**-0.5
    for parameter in module.parameters(recurse=False):
        init.uniform_(parameter, -bound, bound)


class AttentionClassifierModel(AttentionClassifierPreTrainedModel):
    """Embeddings, encoder and attention, which compute the context vector Σ_t a_t h_t.

    In a hierarchical model, ``encoder`` and ``attention`` read the words in a sentence, and
    ``sentences`` reads the sentences in the text. In a pair model, ``query_reader`` reads the
    second text, and all other modules read the first.

    Args:
        config: Model configuration.
    """

    def __init__(self, config: AttentionClassifierConfig) -> None:
        super().__init__(config)
        if config.inputs == "tokens":
            self.embeddings = nn.Embedding(
                config.vocab_size,
                config.embedding_size,
                padding_idx=config.pad_token_id,
            )
        self.dropout = nn.Dropout(config.embedding_dropout)
        self.encoder = ENCODER_CLASSES[config.encoder](config, config.embedding_size)
        attention_classes = QUERIED_ATTENTION_CLASSES if config.query_encoder else ATTENTION_CLASSES
        self.attention = attention_classes[config.attention](config)
        if config.query_encoder:
            self.query_reader = QueryReader(config)
        if config.hierarchical:
            self.sentences = SentenceReader(config)
        self.regulariser = Regulariser(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the embedding table, which contains the word vectors.

        Raises:
            NotImplementedError: If the model reads bags of features, because it has no table.
        """
        if self.config.inputs == "features":
            # Transformers treats this error as a model without an embedding table.
            raise NotImplementedError("a model with inputs='features' has no embedding table")
        return self.embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embedding table.

        Args:
            value: New embedding table.
        """
        assert isinstance(value, nn.Embedding)
        self.embeddings = value

    def build_attention_mask(
        self, input_ids: Tensor | None, inputs_embeds: Tensor | None
    ) -> Tensor:
        """Build a mask that is 0 for padding and 1 elsewhere.

        Padding can only be recognised from ``input_ids``. Without them, the mask is 1 everywhere.

        Args:
            input_ids: Token ids ``[batch, keys]``.
            inputs_embeds: Word vectors ``[batch, keys, embedding]``.

        Returns:
            Mask, int64 ``[batch, keys]``.
        """
        if input_ids is not None and self.config.pad_token_id is not None:
            return (input_ids != self.config.pad_token_id).long()
        inputs = inputs_embeds if input_ids is None else input_ids
        # `forward` has checked that one of the two is given.
        assert inputs is not None
        return torch.ones(inputs.shape[:2], dtype=torch.long, device=self.device)

    def build_content_mask(self, attention_mask: Tensor, input_ids: Tensor | None = None) -> Tensor:
        """Build a mask for the tokens that may receive attention.

        These are all tokens except padding and the start, end and separator tokens.

        Args:
            attention_mask: Positions without padding, ``[batch, keys]``.
            input_ids: Token ids ``[batch, keys]``. Without them, the start and end tokens are
                assumed at the first and the last position that is not padding.

        Returns:
            Mask, bool ``[batch, keys]``.
        """
        config = self.config
        content = attention_mask.bool()
        if input_ids is not None:
            ids = (
                config.bos_token_id,
                config.eos_token_id,
                config.sep_token_id,
            )
            special_ids = [token_id for token_id in ids if token_id is not None]
            special_ids_tensor = torch.tensor(special_ids, device=input_ids.device)
            return content & ~torch.isin(input_ids, special_ids_tensor)
        # Number the tokens from 1, without padding.
        position = attention_mask.cumsum(-1)
        if config.bos_token_id is not None:
            content = content & (position != 1)
        if config.eos_token_id is not None:
            content = content & (position != attention_mask.sum(-1, keepdim=True))
        return content

    def encode(self, embeddings: Tensor, attention_mask: Tensor) -> Tensor:
        """Compute the encoder's states h from word vectors.

        Args:
            embeddings: Word vectors ``[batch, keys, embedding]``.
            attention_mask: Positions without padding, ``[batch, keys]``.

        Returns:
            States ``[batch, keys, hidden]``.
        """
        states = self.encoder(embeddings, attention_mask)
        return connect_word_vectors(states, embeddings, self.config.residual_connection)

    def attend(self, states: Tensor, content_mask: Tensor, query: Tensor | None = None) -> Tensor:
        """Compute the attention weights a over a text's states.

        Args:
            states: States ``[batch, keys, hidden]``.
            content_mask: Tokens that may receive attention, bool ``[batch, keys]``.
            query: Vector q for the second text in a pair model, ``[batch, hidden]``.

        Returns:
            Attention ``[batch, keys]``. It sums to 1 over the tokens in the mask and is exactly 0
            elsewhere. If the mask is empty, it is 0 everywhere.
        """
        return attend(self.attention, states, content_mask, query)

    def embed(self, input_ids: Tensor, pair: Pair | None = None) -> Tensor:
        """Look up the word vectors of the input tokens.

        In a model for text pairs, the second text has its own embedding table.

        Args:
            input_ids: Token ids ``[batch, keys]``.
            pair: Positions of the first and the second text, in a model for text pairs.

        Returns:
            Word vectors ``[batch, keys, embedding]``.
        """
        if pair is None:
            return self.embeddings(input_ids)
        is_first = pair.first.bool()
        first_vectors = self.embeddings(input_ids)
        second_vectors = self.query_reader.embeddings(input_ids)
        return torch.where(is_first.unsqueeze(-1), first_vectors, second_vectors)

    def read_query(self, embeddings: Tensor, pair: Pair, input_ids: Tensor | None = None) -> Tensor:
        """Compute the vector q that represents the second text.

        Args:
            embeddings: Word vectors of both texts, ``[batch, keys, embedding]``.
            pair: Positions of the first and the second text.
            input_ids: Token ids ``[batch, keys]``, from which special tokens are recognised.

        Returns:
            Vectors ``[batch, hidden]``.
        """
        second_ids = None if input_ids is None else pair.select_second(input_ids)
        content = self.build_content_mask(pair.second, second_ids)
        return self.query_reader(pair.select_second(embeddings), pair.second, content)

    def find_candidates(self, input_ids: Tensor | None, first: Tensor) -> Tensor | None:
        """Find the labels that are possible answers: their word occurs in the first text.

        Args:
            input_ids: Token ids ``[batch, keys]``.
            first: 1 at the positions of the first text and 0 elsewhere, ``[batch, keys]``.

        Returns:
            Label mask, bool ``[batch, classes]``, or None if all labels are possible.

        Raises:
            ValueError: If ``input_ids`` are missing.
        """
        answers = self.config.answer_token_ids
        if answers is None:
            return None
        if input_ids is None:
            raise ValueError(
                "input_ids are needed to find the possible answers, but only inputs_embeds were "
                "passed. Pass candidates=[batch, classes] as well."
            )
        return find_candidates(input_ids, first, list(answers))

    def read_words(
        self,
        embeddings: Tensor,
        sentences: Sentences,
        *,
        hold_attention: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Compute a vector for each sentence, and the attention over the words in each sentence.

        This is the first level of a hierarchical model.

        Args:
            embeddings: Word vectors ``[batch, keys, embedding]``.
            sentences: Positions of all sentences in the batch.
            hold_attention: Whether the attention is treated as a constant, so that no gradients
                flow through it.

        Returns:
            Sentence vectors ``[sentences, hidden]`` for all sentences in the batch, and the
            attention over words ``[batch, keys]``.
        """
        words = embeddings.flatten(0, 1)
        vectors = words.new_zeros(len(sentences.starts), self.config.hidden_size)
        attention = words.new_zeros(len(words))
        # Sentences with similar lengths are processed together, which needs little padding.
        for rows in sentences.group_by_length():
            positions, mask = sentences.locate_words(rows)
            inputs = words.index_select(0, positions.flatten())
            states = self.encode(inputs.unflatten(0, positions.shape), mask.long())
            weights = self.attend(states.detach() if hold_attention else states, mask)
            # A sentence vector is the sum of the word states, weighted by attention.
            contexts = torch.einsum("rc,rch->rh", weights, states)
            vectors = vectors.index_copy(0, rows, contexts)
            attention = attention.index_copy(0, positions[mask], weights[mask])
        return vectors, attention.view(embeddings.shape[:2])

    def read_sentences(self, vectors: Tensor, sentences: Sentences) -> tuple[Tensor, Tensor]:
        """Compute the states of a text's sentences, and the attention over its sentences.

        This is the second level of a hierarchical model.

        Args:
            vectors: Vectors of all sentences in the batch, ``[sentences, hidden]``.
            sentences: Positions of all sentences in the batch.

        Returns:
            States ``[batch, sentences, hidden]`` and attention ``[batch, sentences]``.
        """
        mask = sentences.build_mask()
        states = self.sentences.encode(sentences.arrange_by_text(vectors), mask)
        return states, self.sentences.attend(states, mask)

    def read(
        self,
        embeddings: Tensor,
        attention_mask: Tensor,
        content_mask: Tensor,
        *,
        return_word_attention: bool = True,
        guide: Tensor | None = None,
        query: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Compute the states, and the attention at every level (words, and sentences if any).

        Args:
            embeddings: Word vectors ``[batch, keys, embedding]``.
            attention_mask: Positions without padding, ``[batch, keys]``.
            content_mask: Tokens that may receive attention, ``[batch, keys]``.
            return_word_attention: Whether a hierarchical model also returns the attention over
                words, which is large.
            guide: Imposed attention ``[batch, keys]``.
            query: Vector q for the second text in a pair model, ``[batch, hidden]``.

        Returns:
            States that the attention averages, ``[batch, keys, hidden]`` (sentence states in a
            hierarchical model), and the attention at every level, ``[batch, queries, keys]``. With
            one attention per class, each class is a query.

        Raises:
            ValueError: If attention is imposed on a model that computes its own.
        """
        if guide is not None and self.config.attention != "guided":
            raise ValueError(
                "guide can only be passed to a model with attention='guided', but this model has "
                f"attention={self.config.attention!r}. Remove guide."
            )
        if not self.config.hierarchical:
            states = self.encode(embeddings, attention_mask)
            if guide is None:
                attention = self.attend(states, content_mask, query)
            else:
                attention = guide * content_mask
            if not self.config.class_attention:
                attention = attention[:, None]
            return states, (attention,)
        sentences = find_sentence_positions(content_mask)
        vectors, words = self.read_words(embeddings, sentences)
        states, attention = self.read_sentences(vectors, sentences)
        if return_word_attention:
            return states, (sentences.arrange_by_sentence(words), attention[:, None])
        return states, (attention[:, None],)

    def compute_regularization(
        self,
        states: Tensor,
        embeddings: Tensor,
        attention_mask: Tensor,
        content_mask: Tensor,
        input_ids: Tensor | None,
    ) -> Tensor | None:
        """Compute the penalties that are added to each text's training loss.

        Args:
            states: States ``[batch, keys, hidden]``.
            embeddings: Word vectors ``[batch, keys, embedding]``.
            attention_mask: Positions without padding, ``[batch, keys]``.
            content_mask: Tokens that may receive attention, ``[batch, keys]``.
            input_ids: Token ids ``[batch, keys]``.

        Returns:
            Penalties ``[batch]``, or None in evaluation mode and for models without penalties.
        """
        if not (self.training and self.config.is_regularised):
            return None

        def encode_masked(masked: Tensor) -> Tensor:
            """Compute the states of the text, with masked words replaced by the unknown token."""
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
        """Encode a batch of texts and compute their attention and context vectors.

        Args:
            input_ids: Token ids ``[batch, keys]``. Either these or ``inputs_embeds`` must be given.
            attention_mask: Positions without padding, ``[batch, keys]``. By default, all positions
                whose id is not the padding id.
            inputs_embeds: Word vectors ``[batch, keys, embedding]``.
            output_attentions: Whether to return ``attentions``.
            guide: Attention weights ``[batch, keys]`` for a model with ``attention="guided"``. They
                are used unchanged for words and set to 0 for special tokens and padding.
            token_type_ids: 0 in the first text and 1 in the second text in a pair model,
                ``[batch, keys]``.
            candidates: Possible answers in a pair model, bool ``[batch, classes]``. By default, see
                ``answer_token_ids`` of the configuration.
            **kwargs: Ignored.

        Returns:
            Output with ``last_hidden_state`` h ``[batch, keys, hidden]``, ``pooler_output`` Σ_t a_t
            h_t ``[batch, hidden]``, and ``attentions``. These are a tuple of one tensor
            ``[batch, 1, 1, keys]`` (one layer, one head, one query). In a hierarchical model, h are
            sentence states, and ``attentions`` are two tensors: word attention
            ``[batch, 1, sentences, keys]``, with one query per sentence, and sentence attention
            ``[batch, 1, 1, sentences]``. In a pair model, they belong to the first text. The second
            text has attention 0 and is represented by ``query_state`` ``[batch, hidden]``. With one
            attention per class, ``pooler_output`` is ``[batch, classes, hidden]``, and
            ``attentions`` are ``[batch, 1, classes, keys]``.

        Raises:
            ValueError: If not exactly one of ``input_ids`` and ``inputs_embeds`` is given.
        """
        if self.config.inputs == "features" and inputs_embeds is None:
            raise ValueError(
                "a model with inputs='features' needs features=[batch, instances, "
                f"{self.config.feature_size}], but none were passed"
            )
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError(
                "expected exactly one of input_ids and inputs_embeds, got both or neither"
            )
        if attention_mask is None:
            attention_mask = self.build_attention_mask(input_ids, inputs_embeds)
        pair = None
        if self.config.query_encoder:
            pair = split_pair(attention_mask, token_type_ids)
            attention_mask = pair.first
        if inputs_embeds is None:
            assert input_ids is not None
            inputs_embeds = self.embed(input_ids, pair)
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        content_mask = self.build_content_mask(attention_mask, input_ids)
        embeddings = self.dropout(inputs_embeds)
        query = None
        if pair is not None:
            query = self.read_query(embeddings, pair, input_ids)
            if candidates is None:
                candidates = self.find_candidates(input_ids, pair.first)
            else:
                candidates = allow_all_if_none(candidates.bool())
        states, levels = self.read(
            embeddings,
            attention_mask,
            content_mask,
            return_word_attention=output_attentions,
            guide=guide,
            query=query,
        )
        attentions = tuple(attention[:, None] for attention in levels)
        if self.config.class_attention:
            pooled = levels[-1] @ states
        else:
            pooled = torch.einsum("bk,bkh->bh", levels[-1][:, 0], states)
        return RegularisedModelOutput(
            last_hidden_state=states,
            pooler_output=pooled,
            attentions=attentions if output_attentions else None,
            regularization=self.compute_regularization(
                states, embeddings, attention_mask, content_mask, input_ids
            ),
            query_state=query,
            candidates=candidates,
        )


class AttentionClassifierForSequenceClassification(AttentionClassifierPreTrainedModel):
    """Attention classifier with a linear read-out on the context vector.

    With two labels, the read-out has one logit z and returns [0, z]. With more labels, or with one
    attention per class, it has one logit per label. A pair model reads out the context and the query with a tanh layer and has one
    logit per label.

    Args:
        config: Model configuration.
    """

    def __init__(self, config: AttentionClassifierConfig) -> None:
        super().__init__(config)
        # The configuration checks that num_labels is set.
        assert config.num_labels is not None
        self.num_labels = config.num_labels
        self.attention_classifier = AttentionClassifierModel(config)
        self.dropout = nn.Dropout(config.logit_dropout)
        is_binary = self.num_labels == 2 and not config.class_attention
        n_logits = 1 if is_binary else self.num_labels
        self.classifier: Any
        if config.query_encoder:
            self.classifier = PairDecoder(config)
        else:
            self.classifier = nn.Linear(config.hidden_size, n_logits)
        self.post_init()

    def decode(self, context: Tensor, query: Tensor | None = None) -> Tensor:
        """Compute the logits of the classes from a context vector.

        Without a query, decoding is linear: if the attention sums to 1, Σ_t a_t decode(h_t) =
        decode(Σ_t a_t h_t).

        Args:
            context: Context vector, the sum of a text's states weighted by attention, ``[...,
                hidden]``. With one attention per class, one vector per class, ``[..., classes,
                hidden]``.
            query: Vector q for the second text in a pair model, ``[..., hidden]``.

        Returns:
            Logits ``[..., classes]``.
        """
        if query is not None:
            return self.classifier(context, query)
        if self.config.class_attention:
            # Each class has its own context vector and its own row of weights.
            return (context * self.classifier.weight).sum(-1) + self.classifier.bias
        logits = self.classifier(context)
        if self.num_labels == 2:
            # A binary model computes one logit, for class 1. Class 0 has the logit 0.
            logits = torch.cat([torch.zeros_like(logits), logits], dim=-1)
        return logits

    @can_return_tuple
    def forward(  # noqa: PLR0913
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
        features: Tensor | None = None,
        **kwargs: Any,
    ) -> RegularisedClassifierOutput:
        """Classify a batch of texts.

        Args:
            input_ids: Token ids ``[batch, keys]``.
            attention_mask: Positions without padding, ``[batch, keys]``.
            inputs_embeds: Word vectors ``[batch, keys, embedding]`` instead of ``input_ids``.
            labels: Labels, int64 ``[batch]``. With labels, the output has a ``loss``: the mean
                cross-entropy, which for two labels equals the papers' binary cross-entropy, plus
                the penalties.
            output_attentions: Whether to return ``attentions``.
            output_hidden_states: Whether to return ``hidden_states``.
            guide: Imposed attention, see :meth:`AttentionClassifierModel.forward`.
            token_type_ids: 0 in the first text and 1 in the second text in a pair model.
            candidates: Possible answers in a pair model, bool ``[batch, classes]``.
            features: Bags ``[batch, instances, feature_size]``, for a model with
                ``inputs="features"``. Padding is 0 in ``attention_mask``.
            **kwargs: Arguments of the loss function, such as ``num_items_in_batch``.

        Returns:
            Output with ``logits`` ``[batch, classes]``, which are −∞ for impossible answers, and
            ``attentions`` on request.

        Raises:
            ValueError: In training, if a text's label is not one of its possible answers.
        """
        if features is not None:
            if inputs_embeds is not None:
                raise ValueError("expected either features or inputs_embeds, got both")
            inputs_embeds = features
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
                check_label_candidates(labels, outputs.candidates)
        loss = None
        if labels is not None:
            loss = self.loss_function(labels, logits, self.config, **kwargs)
            if outputs.regularization is not None:
                # With gradient accumulation, a step has more texts than this batch.
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
