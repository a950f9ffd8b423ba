"""Fine-tuning pretrained Transformers, on the Trainer of Transformers."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase

from hf_attnprobe.checkpoints.loading import load_model, load_tokenizer
from hf_attnprobe.checkpoints.origins import origin_of
from hf_attnprobe.checkpoints.records import check_not_itself
from hf_attnprobe.data.examples import (
    check_sets,
    dataset_fingerprint,
    label_names,
)
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.options import SavedModel, as_saved, public_function
from hf_attnprobe.training.classifier import named_labels, with_max_length
from hf_attnprobe.training.options import ONLY_CLASSIFIER, TrainingOptions
from hf_attnprobe.training.trainer import (
    PlainTrainer,
    TrainedClassifier,
    make_trainer,
    train_or_load,
)


if TYPE_CHECKING:
    import datasets


USUAL = {
    "epochs": 3,
    "batch_size": 32,
    "learning_rate": 5e-5,
    "weight_decay": 0.01,
}
"""What holds where no option is given (Devlin et al. 2019, Section A.3)."""
WARM_UP = 0.1  # share of the steps


@public_function
def fine_tune(
    model: str | Path | SavedModel,
    train: Any,
    validation: Any = None,
    *,
    output_dir: str | Path,
    test: Any = None,
    options: TrainingOptions = TrainingOptions(),
    resume: bool = False,
    progress: bool = True,
    data_name: str | None = None,
) -> TrainedClassifier:
    """Fine-tunes a pretrained Transformer for classification and saves a checkpoint.

    AdamW, linear decay after 10% warm-up, 3 epochs of batches of 32, learning rate 5e-5,
    weight decay 0.01 (Devlin et al. 2019, Section A.3). The epoch with the best validation
    score is kept: ROC-AUC for two classes, accuracy for more.

    Args:
        model: folder or Hub id of a pretrained model with its tokenizer, or a
            :class:`~hf_attnprobe.options.SavedModel`.
        train, validation, test, output_dir: as for
            :func:`hf_attnprobe.train_classifier`.
        options: settings; those of attention classifiers alone are refused.
        resume: continue what an interrupted training with the same settings left in
            ``output_dir``. A finished one is loaded.
        progress: show a bar on stderr.
        data_name: what the data set is called, for the record and the model card.

    Raises:
        AttnProbeError: as :func:`hf_attnprobe.train_classifier`, a model that does not
            load, or an option that means nothing to it.
    """
    check_pretrained_options(options)
    saved = as_saved(model)
    check_not_itself(saved.model, output_dir)
    splits = check_sets(train, validation, test)
    used: dict[str, Any] = {}
    for name, default in USUAL.items():
        given = getattr(options, name)
        used[name] = default if given is None else given
    record = {
        "start": str(saved.model),
        "seed": options.seed,
        **used,
        "max_length": options.max_length,
        "data": {
            name: dataset_fingerprint(part) for name, part in splits.items()
        },
    }
    return train_or_load(
        output_dir,
        record,
        partial(_trainer, saved, splits, used, options, progress),
        resume=resume,
        trust_remote_code=saved.trust_remote_code,
        data_name=data_name,
    )


def _trainer(
    model: SavedModel,
    splits: "Mapping[str, datasets.Dataset]",
    used: Mapping[str, Any],
    options: TrainingOptions,
    progress: bool,
    folder: Path,
) -> tuple[PlainTrainer, PreTrainedTokenizerBase]:
    """The Trainer of a pretrained model with a new head, and its tokenizer."""
    labels: dict[str, Any] = named_labels(label_names(splits["train"]))
    origin = origin_of(model)
    loaded = load_model(origin, new_head=True, **labels)
    tokenizer = with_max_length(load_tokenizer(origin), options.max_length)
    if getattr(loaded.config, "pad_token_id", None) is None:
        # Decoders find the last token by it.
        loaded.config.pad_token_id = tokenizer.pad_token_id
    settings = trainer_settings(used) | {"seed": options.seed}
    trainer = make_trainer(
        loaded, tokenizer, splits, folder, settings=settings, progress=progress
    )
    return trainer, tokenizer


def trainer_settings(used: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a Trainer for the settings in :data:`USUAL`."""
    return {
        "num_train_epochs": used["epochs"],
        "per_device_train_batch_size": used["batch_size"],
        "learning_rate": used["learning_rate"],
        "weight_decay": used["weight_decay"],
        "warmup_steps": WARM_UP,
    }


def check_pretrained_options(options: TrainingOptions) -> None:
    """Refuses options that have no meaning for a pretrained model.

    Raises:
        AttnProbeError: one of them is given.
    """
    values = {name: getattr(options, name) for name in ONLY_CLASSIFIER}
    given = [
        name for name, value in values.items() if value not in (None, False)
    ]
    if given:
        raise AttnProbeError(
            f"{given[0]} is for attention classifiers, which are trained from scratch; "
            "leave it out, or leave out the model"
        )
