"""The verbs of a study: which arguments a step may have, and what it calls.

The arguments of a step are flat, ``{model: base, dataset: sst, n_permutations: 50}``. A
verb reads them with option classes, each of which takes the fields that it has. So a step
is checked by making these options, long before it runs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import Any

from hf_attnprobe.auditing.options import AuditRequest, flat_options, from_names
from hf_attnprobe.auditing.run import audit
from hf_attnprobe.checkpoint_comparison.options import ComparisonOptions
from hf_attnprobe.checkpoint_comparison.run import compare_checkpoints
from hf_attnprobe.data.arguments import Data
from hf_attnprobe.deception.options import DeceptionOptions
from hf_attnprobe.deception.run import deceive
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.faithfulness.registry import options_of_tests
from hf_attnprobe.options import Options, from_flat, names_of, option
from hf_attnprobe.retraining.options import RetrainOptions, TransferOptions
from hf_attnprobe.retraining.registry import check_retrainings
from hf_attnprobe.retraining.run import retrain
from hf_attnprobe.retraining.transfer import transfer
from hf_attnprobe.training.options import (
    ONLY_CLASSIFIER,
    Architecture,
    TrainingOptions,
)
from hf_attnprobe.training.run import check_training, train


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


@dataclass(frozen=True)
class CompareStep(Step):
    """A step that compares several models."""

    models: Sequence[str] = option(help="earlier steps, folders or Hub ids")


@dataclass(frozen=True)
class DeceiveStep(ModelStep):
    """A step that trains a model to hide attention."""

    tokens: Sequence[str] = option(help="impermissible tokens")


# --- from the arguments of a step to the call of a function ------------------------------


def _train(arguments: Mapping[str, Any], **run: Any) -> None:
    train(
        from_flat(arguments, Data),
        model=arguments.get("model"),
        architecture=_architecture(arguments),
        options=from_flat(arguments, TrainingOptions),
        **run,
    )


def _architecture(arguments: Mapping[str, Any]) -> dict[str, Any]:
    names = names_of([Architecture])
    return {name: value for name, value in arguments.items() if name in names}


def _check_train(arguments: Mapping[str, Any]) -> None:
    options = from_flat(arguments, TrainingOptions)
    check_training(arguments.get("model"), _architecture(arguments), options)


def _audit(arguments: Mapping[str, Any], **run: Any) -> None:
    request = _audit_request(arguments)
    data = from_flat(arguments, Data)
    audit(arguments["model"], data, request.tests, options=request.options, **run)


def _audit_request(arguments: Mapping[str, Any]) -> AuditRequest:
    names = names_of(flat_options())
    values = {name: value for name, value in arguments.items() if name in names}
    return from_names(arguments.get("tests"), values)


def _check_audit(arguments: Mapping[str, Any]) -> None:
    options_of_tests(_audit_request(arguments).tests)


def _retrain(arguments: Mapping[str, Any], **run: Any) -> None:
    options = from_flat(arguments, RetrainOptions)
    data, tests = from_flat(arguments, Data), arguments.get("tests")
    retrain(arguments["model"], data, tests, options=options, **run)


def _check_retrain(arguments: Mapping[str, Any]) -> None:
    check_retrainings(arguments.get("tests"))


def _transfer(arguments: Mapping[str, Any], **run: Any) -> None:
    options = from_flat(arguments, TransferOptions)
    data = from_flat(arguments, Data)
    transfer(arguments["model"], arguments["guide"], data, options=options, **run)


def _compare(arguments: Mapping[str, Any], **run: Any) -> None:
    options = from_flat(arguments, ComparisonOptions)
    data = from_flat(arguments, Data)
    compare_checkpoints(arguments["models"], data, options=options, **run)


def _deceive(arguments: Mapping[str, Any], **run: Any) -> None:
    options = from_flat(arguments, DeceptionOptions)
    data = from_flat(arguments, Data)
    deceive(arguments["model"], data, arguments["tokens"], options=options, **run)


VERBS: dict[str, Verb] = {
    "train": Verb(
        _train,
        (Step, Data, Architecture, TrainingOptions),
        references=(),
        check=_check_train,
    ),
    "audit": Verb(
        _audit,
        (TestStep, Data, *flat_options()),
        unused=("train_limit",),
        trains=False,
        check=_check_audit,
    ),
    "retrain": Verb(_retrain, (TestStep, Data, RetrainOptions), check=_check_retrain),
    "transfer": Verb(
        _transfer,
        (TransferStep, Data, TransferOptions),
        references=("model", "guide", "uniform"),
    ),
    "compare": Verb(
        _compare,
        (CompareStep, Data, ComparisonOptions),
        unused=(),
        references=("models",),
        trains=False,
    ),
    "deceive": Verb(_deceive, (DeceiveStep, Data, DeceptionOptions)),
}
FINE_TUNING = Verb(
    _train,
    (ModelStep, Data, TrainingOptions),
    unused=(*TESTING, *ONLY_CLASSIFIER),
    check=_check_train,
)
