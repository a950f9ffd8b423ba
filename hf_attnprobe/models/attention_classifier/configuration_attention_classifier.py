"""Configuration for the attention classifiers in Jain & Wallace 2019 and later papers."""

import math
from typing import Any

from transformers import PreTrainedConfig


ENCODERS = ("bilstm", "bigru", "orthogonal_lstm", "cnn", "mlp", "none")
"""Allowed values for the configuration field ``encoder``, the network that computes states from
word vectors."""
ATTENTIONS = ("additive", "gated", "dot_product", "uniform", "guided")
"""Allowed values for the configuration field ``attention``, the formula for attention weights."""
INPUTS = ("tokens", "features")
"""Allowed values for the configuration field ``inputs``, the content of the model's examples."""
CONNECTIONS = ("none", "concat", "residual")
"""Allowed values for the configuration field ``residual_connection``, which decides how a state is
combined with its word vector."""
ALLOWED_VALUES = {
    "encoder": ENCODERS,
    "attention": ATTENTIONS,
    "inputs": INPUTS,
    "residual_connection": CONNECTIONS,
}
"""Maps configuration fields to their allowed values."""
SIZE_RANGE = 1, math.inf, "at least 1"
"""Allowed range for sizes, such as the vocabulary size, and its description for error messages."""
RATE_RANGE = 0, 1, "at least 0 and below 1"
"""Allowed range for probabilities, such as the dropout rate, and its description for error
messages."""
WEIGHT_RANGE = 0, math.inf, "at least 0 and finite"
"""Allowed range for the weights of penalties, and its description for error messages."""
RANGES = {
    "vocab_size": SIZE_RANGE,
    "embedding_size": SIZE_RANGE,
    "encoder_size": SIZE_RANGE,
    "embedding_dropout": RATE_RANGE,
    "sentence_dropout": RATE_RANGE,
    "logit_dropout": RATE_RANGE,
    "mlm_rate": RATE_RANGE,
    "tying": WEIGHT_RANGE,
    "mlm_weight": WEIGHT_RANGE,
    "conicity_weight": WEIGHT_RANGE,
}
"""Maps numeric configuration fields to (smallest value, upper bound that is not included,
description of the range)."""
SPECIAL_TOKEN_FIELDS = (
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "sep_token_id",
    "unk_token_id",
)
"""Configuration fields that contain the id of a special token, or None."""


