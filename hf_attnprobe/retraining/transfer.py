"""The verb ``transfer``: the guides of ``diagnostic_mlp`` for any pair of models."""

from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from hf_attnprobe.adapters.pretrained import class_names
from hf_attnprobe.attention_model import Site
from hf_attnprobe.checkpoints.loading import load_attention_classifier, load_tokenizer
from hf_attnprobe.data.arguments import as_data
from hf_attnprobe.data.examples import dataset_name
from hf_attnprobe.distributed import process_state
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.functional.fingerprint import model_fingerprint
from hf_attnprobe.inference.outputs import Outputs, predict
from hf_attnprobe.progress import quiet_libraries
from hf_attnprobe.retraining.base import (
    Base,
    Splits,
    Trained,
    as_row,
    check_splits,
    compare_probs,
    identity_of,
    is_correct,
    load_base,
    train_again,
)
from hf_attnprobe.retraining.diagnostic_mlp import guides_of
from hf_attnprobe.retraining.options import TransferOptions
from hf_attnprobe.retraining.report import KIND, RetrainingReport, write_report
from hf_attnprobe.storage.folders import claim
from hf_attnprobe.storage.rows import append_rows, to_rows


@quiet_libraries()
def transfer(
    model: str | Path,
    guide: str | Path,
    dataset: Any,
    *,
    output_dir: str | Path,
    options: TransferOptions = TransferOptions(),
    progress: bool = True,
) -> RetrainingReport:
    """Trains a model whose attention is imposed by another one, and compares the two.

    The trained model has the configuration, settings and seed of ``model`` and becomes a
    checkpoint in ``output_dir``. Run again with the same folder to continue.

    Args:
        model: folder of an attention classifier with attention of its own, the one that is
            compared with.
        guide: the attention classifier whose weights are imposed. Its tokenizer must have
            the same vocabulary, as that of a model trained on the same texts has.
        dataset: the data that all models were trained on, as for
            :func:`hf_attnprobe.retrain`.
        output_dir: a new or empty folder, or that of the same transfer.
        options: a third model to be scored, and the seed of the bootstrap.
        progress: show a bar on stderr.

    Returns:
        The report. Its scores of ``transfer`` are those of ``own``, ``guided`` and
        ``uniform``, with differences to ``own``.

    Raises:
        AttnProbeError: models that do not fit the data or each other: of another kind, with
            other classes or another vocabulary.
    """
    base = load_base(model)
    data = as_data(dataset)
    splits = data.splits(seed=base.settings.seed)
    check_splits(base, splits)
    others = {"guide": _load_other(base, "guide", guide)}
    if options.uniform is not None:
        others["uniform"] = _load_other(base, "uniform", options.uniform)
    identity = identity_of(base, splits, options.seed)
    identity["other_models"] = {name: model_fingerprint(other) for name, other in others.items()}
    folder = Path(output_dir)
    with claim(folder, identity, process_state(), kind=KIND):
        own = base.outputs(splits["test"])
        # Rows first: from here on the folder is this run's, whatever interrupts it.
        _write_rows(folder, "own", own.probs, own)
        trained, guided = _guided(base, others["guide"], splits, folder / "guided", progress)
        probs = {"own": own.probs, "guided": guided}
        if "uniform" in others:
            uniform = predict(others["uniform"], base.tokenizer, splits["test"])
            probs["uniform"] = uniform
        for name, values in probs.items():
            _write_rows(folder, name, values, own)
        scores = compare_probs(own.labels, probs, reference="own", seed=options.seed)
        provenance = identity | {"guide": str(guide), "notes": list(base.notes)}
        report = RetrainingReport(
            model=base.name,
            dataset=dataset_name(data.dataset, "test"),
            n=len(own.labels),
            seed=options.seed,
            statistics=(),
            scores={"transfer": scores},
            models=(as_row(trained, folder),),
            provenance=provenance,
        )
        write_report(report, folder)
    return report


def _load_other(base: Base, role: str, model: str | Path) -> PreTrainedModel:
    """A model that reads the base's tokens and has its classes.

    Args:
        role: ``guide`` or ``uniform``.
    """
    loaded = load_attention_classifier(model, f"as {role}", "choose another")
    config = loaded.config
    is_uniform = config.attention == "uniform"
    if config.attention == "guided" or (role == "uniform" and not is_uniform):
        wanted = "uniform attention" if role == "uniform" else "attention of its own"
        raise AttnProbeError(
            f"expected as {role} a model with {wanted}, that of {model} is "
            f"{config.attention}; choose another"
        )
    if load_tokenizer(model).get_vocab() != base.tokenizer.get_vocab():
        raise AttnProbeError(
            f"expected the same vocabulary in {model} and {base.name}, where every number "
            "stands for the same word; train both on the same texts"
        )
    if class_names(config) != base.labels:
        raise AttnProbeError(
            f"expected the same classes in {model} and {base.name}; train both on the same data"
        )
    return loaded


def _guided(
    base: Base,
    guide: PreTrainedModel,
    splits: Splits,
    folder: Path,
    progress: bool,
) -> tuple[Trained, Tensor]:
    """The model trained with the guide's weights, and its output on the test texts."""
    guides = guides_of(guide, base, splits)
    trained = train_again(
        base,
        splits,
        folder,
        changes={"attention": "guided", "attention_size": None},
        guides=guides,
        progress=lambda made: progress and made.name,
    )
    probs = predict(trained.model, base.tokenizer, splits["test"], guide=guides["test"])
    return trained, probs


def _write_rows(folder: Path, name: str, probs: Tensor, own: Outputs) -> None:
    correct = is_correct(probs, own.labels)
    rows = to_rows("transfer", {f"{name}_correct": correct}, own.example_ids, Site())
    append_rows(folder / "rows", rows, name=name)
