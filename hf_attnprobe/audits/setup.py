"""Prepares an audit in three steps: load, select and encode.

1. :func:`load_audit` loads the model and the data and checks that they fit together.
2. :func:`select_audit` selects the tests, the sites and the texts.
3. :func:`encode_audit` turns the texts into tokens and computes the quantities that the tests need
   in advance, such as the standard temperature.

:func:`prepare_audit` runs all three and returns a :class:`PreparedAudit`.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from hf_attnprobe.adapters.transformer.adapter import TransformerAdapter
from hf_attnprobe.attention_map import AttentionMap
from hf_attnprobe.audits.audited_model import (
    AuditedModel,
    ModelLike,
    check_number_unit,
    is_language_model,
    load_audited_model,
)
from hf_attnprobe.audits.cost_model import AuditProgress
from hf_attnprobe.audits.identity import build_identity, get_user_model, hash_json
from hf_attnprobe.audits.options import AuditOptions, parse_share
from hf_attnprobe.audits.runner import AuditRunner
from hf_attnprobe.audits.self_checks import run_preflight_checks
from hf_attnprobe.audits.site_selection import (
    AuditSelection,
    check_both_halves,
    restrict_to_model,
    select_tests_and_sites,
)
from hf_attnprobe.audits.split_samples import (
    is_needed,
    set_donors,
    set_noise_floor,
    set_reference,
    set_sharpness,
    set_unit_donors,
)
from hf_attnprobe.audits.text_scores import choose_model_attention
from hf_attnprobe.audits.user_scores import (
    attach_scores,
    compute_score_fingerprint,
    list_score_entries,
    read_scores,
)
from hf_attnprobe.core.distributed import get_process_state
from hf_attnprobe.core.errors import AttnProbeError, UndefinedLogitsError
from hf_attnprobe.core.formatting import format_count
from hf_attnprobe.core.hardware import convert_memory_errors, limit_threads
from hf_attnprobe.core.options import Options, SavedModel, TestSelection, convert_model_name
from hf_attnprobe.core.progress import print_line
from hf_attnprobe.data.columns import IMAGE_COLUMNS, read_column
from hf_attnprobe.data.examples import (
    OpenedSplit,
    describe_text_columns,
    list_further_columns,
    read_examples,
)
from hf_attnprobe.data.instances import find_instance_column, has_instances, iterate_bags
from hf_attnprobe.data.model_inputs import TOKENIZER_COLUMNS
from hf_attnprobe.data.specs import Answers, Data, make_answers, make_data
from hf_attnprobe.faithfulness.rankings import FITTED_MAP_RANKING
from hf_attnprobe.faithfulness.registry import load_tests, resolve_faithfulness_tests
from hf_attnprobe.inference.answers import prepare_prompts
from hf_attnprobe.inference.batching import collate, parse_bytes
from hf_attnprobe.inference.choices import compute_unknown_share, encode_examples
from hf_attnprobe.inference.encoding import (
    ImageReader,
    InputReader,
    Text,
    TokenizedSplit,
    has_rationales,
)
from hf_attnprobe.inference.instances import InstanceReader
from hf_attnprobe.inference.labels import compute_label_spread
from hf_attnprobe.inference.model_inputs import choose_model_inputs, list_missing_inputs
from hf_attnprobe.inference.word_boundaries import explain_token_level
from hf_attnprobe.models.attention_classifier import AttentionClassifierConfig
from hf_attnprobe.protocol import ALL, AttentionModelBase
from hf_attnprobe.reports.detection_limits import read_planted_rows
from hf_attnprobe.reports.first_screen import describe_text_losses
from hf_attnprobe.statistics.sampling import draw_sample, list_share_indices
from hf_attnprobe.storage.folders import check_same_settings
from hf_attnprobe.storage.provenance import (
    AUDIT_FILE,
    FITTED_MAP_KEY,
    PERFORMANCE_OPTIONS,
    collect_settings,
    get_recorded_name,
)


if TYPE_CHECKING:
    import datasets


logger = logging.getLogger(__name__)

MAP_TESTS = ("exchange", "scale", "erasure", "sources")
"""Names of the tests that compare a fitted attention map with attention."""

MAX_BATCH_NUMBERS = 2**23
"""Largest number of values in a batch of several bags. In float64, these values take 64 MiB."""
MAP_FINGERPRINT_KEY = "map_fingerprint"
"""Key in an audit's identity for the hash of a fitted map whose scores are in the rows."""
NEW_MAP_ADVICE = (
    "The saved rows do not contain the scores of this map, or contain those of another map. Choose "
    "a new --output-dir for this audit."
)
"""End of the error message if an output folder belongs to an audit with another map or without one."""

