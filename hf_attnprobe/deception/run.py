"""Can a model be taught to hide what it looks at? Pruthi et al. 2020: a penalty on attention to named tokens.

Question: if attention to some tokens costs, does the model stop using them, or does it only stop looking?
Measure:  on the test texts, before and after further training on task loss − λ · log(1 − mass): accuracy, attention
          mass on the named tokens, and how far the output moves (total variation) when they are deleted, which tells
          whether they are still used. Of a Transformer the mass in the row that the prediction is read from, in the
          heads of the last layer as in the paper's code, or of all layers.
Reading:  mass gone, accuracy kept, and deleting the tokens still matters: this attention hides what is used.

The paper's BERT also keeps named and other tokens from attending to each other, so that nothing can go round; here what
other rows attend to is free.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import torch
from torch import Tensor

from hf_attnprobe.adapters.pretrained import PretrainedFacts
from hf_attnprobe.adapters.transformer.readout import query_rows, readout_of
from hf_attnprobe.attention_classifier import AttentionClassifierConfig
from hf_attnprobe.checkpoints import (
    check_not_itself,
    load_model,
    load_tokenizer,
    read_record,
)
from hf_attnprobe.data.examples import dataset_name
from hf_attnprobe.data.splits import load_splits
from hf_attnprobe.deception.report import Deception, Measured, deception_of, to_json
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.functional.divergence import tvd
from hf_attnprobe.inference.encoding import labels_of_model
from hf_attnprobe.inference.outputs import observations, predict
from hf_attnprobe.options import check_at_least
from hf_attnprobe.retraining.base import load_base
from hf_attnprobe.storage.folders import write_atomically
from hf_attnprobe.training.classifier import begin
from hf_attnprobe.training.losses import deception_penalty, papers_loss
from hf_attnprobe.training.procedures import papers_optimizer, papers_procedure
from hf_attnprobe.training.resuming import finish
from hf_attnprobe.training.trainer import PlainTrainer, check_pads, make_trainer


SUMMARY = "deception.json"


def deceive(
    model: str | Path,
    dataset,
    *,
    tokens: Sequence[str],
    output_dir: str | Path,
    weight: float = 1.0,
    over_heads: Literal["mean", "max"] = "mean",
    layers: Literal["last", "all"] = "last",
    epochs: int = 5,
    batch_size: int = 32,
    learning_rate: float | None = None,
    config: str | None = None,
    text_column: str | Sequence[str] | None = None,
    label_column: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    trust_remote_code: bool = False,
    progress: bool = True,
) -> Deception:
    """Trains a classifier on, with a penalty on its attention to some tokens, and saves it as an ordinary checkpoint.

    It starts from the weights given, where the paper trains from the beginning, and ends with those of the last epoch:
    a validation score knows nothing of the penalty.

    Args:
        model: folder or Hub id of a trained attention classifier of one level, or of a fine-tuned Transformer.
        dataset, config, text_column, label_column: the data it was trained on, see
            :func:`hf_attnprobe.data.examples.load_examples`. limit: so many training texts.
        tokens: those that must not be seen to be attended to, each a single token of the model's vocabulary.
        output_dir: a new or empty folder, for the checkpoint and ``deception.json``.
        weight: λ of the penalty; the paper has 0.1 and 1. It weighs against the loss of the penalty's own text.
        over_heads: ``mean`` of the penalties of all heads, or the ``max``, that of a text's worst one (in the paper's
            code, of the batch's).
        layers: of a Transformer, whose heads are penalised and measured: those of the ``last`` layer, or of ``all``.
        learning_rate: None is the attention classifier's own, 5e-5 for a Transformer.
        progress: a bar on stderr.

    Raises:
        AttnProbeError: tokens that the vocabulary or the data lack, a model without attention to read, or classes that
            are not the data's.
    """
    if over_heads not in ("mean", "max"):
        raise AttnProbeError(
            f"expected over_heads to be mean or max, got {over_heads!r}"
        )
    if layers not in ("last", "all"):
        raise AttnProbeError(f"expected layers to be last or all, got {layers!r}")
    check_at_least(0, weight=weight, learning_rate=learning_rate)
    check_at_least(1, epochs=epochs, batch_size=batch_size)
    check_not_itself(model, output_dir)
    loaded, tokenizer = _load(model, trust_remote_code)
    check_pads(tokenizer)
    ids = named_ids(tokenizer, tokens)
    columns = {
        "config": config,
        "text_column": text_column,
        "label_column": label_column,
        "limit": limit,
    }
    splits = load_splits(
        dataset, seed=read_record(Path(model)).get("seed", seed), **columns
    )
    _check_splits(loaded, tokenizer, splits, ids)
    folder, sets, _ = begin(
        output_dir, splits["train"], splits["validation"], splits["test"], seed
    )
    before = _measure(loaded, tokenizer, sets["test"], ids, layers)
    settings = {
        "seed": seed,
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
    }
    trainer, used = _trainer(
        model,
        loaded,
        tokenizer,
        sets,
        folder,
        settings,
        progress=progress,
        kind=partial(
            DeceptionTrainer,
            named=ids,
            weight=weight,
            over_heads=over_heads,
            layers=layers,
        ),
    )
    how = {"weight": weight, "over_heads": over_heads, "layers": layers}
    finish(
        trainer,
        tokenizer,
        folder,
        used | how | {"deceives_on": list(tokens), "start": str(model)},
    )
    after = _measure(trainer.model, tokenizer, sets["test"], ids, layers)
    told = {
        "model": str(model),
        "dataset": dataset_name(dataset, "test"),
        "tokens": tuple(tokens),
    }
    found = deception_of(before, after, seed=seed, **told, **how)
    write_atomically(folder / SUMMARY, json.dumps(to_json(found), indent=1) + "\n")
    return found


class DeceptionTrainer(PlainTrainer):
    """Adds the penalty to the loss of every training batch."""

    def __init__(
        self,
        *args,
        named: Tensor,
        weight: float,
        over_heads: str,
        layers: str,
        **options,
    ):
        super().__init__(*args, **options)
        self.named, self.weight, self.over_heads, self.layers = (
            named,
            weight,
            over_heads,
            layers,
        )

    def compute_loss(self, model, inputs, return_outputs=False, **options):
        if not model.training:
            return super().compute_loss(model, inputs, return_outputs, **options)
        labels = inputs.pop("labels")
        outputs = model(**inputs, output_attentions=True)
        named = torch.isin(inputs["input_ids"], self.named.to(labels.device))
        shown = outputs.attentions[-1:] if self.layers == "last" else outputs.attentions
        attention = read_rows(model.config, shown, inputs["attention_mask"])
        penalty = self.weight * deception_penalty(
            attention, named, over_heads=self.over_heads
        )
        own = getattr(outputs, "regularization", None)
        penalty = penalty if own is None else penalty + own
        loss = self.compute_loss_func(
            SimpleNamespace(logits=outputs.logits, regularization=penalty), labels
        )
        return (loss, outputs) if return_outputs else loss


def read_rows(config, attentions: Sequence[Tensor], attention_mask: Tensor) -> Tensor:
    """The attention that predictions are read from, of the heads of all layers given, [batch, heads, keys]."""
    if config.model_type == AttentionClassifierConfig.model_type:
        return attentions[-1][:, :, 0]
    visible = attentions[0].detach().gt(0).any(1)
    rows = query_rows(
        readout_of(config, None), "layer", visible, attention_mask.bool()
    ).to(attentions[0].dtype)
    return torch.cat(
        [torch.einsum("bq,bhqk->bhk", rows, attention) for attention in attentions],
        dim=1,
    )


def named_ids(tokenizer, tokens: Sequence[str]) -> Tensor:
    """Ids of the named tokens, at the beginning of a text and inside of it."""
    if isinstance(tokens, str) or not tokens:
        raise AttnProbeError(
            "expected a list of tokens to hide attention to; name at least one"
        )
    special, ids = set(tokenizer.all_special_ids), set()
    for token in tokens:
        cut = [
            tokenizer(form, add_special_tokens=False)["input_ids"]
            for form in (token, f" {token}")
        ]
        single = {form[0] for form in cut if len(form) == 1} - special
        if not single:
            pieces = ", ".join(tokenizer.convert_ids_to_tokens(cut[0]))
            raise AttnProbeError(
                f"expected single tokens of the model's vocabulary, {token!r} is {pieces or 'nothing'}; name others"
            )
        ids |= single
    return torch.tensor(sorted(ids))


def _load(model: str | Path, trust_remote_code: bool):
    loaded = load_model(model, trust_remote_code=trust_remote_code)
    if loaded.config.model_type != AttentionClassifierConfig.model_type:
        loaded.set_attn_implementation("eager")  # the others return no attention
    elif loaded.config.hierarchical or loaded.config.attention in ("uniform", "guided"):
        raise AttnProbeError(
            f"expected one level of trained attention to deceive with, {model} has none; choose another"
        )
    return loaded.eval(), load_tokenizer(model, trust_remote_code=trust_remote_code)


def _check_splits(model, tokenizer, splits: Mapping, ids: Tensor) -> None:
    """There are test texts, with the model's classes under its numbers; named tokens in training; attention to read."""
    if "test" not in splits:
        raise AttnProbeError(
            "expected test texts with labels to measure on, there are none; add the split test"
        )
    train = splits["train"]
    if (
        labels_of_model(PretrainedFacts(model).label_names, train)
        != train.with_format(None)["label"][:]
    ):
        raise AttnProbeError(
            "expected data that numbers its classes as the model does; choose the data it was trained on"
        )
    rows = tokenizer(train.with_format(None)["text"][:], truncation=True)["input_ids"]
    wanted = set(ids.tolist())
    if not any(wanted.intersection(row) for row in rows):
        raise AttnProbeError(
            "expected the named tokens in the training texts, none has any; name others"
        )
    with torch.no_grad():
        shown = getattr(
            model(torch.tensor(rows[:1]), output_attentions=True), "attentions", None
        )
    if not shown:
        raise AttnProbeError(
            f"expected a model that returns its attention, {type(model).__name__} does not"
        )


