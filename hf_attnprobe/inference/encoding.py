"""Encodes texts and images for a model, and converts labels to the model's class indices.

A fast tokenizer's truncation and padding settings are restored after every call, because they would
otherwise be saved with the tokenizer.
"""

import hashlib
import itertools
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    ParamSpec,
    Protocol,
    TypeVar,
)

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_attnprobe.adapters.transformer.layout import get_embeddings_module, get_image_shape
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.formatting import format_count
from hf_attnprobe.core.serialization import format_short
from hf_attnprobe.data.columns import find_image_column, read_column, read_image_column
from hf_attnprobe.data.model_inputs import list_input_columns
from hf_attnprobe.functional.predictions import Prediction
from hf_attnprobe.inference.labels import (
    Label,
    convert_class_labels,
    convert_labels,
    needs_offsets,
)
from hf_attnprobe.inference.model_inputs import align_model_inputs, check_needs_no_boxes


if TYPE_CHECKING:
    import datasets
    from PIL import Image


logger = logging.getLogger(__name__)

SEGMENTS = ("text", "text_pair")
"""Column names of the first and the second text in a pair; also the values for ``--segment``."""
RATIONALE_COLUMNS = {"rationale", "rationale_pair"}
"""Names of the columns with human rationales for the first and the second text in a pair.

A rationale is a list of word positions: [0, 3] marks the first and the fourth word.
"""
TOKENIZER_OUTPUTS = ("input_ids", "attention_mask", "token_type_ids", "special_tokens_mask")
"""Names of the tokenizer outputs that the package can pad.

A tokenizer with other outputs causes an error.
"""
DERIVED_INPUTS = ("special_tokens_mask", "word_ids")
"""Names of the inputs that follow from the other inputs of a text.

They are not needed to recognise copies of a text.
"""


@dataclass(frozen=True)
class Text:
    """An encoded text.

    Attributes:
        example_id: Text id within its split.
        label: The model's class index, or −1 if there is no label. For models without classes, a
            number or a list; see :mod:`hf_attnprobe.inference.labels`.
        inputs: Lists with one number per token. Pairs also have ``segment_ids``: 0 in the first
            text, 1 in the second text, −1 for special tokens. If only one text in the pair is
            explained, ``held`` is 1 at the tokens of the other text.
        rationale: Whether each token belongs to the human rationale; None if unknown.
        scores: User-provided scores, stored at the first token of each unit; None if there are
            none.
        identity: Hash of everything that the model reads, from :func:`compute_identity`. For a
            prompt, it is a hash of the prompt, its units and its answer. Texts with the same hash
            are copies of each other. None if it is unknown.
    """

    example_id: int
    label: Label
    inputs: Mapping[str, list[Any]]
    rationale: Sequence[bool] | None = None
    scores: Sequence[float] | None = None
    identity: int | None = None

    @property
    def sequences(self) -> list[tuple[list[int], list[int]]]:
        """Token ids and special-token mask for each sequence that the model reads."""
        return [(self.inputs["input_ids"], self.inputs["special_tokens_mask"])]

    @property
    def n_tokens(self) -> int:
        """Number of tokens."""
        return len(self.inputs["input_ids"])

    @property
    def n_content(self) -> int:
        """Number of explained tokens, which are neither special nor held."""
        special_mask = self.inputs["special_tokens_mask"]
        held_mask = self.inputs.get("held", [0] * self.n_tokens)
        return sum(
            not (is_special or is_held)
            for is_special, is_held in zip(special_mask, held_mask, strict=True)
        )


