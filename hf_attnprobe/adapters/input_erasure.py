"""The model run again on texts without some of their units.

Units are deleted, or replaced by a token that says nothing. The model was trained on
neither kind of text (Hase et al. 2021), so the caller chooses and reports which. Equal
sets of units are run once per observation: many heads rank the same tokens first.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from hf_attnprobe.adapters.token_deletion import shortened
from hf_attnprobe.attention_model import Observation
from hf_attnprobe.errors import AttnProbeError


OPERATORS = ("deletion", "mask")

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


def erased_probs(
    observation: Observation,
    erased: Tensor,
    run: RunTexts,
    *,
    inputs: Mapping[str, Tensor] | None = None,
    units: Tensor | None = None,
    by: str = "deletion",
    mask_id: int | None = None,
    empty: Tensor,
    pad_id: int,
    tokens_per_pass: int,
    left: bool = False,
) -> Tensor:
    """Probabilities of the texts without the erased units; special tokens always stay.

    Args:
        observation: of the whole texts.
        erased: bool [copies, batch, keys], units at the positions that stand for them.
        run: runs the model.
        inputs: what is shortened; ``None``: the batch's inputs.
        units: [batch, keys], for each token the position that stands for it; ``None``:
            its own.
        by: "deletion", or "mask" by the token ``mask_id``.
        empty: [batch, classes], the answer to a text of which no token is left.
        pad_id, tokens_per_pass, left: see
            :func:`~hf_attnprobe.adapters.token_deletion.shortened`.

    Returns:
        [copies, batch, classes].

    Raises:
        AttnProbeError: an unknown operator, or no token to mask with.
    """
    check_operator(by, mask_id)
    batch = observation.batch
    gone = erased & batch.content_mask
    if units is not None:
        gone = gone.gather(-1, units.expand(gone.shape))
    gone = gone.flatten(0, 1)
    key = "erased inputs", by, mask_id
    known = observation.remember(key, lambda: _Answers(probs=[observation.probs[:0]]))
    names = _names(gone, len(batch.mask))
    new = {name: row for row, name in enumerate(names) if name not in known.rows}
    if new:
        rows = torch.tensor(list(new.values()), device=gone.device)
        example, sets = rows % len(batch.mask), gone[rows]
        probs = torch.where(sets.any(1, keepdim=True), empty[example], observation.probs[example])
        inputs, kept, ids = _edited(inputs or batch.inputs, example, sets, by, mask_id)
        texts = shortened(
            inputs,
            example,
            kept,
            ids=ids,
            pad_id=pad_id,
            tokens_per_pass=tokens_per_pass,
            left=left,
        )
        for places, shorter in texts:
            probs[places] = run(shorter).to(probs.dtype)
        numbers = range(len(known.rows), len(known.rows) + len(new))
        known.rows.update(zip(new, numbers, strict=True))
        known.probs.append(probs)
    rows = torch.tensor([known.rows[name] for name in names], device=gone.device)
    return torch.cat(known.probs)[rows].unflatten(0, erased.shape[:2])


def _names(gone: Tensor, n_texts: int) -> list[tuple[int, bytes]]:
    """What tells the rows of [copies · texts, keys] apart: the text and the set."""
    packed = np.packbits(gone.cpu().numpy(), axis=1)
    return [(row % n_texts, bits.tobytes()) for row, bits in enumerate(packed)]


def _edited(
    inputs: Mapping[str, Tensor],
    example: Tensor,
    gone: Tensor,
    by: str,
    mask_id: int | None,
) -> tuple[dict[str, Tensor], Tensor, Tensor | None]:
    """Inputs, kept positions and new ids of erased texts, as ``shortened`` takes them.

    Shape: example [n], gone bool [n, keys]. A text of which nothing is gone keeps no
    token, so that it is not run.
    """
    inputs = {name: value for name, value in inputs.items() if name != "units"}
    kept = inputs["attention_mask"].bool()[example] & gone.any(1, keepdim=True)
    if by == "deletion":
        return inputs, kept & ~gone, None
    assert mask_id is not None  # see check_operator
    return inputs, kept, inputs["input_ids"][example].masked_fill(gone, mask_id)


def check_operator(by: str, mask_id: int | None) -> None:
    """Raises AttnProbeError for an unknown operator, or where there is no mask token."""
    if by not in OPERATORS:
        raise AttnProbeError(
            f"expected inputs to be erased by one of {', '.join(OPERATORS)}, got {by!r}"
        )
    if by == "mask" and mask_id is None:
        raise AttnProbeError(
            "expected a mask token, or else an unknown token, to replace erased ones, "
            "the tokenizer has neither; erase by deletion"
        )
