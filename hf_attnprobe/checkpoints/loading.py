"""Loads a model as the class its configuration names; every weight must be found and used.

The model that is meant, or none: Transformers itself would draw missing weights at random and make
an empty tokenizer where its files are missing. Adapters of peft are merged, so nothing above knows
of them.
"""

import json
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import torch
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import find_adapter_config_file, is_peft_available

from hf_attnprobe.checkpoints.origins import (
    CONFIGS,
    Origin,
    check_adapter_is_data,
    check_names_no_code,
    check_weights_are_data,
    first_line,
    origin_of,
)
from hf_attnprobe.checkpoints.records import check_whole
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.serialization import in_short
from hf_attnprobe.models.attention_classifier import (
    AttentionClassifierConfig,
    AttentionClassifierForSequenceClassification,
)


MOST_LABELS = 1_000_000
"""Transformers names every label when it reads a configuration: 10^12 take for ever."""
MOST_LAYERS = 2_000
"""They are made one by one, before any weight is looked for; the deepest models have 1,000."""


def load_config(origin: Origin, **labels: Any) -> PreTrainedConfig:
    """The configuration of a checkpoint.

    Args:
        labels: ``id2label`` and ``label2id``, in place of the checkpoint's.

    Raises:
        AttnProbeError: there is none, one of its values is of the wrong type or range,
            or names code.
    """
    with origin.reported():
        values, _ = PreTrainedConfig.get_config_dict(origin.name, **origin.loading)
        values = dict(values)
    check_values(values, origin.name)
    check_names_no_code(origin, values)
    with origin.reported():
        # whose revision it is, the user says: `place` holds it
        return AutoConfig.from_pretrained(  # nosec B615
            origin.name,
            trust_remote_code=origin.trust_remote_code,
            return_dict=True,  # adapters read what a model returns by its names
            **origin.loading,
            **labels,
        )


def check_values(values: Mapping[str, Any], name: str) -> None:
    """Checks configuration values that Transformers takes for ever to read, or misreads.

    Args:
        values: of a config.json.
        name: of the model, for the error.

    Raises:
        AttnProbeError: too many labels or layers, or names of labels that are not for the
            numbers from 0 on.
    """
    for key, value in values.items():
        is_layers = key.endswith(("layer", "layers"))
        most = MOST_LABELS if key == "num_labels" else MOST_LAYERS
        if isinstance(value, int) and value > most and (is_layers or key == "num_labels"):
            raise _unusable(key, f"a whole number up to {most:,}", value, name)
    names = values.get("id2label")
    if isinstance(names, dict) and set(names) != set(map(str, range(len(names)))):
        expected = "names for the numbers from 0 on"
        raise _unusable("id2label", expected, names, name)


def _unusable(key: str, expected: str, value: Any, name: str) -> AttnProbeError:
    return AttnProbeError(
        f"expected {expected} for {key} in the configuration of {name}, got "
        f"{in_short(value)}; correct its config.json"
    )


# --- What a checkpoint predicts, by its head, and whether the head's weights are there -----------
# The configuration names the class that was saved. Loaded as another class the weights of
# the head may fit all the same, or be drawn at random, and nothing would say so.


class Head(NamedTuple):
    """A kind of head.

    Attributes:
        task: its name, as pipelines and the Hub call it.
        suffix: how the names of such classes end.
        auto: the class of Transformers that loads it.
    """

    task: str
    suffix: str
    auto: Any


GENERATION = "text-generation"
"""The task of language models, which answer from passages."""
HEADS = (
    Head(
        "text-classification",
        "ForSequenceClassification",
        AutoModelForSequenceClassification,
    ),
    Head(
        "token-classification",
        "ForTokenClassification",
        AutoModelForTokenClassification,
    ),
    Head(
        "question-answering",
        "ForQuestionAnswering",
        AutoModelForQuestionAnswering,
    ),
    Head("multiple-choice", "ForMultipleChoice", AutoModelForMultipleChoice),
    Head("fill-mask", "ForMaskedLM", AutoModelForMaskedLM),
    Head(
        "image-classification",
        "ForImageClassification",
        AutoModelForImageClassification,
    ),
    Head(GENERATION, "ForCausalLM", AutoModelForCausalLM),
)
"""All that is understood: a further kind of head is a further line."""

CLASSIFIER = HEADS[0]
HARMLESS = ("pooler.", "position_ids", "inv_freq", "masked_bias", "attn.bias")
"""Left-over weights that no head reads: of poolers, and tables that are computed."""