def compute_identity(inputs: Mapping[str, Any]) -> int:
    """Compute a hash of everything that a model reads in a text, so that copies can be recognised.

    Args:
        inputs: The text's inputs by name: lists with one number per token, lists with one such list
            per choice, or the pixels of an image.

    Returns:
        A number of 52 bits. Two texts with the same token ids and the same segments have the same
        number, even if their labels or their example ids differ.

    Example:
        first = compute_identity({"input_ids": [101, 7592, 102]})
        second = compute_identity({"input_ids": [101, 7592, 102]})
        assert first == second
    """
    digest = hashlib.sha256()
    for name in sorted(inputs.keys() - {*DERIVED_INPUTS}):
        values = inputs[name]
        has_choices = isinstance(values, list) and bool(values) and isinstance(values[0], list)
        for choice_values in values if has_choices else [values]:
            if isinstance(choice_values, Tensor):
                content = choice_values.detach().cpu().numpy()
            else:
                content = np.asarray(choice_values, dtype=np.int64)
            # The name and the shape separate this input from the next one.
            digest.update(f"{name} {content.dtype.str} {content.shape} ".encode())
            digest.update(content.tobytes())
    return _shorten_digest(digest.hexdigest())


def hash_content(content: Any) -> int:
    """Compute a 52-bit hash of plain data.

    Stored rows contain float64 numbers, which represent every integer of 52 bits exactly.

    Args:
        content: Data that can be converted to JSON.

    Returns:
        A number from 0 to 2⁵² − 1.
    """
    return _shorten_digest(hashlib.sha256(json.dumps(content).encode()).hexdigest())


def _shorten_digest(hex_digest: str) -> int:
    """Convert the first 52 bits of a hexadecimal digest to a number."""
    return int(hex_digest[:13], 16)


def count_distinct_texts(texts: Sequence[Text]) -> int:
    """Count the different texts; a text with an unknown identity counts as different from all others.

    Args:
        texts: The texts, which may contain several copies of a text.
    """
    return len(select_distinct_texts(texts))


def select_distinct_texts(texts: Sequence[Text]) -> list[Text]:
    """Select the first copy of each text; texts with an unknown identity are all selected.

    Args:
        texts: The texts, which may contain several copies of a text.

    Returns:
        Different texts, in their original order.
    """
    known_identities: set[int] = set()
    distinct_texts = []
    for text in texts:
        if text.identity is None:
            distinct_texts.append(text)
        elif text.identity not in known_identities:
            known_identities.add(text.identity)
            distinct_texts.append(text)
    return distinct_texts


@dataclass(frozen=True)
class TokenizedSplit:
    """All encoded texts in a split.

    Attributes:
        texts: Texts with at least one token, in split order.
        n_empty: Number of texts that were left out because they have no tokens.
        n_truncated: Number of texts that were cut to the model's maximum length.
        truncated_ids: Ids of these texts.
        n_tokens_before_cut: Number of tokens that these texts had before they were cut.
        n_tokens_after_cut: Number of their tokens that the model reads.
        max_length: Maximum number of tokens that the model reads; None for no limit.
        n_half_empty: Number of pairs with one text that is blank, which the model reads as empty.
    """

    texts: list[Text]
    n_empty: int
    n_truncated: int
    truncated_ids: frozenset[int] = frozenset()
    n_tokens_before_cut: int = 0
    n_tokens_after_cut: int = 0
    max_length: int | None = None
    n_half_empty: int = 0


class TextModel(Protocol):
    """Model properties that tokenization needs.

    Adapters and :class:`PretrainedModelInfo` implement this protocol.

    Attributes:
        n_embeddings: Number of token ids that the model embeds; None for any number.
        separator_ids: Tokens that count as special, in addition to the tokenizer's special tokens.
        segment: The only text in a pair to which the model attends; None for both.
    """

    n_embeddings: int | None
    separator_ids: frozenset[int]
    segment: str | None

    @property
    def prediction(self) -> Prediction:
        """The model's prediction type and its outcomes."""

    def get_max_length(self, tokenizer: PreTrainedTokenizerBase) -> int | None:
        """Return the maximum number of tokens that the model reads; None for no limit."""


OtherArguments = ParamSpec("OtherArguments")
ReturnType = TypeVar("ReturnType")
TokenizerFunction = Callable[Concatenate[PreTrainedTokenizerBase, OtherArguments], ReturnType]
"""Type of a function whose first argument is a tokenizer."""


