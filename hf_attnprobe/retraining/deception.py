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

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hf_attnprobe.adapters.pretrained import PretrainedFacts
from hf_attnprobe.adapters.transformer.layout import query_rows, readout_of
from hf_attnprobe.checkpoints.loading import (
    has_trained_attention,
    is_attention_classifier,
    load_model,
    load_tokenizer,
)
from hf_attnprobe.checkpoints.origins import origin_of
from hf_attnprobe.checkpoints.records import check_not_itself, read_record
from hf_attnprobe.core.distributed import check_one_process
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import SavedModel, as_saved, public_function
from hf_attnprobe.core.serialization import plain
from hf_attnprobe.data.columns import column_of
from hf_attnprobe.data.examples import (
    DatasetName,
    check_sets,
    dataset_name,
)
from hf_attnprobe.data.specs import as_data
from hf_attnprobe.documents.blocks import (
    Answered,
    Cell,
    Document,
    Section,
    Table,
)
from hf_attnprobe.documents.formats import Documented
from hf_attnprobe.functional.divergence import tvd
from hf_attnprobe.functional.intervention import random_generator
from hf_attnprobe.inference.encoding import Text, second_texts, tokenize
from hf_attnprobe.inference.labels import labels_of_model
from hf_attnprobe.inference.outputs import observations, over_texts, predict
from hf_attnprobe.models.attention_classifier import (
    AttentionClassifierForSequenceClassification,
)
from hf_attnprobe.protocol import Observation
from hf_attnprobe.retraining.base_model import (
    Base,
    Progress,
    Setup,
    Splits,
    Tested,
    Trained,
    Variant,
    as_trained,
    base_of,
    shared_settings,
)
from hf_attnprobe.retraining.options import DeceptionOptions
from hf_attnprobe.retraining.report import in_full
from hf_attnprobe.retraining.verdict import all_of, graded
from hf_attnprobe.statistics.estimates import Estimate, mean_estimate
from hf_attnprobe.statistics.grades import MIN_TEXTS, Answer
from hf_attnprobe.statistics.scores import Score, find_score
from hf_attnprobe.statistics.verdicts import Finding
from hf_attnprobe.training.classifier import papers_trainer, procedure_of
from hf_attnprobe.training.options import TrainingOptions
from hf_attnprobe.training.procedures import papers_loss
from hf_attnprobe.training.run import USUAL, trainer_settings
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
LAST_EPOCH = {"save_strategy": "no", "load_best_model_at_end": False}
"""Arguments of a Trainer that keeps the last epoch."""
N_DRAWS = 5  # of other tokens to delete, per text


@dataclass(frozen=True)
class Deception(Documented):
    """What training against attention to ``tokens`` did. ``print`` gives the table.

    Attributes:
        model: that was trained on.
        dataset: the test texts' data set and split.
        tokens: the impermissible tokens (Pruthi et al. 2020).
        weight: λ of the penalty on attention to them.
        over_heads: the penalty's, ``mean`` or ``max``.
        layers: whose heads, ``last`` or ``all``.
        n: test texts.
        n_named: test texts with an impermissible token.
        scores: on all test texts, of ``before`` and ``after``.
        masses: attention mass on the tokens, over the texts that have them: the mean
            over heads ``before`` and ``after``, that of the head with the most
            ``largest before`` and ``largest after``; and ``tokens``, their share of a
            text's tokens.
        n_controlled: texts with an impermissible token and at least as many others.
        hidden: half of the mass before minus that after, mean over heads, per text.
        moved: total variation of the output when the tokens are deleted, over the texts
            with a control, by ``before`` and ``after``.
        control: the same when as many other tokens are deleted, mean over the draws.
        beyond: ``moved`` minus ``control``, paired by text.
    """

    model: str
    dataset: DatasetName
    tokens: tuple[str, ...]
    weight: float
    over_heads: str
    layers: str
    n: int
    n_named: int
    scores: tuple[Score, ...]
    masses: dict[str, Estimate]
    n_controlled: int
    hidden: Estimate
    moved: dict[str, Estimate]
    control: dict[str, Estimate]
    beyond: dict[str, Estimate]

    def document(self) -> Document:
        """All that it says."""
        return deception_document(self)

    def score(self, when: str, metric: str) -> Score:
        """The score ``before`` or ``after``."""
        found = find_score(self.scores, when, metric)
        assert found is not None  # both models are scored by every metric
        return found


