"""Prepares an audit: loads and checks model, texts and tests, and identifies them."""

import contextlib
import dataclasses
import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from hf_attnprobe.audits.audited_model import (
    AuditedModel,
    ModelLike,
    check_number_unit,
    is_language_model,
    load_audited_model,
)
from hf_attnprobe.audits.options import AuditOptions, get_share_folder, parse_share
from hf_attnprobe.audits.runner import AuditRunner, Clock
from hf_attnprobe.audits.self_checks import run_preflight_checks
from hf_attnprobe.audits.site_selection import (
    TestSelection,
    check_both_halves,
    check_query,
    select_tests_and_sites,
    list_head_set_names,
)
from hf_attnprobe.audits.user_scores import read_scores, attach_scores
from hf_attnprobe.core.distributed import process_state
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.hardware import one_line_without_memory, suited_threads
from hf_attnprobe.core.options import Asked, Options, SavedModel, as_saved
from hf_attnprobe.core.progress import say
from hf_attnprobe.data.columns import read_column, has_images
from hf_attnprobe.data.examples import describe_text_columns, compute_dataset_fingerprint
from hf_attnprobe.data.specs import Answers, Data, to_answers, to_data
from hf_attnprobe.faithfulness.interchange import collect_donors
from hf_attnprobe.faithfulness.registry import resolve_tests, load_tests
from hf_attnprobe.functional.fingerprint import hash_tensors
from hf_attnprobe.functional.predictions import Prediction
from hf_attnprobe.inference.answers import prepare_prompts
from hf_attnprobe.inference.batching import (
    sort_by_length,
    collate,
    iterate_batches,
    parse_bytes,
    split_for_model,
)
from hf_attnprobe.inference.choices import encode_examples, compute_unknown_share
from hf_attnprobe.inference.encoding import (
    ImageReader,
    Text,
    TokenizedSplit,
    has_rationales,
    get_second_texts,
)
from hf_attnprobe.inference.labels import compute_label_spread
from hf_attnprobe.models.attention_classifier import AttentionClassifierConfig
from hf_attnprobe.protocol import (
    ALL,
    AnswersFromPassage,
    AttentionModelBase,
    Batch,
    HeadOutputs,
)
from hf_attnprobe.reports.detection_limits import spiked_rows
from hf_attnprobe.statistics.sampling import places_in, sample
from hf_attnprobe.storage.answers import AnswerCache
from hf_attnprobe.storage.folders import check_same
from hf_attnprobe.storage.provenance import WITHOUT_EFFECT, asked_for, named


if TYPE_CHECKING:
    import datasets


IGNORED_SETTINGS = ("architectures", "auto_map", "dtype", "torch_dtype")
"""Of a configuration what saving adds; of what kind the weights are, they say."""
ORIGIN_WORDS = ("name", "path", "file", "version")
"""Parts of the names of settings that say where a model is from."""
TOKENIZER_ATTRIBUTES = (
    "model_input_names",
    "model_max_length",
    "padding_side",
    "special_tokens_map",
    "truncation_side",
)


def compute_fingerprints(subject: AuditedModel) -> dict[str, str]:
    """16 hexadecimal digits each of the model's weights, its configuration, its tokenizer.

    They are the same wherever the model was saved, and before and after it was run.
    """
    model = get_user_model(subject)
    return {
        "model_fingerprint": subject.adapter.compute_fingerprint(),
        "configuration_fingerprint": _hash_configuration(model),
        "tokenizer_fingerprint": _hash_tokenizer(subject.tokenizer),
    }


def get_user_model(subject: AuditedModel) -> Any:
    """The model as it was given, whatever its adapter made of it."""
    return getattr(subject.adapter, "user_model", subject.adapter.model)


def _hash_configuration(model: nn.Module) -> str:
    """Fingerprint of the settings, and of buffers that are not saved with the weights."""
    config, saved = getattr(model, "config", None), model.state_dict().keys()
    settings = config.to_dict() if isinstance(config, PreTrainedConfig) else {}
    buffers = {n: b for n, b in model.named_buffers() if n not in saved}
    return _hash_json([_remove_origin_settings(settings), hash_tensors(buffers)])


def _hash_tokenizer(tokenizer: PreTrainedTokenizerBase | ImageReader) -> str:
    if isinstance(tokenizer, ImageReader):
        return _hash_json(_remove_origin_settings(getattr(tokenizer.processor, "to_dict", dict)()))
    if tokenizer.is_fast:
        # what truncates and pads is what the last call asked for
        backend = json.loads(tokenizer.backend_tokenizer.to_str())
        content = {**backend, "truncation": None, "padding": None}
    else:
        content = {
            "vocabulary": tokenizer.get_vocab(),
            **_remove_origin_settings(tokenizer.init_kwargs),
        }
    return _hash_json([content, {name: getattr(tokenizer, name) for name in TOKENIZER_ATTRIBUTES}])