N_WARM_UP_TEXTS = 21
"""Number of warm-up texts, on which ``--estimate`` measures the duration of the tests."""
N_WARM_UP_PROMPTS = 2
"""Number of warm-up prompts, on which ``--estimate`` measures the tests of a language model."""


@dataclass(frozen=True)
class AuditRequest:
    """Audit arguments, as the user passed them; see :func:`hf_attnprobe.audit`.

    Attributes:
        model: The model.
        dataset: The data set.
        tests: Test names or test options; None for all tests that suit the model and the data.
        options: Audit options.
        tokenizer: Tokenizer for a model that is passed as an object.
        scores: Scores from another explainer, to be evaluated; None in an ordinary audit.
        leaves_out_unsupported: Whether requested tests that the model does not support are left out,
            instead of raising an error.
    """

    model: ModelLike
    dataset: Any
    tests: TestSelection | None = None
    options: AuditOptions = AuditOptions()
    tokenizer: PreTrainedTokenizerBase | None = None
    scores: Any = None
    leaves_out_unsupported: bool = False


@dataclass(frozen=True)
class LoadedAudit:
    """Loaded model and data, before tests, sites and texts are selected.

    Attributes:
        request: The audit's arguments.
        audited_model: The model with its adapter and tokenizer.
        data: The data specification.
        examples: All examples in the split.
        options: Audit options, adapted to the model.
        requested_tests: Options for the requested tests, by test name.
        user_scores: Scores from another explainer, by text id or as a list in text order; None for
            an ordinary audit.
        label_spread: Standard deviation of numeric labels; None for labels that are not numbers.
        share: Share index and share count; None to audit all texts.
        level_note: Reason why tokens are explained, although the user did not choose this; None if
            words are explained, or if the user chose tokens.
        attention_map: Fitted attention map of the model; None for no map.
    """

    request: AuditRequest
    audited_model: AuditedModel
    data: Data
    examples: "datasets.Dataset"
    options: AuditOptions
    requested_tests: Mapping[str, Options]
    user_scores: Any
    label_spread: float | None
    share: tuple[int, int] | None
    level_note: str | None = None
    attention_map: AttentionMap | None = None


@dataclass(frozen=True)
class SelectedAudit:
    """Selected tests, sites and texts.

    Attributes:
        selection: The tests and sites.
        identity: Record that identifies the audit's rows.
        examples: The selected examples. They include examples from other shares if a test needs the
            language model's answers to them.
        n_texts: Number of texts in the full audit.
        map_ranking: Name of the ranking that belongs to the fitted attention map; empty without a map.
        is_warm_up: Whether only a few texts are selected, to estimate the duration.
    """

    selection: AuditSelection
    identity: dict[str, Any]
    examples: "datasets.Dataset"
    n_texts: int
    map_ranking: str = ""
    is_warm_up: bool = False


@dataclass(frozen=True)
class PreparedAudit:
    """An audit that is loaded, selected and encoded, and ready for its first test.

    Attributes:
        audited_model: The model with its adapter and tokenizer.
        options: Audit options, adapted to the model.
        selection: The tests and sites.
        examples: All examples in the split; for a language model, the selected prompts with their
            answers.
        data: The data specification.
        identity: Record that identifies the audit's rows.
        tokenized: The selected texts as tokens.
        n_texts: Number of texts in the full audit.
        extra_provenance: Entries of the report's provenance in addition to the identity.
    """

    audited_model: AuditedModel
    options: AuditOptions
    selection: AuditSelection
    examples: "datasets.Dataset"
    data: Data
    identity: dict[str, Any]
    tokenized: TokenizedSplit
    n_texts: int
    extra_provenance: dict[str, Any]

    def make_runner(
        self, texts: Sequence[Text], folder: Path, progress: AuditProgress
    ) -> AuditRunner:
        """Make the test runner for some of the texts.

        Args:
            texts: The texts on which the tests run.
            folder: Folder for the rows.
            progress: Finished and planned work, and the progress bar.
        """
        return AuditRunner(
            adapter=self.audited_model.adapter,
            texts=texts,
            options=self.selection.tests,
            seed=self.options.seed,
            pad_token_id=self.audited_model.tokenizer.pad_token_id or 0,
            memory_budget=parse_bytes(self.options.memory_budget),
            batch_size=self.options.batch_size,
            folder=folder,
            progress=progress,
        )

    def run_preflight_checks(self, texts: Sequence[Text]) -> None:
        """Check on a few texts that the model and all tests can run.

        Args:
            texts: The audited texts.

        Raises:
            AttnProbeError: If the model or a test would fail during the audit.
        """
        run_preflight_checks(
            self.audited_model.adapter,
            texts,
            self.selection.tests,
            self.selection.sites,
            tokenizer=self.audited_model.tokenizer,
            has_rationales=self.selection.has_rationales,
            target=self.options.target,
        )

    @contextlib.contextmanager
    def adapt_to_machine(self) -> Iterator[None]:
        """Set a suitable thread count, and turn memory errors into one-line messages."""
        with (
            limit_threads(self.audited_model.adapter.model),
            convert_memory_errors("the audit"),
        ):
            yield


