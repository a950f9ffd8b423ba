"""Texts and images as a model reads them, with their labels as it numbers them.

A fast tokenizer's truncation and padding stay as they were: they would be saved with it.
"""

import itertools
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    ParamSpec,
    Protocol,
    TypeVar,
)

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_attnprobe.adapters.transformer.layout import get_image_shape
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.serialization import in_short
from hf_attnprobe.data.columns import read_column, find_image_column, read_image_column
from hf_attnprobe.functional.predictions import Prediction
from hf_attnprobe.inference.labels import (
    Label,
    convert_labels,
    convert_class_labels,
    needs_offsets,
)


if TYPE_CHECKING:
    import datasets


logger = logging.getLogger(__name__)

SEGMENTS = ("text", "text_pair")
RATIONALE_COLUMNS = {"rationale", "rationale_pair"}
"""Columns that are about words, whose tokens have to be found."""
TOKENIZER_OUTPUTS = ("input_ids", "attention_mask", "token_type_ids", "special_tokens_mask")
"""What texts can be padded and shortened with."""


@dataclass(frozen=True)
class Text:
    """One tokenized text.

    Attributes:
        example_id: names the text within its split.
        label: the model's number of its class, -1 for none; a number, or a list, where
            the model predicts something else, see :mod:`hf_attnprobe.inference.labels`.
        inputs: lists of one number per token; of pairs ``segment_ids`` too, 0 in the
            text, 1 in the second text, -1 for special tokens. ``held`` is 1 at tokens
            of a segment that is neither explained nor erased.
        rationale: which tokens belong to the human rationale; None if unknown.
        scores: that somebody gave the units, at the first token of each; None if nobody did.
        identity: of a prompt with its answer; None where data and id say it.
    """

    example_id: int
    label: Label
    inputs: Mapping[str, list[Any]]
    rationale: Sequence[bool] | None = None
    scores: Sequence[float] | None = None
    identity: int | None = None

    @property
    def sequences(self) -> list[tuple[list[int], list[int]]]:
        """Token ids, and 1 for the special ones; one of each, several of choices."""
        return [(self.inputs["input_ids"], self.inputs["special_tokens_mask"])]

    @property
    def n_tokens(self) -> int:
        return len(self.inputs["input_ids"])

    @property
    def n_content(self) -> int:
        special = self.inputs["special_tokens_mask"]
        held = self.inputs.get("held", [0] * self.n_tokens)
        return sum(not (s or h) for s, h in zip(special, held, strict=True))


@dataclass(frozen=True)
class TokenizedSplit:
    """The texts of a split that have tokens, and what was left out.

    Attributes:
        texts: in the order of the split.
        n_empty: number of texts left out, without any token.
        n_truncated: number of texts cut to what the model reads.
    """

    texts: list[Text]
    n_empty: int
    n_truncated: int


class TextModel(Protocol):
    """The facts about a model that tokenization needs; adapters and `PretrainedModelInfo` have
    them.

    Attributes:
        n_embeddings: how many token ids there are; None: any number.
        separator_ids: tokens that are no content, beside the special ones.
        segment: the text of a pair that alone is attended to; None: any.
    """

    n_embeddings: int | None
    separator_ids: frozenset[int]
    segment: str | None

    @property
    def prediction(self) -> Prediction:
        """What the model predicts."""

    def get_max_length(self, tokenizer: PreTrainedTokenizerBase) -> int | None:
        """The longest text in tokens; None for no limit."""


Others = ParamSpec("Others")
Result = TypeVar("Result")
Using = Callable[Concatenate[PreTrainedTokenizerBase, Others], Result]


def preserve_tokenizer(function: Using[Others, Result]) -> Using[Others, Result]:
    """Decorates a function so that it leaves its tokenizer unchanged, even after an error."""

    @wraps(function)
    def restoring(
        tokenizer: PreTrainedTokenizerBase,
        /,
        *args: Others.args,
        **options: Others.kwargs,
    ) -> Result:
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

    return restoring


