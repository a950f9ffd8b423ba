"""Columns of a data set that a model reads in addition to its texts, such as boxes of words.

A loaded split contains such a column under a name with one of the prefixes in
`hf_attnprobe.core.input_names`, which state whether a value belongs to a word, a token or a text.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.input_names import INPUT_PREFIXES, TEXT_INPUT, TOKEN_INPUT, WORD_INPUT
from hf_attnprobe.data.columns import read_column


if TYPE_CHECKING:
    import datasets


TOKENIZER_COLUMNS = ("input_ids", "attention_mask", "token_type_ids")
"""Columns that a tokenizer returns, with one value per token."""


def list_input_columns(examples: "datasets.Dataset") -> list[str]:
    """List the columns of a loaded split that a model reads in addition to its texts.

    Args:
        examples: A loaded split.

    Returns:
        Column names, each with one of `INPUT_PREFIXES`.
    """
    return [name for name in examples.column_names if name.startswith(INPUT_PREFIXES)]


def read_model_inputs(
    source: "datasets.Dataset",
    columns: Mapping[str, str],
    texts: Sequence[str],
    second_texts: Sequence[str] | None,
) -> dict[str, list[Any]]:
    """Read the columns that a model reads in addition to its texts.

    Args:
        source: The split.
        columns: Column names by the name of the model input.
        texts: The texts of all rows.
        second_texts: The second texts; None for single texts.

    Returns:
        Values of all rows by prefixed input name.

    Raises:
        AttnProbeError: If a cell is empty or is neither a number nor a list of numbers.
    """
    n_words = [len(text.split()) for text in texts]
    if second_texts is not None:
        n_words = [
            count + len(text.split()) for count, text in zip(n_words, second_texts, strict=True)
        ]
    inputs = {}
    for name, column in columns.items():
        values = read_column(source, column)
        for row, value in enumerate(values):
            if not _is_numeric(value):
                raise AttnProbeError(
                    f"the model reads the column {column!r} as {name}, so it must contain numbers "
                    f"or lists of numbers, but row {row} has {value!r:.40}. Correct or remove this "
                    "column."
                )
        inputs[f"{_find_prefix(name, values, n_words)}{name}"] = values
    return inputs


def _is_numeric(value: Any) -> bool:
    """Return whether a cell is a number or a nested list of numbers."""
    if isinstance(value, list):
        return all(_is_numeric(part) for part in value)
    return isinstance(value, int | float)


def _find_prefix(name: str, values: Sequence[Any], n_words: Sequence[int]) -> str:
    """Find out whether a column has one value per word, per token or per text.

    Args:
        name: Name of the model input.
        values: Values of all rows.
        n_words: Number of words in the text of each row.

    Returns:
        One of `INPUT_PREFIXES`.
    """
    if name in TOKENIZER_COLUMNS:
        return TOKEN_INPUT
    if not all(isinstance(value, list) for value in values):
        return TEXT_INPUT
    lengths = [len(value) for value in values]
    if lengths == list(n_words):
        return WORD_INPUT
    has_vectors = any(isinstance(part, list) for value in values for part in value)
    return TOKEN_INPUT if has_vectors or len(set(lengths)) > 1 else TEXT_INPUT
