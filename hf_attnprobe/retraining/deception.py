"""The test ``deception``: can a model learn to hide that it uses certain words?

Source: Pruthi et al. 2020.

Question: if attention to some words is penalised, does the model stop using them, or does it only
stop attending to them?
Measure: the base model is trained further with the loss "task loss − λ · log(1 − mass)". The mass
is the attention to the impermissible words. Before and after this training, three numbers are
measured on the test texts: accuracy, attention mass on the words, and the output change (total
variation distance) when the words are deleted. In a Transformer, the mass is read from the
attention row that determines the prediction. The heads are those in the last layer, as in the
paper's code, or in all layers.
Compare: with the output change when equally many random other words are deleted from the text (mean
over five draws). Every deletion changes the text, so only a change beyond this control shows that a
word is used.
Reading: if the mass is gone, accuracy is kept, and deleting the words still changes the output more
than deleting other words, then the attention hides part of the evidence for the predictions.

In the paper's BERT, impermissible and other tokens also do not attend to each other, so that no
information can take another path. Here the attention in all other rows is unrestricted.
"""

import copy
from collections.abc import Callable, Collection, Iterator, Sequence
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

from hf_attnprobe.adapters.transformer.layout import choose_readout, compute_row_weights
from hf_attnprobe.checkpoints.loading import is_attention_classifier
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.readings import make_share_reading
from hf_attnprobe.data.columns import read_column
from hf_attnprobe.data.examples import prepare_splits
from hf_attnprobe.functional.divergence import tvd
from hf_attnprobe.functional.intervention import create_random_generator
from hf_attnprobe.inference.encoding import Text, get_second_texts
from hf_attnprobe.inference.labels import convert_class_labels
from hf_attnprobe.inference.outputs import measure_texts, observe_split, predict
from hf_attnprobe.models.attention_classifier import (
    AttentionClassifierForSequenceClassification,
)
from hf_attnprobe.protocol import Observation
from hf_attnprobe.retraining import register_retraining
from hf_attnprobe.retraining.base_model import (
    BaseModel,
    ProgressSetting,
    RetrainingSetup,
    Splits,
    TrainedVariant,
    Variant,
    VariantResults,
    build_trained_variant,
    get_shared_settings,
)
from hf_attnprobe.retraining.options import Deception
from hf_attnprobe.retraining.verdict import DECEIVED_MODEL
from hf_attnprobe.training.classifier import make_paper_trainer, resolve_procedure
from hf_attnprobe.training.options import TrainingOptions
from hf_attnprobe.training.procedures import make_paper_loss
from hf_attnprobe.training.run import FINE_TUNING_DEFAULTS, make_trainer_arguments
from hf_attnprobe.training.trainer import (
    PlainTrainer,
    check_padding_token,
    make_trainer,
    train_or_load,
)


if TYPE_CHECKING:
    import datasets

LAST_EPOCH_ARGUMENTS = {"save_strategy": "no", "load_best_model_at_end": False}
"""Arguments for the Trainer of Transformers that keep the weights after the last epoch.

The epoch with the best validation score would be wrong, because this score ignores the penalty on
attention.
"""
N_CONTROL_DELETIONS = 5
"""Number of control deletions for each text. Each deletes random other words instead of the
impermissible words."""


def add_differences(results: VariantResults, options: Deception) -> None:
    """Add statistics about how much a model attends to certain words, and how much it uses them.

    The model was trained further to attend less to these words, which are called impermissible.

    - ``hidden_mass``: half of the attention to the words before the training, minus the attention
      to them after the training. It is positive if more than half of the attention is gone.
    - ``before_use`` and ``after_use``: output change if the words are deleted, minus the output
      change if as many other words are deleted (the control).

    Args:
        results: Measurements of both models, to which the statistics are added.
        options: Not used.
    """
    statistics = results.statistics
    # Both models read the same texts, so the share of impermissible words is stored once.
    statistics["word_share"] = statistics.pop("before_word_share")
    del statistics["after_word_share"]
    statistics["hidden_mass"] = statistics["before_mass"] / 2 - statistics["after_mass"]
    for time in ("before", "after"):
        change = statistics[f"{time}_word_tvd"]
        control = statistics[f"{time}_control_tvd"]
        statistics[f"{time}_use"] = change - control