@preserve_tokenizer
def tokenize(
    tokenizer: PreTrainedTokenizerBase,
    examples: "datasets.Dataset",
    model: TextModel,
    *,
    truncate: bool = True,
    segment: str | None = None,
) -> TokenizedSplit:
    """Tokenizes a split for a model.

    Pairs are given to the tokenizer as two texts, to be joined as it was built to join
    them. Where they are too long, tokens go from the longer one first.

    Args:
        tokenizer: the one saved with the model.
        examples: rows as :func:`~hf_attnprobe.data.examples.load_examples` makes them.
        model: bounds the lengths and names the labels.
        truncate: whether texts that are too long are cut.
        segment: "text" or "text_pair", to explain that one of a pair and hold the other.

    Raises:
        AttnProbeError: ids that the model does not embed, labels that it does not know,
            no text with tokens, a rationale that is not of its text, or, unless
            ``truncate``, a text longer than the model's positions.
    """
    ids = read_column(examples, "example_id")
    strings, seconds = read_column(examples, "text"), get_second_texts(examples)
    _check_pairs(tokenizer, seconds, segment)
    if model.prediction.kind == "span" and seconds is None:
        raise AttnProbeError(
            "expected a context beside every question, got single texts; name the column "
            "of the contexts with --text-pair-column"
        )
    segment = _resolve_segment(model, seconds, segment)
    longest = model.get_max_length(tokenizer)
    n_cut = _count_too_long(tokenizer, ids, strings, seconds, longest, truncate)
    encoded = tokenizer(
        strings,
        seconds,
        return_special_tokens_mask=True,
        truncation="longest_first" if longest is not None else False,
        max_length=longest,
        return_offsets_mapping=tokenizer.is_fast
        and (
            bool(RATIONALE_COLUMNS & set(examples.column_names))
            or needs_offsets(model.prediction, examples)
        ),
    )
    inputs = dict(encoded)
    offsets = inputs.pop("offset_mapping", None)
    further = inputs.keys() - TOKENIZER_OUTPUTS
    if further:
        raise AttnProbeError(
            f"expected {', '.join(TOKENIZER_OUTPUTS)} of the tokenizer, got {', '.join(sorted(further))} too; "
            "a model that reads those cannot be audited, of another leave them out of "
            "tokenizer.model_input_names"
        )
    _mark_separators(inputs, model.separator_ids)
    rows = range(len(ids))
    if tokenizer.is_fast:
        inputs["word_ids"] = [_get_word_ids(encoded, row) for row in rows]
    if seconds is not None:
        segments = [_replace_none(encoded.sequence_ids(row)) for row in rows]
        inputs["segment_ids"] = segments
        if segment is not None:
            other = 1 - SEGMENTS.index(segment)
            held = [[int(s == other) for s in row] for row in segments]
            inputs["held"] = held
    check_token_ids(inputs["input_ids"], model)

    labels = convert_labels(model.prediction, examples, tokenizer, inputs, offsets)
    rationales = _find_rationale_tokens(examples, offsets, inputs.get("segment_ids"))
    texts = []
    for row, (example_id, label) in enumerate(zip(ids, labels, strict=True)):
        of_row = {name: values[row] for name, values in inputs.items()}
        texts.append(Text(example_id, label, of_row, rationales[row]))
    texts = [text for text in texts if text.n_content > 0]
    if not texts:
        raise AttnProbeError(
            f"expected texts with tokens, all {len(ids)} have none"
            f"{'' if segment is None else f' in the segment {segment}'}; check the text "
            "column"
        )
    return TokenizedSplit(texts, n_empty=len(ids) - len(texts), n_truncated=n_cut)


def get_second_texts(examples: "datasets.Dataset") -> list[str] | None:
    """The second texts of pairs, for a tokenizer; None for single texts."""
    if "text_pair" not in examples.column_names:
        return None
    return read_column(examples, "text_pair")


def _resolve_segment(model: TextModel, seconds: list[str] | None, segment: str | None) -> str | None:
    """The segment to explain; where the model attends to one segment alone, that one."""
    if model.segment is None:
        return segment
    if seconds is None:
        raise AttnProbeError(
            "expected pairs of texts for a model with a query encoder, got single "
            "texts; name the second ones with --text-pair-column"
        )
    if segment not in (None, model.segment):
        raise AttnProbeError(
            f"this model attends to the segment {model.segment} alone, got --segment "
            f"{segment}; leave it out"
        )
    return model.segment


def _check_pairs(
    tokenizer: PreTrainedTokenizerBase,
    seconds: list[str] | None,
    segment: str | None,
) -> None:
    if segment is not None and (segment not in SEGMENTS or seconds is None):
        raise AttnProbeError(
            f"expected pairs of texts to explain one of {', '.join(SEGMENTS)}, got "
            f"{segment!r} of {'single texts' if seconds is None else 'pairs'}; leave "
            "--segment out, or name the second texts with --text-pair-column"
        )
    if seconds is not None and not tokenizer.is_fast:
        raise AttnProbeError(
            "expected a fast tokenizer for pairs of texts, which tells the tokens of one "
            f"from those of the other, got {type(tokenizer).__name__}; load the model "
            "with its fast tokenizer"
        )


