"""Do one model's weights tell another one something? The guides of ``diagnostic_mlp`` for any pair of models."""

import json
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from hf_attnprobe.attention_model import Site
from hf_attnprobe.checkpoints import load_model, load_tokenizer
from hf_attnprobe.data.examples import dataset_fingerprint, dataset_name
from hf_attnprobe.data.splits import load_splits
from hf_attnprobe.distributed import process_state
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.functional.fingerprint import model_fingerprint
from hf_attnprobe.inference.outputs import Outputs, predict
from hf_attnprobe.retraining.base import (
    SPLITS,
    Base,
    Trained,
    check_splits,
    load_base,
    train_again,
)
from hf_attnprobe.retraining.diagnostic_mlp import guides_of
from hf_attnprobe.retraining.report import (
    RetrainingReport,
    TrainedModel,
    to_json,
    to_markdown,
)
from hf_attnprobe.retraining.run import IDENTITY
from hf_attnprobe.statistics.scores import compare
from hf_attnprobe.storage.folders import claim, write_atomically
from hf_attnprobe.storage.provenance import SUMMARY
from hf_attnprobe.storage.rows import append_rows, to_rows


def transfer(
    model: str | Path,
    dataset,
    *,
    guide: str | Path,
    output_dir: str | Path,
    uniform: str | Path | None = None,
    config: str | None = None,
    text_column: str | None = None,
    label_column: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    progress: bool = True,
) -> RetrainingReport:
    """Trains a model of the same configuration whose attention is imposed by another one, and compares the two.

    The trained model becomes a checkpoint in ``output_dir``; run again with the same folder to continue.

    Args:
        model: folder of an attention classifier with attention of its own, the one that is compared with.
        dataset, config, text_column, label_column, limit: the data that all models were trained on, see
            :func:`hf_attnprobe.retraining.run.retrain`.
        guide: the attention classifier whose weights are imposed; its tokenizer must have the same vocabulary, as that of
            a model trained on the same texts has.
        uniform: one trained with uniform attention, to be scored beside them; with the same vocabulary too.
        seed: of the bootstrap; the model is trained with the settings and the seed of ``model``.
        progress: a bar on stderr.

    Returns:
        The report; its scores of ``transfer`` are those of ``own``, ``guided`` and ``uniform``, with ``own`` as the
        reference of the differences.

    Raises:
        AttnProbeError: models that do not fit the data or each other: of another kind, with other classes or another
            vocabulary.
    """
    base = load_base(model)
    columns = {
        "config": config,
        "text_column": text_column,
        "label_column": label_column,
        "limit": limit,
    }
    sets = load_splits(dataset, seed=base.settings["seed"], **columns)
    check_splits(base, sets)
    given = {"guide": guide, "uniform": uniform}
    others = {
        name: _load_other(base, name, other)
        for name, other in given.items()
        if other is not None
    }
    identity = _identity(base, others, sets, seed)
    folder = Path(output_dir)
    with claim(folder, identity, process_state(), name=IDENTITY):
        own = base.outputs(sets["test"])
        _write_rows(folder, "own", own.probs, own)
        probs = {"own": own.probs}
        trained, probs["guided"] = _guided(
            base, others["guide"], sets, folder / "guided", progress
        )
        if uniform is not None:
            probs["uniform"] = predict(others["uniform"], base.tokenizer, sets["test"])
        for name, found in probs.items():
            _write_rows(folder, name, found, own)
        scores = compare(
            own.labels,
            {k: p.numpy() for k, p in probs.items()},
            reference="own",
            seed=seed,
        )
        report = _report(
            base, dataset, guide, trained, scores, len(own.labels), identity
        )
        write_atomically(folder / SUMMARY, json.dumps(to_json(report), indent=1) + "\n")
        write_atomically(folder / "report.md", to_markdown(report))
    return report


def _load_other(base: Base, name: str, model: str | Path):
    """A model that reads the base's tokens and has its classes."""
    loaded, own = load_model(model).eval(), base.model.config
    if loaded.config.model_type != own.model_type:
        raise AttnProbeError(
            f"expected an attention classifier as {name}, {model} is a {loaded.config.model_type}; choose another"
        )
    if (
        name == "uniform" and loaded.config.attention != "uniform"
    ) or loaded.config.attention == "guided":
        raise AttnProbeError(
            f"expected as {name} a model with {'uniform attention' if name == 'uniform' else 'attention of its own'}, that of "
            f"{model} is {loaded.config.attention}; choose another"
        )
    if load_tokenizer(model).get_vocab() != base.tokenizer.get_vocab():
        raise AttnProbeError(
            f"expected the same vocabulary in {model} and {base.name}, where every number stands for the same word; train both on "
            "the same texts"
        )
    if [str(loaded.config.id2label[k]) for k in range(loaded.config.num_labels)] != [
        str(own.id2label[k]) for k in range(own.num_labels)
    ]:
        raise AttnProbeError(
            f"expected the same classes in {model} and {base.name}; train both on the same data"
        )
    return loaded


def _guided(
    base: Base, guide, sets: Mapping, folder: Path, progress: bool
) -> tuple[Trained, Tensor]:
    """The model trained with the guide's weights, and what it says of the test texts."""
    guides, changes = (
        guides_of(guide, base, sets),
        {"attention": "guided", "attention_size": None},
    )
    trained = train_again(
        base,
        sets,
        folder,
        changes=changes,
        guides=guides,
        progress=lambda made: progress and made.name,
    )
    return trained, predict(
        trained.model, base.tokenizer, sets["test"], guide=guides["test"]
    )


def _identity(base: Base, others: Mapping, sets: Mapping, seed: int) -> dict:
    return {
        "model_fingerprint": model_fingerprint(base.model),
        "other_models": {
            name: model_fingerprint(other) for name, other in others.items()
        },
        "data_fingerprint": {name: dataset_fingerprint(sets[name]) for name in SPLITS},
        "seed": seed,
        "settings": dict(base.settings),
    }


def _write_rows(folder: Path, name: str, probs: Tensor, own: Outputs) -> None:
    correct = (probs.argmax(-1) == own.labels).double()
    rows = to_rows("transfer", {f"{name}_correct": correct}, own.example_ids, Site())
    append_rows(folder / "rows", rows, name=name)


def _report(
    base: Base, dataset, guide, trained: Trained, scores, n: int, identity: Mapping
) -> RetrainingReport:
    return RetrainingReport(
        model=base.name,
        dataset=dataset_name(dataset, "test"),
        n=n,
        seed=identity["seed"],
        statistics=(),
        scores={"transfer": scores},
        models=(
            TrainedModel(
                "guided", trained.seconds, trained.n_epochs, dict(trained.metrics)
            ),
        ),
        provenance=dict(identity) | {"guide": str(guide), "notes": list(base.notes)},
    )