def check_deception(setup: RetrainingSetup, options: Deception) -> None:
    """Check that a training can hide the words and that the model returns its attention.

    Args:
        setup: Inputs that all tests share, such as the base model and the texts.
        options: Test options with the impermissible words.

    Raises:
        AttnProbeError: If the tokenizer has no padding token, if a word is not a single token, if
            no training text contains any of the words, if the data number their classes
            differently from the model, or if the model does not return its attention.
    """
    base = setup.base
    check_padding_token(base.tokenizer)
    word_ids = set(find_word_ids(base.tokenizer, options.words or ()).tolist())
    train = setup.splits["train"]
    if convert_class_labels(base.class_names, train) != read_column(train, "label"):
        raise AttnProbeError(
            f"the data and {base.name} have the same classes in a different order. Choose the data "
            "that the model was trained on."
        )
    texts, second_texts = read_column(train, "text"), get_second_texts(train)
    token_rows = base.tokenizer(texts, second_texts, truncation=True)["input_ids"]
    if not any(word_ids.intersection(tokens) for tokens in token_rows):
        raise AttnProbeError(
            f"none of the words {', '.join(options.words or ())} occurs in the training texts. "
            "Choose other words with deception.words."
        )
    with torch.no_grad():
        outputs = base.model(torch.tensor(token_rows[:1]), output_attentions=True)
    if not getattr(outputs, "attentions", None):
        raise AttnProbeError(
            f"{type(base.model).__name__} does not return its attention, which the test deception "
            "needs. Choose another --model."
        )


@register_retraining(
    title="The base model trained further to hide its attention to some words",
    summarize=add_differences,
    check=check_deception,
    trains_from_scratch=False,
    readings={
        "word_share": "{mean:.1%} of the words in a text are impermissible",
        "before_mass": "before the training, impermissible words have {mean:.2f} of the attention",
        "after_mass": "after the training, impermissible words have {mean:.2f} of the attention",
        "before_largest_mass": (
            "before the training, the head with the most attention to impermissible words gives "
            "them {mean:.2f} of its attention"
        ),
        "after_largest_mass": (
            "after the training, the head with the most attention to impermissible words gives "
            "them {mean:.2f} of its attention"
        ),
        "hidden_mass": (
            "half of the attention to impermissible words before the training minus the attention "
            "after it is {mean:.2f}"
        ),
        "before_word_tvd": (
            "before the training, deleting the impermissible words changes the output by "
            "{mean:.3f} (total variation distance, at most 1)"
        ),
        "after_word_tvd": (
            "after the training, deleting the impermissible words changes the output by {mean:.3f}"
        ),
        "before_control_tvd": (
            "before the training, deleting as many other words changes the output by {mean:.3f}"
        ),
        "after_control_tvd": (
            "after the training, deleting as many other words changes the output by {mean:.3f}"
        ),
        "before_use": (
            "before the training, deleting the impermissible words changes the output by "
            "{mean:.3f} more than deleting others"
        ),
        "after_use": (
            "after the training, deleting the impermissible words changes the output by "
            "{mean:.3f} more than deleting others"
        ),
        "before_correct": make_share_reading(
            "before the training, {mean:.0%} of the texts are correct"
        ),
        "after_correct": make_share_reading(
            "after the training, {mean:.0%} of the texts are correct"
        ),
    },
)
def deception(setup: RetrainingSetup, options: Deception) -> Iterator[Variant]:
    """Yield the base model before and after further training with the penalty.

    Args:
        setup: Inputs that all tests share, such as the base model and the texts.
        options: The words, the penalty and the training settings.
    """
    word_ids = find_word_ids(setup.base.tokenizer, options.words or ())
    measure = partial(measure_use_of_words, word_ids=word_ids, options=options, seed=setup.seed)
    train = partial(
        train_with_penalty,
        word_ids=word_ids,
        options=options,
        seed=setup.seed,
        data_name=setup.data_name,
    )
    yield Variant("base", "before", setup.base.model, measure)
    yield Variant(DECEIVED_MODEL, "after", train, measure)


def find_word_ids(tokenizer: PreTrainedTokenizerBase, words: Sequence[str]) -> Tensor:
    """Return the token ids that some words can have in a text.

    Many tokenizers have two tokens for a word: one for the start of a text, one after a space.

    Args:
        tokenizer: The model's tokenizer.
        words: Words, each of which must be a single token.

    Returns:
        The distinct ids in ascending order, int64 [tokens].

    Raises:
        AttnProbeError: If a word is not a single token of the vocabulary.
    """
    special_ids, word_ids = set(tokenizer.all_special_ids), set()
    for word in words:
        at_start = tokenizer(word, add_special_tokens=False)["input_ids"]
        inside = tokenizer(f" {word}", add_special_tokens=False)["input_ids"]
        single_ids = {ids[0] for ids in (at_start, inside) if len(ids) == 1} - special_ids
        if not single_ids:
            pieces = ", ".join(tokenizer.convert_ids_to_tokens(at_start)) or "no token"
            raise AttnProbeError(
                "every word of deception.words must be a single token of the vocabulary, but "
                f"{word!r} is {pieces}. Choose other words."
            )
        word_ids |= single_ids
    return torch.tensor(sorted(word_ids))