def head_named(class_name: str) -> Head | None:
    """The kind of head of a model class; None if it is not supported."""
    plain = class_name.removesuffix("Simple")  # XLNetForQuestionAnsweringSimple
    plain = plain.replace("LMHeadModel", "ForCausalLM")  # GPT2LMHeadModel
    return next((h for h in HEADS if plain.endswith(h.suffix)), None)


def head_for(task: str) -> Head:
    """The kind of head for a task.

    Raises:
        AttnProbeError: an unknown task.
    """
    by_task = {head.task: head for head in HEADS}
    if task not in by_task:
        known = ", ".join(by_task)
        raise AttnProbeError(f"expected task to be one of {known}, got {task!r}")
    return by_task[task]


def head_of(config: PreTrainedConfig, name: str, task: str | None = None) -> Head:
    """The head that a checkpoint was saved with.

    Args:
        config: its configuration.
        name: of the model, for the error.
        task: the head that is meant, where the configuration names none.

    Raises:
        AttnProbeError: no head is named, one that is not understood, or another one than
            that of ``task``.
    """
    meant = None if task is None else head_for(task)
    classes = classes_of(config.architectures)
    kind = classes[0] if classes else "model with code of its own"
    found = head_named(kind)
    remote = getattr(config, "auto_map", None) or {}
    own = [head for head in HEADS if head.auto.__name__ in remote]
    if found is None and len(own) == 1:  # whatever its classes' names
        found = own[0]
    if found is None and classes:
        check_reads_text_alone(kind, config, name)
        understood = ", ".join(head.suffix for head in HEADS)
        raise AttnProbeError(
            f"expected a model with a head that attnprobe can read ({understood}), {name} "
            f"is a {kind}; fine-tune it first with attnprobe train --model"
        )
    found = found or meant
    if found is None:
        raise AttnProbeError(
            f"expected the configuration of {name} to name the model's class, found no "
            "architectures in it; say with --task which head it has"
        )
    if meant is not None and found.task != meant.task:
        raise AttnProbeError(
            f"expected a model for {meant.task}, {name} is a {kind}, for {found.task}; "
            "choose another"
        )
    return found


def classes_of(named: Any) -> list[str]:
    """Returns the class names of a configuration's ``architectures``; none of what is no list."""
    return list(map(str, named)) if isinstance(named, list) else []


def task_saved(origin: Origin) -> str | None:
    """The task of the head that a checkpoint was saved with; None where it names none."""
    adapter = adapter_config(origin)
    if adapter is not None:
        named = TASKS.get(str(adapter.get("task_type")))
        return named or task_saved(base_of(origin, adapter))
    if origin.folder is not None and origin.gguf_file is None:
        _check_folder(origin.folder)
    classes = classes_of(load_config(origin).architectures)
    head = head_named(classes[0]) if classes else None
    return None if head is None else head.task


def check_reads_text_alone(class_name: str, config: Any, name: str) -> None:
    """Refuses models that generate text from more than the text before it.

    Args:
        class_name: of the model.
        config: its configuration.
        name: of the model, for the error.

    Raises:
        AttnProbeError: a vision-language model, or one with an encoder.
    """
    if not class_name.endswith(("ForConditionalGeneration", "ForImageTextToText")):
        return
    reads_images = hasattr(config, "vision_config")
    kind = "reads images beside its text" if reads_images else "reads its text by an encoder"
    raise AttnProbeError(
        f"expected a language model that reads its prompt from left to right (ForCausalLM), {name} "
        f"is a {class_name}, which {kind}; such models are not covered"
    )


def check_weights(
    name: str,
    base_prefix: str,
    info: Mapping[str, Any],
    *,
    new_head: bool = False,
    brought: Collection[str] = (),
) -> None:
    """Checks that a model uses every weight of its checkpoint and lacks none.

    Args:
        name: of the model, for the error.
        base_prefix: what the names of all weights below the head begin with.
        info: ``output_loading_info`` of Transformers.
        new_head: whether the head is to be trained, so that it may be missing and
            another's may be left over.
        brought: weights that come from elsewhere.

    Raises:
        AttnProbeError: weights of another shape, missing or left over.
    """
    for key, saved, needed in sorted(info["mismatched_keys"]):
        if key not in brought:
            raise AttnProbeError(
                f"expected a model in {name}, but it does not load: the weights {key} are "
                f"{list(saved)}, its configuration says {list(needed)}"
            )
    missing = sorted(set(info["missing_keys"]) - set(brought))
    if missing and not new_head:
        raise AttnProbeError(
            f"expected a fine-tuned model in {name!r}, but it has no weights for "
            f"{_some(missing)}; fine-tune it first with attnprobe train --model"
        )
    over = [
        key for key in sorted(info["unexpected_keys"]) if not any(part in key for part in HARMLESS)
    ]
    if over and not new_head:
        below = [key for key in over if key.startswith(f"{base_prefix}.")]
        of = "layers that its configuration has not" if below else "another head"
        raise AttnProbeError(
            f"expected every weight of {name!r} in the model, left over are those of "
            f"{of}: {_some(below or over)}; load it as the model that was saved"
        )


