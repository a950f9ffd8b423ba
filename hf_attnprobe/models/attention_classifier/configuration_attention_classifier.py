"""Configuration of the attention classifiers of Jain & Wallace 2019 and its answers."""

from typing import Any

from transformers import PreTrainedConfig


ENCODERS = ("bilstm", "bigru", "orthogonal_lstm", "cnn", "mlp", "none")
ATTENTIONS = ("additive", "dot_product", "uniform", "guided")
CONNECTIONS = ("none", "concat", "residual")
CHOICES = {
    "encoder": ENCODERS,
    "attention": ATTENTIONS,
    "residual_connection": CONNECTIONS,
}
INFINITY = float("inf")
SIZE = 1, INFINITY, "at least 1"
RATE = 0, 1, "at least 0 and below 1"
WEIGHT = 0, INFINITY, "a number from 0"
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
"""By name from where, below what, and both in words."""
SPECIAL_TOKENS = (
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "sep_token_id",
    "unk_token_id",
)


class AttentionClassifierConfig(PreTrainedConfig):
    """One encoder, one attention head, one query, one linear read-out.

    A hierarchical model has one such level for the words of each sentence and one for
    the sentences. With ``query_encoder`` the query is a second text.

    Args:
        vocab_size: rows of the embedding table.
        embedding_size: width of a word vector (the papers: 300).
        encoder: ``bilstm``, ``bigru``, ``orthogonal_lstm`` (one direction, Mohankumar
            et al. 2020), ``cnn``, ``mlp`` (token-wise linear + tanh, the papers'
            "average") or ``none``.
        encoder_size: width per direction (``bilstm``, ``bigru``), over all kernels
            together (``cnn``), or of the layer (``mlp``, ``orthogonal_lstm``; the
            paper's has 256).
        kernel_sizes: odd widths of the convolutions; each gets
            ``encoder_size / len(kernel_sizes)`` filters.
        attention: ``additive``, ``dot_product``, ``uniform`` (1/T on every real token,
            nothing to train) or ``guided`` (imposed: the weights come with every text,
            as ``guide``).
        attention_size: inner width of additive attention; ``None`` means half of the
            width of a state.
        pad_token_id: padding.
        bos_token_id, eos_token_id: start and end, read by the encoder and masked from
            attention; ``None`` if unused.
        sep_token_id: stands between sentences and is masked from attention; ``None`` if
            unused.
        unk_token_id: the unknown word; stands for masked words, see ``mlm_weight``.
        hierarchical: words make sentences, sentences make the text (Yang et al. 2016);
            the encoder of words then reads each sentence on its own, and no special
            token.
        query_encoder: the query is a second text (a question, a hypothesis), with word
            vectors and an encoder of its own, see pairs_attention_classifier.py; the
            read-out then is a tanh layer over context and query, with a logit for each
            of two labels too (Jain & Wallace 2019).
        answer_token_ids: the token of each label. A label is a candidate of a text if
            its token occurs in the first text; the others get probability 0. Where none
            occurs all are candidates. ``None``: always all. For ``query_encoder``.
        embedding_dropout: on word vectors; as all dropouts, while training only.
        sentence_dropout: on sentence vectors.
        logit_dropout: on the logits, as in Serrano & Smith 2019.
        residual_connection: what is added to each state from its own word vector:
            ``none``, ``concat`` (beside the encoder's state) or ``residual`` (the sum)
            (Tutek & Šnajder 2020).
        tying: δ of the penalty δ/T Σ_t ‖h_t − e_t‖² over a text's content (Tutek &
            Šnajder 2020); published values are not known.
        mlm_weight: of the mean cross-entropy of masked words, which a linear layer
            predicts from the states of a second pass (Tutek & Šnajder 2020). The text
            is classified from the first pass, without masks.
        mlm_rate: probability that a word of the content is masked; 15% is the usual
            convention.
        conicity_weight: λ of the penalty λ · conicity of a text's states (Diversity
            LSTM, Mohankumar et al. 2020). As the two before it, it acts on the training
            loss only, see regularisers_attention_classifier.py.

    Raises:
        ValueError: an unknown encoder, attention or connection, a size below 1, a
            special token that is no number, even kernels, a dropout or rate outside of
            [0, 1), a negative weight, states and word vectors of different width where
            they are added or tied, penalties or connections in a hierarchical model,
            connections or levels with a query encoder, answers without it or not one per
            label, or fewer than two labels.
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
        for name, (low, below, words) in RANGES.items():
            value = getattr(self, name)
            if not low <= value < below:
                raise ValueError(f"{name} must be {words}, got {value}")
        for name in SPECIAL_TOKENS:
            token_id = getattr(self, name)
            if token_id is not None and (type(token_id) is not int or token_id < 0):
                raise ValueError(
                    f"{name} must be a number of the vocabulary, from 0 on, or "
                    f"None, got {token_id!r}"
                )
        if self.num_labels is None or self.num_labels < 2:
            raise ValueError(
                "num_labels must be at least 2 (one logit is returned as [0, z]), got "
                f"{self.num_labels}"
            )
        if self.hierarchical and self.attention == "guided":
            raise ValueError("guided attention is of one level: expected hierarchical=False")
        if self.encoder == "cnn":
            self._check_kernels()
        self._check_penalties()
        self._check_widths()
        self._check_pairs()

    def _check_kernels(self) -> None:
        if not self.kernel_sizes or any(size % 2 == 0 for size in self.kernel_sizes):
            raise ValueError(f"kernel_sizes must be odd, got {list(self.kernel_sizes)}")
        if self.encoder_size % len(self.kernel_sizes):
            raise ValueError(
                f"encoder_size must be a multiple of the {len(self.kernel_sizes)} "
                f"kernel sizes, got {self.encoder_size}"
            )

    def _check_penalties(self) -> None:
        if self.mlm_weight and (not self.mlm_rate or self.unk_token_id is None):
            raise ValueError(
                "mlm_weight needs an mlm_rate above 0 and an unk_token_id, which "
                "stands for masked words"
            )
        is_connected = self.residual_connection != "none"
        if self.hierarchical and (self.is_regularised or is_connected):
            raise ValueError(
                "penalties and connections are for one level of states: expected hierarchical=False"
            )

    def _check_widths(self) -> None:
        """States and word vectors are of one width where they are added or tied."""
        if self.residual_connection == "residual":
            needing = "residual_connection='residual'"
        elif self.tying:
            needing = "tying"
        else:
            return
        if self.hidden_size != self.embedding_size:
            raise ValueError(
                f"{needing} needs states as wide as word vectors, got "
                f"{self.hidden_size} and {self.embedding_size}; with this encoder set "
                f"embedding_size={self.encoder_width}"
            )

    def _check_pairs(self) -> None:
        if self.query_encoder and self.hierarchical:
            raise ValueError(
                "a query encoder is for one level of states: expected hierarchical=False"
            )
        if self.query_encoder and self.residual_connection != "none":
            raise ValueError(
                "with a query encoder states and query are of one width: expected "
                f"residual_connection='none', got {self.residual_connection!r}"
            )
        if self.answer_token_ids is None:
            return
        if not self.query_encoder:
            raise ValueError(
                "answer_token_ids restrict the answers of a model of pairs: expected "
                "query_encoder=True"
            )
        if len(self.answer_token_ids) != self.num_labels:
            raise ValueError(
                f"answer_token_ids must be one for each of the {self.num_labels} "
                f"labels, got {len(self.answer_token_ids)}"
            )
        ids = list(self.answer_token_ids)
        are_tokens = all(isinstance(k, int) and 0 <= k < self.vocab_size for k in ids)
        if not are_tokens or len(set(ids)) < len(ids):
            raise ValueError(
                "answer_token_ids must be different numbers from 0 to "
                f"{self.vocab_size - 1}, got {ids!s:.60}"
            )

    @property
    def is_regularised(self) -> bool:
        """Whether the training loss has a penalty."""
        return bool(self.tying or self.mlm_weight or self.conicity_weight)

    @property
    def hidden_size(self) -> int:
        """Width of one state h_t."""
        if self.residual_connection == "concat":
            return self.encoder_width + self.embedding_size
        return self.encoder_width

    @property
    def encoder_width(self) -> int:
        """Width of the encoder's output for one word."""
        if self.encoder == "none":
            return self.embedding_size
        if self.encoder in ("bilstm", "bigru"):
            return 2 * self.encoder_size
        return self.encoder_size


AttentionClassifierConfig.register_for_auto_class()