@public_function
def deceive(
    model: str | Path | SavedModel,
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
            fine-tuned Transformer; or a :class:`~hf_attnprobe.core.options.SavedModel`.
        dataset: the data it was trained on: a :class:`~hf_attnprobe.data.specs.Data`,
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
    saved, data = as_saved(model), as_data(dataset)
    check_not_itself(saved.model, output_dir)
    base = _base(saved, options)
    check_pads(base.tokenizer)
    ids = impermissible_ids(base.tokenizer, tokens)
    splits = data.splits(seed=read_record(Path(base.name)).get("seed", options.seed))
    _check_splits(base, splits, ids)
    splits = check_sets(**splits)
    measure = partial(_measure, ids=ids, options=options)
    penalty = {name: getattr(options, name) for name in ("weight", "over_heads", "layers")}
    train = partial(
        _train_further,
        ids=ids,
        options=options,
        record={**penalty, "deceives_on": list(tokens), "start": base.name},
        data_name=dataset_name(data.dataset, "").name,
    )
    with begin(output_dir, options.seed) as folder:
        (folder / SUMMARY).unlink(missing_ok=True)  # of a model that is written over
        setup = Setup(base, splits, folder, seed=options.seed, progress=lambda _: progress)
        tested = Tested(setup, folder, _labels(base, splits["test"]))
        tested.run(Variant("before", "before", base.model, measure))
        tested.run(Variant("after", "after", train, measure))
        tested.compare("before")
        result = deception_of(
            tested.statistics,
            tested.scores,
            model=base.name,
            dataset=dataset_name(data.dataset, "test"),
            tokens=tuple(tokens),
            **penalty,
        )
        result.write(folder, SUMMARY)
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
        impermissible = torch.isin(inputs["input_ids"], self.impermissible.to(labels.device))
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
    rows = query_rows(readout_of(config, None), "layer", visible, attention_mask.bool()).to(
        attentions[0].dtype
    )
    read = [torch.einsum("bq,bhqk->bhk", rows, layer) for layer in attentions]
    return torch.cat(read, dim=1)


def impermissible_ids(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[str]) -> Tensor:
    """Ids of the impermissible tokens, at the beginning of a text and inside of it.

    Raises:
        AttnProbeError: no tokens, or one that is not a single token of the vocabulary.
    """
    if isinstance(tokens, str) or not tokens:
        raise AttnProbeError("expected a list of tokens to hide attention to; name at least one")
    special, ids = set(tokenizer.all_special_ids), set()
    for token in tokens:
        at_start, inside = (
            tokenizer(form, add_special_tokens=False)["input_ids"] for form in (token, f" {token}")
        )
        single = {cut[0] for cut in (at_start, inside) if len(cut) == 1} - special
        if not single:
            pieces = ", ".join(tokenizer.convert_ids_to_tokens(at_start)) or "nothing"
            raise AttnProbeError(
                f"expected single tokens of the model's vocabulary, {token!r} is {pieces}; "
                "name others"
            )
        ids |= single
    return torch.tensor(sorted(ids))


def _base(saved: SavedModel, options: DeceptionOptions) -> Base:
    """The model in eval mode, made to return its attention, with the settings it gets.

    An attention classifier is trained as it was before, but for epochs and batches; a
    Transformer as :func:`hf_attnprobe.training.run.fine_tune` does it.
    """
    name, origin = str(saved.model), origin_of(saved)
    loaded = load_model(origin, task="text-classification").eval()
    tokenizer = load_tokenizer(origin)
    names = ("seed", "epochs", "batch_size", "learning_rate")
    used = {name: getattr(options, name) for name in names}
    if not is_attention_classifier(loaded.config):
        loaded.set_attn_implementation("eager")  # the others return no attention
        used["learning_rate"] = options.learning_rate or USUAL["learning_rate"]
        used["weight_decay"] = USUAL["weight_decay"]
        return Base(name, loaded, tokenizer, TrainingOptions(**used))
    if not has_trained_attention(loaded.config):
        raise AttnProbeError(
            f"expected one level of trained attention to deceive with, {name} has none; "
            "choose another"
        )
    return base_of(name, loaded, tokenizer, **used)


def _labels(base: Base, examples: "datasets.Dataset") -> Tensor:
    """True classes of the texts that have tokens, in the order of their ids."""
    facts = PretrainedFacts(base.model)
    texts = tokenize(base.tokenizer, examples, facts).texts
    by_id = sorted(texts, key=lambda text: text.example_id)
    return torch.tensor([text.label for text in by_id])


def _check_splits(base: Base, splits: Splits, ids: Tensor) -> None:
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
    if labels_of_model(base.labels, train) != labels:
        raise AttnProbeError(
            "expected data that numbers its classes as the model does; choose the data it "
            "was trained on"
        )
    texts, seconds = column_of(train, "text"), second_texts(train)
    rows = base.tokenizer(texts, seconds, truncation=True)["input_ids"]
    wanted = set(ids.tolist())
    if not any(wanted.intersection(row) for row in rows):
        raise AttnProbeError(
            "expected the impermissible tokens in the training texts, none has any; name others"
        )
    with torch.no_grad():
        outputs = base.model(torch.tensor(rows[:1]), output_attentions=True)
    if not getattr(outputs, "attentions", None):
        raise AttnProbeError(
            f"expected a model that returns its attention, {type(base.model).__name__} does not"
        )


def _train_further(
    base: Base,
    splits: Splits,
    folder: Path,
    *,
    ids: Tensor,
    options: DeceptionOptions,
    record: Mapping[str, Any],
    data_name: str,
    progress: Progress,
) -> Trained:
    """Trains the base itself with the penalty, and saves it.

    Args:
        record: what the training's record says beside its settings.
        data_name: what the data set is called.
    """
    model, tokenizer, weighted = base.model, base.tokenizer, False
    settings: dict[str, Any] = {}
    run: Callable[..., PlainTrainer]
    if isinstance(model, AttentionClassifierForSequenceClassification):
        used = shared_settings(base.settings)
        procedure = procedure_of(base.settings, model.config)
        procedure = replace(procedure, plateau_factor=1.0, patience=None)
        weighted = procedure.weighted
        run = partial(papers_trainer, procedure=procedure, seed=options.seed)
    else:
        used = {name: getattr(base.settings, name) for name in ("seed", *USUAL)}
        settings = trainer_settings(used) | {"seed": options.seed}
        run = make_trainer
    trainer = run(
        model,
        tokenizer,
        splits,
        folder,
        settings=settings | LAST_EPOCH,
        progress=progress(folder),
        kind=partial(DeceptionTrainer, impermissible=ids, options=options),
        compute_loss_func=papers_loss(splits["train"], len(base.labels), weighted=weighted),
    )
    told = {**used, **record}
    trained = finish(trainer, tokenizer, folder, told, data_name=data_name)
    return as_trained(folder, trained)


@torch.no_grad()
def _measure(
    base: Base,
    model: PreTrainedModel,
    examples: "datasets.Dataset",
    *,
    ids: Tensor,
    options: DeceptionOptions,
) -> dict[str, Tensor]:
    """Measures the test texts through the adapters, which know of no penalty.

    Returns:
        ``probs`` [texts, classes], and [texts]: ``named``, the share of impermissible
        tokens; ``mean_mass``, the attention mass on them, mean over heads, and
        ``largest_mass``, that of the head with the most; ``moved``, the total variation of
        the output without them, and ``control``, without as many others, NaN for a text
        with fewer others.
    """
    masses = partial(_masses, ids=ids.to(model.device), layers=options.layers)
    observed = observations(model, base.tokenizer, examples, level="token")
    measured = over_texts(observed, masses)
    measured = {name: of.double() for name, of in measured.items()}
    probs, named = measured["probs"], frozenset(ids.tolist())

    def moved(edit: Callable[[Text], list[int]]) -> Tensor:
        edited = predict(model, base.tokenizer, examples, edit=edit)
        return tvd(probs, edited)

    others = partial(without_others, named=named, seed=options.seed)
    draws = [moved(partial(others, draw=draw)) for draw in range(N_DRAWS)]
    has_no_others = measured["named"] > 0.5
    control = torch.stack(draws).mean(0).masked_fill(has_no_others, torch.nan)
    without = moved(partial(without_named, named=named))
    return measured | {"moved": without, "control": control}


def _masses(observation: Observation, ids: Tensor, layers: str) -> dict[str, Tensor]:
    """Output, and attention to impermissible tokens, each [batch, …]."""
    batch, sites = observation.batch, observation.model.sites()
    content = batch.content_mask
    impermissible = torch.isin(batch.inputs["input_ids"], ids) & content
    if layers == "last":
        last = max(site.layer for site in sites)
        sites = [site for site in sites if site.layer == last]
    masses = [(observation.read(site) * impermissible).sum(-1) for site in sites]
    of_heads = torch.stack(masses).double()
    return {
        "probs": observation.probs,
        "named": impermissible.sum(-1) / content.sum(-1),
        "mean_mass": of_heads.mean(0),
        "largest_mass": of_heads.amax(0),
    }


def without_named(text: Text, named: Collection[int]) -> list[int]:
    """The ids of a text without the named ones."""
    return [token for token in text.inputs["input_ids"] if token not in named]


def without_others(text: Text, named: Collection[int], *, seed: int, draw: int) -> list[int]:
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
    deleted = set(generator.choice(others, n_named, replace=False)) if n_named else ()
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


# --- What training against attention to some tokens did. Pure: numbers in, text out ----------

WHEN = ("before", "after")
MASSES = {
    "before": "before_mean_mass",
    "after": "after_mean_mass",
    "largest before": "before_largest_mass",
    "largest after": "after_largest_mass",
    "tokens": "before_named",
}
"""The statistics of :attr:`Deception.masses`."""


def deception_of(
    statistics: Mapping[str, Tensor],
    scores: tuple[Score, ...],
    **settings: Any,
) -> Deception:
    """The result from what was measured before and after the training.

    Args:
        statistics: of ``before`` and ``after``, each [texts], see :func:`_measure`.
        scores: of the two.
        settings: the fields of :class:`Deception` that say what was done.
    """
    numbers = {name: of.numpy() for name, of in statistics.items()}
    named = numbers["before_named"] > 0
    controlled = named & ~np.isnan(numbers["before_control"])
    half = numbers["before_mean_mass"] / 2
    masses = {name: numbers[of] for name, of in MASSES.items()}
    moved = {when: numbers[f"{when}_moved"] for when in WHEN}
    control = {when: numbers[f"{when}_control"] for when in WHEN}
    beyond = {when: moved[when] - control[when] for when in WHEN}
    return Deception(
        **settings,
        n=len(named),
        n_named=int(named.sum()),
        n_controlled=int(controlled.sum()),
        scores=scores,
        masses=_means(masses, named),
        hidden=mean_estimate((half - numbers["after_mean_mass"])[named]),
        moved=_means(moved, controlled),
        control=_means(control, controlled),
        beyond=_means(beyond, controlled),
    )


def _means(values: Mapping[str, np.ndarray], texts: np.ndarray) -> dict[str, Estimate]:
    """The means over some of the texts, bool [texts], by name."""
    return {name: mean_estimate(of[texts]) for name, of in values.items()}


def findings(deception: Deception) -> dict[str, Finding]:
    """What the intervals allow to say, by the rules ``use``, ``hiding`` and ``loss``.

    Returns:
        ``used_before`` and ``used_after``: whether the model used the tokens and still does;
        ``hidden``: whether half of the attention to them is gone; ``lost``: whether accuracy is.
    """
    return {
        "used_before": graded("use", deception.beyond["before"]),
        "used_after": graded("use", deception.beyond["after"]),
        "hidden": graded("hiding", deception.hidden),
        "lost": graded("loss", deception.score("after", "accuracy").lost),
    }


def overall(deception: Deception) -> Answer:
    """Whether attention hides what the model uses."""
    answers = {name: found.answer for name, found in findings(deception).items()}
    if not deception.n_controlled:
        return Answer.CANNOT_SAY
    if answers["used_before"] == Answer.NO:
        return Answer.NO
    return all_of(answers["used_after"], answers["hidden"], answers["lost"].opposite)


def conclusion(deception: Deception) -> str:
    """The answer, and what became of attention and of use."""
    return f"Hiding: {overall(deception)}. {what_became(deception)}"


def what_became(deception: Deception) -> str:
    """What became of attention and of use, a sentence for each."""
    if not deception.n_named:
        return (
            "None of the test texts has an impermissible token: they say nothing about "
            "attention to them."
        )
    if not deception.n_controlled:
        return (
            "In no text with an impermissible token are there as many others, so there is "
            "no control to compare with."
        )
    found = findings(deception)
    said = [found[name].sentence for name in ("used_after", "hidden", "lost")]
    if found["used_before"].answer == Answer.NO:
        said = [
            f"There was nothing to hide. Before: {found['used_before'].sentence}",
            said[-1],
        ]
    if min(deception.n_controlled, deception.n_named) < MIN_TEXTS:
        said.append(f"Fewer than {MIN_TEXTS} texts tell nothing.")
    return " ".join(said)


def deception_data(deception: Deception) -> dict:
    """Plain data; NaN becomes None."""
    answers = {name: str(found.answer) for name, found in findings(deception).items()}
    said = {"verdict": conclusion(deception), "answers": answers}
    return plain(deception) | {"dataset": str(deception.dataset)} | said


QUESTIONS = (
    "Did the model use the tokens before?",
    "Does it use them after?",
    "Has attention to them gone?",
    "Is accuracy lost?",
)
QUESTION = "Does the model's attention hide what the model uses?"
LEAD = (
    "A classifier was trained further with a penalty on its attention to some tokens, "
    "called impermissible. If it still uses them, classifies as well and does not "
    "attend to them, its attention hides this use. A token is used where deleting "
    "it moves the output more than deleting other tokens does (total variation, 0 to 1)."
)
LIMITS = (
    "A yes shows that attention can be trained to hide use; it does not show that other models "
    "do so. A no does not show that none can: another weight of the penalty might succeed. "
    "Intervals are over the test texts, for one training."
)


def deception_document(d: Deception) -> Document:
    """All that a deception says."""
    asked = zip(QUESTIONS, findings(d).values(), strict=True)
    answers = [in_full(question, found) for question, found in asked]
    table = Table(
        ["", "before", "after"],
        _before_and_after(d),
        caption="Means with 95% intervals over texts",
        sortable=False,
    )
    of_texts = (
        f"Mass is that of the {d.n_named} texts with an impermissible token, of "
        f"whose tokens {d.masses['tokens'].value:.1%} are impermissible; moves "
        f"are those of the {d.n_controlled} of them with as many others or "
        "more. Intervals are over texts, of one training."
    )
    heads = "the last layer" if d.layers == "last" else "all layers"
    made = (
        f"{d.model} on {d.dataset}, trained on with λ {d.weight:g} on attention to "
        f"{', '.join(d.tokens)} ({d.over_heads} over the heads of {heads}): {d.n} texts."
    )
    return Document(
        f"Does {d.model} hide what it uses?",
        [LEAD, Answered(QUESTION, overall(d), what_became(d))],
        [
            Section("The answers", answers, id="answers"),
            Section("What this cannot say", [LIMITS], id="limits"),
            Section("Before and after", [table, of_texts], id="numbers", brief=True),
            Section("How it was made", [made], id="provenance", brief=True),
        ],
        data=deception_data(d),
    )


MEASURED = (
    (
        "mass on the impermissible tokens, mean over heads",
        "masses",
        "before",
        "after",
    ),
    (
        "of the head with the most",
        "masses",
        "largest before",
        "largest after",
    ),
    ("output moved by deleting them", "moved", "before", "after"),
    ("by deleting as many others", "control", "before", "after"),
    ("difference per text", "beyond", "before", "after"),
)
"""Rows of the table: what was measured, the numbers that have it, and its two names there."""


def _before_and_after(d: Deception) -> list[list[Cell]]:
    """What was measured: its name, before, after."""
    metrics = dict.fromkeys(score.metric for score in d.scores)
    rows: list[list[Cell]] = [
        [m.replace("_", " "), d.score("before", m), d.score("after", m)] for m in metrics
    ]
    for said, name, before, after in MEASURED:
        found = getattr(d, name)
        rows.append([said, found[before], found[after]])
    return rows
