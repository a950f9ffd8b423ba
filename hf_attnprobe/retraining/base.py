"""The model that is retrained: its configuration, the settings it was trained with, and what it says of every text."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hf_attnprobe.attention_classifier import AttentionClassifierConfig
from hf_attnprobe.checkpoints import load_model, load_tokenizer, read_record
from hf_attnprobe.data.examples import dataset_fingerprint, label_names
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.inference.guides import Guide
from hf_attnprobe.inference.outputs import Outputs, read_outputs
from hf_attnprobe.training.procedures import papers_procedure


SPLITS = ("train", "validation", "test")
UNREGULARISED = {
    "residual_connection": "none",
    "tying": 0.0,
    "mlm_weight": 0.0,
    "conicity_weight": 0.0,
}
PROCEDURE = (
    "epochs",
    "batch_size",
    "learning_rate",
    "weight_decay",
    "max_grad_norm",
    "plateau_factor",
    "patience",
)


@dataclass(frozen=True, eq=False)
class Base:
    """A trained attention classifier. ``settings`` are the keyword arguments of its training, seed included;
    ``notes`` say which of them had to be guessed."""

    name: str
    model: object
    tokenizer: object
    settings: Mapping
    notes: tuple[str, ...] = ()
    known: dict = field(default_factory=dict, repr=False)

    def outputs(self, examples) -> Outputs:
        """What it says of these texts and where it looks; computed once per split."""
        key = dataset_fingerprint(examples)
        if key not in self.known:
            self.known[key] = read_outputs(self.model, self.tokenizer, examples)
        return self.known[key]


def load_base(model: str | Path, **settings) -> Base:
    """A checkpoint that :func:`hf_attnprobe.train_classifier` wrote.

    Args:
        settings: of its training, where they are to replace those that its record holds; None is one not given.

    Raises:
        AttnProbeError: a model of another kind, which cannot be trained again with the same configuration.
    """
    loaded, tokenizer = load_model(model), load_tokenizer(model)
    check_kind(loaded.config, model)
    recorded = read_record(Path(model))
    known = recorded | {
        name: value for name, value in settings.items() if value is not None
    }
    recipe = known.get("recipe", "jain-wallace")
    changes = {name: known.get(name) for name in PROCEDURE}
    procedure = papers_procedure(recipe, loaded.config.encoder, **changes)
    used = {
        "seed": known.get("seed", 0),
        "recipe": recipe,
        "vectors": known.get("vectors"),
    }
    used |= {name: getattr(procedure, name) for name in PROCEDURE}
    notes = [
        f"{n.replace('_', ' ')} {used[n]}: assumed, {model} has no record of it"
        for n in used
        if n not in known
    ]
    return Base(str(model), loaded, tokenizer, used, tuple(notes))


def check_kind(config, name: str | Path) -> None:
    """A model of this configuration can be a base."""
    kind = config.model_type
    if kind != AttentionClassifierConfig.model_type:
        raise AttnProbeError(
            f"expected an attention classifier to train again from scratch, {name} is a {kind}; make one with attnprobe "
            "train --encoder"
        )
    if getattr(config, "hierarchical", False) or config.attention in (
        "uniform",
        "guided",
    ):
        what = (
            config.attention
            if not getattr(config, "hierarchical", False)
            else "two levels of"
        )
        raise AttnProbeError(
            f"expected a base with one level of trained attention, {name} has {what} attention; choose another --model"
        )


def check_splits(base: Base, sets: Mapping) -> None:
    """Train, validation and test texts are there, and with the base's classes."""
    missing = [name for name in SPLITS if name not in sets]
    if missing:
        raise AttnProbeError(
            f"expected train, validation and test texts to train models and compare them, there are no {missing[0]} "
            "texts with labels; add the split"
        )
    own = [
        str(base.model.config.id2label[k]) for k in range(base.model.config.num_labels)
    ]
    named = hasattr(
        sets["train"].features["label"], "names"
    )  # numbers alone are the base's own
    if len(label_names(sets["train"])) != len(own) or (
        named and label_names(sets["train"]) != own
    ):
        raise AttnProbeError(
            f"expected the data that {base.name} was trained on, with the classes {', '.join(own)}, got "
            f"{', '.join(label_names(sets['train']))}; choose another --dataset"
        )


# From the folder of a model that is about to be trained: how to call it in the bar on stderr, or False for no bar.
Progress = Callable[[Path], bool | str]


def silent(folder: Path) -> bool:
    """No progress is shown."""
    return False


@dataclass(frozen=True, eq=False)
class Trained:
    """A model that was trained beside the base, saved in ``folder``; ``seconds`` and ``n_epochs`` over all its runs."""

    folder: Path
    model: object
    metrics: Mapping[str, float]
    seconds: float
    n_epochs: int


def train_again(
    base: Base,
    sets: Mapping,
    folder: Path,
    *,
    changes: Mapping | None = None,
    guides: Mapping[str, Guide] | None = None,
    progress: Progress = silent,
    **settings,
) -> Trained:
    """A model trained from scratch as the base was, or the one that an earlier run left in ``folder``.

    Args:
        changes: to the base's configuration. settings: to its training's keyword arguments, such as ``seed``.
        guides: attention weights by split and example id, for ``attention="guided"``.
    """
    from hf_attnprobe.training.classifier import (
        train_classifier,
    )  # late: an audit need not wait for the Trainer

    config = type(base.model.config).from_dict(
        base.model.config.to_dict() | dict(changes or {})
    )
    data = {name: sets[name] for name in SPLITS}
    model, _, metrics = train_classifier(
        config,
        **data,
        output_dir=folder,
        tokenizer=base.tokenizer,
        guides=guides,
        resume=True,
        progress=progress(folder),
        **(dict(base.settings) | settings),
    )
    return as_trained(folder, model, metrics)


def as_trained(folder: Path, model, metrics: Mapping[str, float]) -> Trained:
    """With what the record in the folder says of the training."""
    record = read_record(folder)
    return Trained(folder, model, metrics, record["seconds"], record["n_epochs"])