def _some(keys: list[str]) -> str:
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    return ", ".join(keys[:3]) + more


# --- LoRA and its like: weights that peft saved without the model that they change ---------------

TASKS = {
    "SEQ_CLS": "text-classification",
    "TOKEN_CLS": "token-classification",
    "QUESTION_ANS": "question-answering",
    "CAUSAL_LM": GENERATION,
}
"""What peft calls the heads."""

PREFIX = "base_model.model."
"""What peft puts before the names of saved weights."""


def adapter_config(origin: Origin) -> dict[str, Any] | None:
    """Content of ``adapter_config.json``; None for a whole model.

    Raises:
        AttnProbeError: it cannot be read, or names no base.
    """
    if origin.gguf_file is not None:
        return None
    with origin.reported():
        file = find_adapter_config_file(origin.name, **origin.place)
        if file is None:
            return None
        values = json.loads(Path(file).read_text())
    if not isinstance(values, dict) or not _base_name(origin, values):
        raise AttnProbeError(
            f"expected a base model in adapter_config.json of {origin.name}, found none; "
            "save the adapter again"
        )
    return values


def base_of(origin: Origin, values: Mapping[str, Any]) -> Origin:
    """Where an adapter's base model is: beside it, or where its configuration says."""
    return origin_of(
        _base_name(origin, values),
        revision=values.get("revision"),
        token=origin.token,
        trust_remote_code=origin.trust_remote_code,
        allow_pickle=origin.allow_pickle,
    )


def _base_name(origin: Origin, values: Mapping[str, Any]) -> str:
    if origin.folder is not None and (origin.folder / "config.json").exists():
        return origin.name
    return str(values.get("base_model_name_or_path") or "")


def load_adapted(origin: Origin, values: Mapping[str, Any], task: str | None) -> PreTrainedModel:
    """Loads the base model and merges an adapter's weights into it.

    Its outputs are those of the two side by side, but for rounding.

    Raises:
        AttnProbeError: peft is not installed, the base does not load, a head that is
            nowhere, or an adapter whose weights cannot be added.
    """
    if not is_peft_available():
        raise AttnProbeError(
            f"expected a whole model in {origin.name}, found a peft adapter, and peft is "
            "not installed; pip install peft, or save the merged model"
        )
    import peft

    check_adapter_is_data(origin)
    _check_can_be_added(origin, values)
    base = base_of(origin, values)
    config = load_config(base)
    check_weights_are_data(base, config.to_dict())
    head = _head(config, values, base, task)
    with origin.reported():
        weights = peft.load_peft_weights(origin.name, device="cpu", **origin.place)
    brought = {name.removeprefix(PREFIX) for name in weights}
    n_labels = _labels_of(weights, config, head)
    if n_labels not in (None, config.num_labels):
        config.num_labels = n_labels
    model, info = _loaded(head, base, config, adapter_kwargs={})
    # The base may have had another head, or none: then the adapter must bring all of it.
    info["unexpected_keys"] = []
    check_weights(base.name, model.base_model_prefix, info, brought=brought)
    with origin.reported(), warnings.catch_warnings():
        # peft asks Transformers by a name that goes with the next major version
        warnings.simplefilter("ignore", FutureWarning)
        adapted = peft.PeftModel.from_pretrained(model, origin.name, **origin.place)
    with origin.reported():
        return adapted.merge_and_unload().eval().requires_grad_(True)


def _check_can_be_added(origin: Origin, values: Mapping[str, Any]) -> None:
    """Refuses kinds of adapter that cannot be merged, before anything is loaded."""
    from peft import PromptLearningConfig
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    name = str(values.get("peft_type"))
    known = {kind.value: made for kind, made in PEFT_TYPE_TO_CONFIG_MAPPING.items()}
    if name not in known or issubclass(known[name], PromptLearningConfig):
        raise AttnProbeError(
            f"expected an adapter whose weights can be added to the model's, as LoRA's, "
            f"{origin.name} is {name}; it cannot be audited"
        )


