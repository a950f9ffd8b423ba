"""What a step of a study can do: each verb a function of this package, called with the arguments that a file gives it."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

from hf_attnprobe.auditing.checks import check_tests
from hf_attnprobe.auditing.run import audit
from hf_attnprobe.checkpoint_comparison.options import ComparisonOptions
from hf_attnprobe.checkpoint_comparison.run import compare_checkpoints
from hf_attnprobe.data.arguments import Data
from hf_attnprobe.deception.options import DeceptionOptions
from hf_attnprobe.deception.run import deceive
from hf_attnprobe.options import from_flat
from hf_attnprobe.retraining.options import RetrainOptions, TransferOptions
from hf_attnprobe.retraining.run import check_retrainings, retrain
from hf_attnprobe.retraining.transfer import transfer
from hf_attnprobe.training.options import Architecture, TrainingOptions
from hf_attnprobe.training.run import check_training, train


DATA = {
    "dataset": str,
    "config": str | None,
    "text_column": str | Sequence[str] | None,
    "label_column": str | None,
    "limit": int | None,
}
GIVEN = (
    "self",
    "train",
    "validation",
    "test",
    "output_dir",
    "tokenizer",
    "guides",
    "resume",
    "progress",
    "options",
)


def hints_of(function: Callable) -> dict[str, Any]:
    """The kinds of a function's arguments, but for those that a study gives itself."""
    known = get_type_hints(function)
    return {
        name: known.get(name, str)
        for name in inspect.signature(function).parameters
        if name not in GIVEN
    }


@dataclass(frozen=True)
class Verb:
    """``run(output_dir=, progress=, **arguments)``. arguments: their kinds by name. needed: those without a default.
    references: those that name models, of this study or by folder or Hub id. training_limit: the argument that
    limits training texts. check: raises for values out of range, without any work."""

    run: Callable
    arguments: Mapping[str, Any]
    needed: tuple[str, ...]
    references: tuple[str, ...] = ()
    training_limit: str | None = "limit"
    check: Callable[[Mapping], object] = lambda arguments: None


def _data(arguments: Mapping) -> Data:
    return Data(
        arguments["dataset"],
        arguments.get("config"),
        arguments.get("text_column"),
        arguments.get("label_column"),
        arguments.get("split", "test"),
        test_limit=arguments.get("test_limit"),
        train_limit=arguments.get("train_limit", arguments.get("limit")),
    )


def _train(*, output_dir: Path, progress: bool, **arguments) -> None:
    train(
        _data(arguments),
        output_dir=output_dir,
        model=arguments.get("model"),
        architecture=vars(from_flat(arguments, Architecture)),
        options=from_flat(arguments, TrainingOptions),
        progress=progress,
    )


def _check_train(arguments: Mapping) -> None:
    check_training(
        arguments.get("model"),
        vars(from_flat(arguments, Architecture)),
        from_flat(arguments, TrainingOptions),
    )


def _retrain(*, model, tests=None, output_dir: Path, progress: bool, **arguments):
    options = from_flat(arguments, RetrainOptions)
    data = _data(arguments)
    retrain(
        model, data, tests, output_dir=output_dir, options=options, progress=progress
    )


def _transfer(*, model, guide, output_dir: Path, progress: bool, **arguments):
    options = from_flat(arguments, TransferOptions)
    data = _data(arguments)
    transfer(
        model, guide, data, output_dir=output_dir, options=options, progress=progress
    )


def _compare(*, models, output_dir: Path, progress: bool, **arguments):
    data = replace(_data(arguments), test_limit=arguments.pop("limit", None))
    data = replace(data, train_limit=arguments.pop("train_limit", None))
    options = from_flat(arguments, ComparisonOptions)
    compare_checkpoints(
        models, data, output_dir=output_dir, options=options, progress=progress
    )


def _deceive(*, model, tokens, output_dir: Path, progress: bool, **arguments):
    options = from_flat(arguments, DeceptionOptions)
    data = _data(arguments)
    deceive(
        model, data, tokens, output_dir=output_dir, options=options, progress=progress
    )


VERBS: dict[str, Verb] = {
    "train": Verb(
        _train,
        get_type_hints(TrainingOptions) | DATA | get_type_hints(Architecture),
        ("dataset",),
        check=_check_train,
    ),
    "fine_tune": Verb(
        _train,
        get_type_hints(TrainingOptions) | DATA | {"model": str},
        ("dataset", "model"),
        check=_check_train,
    ),
    "audit": Verb(
        lambda **arguments: audit(**arguments),
        hints_of(audit) | {k: v for k, v in DATA.items() if k != "limit"},
        ("dataset", "model"),
        ("model",),
        training_limit=None,
        check=_check_audit,
    ),
    "retrain": Verb(
        _retrain,
        hints_of(retrain) | get_type_hints(RetrainOptions) | DATA,
        ("dataset", "model"),
        ("model",),
        check=lambda arguments: check_retrainings(arguments.get("tests")),
    ),
    "transfer": Verb(
        _transfer,
        hints_of(transfer) | get_type_hints(TransferOptions) | DATA,
        ("dataset", "model", "guide"),
        ("model", "guide", "uniform"),
    ),
    "compare": Verb(
        _compare,
        get_type_hints(ComparisonOptions)
        | DATA
        | {"models": list[str], "split": str, "train_limit": int | None},
        ("dataset", "models"),
        ("models",),
        training_limit="train_limit",
    ),
    "deceive": Verb(
        _deceive,
        hints_of(deceive) | get_type_hints(DeceptionOptions) | DATA,
        ("dataset", "model", "tokens"),
        ("model",),
    ),
}