# --- Training with the penalty -------------------------------------------------------------------


class DeceptionTrainer(PlainTrainer):
    """Trainer that adds a penalty on attention to impermissible words to the training loss.

    Attributes:
        word_ids: Impermissible token ids.
        deception: Test options with the penalty's weight, heads and layers.
    """

    def __init__(
        self,
        *args: Any,
        word_ids: Tensor,
        deception: Deception,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.word_ids, self.deception = word_ids, deception

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Compute the task loss, plus the penalty while training.

        Args:
            model: The model.
            inputs: A batch.
            return_outputs: Whether to return the model's outputs too.
            num_items_in_batch: See :meth:`transformers.Trainer.compute_loss`.
        """
        if not model.training:
            return super().compute_loss(model, inputs, return_outputs)
        assert isinstance(model, PreTrainedModel)
        # `train_with_penalty` always sets a loss function.
        assert self.compute_loss_func is not None
        labels = inputs.pop("labels")
        outputs = model(**inputs, output_attentions=True)
        is_word = torch.isin(inputs["input_ids"], self.word_ids.to(labels.device))
        layers = outputs.attentions
        if self.deception.layers == "last":
            layers = layers[-1:]
        attention = select_readout_rows(model.config, layers, inputs["attention_mask"])
        penalty = self.deception.weight * compute_deception_penalty(
            attention, is_word, over_heads=self.deception.over_heads
        )
        loss = self.compute_loss_func(outputs, labels, penalty=penalty)
        return (loss, outputs) if return_outputs else loss


def select_readout_rows(
    config: PreTrainedConfig,
    attentions: Sequence[Tensor],
    attention_mask: Tensor,
) -> Tensor:
    """Return the attention from the token whose state is classified, such as [CLS].

    If the prediction is computed from the states of several tokens, for example their mean, a
    weighted mean of these tokens' attention is returned.

    Args:
        config: Model configuration.
        attentions: Attention weights in some layers, each [batch, heads, queries, keys].
        attention_mask: 1 for tokens, 0 for padding, [batch, keys].

    Returns:
        One row per head, with the heads in all layers concatenated, [batch, heads, keys].
    """
    if is_attention_classifier(config):
        # An attention classifier has a single query, with index 0.
        return attentions[-1][:, :, 0]
    is_visible = attentions[0].detach().gt(0).any(1)
    # How much the prediction depends on the state of each token, [batch, queries].
    row_weights = compute_row_weights(
        choose_readout(config, None), "layer", is_visible, attention_mask.bool()
    ).to(attentions[0].dtype)
    # Compute the weighted mean over the queries q for each text b, head h and key k.
    rows = [torch.einsum("bq,bhqk->bhk", row_weights, layer) for layer in attentions]
    return torch.cat(rows, dim=1)


def compute_deception_penalty(
    attention: Tensor, is_word: Tensor, *, over_heads: str = "mean"
) -> Tensor:
    """Compute the loss term for attention to impermissible words, one value per text, [batch].

    The penalty is −log(1 − s), where s is the sum of the attention weights on these words. For
    example, it is 0 for s = 0 and about 0.69 for s = 0.5. The formula is from the released code of
    Pruthi et al. 2020. 1 − s is computed as the attention to all other tokens, divided by the total
    attention, which is also correct if dropout has changed the weights.

    Args:
        attention: Attention weights, [batch, heads, keys].
        is_word: True for impermissible words, bool [batch, keys].
        over_heads: ``mean`` to average the heads' penalties, ``max`` to take the largest one.
    """
    is_other = ~is_word[:, None]
    # The lower bound 1e-10 keeps the penalty and its gradient finite.
    other_mass = (attention * is_other).sum(-1).clamp_min(1e-10)
    # Multiplying by 1 changes no weight, but makes both sums add the weights in the same order.
    total_mass = (attention * torch.ones_like(is_other)).sum(-1).clamp_min(1e-10)
    # A text without impermissible words has the penalty 0.
    penalties = (total_mass.log() - other_mass.log()) * is_word.any(-1, keepdim=True)
    if over_heads == "max":
        return penalties.amax(-1)
    return penalties.mean(-1)


def train_with_penalty(
    base: BaseModel,
    splits: Splits,
    folder: Path,
    *,
    word_ids: Tensor,
    options: Deception,
    seed: int,
    data_name: str | None,
    progress: ProgressSetting,
) -> TrainedVariant:
    """Train a copy of the base model further with the penalty, or load it from its folder.

    Training starts from the base model's weights, while the paper starts from random weights.
    The last epoch is kept. An attention classifier keeps its training settings, except for epochs
    and batch size. A Transformer is trained as in :func:`hf_attnprobe.training.run.fine_tune`.

    Args:
        base: The base model (the trained model with which others are compared).
        splits: Train, validation and test texts.
        folder: Checkpoint folder.
        word_ids: Impermissible token ids.
        options: The penalty and the training settings.
        seed: Seed for batches and dropout.
        data_name: Data set name, for the record.
        progress: Decides whether a progress bar is displayed.
    """
    settings = replace(
        base.settings, seed=seed, epochs=options.epochs, batch_size=options.batch_size
    )
    if options.learning_rate is not None:
        settings = replace(settings, learning_rate=options.learning_rate)
    if is_attention_classifier(base.model.config):
        recorded_settings = get_shared_settings(settings)
    else:
        names = ("seed", *FINE_TUNING_DEFAULTS)
        recorded_settings = {name: getattr(settings, name) for name in names}
    record = {
        **recorded_settings,
        "weight": options.weight,
        "over_heads": options.over_heads,
        "layers": options.layers,
        "deceives_on": list(options.words or ()),
        "start": base.name,
    }

    def prepare(folder: Path) -> tuple[PlainTrainer, PreTrainedTokenizerBase]:
        trainer = _build_trainer(
            base,
            prepare_splits(**splits),
            folder,
            settings,
            progress=progress(folder),
            trainer_class=partial(DeceptionTrainer, word_ids=word_ids, deception=options),
        )
        return trainer, base.tokenizer

    trained = train_or_load(folder, record, prepare, data_name=data_name)
    if not is_attention_classifier(trained.model.config):
        # Other attention implementations do not return their weights.
        trained.model.set_attn_implementation("eager")
    return build_trained_variant(folder, trained)


def _build_trainer(
    base: BaseModel,
    splits: Splits,
    folder: Path,
    settings: TrainingOptions,
    *,
    progress: bool | str,
    trainer_class: Callable[..., PlainTrainer],
) -> PlainTrainer:
    """Build a Trainer that trains a copy of the base model."""
    model = copy.deepcopy(base.model)
    n_classes = len(base.class_names)
    if isinstance(model, AttentionClassifierForSequenceClassification):
        procedure = resolve_procedure(settings, model.config)
        return make_paper_trainer(
            model,
            base.tokenizer,
            splits,
            folder,
            replace(procedure, plateau_factor=1.0, patience=None),
            seed=settings.seed,
            progress=progress,
            settings=LAST_EPOCH_ARGUMENTS,
            trainer_class=trainer_class,
            compute_loss_func=make_paper_loss(
                splits["train"], n_classes, weighted=procedure.weighted
            ),
        )
    arguments = make_trainer_arguments(
        {name: getattr(settings, name) for name in FINE_TUNING_DEFAULTS}
    )
    return make_trainer(
        model,
        base.tokenizer,
        splits,
        folder,
        settings=arguments | {"seed": settings.seed} | LAST_EPOCH_ARGUMENTS,
        progress=progress,
        trainer_class=trainer_class,
        compute_loss_func=make_paper_loss(splits["train"], n_classes, weighted=False),
    )


# --- Measurement ---------------------------------------------------------------------------------


@torch.no_grad()
def measure_use_of_words(
    base: BaseModel,
    model: PreTrainedModel,
    examples: "datasets.Dataset",
    *,
    word_ids: Tensor,
    options: Deception,
    seed: int,
) -> dict[str, Tensor]:
    """Measure the attention to impermissible words, and the output change without them.

    Args:
        base: The base model, whose tokenizer is used.
        model: The base model or the model that was trained with the penalty.
        examples: The test texts.
        word_ids: Impermissible token ids.
        options: The layers whose heads are measured.
        seed: Seed for the random deletions in the control.

    Returns:
        ``probs`` [texts, classes] and these statistics, each [texts]:

        - ``word_share``: impermissible words divided by all words.
        - ``mass``: attention to the impermissible words, mean over the heads.
        - ``largest_mass``: attention to the impermissible words in the head that attends to them
          most.
        - ``word_tvd``: output change when the impermissible words are deleted.
        - ``control_tvd``: mean output change when equally many other words are deleted.

        Statistics are NaN for texts without any impermissible word. The last two are also NaN for
        texts with fewer other words than impermissible ones.
    """
    measure_masses = partial(_measure_masses, word_ids=word_ids.to(model.device))
    observations = observe_split(model, base.tokenizer, examples, level="token")
    masses = measure_texts(observations, partial(measure_masses, layers=options.layers))
    masses = {name: values.double() for name, values in masses.items()}
    probs, words = masses["probs"], frozenset(word_ids.tolist())

    def measure_change(edit: Callable[[Text], list[int]]) -> Tensor:
        return tvd(probs, predict(model, base.tokenizer, examples, edit=edit))

    delete_others = partial(delete_other_words, words=words, seed=seed)
    draws = [
        measure_change(partial(delete_others, draw=draw)) for draw in range(N_CONTROL_DELETIONS)
    ]
    word_share = masses["word_share"]
    without_words = word_share == 0
    without_control = without_words | (word_share > 0.5)
    word_tvd = measure_change(partial(delete_words, words=words))
    return {
        "probs": probs,
        "word_share": word_share.masked_fill(without_words, torch.nan),
        "mass": masses["mean_mass"].masked_fill(without_words, torch.nan),
        "largest_mass": masses["largest_mass"].masked_fill(without_words, torch.nan),
        "word_tvd": word_tvd.masked_fill(without_control, torch.nan),
        "control_tvd": torch.stack(draws).mean(0).masked_fill(without_control, torch.nan),
    }


def _measure_masses(observation: Observation, word_ids: Tensor, layers: str) -> dict[str, Tensor]:
    """Measure how much attention the impermissible words in each text of a batch receive.

    Args:
        observation: The model's outputs and attention for a batch.
        word_ids: Token ids of the impermissible words, int64 [tokens].
        layers: "last" to measure the heads in the last layer only, otherwise all heads.

    Returns:
        ``probs`` [batch, classes], and these values [batch]:

        - ``word_share``: impermissible words divided by all words.
        - ``mean_mass``: attention to the impermissible words, mean over the heads.
        - ``largest_mass``: the same for the head that attends to them most.
    """
    batch, sites = observation.batch, observation.model.sites()
    # Special tokens and padding are no content.
    is_content = batch.content_mask
    is_word = torch.isin(batch.inputs["input_ids"], word_ids) & is_content
    if layers == "last":
        last_layer = max(site.layer for site in sites)
        sites = [site for site in sites if site.layer == last_layer]
    head_masses = [(observation.read(site) * is_word).sum(-1) for site in sites]
    masses = torch.stack(head_masses).double()
    return {
        "probs": observation.probs,
        "word_share": is_word.sum(-1) / is_content.sum(-1),
        "mean_mass": masses.mean(0),
        "largest_mass": masses.amax(0),
    }


def delete_words(text: Text, words: Collection[int]) -> list[int]:
    """Delete all occurrences of some words from a text, and return the remaining token ids.

    Args:
        text: The text, which is not modified.
        words: Token ids of the words to delete.
    """
    return [token for token in text.inputs["input_ids"] if token not in words]


def delete_other_words(text: Text, words: Collection[int], *, seed: int, draw: int) -> list[int]:
    """Delete random permissible words from a text, as many as it has impermissible words.

    This is the control for :func:`delete_words`, which deletes the impermissible words. Special
    tokens are never deleted. If the text has too few other words, nothing is deleted.

    Args:
        text: The text, which is not modified.
        words: Token ids of the impermissible words, which are not deleted here.
        seed: Seed for the random choice, together with the example id and ``draw``.
        draw: Index of the draw, from 0. Each index deletes different words.

    Returns:
        The remaining token ids.
    """
    ids, is_special = text.inputs["input_ids"], text.inputs["special_tokens_mask"]
    other_positions, n_words = [], 0
    for position, token in enumerate(ids):
        if token in words:
            n_words += 1
        elif not is_special[position]:
            other_positions.append(position)
    if n_words == 0 or n_words > len(other_positions):
        return ids
    generator = create_random_generator(seed, text.example_id, draw)
    deleted = set(generator.choice(other_positions, n_words, replace=False))
    return [token for position, token in enumerate(ids) if position not in deleted]
