"""Encodes texts with answer choices, and counts tokens that the tokenizer does not know."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from transformers import PreTrainedTokenizerBase

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.data.columns import read_column
from hf_attnprobe.inference.answers import encode_answers
from hf_attnprobe.inference.encoding import (
    ImageReader,
    Text,
    TextModel,
    TokenizedSplit,
    encode_images,
    tokenize,
)
from hf_attnprobe.inference.labels import convert_labels


if TYPE_CHECKING:
    import datasets


MAX_UNKNOWN_SHARE = 0.5
"""Share of unknown tokens beyond which texts are not audited."""

REPORTED_UNKNOWN_SHARE = 0.1
"""Share beyond which a report says it."""


def compute_unknown_share(texts: Sequence[Text], tokenizer: PreTrainedTokenizerBase | ImageReader) -> float:
    """Share, 0 to 1, of the content tokens that are the unknown token.

    Raises:
        AttnProbeError: more than half of them.
    """
    if isinstance(tokenizer, ImageReader):
        return 0.0
    unknown = tokenizer.unk_token_id
    is_end = unknown in (tokenizer.bos_token_id, tokenizer.eos_token_id)
    if unknown is None or is_end:  # byte by byte, as GPT-2: nothing is unknown
        return 0.0
    n_unknown, n_tokens = 0, 0
    for ids, special in (sequence for text in texts for sequence in text.sequences):
        for token, is_special in zip(ids, special, strict=True):
            n_unknown += token == unknown
            n_tokens += token == unknown or not is_special
    share = n_unknown / n_tokens if n_tokens else 0.0
    if share > MAX_UNKNOWN_SHARE:
        raise AttnProbeError(
            f"expected texts in words that the tokenizer knows, {share:.0%} of their "
            f"tokens are {tokenizer.unk_token}; load the tokenizer saved with the model, "
            "or audit it on texts like those it was trained on"
        )
    return share


def describe_unknown_share(share: float) -> str | None:
    """The report's note on unknown tokens; None where they are few."""
    if share <= REPORTED_UNKNOWN_SHARE:
        return None
    return (
        f"The tokenizer does not know {share:.0%} of the tokens of these texts: what the "
        "model says there it says of the unknown token."
    )


# --- Texts with several choices, each of which a model reads as a pair of its own ----------------


@dataclass(frozen=True)
class ChoiceText(Text):
    """One text with its choices: its ``inputs`` are lists of one list per choice."""

    @property
    def sequences(self) -> list[tuple[list[int], list[int]]]:
        ids, special = (
            self.inputs["input_ids"],
            self.inputs["special_tokens_mask"],
        )
        return list(zip(ids, special, strict=True))

    @property
    def n_tokens(self) -> int:
        """Tokens of the longest choice."""
        return max(map(len, self.inputs["input_ids"]))

    @property
    def n_content(self) -> int:
        """Content tokens of the longest choice."""
        special = self.inputs["special_tokens_mask"]
        return max(len(row) - sum(row) for row in special)


def encode_examples(
    tokenizer: PreTrainedTokenizerBase | ImageReader,
    examples: "datasets.Dataset",
    model: TextModel,
    *,
    truncate: bool = True,
    segment: str | None = None,
) -> TokenizedSplit:
    """Tokenizes a split for a model with any head.

    See :func:`~hf_attnprobe.inference.encoding.tokenize` and :func:`tokenize_choices`.
    """
    if isinstance(tokenizer, ImageReader):
        return encode_images(tokenizer, examples, model)
    if model.prediction.kind == "answer":
        return encode_answers(examples)
    is_choice = model.prediction.kind == "choice"
    if not is_choice and "choices" in examples.column_names:
        raise AttnProbeError(
            f"the model predicts {model.prediction.name} and reads no choices: expected "
            "texts or pairs, got texts with choices; take a multiple-choice model, or "
            "name the second texts with --text-pair-column"
        )
    encoding = tokenize_choices if is_choice else tokenize
    return encoding(tokenizer, examples, model, truncate=truncate, segment=segment)


def tokenize_choices(
    tokenizer: PreTrainedTokenizerBase,
    examples: "datasets.Dataset",
    model: TextModel,
    *,
    truncate: bool = True,
    segment: str | None = None,
) -> TokenizedSplit:
    """Like :func:`~hf_attnprobe.inference.encoding.tokenize`, for multiple choice.

    Raises:
        AttnProbeError: also for texts without choices, or with different numbers of them.
    """
    if "choices" not in examples.column_names:
        raise AttnProbeError(
            "expected a column 'choices' with the texts that the model chooses among, "
            f"got the columns {', '.join(examples.column_names)}; add it"
        )
    choices = read_column(examples, "choices")
    n_choices = len(choices[0])
    for example_id, of_text in zip(read_column(examples, "example_id"), choices, strict=True):
        if len(of_text) != n_choices or n_choices < 2:
            raise AttnProbeError(
                "expected as many choices for every text, two or more, the first has "
                f"{n_choices} and text {example_id} has {len(of_text)}; leave it out"
            )
    flat = _flatten_choices(examples, choices)
    tokenized = tokenize(tokenizer, flat, model, truncate=truncate, segment=segment)
    grouped: dict[int, list[Text]] = {}
    for text in tokenized.texts:
        grouped.setdefault(text.example_id // n_choices, []).append(text)
    ids = read_column(examples, "example_id")
    labels = convert_labels(model.prediction, examples, tokenizer, {}, None)
    texts = [
        ChoiceText(ids[row], labels[row], _stack_choices(members))
        for row, members in grouped.items()
        if len(members) == n_choices
    ]
    return TokenizedSplit([*texts], len(ids) - len(texts), tokenized.n_truncated)


def _flatten_choices(examples: "datasets.Dataset", choices: Sequence[Sequence[str]]) -> "datasets.Dataset":
    """One pair per choice, numbered consecutively, without labels."""
    import datasets

    texts = read_column(examples, "text")
    pairs = [
        (text, choice) for text, of_text in zip(texts, choices, strict=True) for choice in of_text
    ]
    return datasets.Dataset.from_dict(
        {
            "example_id": list(range(len(pairs))),
            "text": [text for text, _ in pairs],
            "text_pair": [choice for _, choice in pairs],
            "label": [-1] * len(pairs),
        }
    )


def _stack_choices(members: Sequence[Text]) -> dict[str, list[list[int]]]:
    return {name: [text.inputs[name] for text in members] for name in members[0].inputs}
