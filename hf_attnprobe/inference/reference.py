"""The sample of texts whose head outputs stand in for those of an ablated head."""

from typing import TYPE_CHECKING

from transformers import PreTrainedTokenizerBase

from hf_attnprobe.attention_model import AttentionModelBase, Batch
from hf_attnprobe.data.examples import column_of, sample
from hf_attnprobe.data.images import has_images
from hf_attnprobe.inference.batching import collate
from hf_attnprobe.inference.choices import encode
from hf_attnprobe.inference.encoding import second_texts
from hf_attnprobe.inference.images import ImageReader


if TYPE_CHECKING:
    import datasets


# Texts, and tokens with padding, of the batch.
N_REFERENCE, REFERENCE_TOKENS = 32, 4096


def reference_batch(
    adapter: AttentionModelBase,
    tokenizer: PreTrainedTokenizerBase | ImageReader,
    examples: "datasets.Dataset",
) -> Batch:
    """The texts whose head outputs replace those of an ablated head.

    They are sampled by id from the whole split, so neither a limit, the order of the
    texts nor the number of processes changes them.
    """
    ids = column_of(examples, "example_id")
    seconds = second_texts(examples) or [""] * len(ids)
    strings = zip(column_of(examples, "text"), seconds, strict=True)
    rows = [row for row, pair in enumerate(strings) if "".join(pair).strip()] or [0]
    if has_images(examples):
        rows = list(range(len(ids)))
    rows = sample(rows, [ids[row] for row in rows], N_REFERENCE)
    rows = sorted(rows, key=ids.__getitem__)
    texts = encode(tokenizer, examples.select(rows), adapter).texts
    n_texts = REFERENCE_TOKENS // max(text.n_tokens for text in texts)
    return collate(adapter, texts[: max(2, n_texts)], tokenizer.pad_token_id or 0)
