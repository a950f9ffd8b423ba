"""Texts on their way into a model: tokenized, planned into batches within a memory budget, padded."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from hf_attnprobe.data.examples import label_names
from hf_attnprobe.errors import AttnProbeError


@dataclass(frozen=True)
class Text:
    """One tokenized text; ``inputs`` are lists of one length, and so is ``rationale``: which tokens are evidence."""

    example_id: int
    label: int
    inputs: Mapping[str, list[int]]
    rationale: Sequence[bool] | None = None

    @property
    def n_content(self) -> int:
        return len(self.inputs["input_ids"]) - sum(self.inputs["special_tokens_mask"])


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
    tokenizer, examples, model: TextModel, *, truncate: bool = True
) -> tuple[list[Text], dict[str, int]]:
    """The texts that have tokens, with the model's numbers for their labels; how many have none, and how many were cut.

    Raises:
        AttnProbeError: ids the model does not embed, no text with tokens, evidence that is not of its text, or, unless
            ``truncate``, a text longer than the model's positions.
    """
    columns = examples.with_format(None)[:]
    labels = labels_of_model(model.label_names, examples)
    longest = model.max_length(tokenizer)
    whole = (
        tokenizer(columns["text"], add_special_tokens=True, verbose=False)["input_ids"]
        if longest
        else []
    )
    cut = [row for row, ids in enumerate(whole) if len(ids) > longest]
    if cut and not truncate:
        raise AttnProbeError(
            f"text {columns['example_id'][cut[0]]} has {len(whole[cut[0]])} tokens, the model reads {longest}; "
            "allow truncation or shorten it"
        )
    encoded = tokenizer(
        columns["text"],
        return_special_tokens_mask=True,
        truncation=longest is not None,
        max_length=longest,
        return_offsets_mapping=tokenizer.is_fast and "evidence" in columns,
    )
    inputs = dict(encoded)
    marked = _rationales(columns, inputs.pop("offset_mapping", None))
    if model.separator_ids:  # separators alone make no sentence
        rows = zip(inputs["input_ids"], inputs["special_tokens_mask"], strict=True)
        inputs["special_tokens_mask"] = [
            [f or int(i in model.separator_ids) for i, f in zip(*row, strict=True)]
            for row in rows
        ]
    if tokenizer.is_fast:
        words = [encoded.word_ids(row) for row in range(len(labels))]
        inputs["word_ids"] = [
            [-1 if word is None else word for word in row] for row in words
        ]
    texts = [
        Text(
            example_id,
            label,
            {key: values[row] for key, values in inputs.items()},
            marked[row],
        )
        for row, (example_id, label) in enumerate(
            zip(columns["example_id"], labels, strict=True)
        )
    ]
    n_rows = model.n_embeddings
    largest = max((max(t.inputs["input_ids"], default=0) for t in texts), default=0)
    if n_rows is not None and largest >= n_rows:
        raise AttnProbeError(
            f"the tokenizer gives id {largest}, the model embeds ids below {n_rows}; load the tokenizer saved with the model"
        )
    kept = [t for t in texts if t.n_content > 0]
    if not kept:
        raise AttnProbeError(
            f"expected texts with tokens, all {len(texts)} have none; check the text column"
        )
    return kept, {"skipped_empty": len(texts) - len(kept), "truncated": len(cut)}


def has_rationales(examples, unit: str) -> bool:
    """Whether any text has a rationale, and the model attends to words or their pieces."""
    marked = "evidence" in examples.column_names and any(
        examples.with_format(None)["evidence"][:]
    )
    return marked and unit != "sentence"


def _rationales(
    columns: Mapping[str, list], offsets: list[list[tuple[int, int]]] | None
) -> list[list[bool] | None]:
    """For each text which tokens have a character in a word of its evidence; None where tokens have no known place."""
    if offsets is None:
        return [None] * len(columns["text"])
    rows = zip(
        columns["example_id"],
        columns["text"],
        columns["evidence"],
        offsets,
        strict=True,
    )
    found = []
    for example_id, text, evidence, places in rows:
        marked = bytearray(len(text))
        for start, end in evidence_spans(example_id, text, evidence or []):
            marked[start:end] = b"x" * (end - start)
        found.append([any(marked[start:end]) for start, end in places])
    return found


def evidence_spans(
    example_id: int, text: str, evidence: Sequence[int]
) -> list[tuple[int, int]]:
    """Characters of the words whose positions ``evidence`` names.

    Raises:
        AttnProbeError: positions that the text does not have, or one of them twice.
    """
    words = [word.span() for word in re.finditer(r"\S+", text)]
    if len(set(evidence)) < len(evidence) or not set(evidence) <= set(
        range(len(words))
    ):
        raise AttnProbeError(
            f"text {example_id}: expected as evidence different positions from 0 to {len(words) - 1} of its {len(words)} "
            f"words, got {len(evidence)}: {', '.join(map(str, evidence[:9]))}{'…' * (len(evidence) > 9)}; count words from "
            "0 as white space parts them, and give of a mask of 0 and 1 the positions of its ones"
        )
    return [words[position] for position in evidence]


def labels_of_model(classes: Sequence[str], examples) -> list[int]:
    """The examples' labels as the model numbers its classes, -1 for none.

    They are matched by name, whatever the case. Where data and model have no name in common they go by number, for
    data without names or with as many classes as the model.

    Raises:
        AttnProbeError: a label that the model does not know: data and model do not belong together.
    """
    values, names = examples.with_format(None)["label"][:], label_names(examples)
    known = {name.casefold(): k for k, name in enumerate(classes)}
    by_name = [known.get(name.casefold()) for name in names]
    named = hasattr(examples.features["label"], "names")
    if set(by_name) <= {None} and (not named or len(names) == len(classes)):
        by_name = [k if k < len(classes) else None for k in range(len(names))]
    unknown = sorted(
        {label for label in values if label >= 0 and by_name[label] is None}
    )
    if unknown:
        raise AttnProbeError(
            f"the data has label {names[unknown[0]]!r} ({unknown[0]}), the model knows {len(classes)} labels: "
            f"{', '.join(classes)}; audit it on data with its own labels"
        )
    return [by_name[label] if label >= 0 else -1 for label in values]


def mask_id(tokenizer, model) -> int | None:
    """What stands in for an erased token: the mask token, else the unknown one; None where the model has neither, or
    takes it for padding."""
    n_rows = model.get_input_embeddings().num_embeddings
    for found in (tokenizer.mask_token_id, tokenizer.unk_token_id):
        if (
            found is not None
            and found < n_rows
            and found not in (tokenizer.pad_token_id, model.config.pad_token_id)
        ):
            return found
    return None
