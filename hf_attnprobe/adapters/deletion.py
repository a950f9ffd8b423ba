"""Erase tokens from texts and run a model on the result, for any adapter."""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from hf_attnprobe.adapters.transformer.task_heads import ADAPTER_INPUTS
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.protocol import Observation


def choose_padding_id(token_ids: Iterable[int | None], n_embeddings: int | None) -> int:
    """Choose a token id for padding that the model can embed.

    A padding token is often added to a tokenizer whose model has no embedding for it. Padding is
    hidden by the attention mask, so any other token can replace it.

    Args:
        token_ids: Candidates in order of preference; None stands for a missing token.
        n_embeddings: Number of token ids that the model embeds; None if it is unknown.

    Returns:
        The first candidate with an embedding, or 0.

    >>> choose_padding_id([None, 32000, 2], 32000)
    2
    """
    for token_id in token_ids:
        if token_id is not None and 0 <= token_id < (n_embeddings or math.inf):
            return token_id
    return 0


def find_word_units(word_ids: Tensor) -> Tensor:
    """Find for each token the position of the first token of the same word.

    Args:
        word_ids: Index of each token's word, int `[batch, keys]`. A token with the index -1, such
            as a special token, counts as a word by itself.

    Returns:
        Positions, int `[batch, keys]`.

    Example:
        The second word consists of one token, and the first word of two tokens:

        >>> find_word_units(torch.tensor([[-1, 0, 0, 1, -1]]))
        tensor([[0, 1, 1, 3, 4]])
    """
    # A token starts a word if its word index differs from that of the previous token.
    is_first = torch.ones_like(word_ids, dtype=torch.bool)
    is_first[:, 1:] = (word_ids.diff() != 0) | (word_ids[:, 1:] < 0)
    positions = torch.arange(word_ids.shape[1], device=word_ids.device)
    start_positions = positions.where(is_first, 0)
    # The running maximum is the position of the latest start.
    return start_positions.cummax(dim=1).values


def sum_over_pieces(values: Tensor, units: Tensor) -> Tensor:
    """Sum the values of all tokens of a word, and store the sum at the first token.

    Args:
        values: One value per token, `[batch, keys]`.
        units: Position of the first token of each token's word, int `[batch, keys]`.

    Returns:
        Sums `[batch, keys]`, with 0 at all tokens of a word except the first.

    Example:
        >>> sum_over_pieces(torch.tensor([[1, 2, 3]]), torch.tensor([[0, 1, 1]]))
        tensor([[1, 5, 0]])
    """
    return torch.zeros_like(values).scatter_add(1, units, values)


def iterate_shortened_texts(
    inputs: Mapping[str, Tensor],
    example: Tensor,
    remaining: Tensor,
    *,
    pad_id: int,
    tokens_per_pass: int,
    pads_left: bool = False,
    ids: Tensor | None = None,
) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """Yield model inputs for shortened texts, in batches of texts with similar lengths.

    Texts without any remaining token are skipped.

    Args:
        inputs: Model inputs for the whole texts. Inputs with the shape `[batch, keys]` are
            shortened.
        example: Whole-text index for each shortened text, int `[shortened texts]`.
        remaining: Whether each token remains, bool `[shortened texts, keys]`.
        pad_id: Padding token id.
        tokens_per_pass: Largest number of tokens in a batch, including padding.
        pads_left: Whether to pad on the left.
        ids: Token ids before shortening, int `[shortened texts, keys]`; None for the ids in
            `inputs`.

    Yields:
        Indices of the shortened texts in the batch, and their model inputs.
    """
    lengths, order = remaining.sum(1).sort(stable=True)
    for rows in split_by_length(lengths.tolist(), tokens_per_pass):
        batch_rows = order[rows]
        texts = {name: value[example[batch_rows]] for name, value in inputs.items()}
        if ids is not None:
            texts["input_ids"] = ids[batch_rows]
        yield batch_rows, _remove_tokens(texts, remaining[batch_rows], pad_id, pads_left)


def split_by_length(lengths: list[int], tokens_per_pass: int) -> Iterator[slice]:
    """Split texts into batches that have at most a given number of tokens, including padding.

    Args:
        lengths: Length of each text in tokens, in ascending order. Texts of length 0 are skipped.
        tokens_per_pass: Largest number of tokens in a batch. A text that is longer is a batch by
            itself.

    Yields:
        Indices of the texts in each batch.
    """
    # Lengths are ascending, so the last text of a slice determines the padded length.
    start = lengths.count(0)
    for end, length in enumerate(lengths[start + 1 :], start + 1):
        n_rows = end + 1 - start
        if n_rows * length > tokens_per_pass:
            yield slice(start, end)
            start = end
    if start < len(lengths):
        yield slice(start, len(lengths))


def has_token_axis(name: str, values: Tensor, shape: torch.Size) -> bool:
    """Check whether a model input has one value, or one vector, for each token.

    Args:
        name: Name of the input.
        values: The input.
        shape: Number of texts and of tokens per text.
    """
    # Inputs of task heads may have as many slots as a text has tokens.
    is_vector_per_token = name not in ADAPTER_INPUTS and values.shape[:2] == shape
    return values.shape == shape or is_vector_per_token