def _remove_origin_settings(settings: Any) -> Any:
    """Nested settings without names, paths and versions."""
    if not isinstance(settings, Mapping):
        return settings
    return {
        str(name): _remove_origin_settings(value)
        for name, value in settings.items()
        if name not in IGNORED_SETTINGS
        and not str(name).startswith("_")
        and not any(word in str(name).split("_") for word in ORIGIN_WORDS)
    }


def _hash_json(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# --- The sample of texts whose head outputs stand in for those of an ablated head ----------------

# Texts, and tokens with padding, of the batch.
MAX_REFERENCE_TEXTS, MAX_REFERENCE_TOKENS = 32, 4096


def _sample_texts(
    adapter: AttentionModelBase,
    tokenizer: PreTrainedTokenizerBase | ImageReader,
    examples: "datasets.Dataset",
    n_texts: int,
) -> list[Text]:
    """Some texts of the whole split, drawn by id.

    So neither a limit, the order of the texts nor the number of processes changes them.
    """
    ids = read_column(examples, "example_id")
    seconds = get_second_texts(examples) or [""] * len(ids)
    strings = zip(read_column(examples, "text"), seconds, strict=True)
    rows = [row for row, pair in enumerate(strings) if "".join(pair).strip()] or [0]
    if has_images(examples):
        rows = list(range(len(ids)))
    rows = sample(rows, [ids[row] for row in rows], n_texts)
    rows = sorted(rows, key=ids.__getitem__)
    return encode_examples(tokenizer, examples.select(rows), adapter).texts


# --- Head outputs of other texts, which replace those of an ablated head -------------------------


N_SHARPNESS_TEXTS, N_DONOR_TEXTS, SAMPLE_BATCH_SIZE = 128, 64, 16
"""Texts by which the standard temperature is found, whose most attended states are exchanged
for those of others, and of a batch of either."""


def _batch_by_length(
    adapter: AttentionModelBase,
    tokenizer: PreTrainedTokenizerBase | ImageReader,
    texts: Sequence[Text],
) -> Iterator[Batch]:
    """The texts in batches, the shortest first."""
    at_once = adapter.max_batch_size or SAMPLE_BATCH_SIZE
    pad_token_id = tokenizer.pad_token_id or 0
    return iterate_batches(adapter, sort_by_length(texts), pad_token_id, at_once)


def set_sharpness(
    adapter: AttentionModelBase,
    tokenizer: PreTrainedTokenizerBase | ImageReader,
    examples: "datasets.Dataset",
) -> None:
    """Finds the model's standard temperature, see :meth:`Observation.apply_standard_temperature`.

    By a sample of the whole split as :func:`_sampled` draws it, so that shares of an audit and
    audits of fewer texts have the same one. Of a language model that answers it is its own.
    """
    if not adapter.lacks(AnswersFromPassage):
        return
    texts = _sample_texts(adapter, tokenizer, examples, N_SHARPNESS_TEXTS)
    probs: list[torch.Tensor] = []
    for batch in _batch_by_length(adapter, tokenizer, texts):
        said = adapter.compute_native_probs(batch)  # which keeps no attention in memory
        said = adapter.observe(batch).probs if said is None else said
        probs += said.detach().cpu()
    of_texts = pad_sequence(probs, batch_first=True)  # of several widths
    adapter.sharpness = adapter.prediction.compute_standard_sharpness(of_texts)


def _is_needed(what: str, chosen: Iterable[str]) -> bool:
    """Whether some chosen test says this of itself, such as ``uses_donors``."""
    return any(getattr(load_tests()[name], what) for name in chosen)


def set_reference(
    adapter: AttentionModelBase,
    tokenizer: PreTrainedTokenizerBase | ImageReader,
    examples: "datasets.Dataset",
    chosen: Iterable[str],
) -> None:
    """Keeps the head outputs of a sample of texts, where a chosen test needs them."""
    if _is_needed("uses_reference", chosen) and adapter.lacks(HeadOutputs) is None:
        texts = _sample_texts(adapter, tokenizer, examples, MAX_REFERENCE_TEXTS)
        n_texts = MAX_REFERENCE_TOKENS // max(text.n_tokens for text in texts)
        batches = [
            collate(adapter, some, tokenizer.pad_token_id or 0)
            for some in split_for_model(adapter, texts[: max(2, n_texts)])
        ]
        adapter.require(HeadOutputs).set_reference(*batches)


def set_donors(
    subject: AuditedModel, examples: "datasets.Dataset", choice: TestSelection, seed: int
) -> None:
    """Keeps the most attended states of a sample of texts, where a chosen test needs them."""
    adapter, tokenizer = subject.adapter, subject.tokenizer
    if not _is_needed("uses_donors", choice.tests):
        return
    texts = _sample_texts(adapter, tokenizer, examples, N_DONOR_TEXTS)
    batches = _batch_by_length(adapter, tokenizer, texts)
    query = choice.sites[0].query
    if query is not None:
        shortest = sort_by_length(texts)[:1]
        batch = collate(adapter, shortest, tokenizer.pad_token_id or 0)
        check_query(adapter.observe(batch), query)
    adapter.donors = collect_donors(adapter, batches, [*choice.sites, *choice.groups], seed)
    decisions = adapter.donors.decisions
    if (decisions == decisions[0]).all():
        logger.warning(
            "interchange has no numbers: all %d texts of its sample are predicted alike, so that "
            "no state of a text predicted otherwise can be exchanged",
            len(texts),
        )


# --- Everything that an audit needs is loaded, encoded and chosen --------------------------------

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PreparedAudit:
    """An audit before its first test: everything is loaded, encoded and chosen.

    Attributes:
        choice: which tests run, and where.
        n_texts: of the whole audit.
        extra_provenance: what the report's provenance says beside settings.
    """

    subject: AuditedModel
    options: AuditOptions
    choice: TestSelection
    examples: "datasets.Dataset"
    data: Data
    identity: dict[str, Any]
    tokenized: TokenizedSplit
    n_texts: int
    extra_provenance: dict[str, Any]

    def sweep(self, texts: Sequence[Text], folder: Path, clock: Clock) -> AuditRunner:
        """The work on some texts, whose rows go to a folder."""
        return AuditRunner(
            adapter=self.subject.adapter,
            texts=texts,
            options=self.choice.tests,
            seed=self.options.seed,
            pad_token_id=self.subject.tokenizer.pad_token_id or 0,
            budget=parse_bytes(self.options.memory_budget),
            batch_size=self.options.batch_size,
            folder=folder,
            clock=clock,
        )

    def rehearse(self, texts: Sequence[Text]) -> None:
        """Tries the model and every test on some texts; see :func:`rehearse`."""
        run_preflight_checks(
            self.subject.adapter,
            texts,
            self.choice.tests,
            self.choice.sites,
            tokenizer=self.subject.tokenizer,
            rationales=self.choice.rationales,
            target=self.options.target,
        )

    @contextlib.contextmanager
    def on_this_machine(self) -> Iterator[None]:
        """Threads as many as help, and one line where there is no memory."""
        with (
            suited_threads(self.subject.adapter.model),
            one_line_without_memory("the audit"),
        ):
            yield


N_WARM_UP_TEXTS, N_WARM_UP_PROMPTS = 21, 2
"""Of a first round; prompts are answered before."""


def prepare_audit(
    model: ModelLike,
    dataset: Any,
    tests: Asked | None,
    options: AuditOptions,
    tokenizer: PreTrainedTokenizerBase | None,
    scores: Any = None,
    *,
    folder: str | Path | None = None,
    told: AnswerCache | None = None,
    is_first_round: bool = False,
    kept: "datasets.Dataset | None" = None,
    shown: bool = False,
) -> PreparedAudit:
    """Loads, encodes and chooses; for the arguments see :func:`audit` and :func:`judge`.

    Args:
        folder: of the output; that of a share is in it.
        told: keeps a language model's answers in the folder.
        is_first_round: whether a few of the texts are enough.
        kept: the examples of another model's audit, whose answers are taken in place of own ones.
        shown: whether a bar says how many prompts are answered.
    """
    parse_bytes(options.memory_budget)  # what is wrong with it is said before anything is loaded
    share = parse_share(options)
    model, data = as_saved(model), to_data(dataset)
    data = _adapt_data(model, data)
    answers = isinstance(data, Answers)
    asked = resolve_tests(tests, answers=answers)
    examples = data.load_examples(seed=options.seed)
    spread = compute_label_spread(examples)
    unit = data.units if isinstance(data, Answers) else None
    device = process_state().device
    given_scores = scores
    if isinstance(scores, str | Path):  # before a model answers
        given_scores = read_scores(scores, ())
    if shown and answers and isinstance(model, SavedModel):
        say(f"loading {model.model}")
    subject = load_audited_model(model, tokenizer, options, device, spread=spread, unit=unit)
    at_once = subject.adapter.max_batch_size or options.batch_size
    at_once *= subject.adapter.n_parallel_batches
    options = replace(options, batch_size=min(options.batch_size, at_once))
    usable = has_rationales(examples, subject.adapter.unit)
    rationales = usable and subject.tokenizer.is_fast
    if scores is not None and len(subject.adapter.sites()) > 1:
        options = replace(options, single_heads=False)  # a ranking beside all attention
    choice = select_tests_and_sites(subject.adapter, asked, rationales, options)
    for name, reason in choice.left_out.items():
        logger.warning("the test %s is left out: %s", name, reason)
    identity = _build_identity(subject, examples, data, options, choice)
    if options.limits is not None:
        spiked_rows(options.limits, identity)
    if folder is not None:
        folder = Path(folder) if share is None else get_share_folder(folder, share)
        check_same(folder / "audit.json", identity)  # before a model answers
        if told is not None:
            told.begin(folder, _hash_json(identity))
    own = _limit_examples(examples, data.test_limit)
    of_share = _select_share(own, share)
    n_texts = len(of_share)
    # the reference is of prompts with answers, those of other shares too
    needs_all = answers and _is_needed("uses_reference", choice.tests)
    if is_first_round or not needs_all:
        own = of_share
    if is_first_round:
        own = _limit_examples(own, N_WARM_UP_PROMPTS if answers else N_WARM_UP_TEXTS)
    if isinstance(data, Answers):
        # of a model that generates text
        assert not isinstance(subject.tokenizer, ImageReader)
        own = examples = prepare_prompts(
            own,
            data,
            subject.tokenizer,
            subject.adapter,
            get_user_model(subject),
            kept=kept,
            told=told,
            shown=shown,
        )
    own = _select_share(own, share)
    tokenized = encode_examples(
        subject.tokenizer,
        own,
        subject.adapter,
        truncate=options.truncate,
        segment=options.segment,
    )
    check_number_unit(subject)
    if options.screen is not None and not is_first_round:
        check_both_halves(text.example_id for text in tokenized.texts)
    if scores is not None:
        choice = replace(
            choice,
            groups=[g for g in choice.groups if g.layer == g.head == ALL],
        )
        tokenized = _attach_user_scores(tokenized, given_scores, subject, examples)
        given = {t.example_id: t.scores for t in tokenized.texts}
        identity["scores_fingerprint"] = _hash_json(given)
    with suited_threads(subject.adapter.model):
        set_reference(subject.adapter, subject.tokenizer, examples, choice.tests)
        set_sharpness(subject.adapter, subject.tokenizer, examples)
        set_donors(subject, examples, choice, options.seed)
    besides: dict[str, Any] = {
        "skipped_empty": tokenized.n_empty,
        "truncated": tokenized.n_truncated,
        "sharpness": subject.adapter.sharpness,
        "unknown_tokens": compute_unknown_share(tokenized.texts, subject.tokenizer),
        **_describe_number_unit(subject.adapter.prediction, spread, options),
        **({"origin": dict(subject.origin)} if subject.origin else {}),
        "text_columns": describe_text_columns(examples),
        "asked_for": describe_audit_request(model, data, asked, options, scores),
        **_describe_architecture(subject.adapter),
        **({} if share is None else {"share": share}),
    }
    return PreparedAudit(
        subject=subject,
        options=options,
        choice=choice,
        examples=examples,
        data=data,
        identity=identity,
        tokenized=tokenized,
        n_texts=n_texts,
        extra_provenance=besides,
    )


def _select_share(examples: "datasets.Dataset", share: tuple[int, int] | None) -> "datasets.Dataset":
    """The texts of a share; all where there is none."""
    if share is None:
        return examples
    own = examples.select(places_in(read_column(examples, "example_id"), share))
    if not len(own):
        raise AttnProbeError(
            f"expected texts in share {share[0]}/{share[1]}, got none of {len(examples)}; divide "
            "them into fewer shares"
        )
    return own


def _adapt_data(model: Any, data: Data) -> Data:
    """The data as the model reads it: passages with questions for a language model.

    Raises:
        AttnProbeError: such data for another model.
    """
    if is_language_model(model):
        return to_answers(data)
    if isinstance(data, Answers):
        raise AttnProbeError(
            "expected a language model (…ForCausalLM) for Answers, the model is another; give "
            "the texts that it predicts as Data(…)"
        )
    return data


def describe_audit_request(
    model: Any,
    data: Data,
    asked: Mapping[str, Options],
    options: AuditOptions,
    scores: Any = None,
) -> dict[str, Any]:
    """What an audit was asked beyond the defaults; see :func:`~hf_attnprobe.storage.provenance.asked_for`."""
    answers = isinstance(data, Answers)
    usual = {name: test.default_options(answers=answers) for name, test in load_tests().items()}
    leave_out = ("train_limit", *WITHOUT_EFFECT)
    said = asked_for(model, data, options, asked, usual, leave_out=leave_out)
    return said if scores is None else {**said, "scores": named(scores)}


def _describe_architecture(adapter: AttentionModelBase) -> dict[str, dict[str, str]]:
    """Fields of an attention classifier by which the papers' tables are divided."""
    config = getattr(adapter.model, "config", None)
    if not isinstance(config, AttentionClassifierConfig):
        return {}
    return {
        "architecture": {
            "encoder": config.encoder,
            "attention": config.attention,
        }
    }


def _describe_number_unit(
    prediction: Prediction, spread: float | None, options: AuditOptions
) -> dict[str, str]:
    """The unit of changes of a predicted number, unless it was given."""
    by_labels = options.scale is None and prediction.scale == spread
    if not (prediction.is_number and by_labels):
        return {}
    return {"unit_of_number": "standard deviations of the labels"}


def _attach_user_scores(
    tokenized: TokenizedSplit,
    scores: Any,
    subject: AuditedModel,
    examples: "datasets.Dataset",
) -> TokenizedSplit:
    """The texts with the scores that somebody gave their units."""
    if isinstance(subject.tokenizer, ImageReader) or "choices" in examples.column_names:
        raise AttnProbeError(
            "expected a classifier of texts or a language model, to judge scores of their units"
        )
    given = read_scores(scores, [text.example_id for text in tokenized.texts])
    strings = {}
    if "text" in examples.column_names:
        ids, texts = (
            read_column(examples, "example_id"),
            read_column(examples, "text"),
        )
        strings = dict(zip(ids, texts, strict=True))
    aligned = attach_scores(tokenized.texts, given, subject.adapter, subject.tokenizer, strings)
    return replace(tokenized, texts=aligned)


def _build_identity(
    subject: AuditedModel,
    examples: "datasets.Dataset",
    data: Data,
    options: AuditOptions,
    choice: TestSelection,
) -> dict[str, Any]:
    """Identifies what the rows of a folder belong to."""
    screen: Any = options.screen
    if screen is not None:  # other texts may put other heads first
        screen = [screen, data.test_limit, "crossed"]
    where = {
        "layers": options.layers,
        "heads": options.heads,
        "query": options.query,
        "screen": screen,
    }
    identity = {
        **compute_fingerprints(subject),
        "data_fingerprint": compute_dataset_fingerprint(examples),
        "seed": options.seed,
        "options": _list_recorded_options({**choice.asked, **choice.tests}),
        "sites": where,
        "single_heads": options.single_heads,
        "groups": options.groups,
        "head_sets": list_head_set_names(subject.adapter),
        "level": options.level or "default",
        "truncate": options.truncate,
        "dtype": options.dtype or "default",
        "prediction": dataclasses.asdict(subject.adapter.prediction),
    }
    if isinstance(data, Answers):
        identity["answers"] = {
            "units": data.units,
            "rows": options.rows,
            "template": [
                data.template,
                getattr(subject.tokenizer, "chat_template", None),
            ],
            "max_new_tokens": data.max_new_tokens,
        }
    if options.segment is not None:  # folders from before pairs have none
        identity["segment"] = options.segment
    return identity


def _list_recorded_options(given: Mapping[str, Options]) -> dict[str, dict[str, Any]]:
    """The options of all tests, so that a test that is added later has the same.

    Of installed tests only those that are not the defaults, since one may be installed
    between two runs.
    """
    recorded = {}
    for name, test in load_tests().items():
        options = given.get(name, test.options())
        built_in = test.function.__module__.startswith("hf_attnprobe.")
        values = dataclasses.asdict(options)
        if values and (built_in or options != test.options()):
            recorded[name] = values
    return recorded


def _limit_examples(examples: "datasets.Dataset", limit: int | None) -> "datasets.Dataset":
    if limit is None:
        return examples
    ids = read_column(examples, "example_id")
    return examples.select(sample(range(len(ids)), ids, limit))
