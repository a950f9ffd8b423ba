"""Texts tokenized for a model: ids, labels by the model's numbers, rationales."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_attnprobe.data.examples import column_of, label_names
from hf_attnprobe.errors import AttnProbeError


if TYPE_CHECKING:
    import datasets


@dataclass(frozen=True)
class Text:
    """One tokenized text.

    Attributes:
        example_id: names the text within its split.
        label: the model's number of its class; -1 for none.
        inputs: lists of one number per token.
        rationale: which tokens belong to the human rationale; None if unknown.
        tags: the tag of each token's word, as a number in ``tag_names``, -1 for none;
            None if unknown.
        tag_names: all tags of the split, sorted.
    """

    example_id: int
    label: int
    inputs: Mapping[str, list[int]]
    rationale: Sequence[bool] | None = None
    tags: Sequence[int] | None = None
    tag_names: tuple[str, ...] = ()

    @property
    def n_tokens(self) -> int:
        return len(self.inputs["input_ids"])

    @property
    def n_content(self) -> int:
        return self.n_tokens - sum(self.inputs["special_tokens_mask"])


@dataclass(frozen=True)
class Tokenized:
    """The texts of a split that have tokens.

    Attributes:
        texts: in the order of the split.
        n_empty: number of texts left out, without any token.
        n_cut: number of texts cut to what the model reads.
    """

    texts: list[Text]
    n_empty: int
    n_cut: int


class TextModel(Protocol):
    """What the way from texts to ids asks of a model: an adapter, or `PretrainedFacts`.

    Attributes:
        label_names: the classes, in their order.
        n_embeddings: how many token ids there are; None: any number.
        separator_ids: tokens that are no content, beside the special ones.
    """

    label_names: list[str]
    n_embeddings: int | None
    separator_ids: frozenset[int]

    def max_length(self, tokenizer: PreTrainedTokenizerBase) -> int | None:
        """The most tokens of a text; None: any number."""


def tokenize(
    tokenizer: PreTrainedTokenizerBase,
    examples: "datasets.Dataset",
    model: TextModel,
    *,
    truncate: bool = True,
) -> Tokenized:
    """Tokenize a split for a model.

    Args:
        tokenizer: the one saved with the model.
        examples: rows as :func:`~hf_attnprobe.data.examples.load_examples` makes them.
        model: bounds the lengths and names the labels.
        truncate: whether texts that are too long are cut.

    Raises:
        AttnProbeError: ids that the model does not embed, labels that it does not know,
            no text with tokens, a rationale that is not of its text, or, unless
            ``truncate``, a text longer than the model's positions.
    """
    ids = column_of(examples, "example_id")
    strings = column_of(examples, "text")
    labels = labels_of_model(model.label_names, examples)
    longest = model.max_length(tokenizer)
    n_cut = _count_too_long(tokenizer, ids, strings, longest, truncate)
    encoded = tokenizer(
        strings,
        return_special_tokens_mask=True,
        truncation=longest is not None,
        max_length=longest,
        return_offsets_mapping=tokenizer.is_fast
        and bool({"rationale", "word_tags"} & set(examples.column_names)),
    )
    inputs = dict(encoded)
    offsets = inputs.pop("offset_mapping", None)
    _mark_separators(inputs, model.separator_ids)
    if tokenizer.is_fast:
        inputs["word_ids"] = [_word_ids(encoded, row) for row in range(len(ids))]
    _check_ids(inputs["input_ids"], model)

    rationales = _token_rationales(examples, offsets)
    tags, tag_names = _token_tags(examples, offsets)
    texts = []
    for row, (example_id, label) in enumerate(zip(ids, labels, strict=True)):
        of_row = {name: values[row] for name, values in inputs.items()}
        texts.append(
            Text(example_id, label, of_row, rationales[row], tags[row], tag_names)
        )
    texts = [text for text in texts if text.n_content > 0]
    if not texts:
        raise AttnProbeError(
            f"expected texts with tokens, all {len(ids)} have none; check the text "
            "column"
        )
    return Tokenized(texts, n_empty=len(ids) - len(texts), n_cut=n_cut)


def _count_too_long(
    tokenizer: PreTrainedTokenizerBase,
    ids: list[int],
    strings: list[str],
    longest: int | None,
    truncate: bool,
) -> int:
    """Number of texts of more than ``longest`` tokens; an error unless cut."""
    if longest is None:
        return 0
    encoded = tokenizer(strings, add_special_tokens=True, verbose=False)
    lengths = [len(tokens) for tokens in encoded["input_ids"]]
    too_long = [row for row, length in enumerate(lengths) if length > longest]
    if too_long and not truncate:
        row = too_long[0]
        raise AttnProbeError(
            f"text {ids[row]} has {lengths[row]} tokens, the model reads {longest}; "
            "allow truncation or shorten it"
        )
    return len(too_long)


def _mark_separators(
    inputs: dict[str, list[list[int]]], separators: frozenset[int]
) -> None:
    """Count separators as special tokens: alone they make no sentence."""
    rows = zip(inputs["input_ids"], inputs["special_tokens_mask"], strict=True)
    for tokens, special in rows:
        for position, token in enumerate(tokens):
            special[position] |= token in separators


def _word_ids(encoded: Any, row: int) -> list[int]:
    """The number of the word of each token, -1 for special tokens."""
    return [-1 if word is None else word for word in encoded.word_ids(row)]


def _check_ids(input_ids: list[list[int]], model: TextModel) -> None:
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
    if unit == "sentence" or "rationale" not in examples.column_names:
        return False
    return any(column_of(examples, "rationale"))


def _token_rationales(
    examples: "datasets.Dataset", offsets: list[list[tuple[int, int]]] | None
) -> list[list[bool] | None]:
    """Which tokens have a character in a word of the rationale, for each text.

    None for all texts where the places of the tokens are not known.
    """
    if offsets is None or "rationale" not in examples.column_names:
        return [None] * len(examples)
    ids = column_of(examples, "example_id")
    strings = column_of(examples, "text")
    rationales = column_of(examples, "rationale")
    marked: list[list[bool] | None] = []
    for row, tokens in enumerate(offsets):
        in_rationale = [False] * len(strings[row])
        spans = rationale_spans(ids[row], strings[row], rationales[row] or [])
        for start, end in spans:
            in_rationale[start:end] = [True] * (end - start)
        marked.append([any(in_rationale[start:end]) for start, end in tokens])
    return marked


def _token_tags(
    examples: "datasets.Dataset", offsets: list[list[tuple[int, int]]] | None
) -> tuple[Sequence[list[int] | None], tuple[str, ...]]:
    """The number of the tag of each token's word, for each text, and the tags.

    -1 for tokens of no word, and of words whose tag is empty.

    Raises:
        AttnProbeError: more or fewer tags than words.
    """
    if offsets is None or "word_tags" not in examples.column_names:
        return [None] * len(examples), ()
    rows = column_of(examples, "word_tags")
    names = tuple(sorted({tag for row in rows for tag in row if tag}))
    numbers = {name: number for number, name in enumerate(names)} | {"": -1}
    ids, strings = column_of(examples, "example_id"), column_of(examples, "text")
    found: list[list[int] | None] = []
    for example_id, text, tags, tokens in zip(ids, strings, rows, offsets, strict=True):
        words = [word.span() for word in re.finditer(r"\S+", text)]
        if len(words) != len(tags):
            raise AttnProbeError(
                f"text {example_id}: expected one tag for each of its {len(words)} "
                f"words, got {len(tags)}; count words as white space separates them"
            )
        of_character = [-1] * len(text)
        for (start, end), tag in zip(words, tags, strict=True):
            of_character[start:end] = [numbers[tag]] * (end - start)
        found.append([max(of_character[a:b], default=-1) for a, b in tokens])
    return found, names


def rationale_spans(
    example_id: int, text: str, rationale: Sequence[int]
) -> list[tuple[int, int]]:
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


def labels_of_model(classes: Sequence[str], examples: "datasets.Dataset") -> list[int]:
    """The examples' labels as the model numbers its classes, -1 for none.

    Labels are matched by name, ignoring case. Where data and model have no name in
    common they are matched by number, if the data has no names or as many classes as
    the model.

    Raises:
        AttnProbeError: a label that the model does not know.
    """
    labels = column_of(examples, "label")
    names = label_names(examples)
    known = {name.casefold(): k for k, name in enumerate(classes)}
    numbers = [known.get(name.casefold()) for name in names]
    has_names = hasattr(examples.features["label"], "names")
    may_go_by_number = not has_names or len(names) == len(classes)
    if may_go_by_number and all(number is None for number in numbers):
        numbers = [k if k < len(classes) else None for k in range(len(names))]
    for label in sorted(set(labels)):
        if label >= 0 and numbers[label] is None:
            raise AttnProbeError(
                f"the data has label {names[label]!r} ({label}), the model knows "
                f"{len(classes)} labels: {', '.join(classes)}; audit it on data with its own "
                "labels"
            )
    return [numbers[label] if label >= 0 else -1 for label in labels]


def mask_id(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> int | None:
    """The id that replaces an erased token: the mask token, else the unknown one.

    None where the model has neither, or takes it for padding.
    """
    n_rows = model.get_input_embeddings().num_embeddings
    padding = (tokenizer.pad_token_id, model.config.pad_token_id)
    for token in (tokenizer.mask_token_id, tokenizer.unk_token_id):
        if token is not None and token < n_rows and token not in padding:
            return token
    return None