class AttentionClassifierConfig(PreTrainedConfig):
    """Configuration for a model with one encoder, one attention head, and one read-out.

    A hierarchical model has one encoder and attention head for the words in each sentence, and
    another encoder and attention head for the sentences in the text. A pair model
    (``query_encoder``) uses a second text as the attention query.

    Args:
        vocab_size: Number of rows in the embedding table.
        embedding_size: Width of a word vector (300 in the papers).
        encoder: ``bilstm``, ``bigru``, ``orthogonal_lstm`` (unidirectional, Mohankumar et al.
            2020), ``cnn``, ``mlp`` (linear layer and tanh for each token, called "average" in the
            papers), or ``none``.
        encoder_size: Width of one direction (``bilstm``, ``bigru``), all kernels together
            (``cnn``), or the layer (``mlp``, ``orthogonal_lstm``; 256 in the paper).
        kernel_sizes: Odd widths of the convolutions. Each has ``encoder_size / len(kernel_sizes)``
            filters.
        attention: ``additive``, ``gated`` (Ilse et al. 2018), ``dot_product``, ``uniform`` (1/T for every token, without
            parameters), or ``guided`` (the caller provides the weights with every text, as
            ``guide``).
        attention_size: Inner width of additive and gated attention. ``None`` means half the state width.
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
            sentences (Yang et al. 2016). The word encoder then reads each sentence separately and
            no special tokens.
        query_encoder: Whether the query is a second text, such as a question or a hypothesis. It
            has its own word vectors and encoder, see ``pairs_attention_classifier.py``. The
            read-out is then a tanh layer over the context and the query, with one logit per label
            (Jain & Wallace 2019).
        answer_token_ids: One token id per label, for pair models. A label is a possible answer if
            its token occurs in the first text; all other labels have probability 0. If no label
            occurs, all are possible. ``None`` makes all labels possible in every text.
        embedding_dropout: Dropout of word vectors. All dropouts act in training only.
        sentence_dropout: Dropout of sentence vectors.
        logit_dropout: Dropout of the logits, as in Serrano & Smith 2019.
        residual_connection: How each state is combined with its word vector: ``none``, ``concat``
            (concatenated), or ``residual`` (added) (Tutek & Šnajder 2020).
        tying: Weight δ for the penalty δ/T Σ_t ‖h_t − e_t‖², which pulls states to their word
            vectors (Tutek & Šnajder 2020, who do not publish values).
        mlm_weight: Weight for the mean cross-entropy on masked words, which a linear layer predicts
            from the states in a second pass (Tutek & Šnajder 2020). The first pass, without masks,
            classifies the text.
        mlm_rate: Probability that a word is masked. 15% is the usual value.
        inputs: ``tokens`` for texts, or ``features`` for bags of instances. A bag is a matrix
            ``[instances, feature_size]``. It replaces the word vectors, so the model has no
            embedding table. ``feature_size`` replaces ``embedding_size``.
        feature_size: Size of an instance's vector, for ``inputs="features"``.
        class_attention: Whether each class has its own attention distribution, as in CLAM_MB (Lu et
            al. 2021), for ``inputs="features"`` and ``attention="gated"``. The logit of a class is
            then computed from the context vector of this class.
        conicity_weight: Weight λ for the penalty λ · conicity, which pushes a text's states apart
            (Diversity LSTM, Mohankumar et al. 2020). Like ``tying`` and ``mlm_weight``, it acts on
            the training loss only, see ``regularisers_attention_classifier.py``.

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
    inputs: str = "tokens"
    feature_size: int | None = None
    class_attention: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if self.inputs == "features" and self.feature_size is not None:
            self.embedding_size = self.feature_size
            # A bag has neither a start nor an end token.
            self.bos_token_id = self.eos_token_id = self.sep_token_id = None
        for name, choices in ALLOWED_VALUES.items():
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
                    f"{name} must be a token id of at least 0, or None, got {token_id!r}"
                )
        if self.num_labels is None or self.num_labels < 2:
            raise ValueError(
                f"num_labels must be at least 2, got {self.num_labels}. Set num_labels=2 for a model "
                "with two classes."
            )
        if self.hierarchical and self.attention == "guided":
            raise ValueError(
                "attention='guided' cannot be combined with hierarchical=True. Set "
                "hierarchical=False."
            )
        if self.encoder == "cnn":
            self._check_kernels()
        self._check_penalties()
        self._check_widths()
        self._check_pairs()
        self._check_features()

    def to_dict(self) -> dict[str, Any]:
        """Return all fields; those for bags only if the model reads bags.

        The files of models for texts therefore stay the same.
        """
        values = super().to_dict()
        if self.inputs == "tokens":
            values.pop("inputs", None)
            values.pop("feature_size", None)
            values.pop("class_attention", None)
        return values

    def _check_features(self) -> None:
        """Check that the fields for models that read bags fit the other fields."""
        if self.class_attention and (self.inputs, self.attention) != ("features", "gated"):
            raise ValueError(
                "class_attention=True can only be used with inputs='features' and "
                f"attention='gated', got {self.inputs!r} and {self.attention!r}. Leave it out."
            )
        if self.inputs == "tokens":
            if self.feature_size is not None:
                raise ValueError(
                    f"feature_size can only be used with inputs='features', got {self.feature_size} "
                    "and inputs='tokens'. Set inputs='features', or leave out feature_size."
                )
            return
        if type(self.feature_size) is not int or self.feature_size < 1:
            raise ValueError(
                "inputs='features' needs the size of an instance's vector as feature_size, got "
                f"{self.feature_size!r}. Set feature_size, for example to 1024."
            )
        text_fields = {
            "hierarchical": self.hierarchical,
            "query_encoder": self.query_encoder,
            "mlm_weight": self.mlm_weight,
            "attention='guided'": self.attention == "guided",
        }
        for name, is_set in text_fields.items():
            if is_set:
                raise ValueError(
                    f"{name} can only be used in a model for texts, but inputs='features'. Leave it "
                    "out."
                )

    def _check_kernels(self) -> None:
        """Check that kernel sizes are odd, and that each size can get equally many filters."""
        if not self.kernel_sizes or any(size % 2 == 0 for size in self.kernel_sizes):
            raise ValueError(f"kernel_sizes must be odd numbers, got {list(self.kernel_sizes)}")
        if self.encoder_size % len(self.kernel_sizes):
            raise ValueError(
                f"encoder_size must be a multiple of {len(self.kernel_sizes)}, the number of "
                f"kernel sizes, got {self.encoder_size}"
            )

    def _check_penalties(self) -> None:
        """Check that the fields for penalties and residual connections fit the other fields."""
        if self.mlm_weight and (not self.mlm_rate or self.unk_token_id is None):
            raise ValueError(
                "mlm_weight needs an mlm_rate above 0, and an unk_token_id for the masked words. "
                "Set both, or set mlm_weight=0."
            )
        is_connected = self.residual_connection != "none"
        if self.hierarchical and (self.is_regularised or is_connected):
            raise ValueError(
                "tying, mlm_weight, conicity_weight and residual_connection cannot be used with "
                "hierarchical=True. Set hierarchical=False."
            )

    def _check_widths(self) -> None:
        """Check that states and word vectors have the same width if an option needs it."""
        if self.residual_connection == "residual":
            option = "residual_connection='residual'"
        elif self.tying:
            option = "tying"
        else:
            return
        if self.hidden_size != self.embedding_size:
            raise ValueError(
                f"{option} needs states and word vectors of the same width, got widths "
                f"{self.hidden_size} and {self.embedding_size}. Set "
                f"embedding_size={self.encoder_width}."
            )

    def _check_pairs(self) -> None:
        """Check that the fields for models that read text pairs fit the other fields."""
        if self.query_encoder and self.hierarchical:
            raise ValueError(
                "query_encoder=True cannot be combined with hierarchical=True. Set "
                "hierarchical=False."
            )
        if self.query_encoder and self.attention == "gated":
            raise ValueError(
                "query_encoder=True cannot be combined with attention='gated'. Set "
                "attention='additive'."
            )
        if self.query_encoder and self.residual_connection != "none":
            raise ValueError(
                "query_encoder=True cannot be combined with "
                f"residual_connection={self.residual_connection!r}, because states must be as wide "
                "as the query. Set residual_connection='none'."
            )
        if self.answer_token_ids is None:
            return
        if not self.query_encoder:
            raise ValueError(
                "answer_token_ids can only be used in a model for text pairs. Set "
                "query_encoder=True, or set answer_token_ids=None."
            )
        if len(self.answer_token_ids) != self.num_labels:
            raise ValueError(
                f"answer_token_ids must contain one id for each of the {self.num_labels} labels, "
                f"got {len(self.answer_token_ids)} ids"
            )
        token_ids = list(self.answer_token_ids)
        are_valid = all(
            isinstance(token_id, int) and 0 <= token_id < self.vocab_size for token_id in token_ids
        )
        if not are_valid or len(set(token_ids)) < len(token_ids):
            raise ValueError(
                f"answer_token_ids must be ids between 0 and {self.vocab_size - 1}, without "
                f"duplicates, got {token_ids!s:.60}"
            )

    @property
    def is_regularised(self) -> bool:
        """Whether the training loss includes any penalty."""
        return bool(self.tying or self.mlm_weight or self.conicity_weight)

    @property
    def hidden_size(self) -> int:
        """Number of dimensions of a word's state h_t, to which attention is applied.

        If the residual connection is "concat", a state also contains the word vector.
        """
        if self.residual_connection == "concat":
            return self.encoder_width + self.embedding_size
        return self.encoder_width

    @property
    def encoder_width(self) -> int:
        """Number of dimensions of the encoder's output for a word."""
        if self.encoder == "none":
            return self.embedding_size
        if self.encoder in ("bilstm", "bigru"):
            return 2 * self.encoder_size
        return self.encoder_size


AttentionClassifierConfig.register_for_auto_class()
