"""The verb ``deceive``: can a model be taught to hide what it looks at?

Source: Pruthi et al. 2020.

Question: if attention to some tokens costs, does the model stop using them, or does it only
          stop looking?
Measure:  on the test texts, before and after further training on
          task loss − λ · log(1 − mass): accuracy, attention mass on the impermissible
          tokens, and how far the output moves (total variation) when they are deleted,
          beside the move when as many other tokens of the same text are deleted (random
          ones, mean of five draws): what is beyond that tells whether they are used, and
          not only that a shorter text is another text. Of a Transformer, the mass in the row
          that the prediction is read from, in the heads of the last layer as in the paper's
          code, or of all layers.
Reading:  mass gone, accuracy kept, and deleting the tokens still matters more than
          deleting others: this attention hides what is used.

The paper's BERT also keeps impermissible and other tokens from attending to each other, so
that nothing can go round; here what other rows attend to is free.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import (
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hf_attnprobe.adapters.pretrained import class_names
from hf_attnprobe.adapters.transformer.layout import query_rows, readout_of
from hf_attnprobe.attention_classifier import (
    AttentionClassifierForSequenceClassification,
)
from hf_attnprobe.attention_model import Observation
from hf_attnprobe.checkpoints.loading import (
    has_trained_attention,
    is_attention_classifier,
    load_model,
    load_tokenizer,
)
from hf_attnprobe.checkpoints.records import check_not_itself, read_record
from hf_attnprobe.data.arguments import as_data
from hf_attnprobe.data.columns import column_of
from hf_attnprobe.data.examples import check_sets, dataset_name
from hf_attnprobe.distributed import check_one_process
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.functional.divergence import tvd
from hf_attnprobe.functional.intervention import random_generator
from hf_attnprobe.inference.encoding import Text, second_texts
from hf_attnprobe.inference.labels import labels_of_model
from hf_attnprobe.inference.outputs import observations, over_texts, predict
from hf_attnprobe.options import public_function
from hf_attnprobe.retraining.base import Splits, load_base, shared_settings
from hf_attnprobe.retraining.deceived import (
    Deception,
    Measured,
    deception_data,
    deception_of,
)
from hf_attnprobe.retraining.options import DeceptionOptions
from hf_attnprobe.storage.folders import write_atomically, write_json
from hf_attnprobe.training.classifier import papers_trainer, procedure_of
from hf_attnprobe.training.fine_tuning import USUAL, trainer_settings
from hf_attnprobe.training.procedures import papers_loss
from hf_attnprobe.training.trainer import (
    PlainTrainer,
    begin,
    check_pads,
    finish,
    make_trainer,
)


if TYPE_CHECKING:
    import datasets

SUMMARY = "deception.json"
N_DRAWS = 5  # of other tokens to delete, per text


@public_function
def deceive(
    model: str | Path,
    dataset: Any,
    tokens: Sequence[str],
    *,
    output_dir: str | Path,
    options: DeceptionOptions = DeceptionOptions(),
    progress: bool = True,
) -> Deception:
    """Trains a classifier further, with a penalty on its attention to some tokens.

    The result is an ordinary checkpoint. Training starts from the weights given, where the
    paper starts from the beginning, and keeps the last epoch: a validation score knows
    nothing of the penalty.

    Args:
        model: folder or Hub id of a trained attention classifier of one level, or of a
            fine-tuned Transformer.
        dataset: the data it was trained on: a :class:`~hf_attnprobe.data.arguments.Data`,
            or a name, a folder, a Hub id or a DatasetDict.
        tokens: the impermissible tokens, which the model must not be seen to attend to.
            Each is a single token of its vocabulary.
        output_dir: a new or empty folder, for the checkpoint, ``deception.json``,
            ``report.html`` and ``report.md``.
        options: the penalty, and how long is trained.
        progress: show a bar on stderr.

    Returns:
        Scores, attention mass and use of the tokens, before and after.

    Raises:
        AttnProbeError: tokens that the vocabulary or the data lack, a model without
            attention to read, or classes that are not the data's.
    """
    check_one_process("deceive")
    check_not_itself(model, output_dir)
    loaded, tokenizer = _load(model, options)
    check_pads(tokenizer)
    ids = impermissible_ids(tokenizer, tokens)
    data = as_data(dataset)
    seed = read_record(Path(model)).get("seed", options.seed)
    splits = data.splits(seed=seed)
    _check_splits(loaded, tokenizer, splits, ids)
    splits = check_sets(**splits)
    measure = partial(
        _measure,
        tokenizer=tokenizer,
        examples=splits["test"],
        ids=ids,
        options=options,
    )
    penalty = {
        name: getattr(options, name)
        for name in ("weight", "over_heads", "layers")
    }
    deceives_on = {"deceives_on": list(tokens), "start": str(model)}
    data_name = dataset_name(data.dataset, "").name
    with begin(output_dir, options.seed) as folder:
        (folder / SUMMARY).unlink(
            missing_ok=True
        )  # of a model that is written over
        before = measure(loaded)
        trainer, used = _trainer(
            model, loaded, tokenizer, splits, folder, ids, options, progress
        )
        record = {**used, **penalty, **deceives_on}
        trained = finish(
            trainer, tokenizer, folder, record, data_name=data_name
        )
        result = deception_of(
            before,
            measure(trained.model),
            seed=options.seed,
            model=str(model),
            dataset=dataset_name(data.dataset, "test"),
            tokens=tuple(tokens),
            **penalty,
        )
        write_json(folder / SUMMARY, deception_data(result))
        write_atomically(folder / "report.html", result.to_html())
        write_atomically(folder / "report.md", result.to_markdown())
    return result


class DeceptionTrainer(PlainTrainer):
    """Adds the penalty to the loss of every training batch."""

    def __init__(
        self,
        *args: Any,
        impermissible: Tensor,
        options: DeceptionOptions,
        **others: Any,
    ) -> None:
        super().__init__(*args, **others)
        self.impermissible, self.deception = impermissible, options

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The loss of the task and the penalty; in evaluation, of the task alone."""
        if not model.training:
            return super().compute_loss(model, inputs, return_outputs)
        assert isinstance(model, PreTrainedModel)
        assert self.compute_loss_func is not None  # _trainer gives one
        labels = inputs.pop("labels")
        outputs = model(**inputs, output_attentions=True)
        impermissible = torch.isin(
            inputs["input_ids"], self.impermissible.to(labels.device)
        )
        layers = outputs.attentions
        if self.deception.layers == "last":
            layers = layers[-1:]
        attention = read_rows(model.config, layers, inputs["attention_mask"])
        penalty = self.deception.weight * deception_penalty(
            attention, impermissible, over_heads=self.deception.over_heads
        )
        loss = self.compute_loss_func(outputs, labels, penalty=penalty)
        return (loss, outputs) if return_outputs else loss