def _count_too_long(
    tokenizer: PreTrainedTokenizerBase,
    ids: list[int],
    strings: list[str],
    seconds: list[str] | None,
    longest: int | None,
    truncate: bool,
) -> int:
    """Counts texts of more than ``longest`` tokens; raises an error unless they may be cut."""
    if longest is None:
        return 0
    encoded = tokenizer(strings, seconds, add_special_tokens=True, verbose=False)
    lengths = [len(tokens) for tokens in encoded["input_ids"]]
    too_long = [row for row, length in enumerate(lengths) if length > longest]
    if too_long and not truncate:
        row = too_long[0]
        raise AttnProbeError(
            f"text {ids[row]} has {lengths[row]} tokens, the model reads {longest}; "
            "allow truncation or shorten it"
        )
    return len(too_long)


def _mark_separators(inputs: dict[str, list[list[int]]], separators: frozenset[int]) -> None:
    """Counts separators as special tokens, since a separator alone is no sentence."""
    rows = zip(inputs["input_ids"], inputs["special_tokens_mask"], strict=True)
    for tokens, special in rows:
        for position, token in enumerate(tokens):
            special[position] |= token in separators


def _get_word_ids(encoded: Any, row: int) -> list[int]:
    """The number of the word of each token, -1 for special tokens.

    Words of a second text are numbered on from those of the first.
    """
    words = _replace_none(encoded.word_ids(row))
    segments = encoded.sequence_ids(row)
    first = [word for word, s in zip(words, segments, strict=True) if s == 0]
    n_first = max(first, default=-1) + 1
    return [
        word + n_first if segment == 1 and word >= 0 else word
        for word, segment in zip(words, segments, strict=True)
    ]


def _replace_none(numbers: Sequence[int | None]) -> list[int]:
    return [-1 if number is None else number for number in numbers]


def check_token_ids(input_ids: list[list[int]], model: TextModel) -> None:
    """Raises AttnProbeError where a token id is beyond what the model embeds."""
    n_rows = model.n_embeddings
    largest = max(itertools.chain([0], *input_ids))
    if n_rows is not None and largest >= n_rows:
        raise AttnProbeError(
            f"the tokenizer gives id {largest}, the model embeds ids below {n_rows}; "
            "load the tokenizer saved with the model"
        )


def has_rationales(examples: "datasets.Dataset", unit: str) -> bool:
    """Whether any text has a rationale that the model can attend to.

    Rationales are of words, so they say nothing where the ``unit`` of attention is the
    sentence.
    """
    names = RATIONALE_COLUMNS & set(examples.column_names)
    return unit != "sentence" and any(any(read_column(examples, n)) for n in names)


def _find_rationale_tokens(
    examples: "datasets.Dataset",
    offsets: list[list[tuple[int, int]]] | None,
    segments: list[list[int]] | None,
) -> list[list[bool] | None]:
    """For each text, which tokens contain a character of a rationale word.

    None for all texts where the places of the tokens are not known.
    """
    if offsets is None or not RATIONALE_COLUMNS & set(examples.column_names):
        return [None] * len(examples)
    marked = _mark_rationale_tokens(examples, offsets, "text", "rationale")
    if segments is None:
        return [*marked]
    in_second = _mark_rationale_tokens(examples, offsets, "text_pair", "rationale_pair")
    rows = zip(marked, in_second, segments, strict=True)
    return [
        [(first, second, False)[s] for first, second, s in zip(*row, strict=True)] for row in rows
    ]


def _mark_rationale_tokens(
    examples: "datasets.Dataset",
    offsets: list[list[tuple[int, int]]],
    text: str,
    rationale: str,
) -> list[list[bool]]:
    """Marks tokens with a character in the rationale, whatever text of a pair they are in."""
    ids, strings = read_column(examples, "example_id"), read_column(examples, text)
    has_any = rationale in examples.column_names
    rationales = read_column(examples, rationale) if has_any else [[]] * len(ids)
    marked = []
    for row, tokens in enumerate(offsets):
        in_rationale = [False] * len(strings[row])
        spans = find_rationale_spans(ids[row], strings[row], rationales[row] or [])
        for start, end in spans:
            in_rationale[start:end] = [True] * (end - start)
        marked.append([any(in_rationale[start:end]) for start, end in tokens])
    return marked


