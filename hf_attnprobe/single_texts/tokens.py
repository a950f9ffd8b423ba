"""The units of a text that are explained, as they stand in it."""

from collections.abc import Sequence
from itertools import pairwise

from transformers import PreTrainedTokenizerBase

from hf_attnprobe.attention_model import Batch
from hf_attnprobe.charts.shown_text import without_marks
from hf_attnprobe.inference.tokenizer_state import leaves_tokenizer


Strings = tuple[str, str | None]
"""A text, and of a pair the second one."""


def tokens_of_units(batch: Batch, row: int) -> list[list[int]]:
    """The positions of the tokens of every unit that is explained: word or sentence."""
    content = batch.content_mask[row]
    places = content.nonzero().flatten().tolist()
    units = batch.inputs.get("units")
    if units is None:
        return [[place] for place in places]
    found: dict[int, list[int]] = {place: [] for place in places}
    for position, unit in enumerate(units[row].tolist()):
        if unit in found:
            found[unit].append(position)
    return [found[place] or [place] for place in places]


def as_read(
    tokenizer: PreTrainedTokenizerBase,
    ids: Sequence[int],
    units: Sequence[Sequence[int]],
    strings: Strings | None,
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The units as a reader expects them, and which follow without a space.

    Args:
        ids: of all tokens of the text.
        units: of :func:`tokens_of_units`.
        strings: what was tokenized; None where it is not known.
    """
    found = None if strings is None else _cut_out(tokenizer, ids, units, strings)
    if found is not None:
        return found
    pieces = tokenizer.convert_ids_to_tokens(list(ids))
    if all(len(unit) == 1 for unit in units):
        return without_marks([pieces[unit[0]] for unit in units])
    return tuple(_joined([pieces[place] for place in unit]) for unit in units), ()


def _joined(pieces: Sequence[str]) -> str:
    shown, glued = without_marks(pieces)
    spaced = [part if k in glued else f" {part}" for k, part in enumerate(shown)]
    return "".join(spaced).strip()


@leaves_tokenizer
def _cut_out(
    tokenizer: PreTrainedTokenizerBase,
    ids: Sequence[int],
    units: Sequence[Sequence[int]],
    strings: Strings,
) -> tuple[tuple[str, ...], tuple[int, ...]] | None:
    """The units cut out of the text itself; None where the tokens' places are not known."""
    if not tokenizer.is_fast:
        return None
    encoded = tokenizer(
        *strings,
        return_offsets_mapping=True,
        truncation="longest_first",
        max_length=len(ids),
    )
    if list(encoded["input_ids"]) != list(ids):
        return None
    segments, offsets = encoded.sequence_ids(0), encoded["offset_mapping"]
    shown: list[str] = []
    places: list[tuple[int, int, int]] = []  # segment, start, end
    for unit in units:
        segment = segments[unit[0]]
        start, end = offsets[unit[0]][0], offsets[unit[-1]][1]
        if segment is None or end <= start:
            return None
        string = strings[segment] or ""
        start = start + len(string[start:end]) - len(string[start:end].lstrip())
        if places and places[-1][0] == segment:  # bytes of one character share a place
            start = max(start, min(places[-1][2], end))
        shown.append(string[start:end].rstrip() or "…")
        places.append((segment, start, start + len(string[start:end].rstrip())))
    glued = [
        k
        for k, (before, own) in enumerate(pairwise(places), 1)
        if before[0] == own[0] and own[1] <= before[2]
    ]
    return tuple(shown), tuple(glued)