def read_rows(
    config: PreTrainedConfig,
    attentions: Sequence[Tensor],
    attention_mask: Tensor,
) -> Tensor:
    """The attention that predictions are read from, of all heads, [batch, heads, keys].

    Args:
        attentions: of some layers, each [batch, heads, queries, keys].
        attention_mask: [batch, keys].
    """
    if is_attention_classifier(config):
        return attentions[-1][:, :, 0]
    visible = attentions[0].detach().gt(0).any(1)
    rows = query_rows(
        readout_of(config, None), "layer", visible, attention_mask.bool()
    ).to(attentions[0].dtype)
    read = [torch.einsum("bq,bhqk->bhk", rows, layer) for layer in attentions]
    return torch.cat(read, dim=1)


def impermissible_ids(
    tokenizer: PreTrainedTokenizerBase, tokens: Sequence[str]
) -> Tensor:
    """Ids of the impermissible tokens, at the beginning of a text and inside of it.

    Raises:
        AttnProbeError: no tokens, or one that is not a single token of the vocabulary.
    """
    if isinstance(tokens, str) or not tokens:
        raise AttnProbeError(
            "expected a list of tokens to hide attention to; name at least one"
        )
    special, ids = set(tokenizer.all_special_ids), set()
    for token in tokens:
        at_start, inside = (
            tokenizer(form, add_special_tokens=False)["input_ids"]
            for form in (token, f" {token}")
        )
        single = {
            cut[0] for cut in (at_start, inside) if len(cut) == 1
        } - special
        if not single:
            pieces = (
                ", ".join(tokenizer.convert_ids_to_tokens(at_start))
                or "nothing"
            )
            raise AttnProbeError(
                f"expected single tokens of the model's vocabulary, {token!r} is {pieces}; "
                "name others"
            )
        ids |= single
    return torch.tensor(sorted(ids))