def find_rationale_spans(example_id: int, text: str, rationale: Sequence[int]) -> list[tuple[int, int]]:
    """Character spans of the words of a rationale.

    Args:
        rationale: positions, from 0, among the words that white space separates.

    Raises:
        AttnProbeError: positions that the text does not have, or one of them twice.
    """
    words = [word.span() for word in re.finditer(r"\S+", text)]
    positions = set(rationale)
    if len(positions) < len(rationale) or not positions <= set(range(len(words))):
        first = ", ".join(map(str, rationale[:9]))
        more = "…" if len(rationale) > 9 else ""
        raise AttnProbeError(
            f"text {example_id}: expected as rationale different positions from 0 to "
            f"{len(words) - 1} of its {len(words)} words, got {len(rationale)}: "
            f"{first}{more}; count words from 0 as white space separates them, and "
            "give of a mask of 0 and 1 the positions of its ones"
        )
    return [words[position] for position in rationale]


def find_mask_id(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> int | None:
    """The id that replaces an erased token: the mask token, else the unknown one.

    None where the model has neither, or takes it for padding.
    """
    n_rows = model.get_input_embeddings().num_embeddings
    padding = (tokenizer.pad_token_id, model.config.pad_token_id)
    for token in (tokenizer.mask_token_id, tokenizer.unk_token_id):
        if token is not None and token < n_rows and token not in padding:
            return token
    return None


# --- Images, in the same form ---


@dataclass(frozen=True)
class ImageReader:
    """Reads images, where a text model has a tokenizer.

    Attributes:
        processor: of the model, for a column of images; None where there is none, which
            a column ``pixel_values`` does not need.
        shape: channels, height and width of what the model takes.
    """

    processor: Any
    shape: tuple[int, int, int]
    is_fast: bool = False
    pad_token_id: int = 0
    unk_token_id: None = None
    bos_token_id: None = None
    eos_token_id: None = None
    model_max_length: int = 10**30

    def read(self, examples: "datasets.Dataset") -> Tensor:
        """Pixels of all images, [images, channels, height, width].

        Raises:
            AttnProbeError: no column of images, no processor for them, or pixels of
                another shape than the model's.
        """
        name = find_image_column(examples.column_names)
        if name is None:
            raise AttnProbeError(
                "expected a column 'pixel_values' or 'image' for a model of images, got "
                f"the columns {', '.join(examples.column_names)}; audit it on images"
            )
        images = read_image_column(examples, name)
        if name == "pixel_values":
            pixels = [torch.as_tensor(image, dtype=torch.float32) for image in images]
        elif self.processor is None:
            raise AttnProbeError(
                f"expected an image processor with the model for the column {name!r}, "
                "but none loads (most need torchvision); install it, or "
                "give a column 'pixel_values'"
            )
        else:
            pixels = list(self.processor(images, return_tensors="pt")["pixel_values"])
        for row, image in enumerate(pixels):
            if tuple(image.shape) != self.shape:
                raise AttnProbeError(
                    f"expected pixels of shape {list(self.shape)} (channels, height, "
                    f"width), row {row} has {list(image.shape)}; give what the model's "
                    "image processor makes of the images"
                )
        return torch.stack(pixels)


@dataclass(frozen=True)
class ImageText(Text):
    """One image; its ``inputs`` hold ``pixel_values``, its positions are its tokens."""

    n_positions: int = 0

    @property
    def sequences(self) -> list[tuple[list[int], list[int]]]:
        return []

    @property
    def n_tokens(self) -> int:
        return self.n_positions

    @property
    def n_content(self) -> int:
        return self.n_positions


def accepts_images(model: Any) -> bool:
    """Whether a model's input is pixels."""
    return getattr(model, "main_input_name", None) == "pixel_values"


def make_image_reader(model: PreTrainedModel, processor: Any) -> ImageReader:
    """The reader of a model's images.

    Raises:
        AttnProbeError: what should read them cannot.
    """
    if processor is not None and not callable(processor):
        raise AttnProbeError(
            f"expected an image processor of Transformers, got {in_short(processor)}; pass "
            "tokenizer=AutoImageProcessor.from_pretrained(…)"
        )
    return ImageReader(processor, get_image_shape(model.config))


def encode_images(reader: ImageReader, examples: "datasets.Dataset", model: TextModel) -> TokenizedSplit:
    """Reads images in the form that :func:`~hf_attnprobe.inference.encoding.tokenize` gives
    texts.
    """
    pixels = reader.read(examples)
    labels = convert_class_labels(model.prediction.outcomes, examples)
    layout = getattr(model, "layout", None)
    n_positions = getattr(layout, "n_keys", None) or 0
    rows = zip(read_column(examples, "example_id"), labels, pixels, strict=True)
    texts: list[Text] = [
        ImageText(k, label, {"pixel_values": image}, n_positions=n_positions)
        for k, label, image in rows
    ]
    return TokenizedSplit(texts, n_empty=0, n_truncated=0)