def prepare_audit(
    request: AuditRequest,
    *,
    folder: str | Path | None = None,
    reference_examples: "datasets.Dataset | None" = None,
    model_tests: Collection[str] | None = None,
    is_warm_up: bool = False,
    show_progress: bool = False,
    leaves_out_undefined: bool = False,
    check_text_count: Callable[[int], None] | None = None,
) -> PreparedAudit:
    """Load the model and the data, select tests and texts, and encode the texts.

    Args:
        request: The audit's arguments.
        folder: Output folder, which this run has locked. It also caches a language model's
            generated answers. None for no folder.
        reference_examples: Prompts with another model's generated answers. They are explained
            instead of answers that this model would generate. None in an ordinary audit.
        model_tests: Names of the only tests that run, and only for the model's attention as a whole;
            None in an ordinary audit.
        is_warm_up: Whether to select only a few texts, to estimate the audit's duration.
        show_progress: Whether to display how many prompts have been answered.
        leaves_out_undefined: Whether to leave out prompts for which the logits of a language model
            are NaN or infinite. Every prompt is checked, which takes a forward pass each.
        check_text_count: Function that raises an error if the number of selected texts is too small.
            It is called before a language model generates answers. None for no check.

    Returns:
        The audit, ready for its first test.

    Raises:
        AttnProbeError: If the request is invalid, or if ``folder`` contains another audit's rows.
        UndefinedLogitsError: If the logits for a prompt are NaN or infinite.
    """
    loaded = load_audit(request, show_progress=show_progress)
    selected = select_audit(loaded, is_warm_up=is_warm_up)
    if check_text_count is not None:
        check_text_count(selected.n_texts)
    if model_tests is not None:
        selection = restrict_to_model(selected.selection, model_tests)
        selected = replace(selected, selection=selection)
    cache_file = None
    if folder is not None:
        # Fail before a language model spends time on answers.
        check_same_settings(
            Path(folder) / AUDIT_FILE, selected.identity, {MAP_FINGERPRINT_KEY: NEW_MAP_ADVICE}
        )
        cache_file = Path(folder) / f".answers-{hash_json(selected.identity)}.jsonl"
    return encode_audit(
        loaded,
        selected,
        cache_file=cache_file,
        reference_examples=reference_examples,
        show_progress=show_progress,
        leaves_out_undefined=leaves_out_undefined,
    )


# --- Step 1: load --------------------------------------------------------------------------------