def _head(
    config: PreTrainedConfig,
    values: Mapping[str, Any],
    base: Origin,
    task: str | None,
) -> Head:
    """The head that the adapter was trained with, or else that of its base."""
    named = TASKS.get(str(values.get("task_type")))
    if named is not None and task not in (None, named):
        raise AttnProbeError(
            f"expected the task {named}, which the adapter was trained for, got {task!r}; "
            "leave --task out"
        )
    if named is not None or task is not None:
        return head_for(named or task or "")
    return head_of(config, base.name)


def _labels_of(
    weights: Mapping[str, torch.Tensor], config: PreTrainedConfig, head: Head
) -> int | None:
    """Number of outputs of the head that an adapter brings; None if it brings none."""
    with torch.device("meta"):
        empty = head.auto.from_config(config)
    last = None
    for name, module in empty.named_modules():
        if isinstance(module, torch.nn.Linear) and (module.out_features == config.num_labels):
            last = weights.get(f"{PREFIX}{name}.weight", last)
    return None if last is None else len(last)


# --- Models from folders or the Hub, with errors of one line -------------------------------------


def load_model(
    model: str | Path | Origin,
    *,
    task: str | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    new_head: bool = False,
    **labels: Any,
) -> PreTrainedModel:
    """Loads a model with a task head from a folder or the Hub, as the class it was saved as.

    An adapter of peft is merged into its base model.

    Args:
        model: a folder, a Hub id, ``org/name@revision``, or what
            :func:`~hf_attnprobe.checkpoints.origins.origin_of` gives.
        task: the head that is meant, such as "text-classification", where the
            configuration names none.
        trust_remote_code: allow code that comes with the model on the Hub.
        allow_pickle: allow weights that are pickled.
        new_head: whether a classification head is wanted whatever was saved, its
            weights drawn at random where the checkpoint lacks them, to be trained.
        labels: ``id2label`` and ``label2id``, in place of the checkpoint's.

    Raises:
        AttnProbeError: no such folder or Hub id, a folder without configuration or weights,
            an unknown model type, a head that is not understood or not meant, or weights
            that are missing, left over, pickled or of another shape.
    """
    origin = origin_of(model, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle)
    if origin.folder is not None and origin.gguf_file is None:
        _check_folder(origin.folder)
    adapter = adapter_config(origin)
    if adapter is not None:
        return load_adapted(origin, adapter, task)
    config = load_config(origin, **labels)
    head = CLASSIFIER if new_head else head_of(config, origin.name, task)
    if origin.gguf_file is None:  # else they are in that file
        check_weights_are_data(origin, config.to_dict())
    loaded, info = _loaded(head, origin, config)
    check_weights(origin.name, loaded.base_model_prefix, info, new_head=new_head)
    return loaded


