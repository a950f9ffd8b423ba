"""Configuration of the attention classifiers of Jain & Wallace 2019 and of later papers."""

import math
from typing import Any

from transformers import PreTrainedConfig


ENCODERS = ("bilstm", "bigru", "orthogonal_lstm", "cnn", "mlp", "none")
"""Values of ``encoder``."""
ATTENTIONS = ("additive", "dot_product", "uniform", "guided")
"""Values of ``attention``."""
CONNECTIONS = ("none", "concat", "residual")
"""Values of ``residual_connection``."""
CHOICES = {
    "encoder": ENCODERS,
    "attention": ATTENTIONS,
    "residual_connection": CONNECTIONS,
}
"""Possible values of each field with a choice."""
SIZE = 1, math.inf, "at least 1"
"""Smallest value, excluded upper bound, and description of a size."""
RATE = 0, 1, "at least 0 and below 1"
"""Smallest value, excluded upper bound, and description of a dropout or rate."""
WEIGHT = 0, math.inf, "at least 0 and finite"
"""Smallest value, excluded upper bound, and description of the weight of a penalty."""
RANGES = {
    "vocab_size": SIZE,
    "embedding_size": SIZE,
    "encoder_size": SIZE,
    "embedding_dropout": RATE,
    "sentence_dropout": RATE,
    "logit_dropout": RATE,
    "mlm_rate": RATE,
    "tying": WEIGHT,
    "mlm_weight": WEIGHT,
    "conicity_weight": WEIGHT,
}
"""Smallest value, excluded upper bound, and description of each numeric field."""
SPECIAL_TOKEN_FIELDS = (
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "sep_token_id",
    "unk_token_id",
)
"""Fields with the id of a special token."""


