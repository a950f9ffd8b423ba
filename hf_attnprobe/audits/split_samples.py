"""Quantities that an audit computes in advance from a sample of the whole split.

There are four such quantities:

- the model's standard temperature,
- the noise floor of a language model in half precision,
- the head outputs that replace the output of an ablated head,
- the states that are exchanged between texts.

The sample is drawn by example id. It therefore does not depend on the number or the order of the
audited texts, or on the number of processes.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from hf_attnprobe.adapters.language_model.adapter import LanguageModelAdapter
from hf_attnprobe.audits.audited_model import AuditedModel
from hf_attnprobe.audits.site_selection import AuditSelection, check_query
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.data.columns import has_images, read_column
from hf_attnprobe.data.instances import has_instances
from hf_attnprobe.faithfulness.exchange import collect_unit_donors
from hf_attnprobe.faithfulness.interchange import collect_donors
from hf_attnprobe.faithfulness.registry import load_tests
from hf_attnprobe.inference.batching import (
    collate,
    iterate_batches,
    sort_by_length,
    split_for_model,
)
from hf_attnprobe.inference.choices import encode_examples
from hf_attnprobe.inference.encoding import (
    InputReader,
    Text,
    get_second_texts,
    select_distinct_texts,
)
from hf_attnprobe.protocol import (
    AnswersFromPassage,
    AttentionModelBase,
    Batch,
    EditableInputs,
    ExchangeableUnits,
    HeadOutputs,
    Observation,
)
from hf_attnprobe.statistics.sampling import draw_sample


if TYPE_CHECKING:
    import datasets


logger = logging.getLogger(__name__)

N_NOISE_PROMPTS = 2
"""Number of prompts on which the noise floor of a language model is measured."""
MAX_NOISE_UNITS = 4
"""Largest number of units per prompt whose deletion is repeated to measure the noise floor."""
NOISE_SEED = 0
"""Seed for the small changes by which the noise floor is measured."""
MAX_REFERENCE_TEXTS = 32
"""Maximum number of reference texts. Their head outputs replace the output of an ablated head."""
MAX_REFERENCE_TOKENS = 4096
"""Maximum number of tokens, including padding, in all reference texts together.

The head outputs of the reference texts replace the output of an ablated head. Two reference texts
are used even if they have more tokens.
"""
N_TEMPERATURE_TEXTS = 128
"""Number of texts from which a model's standard temperature is computed.

