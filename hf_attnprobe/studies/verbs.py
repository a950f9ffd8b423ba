"""The verbs of a study: which arguments a step may have, and what it calls.

The arguments of a step are flat, ``{model: base, dataset: sst, n_permutations: 50}``. A
verb reads them with option classes, each of which takes the fields that it has. So a step
is checked by making these options, long before it runs.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, make_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from hf_attnprobe.attention_classifier import AttentionClassifierConfig
from hf_attnprobe.auditing.checks import check_tests
from hf_attnprobe.auditing.run import audit
from hf_attnprobe.checkpoint_comparison.run import compare_checkpoints
from hf_attnprobe.data.arguments import Data
from hf_attnprobe.deception.run import deceive
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.options import Options, from_flat, names_of, option
from hf_attnprobe.retraining.run import check_retrainings, retrain
from hf_attnprobe.retraining.transfer import transfer
from hf_attnprobe.training.classifier import train_classifier
from hf_attnprobe.training.fine_tuning import fine_tune
from hf_attnprobe.training.procedures import papers_config, papers_procedure


TESTING = ("split", "test_limit")  # data arguments of verbs that test one split


@dataclass(frozen=True)
class Verb:
    """One kind of step.

    Args:
        run: ``run(arguments, output_dir=…, progress=…)`` does the step.
        options: the classes whose fields are the arguments.
        unused: fields of these classes that mean nothing here.
        references: arguments that name models: an earlier step, a folder or a Hub id.
        trains: whether the step trains on the data set's training split.
        check: raises AttnProbeError for what the option classes cannot see.
    """

    run: Callable[..., object]
    options: tuple[type[Options], ...]
    unused: tuple[str, ...] = TESTING
    references: tuple[str, ...] = ("model",)
    trains: bool = True
    check: Callable[[Mapping[str, Any]], object] = lambda arguments: None

    @property
    def names(self) -> set[str]:
        """The arguments that a step may have."""
        return set(names_of(self.options)) - set(self.unused)

    @property
    def required(self) -> list[str]:
        """The arguments that a step must have."""
        fields = names_of(self.options)
        return [name for name, field in fields.items() if field.default is MISSING]

    def check_names(self, arguments: Mapping[str, Any]) -> None:
        """Raises AttnProbeError for an argument too many or too few."""
        unknown = [name for name in arguments if name not in self.names]
        if unknown:
            names = ", ".join(sorted(self.names))
            raise AttnProbeError(f"expected options of {names}, got {unknown[0]!r}")
        missing = [name for name in self.required if name not in arguments]
        if missing:
            raise AttnProbeError(f"expected {', '.join(missing)} to be given")

    def check_values(self, arguments: Mapping[str, Any]) -> None:
        """Raises AttnProbeError for a value of a wrong type or out of its range."""
        for kind in self.options:
            from_flat(arguments, kind)
        self.check(arguments)


def verb_of(name: str, arguments: Mapping[str, Any]) -> Verb:
    """The verb of a step; ``train`` with a model is fine-tuning.

    Raises:
        AttnProbeError: no verb of that name.
    """
    if name not in VERBS:
        raise AttnProbeError(f"expected a verb of {', '.join(VERBS)}, got {name!r}")
    return FINE_TUNING if name == "train" and "model" in arguments else VERBS[name]


# --- arguments that are no option of a function -----------------------------------------


@dataclass(frozen=True)
class Step(Options):
    """What every step has."""

    dataset: str = option(help="name, Hub id, folder, or name=folder")


@dataclass(frozen=True)
class ModelStep(Step):
    """A step about one model."""

    model: str = option(help="an earlier step, a folder or a Hub id")


@dataclass(frozen=True)
class TestStep(ModelStep):
    """A step that runs tests on one model."""

    tests: Sequence[str] | None = option(None, "names of tests")


@dataclass(frozen=True)
class TransferStep(ModelStep):
    """A step that trains one model with the attention of another."""

    guide: str = option(help="the model whose attention is imposed")
    uniform: str | None = option(None, "a model with uniform attention, to compare")


@dataclass(frozen=True)
class CompareStep(Step):
    """A step that compares several models."""

    models: Sequence[str] = option(help="earlier steps, folders or Hub ids")
    tests: Sequence[str] | None = option(None, "names of tests")


@dataclass(frozen=True)
class DeceiveStep(ModelStep):
    """A step that trains a model to hide attention."""

    tokens: Sequence[str] = option(help="impermissible tokens")


def _options(name: str, hints: Mapping, defaults: Mapping) -> type[Options]:
    """An option class made of types and defaults by name."""
    fields = [(k, hint, option(defaults[k])) for k, hint in hints.items()]
    return make_dataclass(name, fields, bases=(Options,), frozen=True)


ARCHITECTURE = {
    name: hint
    for name, hint in inspect.get_annotations(AttentionClassifierConfig).items()
    if name not in ("vocab_size", "model_type") and not name.endswith("_token_id")
}
Architecture = _options("Architecture", ARCHITECTURE, vars(AttentionClassifierConfig))


# --- the layer between option classes and functions -------------------------------------

# Names of arguments of today's functions, by their names in a study file.
TODAY = {"dataset_config": "config", "procedure": "recipe", "word_vectors": "vectors"}


def _options_of(function: Callable) -> type[Options]:
    """The options of a function, by the types and defaults of its signature."""
    given = {"self", "train", "validation", "test", "output_dir", "tokenizer"}
    given |= {"guides", "resume", "progress", "config", "limit"}
    given |= names_of([Data, TestStep, TransferStep, CompareStep, DeceiveStep]).keys()
    names = {old: new for new, old in TODAY.items()}
    types, hints, defaults = get_type_hints(function), {}, {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in given:
            hints[names.get(name, name)] = types[name]
            defaults[names.get(name, name)] = parameter.default
    return _options(f"{function.__name__}_options", hints, defaults)


def _today(arguments: Mapping[str, Any], limit: str = "train_limit") -> dict[str, Any]:
    """The arguments of today's functions, which call one of the limits ``limit``."""
    names = TODAY | {limit: "limit"}
    return {names.get(name, name): value for name, value in arguments.items()}