class AttentionClassifierConfig(PreTrainedConfig):
    """Configuration of a model with one encoder, one attention head, and one read-out.

    A hierarchical model has an encoder and an attention head for the words of each sentence, and
    another pair for the sentences of the text. A pair model (``query_encoder``) uses a second text
    as the query of the attention.

    Args:
        vocab_size: Number of rows of the embedding table.
        embedding_size: Width of a word vector (300 in the papers).
        encoder: ``bilstm``, ``bigru``, ``orthogonal_lstm`` (unidirectional, Mohankumar et al.
            2020), ``cnn``, ``mlp`` (linear layer and tanh for each token, called "average" in the
            papers), or ``none``.
        encoder_size: Width of one direction (``bilstm``, ``bigru``), of all kernels together
            (``cnn``), or of the layer (``mlp``, ``orthogonal_lstm``; 256 in the paper).
        kernel_sizes: Odd widths of the convolutions. Each has ``encoder_size / len(kernel_sizes)``
            filters.
        attention: ``additive``, ``dot_product``, ``uniform`` (1/T for every token, without
            parameters), or ``guided`` (the weights are given with every text, as ``guide``).
        attention_size: Inner width of additive attention. ``None`` means half of the width of a
            state.
        pad_token_id: Padding token id.
        bos_token_id: Start token id, which the encoder reads and attention ignores. ``None`` if
            there is none.
        eos_token_id: End token id, which the encoder reads and attention ignores. ``None`` if there
            is none.
        sep_token_id: Id of the token between sentences, which attention ignores. ``None`` if there
            is none.
        unk_token_id: Id of the token for unknown words, which also replaces masked words, see
            ``mlm_weight``.
        hierarchical: Whether sentence vectors are computed from words and the text vector from
            sentences (Yang et al. 2016). The encoder of words then reads each sentence separately
            and no special tokens.
        query_encoder: Whether the query is a second text, such as a question or a hypothesis. It
            has its own word vectors and encoder, see ``pairs_attention_classifier.py``. The
            read-out is then a tanh layer over the context and the query, with one logit per label
            (Jain & Wallace 2019).
        answer_token_ids: Token id for each label, for pair models. A label is a possible answer if
            its token occurs in the first text; all other labels have probability 0. If no label
            occurs, all are possible. ``None`` makes all labels possible in every text.
        embedding_dropout: Dropout of word vectors. All dropouts act in training only.
        sentence_dropout: Dropout of sentence vectors.
        logit_dropout: Dropout of the logits, as in Serrano & Smith 2019.
        residual_connection: How each state is combined with its word vector: ``none``, ``concat``
            (concatenated), or ``residual`` (added) (Tutek & Šnajder 2020).
        tying: Weight δ of the penalty δ/T Σ_t ‖h_t − e_t‖² over the content of a text (Tutek &
            Šnajder 2020, who do not publish values).
        mlm_weight: Weight of the mean cross-entropy of masked words, which a linear layer predicts
            from the states of a second pass (Tutek & Šnajder 2020). The text is classified by the
            first pass, without masks.
        mlm_rate: Probability that a word of the content is masked. 15% is the usual value.
        conicity_weight: Weight λ of the penalty λ · conicity of a text's states (Diversity LSTM,
            Mohankumar et al. 2020). Like ``tying`` and ``mlm_weight``, it acts on the training loss
            only, see ``regularisers_attention_classifier.py``.

    Raises:
        ValueError: If a field has an unknown value or is out of range, or if fields cannot be
            combined, such as ``hierarchical`` with ``query_encoder``.
    """

    model_type = "attention_classifier"

    vocab_size: int = 30522
    embedding_size: int = 300
    encoder: str = "bilstm"
    encoder_size: int = 128
    kernel_sizes: list[int] | tuple[int, ...] = (1, 3, 5, 7)
    attention: str = "additive"
    attention_size: int | None = None
    pad_token_id: int | None = 0
    bos_token_id: int | None = 2
    eos_token_id: int | None = 3
    sep_token_id: int | None = None
    unk_token_id: int | None = 1
    hierarchical: bool = False
    query_encoder: bool = False
    answer_token_ids: list[int] | tuple[int, ...] | None = None
    embedding_dropout: float = 0.0
    sentence_dropout: float = 0.0
    logit_dropout: float = 0.0
    residual_connection: str = "none"
    tying: float = 0.0
    mlm_weight: float = 0.0
    mlm_rate: float = 0.15
    conicity_weight: float = 0.0

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
        for name, (smallest, bound, description) in RANGES.items():
            value = getattr(self, name)
            if not smallest <= value < bound:
                raise ValueError(f"{name} must be {description}, got {value}")
        for name in SPECIAL_TOKEN_FIELDS:
            token_id = getattr(self, name)
            if token_id is not None and (type(token_id) is not int or token_id < 0):
                raise ValueError(
                    f"{name} must be the id of a token (an integer of at least 0) or None, got "
                    f"{token_id!r}"
                )
        if self.num_labels is None or self.num_labels < 2:
            raise ValueError(
                "num_labels must be at least 2 (a binary model returns its logit z as [0, z]), "
                f"got {self.num_labels}"
            )
        if self.hierarchical and self.attention == "guided":
            raise ValueError(
                "attention='guided' cannot be combined with hierarchical=True; set "
                "hierarchical=False"
            )
        if self.encoder == "cnn":
            self._check_kernels()
        self._check_penalties()
        self._check_widths()
        self._check_pairs()

    def _check_kernels(self) -> None:
        """Raise ValueError if the kernels of a CNN are not odd or do not divide the filters."""
        if not self.kernel_sizes or any(size % 2 == 0 for size in self.kernel_sizes):
            raise ValueError(f"kernel_sizes must be odd, got {list(self.kernel_sizes)}")
        if self.encoder_size % len(self.kernel_sizes):
            raise ValueError(
                f"encoder_size must be a multiple of the {len(self.kernel_sizes)} "
                f"kernel sizes, got {self.encoder_size}"
            )

    def _check_penalties(self) -> None:
        """Raise ValueError if the penalties and residual connections cannot be used."""
        if self.mlm_weight and (not self.mlm_rate or self.unk_token_id is None):
            raise ValueError(
                "mlm_weight needs an mlm_rate above 0 and an unk_token_id, which replaces masked "
                "words; set both, or mlm_weight=0"
            )
        is_connected = self.residual_connection != "none"
        if self.hierarchical and (self.is_regularised or is_connected):
            raise ValueError(
                "tying, mlm_weight, conicity_weight and residual_connection cannot be combined "
                "with hierarchical=True; set hierarchical=False"
            )

    def _check_widths(self) -> None:
        """Raise ValueError if states and word vectors are combined and differ in width."""
        if self.residual_connection == "residual":
            option = "residual_connection='residual'"
        elif self.tying:
            option = "tying"
        else:
            return
        if self.hidden_size != self.embedding_size:
            raise ValueError(
                f"{option} needs states as wide as word vectors, got widths {self.hidden_size} "
                f"and {self.embedding_size}; set embedding_size={self.encoder_width} for this "
                "encoder"
            )

    def _check_pairs(self) -> None:
        """Raise ValueError if the options of pair models cannot be combined."""
        if self.query_encoder and self.hierarchical:
            raise ValueError(
                "query_encoder=True cannot be combined with hierarchical=True; set "
                "hierarchical=False"
            )
        if self.query_encoder and self.residual_connection != "none":
            raise ValueError(
                "query_encoder=True needs states as wide as the query; set "
                f"residual_connection='none' instead of {self.residual_connection!r}"
            )
        if self.answer_token_ids is None:
            return
        if not self.query_encoder:
            raise ValueError(
                "answer_token_ids restrict the answers of pair models only; set "
                "query_encoder=True, or answer_token_ids=None"
            )
        if len(self.answer_token_ids) != self.num_labels:
            raise ValueError(
                f"answer_token_ids must have one id for each of the {self.num_labels} labels, got "
                f"{len(self.answer_token_ids)} ids"
            )
        token_ids = list(self.answer_token_ids)
        are_valid = all(isinstance(k, int) and 0 <= k < self.vocab_size for k in token_ids)
        if not are_valid or len(set(token_ids)) < len(token_ids):
            raise ValueError(
                f"answer_token_ids must be distinct ids from 0 to {self.vocab_size - 1}, got "
                f"{token_ids!s:.60}"
            )

    @property
    def is_regularised(self) -> bool:
        """Whether the training loss contains a penalty."""
        return bool(self.tying or self.mlm_weight or self.conicity_weight)

    @property
    def hidden_size(self) -> int:
        """Width of a state h_t, including the word vector of a ``concat`` connection."""
        if self.residual_connection == "concat":
            return self.encoder_width + self.embedding_size
        return self.encoder_width

    @property
    def encoder_width(self) -> int:
        """Width of the encoder's output for a word."""
        if self.encoder == "none":
            return self.embedding_size
        if self.encoder in ("bilstm", "bigru"):
            return 2 * self.encoder_size
        return self.encoder_size


AttentionClassifierConfig.register_for_auto_class()