def preserve_tokenizer(
    function: TokenizerFunction[OtherArguments, ReturnType],
) -> TokenizerFunction[OtherArguments, ReturnType]:
    """Decorate a function so that it restores its tokenizer's settings, even after an error.

    Args:
        function: Function whose first argument is a tokenizer.

    Returns:
        The decorated function.
    """

    @wraps(function)
    def preserving_function(
        tokenizer: PreTrainedTokenizerBase,
        /,
        *args: OtherArguments.args,
        **options: OtherArguments.kwargs,
    ) -> ReturnType:
        if not tokenizer.is_fast:
            return function(tokenizer, *args, **options)
        backend = tokenizer.backend_tokenizer
        truncation, padding = backend.truncation, backend.padding
        try:
            return function(tokenizer, *args, **options)
        finally:
            backend.no_truncation()
            backend.no_padding()
            if truncation is not None:
                backend.enable_truncation(**truncation)
            if padding is not None:
                backend.enable_padding(**padding)

    return preserving_function


@preserve_tokenizer
def tokenize(
    tokenizer: PreTrainedTokenizerBase,
    examples: "datasets.Dataset",
    model: TextModel,
    *,
    truncate: bool = True,
    segment: str | None = None,
) -> TokenizedSplit:
    """Tokenize a split for a model.

    The tokenizer receives the two texts in a pair separately and joins them in its own format. If
    a pair is too long, tokens are removed from the longer text first.

    Args:
        tokenizer: Tokenizer that was saved with the model.
        examples: Rows of :func:`~hf_attnprobe.data.examples.load_examples`.
        model: The model's properties, such as its maximum length and its labels.
        truncate: Whether to cut texts that are too long.
        segment: The text in a pair to explain, "text" or "text_pair"; the other text stays
            unchanged. None explains both.

    Returns:
        The texts as tokens.

    Raises:
        AttnProbeError: If the model does not embed a token id or does not know a label, if no text
            has tokens, if a rationale does not fit its text, or if a text is too long and
            ``truncate`` is False.
    """
    check_needs_no_boxes(tokenizer)
    ids = read_column(examples, "example_id")
    strings, second_strings = read_column(examples, "text"), get_second_texts(examples)
    _check_pairs(tokenizer, second_strings, segment)
    if model.prediction.kind == "span" and second_strings is None:
        raise AttnProbeError(
            "expected a context for every question, got single texts. Name the column of "
            "contexts with --text-pair-column."
        )
    segment = _resolve_segment(model, second_strings, segment)
    max_length = model.get_max_length(tokenizer)
    cut_lengths = _find_cut_lengths(tokenizer, ids, strings, second_strings, max_length, truncate)
    has_rationale_columns = bool(RATIONALE_COLUMNS & set(examples.column_names))
    encoded = tokenizer(
        strings,
        second_strings,
        return_special_tokens_mask=True,
        truncation="longest_first" if max_length is not None else False,
        max_length=max_length,
        return_offsets_mapping=tokenizer.is_fast
        and (
            has_rationale_columns
            or needs_offsets(model.prediction, examples)
            or bool(list_input_columns(examples))
        ),
    )
    inputs = dict(encoded)
    offsets = inputs.pop("offset_mapping", None)
    _check_tokenizer_outputs(inputs)
    _mark_separators(inputs, model.separator_ids)
    rows = range(len(ids))
    if tokenizer.is_fast:
        inputs["word_ids"] = [_get_word_ids(encoded, row) for row in rows]
    if second_strings is not None:
        segment_ids = [_replace_none(encoded.sequence_ids(row)) for row in rows]
        inputs["segment_ids"] = segment_ids
        if segment is not None:
            held_segment = 1 - SEGMENTS.index(segment)
            inputs["held"] = [
                [int(token_segment == held_segment) for token_segment in row] for row in segment_ids
            ]
    check_token_ids(inputs["input_ids"], model)
    align_model_inputs(tokenizer, examples, inputs, offsets)

    labels = convert_labels(model.prediction, examples, tokenizer, inputs, offsets)
    rationales = _find_rationale_tokens(examples, offsets, inputs.get("segment_ids"))
    texts = []
    for row, (example_id, label) in enumerate(zip(ids, labels, strict=True)):
        row_inputs = {name: values[row] for name, values in inputs.items()}
        identity = compute_identity(row_inputs)
        texts.append(Text(example_id, label, row_inputs, rationales[row], identity=identity))
    texts = [text for text in texts if text.n_content > 0]
    if not texts:
        suffix = "" if segment is None else f" in the segment {segment}"
        raise AttnProbeError(
            f"expected texts with tokens{suffix}, got none in {format_count(len(ids), 'text')}. "
            "Check the text column."
        )
    return TokenizedSplit(
        texts,
        n_empty=len(ids) - len(texts),
        n_truncated=len(cut_lengths),
        truncated_ids=frozenset(cut_lengths),
        n_tokens_before_cut=sum(cut_lengths.values()),
        n_tokens_after_cut=len(cut_lengths) * (max_length or 0),
        max_length=max_length,
        n_half_empty=_count_half_empty(strings, second_strings),
    )


