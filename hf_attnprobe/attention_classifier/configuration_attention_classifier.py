"""Configuration of the attention classifiers of Jain & Wallace 2019 (Section 2) and the papers that answered it."""

from transformers import PreTrainedConfig


ENCODERS = ("bilstm", "cnn", "mlp", "none")
ATTENTIONS = ("additive", "dot_product", "uniform")


class AttentionClassifierConfig(PreTrainedConfig):
    """One encoder, one attention head, one query, one linear read-out.

    Args:
        vocab_size: rows of the embedding table.
        embedding_size: width of a word vector (the papers: 300).
        encoder: ``bilstm``, ``cnn``, ``mlp`` (token-wise linear + tanh, the papers' "average") or ``none``.
        encoder_size: width per direction (``bilstm``), over all kernels together (``cnn``), or of the layer (``mlp``).
        kernel_sizes: odd widths of the convolutions; each gets ``encoder_size / len(kernel_sizes)`` filters.
        attention: ``additive``, ``dot_product`` or ``uniform`` (1/T on every real token, nothing to train).
        attention_size: inner width of additive attention; ``None`` means half of the encoder's output.
        bos_token_id, eos_token_id: start and end, read by the encoder and masked from attention; ``None`` if unused.

    Raises:
        ValueError: for an unknown encoder or attention, a size below 1, even kernels, or fewer than two labels.
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

    def __post_init__(self, **kwargs):
        super().__post_init__(**kwargs)
        if self.encoder not in ENCODERS:
            raise ValueError(f"encoder must be one of {', '.join(ENCODERS)}, got {self.encoder!r}")
        if self.attention not in ATTENTIONS:
            raise ValueError(f"attention must be one of {', '.join(ATTENTIONS)}, got {self.attention!r}")
        if self.num_labels < 2:
            raise ValueError(f"num_labels must be at least 2 (one logit is returned as [0, z]), got {self.num_labels}")
        for name in ("vocab_size", "embedding_size", "encoder_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.encoder == "cnn":
            self._check_kernels()

    def _check_kernels(self):
        if not self.kernel_sizes or any(size % 2 == 0 for size in self.kernel_sizes):
            raise ValueError(f"kernel_sizes must be odd, got {list(self.kernel_sizes)}")
        if self.encoder_size % len(self.kernel_sizes):
            raise ValueError(
                f"encoder_size must be a multiple of the {len(self.kernel_sizes)} kernel sizes, got {self.encoder_size}"
            )

    @property
    def hidden_size(self) -> int:
        """Width of one encoder state h_t."""
        widths = {"bilstm": 2 * self.encoder_size, "none": self.embedding_size}
        return widths.get(self.encoder, self.encoder_size)


AttentionClassifierConfig.register_for_auto_class()
