"""Fine-tuning pretrained Transformers, on the Trainer of Transformers."""

from pathlib import Path

from hf_attnprobe.checkpoints import check_not_itself, load_model, load_tokenizer
from hf_attnprobe.options import check_at_least
from hf_attnprobe.training.classifier import begin
from hf_attnprobe.training.resuming import finish
from hf_attnprobe.training.trainer import make_trainer


def fine_tune(
    model: str | Path,
    train,
    validation=None,
    *,
    output_dir: str | Path,
    test=None,
    seed: int = 0,
    epochs: int = 3,
    batch_size: int = 32,
    learning_rate: float = 5e-5,
    weight_decay: float = 0.01,
    max_length: int | None = None,
    trust_remote_code: bool = False,
    progress: bool = True,
):
    """Fine-tunes a pretrained Transformer for classification and saves an ordinary checkpoint.

    The usual recipe (Devlin et al. 2019, Section A.3): AdamW, linear decay after 10% warm-up, a few epochs; the epoch
    with the best validation score is kept, ROC-AUC for two classes, accuracy for more.

    Args:
        model: folder or Hub id of a pretrained model with its tokenizer.
        train, validation, test, output_dir: as for :func:`hf_attnprobe.train_classifier`.
        max_length: longer texts are cut; ``None`` is what the tokenizer states.

    Returns:
        (model, tokenizer, metrics).

    Raises:
        AttnProbeError: as :func:`hf_attnprobe.train_classifier`, or a model that does not load.
    """
    check_at_least(0, learning_rate=learning_rate, weight_decay=weight_decay)
    check_at_least(1, epochs=epochs, batch_size=batch_size)
    check_not_itself(model, output_dir)
    output_dir, sets, names = begin(output_dir, train, validation, test, seed)
    labels = {
        "id2label": dict(enumerate(names)),
        "label2id": {name: k for k, name in enumerate(names)},
    }
    loaded = load_model(
        model, trust_remote_code=trust_remote_code, new_head=True, **labels
    )
    tokenizer = load_tokenizer(model, trust_remote_code=trust_remote_code)
    if max_length is not None:
        tokenizer.model_max_length = max_length
    if (
        getattr(loaded.config, "pad_token_id", None) is None
    ):  # decoders find the last token by it
        loaded.config.pad_token_id = tokenizer.pad_token_id
    trainer = make_trainer(
        loaded,
        tokenizer,
        sets,
        output_dir,
        progress=progress,
        settings={
            "num_train_epochs": epochs,
            "per_device_train_batch_size": batch_size,
            "seed": seed,
            "learning_rate": learning_rate,
            "weight_decay": weight_decay,
            "warmup_steps": 0.1,
        },
    )
    record = {
        "seed": seed,
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
    }
    return loaded, tokenizer, finish(trainer, tokenizer, output_dir, record)