def get_second_texts(examples: "datasets.Dataset") -> list[str] | None:
    """Return the second text in each pair; None for single texts."""
    if "text_pair" not in examples.column_names:
        return None
    return read_column(examples, "text_pair")


def _resolve_segment(
    model: TextModel, second_strings: list[str] | None, segment: str | None
) -> str | None:
    """Return which text in a pair to explain.

    Some models attend to only one of the two texts, which is then the text to explain.

    Args:
        model: The model's properties.
        second_strings: The second texts; None for single texts.
        segment: The user's choice, "text" or "text_pair"; None for both texts.

    Returns:
        "text", "text_pair", or None for both texts.

    Raises:
        AttnProbeError: If the model needs pairs, or does not attend to the chosen text.
    """
    if model.segment is None:
        return segment
    if second_strings is None:
        raise AttnProbeError(
            "a model with a query encoder needs pairs of texts, got single texts. Name the "
            "column of second texts with --text-pair-column."
        )
    if segment not in (None, model.segment):
        raise AttnProbeError(
            f"this model attends only to the segment {model.segment!r}, got --segment "
            f"{segment!r}. Leave out --segment."
        )
    return model.segment


def _check_pairs(
    tokenizer: PreTrainedTokenizerBase,
    second_strings: list[str] | None,
    segment: str | None,
) -> None:
    """Check the options and the tokenizer for pairs of texts.

    Raises:
        AttnProbeError: If a segment is set for single texts, if the segment is not one of
            :data:`SEGMENTS`, or if there are pairs but the tokenizer is slow.
    """
    if segment is not None and second_strings is None:
        raise AttnProbeError(
            "--segment needs pairs of texts, got single texts. Leave out --segment, or name "
            "the column of second texts with --text-pair-column."
        )
    if segment is not None and segment not in SEGMENTS:
        raise AttnProbeError(f"expected {' or '.join(SEGMENTS)} for --segment, got {segment!r}")
    if second_strings is not None and not tokenizer.is_fast:
        raise AttnProbeError(
            f"pairs of texts need a fast tokenizer, got {type(tokenizer).__name__}. Load the "
            "fast tokenizer of the model, for example with AutoTokenizer."
        )


def _check_tokenizer_outputs(inputs: Mapping[str, Any]) -> None:
    """Raise AttnProbeError if a tokenizer returns model inputs that cannot be padded."""
    unknown_outputs = inputs.keys() - TOKENIZER_OUTPUTS
    if unknown_outputs:
        names = ", ".join(sorted(unknown_outputs))
        raise AttnProbeError(
            f"the tokenizer returns {names}, but only {', '.join(TOKENIZER_OUTPUTS)} are "
            f"supported. If the model does not need {names}, remove them from "
            "tokenizer.model_input_names."
        )


