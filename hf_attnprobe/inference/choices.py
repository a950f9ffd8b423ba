"""Encodes texts for any model, including texts with answer choices, and counts unknown tokens.

A multiple-choice model reads a text together with each of its choices as a separate pair.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from transformers import PreTrainedTokenizerBase

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.data.columns import read_column
from hf_attnprobe.data.instances import find_instance_column
from hf_attnprobe.inference.answers import encode_answers
from hf_attnprobe.inference.encoding import (
    ImageReader,
    InputReader,
    Text,
    TextModel,
    TokenizedSplit,
    compute_identity,
    encode_images,
    tokenize,
)
from hf_attnprobe.inference.instances import InstanceReader, encode_instances
from hf_attnprobe.inference.labels import convert_labels


if TYPE_CHECKING:
    import datasets


MAX_UNKNOWN_SHARE = 0.5
"""Largest fraction of tokens that may be unknown. With more, an audit stops with an error."""
REPORTED_UNKNOWN_SHARE = 0.1
"""Fraction of unknown tokens above which the report contains a note about them."""


def compute_unknown_share(
    texts: Sequence[Text], tokenizer: PreTrainedTokenizerBase | InputReader
) -> float:
    """Compute the fraction of content tokens that are the unknown token.

    Args:
        texts: The texts as tokens.
        tokenizer: The model's tokenizer.

    Returns:
        The fraction, from 0 to 1; 0 for images, bags and tokenizers that know every byte.

    Raises:
        AttnProbeError: If the fraction exceeds :data:`MAX_UNKNOWN_SHARE`.
    """
    if isinstance(tokenizer, InputReader):
        return 0.0
    unknown_id = tokenizer.unk_token_id
    # Byte-level tokenizers, such as the GPT-2 tokenizer, use one token for unknown, start and end.
    is_special = unknown_id in (tokenizer.bos_token_id, tokenizer.eos_token_id)
    if unknown_id is None or is_special:
        return 0.0
    n_unknown, n_tokens = 0, 0
    for text in texts:
        for token_ids, special_mask in text.sequences:
            for token_id, special in zip(token_ids, special_mask, strict=True):
                n_unknown += token_id == unknown_id
                n_tokens += token_id == unknown_id or not special
    share = n_unknown / n_tokens if n_tokens else 0.0
    if share > MAX_UNKNOWN_SHARE:
        raise AttnProbeError(
            f"the tokenizer does not know {share:.0%} of the tokens in the texts (it "
            f"replaces them with {tokenizer.unk_token}). Load the tokenizer that was saved "
            "with the model, or audit texts like those in the training data."
        )
    return share


def describe_unknown_share(share: float) -> str | None:
    """Return a note for the report if the tokenizer does not know many of the words.

    Args:
        share: Fraction of unknown tokens, from 0 to 1.

    Returns:
        The note; None if there are only a few unknown tokens.
    """
    if share <= REPORTED_UNKNOWN_SHARE:
        return None
    return (
        f"The tokenizer does not know {share:.0%} of the tokens in these texts. At their positions, "
        "the results describe how the model uses the unknown token."
    )


# --- Texts with several choices ------------------------------------------------------------------


@dataclass(frozen=True)
class ChoiceText(Text):
    """A text with several choices.

    Each entry of ``inputs`` is a list with one list of numbers per choice.
    """

    @property
    def sequences(self) -> list[tuple[list[int], list[int]]]:
        """Token ids and special-token mask for each choice."""
        ids, special = self.inputs["input_ids"], self.inputs["special_tokens_mask"]
        return list(zip(ids, special, strict=True))

    @property
    def n_tokens(self) -> int:
        """Length of the longest choice in tokens."""
        return max(map(len, self.inputs["input_ids"]))

    @property
    def n_content(self) -> int:
        """Largest number of content tokens in any choice."""
        special_masks = self.inputs["special_tokens_mask"]
        return max(len(mask) - sum(mask) for mask in special_masks)


def encode_examples(
    tokenizer: PreTrainedTokenizerBase | InputReader,
    examples: "datasets.Dataset",
    model: TextModel,
    *,
    truncate: bool = True,
    segment: str | None = None,
) -> TokenizedSplit:
    """Encode examples for a model with any head: texts, pairs, choices, prompts, images or bags.

    Args:
        tokenizer: Tokenizer, or reader of images or bags.
        examples: The examples.
        model: The model's properties.
        truncate: Whether to cut texts that are too long.
        segment: The text in a pair to explain, "text" or "text_pair"; None for both.

    Returns:
        The encoded texts.

    Raises:
        AttnProbeError: If the examples do not suit the model.
    """
    if isinstance(tokenizer, ImageReader):
        return encode_images(tokenizer, examples, model)
    if isinstance(tokenizer, InstanceReader):
        if segment is not None:
            raise AttnProbeError("--segment needs pairs of texts, got bags. Leave out --segment.")
        return encode_instances(tokenizer, examples, model)
    if isinstance(tokenizer, InputReader):
        raise TypeError(f"unknown reader {type(tokenizer).__name__}")
    if find_instance_column(examples.column_names) is not None:
        raise AttnProbeError(
            "the data has bags of instances, but the model reads texts. Use a model that reads "
            "instances, or choose the column of the texts with --text-column."
        )
    if model.prediction.kind == "answer":
        return encode_answers(examples)
    has_choice_head = model.prediction.kind == "choice"
    if not has_choice_head and "choices" in examples.column_names:
        raise AttnProbeError(
            "the data has a column of choices, but the model predicts "
            f"{model.prediction.name}. Use a multiple-choice model, or name a column of "
            "second texts with --text-pair-column."
        )
    encode = tokenize_choices if has_choice_head else tokenize
    return encode(tokenizer, examples, model, truncate=truncate, segment=segment)


def tokenize_choices(
    tokenizer: PreTrainedTokenizerBase,
    examples: "datasets.Dataset",
    model: TextModel,
    *,
    truncate: bool = True,
    segment: str | None = None,
) -> TokenizedSplit:
    """Tokenize texts with choices for a multiple-choice model.

    Args:
        tokenizer: The model's tokenizer.
        examples: The examples, with a column "choices".
        model: The model's properties.
        truncate: Whether to cut pairs that are too long.
        segment: The text in a pair to explain, "text" or "text_pair"; None for both.

    Returns:
        The encoded texts. A text is left out if any of its choices has no tokens.

    Raises:
        AttnProbeError: If texts have no choices or different numbers of choices, or if
            :func:`~hf_attnprobe.inference.encoding.tokenize` raises an error.
    """
    if "choices" not in examples.column_names:
        raise AttnProbeError(
            "a multiple-choice model needs a column 'choices' with the possible answers, "
            f"got {', '.join(examples.column_names)}. Add the column 'choices'."
        )
    choices = read_column(examples, "choices")
    ids = read_column(examples, "example_id")
    n_choices = len(choices[0])
    for example_id, text_choices in zip(ids, choices, strict=True):
        if len(text_choices) != n_choices or n_choices < 2:
            raise AttnProbeError(
                "every text needs the same number of choices, at least two, but the first "
                f"text has {n_choices} and text {example_id} has {len(text_choices)}. Leave "
                "out texts with another number."
            )
    pairs = _flatten_choices(examples, choices)
    tokenized_pairs = tokenize(tokenizer, pairs, model, truncate=truncate, segment=segment)
    pairs_by_row: dict[int, list[Text]] = {}
    for pair in tokenized_pairs.texts:
        pairs_by_row.setdefault(pair.example_id // n_choices, []).append(pair)
    labels = convert_labels(model.prediction, examples, tokenizer, {}, None)
    texts: list[Text] = []
    for row, row_pairs in pairs_by_row.items():
        if len(row_pairs) == n_choices:
            inputs = _stack_choices(row_pairs)
            identity = compute_identity(inputs)
            texts.append(ChoiceText(ids[row], labels[row], inputs, identity=identity))
    # A question is truncated if any of its pairs is.
    truncated_ids = frozenset(ids[pair // n_choices] for pair in tokenized_pairs.truncated_ids)
    return replace(
        tokenized_pairs,
        texts=texts,
        n_empty=len(ids) - len(texts),
        n_truncated=len(truncated_ids),
        truncated_ids=truncated_ids,
        n_half_empty=0,
    )


def _flatten_choices(
    examples: "datasets.Dataset", choices: Sequence[Sequence[str]]
) -> "datasets.Dataset":
    """Make one pair of texts for each choice of a multiple-choice question.

    The first text is the question, the second text is the choice. The pairs have consecutive ids,
    and the label −1, because a single choice has no label.
    """
    import datasets

    texts = read_column(examples, "text")
    pairs = [
        (text, choice)
        for text, text_choices in zip(texts, choices, strict=True)
        for choice in text_choices
    ]
    return datasets.Dataset.from_dict(
        {
            "example_id": list(range(len(pairs))),
            "text": [text for text, _ in pairs],
            "text_pair": [choice for _, choice in pairs],
            "label": [-1] * len(pairs),
        }
    )


def _stack_choices(pairs: Sequence[Text]) -> dict[str, list[list[int]]]:
    """Combine the model inputs for all choices of a multiple-choice question.

    Args:
        pairs: The encoded pairs of question and choice, one per choice.

    Returns:
        For each input name, such as "input_ids", a list with one list of numbers per choice.
    """
    return {name: [pair.inputs[name] for pair in pairs] for name in pairs[0].inputs}