def gather_tokens(values: Tensor, positions: Tensor) -> Tensor:
    """Select the values of some tokens.

    Args:
        values: Values `[texts, keys, ...]`.
        positions: Selected positions, int `[texts, selected tokens]`.

    Returns:
        Values `[texts, selected tokens, ...]`.
    """
    index = positions.reshape(*positions.shape, *[1] * (values.dim() - 2))
    return values.gather(1, index.expand(*positions.shape, *values.shape[2:]))


def _remove_tokens(
    texts: Mapping[str, Tensor], remaining: Tensor, pad_id: int, pads_left: bool
) -> dict[str, Tensor]:
    """Remove tokens from all inputs of a model, and pad the shortened texts to one length.

    Args:
        texts: Model inputs. Tokens are removed from all inputs with one value per token.
        remaining: Which tokens are not removed, bool `[texts, keys]`.
        pad_id: Token id for padding.
        pads_left: Whether padding is added on the left.
    """
    max_length = int(remaining.sum(1).max())
    # A stable sort moves the remaining tokens to one side and keeps their order.
    order = (remaining if pads_left else ~remaining).sort(dim=1, stable=True).indices
    positions = order[:, -max_length:] if pads_left else order[:, :max_length]
    is_token = remaining.gather(1, positions)
    shortened = dict(texts)
    for name, values in texts.items():
        if has_token_axis(name, values, remaining.shape):
            shortened[name] = gather_tokens(values, positions)
    shortened["attention_mask"] = is_token.to(texts["attention_mask"].dtype)
    shortened["input_ids"] = shortened["input_ids"].masked_fill(~is_token, pad_id)
    if "reads" in shortened:
        # Padding is marked with -1: the model's predictions for these positions are not used.
        shortened["reads"] = shortened["reads"].masked_fill(~is_token, -1)
    return shortened


# --- Erasing units from texts and running the model again ----------------------------------------
# Units are deleted, or replaced by a mask token. The model was not trained on either kind of text
# (Hase et al. 2021), so the caller chooses the operator and reports it. Each set of units is run
# only once per observation, because many heads rank the same tokens first.

ERASURE_OPERATORS = ("deletion", "mask")
"""Erasure operators, which remove tokens from a text.

- "deletion": the tokens are deleted, and the text becomes shorter.
- "mask": the tokens are replaced with the mask token.
"""

RunTexts = Callable[[Mapping[str, Tensor]], Tensor]
"""Type of a function that runs a model on inputs and returns probabilities `[texts, classes]`."""


@dataclass(frozen=True)
class ErasureSettings:
    """Properties of a model and its tokenizer that are needed to erase tokens.

    Attributes:
        pad_id: Padding token id.
        tokens_per_pass: Token limit for a forward pass, including padding.
        mask_id: Mask token id, or None if there is none.
        pads_left: Whether texts are padded on the left.
    """

    pad_id: int
    tokens_per_pass: int
    mask_id: int | None = None
    pads_left: bool = False


@dataclass
class _ErasureCache:
    """Cached probabilities for shortened texts from one observation.

    Attributes:
        rows: Row in the concatenated `probs`, by whole-text index and the erased tokens as packed
            bits.
        probs: Probabilities from successive calls, each `[shortened texts, classes]`.
    """

    rows: dict[tuple[int, bytes], int] = field(default_factory=dict)
    probs: list[Tensor] = field(default_factory=list)


def compute_erased_probs(
    observation: Observation,
    erased: Tensor,
    run: RunTexts,
    settings: ErasureSettings,
    *,
    empty: Tensor,
    inputs: Mapping[str, Tensor] | None = None,
    units: Tensor | None = None,
    operator: str = "deletion",
) -> Tensor:
    """Compute the probabilities after erasing units from texts.

    Special tokens always stay. Each set of units runs only once per observation, even if it is
    requested again.

    Args:
        observation: The observed whole texts.
        erased: Units to erase, bool `[copies, batch, keys]`, marked at their first token.
        run: Function that runs the model.
        settings: Properties of the model and its tokenizer.
        empty: Probabilities for a text without any remaining token, `[batch, classes]`.
        inputs: Model inputs to shorten, or None for the batch's inputs.
        units: Position at which each token's unit starts, int `[batch, keys]`. With None, each
            token is a unit.
        operator: "deletion", or "mask" to replace tokens with the mask token.

    Returns:
        Probabilities `[copies, batch, classes]`.

    Raises:
        AttnProbeError: If the operator is unknown, or if there is no mask token.
    """
    mask_id = settings.mask_id
    check_erasure_operator(operator, mask_id)
    batch = observation.batch
    erased_tokens = erased & batch.content_mask
    if units is not None:
        erased_tokens = erased_tokens.gather(-1, units.expand(erased_tokens.shape))

    def compute_probs(example: Tensor, new_sets: Tensor) -> Tensor:
        probs = torch.where(
            new_sets.any(1, keepdim=True),
            empty[example],
            observation.probs[example],
        )
        text_inputs, remaining, ids = _edit_inputs(
            inputs or batch.inputs, example, new_sets, operator, mask_id
        )
        texts = iterate_shortened_texts(
            text_inputs,
            example,
            remaining,
            ids=ids,
            pad_id=settings.pad_id,
            tokens_per_pass=settings.tokens_per_pass,
            pads_left=settings.pads_left,
        )
        for batch_rows, shortened in texts:
            probs[batch_rows] = run(shortened).to(probs.dtype)
        return probs

    cache_key = ("erased inputs", operator, mask_id)
    return compute_each_set_once(observation, cache_key, erased_tokens, compute_probs)


