"""Runs a model over a split and returns its predictions and attention.

The attention of one model can be imposed on another one: a *guide* holds the attention weights for
every text, and a model with guided attention uses them instead of its own.
"""

from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_attnprobe.adapters import wrap
from hf_attnprobe.adapters.pretrained import PretrainedModelInfo
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.hardware import split_into_chunks
from hf_attnprobe.data.columns import read_column
from hf_attnprobe.functional.intervention import normalise
from hf_attnprobe.inference.batching import collate, sort_by_length
from hf_attnprobe.inference.encoding import Text, tokenize
from hf_attnprobe.protocol import Observation


if TYPE_CHECKING:
    import datasets


Guide = Mapping[int, Tensor]
"""Attention weights of the texts of one split, each `[content tokens]`, by example id."""


@dataclass(frozen=True, eq=False)
class Outputs:
    """Predictions and attention on the texts of a split that have tokens, in the order of their ids.

    Attributes:
        example_ids: Text ids.
        labels: Labels, int64 `[texts]`.
        probs: Probabilities, `[texts, classes]`.
        attention: Attention weights, `[texts, tokens]`. These are the weights of a text's content
            tokens (no special tokens) in their order, summing to 1, followed by padding. If words
            consist of several tokens, these are the weights of words.
        mask: False at padding, bool `[texts, tokens]`.
    """

    example_ids: tuple[int, ...]
    labels: Tensor
    probs: Tensor
    attention: Tensor
    mask: Tensor


def observe_split(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: "datasets.Dataset",
    *,
    batch_size: int = 64,
    **options: Any,
) -> Iterator[Observation]:
    """Run a model on all texts of a split, in batches of similar length.

    Args:
        model: Any model that :func:`hf_attnprobe.wrap` accepts.
        tokenizer: The model's tokenizer.
        examples: The texts.
        batch_size: Number of texts per batch.
        **options: Further arguments of ``wrap``.

    Yields:
        The observation of each batch.
    """
    adapter = wrap(model, **options)
    texts = sort_by_length(tokenize(tokenizer, examples, adapter).texts)
    for batch_texts in split_into_chunks(texts, batch_size):
        yield adapter.observe(collate(adapter, batch_texts, tokenizer.pad_token_id or 0))


def read_outputs(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: "datasets.Dataset",
    **options: Any,
) -> Outputs:
    """Run a model over a split and return its predictions and the attention of its first head.

    Weights on special tokens are removed, and the remaining weights are divided by their sum. In a
    hierarchical model, the weight of a word is its weight in its sentence times the weight of the
    sentence.

    Args:
        model: Any model that :func:`hf_attnprobe.wrap` accepts.
        tokenizer: The model's tokenizer.
        examples: The texts.
        **options: Further arguments of :func:`observe_split`.

    Returns:
        The predictions and attention.
    """
    rows: list[tuple] = []
    for observation in observe_split(model, tokenizer, examples, **options):
        batch = observation.batch
        if observation.model.unit == "sentence":
            attention, is_content = _compute_word_weights(observation)
        else:
            attention = observation.read(observation.model.sites()[0]).detach()
            is_content = batch.content_mask
        weights = [
            normalise(text_attention[text_is_content])
            for text_attention, text_is_content in zip(attention, is_content, strict=True)
        ]
        probs = observation.probs.detach()
        # Collated batches always have labels.
        assert batch.labels is not None
        rows += zip(batch.example_ids, batch.labels, probs, weights, strict=True)
    rows.sort(key=lambda row: row[0])
    ids, labels, all_probs, all_weights = zip(*rows, strict=True)
    masks = [torch.ones_like(weights, dtype=torch.bool) for weights in all_weights]
    return Outputs(
        example_ids=ids,
        labels=torch.stack(labels).cpu(),
        probs=torch.stack(all_probs).cpu(),
        attention=pad_sequence(list(all_weights), batch_first=True).cpu(),
        mask=pad_sequence(masks, batch_first=True).cpu(),
    )


def measure_texts(
    observations: Iterable[Observation],
    measure: Callable[[Observation], Mapping[str, Tensor]],
) -> dict[str, Tensor]:
    """Measure quantities of all texts, batch by batch.

    Args:
        observations: Observations of the batches.
        measure: Function that returns values `[batch, ...]` by name.

    Returns:
        Values `[texts, ...]` by name, in the order of the text ids.
    """
    ids: list[int] = []
    batch_values: dict[str, list[Tensor]] = {}
    for observation in observations:
        ids += observation.batch.example_ids
        for name, values in measure(observation).items():
            batch_values.setdefault(name, []).append(values.detach().cpu())
    order = torch.tensor(ids).argsort()
    return {name: torch.cat(values)[order] for name, values in batch_values.items()}


def _compute_word_weights(observation: Observation) -> tuple[Tensor, Tensor]:
    """Compute the weights of words over all sentences of a hierarchical model.

    Returns:
        The weights, and which tokens are words, both `[batch, keys]`.
    """
    words, sentences = (level.detach()[:, 0] for level in observation.attention)
    return (sentences @ words)[:, 0], observation.batch.inputs["units"] >= 0