def _train(arguments: Mapping[str, Any], *, output_dir: Path, progress: bool) -> None:
    options = _without_data(arguments)
    architecture = {k: options.pop(k) for k in ARCHITECTURE if k in options}
    config = papers_config(options.get("recipe", "jain-wallace"), **architecture)
    train_classifier(
        config,
        **_splits(arguments),
        output_dir=output_dir,
        resume=True,
        progress=progress,
        **options,
    )


def _fine_tune(
    arguments: Mapping[str, Any], *, output_dir: Path, progress: bool
) -> None:
    options = _without_data(arguments)
    splits = _splits(arguments)
    fine_tune(**splits, output_dir=output_dir, progress=progress, **options)


def _splits(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return from_flat(arguments, Data).splits(seed=arguments.get("seed", 0))


def _without_data(arguments: Mapping[str, Any]) -> dict[str, Any]:
    data = names_of([Data])
    return _today({k: v for k, v in arguments.items() if k not in data})


def _check_train(arguments: Mapping[str, Any]) -> None:
    architecture = {k: v for k, v in arguments.items() if k in ARCHITECTURE}
    procedure = arguments.get("procedure", "jain-wallace")
    papers_procedure(procedure, papers_config(procedure, **architecture).encoder)


def _audit(arguments: Mapping[str, Any], **where: Any) -> None:
    audit(**_today(arguments, "test_limit"), **where)


def _retrain(arguments: Mapping[str, Any], **where: Any) -> None:
    retrain(**_today(arguments), **where)


def _transfer(arguments: Mapping[str, Any], **where: Any) -> None:
    transfer(**_today(arguments), **where)


def _compare(arguments: Mapping[str, Any], **where: Any) -> None:
    compare_checkpoints(**_today(arguments, "test_limit"), **where)


def _deceive(arguments: Mapping[str, Any], **where: Any) -> None:
    deceive(**_today(arguments), **where)


VERBS: dict[str, Verb] = {
    "train": Verb(
        _train,
        (Step, Data, Architecture, _options_of(train_classifier)),
        references=(),
        check=_check_train,
    ),
    "audit": Verb(
        _audit,
        (TestStep, Data, _options_of(audit)),
        unused=("train_limit",),
        trains=False,
        check=lambda arguments: check_tests(arguments.get("tests")),
    ),
    "retrain": Verb(
        _retrain,
        (TestStep, Data, _options_of(retrain)),
        check=lambda arguments: check_retrainings(arguments.get("tests")),
    ),
    "transfer": Verb(
        _transfer,
        (TransferStep, Data, _options_of(transfer)),
        references=("model", "guide", "uniform"),
    ),
    "compare": Verb(
        _compare,
        (CompareStep, Data, _options_of(compare_checkpoints)),
        unused=(),
        references=("models",),
        trains=False,
    ),
    "deceive": Verb(_deceive, (DeceiveStep, Data, _options_of(deceive))),
}
FINE_TUNING = Verb(_fine_tune, (ModelStep, Data, _options_of(fine_tune)))