def _trainer(
    model, loaded, tokenizer, sets: Mapping, folder: Path, settings: dict, **options
):
    """As the model was trained, but for epochs and batches, and what was used; a Transformer with AdamW."""
    train, n_classes = sets["train"], loaded.config.num_labels
    arguments = {
        "num_train_epochs": settings["epochs"],
        "per_device_train_batch_size": settings["batch_size"],
        "seed": settings["seed"],
        "save_strategy": "no",
        "load_best_model_at_end": False,
    }
    if loaded.config.model_type == AttentionClassifierConfig.model_type:
        used = dict(load_base(model, **settings).settings)
        procedure = papers_procedure(used["recipe"], loaded.config.encoder)
        rates = {name: used[name] for name in ("learning_rate", "weight_decay")}
        optimizer = papers_optimizer(loaded, **rates, amsgrad=procedure.amsgrad)
        options["optimizers"] = (
            optimizer,
            torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0),
        )
        arguments["max_grad_norm"], weighted = used["max_grad_norm"], procedure.weighted
    else:
        used = settings | {
            "learning_rate": settings["learning_rate"] or 5e-5,
            "weight_decay": 0.01,
        }
        arguments |= {
            "learning_rate": used["learning_rate"],
            "weight_decay": 0.01,
            "warmup_steps": 0.1,
        }
        weighted = False
    loss = papers_loss(train, n_classes, weighted=weighted)
    return make_trainer(
        loaded,
        tokenizer,
        sets,
        folder,
        settings=arguments,
        compute_loss_func=loss,
        **options,
    ), used


@torch.no_grad()
def _measure(model, tokenizer, examples, ids: Tensor, layers: str) -> Measured:
    """Through the adapters, which know of no penalty."""
    parts = []
    for observation in observations(model, tokenizer, examples, level="token"):
        batch, adapter = observation.batch, observation.model
        content = batch.content_mask
        named = torch.isin(batch.inputs["input_ids"], ids.to(content.device)) & content
        sites = adapter.sites()
        first = max(site.layer for site in sites) if layers == "last" else 0
        masses = [
            (observation.read(site) * named).sum(-1)
            for site in sites
            if site.layer >= first
        ]
        masses = torch.stack(masses).double()
        share = named.sum(-1) / content.sum(-1)
        columns = batch.labels, observation.probs, share, masses.mean(0), masses.amax(0)
        parts.append(
            (torch.tensor(batch.example_ids), *(column.cpu() for column in columns))
        )
    example_ids, *columns = (torch.cat(column) for column in zip(*parts, strict=True))
    labels, probs, *others = (column[example_ids.argsort()] for column in columns)
    without = predict(model, tokenizer, examples, without=set(ids.tolist()))
    return Measured(
        *(
            column.double().numpy()
            for column in (labels, probs, *others, tvd(probs.double(), without))
        )
    )