def _find_cut_lengths(
    tokenizer: PreTrainedTokenizerBase,
    ids: list[int],
    strings: list[str],
    second_strings: list[str] | None,
    max_length: int | None,
    truncate: bool,
) -> dict[int, int]:
    """Return the length in tokens of each text that is longer than the model can read, by text id.

    Raises:
        AttnProbeError: If a text is too long and ``truncate`` is False.
    """
    if max_length is None:
        return {}
    encoded = tokenizer(strings, second_strings, add_special_tokens=True, verbose=False)
    lengths = [len(token_ids) for token_ids in encoded["input_ids"]]
    too_long = [row for row, length in enumerate(lengths) if length > max_length]
    if too_long and not truncate:
        row = too_long[0]
        raise AttnProbeError(
            f"text {ids[row]} has {lengths[row]} tokens, but the model reads at most "
            f"{max_length}. Shorten the text, or allow truncation."
        )
    return {ids[row]: lengths[row] for row in too_long}


def _count_half_empty(strings: list[str], second_strings: list[str] | None) -> int:
    """Count the pairs of texts in which exactly one text is blank."""
    if second_strings is None:
        return 0
    return sum(
        bool(first.strip()) != bool(second.strip())
        for first, second in zip(strings, second_strings, strict=True)
    )


def _mark_separators(inputs: dict[str, list[list[int]]], separator_ids: frozenset[int]) -> None:
    """Mark separator tokens as special tokens in the inputs.

    Otherwise, a separator without further tokens would count as a sentence.
    """
    rows = zip(inputs["input_ids"], inputs["special_tokens_mask"], strict=True)
    for token_ids, special_mask in rows:
        for position, token_id in enumerate(token_ids):
            special_mask[position] |= token_id in separator_ids


def _get_word_ids(encoded: Any, row: int) -> list[int]:
    """Return the index of each token's word, or −1 for special tokens.

    In a pair of texts, the words of the second text are numbered after those of the first text.
    """
    word_ids = _replace_none(encoded.word_ids(row))
    segments = encoded.sequence_ids(row)
    first_text_ids = [
        word_id for word_id, segment in zip(word_ids, segments, strict=True) if segment == 0
    ]
    n_first_words = max(first_text_ids, default=-1) + 1
    return [
        word_id + n_first_words if segment == 1 and word_id >= 0 else word_id
        for word_id, segment in zip(word_ids, segments, strict=True)
    ]


def _replace_none(numbers: Sequence[int | None]) -> list[int]:
    """Replace every None in a list of indices with −1."""
    return [-1 if number is None else number for number in numbers]


def check_token_ids(input_ids: list[list[int]], model: TextModel) -> None:
    """Check that a model embeds all token ids.

    Args:
        input_ids: Token ids for several texts.
        model: The model's properties.

    Raises:
        AttnProbeError: If a token id is too large.
    """
    n_embeddings = model.n_embeddings
    largest_id = max(itertools.chain([0], *input_ids))
    if n_embeddings is not None and largest_id >= n_embeddings:
        raise AttnProbeError(
            f"the tokenizer returns token id {largest_id}, but the model only has embeddings "
            f"for ids below {n_embeddings}. Load the tokenizer that was saved with the model."
        )


# --- Human rationales ----------------------------------------------------------------------------


def has_rationales(examples: "datasets.Dataset", unit: str) -> bool:
    """Return whether any text has a human rationale that can be compared with attention.

    Args:
        examples: The examples.
        unit: Unit of attention. Rationales mark words, so they cannot be used for sentences.

    Returns:
        True if at least one text has a rationale.
    """
    # A text without a rationale has an empty list, or None.
    columns = RATIONALE_COLUMNS & set(examples.column_names)
    return unit != "sentence" and any(any(read_column(examples, column)) for column in columns)


