"""Tokenized texts as batches: planned within a memory budget, padded, collated."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hf_attnprobe.adapters.token_deletion import sum_pieces
from hf_attnprobe.attention_model import AttentionModel, AttentionModelBase, Batch
from hf_attnprobe.data.examples import sample
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.inference.encoding import Text, tokenize


PAD_VALUES = {
    "attention_mask": 0,
    "special_tokens_mask": 1,
    "token_type_ids": 0,
    "word_ids": -1,
    "rationale": False,
}
N_REFERENCE, REFERENCE_TOKENS = (
    32,
    4096,
)  # texts, and tokens with padding: their head outputs stay in memory


def plan(
    texts: Sequence[Text],
    tests: Sequence[str],
    done: Mapping[str, set[int]],
    bytes_per_text: Callable[[int], int],
    budget: int,
    batch_size: int,
) -> list[tuple[tuple[str, ...], list[Text]]]:
    """What is left to do: tests with the texts that lack them, batched by length within the memory budget."""
    left: dict[tuple[str, ...], list[Text]] = {}
    for text in texts:
        missing = tuple(t for t in tests if text.example_id not in done.get(t, ()))
        if missing:
            left.setdefault(missing, []).append(text)
    jobs = []
    for missing, group in left.items():
        batch: list[Text] = []
        for text in sorted(
            group, key=lambda t: (len(t.inputs["input_ids"]), t.example_id)
        ):
            size = bytes_per_text(len(text.inputs["input_ids"]))
            if batch and (len(batch) >= batch_size or (len(batch) + 1) * size > budget):
                jobs.append((missing, batch))
                batch = []
            batch.append(text)
        jobs.append((missing, batch))
    return jobs


def collate(adapter: AttentionModel, texts: Sequence[Text], pad_token_id: int) -> Batch:
    """Texts padded to the longest, on the side where the model reads its last token if it does."""
    n_keys = max(len(t.inputs["input_ids"]) for t in texts)
    pads = PAD_VALUES | {"input_ids": pad_token_id}

    def padded(key: str, values: list[int]) -> list[int]:
        padding = [pads[key]] * (n_keys - len(values))
        return [*padding, *values] if adapter.pads_left else [*values, *padding]

    inputs = {
        key: torch.tensor([padded(key, t.inputs[key]) for t in texts])
        for key in texts[0].inputs
    }
    batch = adapter.prepare(
        inputs,
        tuple(t.example_id for t in texts),
        torch.tensor([t.label for t in texts]),
    )
    if texts[0].rationale is None:
        return batch
    marked = torch.tensor(
        [padded("rationale", t.rationale) for t in texts], device=batch.mask.device
    )
    return replace(batch, rationale=_of_units(marked, batch))


def _of_units(marked: Tensor, batch: Batch) -> Tensor | None:
    """Units with a marked token in them, bool [batch, keys]; None where units are no tokens, such as sentences."""
    if marked.shape != batch.mask.shape:
        return None
    units = batch.inputs.get("units")
    return (
        marked if units is None else sum_pieces(marked.long(), units) > 0
    ) & batch.content_mask


def reference_batch(adapter: AttentionModelBase, tokenizer, examples) -> Batch:
    """The texts that heads are ablated with: drawn from the whole split by id, whatever limit, order or process."""
    columns = examples.with_format(None)[:]
    rows = [row for row, text in enumerate(columns["text"]) if text.strip()] or [0]
    drawn = sample(rows, [columns["example_id"][row] for row in rows], N_REFERENCE)
    texts, _ = tokenize(
        tokenizer,
        examples.select(sorted(drawn, key=lambda row: columns["example_id"][row])),
        adapter,
    )
    longest = max(len(t.inputs["input_ids"]) for t in texts)
    return collate(
        adapter,
        texts[: max(2, REFERENCE_TOKENS // longest)],
        tokenizer.pad_token_id or 0,
    )


def parse_bytes(size: str | int) -> int:
    """Bytes of "500MB", "2GB" or a plain number."""
    text = str(size).strip().upper()
    units = {"KB": 10**3, "MB": 10**6, "GB": 10**9}
    number, unit = (text[:-2], units[text[-2:]]) if text[-2:] in units else (text, 1)
    try:
        n_bytes = int(float(number) * unit)
    except (ValueError, OverflowError):
        n_bytes = 0
    if n_bytes <= 0:
        raise AttnProbeError(
            f"expected a memory budget such as 500MB or 2GB, got {size!r}"
        )
    return n_bytes
