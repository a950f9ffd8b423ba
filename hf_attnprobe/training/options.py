"""Training options, and options for the architecture of an attention classifier."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import MAX_SEED, Options, option


ProcedureName = Literal["jain-wallace", "serrano-smith"]
"""Name of a paper's training procedure."""


@dataclass(frozen=True)
class TrainingOptions(Options):
    """Training settings.

    A setting that is None takes its value from the training procedure or, for a pretrained model,
    from the fine-tuning defaults.
    """

    seed: int = option(
        0,
        "seed of weights, batches and bootstrap",
        at_least=0,
        at_most=MAX_SEED,
    )
    procedure: ProcedureName | None = option(
        None,
        "paper whose training settings are the defaults (default: jain-wallace)",
    )
    epochs: int | None = option(
        None,
        "maximum number of epochs (default: 8, pairs 25, serrano-smith 15, fine-tuning 3)",
        at_least=1,
        at_most=100_000,
    )
    batch_size: int | None = option(
        None,
        "texts per step (default: 32, pairs 100, serrano-smith 64)",
        at_least=1,
    )
    learning_rate: float | None = option(
        None,
        "learning rate (default: 1e-3, serrano-smith 4e-4, fine-tuning 5e-5)",
        at_least=0,
    )
    weight_decay: float | None = option(
        None,
        "weight decay (default: 1e-5, serrano-smith 0, fine-tuning 0.01)",
        at_least=0,
        basic=False,
    )
    max_grad_norm: float | None = option(
        None,
        "norm to which gradients are clipped (default: 0 for no clipping, serrano-smith 10)",
        at_least=0,
        basic=False,
    )
    plateau_factor: float | None = option(
        None,
        "factor for the learning rate after an epoch without a better validation "
        "score (default: 1, serrano-smith 0.5)",
        at_least=0,
        basic=False,
    )
    patience: int | None = option(
        None,
        "stop the training after this many epochs without a better validation score "
        "(default: never, serrano-smith 5)",
        at_least=1,
    )
    min_document_frequency: int | None = option(
        None,
        "treat words that occur in fewer training texts than this as unknown "
        "(default: 1, serrano-smith 5)",
        at_least=1,
        basic=False,
    )
    max_length: int | None = option(
        None,
        "number of tokens to which longer texts are truncated (default: the tokenizer's limit)",
        at_least=1,
    )
    word_vectors: str | Path | None = option(
        None,
        "file of pretrained word vectors, in word2vec, fastText or GloVe text format",
        metavar="FILE",
    )
    answers_in_text: bool = option(
        False,
        "for text pairs: predict only labels whose word occurs in the first text",
        basic=False,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        factor = self.plateau_factor
        if factor is not None and not 0 < factor <= 1:
            raise AttnProbeError(
                f"plateau_factor must be greater than 0 and at most 1, got {factor}. Use 1 to keep "
                "the learning rate constant."
            )


MAX_WIDTH = 100_000
"""Largest accepted width of a layer. Larger values are probably typing errors."""
CLASSIFIER_ONLY_OPTIONS = (
    "procedure",
    "max_grad_norm",
    "plateau_factor",
    "patience",
    "min_document_frequency",
    "word_vectors",
    "answers_in_text",
)
"""Training options for attention classifiers, which cannot be set for a pretrained model."""


@dataclass(frozen=True)
class Architecture(Options):
    """The architecture of an attention classifier.

    The fields are fields of :class:`~hf_attnprobe.AttentionClassifierConfig`; those that depend on
    the data, such as the vocabulary size, are left out. A field that is None takes its value from
    the training procedure. Guided attention is not available here because it needs guides.
    """

    embedding_size: int | None = option(
        None,
        "dimensions of a word vector (default: 300, serrano-smith 200)",
        at_least=1,
        at_most=MAX_WIDTH,
    )
    encoder: Literal["bilstm", "bigru", "orthogonal_lstm", "cnn", "mlp", "none"] | None = option(
        None, "encoder (default: bilstm, serrano-smith bigru; for bags of instances mlp)"
    )
    encoder_size: int | None = option(
        None,
        "width of the encoder in each direction (default: 128, serrano-smith 50)",
        at_least=1,
        at_most=MAX_WIDTH,
    )
    kernel_sizes: list[int] | None = option(
        None,
        "widths of the convolutions of the encoder cnn (default: 1 3 5 7, serrano-smith 3 5)",
        at_least=1,
        at_most=MAX_WIDTH,
        basic=False,
    )
    attention: Literal["additive", "gated", "dot_product", "uniform"] | None = option(
        None, "attention function (default: additive; for bags of instances gated)"
    )
    attention_size: int | None = option(
        None,
        "inner width of the attention (default: half the width of the states, serrano-smith 100)",
        at_least=1,
        at_most=MAX_WIDTH,
        basic=False,
    )
    hierarchical: bool | None = option(
        None,
        "attend to the words of each sentence, then to the sentences of the text",
    )
    query_encoder: bool | None = option(
        None,
        "for text pairs: encode the second text separately and use it as the query of the "
        "attention over the first text",
    )
    embedding_dropout: float | None = option(
        None,
        "dropout on word vectors (default: the procedure's, or 0)",
        at_least=0,
        at_most=1,
        basic=False,
    )
    sentence_dropout: float | None = option(
        None,
        "dropout on sentence vectors (default: the procedure's, or 0)",
        at_least=0,
        at_most=1,
        basic=False,
    )
    logit_dropout: float | None = option(
        None,
        "dropout on logits (default: the procedure's, or 0)",
        at_least=0,
        at_most=1,
        basic=False,
    )
    residual_connection: Literal["none", "concat", "residual"] | None = option(
        None, "how word vectors are added to the encoder's states (default: none)"
    )
    tying: float | None = option(
        None,
        "weight of the penalty on the distance between states and word vectors (default: 0)",
        at_least=0,
    )
    mlm_weight: float | None = option(
        None,
        "weight of the loss of predicting masked words (default: 0)",
        at_least=0,
    )
    mlm_rate: float | None = option(
        None,
        "share of words that are masked for that loss (default: 0.15)",
        at_least=0,
        at_most=1,
        basic=False,
    )
    conicity_weight: float | None = option(
        None,
        "weight of the penalty on the conicity of the states (default: 0)",
        at_least=0,
    )
    class_attention: bool | None = option(
        None,
        "for bags of instances: one attention distribution per class, as in CLAM_MB",
    )