def _load(
    model: str | Path, options: DeceptionOptions
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model in eval mode, made to return its attention, and its tokenizer."""
    trusted = options.trust_remote_code
    loaded = load_model(
        model,
        task="text-classification",
        trust_remote_code=trusted,
        allow_pickle=options.allow_pickle,
    )
    if not is_attention_classifier(loaded.config):
        loaded.set_attn_implementation(
            "eager"
        )  # the others return no attention
    elif not has_trained_attention(loaded.config):
        raise AttnProbeError(
            f"expected one level of trained attention to deceive with, {model} has none; "
            "choose another"
        )
    return loaded.eval(), load_tokenizer(model, trust_remote_code=trusted)


def _check_splits(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    splits: Splits,
    ids: Tensor,
) -> None:
    """Checks that there is something to measure, something to hide, and attention to read.

    Raises:
        AttnProbeError: no test texts, classes under other numbers than the model's, no
            impermissible token in the training texts, or a model that returns no attention.
    """
    if "test" not in splits:
        raise AttnProbeError(
            "expected test texts with labels to measure on, there are none; add the split test"
        )
    train = splits["train"]
    labels = column_of(train, "label")
    if labels_of_model(class_names(model.config), train) != labels:
        raise AttnProbeError(
            "expected data that numbers its classes as the model does; choose the data it "
            "was trained on"
        )
    texts, seconds = column_of(train, "text"), second_texts(train)
    rows = tokenizer(texts, seconds, truncation=True)["input_ids"]
    wanted = set(ids.tolist())
    if not any(wanted.intersection(row) for row in rows):
        raise AttnProbeError(
            "expected the impermissible tokens in the training texts, none has any; name others"
        )
    with torch.no_grad():
        outputs = model(torch.tensor(rows[:1]), output_attentions=True)
    if not getattr(outputs, "attentions", None):
        raise AttnProbeError(
            f"expected a model that returns its attention, {type(model).__name__} does not"
        )


def _trainer(
    model: str | Path,
    loaded: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    splits: Splits,
    folder: Path,
    ids: Tensor,
    options: DeceptionOptions,
    progress: bool,
) -> tuple[PlainTrainer, dict[str, Any]]:
    """A Trainer, and the settings it has.

    An attention classifier is trained as it was before, but for epochs and batches; a
    Transformer as :func:`hf_attnprobe.training.fine_tuning.fine_tune` does it.
    """
    names = ("seed", "epochs", "batch_size", "learning_rate")
    used = {name: getattr(options, name) for name in names}
    settings: dict[str, Any] = {
        "save_strategy": "no",
        "load_best_model_at_end": False,
    }
    weighted = False
    run = partial(make_trainer, loaded, tokenizer, splits, folder)
    if isinstance(loaded, AttentionClassifierForSequenceClassification):
        before = load_base(model, **used).settings
        used = shared_settings(before)
        procedure = procedure_of(before, loaded.config)
        procedure = replace(procedure, plateau_factor=1.0, patience=None)
        weighted = procedure.weighted
        run = partial(
            papers_trainer,
            loaded,
            tokenizer,
            splits,
            folder,
            procedure,
            seed=options.seed,
        )
    else:
        used["learning_rate"] = options.learning_rate or USUAL["learning_rate"]
        used["weight_decay"] = USUAL["weight_decay"]
        settings |= trainer_settings(used) | {"seed": options.seed}
    n_classes = len(class_names(loaded.config))
    trainer = run(
        settings=settings,
        progress=progress,
        kind=partial(DeceptionTrainer, impermissible=ids, options=options),
        compute_loss_func=papers_loss(
            splits["train"], n_classes, weighted=weighted
        ),
    )
    return trainer, used


@torch.no_grad()
def _measure(
    model: PreTrainedModel,
    *,
    tokenizer: PreTrainedTokenizerBase,
    examples: "datasets.Dataset",
    ids: Tensor,
    options: DeceptionOptions,
) -> Measured:
    """Measures the test texts through the adapters, which know of no penalty."""
    masses = partial(_masses, ids=ids.to(model.device), layers=options.layers)
    observed = observations(model, tokenizer, examples, level="token")
    measured = {
        name: values.double()
        for name, values in over_texts(observed, masses).items()
    }
    probs = measured["probs"]
    run = partial(predict, model, tokenizer, examples)
    named = frozenset(ids.tolist())
    measured["moved"] = tvd(
        probs, run(edit=partial(without_named, named=named))
    )
    controls = []
    for draw in range(N_DRAWS):
        edit = partial(
            without_others, named=named, seed=options.seed, draw=draw
        )
        controls.append(tvd(probs, run(edit=edit)))
    control = torch.stack(controls).mean(0)
    measured["control"] = control.masked_fill(
        measured["named"] > 0.5, torch.nan
    )
    return Measured(
        **{name: values.numpy() for name, values in measured.items()}
    )


def _masses(
    observation: Observation, ids: Tensor, layers: str
) -> dict[str, Tensor]:
    """Output, and attention to impermissible tokens, each [batch, …]."""
    batch, sites = observation.batch, observation.model.sites()
    content = batch.content_mask
    impermissible = torch.isin(batch.inputs["input_ids"], ids) & content
    if layers == "last":
        last = max(site.layer for site in sites)
        sites = [site for site in sites if site.layer == last]
    masses = [
        (observation.read(site) * impermissible).sum(-1) for site in sites
    ]
    of_heads = torch.stack(masses).double()
    assert batch.labels is not None  # ``collate`` gives every batch its labels
    return {
        "labels": batch.labels,
        "probs": observation.probs,
        "named": impermissible.sum(-1) / content.sum(-1),
        "mean_mass": of_heads.mean(0),
        "largest_mass": of_heads.amax(0),
    }


def without_named(text: Text, named: Collection[int]) -> list[int]:
    """The ids of a text without the named ones."""
    return [token for token in text.inputs["input_ids"] if token not in named]


def without_others(
    text: Text, named: Collection[int], *, seed: int, draw: int
) -> list[int]:
    """The ids of a text without as many others as it has named ones, drawn at random.

    Special tokens stay. A text with more named tokens than others comes back whole.
    """
    ids, is_special = (
        text.inputs["input_ids"],
        text.inputs["special_tokens_mask"],
    )
    others, n_named = [], 0
    for place, token in enumerate(ids):
        if token in named:
            n_named += 1
        elif not is_special[place]:
            others.append(place)
    if n_named > len(others):
        return ids
    generator = random_generator(seed, text.example_id, draw)
    deleted = (
        set(generator.choice(others, n_named, replace=False)) if n_named else ()
    )
    return [token for place, token in enumerate(ids) if place not in deleted]


def deception_penalty(
    attention: Tensor, impermissible: Tensor, *, over_heads: str = "mean"
) -> Tensor:
    """The cost −log(1 − αᵀm) of attention to impermissible tokens, [batch].

    1 − αᵀm is computed as the other tokens' share of all weight, clamped at 1e-10. It is
    finite, has a gradient where αᵀm rounds to 1, and does not change under dropout of the
    weights. A text without impermissible tokens costs 0.
    Source: Pruthi et al. 2020, released code.

    Args:
        attention: [batch, heads, keys].
        impermissible: bool [batch, keys].
        over_heads: ``mean`` of the heads' costs, or ``max``, the most costly head's.
    """
    permitted = ~impermissible[:, None]
    left = (attention * permitted).sum(-1).clamp_min(1e-10)
    whole = (attention * torch.ones_like(permitted)).sum(-1).clamp_min(1e-10)
    costs = (whole.log() - left.log()) * impermissible.any(-1, keepdim=True)
    if over_heads == "max":
        return costs.amax(-1)
    return costs.mean(-1)