def make_guide(outputs: Outputs) -> Guide:
    """Make a guide from the attention of a model.

    Args:
        outputs: Predictions and attention of the model.

    Returns:
        Attention weights for every text, without padding.
    """
    rows = zip(outputs.example_ids, outputs.attention, outputs.mask, strict=True)
    return {example_id: weights[mask] for example_id, weights, mask in rows}


@torch.no_grad()
def predict(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: "datasets.Dataset",
    *,
    guide: Guide | None = None,
    edit: Callable[[Text], Sequence[int]] | None = None,
    batch_size: int = 128,
) -> Tensor:
    """Predict the probabilities of texts.

    Args:
        model: A classifier.
        tokenizer: The model's tokenizer.
        examples: The texts.
        guide: Attention weights, for a model with guided attention.
        edit: Function that returns the token ids to read instead of those of the text; None for
            unchanged texts.
        batch_size: Number of texts per batch.

    Returns:
        Probabilities, float64 `[texts, classes]`, in the order of :class:`Outputs`.
    """
    texts = tokenize(tokenizer, examples, PretrainedModelInfo(model)).texts
    texts = sorted(texts, key=lambda text: text.example_id)
    model = model.eval()
    probs = []
    for batch_texts in split_into_chunks(texts, batch_size):
        inputs = _pad_inputs(tokenizer, batch_texts, edit)
        if guide is not None:
            inputs["guide"] = _pad_guide(guide, tokenizer, batch_texts)
        inputs = {name: value.to(model.device) for name, value in inputs.items()}
        probs.append(model(**inputs).logits.double().softmax(-1).cpu())
    return torch.cat(probs)


def _pad_inputs(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[Text],
    edit: Callable[[Text], Sequence[int]] | None,
) -> dict[str, Tensor]:
    """Pad the token ids of texts, edited if ``edit`` is given, to model inputs."""
    rows = []
    for text in texts:
        ids = text.inputs["input_ids"] if edit is None else list(edit(text))
        # Models cannot read an empty text, so one padding token stands in for it.
        rows.append(ids or [tokenizer.pad_token_id])
    columns = {"input_ids": rows}
    is_pair = {"segment_ids", "token_type_ids"} <= texts[0].inputs.keys()
    if edit is None and is_pair:
        columns["token_type_ids"] = [text.inputs["token_type_ids"] for text in texts]
    return dict(tokenizer.pad(columns, return_tensors="pt"))


def _pad_guide(guide: Guide, tokenizer: PreTrainedTokenizerBase, texts: Sequence[Text]) -> Tensor:
    """Pad the guided attention weights of texts to a tensor `[batch, keys]`."""
    special_ids = get_special_ids(tokenizer)
    rows = []
    for text in texts:
        weights = build_guide_row(guide, text.example_id, text.inputs["input_ids"], special_ids)
        rows.append(torch.tensor(weights))
    return pad_sequence(rows, batch_first=True)


# --- Attention of one model that is imposed on another -------------------------------------------


def build_guide_rows(
    guide: Guide,
    examples: "datasets.Dataset",
    input_ids: list[list[int]],
    special_ids: Collection[int],
) -> list[list[float]]:
    """Assign the guide's weights to the tokens of every text, and 0 to special tokens.

    Args:
        guide: Attention weights for every text.
        examples: The texts.
        input_ids: Token ids of every text.
        special_ids: Tokens that never receive attention, see :func:`get_special_ids`.

    Returns:
        One weight for every token id.

    Raises:
        AttnProbeError: If a text has no weights, or not as many as content tokens.
    """
    rows = zip(read_column(examples, "example_id"), input_ids, strict=True)
    return [build_guide_row(guide, example_id, ids, special_ids) for example_id, ids in rows]


def get_special_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Return the ids of tokens that never receive attention; the unknown token counts as a word."""
    return set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}


def build_guide_row(
    guide: Guide,
    example_id: int,
    tokens: list[int],
    special_ids: Collection[int],
) -> list[float]:
    """Assign the guide's weights to the tokens of one text, and 0 to special tokens.

    Args:
        guide: Attention weights for every text.
        example_id: Text id.
        tokens: Token ids for the text.
        special_ids: Tokens that never receive attention.

    Returns:
        One weight for every token id.

    Raises:
        AttnProbeError: If the text has no weights, or not as many as content tokens.
    """
    is_content = [token not in special_ids for token in tokens]
    n_content = sum(is_content)
    if n_content == 0:
        return [0.0] * len(tokens)
    if example_id not in guide:
        raise AttnProbeError(
            f"the guide has no attention weights for text {example_id}; read it on the same texts"
        )
    weights = torch.as_tensor(guide[example_id]).tolist()
    if len(weights) != n_content:
        raise AttnProbeError(
            f"expected {n_content} weights for text {example_id}, one per token, but the guide has "
            f"{len(weights)}; guide and model must divide texts into the same tokens"
        )
    remaining_weights = iter(weights)
    return [next(remaining_weights) if content else 0.0 for content in is_content]
