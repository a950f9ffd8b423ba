"""What is asked of a Transformers model beside its attention: labels, ids, lengths."""

from torch import nn
from transformers import (
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hf_attnprobe.attention_model import UNLIMITED
from hf_attnprobe.functional.fingerprint import model_fingerprint


POSITIONS_FROM_PADDING = {
    "camembert",
    "esm",
    "longformer",
    "mpnet",
    "roberta",
    "xlm-roberta",
}
"""Model types that number positions from the padding token's id on.

They lose two positions.
"""


class PretrainedFacts:
    """The facts of a ``PreTrainedModel``, from its configuration; no copy is made.

    Adapters derive from it: their facts are those of the model that they were given.

    Attributes:
        given: the model, as it was given.
        label_names: the names of the classes, in the order of the probabilities.
        n_embeddings: how many token ids the model embeds; None for images.
        separator_ids: the token between sentences of a hierarchical model, no content.
        segment: "text" for a model with a query encoder, which attends to it alone.
    """

    def __init__(self, model: PreTrainedModel):
        config, embeddings = model.config, model.get_input_embeddings()
        self.given = model
        names = config.id2label or {}
        self.label_names = [str(name) for _, name in sorted(names.items())]
        self.n_embeddings: int | None = None
        if isinstance(embeddings, nn.Embedding):
            self.n_embeddings = embeddings.num_embeddings
        self.separator_ids: frozenset[int] = frozenset()
        if is_hierarchical(config):
            self.separator_ids = frozenset([config.sep_token_id])
        self.segment: str | None = "text" if reads_pairs(config) else None

    def max_length(self, tokenizer: PreTrainedTokenizerBase) -> int | None:
        """The most tokens that a text may have, special ones included; None: any number."""
        config = self.given.config
        bounds = []
        if getattr(config, "max_position_embeddings", None) is not None:
            lost = 2 if config.model_type in POSITIONS_FROM_PADDING else 0
            bounds.append(config.max_position_embeddings - lost)
        bounds.append(int(tokenizer.model_max_length))
        return min([bound for bound in bounds if 0 < bound < UNLIMITED], default=None)

    def fingerprint(self) -> str:
        """16 hexadecimal digits of the given weights' content, before any change of dtype."""
        return model_fingerprint(self.given)


def is_hierarchical(config: PreTrainedConfig) -> bool:
    """Whether a configuration is of a classifier with sentences above its words."""
    return bool(getattr(config, "hierarchical", False))


def reads_pairs(config: PreTrainedConfig) -> bool:
    """Whether a configuration is of a classifier that reads two texts, one as its query."""
    return bool(getattr(config, "query_encoder", False))
