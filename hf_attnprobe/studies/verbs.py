"""What a step of a study can do: each verb a function of this package, called with the arguments that a file gives it."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from hf_attnprobe.attention_classifier import AttentionClassifierConfig
from hf_attnprobe.auditing.options import flat_options, from_names
from hf_attnprobe.auditing.run import audit
from hf_attnprobe.checkpoint_comparison.run import compare_checkpoints
from hf_attnprobe.data.arguments import Data
from hf_attnprobe.data.splits import load_splits
from hf_attnprobe.deception.run import deceive
from hf_attnprobe.faithfulness.registry import options_of_tests
from hf_attnprobe.retraining.run import check_retrainings, retrain
from hf_attnprobe.retraining.transfer import transfer
from hf_attnprobe.training.classifier import train_classifier
from hf_attnprobe.training.fine_tuning import fine_tune
from hf_attnprobe.training.procedures import papers_config, papers_procedure


DATA = {
    "dataset": str,
    "config": str | None,
    "text_column": str | Sequence[str] | None,
    "label_column": str | None,
    "limit": int | None,
}
ARCHITECTURE = {
    name: hint
    for name, hint in inspect.get_annotations(AttentionClassifierConfig).items()
    if name not in ("vocab_size", "model_type") and not name.endswith("_token_id")
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


def _train(
    *,
    output_dir: Path,
    progress: bool,
    seed: int = 0,
    recipe: str = "jain-wallace",
    **arguments,
) -> None:
    data, architecture, options = _sorted(arguments)
    splits = load_splits(dataset_config=data.pop("config", None), **data, seed=seed)
    train_classifier(
        papers_config(recipe, **architecture),
        **splits,
        output_dir=output_dir,
        seed=seed,
        recipe=recipe,
        resume=True,
        progress=progress,
        **options,
    )


def _sorted(arguments: Mapping) -> tuple[dict, dict, dict]:
    """Arguments of the data, of the architecture, and of the training."""
    data, architecture = (
        {k: v for k, v in arguments.items() if k in known}
        for known in (DATA, ARCHITECTURE)
    )
    return (
        data,
        architecture,
        {k: v for k, v in arguments.items() if k not in data and k not in architecture},
    )


def _check_train(arguments: Mapping) -> None:
    _, architecture, _ = _sorted(arguments)
    recipe = arguments.get("recipe", "jain-wallace")
    papers_procedure(recipe, papers_config(recipe, **architecture).encoder)


def _fine_tune(*, output_dir: Path, progress: bool, seed: int = 0, **arguments) -> None:
    data = {k: arguments.pop(k) for k in DATA if k in arguments}
    splits = load_splits(dataset_config=data.pop("config", None), **data, seed=seed)
    fine_tune(
        arguments.pop("model"),
        **splits,
        output_dir=output_dir,
        seed=seed,
        progress=progress,
        **arguments,
    )


AUDIT_DATA = {"dataset_config": "config", "test_limit": "limit"}


def _audit_hints() -> dict[str, Any]:
    """What an audit takes by name; its data still under the older names."""
    hints: dict[str, Any] = {"model": str, "tests": Sequence[str] | None}
    for kind in (Data, *flat_options()):
        hints |= get_type_hints(kind)
    for new, old in AUDIT_DATA.items():
        hints[old] = hints.pop(new)
    return {name: hint for name, hint in hints.items() if name != "train_limit"}


def _audit(
    *, model: str, output_dir: Path, progress: bool, tests=None, **values
) -> None:
    for new, old in AUDIT_DATA.items():
        if old in values:
            values[new] = values.pop(old)
    of_data = {field.name for field in dataclasses.fields(Data)}
    data = Data(**{name: values.pop(name) for name in of_data & values.keys()})
    request = from_names(tests, values)
    audit(
        model,
        data,
        request.tests,
        options=request.options,
        output_dir=output_dir,
        progress=progress,
    )


def _check_audit(arguments: Mapping) -> None:
    known = {
        field.name for kind in flat_options() for field in dataclasses.fields(kind)
    }
    values = {name: arguments[name] for name in known & arguments.keys()}
    options_of_tests(from_names(arguments.get("tests"), values).tests)


def _called(function: Callable) -> Callable:
    """The function itself; its result is read from the folder."""
    return lambda **arguments: function(**arguments)


VERBS: dict[str, Verb] = {
    "train": Verb(
        _train,
        hints_of(train_classifier) | DATA | ARCHITECTURE,
        ("dataset",),
        check=_check_train,
    ),
    "fine_tune": Verb(_fine_tune, hints_of(fine_tune) | DATA, ("dataset", "model")),
    "audit": Verb(
        _audit,
        _audit_hints(),
        ("dataset", "model"),
        ("model",),
        training_limit=None,
        check=_check_audit,
    ),
    "retrain": Verb(
        _called(retrain),
        hints_of(retrain) | DATA,
        ("dataset", "model"),
        ("model",),
        check=lambda arguments: check_retrainings(arguments.get("tests")),
    ),
    "transfer": Verb(
        _called(transfer),
        hints_of(transfer) | DATA,
        ("dataset", "model", "guide"),
        ("model", "guide", "uniform"),
    ),
    "compare": Verb(
        _called(compare_checkpoints),
        hints_of(compare_checkpoints) | DATA | {"models": list[str]},
        ("dataset", "models"),
        ("models",),
        training_limit="train_limit",
    ),
    "deceive": Verb(
        _called(deceive),
        hints_of(deceive) | DATA,
        ("dataset", "model", "tokens"),
        ("model",),
    ),
}