def _loaded(
    head: Head, origin: Origin, config: PreTrainedConfig, **options: Any
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """A model, and which weights were missing, left over or of another shape."""
    with origin.reported():
        return head.auto.from_pretrained(
            origin.name,
            config=config,
            trust_remote_code=origin.trust_remote_code,
            use_safetensors=None if origin.allow_pickle else True,
            ignore_mismatched_sizes=True,  # said by check_weights, and which
            output_loading_info=True,
            **origin.loading,
            **options,
        )


def load_attention_classifier(
    model: str | Path, purpose: str, advice: str
) -> AttentionClassifierForSequenceClassification:
    """Loads an attention classifier.

    Args:
        purpose: such as ``to compare``, for the error.
        advice: what to do about a model of another kind, for the error.

    Raises:
        AttnProbeError: as :func:`load_model`, and a model of another kind.
    """
    loaded = load_model(model)
    if not isinstance(loaded, AttentionClassifierForSequenceClassification):
        raise AttnProbeError(
            f"expected an attention classifier {purpose}, {model} is a "
            f"{loaded.config.model_type}; {advice}"
        )
    return loaded


def is_attention_classifier(
    config: PreTrainedConfig,
) -> TypeGuard[AttentionClassifierConfig]:
    """Whether a configuration belongs to this package's attention classifiers."""
    return config.model_type == AttentionClassifierConfig.model_type


def has_trained_attention(config: PreTrainedConfig) -> bool:
    """Whether a model is an attention classifier of one level with trained attention."""
    if not is_attention_classifier(config) or config.hierarchical:
        return False
    return config.attention not in ("uniform", "guided")


def _check_folder(folder: Path) -> None:
    check_whole(folder)
    if not any((folder / name).exists() for name in CONFIGS):
        raise AttnProbeError(
            f"expected a model in {folder}, found no config.json there; give the folder "
            "of save_pretrained"
        )
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        raise AttnProbeError(
            f"expected weights in {folder}, found a configuration only; save the model there again"
        )


# --- The tokenizer of a model, and whether it is that --------------------------------------------
# Where its files are missing Transformers makes an empty one and says nothing: then every
# word is unknown, and an audit would be of nothing but that.

SMALLEST_SHARE = 0.5
"""Of a model's embeddings; some pad theirs, none doubles them."""

FEWEST_TOKENS = 3
"""Beside the special ones. An empty tokenizer has up to two, such as a lone space."""

ADVICE = "save one beside the weights with tokenizer.save_pretrained"


def load_tokenizer(
    model: str | Path | Origin, *, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """Loads the tokenizer saved with a model; for an adapter without one, its base's.

    Raises:
        AttnProbeError: there is none, it does not load, or it knows no tokens.
    """
    origin = origin_of(model, trust_remote_code=trust_remote_code)
    values = adapter_config(origin)
    if values is not None and origin.file("tokenizer_config.json") is None:
        origin = base_of(origin, values)
    try:
        # the revision is in `place`: that of the model
        tokenizer = AutoTokenizer.from_pretrained(  # nosec B615
            origin.name,
            trust_remote_code=origin.trust_remote_code,
            **origin.loading,
        )
    except Exception as error:
        raise AttnProbeError(
            f"expected a tokenizer with the model {origin.name!r}, but none loads "
            f"({first_line(error)}); {ADVICE}"
        ) from error
    check_tokenizer(tokenizer, origin.name)
    return tokenizer


def load_processor(origin: Origin) -> Any:
    """The image processor saved with a model; None if none loads."""
    try:
        # the revision is in `place`: that of the model
        return AutoImageProcessor.from_pretrained(  # nosec B615
            origin.name,
            trust_remote_code=origin.trust_remote_code,
            **origin.place,
        )
    except Exception:  # none was saved, or what it needs is not installed
        return None


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Checks a tokenizer on its own.

    Args:
        name: of the model, for the error.

    Raises:
        AttnProbeError: it knows special tokens only, gives no attention mask, or has a
            length that is no number.
    """
    n_content = len(tokenizer) - len(set(tokenizer.all_special_ids))
    if n_content < FEWEST_TOKENS:
        raise AttnProbeError(
            f"expected a tokenizer with the model {name!r}, but none loads (its files are "
            f"missing, the {type(tokenizer).__name__} made without them knows special "
            f"tokens only); {ADVICE}"
        )
    if "attention_mask" not in tokenizer.model_input_names:
        raise AttnProbeError(
            f"expected attention_mask in model_input_names of the tokenizer of {name!r}, "
            f"got {tokenizer.model_input_names}; correct its tokenizer_config.json"
        )
    longest = tokenizer.model_max_length
    if isinstance(longest, bool) or not isinstance(longest, int | float):
        raise AttnProbeError(
            f"expected a number for model_max_length of the tokenizer of {name!r}, got "
            f"{longest!r}; correct its tokenizer_config.json"
        )


def check_belongs(
    tokenizer: PreTrainedTokenizerBase,
    config: PreTrainedConfig | None,
    n_embeddings: int | None,
    *,
    pads: bool = True,
) -> None:
    """Checks that a tokenizer can be the model's.

    Args:
        config: of the model; None if it has none.
        n_embeddings: how many token ids the model embeds; None: not known.
        pads: whether texts are padded; a language model reads one at a time.

    Raises:
        AttnProbeError: far fewer tokens than the model embeds, padding that it does not
            embed, or special tokens under other ids than the configuration's.
    """
    if n_embeddings is not None and len(tokenizer) < SMALLEST_SHARE * n_embeddings:
        raise AttnProbeError(
            f"expected the tokenizer of the model, which embeds {n_embeddings} tokens, "
            f"this one knows {len(tokenizer)}; load the tokenizer saved with the model"
        )
    padding = tokenizer.pad_token_id if pads else None
    if n_embeddings is not None and padding is not None and padding >= n_embeddings:
        raise AttnProbeError(
            f"the tokenizer pads with {tokenizer.pad_token!r}, id {padding}, the model "
            f"embeds ids below {n_embeddings}; load the tokenizer saved with the model"
        )
    for name in ("pad", "cls", "sep") if pads else ():
        said = getattr(config, f"{name}_token_id", None)
        given = getattr(tokenizer, f"{name}_token_id")
        if None not in (said, given) and said != given:
            raise AttnProbeError(
                f"the configuration says {name}_token_id {said}, the tokenizer {given}; "
                "load the tokenizer saved with the model"
            )