The standard temperature makes the confidence of different models comparable.
"""
N_DONOR_TEXTS = 64
"""Number of donor texts. Their hidden states are inserted into other texts."""
N_UNIT_DONOR_TEXTS = 128
"""Number of texts whose words are inserted into other texts."""
SAMPLE_BATCH_SIZE = 16
"""Maximum batch size, in texts, for forward passes on a sample of the split."""


def is_needed(requirement: str, tests: Iterable[str]) -> bool:
    """Return whether any of the tests has a requirement, such as donors.

    Args:
        requirement: Boolean field in the test registry, such as "uses_donors".
        tests: Test names.
    """
    return any(getattr(load_tests()[name], requirement) for name in tests)


def set_sharpness(
    adapter: AttentionModelBase,
    tokenizer: PreTrainedTokenizerBase | InputReader,
    examples: "datasets.Dataset",
) -> None:
    """Compute a model's standard temperature and store it in the adapter.

    Nothing is computed for a language model that answers from a passage, because it needs no
    standard temperature; see :meth:`Observation.apply_standard_temperature`.

    Args:
        adapter: The model; its attribute ``sharpness`` is set.
        tokenizer: The model's tokenizer.
        examples: All examples in the split.
    """
    answers_from_passage = adapter.lacks(AnswersFromPassage) is None
    if answers_from_passage:
        return
    texts = _sample_texts(adapter, tokenizer, examples, N_TEMPERATURE_TEXTS)
    probs: list[torch.Tensor] = []
    for batch in _batch_by_length(adapter, tokenizer, texts):
        # Unlike an observation, the model's own forward pass does not store attention.
        batch_probs = adapter.compute_native_probs(batch)
        if batch_probs is None:
            batch_probs = adapter.observe(batch).probs
        probs += batch_probs.detach().cpu()
    is_defined = [bool(text_probs.isfinite().all()) for text_probs in probs]
    if not all(is_defined):
        logger.warning(
            "the model returns NaN or infinity for %d of the %d texts from which the standard "
            "temperature is computed; these texts are left out",
            is_defined.count(False),
            len(probs),
        )
    probs = [text_probs for text_probs, keep in zip(probs, is_defined, strict=True) if keep]
    if not probs:
        raise AttnProbeError(
            "the standard temperature cannot be computed, because the model returns NaN or infinity "
            f"for all {len(is_defined)} texts of a sample; check the model's weights"
        )
    # Texts may have different numbers of outcomes, such as the tokens of an answer span.
    padded_probs = pad_sequence(probs, batch_first=True)
    try:
        sharpness = adapter.prediction.compute_standard_sharpness(padded_probs)
    except ValueError as error:
        raise AttnProbeError(
            f"the standard temperature cannot be computed, because {error}. Use --dtype float64, or "
            "divide the model's logits by a constant, which changes no decision."
        ) from error
    if sharpness is None:
        logger.warning(
            "no temperature makes the median probability of the predicted outcome .95, because most "
            "of the predictions are equal or tied; the model's own temperature is used"
        )
    adapter.sharpness = 1.0 if sharpness is None else sharpness


def set_noise_floor(
    adapter: AttentionModelBase,
    tokenizer: PreTrainedTokenizerBase | InputReader,
    examples: "datasets.Dataset",
) -> None:
    """Measure the noise floor of a language model on some prompts, and store it in the adapter.

    Args:
        adapter: The model; its attribute ``noise_floor`` is set.
        tokenizer: The model's tokenizer.
        examples: Prompts with their answers.
    """
    if not isinstance(adapter, LanguageModelAdapter) or not adapter.rounds_coarsely:
        return
    texts = _sample_texts(adapter, tokenizer, examples, N_NOISE_PROMPTS)
    batches = _batch_by_length(adapter, tokenizer, texts)
    adapter.noise_floor = max(measure_noise_floor(adapter.observe(batch)) for batch in batches)


def measure_noise_floor(observation: Observation) -> float:
    """Measure the noise floor of a language model on a prompt.

    Args:
        observation: The observed prompt.

    Returns:
        Largest difference between two measurements of the same loss, in nats. It is 0 for a model that
        does not compute in half precision, in which rounding is negligible.
    """
    adapter = observation.model
    if not isinstance(adapter, LanguageModelAdapter) or not adapter.rounds_coarsely:
        return 0.0
    if adapter.lacks(EditableInputs) is not None:
        return 0.0
    differences = adapter.measure_rounding(observation, MAX_NOISE_UNITS, NOISE_SEED)
    return float(differences.max()) if len(differences) else 0.0


def set_reference(
    adapter: AttentionModelBase,
    tokenizer: PreTrainedTokenizerBase | InputReader,
    examples: "datasets.Dataset",
    tests: Iterable[str],
) -> None:
    """Run the model on a sample of texts, and store its head outputs in the adapter.

    The test ``head_ablation`` uses them in place of an ablated head's output. Nothing is stored if no
    test needs them, or if the adapter has no access to head outputs.

    Args:
        adapter: The model, which receives the head outputs.
        tokenizer: The model's tokenizer.
        examples: All examples in the split.
        tests: Names of the tests that run.
    """
    if not is_needed("uses_reference", tests) or adapter.lacks(HeadOutputs) is not None:
        return
    texts = _sample_texts(adapter, tokenizer, examples, MAX_REFERENCE_TEXTS)
    max_length = max(text.n_tokens for text in texts)
    n_texts = max(2, MAX_REFERENCE_TOKENS // max_length)
    batches = [
        collate(adapter, batch_texts, tokenizer.pad_token_id or 0)
        for batch_texts in split_for_model(adapter, texts[:n_texts])
    ]
    adapter.require(HeadOutputs).set_reference(*batches)


def set_donors(
    audited_model: AuditedModel,
    examples: "datasets.Dataset",
    selection: AuditSelection,
    seed: int,
) -> None:
    """Collect the most attended states from a sample of texts, and store them in the adapter.

    The test ``interchange`` inserts these states into other texts. Nothing is stored if no test
    needs them. A warning is logged if all sampled texts have the same prediction, because interchange then has
    no suitable donor.

    Args:
        audited_model: The model with its tokenizer; its adapter receives the states.
        examples: All examples in the split.
        selection: The tests and sites.
        seed: Seed for the random choice of donors.

    Raises:
        AttnProbeError: If the shortest text has no token at the query position of the sites.
    """
    adapter, tokenizer = audited_model.adapter, audited_model.tokenizer
    if not is_needed("uses_donors", selection.tests):
        return
    texts = _sample_texts(adapter, tokenizer, examples, N_DONOR_TEXTS)
    batches = _batch_by_length(adapter, tokenizer, texts)
    query = selection.sites[0].query
    if query is not None:
        shortest_text = sort_by_length(texts)[:1]
        batch = collate(adapter, shortest_text, tokenizer.pad_token_id or 0)
        check_query(adapter.observe(batch), query)
    sites = [*selection.sites, *selection.groups]
    adapter.donors = collect_donors(adapter, batches, sites, seed)
    decisions = adapter.donors.decisions
    if (decisions == decisions[0]).all():
        logger.warning(
            "the test interchange cannot be measured, because it needs texts with different "
            "predictions. All %d texts of its sample have the same prediction.",
            len(texts),
        )


def set_unit_donors(
    audited_model: AuditedModel,
    examples: "datasets.Dataset",
    selection: AuditSelection,
    seed: int,
) -> None:
    """Collect the words of a sample of texts, and store them in the adapter.

    The test ``exchange`` inserts them into other texts. Nothing is stored if no test needs them.

    Args:
        audited_model: The model with its tokenizer; its adapter receives the words.
        examples: All examples in the split.
        selection: The tests and sites.
        seed: Seed that decides between words with equal attention.
    """
    adapter, tokenizer = audited_model.adapter, audited_model.tokenizer
    is_unable = adapter.lacks(ExchangeableUnits) is not None
    if is_unable or not is_needed("uses_unit_donors", selection.tests):
        return
    texts = sort_by_length(_sample_texts(adapter, tokenizer, examples, N_UNIT_DONOR_TEXTS))
    batches = _batch_by_length(adapter, tokenizer, texts)

    def read_vectors(row: int) -> Sequence[Any]:
        return texts[row].inputs["features"]

    # The vectors of all donors may not fit into memory.
    read_contents = read_vectors if "features" in texts[0].inputs else None
    adapter.unit_donors = collect_unit_donors(adapter, batches, seed, read_contents)


def _sample_texts(
    adapter: AttentionModelBase,
    tokenizer: PreTrainedTokenizerBase | InputReader,
    examples: "datasets.Dataset",
    n_texts: int,
) -> list[Text]:
    """Draw different nonblank texts from the split by id hash, and encode them in id order.

    If the drawn texts contain copies, twice as many texts are drawn, until there are enough different
    texts or the split has no more.
    """
    ids = read_column(examples, "example_id")
    if has_images(examples) or has_instances(examples):
        rows = list(range(len(ids)))
    else:
        second_texts = get_second_texts(examples) or [""] * len(ids)
        pairs = zip(read_column(examples, "text"), second_texts, strict=True)
        nonblank_rows = [row for row, pair in enumerate(pairs) if "".join(pair).strip()]
        # If all texts are blank, the first one is encoded, which raises a suitable error.
        rows = nonblank_rows or [0]
    n_drawn = n_texts
    while True:
        drawn_rows = draw_sample(rows, [ids[row] for row in rows], n_drawn)
        drawn_rows = sorted(drawn_rows, key=ids.__getitem__)
        texts = encode_examples(tokenizer, examples.select(drawn_rows), adapter).texts
        distinct_texts = select_distinct_texts(texts)
        has_copies = len(distinct_texts) < len(texts)
        if not has_copies or len(distinct_texts) >= n_texts or n_drawn >= len(rows):
            break
        n_drawn *= 2
    example_ids = [text.example_id for text in distinct_texts]
    sampled_indices = draw_sample(range(len(distinct_texts)), example_ids, n_texts)
    return [distinct_texts[index] for index in sampled_indices]


def _batch_by_length(
    adapter: AttentionModelBase,
    tokenizer: PreTrainedTokenizerBase | InputReader,
    texts: Sequence[Text],
) -> Iterator[Batch]:
    """Yield collated batches, with the shortest texts first."""
    batch_size = min(adapter.max_batch_size or SAMPLE_BATCH_SIZE, SAMPLE_BATCH_SIZE)
    pad_token_id = tokenizer.pad_token_id or 0
    return iterate_batches(adapter, sort_by_length(texts), pad_token_id, batch_size)
