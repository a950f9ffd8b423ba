"""Head outputs of other texts, which replace those of an ablated head."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from transformers import PreTrainedTokenizerBase

from hf_attnprobe.attention_model import AttentionModelBase, HeadOutputs
from hf_attnprobe.faithfulness import tests
from hf_attnprobe.inference.images import ImageReader
from hf_attnprobe.inference.reference import reference_batch


if TYPE_CHECKING:
    import datasets


def set_reference(
    adapter: AttentionModelBase,
    tokenizer: PreTrainedTokenizerBase | ImageReader,
    examples: "datasets.Dataset",
    chosen: Iterable[str],
) -> None:
    """Keeps the head outputs of a sample of texts, where a chosen test needs them."""
    is_used = any(tests()[name].uses_reference for name in chosen)
    if is_used and adapter.lacks(HeadOutputs) is None:
        batch = reference_batch(adapter, tokenizer, examples)
        adapter.require(HeadOutputs).set_reference(batch)