def _find_rationale_tokens(
    examples: "datasets.Dataset",
    offsets: list[list[tuple[int, int]]] | None,
    segment_ids: list[list[int]] | None,
) -> list[list[bool] | None]:
    """Find the tokens that overlap a word in the human rationale.

    Args:
        examples: The examples.
        offsets: Start and end for every token in characters; None if they are unknown.
        segment_ids: For each token in a pair, 0 in the first text, 1 in the second text and −1 for
            special tokens; None for single texts.

    Returns:
        For each text, whether each token belongs to the rationale; None without rationales.
    """
    if offsets is None or not RATIONALE_COLUMNS & set(examples.column_names):
        return [None] * len(examples)
    marked_in_first = _mark_rationale_tokens(examples, offsets, "text", "rationale")
    if segment_ids is None:
        return [*marked_in_first]
    marked_in_second = _mark_rationale_tokens(examples, offsets, "text_pair", "rationale_pair")
    marked_rows: list[list[bool] | None] = []
    for first, second, segments in zip(marked_in_first, marked_in_second, segment_ids, strict=True):
        is_marked = []
        for in_first, in_second, segment in zip(first, second, segments, strict=True):
            if segment == 0:
                is_marked.append(in_first)
            elif segment == 1:
                is_marked.append(in_second)
            else:
                is_marked.append(False)
        marked_rows.append(is_marked)
    return marked_rows


def _mark_rationale_tokens(
    examples: "datasets.Dataset",
    offsets: list[list[tuple[int, int]]],
    text_column: str,
    rationale_column: str,
) -> list[list[bool]]:
    """Mark the tokens that overlap a rationale of the first or the second text in a pair.

    All tokens are treated as tokens of the given text. The caller discards the marks at tokens of
    the other text.

    Args:
        examples: The examples.
        offsets: Start and end for every token in characters.
        text_column: Column of the text, "text" or "text_pair".
        rationale_column: Column of its rationale; nothing is marked if it does not exist.

    Returns:
        For each text, whether each token belongs to the rationale.
    """
    ids, strings = read_column(examples, "example_id"), read_column(examples, text_column)
    rationales: list[Any] = [[]] * len(ids)
    if rationale_column in examples.column_names:
        rationales = read_column(examples, rationale_column)
    marked_rows = []
    for row, token_spans in enumerate(offsets):
        in_rationale = [False] * len(strings[row])
        spans = find_rationale_spans(ids[row], strings[row], rationales[row] or [])
        for start, end in spans:
            in_rationale[start:end] = [True] * (end - start)
        marked_rows.append([any(in_rationale[start:end]) for start, end in token_spans])
    return marked_rows


def find_rationale_spans(
    example_id: int, text: str, rationale: Sequence[int]
) -> list[tuple[int, int]]:
    """Find the rationale's words in a text.

    Args:
        example_id: Text id, for error messages.
        text: The text.
        rationale: Word positions, from 0; words are separated by white space.

    Returns:
        Start and end of each word in characters.

    Raises:
        AttnProbeError: If a position is out of range, or occurs twice.
    """
    word_spans = [word.span() for word in re.finditer(r"\S+", text)]
    positions = set(rationale)
    if len(positions) < len(rationale) or not positions <= set(range(len(word_spans))):
        first_positions = ", ".join(map(str, rationale[:9]))
        ellipsis = "…" if len(rationale) > 9 else ""
        raise AttnProbeError(
            "a rationale must list different word positions from 0 to "
            f"{len(word_spans) - 1}, but text {example_id} has {first_positions}{ellipsis}. "
            "Separate words at white space and count them from 0. Convert a mask to a list "
            "of positions."
        )
    return [word_spans[position] for position in rationale]