def compute_each_set_once(
    observation: Observation,
    cache_key: Hashable,
    sets: Tensor,
    compute_probs: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """Compute probabilities for sets of tokens, each distinct set of a text only once.

    Args:
        observation: The observed whole texts.
        cache_key: Key of the results in the observation's cache.
        sets: Sets of tokens, bool `[copies, batch, keys]`.
        compute_probs: Function that receives the index of a text for each set, int `[sets]`, and the
            sets, bool `[sets, keys]`. It returns probabilities `[sets, classes]`.

    Returns:
        Probabilities `[copies, batch, classes]`.
    """
    n_copies, n_texts, _ = sets.shape
    sets = sets.flatten(0, 1)
    cache = observation.remember(cache_key, lambda: _ErasureCache(probs=[observation.probs[:0]]))
    keys = _create_cache_keys(sets, n_texts)
    new_rows = {key: row for row, key in enumerate(keys) if key not in cache.rows}
    if new_rows:
        rows = torch.tensor(list(new_rows.values()), device=sets.device)
        probs = compute_probs(rows % n_texts, sets[rows])
        cache_rows = range(len(cache.rows), len(cache.rows) + len(new_rows))
        cache.rows.update(zip(new_rows, cache_rows, strict=True))
        cache.probs.append(probs)
    rows = torch.tensor([cache.rows[key] for key in keys], device=sets.device)
    return torch.cat(cache.probs)[rows].unflatten(0, (n_copies, n_texts))


def _create_cache_keys(erased_tokens: Tensor, n_texts: int) -> list[tuple[int, bytes]]:
    """Create a cache key for each row of `[copies · texts, keys]`: its text and erased tokens."""
    packed = np.packbits(erased_tokens.cpu().numpy(), axis=1)
    return [(row % n_texts, bits.tobytes()) for row, bits in enumerate(packed)]


def _edit_inputs(
    inputs: Mapping[str, Tensor],
    example: Tensor,
    erased_tokens: Tensor,
    operator: str,
    mask_id: int | None,
) -> tuple[dict[str, Tensor], Tensor, Tensor | None]:
    """Create the inputs of variants of some texts, in which tokens are deleted or masked.

    If no token of a variant is erased, all its tokens are removed, so that the model does not run
    on it. The model's probabilities for the whole text are already known.

    Args:
        inputs: Model inputs for the whole texts.
        example: Index of the whole text for each variant, int `[rows]`.
        erased_tokens: Which tokens to erase in each variant, bool `[rows, keys]`.
        operator: One of `ERASURE_OPERATORS`.
        mask_id: Mask token id.

    Returns:
        Inputs for the whole texts; remaining tokens of each variant, bool `[rows, keys]`; and the
        token ids of each variant with mask tokens, or None for the operator "deletion". These are
        the arguments of `iterate_shortened_texts`.
    """
    inputs = {name: value for name, value in inputs.items() if name != "units"}
    is_token = inputs["attention_mask"].bool()[example]
    remaining = is_token & erased_tokens.any(1, keepdim=True)
    if operator == "deletion":
        return inputs, remaining & ~erased_tokens, None
    # `check_erasure_operator` has raised an error if there is no mask token.
    assert mask_id is not None
    ids = inputs["input_ids"][example]
    return inputs, remaining, ids.masked_fill(erased_tokens, mask_id)


def check_erasure_operator(operator: str, mask_id: int | None) -> None:
    """Check that an erasure operator exists and can be used with the tokenizer.

    Args:
        operator: Operator name, which should be one of `ERASURE_OPERATORS`.
        mask_id: Mask token id, which the operator "mask" needs.

    Raises:
        AttnProbeError: If the operator is unknown, or if it needs a mask token and there is none.
    """
    if operator not in ERASURE_OPERATORS:
        raise AttnProbeError(
            f"expected the erasure operator to be one of {', '.join(ERASURE_OPERATORS)}, "
            f"got {operator!r}"
        )
    if operator == "mask" and mask_id is None:
        raise AttnProbeError(
            "the erasure operator 'mask' needs a mask token or an unknown token, but the tokenizer "
            "has neither; use the operator 'deletion'"
        )
