"""Deleting input tokens of any model: which tokens stay, and the outputs without the rest."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.protocol import Observation


def find_word_units(word_ids: Tensor) -> Tensor:
    """The position of the first piece of each token's word, [batch, keys].

    A token whose word is -1 is a unit by itself.

    >>> units_of_words(torch.tensor([[-1, 0, 0, 1, -1]]))
    tensor([[0, 1, 1, 3, 4]])
    """
    is_first = torch.ones_like(word_ids, dtype=torch.bool)
    is_first[:, 1:] = (word_ids.diff() != 0) | (word_ids[:, 1:] < 0)
    positions = torch.arange(word_ids.shape[1], device=word_ids.device)
    return positions.where(is_first, 0).cummax(dim=1).values


def sum_over_pieces(values: Tensor, units: Tensor) -> Tensor:
    """Values of all pieces of a unit added up at its first one, 0 at the others.

    Shape: [batch, keys] both, and the result.
    """
    return torch.zeros_like(values).scatter_add(1, units, values)


def iterate_shortened_texts(
    inputs: Mapping[str, Tensor],
    example: Tensor,
    kept: Tensor,
    *,
    pad_id: int,
    tokens_per_pass: int,
    pads_left: bool = False,
    ids: Tensor | None = None,
) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """Model inputs of shorter texts, those of like length together.

    A text that would be empty is left out.

    Args:
        inputs: model inputs; those of shape [batch, keys] are shortened.
        example: the text that each shorter one comes from, int [rows].
        kept: what it keeps of it, bool [rows, keys].
        pad_id: the token to pad with.
        tokens_per_pass: how many tokens, padding included, to yield at once.
        pads_left: pad on the left.
        ids: token ids to use in place of the texts' own, [rows, keys].

    Yields:
        Which rows, int [n], and the inputs of these n texts.
    """
    lengths, order = kept.sum(1).sort(stable=True)
    for rows in _passes(lengths.tolist(), tokens_per_pass):
        chosen = order[rows]
        texts = {name: value[example[chosen]] for name, value in inputs.items()}
        if ids is not None:
            texts["input_ids"] = ids[chosen]
        yield chosen, _compact(texts, kept[chosen], pad_id, pads_left)


def _passes(lengths: list[int], tokens_per_pass: int) -> Iterator[slice]:
    """Cuts ascending ``lengths``: rows × longest within the limit, or a single row."""
    start = lengths.count(0)
    for end, length in enumerate(lengths[start + 1 :], start + 1):
        n_rows = end + 1 - start
        if n_rows * length > tokens_per_pass:
            yield slice(start, end)
            start = end
    if start < len(lengths):
        yield slice(start, len(lengths))


def _compact(
    texts: Mapping[str, Tensor], kept: Tensor, pad_id: int, left: bool
) -> dict[str, Tensor]:
    """Moves the kept tokens of every [n, keys] input together, away from the padding.

    The texts are cut to the longest.
    """
    longest = int(kept.sum(1).max())
    order = (kept if left else ~kept).sort(dim=1, stable=True).indices
    positions = order[:, -longest:] if left else order[:, :longest]
    alive = kept.gather(1, positions)
    short = dict(texts)
    for name, values in texts.items():
        if values.shape == kept.shape:
            short[name] = values.gather(1, positions)
    short["attention_mask"] = alive.to(texts["attention_mask"].dtype)
    short["input_ids"] = short["input_ids"].masked_fill(~alive, pad_id)
    if "reads" in short:  # nothing is read from what is padding now
        short["reads"] = short["reads"].masked_fill(~alive, -1)
    return short


# --- The model run again on texts without some of their units ------------------------------------
# Units are deleted, or replaced by a token that says nothing. The model was trained on
# neither kind of text (Hase et al. 2021), so the caller chooses and reports which. Equal
# sets of units are run once per observation: many heads rank the same tokens first.

ERASURE_OPERATORS = ("deletion", "mask")

RunTexts = Callable[[Mapping[str, Tensor]], Tensor]
"""Model inputs of n texts -> probabilities [n, classes]."""


@dataclass
class _Answers:
    """What the model said of the erased texts of one observation.

    Attributes:
        rows: the row of each answer, by text and set of erased tokens.
        probs: the answers, each [n, classes]; they are numbered on.
    """

    rows: dict[tuple[int, bytes], int] = field(default_factory=dict)
    probs: list[Tensor] = field(default_factory=list)


def compute_erased_probs(
    observation: Observation,
    erased: Tensor,
    run: RunTexts,
    *,
    inputs: Mapping[str, Tensor] | None = None,
    units: Tensor | None = None,
    operator: str = "deletion",
    mask_id: int | None = None,
    empty: Tensor,
    pad_id: int,
    tokens_per_pass: int,
    pads_left: bool = False,
) -> Tensor:
    """Probabilities of the texts without the erased units; special tokens always stay.

    Args:
        observation: of the whole texts.
        erased: bool [copies, batch, keys], units at the positions that stand for them.
        run: runs the model.
        inputs: what is shortened; ``None``: the batch's inputs.
        units: [batch, keys], for each token the position that stands for it; ``None``:
            its own.
        operator: "deletion", or "mask" by the token ``find_mask_id``.
        empty: [batch, classes], the answer to a text of which no token is left.
        pad_id, tokens_per_pass, left: see
            :func:`~hf_attnprobe.adapters.deletion.iterate_shortened_texts`.

    Returns:
        [copies, batch, classes].

    Raises:
        AttnProbeError: an unknown operator, or no token to mask with.
    """
    check_erasure_operator(operator, mask_id)
    batch = observation.batch
    gone = erased & batch.content_mask
    if units is not None:
        gone = gone.gather(-1, units.expand(gone.shape))
    gone = gone.flatten(0, 1)
    key = "erased inputs", operator, mask_id
    known = observation.remember(key, lambda: _Answers(probs=[observation.probs[:0]]))
    names = _names(gone, len(batch.mask))
    new = {name: row for row, name in enumerate(names) if name not in known.rows}
    if new:
        rows = torch.tensor(list(new.values()), device=gone.device)
        example, sets = rows % len(batch.mask), gone[rows]
        probs = torch.where(
            sets.any(1, keepdim=True),
            empty[example],
            observation.probs[example],
        )
        inputs, kept, ids = _edited(inputs or batch.inputs, example, sets, operator, mask_id)
        texts = iterate_shortened_texts(
            inputs,
            example,
            kept,
            ids=ids,
            pad_id=pad_id,
            tokens_per_pass=tokens_per_pass,
            pads_left=pads_left,
        )
        for places, shorter in texts:
            probs[places] = run(shorter).to(probs.dtype)
        numbers = range(len(known.rows), len(known.rows) + len(new))
        known.rows.update(zip(new, numbers, strict=True))
        known.probs.append(probs)
    rows = torch.tensor([known.rows[name] for name in names], device=gone.device)
    return torch.cat(known.probs)[rows].unflatten(0, erased.shape[:2])


def _names(gone: Tensor, n_texts: int) -> list[tuple[int, bytes]]:
    """Names the rows of [copies · texts, keys] by their text and set."""
    packed = np.packbits(gone.cpu().numpy(), axis=1)
    return [(row % n_texts, bits.tobytes()) for row, bits in enumerate(packed)]


def _edited(
    inputs: Mapping[str, Tensor],
    example: Tensor,
    gone: Tensor,
    by: str,
    mask_id: int | None,
) -> tuple[dict[str, Tensor], Tensor, Tensor | None]:
    """Returns inputs, kept positions and new ids of erased texts, as ``shortened`` takes them.

    Shape: example [n], gone bool [n, keys]. A text of which nothing is gone keeps no
    token, so that it is not run.
    """
    inputs = {name: value for name, value in inputs.items() if name != "units"}
    is_token = inputs["attention_mask"].bool()[example]
    kept = is_token & gone.any(1, keepdim=True)
    if by == "deletion":
        return inputs, kept & ~gone, None
    assert mask_id is not None  # see check_operator
    ids = inputs["input_ids"][example]
    return inputs, kept, ids.masked_fill(gone, mask_id)


def check_erasure_operator(by: str, mask_id: int | None) -> None:
    """Raises AttnProbeError for an unknown operator, or where there is no mask token."""
    if by not in ERASURE_OPERATORS:
        raise AttnProbeError(
            f"expected inputs to be erased by one of {', '.join(ERASURE_OPERATORS)}, got {by!r}"
        )
    if by == "mask" and mask_id is None:
        raise AttnProbeError(
            "expected a mask token, or else an unknown token, to replace erased ones, "
            "the tokenizer has neither; erase by deletion"
        )
