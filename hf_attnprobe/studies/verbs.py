"""The verbs of a study: which arguments a step may have, and what it calls.

The arguments of a step are flat, ``{model: base, dataset: sst, seed: 1}``, but for those of
tests, ``{tests: {permutation: {n_permutations: 50}}}``. A verb reads them with option
classes, each of which takes the fields that it has. So a step is checked by making these
options, long before it runs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import Any

from hf_attnprobe.auditing.options import AuditOptions
from hf_attnprobe.auditing.run import audit
from hf_attnprobe.checkpoint_comparison.options import ComparisonOptions
from hf_attnprobe.checkpoint_comparison.run import asked_comparison, compare_checkpoints
from hf_attnprobe.data.arguments import Data
from hf_attnprobe.deception.options import DeceptionOptions
from hf_attnprobe.deception.run import deceive
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.faithfulness.registry import asked_tests
from hf_attnprobe.options import Options, check_known, from_flat, names_of, option
from hf_attnprobe.retraining.options import RetrainOptions, TransferOptions
from hf_attnprobe.retraining.registry import asked_retrainings
from hf_attnprobe.retraining.run import retrain
from hf_attnprobe.retraining.transfer import transfer
from hf_attnprobe.training.options import (
    ONLY_CLASSIFIER,
    Architecture,
    TrainingOptions,
)
from hf_attnprobe.training.run import check_training, train


TESTING = ("split", "test_limit")  # data arguments of verbs that test one split
Arguments = Mapping[str, Any]


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

    tests: Any = option(None, "names of tests, or options by name of the test")


@dataclass(frozen=True)
class TransferStep(ModelStep):
    """A step that trains one model with the attention of another."""

    guide: str = option(help="the model whose attention is imposed")


@dataclass(frozen=True)
class CompareStep(Step):
    """A step that compares several models."""

    models: Sequence[str] = option(help="earlier steps, folders or Hub ids")
    tests: Any = option(None, "names of tests, or options by name of the test")


@dataclass(frozen=True)
class DeceiveStep(ModelStep):
    """A step that trains a model to hide attention."""

    tokens: Sequence[str] = option(help="impermissible tokens")


# --- verbs ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Verb:
    """One kind of step.

    Args:
        function: does the step. It takes the fields of ``step`` by name, the data set as
            :class:`Data`, and ``options``.
        step: what the step has besides options.
        options: the classes whose fields are the other arguments; the function takes
            the first one as ``options``.
        unused: fields of these classes that mean nothing here.
        references: arguments that name models: an earlier step, a folder or a Hub id.
        trains: whether the step trains on the data set's training split.
        prepare: keyword arguments that are not simply fields of the step.
        check: raises AttnProbeError for keyword arguments that the option classes let
            pass.
    """

    function: Callable[..., object]
    step: type[Step]
    options: tuple[type[Options], ...]
    unused: tuple[str, ...] = TESTING
    references: tuple[str, ...] = ("model",)
    trains: bool = True
    prepare: Callable[[Arguments], dict[str, Any]] = lambda arguments: {}
    check: Callable[[dict[str, Any]], object] = lambda keywords: None

    @property
    def names(self) -> set[str]:
        """The arguments that a step may have."""
        fields = names_of([self.step, Data, *self.options])
        return fields.keys() - set(self.unused)

    def check_names(self, arguments: Arguments) -> None:
        """Raises AttnProbeError for an argument too many or too few."""
        check_known("option", arguments, sorted(self.names))
        for name, field in names_of([self.step]).items():
            if field.default is MISSING and name not in arguments:
                raise AttnProbeError(f"expected {name} to be given")

    def check_values(self, arguments: Arguments) -> None:
        """Raises AttnProbeError for a value of a wrong type or out of its range."""
        for kind in (self.step, *self.options):
            from_flat(arguments, kind)
        self.check(self.keywords(arguments))

    def keywords(self, arguments: Arguments) -> dict[str, Any]:
        """The keyword arguments of ``function``."""
        keywords = {name: arguments.get(name) for name in names_of([self.step])}
        keywords["dataset"] = from_flat(arguments, Data)
        keywords["options"] = from_flat(arguments, self.options[0])
        return keywords | self.prepare(arguments)


def _named(arguments: Arguments, kinds: Sequence[type[Options]]) -> dict[str, Any]:
    """The arguments that are fields of the option classes."""
    names = names_of(kinds)
    return {name: value for name, value in arguments.items() if name in names}


def _prepare_train(arguments: Arguments) -> dict[str, Any]:
    return {"architecture": _named(arguments, [Architecture])}


def _check_train(keywords: dict[str, Any]) -> None:
    check_training(keywords.get("model"), keywords["architecture"], keywords["options"])


VERBS: dict[str, Verb] = {
    "train": Verb(
        train,
        Step,
        (TrainingOptions, Architecture),
        references=(),
        prepare=_prepare_train,
        check=_check_train,
    ),
    "audit": Verb(
        audit,
        TestStep,
        (AuditOptions,),
        unused=("train_limit", "token"),  # a study is written down, a token is not
        trains=False,
        check=lambda keywords: asked_tests(keywords["tests"]),
    ),
    "retrain": Verb(
        retrain,
        TestStep,
        (RetrainOptions,),
        check=lambda keywords: asked_retrainings(keywords["tests"]),
    ),
    "transfer": Verb(
        transfer,
        TransferStep,
        (TransferOptions,),
        references=("model", "guide", "uniform"),
    ),
    "compare": Verb(
        compare_checkpoints,
        CompareStep,
        (ComparisonOptions,),
        unused=(),
        references=("models",),
        trains=False,
        check=lambda keywords: asked_comparison(keywords["tests"]),
    ),
    "deceive": Verb(deceive, DeceiveStep, (DeceptionOptions,)),
}
FINE_TUNING = Verb(
    train,
    ModelStep,
    (TrainingOptions,),
    unused=(*TESTING, *ONLY_CLASSIFIER),
    prepare=_prepare_train,
    check=_check_train,
)


def verb_of(name: str, arguments: Mapping[str, Any]) -> Verb:
    """The verb of a step; ``train`` with a model is fine-tuning.

    Raises:
        AttnProbeError: no verb of that name.
    """
    if name not in VERBS:
        raise AttnProbeError(f"expected a verb of {', '.join(VERBS)}, got {name!r}")
    return FINE_TUNING if name == "train" and "model" in arguments else VERBS[name]