def find_mask_id(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> int | None:
    """Find the token that replaces erased tokens: the mask token, or else the unknown token.

    Args:
        tokenizer: The model's tokenizer.
        model: The model.

    Returns:
        The token id; None if the model embeds neither token, or uses it for padding.
    """
    embeddings = get_embeddings_module(model)
    # The caller has checked that the model has an embedding table.
    assert isinstance(embeddings, nn.Embedding)
    n_embeddings = embeddings.num_embeddings
    pad_token_ids = (tokenizer.pad_token_id, model.config.pad_token_id)
    for token_id in (tokenizer.mask_token_id, tokenizer.unk_token_id):
        if token_id is not None and token_id < n_embeddings and token_id not in pad_token_ids:
            return token_id
    return None


# --- Images --------------------------------------------------------------------------------------


COLOUR_MODES = {1: "L", 3: "RGB"}
"""Maps the number of channels that a model reads to the colour mode of its images in Pillow.

"L" are greyscale images.
"""


@dataclass(frozen=True)
class InputReader:
    """Base class for readers that replace the tokenizer for a model that reads no texts.

    The attributes have the same meaning as in a tokenizer.
    """

    is_fast: ClassVar[bool] = False
    pad_token_id: ClassVar[int] = 0
    unk_token_id: ClassVar[None] = None
    bos_token_id: ClassVar[None] = None
    eos_token_id: ClassVar[None] = None
    model_max_length: ClassVar[int] = 10**30


@dataclass(frozen=True)
class ImageReader(InputReader):
    """Image reader, which replaces the tokenizer for a model that reads images.

    Attributes:
        processor: The model's image processor; None if it has none. A column ``pixel_values`` needs
            no processor.
        shape: Channels, height and width of all images that the model reads in an audit.
    """

    processor: Any
    shape: tuple[int, int, int]

    def _process(self, images: Sequence[Any], column: str) -> list[Tensor]:
        """Convert images to the model's colour channels, and run the image processor.

        Like Transformers' pipelines, it converts greyscale, palette and transparent images to RGB.

        Args:
            images: Images of any colour mode.
            column: Name of the image column, for error messages.

        Returns:
            Pixels of each image, `[channels, height, width]`.

        Raises:
            AttnProbeError: If the image processor cannot read the images.
        """
        mode = COLOUR_MODES.get(self.shape[0])
        converted_images = []
        for image in images:
            # The column may also contain arrays, which have no colour mode.
            can_convert = mode is not None and hasattr(image, "convert")
            converted_images.append(image.convert(mode) if can_convert else image)
        try:
            # Images are processed one by one, as in a pipeline. The results may differ in size.
            return [
                self.processor([image], return_tensors="pt")["pixel_values"][0]
                for image in converted_images
            ]
        # A processor may raise arbitrary exceptions.
        except Exception as error:
            raise AttnProbeError(
                f"the image processor cannot read the images in the column {column!r}: "
                f"{' '.join(str(error).split())[:160]}. Correct the images, or provide a column "
                "'pixel_values' with the output of the image processor."
            ) from error

    def restore_image(self, pixels: Tensor) -> "Image.Image":
        """Convert the pixels that a model reads to an image that people can look at.

        If the image processor has normalised the pixels, this is undone. Otherwise, the smallest
        value becomes black and the largest one white.

        Args:
            pixels: Pixels of one image, `[channels, height, width]`.

        Returns:
            An image in colour, or in grey if there are not three channels.
        """
        # Pillow is slow to import, and most models read no images.
        from PIL import Image

        values = pixels.detach().float().cpu()
        mean, std = (getattr(self.processor, f"image_{name}", None) for name in ("mean", "std"))
        if getattr(self.processor, "do_normalize", False) and mean and std:
            values = values * torch.tensor(std)[:, None, None] + torch.tensor(mean)[:, None, None]
        else:
            values = (values - values.min()) / (values.max() - values.min()).clamp_min(1e-12)
        levels = (values.clamp(0, 1) * 255).round().to(torch.uint8)
        if len(levels) == 3:
            return Image.fromarray(levels.permute(1, 2, 0).numpy())
        return Image.fromarray(levels.float().mean(0).to(torch.uint8).numpy())

    def adapt_to_size(self, examples: "datasets.Dataset") -> "ImageReader":
        """Return a reader for the size of the processed images, which may not be the model's size.

        Args:
            examples: Examples with an image column. All images must have the size of the first one.

        Returns:
            A reader for images of this size. If the first image does not have the model's number of
            channels, this reader is returned.

        Raises:
            AttnProbeError: If there is no image column or no image processor, or if the first image
                cannot be read.
        """
        (pixels,) = self._read_pixels(examples.select(range(1)))
        if pixels.dim() != 3 or len(pixels) != self.shape[0]:
            return self
        n_channels, height, width = pixels.shape
        return replace(self, shape=(n_channels, height, width))

    def read(self, examples: "datasets.Dataset") -> Tensor:
        """Read the pixels of all images in a data set.

        Args:
            examples: Examples with an image column.

        Returns:
            Pixels, `[images, channels, height, width]`.

        Raises:
            AttnProbeError: If there is no image column or no image processor, or if an image does
                not have the shape of this reader.
        """
        pixels = self._read_pixels(examples)
        for row, image in enumerate(pixels):
            if tuple(image.shape) != self.shape:
                raise AttnProbeError(
                    f"expected pixels of shape {list(self.shape)} (channels, height, width), "
                    f"but row {row} has {list(image.shape)}. All images must have "
                    f"{format_count(self.shape[0], 'channel')} and the same size. Use an image "
                    "processor that resizes or crops images to one size, such as "
                    'size={"height": 224, "width": 224}.'
                )
        return torch.stack(pixels)

    def _read_pixels(self, examples: "datasets.Dataset") -> list[Tensor]:
        """Read the pixels of each image, which may differ in shape; see `read`."""
        column = find_image_column(examples.column_names)
        if column is None:
            raise AttnProbeError(
                "an image model needs a column 'pixel_values' or 'image', got "
                f"{', '.join(examples.column_names)}. Use a data set of images."
            )
        images = read_image_column(examples, column)
        if column == "pixel_values":
            return [torch.as_tensor(image, dtype=torch.float32) for image in images]
        if self.processor is None:
            raise AttnProbeError(
                f"the column {column!r} needs the image processor of the model, but it "
                "cannot be loaded. Install torchvision, or provide a column 'pixel_values'."
            )
        return self._process(images, column)


@dataclass(frozen=True)
class ImageText(Text):
    """An encoded image, whose ``inputs`` contain ``pixel_values`` instead of token ids.

    Attributes:
        n_positions: Number of positions to which the model attends, such as image patches.
    """

    n_positions: int = 0

    @property
    def sequences(self) -> list[tuple[list[int], list[int]]]:
        """An empty list, because an image has no token ids."""
        return []

    @property
    def n_tokens(self) -> int:
        """Number of positions."""
        return self.n_positions

    @property
    def n_content(self) -> int:
        """Number of explained positions, which is the number of all positions."""
        return self.n_positions


def accepts_images(model: Any) -> bool:
    """Return whether a model's main input is an image."""
    return getattr(model, "main_input_name", None) == "pixel_values"


def make_image_reader(model: PreTrainedModel, processor: Any) -> ImageReader:
    """Make the image reader for a model.

    Args:
        model: The model.
        processor: The model's image processor, or None.

    Returns:
        The reader.

    Raises:
        AttnProbeError: If the processor is not callable.
    """
    if processor is not None and not callable(processor):
        raise AttnProbeError(
            f"expected a Transformers image processor, got {format_short(processor)}. Pass "
            "tokenizer=AutoImageProcessor.from_pretrained(…)."
        )
    return ImageReader(processor, get_image_shape(model.config))


def encode_images(
    reader: ImageReader, examples: "datasets.Dataset", model: TextModel
) -> TokenizedSplit:
    """Encode images for a model, as :func:`tokenize` encodes texts.

    Args:
        reader: The image reader.
        examples: Examples with an image column.
        model: The model's properties.

    Returns:
        One text for each image.

    Raises:
        AttnProbeError: If the images or their labels do not suit the model.
    """
    pixels = reader.read(examples)
    labels = convert_class_labels(model.prediction.outcomes, examples)
    layout = getattr(model, "layout", None)
    n_positions = getattr(layout, "n_keys", None) or 0
    rows = zip(read_column(examples, "example_id"), labels, pixels, strict=True)
    texts: list[Text] = []
    for example_id, label, image in rows:
        inputs: dict[str, Any] = {"pixel_values": image}
        identity = compute_identity(inputs)
        texts.append(
            ImageText(example_id, label, inputs, identity=identity, n_positions=n_positions)
        )
    return TokenizedSplit(texts, n_empty=0, n_truncated=0)