def load_audit(request: AuditRequest, *, show_progress: bool = False) -> LoadedAudit:
    """Load the model and the data for an audit, and adapt the options to the model.

    Mistakes that can be found without the model are reported before it is loaded.

    Args:
        request: The audit's arguments.
        show_progress: Whether to print a line before a language model is loaded.

    Returns:
        The loaded model and data.

    Raises:
        AttnProbeError: If the model or the data cannot be loaded, or if they do not fit together.
    """
    options = request.options
    parse_bytes(options.memory_budget)
    share = parse_share(options)
    model = convert_model_name(request.model)
    attention_map = None
    if options.map is not None:
        token = model.token if isinstance(model, SavedModel) else None
        attention_map = AttentionMap.from_pretrained(options.map, token=token)
    data = _adapt_data(model, make_data(request.dataset))
    has_answers = isinstance(data, Answers)
    requested_tests = resolve_faithfulness_tests(request.tests, answers=has_answers)
    opened = None if isinstance(data, Answers) else data.open_split(seed=options.seed)
    examples = data.load_examples(seed=options.seed) if opened is None else read_examples(opened)
    label_spread = compute_label_spread(examples)
    user_scores = request.scores
    if isinstance(user_scores, str | Path | Mapping):
        user_scores = read_scores(user_scores, ())
    elif user_scores is not None and share is not None:
        raise AttnProbeError(
            "a list of scores cannot be combined with --share, because it does not name its texts. "
            "Pass a score file, or a mapping from text ids to scores."
        )
    elif user_scores is not None:
        user_scores = list_score_entries(user_scores)
    if show_progress and has_answers and isinstance(model, SavedModel):
        print_line(f"loading {model.model}")
    audited_model = load_audited_model(
        model,
        request.tokenizer,
        options,
        get_process_state().device,
        spread=label_spread,
        unit=data.units if isinstance(data, Answers) else None,
        examples=examples,
    )
    _set_unit(audited_model, data)
    if attention_map is not None:
        attention_map.check_model(audited_model.adapter)
    if opened is not None:
        model_inputs = _choose_model_inputs(audited_model, opened)
        if model_inputs:
            examples = read_examples(opened, model_inputs=model_inputs)
    adapter = audited_model.adapter
    if has_instances(examples):
        _limit_bag_batches(adapter, examples, options.batch_size)
    max_batch_size = adapter.max_batch_size or options.batch_size
    max_batch_size *= adapter.n_parallel_batches
    options = replace(options, batch_size=min(options.batch_size, max_batch_size))
    # User scores are compared with the model's overall attention, unless heads are named.
    names_heads = options.heads is not None or options.layers is not None
    if request.scores is not None and len(adapter.sites()) > 1 and not names_heads:
        options = replace(options, single_heads=False)
    loaded = LoadedAudit(
        request=replace(request, model=model),
        audited_model=audited_model,
        data=data,
        examples=examples,
        options=options,
        requested_tests=requested_tests,
        user_scores=user_scores,
        label_spread=label_spread,
        share=share,
        attention_map=attention_map,
    )
    return _choose_level(loaded)


def _choose_level(
    loaded: LoadedAudit,
) -> LoadedAudit:
    """Explain tokens instead of words if spaces do not separate the words of the texts.

    Args:
        loaded: The loaded model and data. If the user chose a level or an adapter, or if the texts
            have enough words, nothing is changed.

    Returns:
        The audit, which explains tokens if its `level_note` is not None.
    """
    audited_model = loaded.audited_model
    adapter, tokenizer = audited_model.adapter, audited_model.tokenizer
    is_users_adapter = adapter is loaded.request.model
    if not isinstance(adapter, TransformerAdapter) or is_users_adapter:
        return loaded
    # A tag belongs to a word.
    has_tags = adapter.prediction.kind == "tags"
    if isinstance(tokenizer, InputReader) or has_tags or loaded.options.level is not None:
        return loaded
    note = explain_token_level(tokenizer, loaded.examples)
    if note is None:
        return loaded
    logger.warning("%s", note)
    adapter.level = adapter.unit = "token"
    if audited_model.make_float32_adapter is not None:
        make_adapter: Callable[..., AttentionModelBase] = audited_model.make_float32_adapter
        make_float32_adapter = partial(make_adapter, level="token")
        audited_model = replace(audited_model, make_float32_adapter=make_float32_adapter)
    options = replace(loaded.options, level="token")
    return replace(loaded, audited_model=audited_model, options=options, level_note=note)


def _set_unit(audited_model: AuditedModel, data: Data) -> None:
    """Store the user's name of an instance, such as "patch", in the adapter.

    Raises:
        AttnProbeError: If the model reads texts or images, which have units of their own.
    """
    if data.unit is None:
        return
    if not isinstance(audited_model.tokenizer, InstanceReader):
        raise AttnProbeError(
            f"--unit {data.unit!r} names an instance of a bag, but this model reads texts or images. "
            "Leave out --unit."
        )
    if not data.unit.isalpha() or not data.unit.islower():
        raise AttnProbeError(
            f"--unit must be one noun in lower case and in the singular, such as patch, got "
            f"{data.unit!r}"
        )
    audited_model.adapter.unit = data.unit


