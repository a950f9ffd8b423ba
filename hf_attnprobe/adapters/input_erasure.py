"""The model run again on texts without some of their units, deleted or replaced by a token that says nothing.

A shortened text is none that the model was trained on, and neither is one with masks in it (Hase et al. 2021): which of
the two is done is the caller's to say, and the caller's to report. What is erased alike is run once per observation:
many heads put the same tokens first.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from hf_attnprobe.adapters.token_deletion import shortened
from hf_attnprobe.attention_model import Observation
from hf_attnprobe.errors import AttnProbeError


OPERATORS = ("deletion", "mask")
TOKENS_PER_PASS = 4096  # of an attention classifier


def erased_probs(
    observation: Observation,
    erased: Tensor,
    run: Callable[[Mapping[str, Tensor]], Tensor],
    *,
    units: Tensor | None = None,
    by: str = "deletion",
    mask_id: int | None = None,
    empty: Tensor,
    **passes,
) -> Tensor:
    """Probabilities [copies, batch, classes] of the texts without the erased units; special tokens always stay.

    Args:
        erased: bool [copies, batch, keys], units at the positions that stand for them; others are left alone.
        run: model inputs of n texts -> probabilities [n, classes].
        units: [batch, keys], for each token the position that stands for it; ``None``: itself.
        by: "deletion", or "mask" by the token ``mask_id``.
        empty: [batch, classes], the answer to a text of which no token is left.
        passes: ``pad_id``, ``tokens_per_pass`` and ``left`` of :func:`~hf_attnprobe.adapters.token_deletion.shortened`.
    """
    check_operator(by, mask_id)
    batch = observation.batch
    gone = erased & batch.content_mask
    gone = (
        gone if units is None else gone.gather(-1, units.expand(gone.shape))
    ).flatten(0, 1)
    places, answers = observation.erased.setdefault(
        (by, mask_id), ({}, [observation.probs[:0]])
    )
    names = _names(gone, len(batch.mask))
    new = {name: row for row, name in enumerate(names) if name not in places}
    rows = torch.tensor(list(new.values()), dtype=torch.long, device=gone.device)
    fill = mask_id if by == "mask" else None
    answers.append(
        _run(observation, rows % len(batch.mask), gone[rows], run, fill, empty, passes)
    )
    places.update(zip(new, range(len(places), len(places) + len(new)), strict=True))
    found = torch.tensor([places[name] for name in names], device=gone.device)
    return torch.cat(answers)[found].unflatten(0, erased.shape[:2])


def _names(gone: Tensor, n_texts: int) -> list[tuple[int, bytes]]:
    """What tells the rows of [copies · texts, keys] apart: the text and the set."""
    packed = np.packbits(gone.cpu().numpy(), axis=1)
    return [(row % n_texts, one.tobytes()) for row, one in enumerate(packed)]


def _run(
    observation,
    example: Tensor,
    gone: Tensor,
    run: Callable,
    fill: int | None,
    empty: Tensor,
    passes,
) -> Tensor:
    """Probabilities [n, classes] of the texts ``example`` [n] without the tokens ``gone`` [n, keys], or ``fill`` in their
    place; where nothing is gone the observed ones."""
    inputs = {
        name: value
        for name, value in observation.batch.inputs.items()
        if name != "units"
    }
    touched = gone.any(1, keepdim=True)
    probs = torch.where(touched, empty[example], observation.probs[example])
    kept, ids = inputs["attention_mask"].bool()[example] & touched, None
    if fill is None:
        kept = kept & ~gone
    else:
        ids = inputs["input_ids"][example].masked_fill(gone, fill)
    for rows, texts in shortened(inputs, example, kept, ids=ids, **passes):
        probs[rows] = run(texts).to(probs.dtype)
    return probs


@torch.no_grad()
def erase_classifier_inputs(
    adapter, observation: Observation, erased: Tensor, by: str
) -> Tensor:
    """:func:`erased_probs` of an attention classifier, which answers with its bias where nothing is left to attend to."""
    return erased_probs(
        observation,
        erased,
        lambda texts: adapter.model(**texts).logits.softmax(-1),
        by=by,
        mask_id=adapter.mask_id,
        empty=adapter.readout_bias().softmax(-1).expand_as(observation.probs),
        pad_id=adapter.model.config.pad_token_id or 0,
        tokens_per_pass=TOKENS_PER_PASS,
    )


def check_operator(by: str, mask_id: int | None) -> None:
    """Raises AttnProbeError where ``by`` is unknown, or where there is no token to mask with."""
    if by not in OPERATORS:
        raise AttnProbeError(
            f"expected inputs to be erased by one of {', '.join(OPERATORS)}, got {by!r}"
        )
    if by == "mask" and mask_id is None:
        raise AttnProbeError(
            "expected a mask token, or else an unknown token, to put in the place of erased ones, the tokenizer has "
            "neither; erase by deletion"
        )