def _limit_bag_batches(
    adapter: AttentionModelBase, examples: "datasets.Dataset", batch_size: int
) -> None:
    """Limit the adapter's batch size, so that a batch of large bags does not take much memory.

    Args:
        adapter: The model; its attribute ``max_batch_size`` is set.
        examples: Examples with a column of bags.
        batch_size: Largest batch size in the audit.
    """
    column = find_instance_column(examples.column_names)
    assert column is not None
    shapes = [np.shape(bag) for bag in iterate_bags(examples, column)]
    limit = max(1, MAX_BATCH_NUMBERS // max(math.prod(shape) for shape in shapes))
    max_edits = adapter.max_unit_edits
    if max_edits is not None and max(shape[0] for shape in shapes) > max_edits:
        # The instances are edited in groups, which differ between bags.
        limit = 1
    # An adapter of the user may have a smaller limit. An earlier audit may have set another limit.
    limit = min(limit, type(adapter).max_batch_size or limit)
    adapter.max_batch_size = limit if limit < batch_size else type(adapter).max_batch_size


def _choose_model_inputs(audited_model: AuditedModel, opened: OpenedSplit) -> dict[str, str]:
    """Choose the columns that a model reads in addition to its texts, by input name.

    Raises:
        AttnProbeError: If the model reads a column that an audit cannot pass.
    """
    adapter = audited_model.adapter
    if isinstance(audited_model.tokenizer, InstanceReader):
        # The bags are the model's only input, and they are read with the labels.
        return {}
    columns = list_further_columns(opened)
    reason = None
    if isinstance(getattr(adapter.model, "config", None), AttentionClassifierConfig):
        # The other parameters of its `forward` method, such as `features`, are not read from data
        # with texts.
        columns = [name for name in columns if name in TOKENIZER_COLUMNS]
    elif not isinstance(adapter, TransformerAdapter):
        reason = "this type of model only reads texts"
    elif isinstance(audited_model.tokenizer, ImageReader):
        # The images are the model's main input.
        columns = [name for name in columns if name not in IMAGE_COLUMNS]
        reason = "a model for images only reads pixels"
    elif adapter.prediction.kind == "choice":
        reason = "a text with several choices has no further inputs"
    model_inputs = choose_model_inputs(adapter.model, columns, reason)
    missing_inputs = list_missing_inputs(adapter.model, model_inputs)
    if missing_inputs:
        logger.warning(
            "%s also reads %s, but the data has no such column, so the model uses its default values",
            type(adapter.model).__name__,
            ", ".join(missing_inputs),
        )
    return model_inputs


def _adapt_data(model: Any, data: Data) -> Data:
    """Adapt the data to the type of the model.

    For a language model, the data is converted to passages with questions. For any other model, it
    is returned unchanged.

    Raises:
        AttnProbeError: If the data has passages with questions, but the model is no language model.
    """
    if is_language_model(model):
        return make_answers(data)
    if isinstance(data, Answers):
        raise AttnProbeError(
            "Answers(...) can be used only with a language model (…ForCausalLM). Use Data(...) for "
            "another type of model."
        )
    return data


# --- Step 2: select ------------------------------------------------------------------------------


def select_audit(loaded: LoadedAudit, *, is_warm_up: bool = False) -> SelectedAudit:
    """Select tests, sites and texts for an audit, and build its identity record.

    Args:
        loaded: The loaded model and data.
        is_warm_up: Whether to select only a few texts, to estimate the audit's duration.

    Returns:
        The selected tests, sites and texts.

    Raises:
        AttnProbeError: If a requested test or head does not suit the model, or if a share has no
            texts.
    """
    audited_model, options = loaded.audited_model, loaded.options
    reads_instances = isinstance(audited_model.tokenizer, InstanceReader)
    has_usable_rationales = has_rationales(loaded.examples, audited_model.adapter.unit) and (
        audited_model.tokenizer.is_fast or reads_instances
    )
    selection = select_tests_and_sites(
        audited_model.adapter,
        loaded.requested_tests,
        has_usable_rationales,
        options,
        leaves_out_unsupported=loaded.request.leaves_out_unsupported,
    )
    for test, reason in selection.left_out.items():
        logger.warning("the test %s is left out: %s", test, reason)
    identity = build_identity(audited_model, loaded.examples, loaded.data, options, selection)
    if loaded.user_scores is not None:
        identity["scores_fingerprint"] = compute_score_fingerprint(loaded.user_scores)
    map_ranking = ""
    if loaded.attention_map is not None:
        map_ranking = _select_map_ranking(audited_model.adapter, loaded.attention_map, selection)
        if map_ranking == FITTED_MAP_RANKING:
            parts = loaded.attention_map.to_json()
            identity[MAP_FINGERPRINT_KEY] = hash_json([parts["ranking"], parts["heads"]])
    # Fail now if the detection limits belong to another model.
    if options.limits is not None:
        read_planted_rows(options.limits, identity)

    examples = _limit_examples(loaded.examples, loaded.data.test_limit)
    share_examples = _select_share(examples, loaded.share)
    n_texts = len(share_examples)
    has_answers = isinstance(loaded.data, Answers)
    # The reference head outputs come from answered prompts, including prompts of other shares.
    needs_all_answers = has_answers and is_needed("uses_reference", selection.tests)
    if is_warm_up or not needs_all_answers:
        examples = share_examples
    if is_warm_up:
        examples = _limit_examples(examples, N_WARM_UP_PROMPTS if has_answers else N_WARM_UP_TEXTS)
    return SelectedAudit(selection, identity, examples, n_texts, map_ranking, is_warm_up)


def _select_map_ranking(
    adapter: AttentionModelBase, attention_map: AttentionMap, selection: AuditSelection
) -> str:
    """Return the name of the ranking that belongs to a fitted map, and let the tests measure it.

    Raises:
        AttnProbeError: If the audit does not test the attention as a whole, or runs no test that
            compares rankings.
    """
    site, _ = choose_model_attention(adapter)
    tested_sites = [(layer, head) for layer, head, _ in (*selection.heads, *selection.groups)]
    if (site.layer, site.head) not in tested_sites:
        raise AttnProbeError(
            "--map concerns the attention of the whole model, but this audit only tests some heads. "
            "Leave out --layers, --heads and --no-groups, or leave out --map."
        )
    if not set(MAP_TESTS) & set(selection.tests):
        raise AttnProbeError(
            f"--map needs one of the tests {', '.join(MAP_TESTS)}, which compare it with attention, got "
            f"{', '.join(selection.tests)}. Add one of them to --tests, or leave out --map."
        )
    return attention_map.find_measured_ranking(adapter, site)


def _limit_examples(examples: "datasets.Dataset", limit: int | None) -> "datasets.Dataset":
    """Draw at most ``limit`` examples by id hash, or return all examples if it is None."""
    if limit is None:
        return examples
    ids = read_column(examples, "example_id")
    return examples.select(draw_sample(range(len(ids)), ids, limit))


def _select_share(
    examples: "datasets.Dataset", share: tuple[int, int] | None
) -> "datasets.Dataset":
    """Select the examples that belong to a share, or return all examples if it is None."""
    if share is None:
        return examples
    share_examples = examples.select(list_share_indices(read_column(examples, "example_id"), share))
    if not len(share_examples):
        raise AttnProbeError(
            f"share {share[0]}/{share[1]} is empty, because the data set has only "
            f"{format_count(len(examples), 'text')}. Use fewer shares."
        )
    return share_examples


# --- Step 3: encode ------------------------------------------------------------------------------


def encode_audit(
    loaded: LoadedAudit,
    selected: SelectedAudit,
    *,
    cache_file: Path | None = None,
    reference_examples: "datasets.Dataset | None" = None,
    show_progress: bool = False,
    leaves_out_undefined: bool = False,
) -> PreparedAudit:
    """Encode the selected texts, and compute the quantities that tests need in advance.

    A language model generates its answers in this step.

    Args:
        loaded: The loaded model and data.
        selected: The selected tests, sites and texts.
        cache_file: File that caches generated answers; None for no cache.
        reference_examples: Prompts with another model's answers, which are explained instead of
            this model's own answers; None in an ordinary audit.
        show_progress: Whether to display how many prompts have been answered.
        leaves_out_undefined: Whether to leave out prompts for which the logits of a language model
            are NaN or infinite.

    Returns:
        The audit, ready for its first test.

    Raises:
        AttnProbeError: If the texts cannot be encoded or do not suit the options.
    """
    audited_model, data, options = loaded.audited_model, loaded.data, loaded.options
    adapter, tokenizer = audited_model.adapter, audited_model.tokenizer
    selection = selected.selection
    split_examples, selected_examples = loaded.examples, selected.examples
    if isinstance(data, Answers):
        # A model that generates text reads no images.
        assert not isinstance(tokenizer, InputReader)
        selected_examples = prepare_prompts(
            selected_examples,
            data,
            tokenizer,
            adapter,
            get_user_model(audited_model),
            reference_examples=reference_examples,
            cache_file=cache_file,
            show_progress=show_progress,
        )
        if leaves_out_undefined:
            selected_examples = _leave_out_undefined_prompts(audited_model, selected_examples)
        split_examples = selected_examples
    tokenized = encode_examples(
        tokenizer,
        _select_share(selected_examples, loaded.share),
        adapter,
        truncate=options.truncate,
        segment=options.segment,
    )
    _warn_about_texts(tokenized)
    check_number_unit(audited_model)
    if options.screen is not None and not selected.is_warm_up:
        check_both_halves(text.example_id for text in tokenized.texts)
    if loaded.user_scores is not None:
        model_groups = [group for group in selection.groups if group.layer == group.head == ALL]
        selection = replace(selection, groups=model_groups)
        tokenized = _attach_user_scores(
            tokenized, loaded.user_scores, audited_model, split_examples
        )
    with limit_threads(adapter.model):
        set_reference(adapter, tokenizer, split_examples, selection.tests)
        set_sharpness(adapter, tokenizer, split_examples)
        if "knockout" in selection.tests:
            set_noise_floor(adapter, tokenizer, split_examples)
        set_donors(audited_model, split_examples, selection, options.seed)
        set_unit_donors(audited_model, split_examples, selection, options.seed)
    return PreparedAudit(
        audited_model=audited_model,
        options=options,
        selection=selection,
        examples=split_examples,
        data=data,
        identity=selected.identity,
        tokenized=tokenized,
        n_texts=selected.n_texts,
        extra_provenance={
            **_build_extra_provenance(loaded, tokenized, split_examples),
            **_describe_fitted_map(loaded, selected.map_ranking),
        },
    )


def _count_truncated(tokenized: TokenizedSplit) -> dict[str, int]:
    """Return the counts of truncated texts and of their tokens, as entries of the provenance."""
    counts = {"truncated": tokenized.n_truncated}
    if tokenized.n_truncated and tokenized.max_length is not None:
        counts["truncated_tokens"] = tokenized.n_tokens_before_cut
        counts["truncated_tokens_read"] = tokenized.n_tokens_after_cut
        counts["max_length"] = tokenized.max_length
    return counts


def _warn_about_texts(tokenized: TokenizedSplit) -> None:
    """Log how many texts are left out because they are blank, and how many are cut."""
    counts = {"skipped_empty": tokenized.n_empty, **_count_truncated(tokenized)}
    for sentence in describe_text_losses(counts, len(tokenized.texts)):
        logger.warning("%s", sentence)
    if tokenized.n_half_empty:
        logger.warning(
            "%s with one blank text: the model reads it as an empty text",
            format_count(tokenized.n_half_empty, "pair"),
        )


def _leave_out_undefined_prompts(
    audited_model: AuditedModel, examples: "datasets.Dataset"
) -> "datasets.Dataset":
    """Leave out the prompts for which the logits of a language model are NaN or infinite.

    Args:
        audited_model: The language model with its tokenizer.
        examples: Rows from :func:`~hf_attnprobe.inference.answers.prepare_prompts`.

    Returns:
        The remaining rows. A warning names each row that is left out.

    Raises:
        AttnProbeError: If no prompt remains.
    """
    adapter, tokenizer = audited_model.adapter, audited_model.tokenizer
    defined_rows = []
    for row, text in enumerate(encode_examples(tokenizer, examples, adapter).texts):
        try:
            collate(adapter, [text], tokenizer.pad_token_id or 0)
            defined_rows.append(row)
        except UndefinedLogitsError:
            logger.warning(
                "the logits for text %d are NaN or infinite, so this prompt is left out",
                text.example_id,
            )
    if not defined_rows:
        raise AttnProbeError(
            "the logits for every prompt are NaN or infinite. Check the model's weights, or load the "
            "model in another dtype."
        )
    return examples.select(defined_rows)


def _attach_user_scores(
    tokenized: TokenizedSplit,
    scores: Any,
    audited_model: AuditedModel,
    examples: "datasets.Dataset",
) -> TokenizedSplit:
    """Attach another explainer's scores to the units in the encoded texts."""
    tokenizer = audited_model.tokenizer
    if "choices" in examples.column_names:
        raise AttnProbeError(
            "scores can be evaluated for texts, passages, bags and images, but not for texts with "
            "choices"
        )
    scores_by_id = read_scores(scores, [text.example_id for text in tokenized.texts])
    string_by_id = {}
    if "text" in examples.column_names:
        ids, strings = read_column(examples, "example_id"), read_column(examples, "text")
        string_by_id = dict(zip(ids, strings, strict=True))
    texts = attach_scores(
        tokenized.texts, scores_by_id, audited_model.adapter, tokenizer, string_by_id
    )
    return replace(tokenized, texts=texts)


# --- Provenance ----------------------------------------------------------------------------------


def _build_extra_provenance(
    loaded: LoadedAudit, tokenized: TokenizedSplit, examples: "datasets.Dataset"
) -> dict[str, Any]:
    """Build the entries of the report's provenance that are not part of the audit's identity.

    These are counts of available, skipped and cut texts, the standard temperature, the origin of the
    model, the requested settings, the architecture and the share.
    """
    audited_model, options, request = loaded.audited_model, loaded.options, loaded.request
    adapter = audited_model.adapter
    provenance: dict[str, Any] = {
        "n_available": len(loaded.examples),
        "skipped_empty": tokenized.n_empty,
        **_count_truncated(tokenized),
        "sharpness": adapter.sharpness,
        **({"noise_floor": adapter.noise_floor} if adapter.noise_floor else {}),
        "unknown_tokens": compute_unknown_share(tokenized.texts, audited_model.tokenizer),
    }
    is_scaled_by_labels = (
        adapter.prediction.is_number
        and options.scale is None
        and adapter.prediction.scale == loaded.label_spread
    )
    if is_scaled_by_labels:
        provenance["unit_of_number"] = "standard deviations of the labels"
    if loaded.level_note is not None:
        provenance["level_note"] = loaded.level_note
    if audited_model.origin:
        provenance["origin"] = dict(audited_model.origin)
    provenance["text_columns"] = describe_text_columns(examples)
    provenance["asked_for"] = describe_audit_request(
        request.model, loaded.data, loaded.requested_tests, options, request.scores
    )
    provenance |= _describe_architecture(adapter)
    if loaded.share is not None:
        provenance["share"] = loaded.share
    return provenance


def _describe_fitted_map(loaded: LoadedAudit, map_ranking: str) -> dict[str, dict[str, str]]:
    """Return the provenance entry of the fitted attention map; empty without a map."""
    attention_map = loaded.attention_map
    if attention_map is None:
        return {}
    return {
        FITTED_MAP_KEY: {
            "ranking": map_ranking,
            "description": attention_map.description,
            "certificate": attention_map.certificate_text,
        }
    }


def describe_audit_request(
    model: Any,
    data: Data,
    requested_tests: Mapping[str, Options],
    options: AuditOptions,
    scores: Any = None,
) -> dict[str, Any]:
    """Describe all audit settings that differ from the defaults.

    Args:
        model: A saved model, a model name or a loaded model.
        data: The data specification.
        requested_tests: Options for the requested tests, by test name.
        options: Audit options.
        scores: Scores from another explainer; None in an ordinary audit.

    Returns:
        Plain data by command-line flag; see
        :func:`~hf_attnprobe.storage.provenance.collect_settings`.
    """
    has_answers = isinstance(data, Answers)
    default_options = {
        name: test.get_default_options(is_language_model=has_answers)
        for name, test in load_tests().items()
    }
    request = collect_settings(
        model,
        data,
        options,
        requested_tests,
        default_options,
        excluded=("train_limit", *PERFORMANCE_OPTIONS),
    )
    return request if scores is None else {**request, "scores": get_recorded_name(scores)}


def _describe_architecture(adapter: AttentionModelBase) -> dict[str, dict[str, str]]:
    """Return an attention classifier's encoder and attention type; empty for other models.

    Tables of results can be grouped by these two fields.
    """
    config = getattr(adapter.model, "config", None)
    if not isinstance(config, AttentionClassifierConfig):
        return {}
    return {"architecture": {"encoder": config.encoder, "attention": config.attention}}
