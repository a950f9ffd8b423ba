"""Can a whole model be trained to look elsewhere? Wiegreffe & Pinter 2019, Section 4.

Question: is there a model that predicts as the base does, on all texts, while its attention
          is elsewhere?
Measure:  of a model trained from a fresh start on Σ TVD(ŷ_a, ŷ_b) − λ·KL(α_a‖α_b): F1, and
          per test text the total variation distance (TVD) of its output and the
          Jensen-Shannon divergence (JSD) of its attention to the base's. λ trades one for
          the other; over several λ this draws a curve.
          The curve shows every λ on all texts. What is said of "the adversary" is crossed:
          each half of the texts chooses the farthest λ that keeps F1 for the other half.
Compare:  other seeds and the model with uniform attention (their own tests); per text, the
          search of Jain & Wallace and the exact frontier, the farthest attention within ε.
          Those keep the base's encoder fixed; a trained adversary has an encoder of its
          own, so the frontier is a baseline, no bound. The bound is the largest JSD that
          any weights can have to the base's; it is checked on every text.
Reading:  far at no cost: attention can be had that says anything. A curve that rises early:
          attention is constrained.

Its epochs are scored by their training loss, as in the paper, without a second pass. Of a
regularised model the penalties are in the loss, since its adversary is a model of the same kind,
and not in the score, which they would decide alone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.readings import share
from hf_attnprobe.data.columns import column_of
from hf_attnprobe.data.examples import label_names
from hf_attnprobe.faithfulness.adversarial import (
    EPSILONS,
    FRONTIER,
    adversarial,
)
from hf_attnprobe.faithfulness.options import Adversarial
from hf_attnprobe.functional.divergence import largest_jsd, tvd
from hf_attnprobe.inference.outputs import (
    Outputs,
    guide_rows,
    observations,
    over_texts,
    special_ids,
    to_guide,
)
from hf_attnprobe.models.attention_classifier import (
    AttentionClassifierForSequenceClassification,
)
from hf_attnprobe.protocol import Observation, Site
from hf_attnprobe.retraining import register_retraining
from hf_attnprobe.retraining.base_model import (
    SPLITS,
    Base,
    Progress,
    Setup,
    Splits,
    Tested,
    Trained,
    Variant,
    as_trained,
    beside_base,
    shared_settings,
    silent,
)
from hf_attnprobe.retraining.options import Adversary
from hf_attnprobe.retraining.verdict import CHOSEN
from hf_attnprobe.statistics.scores import one_hot, weighted_metrics
from hf_attnprobe.statistics.verdicts import RULES
from hf_attnprobe.training.classifier import (
    new_model,
    papers_trainer,
    procedure_of,
)
from hf_attnprobe.training.procedures import with_penalties
from hf_attnprobe.training.trainer import PlainTrainer, train_or_load


if TYPE_CHECKING:
    import datasets


ROUNDING = 1e-6


def read_within_bound(
    base: Base, model: PreTrainedModel, examples: "datasets.Dataset"
) -> dict[str, Tensor]:
    """Like :func:`beside_base`, with the JSD as a share of its bound."""
    numbers, own = beside_base(base, model, examples), base.outputs(examples)
    bound = largest_jsd(own.attention, own.mask)
    return numbers | {"jsd_over_bound": over_bound(numbers["jsd"], bound, own)}


def choose(tested: Tested, options: Adversary) -> None:
    """Adds the choice made on the other half of the texts, and what is reachable without
    training.
    """
    own, seed = tested.setup.own, tested.setup.seed
    probs = torch.stack(list(tested.probs.values()))
    divergence = tested.of_each("adversary_jsd")
    place = crossed_choice(
        own.labels.numpy(),
        probs[0].numpy(),
        list(probs[1:].numpy()),
        list(divergence.numpy()),
        tolerance=RULES["loss"].yes,
        seed=seed,
    )
    texts = torch.arange(len(place))
    chosen = {
        "probs": probs[1:][place, texts],
        "lambda": torch.tensor(options.sorted_lambdas())[place],
        "jsd": divergence[place, texts],
        "tvd": tested.of_each("adversary_tvd")[place, texts],
    }
    tested.add(CHOSEN, "chosen", chosen)
    tested.statistics["largest_jsd"] = largest_jsd(own.attention, own.mask)
    tested.statistics |= baselines(tested.setup)


@register_retraining(
    title="Models trained to predict alike and attend elsewhere",
    together=choose,
    readings={
        "adversary_jsd": (
            "the adversary of λ {key} attends a divergence of {mean:.2f} (at most "
            "0.69) away from the base"
        ),
        "adversary_tvd": ("the adversary of λ {key} predicts {mean:.2f} of 1 away from the base "),
        "adversary_correct": share("the adversary of λ {key} is right in {mean:.0%} of texts"),
        "adversary_jsd_over_bound": share(
            "the adversary of λ {key} is as far as {mean:.0%} of the largest divergence there is"
        ),
        "chosen_lambda": ("the λ that the other half of the texts chooses is {mean:g} on average"),
        "chosen_jsd": (
            "the adversary that the other half of the texts chooses attends a divergence "
            "of {mean:.2f} (at most 0.69) away from the base"
        ),
        "chosen_tvd": (
            "the adversary that the other half of the texts chooses predicts {mean:.2f} "
            "of 1 away from the base"
        ),
        "chosen_correct": share(
            "the adversary that the other half of the texts chooses is right in {mean:.0%} of texts"
        ),
        "frontier_jsd": (
            "with the base's encoder, weights within {key} of its output reach a "
            "divergence of {mean:.2f}"
        ),
        "search_jsd": (
            "the search finds weights within {key} of the output at a divergence of {mean:.2f}"
        ),
        "search_tvd": ("what the search finds within {key} moves the output by {mean:.3f} of 1 "),
        "largest_jsd": (
            "no weights at all can be farther from the base's than a divergence of {mean:.2f}"
        ),
    },
)
def adversary(setup: Setup, options: Adversary) -> Iterator[Variant]:
    """One adversary per λ; their own seed is the base's plus 1."""
    for strength in options.sorted_lambdas():
        yield Variant(
            f"adversary {strength:g}",
            "adversary",
            partial(train_adversary, lambda_=strength, options=options),
            read_within_bound,
            key=strength,
            folder=options.folder_of(strength),
        )


def over_bound(divergence: Tensor, bound: Tensor, own: Outputs) -> Tensor:
    """JSD as a share of its bound, in [0, 1], [texts].

    It is NaN where the bound is 0, at texts of a single token.

    Raises:
        AttnProbeError: a JSD above its bound.
    """
    beyond = divergence > bound + ROUNDING
    if beyond.any():
        row = int(beyond.int().argmax())
        raise AttnProbeError(
            f"text {own.example_ids[row]}: a JSD of {divergence[row]:.4f} is above the "
            f"largest that any attention can have to the base's, {bound[row]:.4f}; the two "
            "models do not cut it into the same tokens"
        )
    return torch.where(bound > 0, divergence / bound, torch.nan)


def baselines(setup: Setup) -> dict[str, Tensor]:
    """What is reachable per text with the base's encoder, [texts] by ``statistic@ε``.

    By search, and exactly where there are two classes.
    """
    base = setup.base
    observed = observations(base.model, base.tokenizer, setup.splits["test"])
    return over_texts(observed, partial(_baselines_of_batch, seed=setup.seed))


def _baselines_of_batch(observation: Observation, seed: int) -> dict[str, Tensor]:
    """Each [batch], by ``statistic@ε``."""
    model, site, found = observation.model, Site(), {}
    if observation.probs.shape[-1] == 2:
        exact = adversarial(observation, site, Adversarial(method="exact", epsilons=FRONTIER))
        for epsilon, values in exact.epsilon_max_jsd.items():
            found[f"frontier_jsd@{epsilon}"] = values
    options = Adversarial(method="search", epsilons=EPSILONS)
    search = adversarial(observation, site, options, seed=seed)
    for epsilon, values in search.epsilon_max_jsd.items():
        edit = search.attention[epsilon][None, :, None]
        probs = model.replay(observation, {0: edit})[0]
        found[f"search_jsd@{epsilon}"] = values
        found[f"search_tvd@{epsilon}"] = tvd(probs, observation.probs)
    return found


# --- Training a model that predicts as another one does while it attends elsewhere ---------------
# Source: Wiegreffe & Pinter 2019, Section 4.

TARGETS = ("base_probs", "base_attention")
LOWEST_OBJECTIVE = {
    "metric_for_best_model": "loss",
    "greater_is_better": False,
    "remove_unused_columns": False,
}
"""Arguments of the Trainer with which it keeps the epoch of the lowest objective."""


class AdversaryTrainer(PlainTrainer):
    """Minimises an objective of its outputs and attention against the base's.

    The base's come with every training batch. The epoch that is kept has the lowest mean
    objective over the training texts as the epoch went, so there is no second pass over the
    data. The penalties of a regularised model are in the loss, since its adversary is
    regularised too, and not in the score, which they would decide alone.
    """

    objective: Callable[..., Tensor]

    def __init__(self, *args: Any, objective: Callable[..., Tensor], **options: Any) -> None:
        super().__init__(*args, **options)
        self.objective = objective
        self.reached: list[Tensor] = []

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """The objective with penalties; validation and test texts are classified alone."""
        if TARGETS[0] not in inputs:
            return super().compute_loss(model, inputs, return_outputs)
        targets = [inputs.pop(name) for name in TARGETS]
        assert isinstance(model, AttentionClassifierForSequenceClassification)
        ids, real = inputs["input_ids"], inputs["attention_mask"]
        mask = model.attention_classifier.content_mask(real, ids)
        outputs = model(ids, real, output_attentions=True)
        probs, attention = (
            outputs.logits.softmax(-1),
            outputs.attentions[0][:, 0, 0],
        )
        objective = self.objective(probs, attention, *targets, mask)
        self.reached.append(objective.detach())
        loss = with_penalties(objective, outputs, torch.sum)
        return (loss, outputs) if return_outputs else loss

    def evaluate(self, *args: Any, **options: Any) -> dict[str, float]:
        """The mean objective of the batches of the epoch that has just ended."""
        reached, self.reached = torch.stack(self.reached).mean().item(), []
        return self.evaluated({"eval_loss": reached})


def train_adversary(
    base: Base,
    splits: Splits,
    folder: Path,
    lambda_: float,
    options: Adversary = Adversary(),
    *,
    progress: Progress = silent,
    **settings: Any,
) -> Trained:
    """Trains a fresh model of the base's configuration on Σ TVD − λ·KL to the base.

    All parameters are trained with the base's optimizer; the epoch with the lowest objective
    is kept. A regularised base's penalties are added in training, with their weights. A
    finished model in ``folder`` is loaded, an interrupted one continued.

    Args:
        splits: train, validation and test texts.
        lambda_: weight of the divergence, at least 0.
        options: scale of the TVD, epochs and patience; its λ are not used.
        settings: of the training, in place of the base's, such as ``learning_rate``. The
            seed is the base's plus 1, so that not even the start is shared.

    Raises:
        AttnProbeError: a folder with another training.
    """
    used = replace(
        base.settings,
        seed=base.settings.seed + 1,
        epochs=options.epochs,
        patience=options.patience,
        plateau_factor=1.0,
    )
    used = replace(used, **settings)
    tvd_scale = options.tvd_scale
    record = shared_settings(used) | {"lambda": lambda_, "tvd_scale": tvd_scale}

    def prepare(folder: Path) -> tuple[PlainTrainer, PreTrainedTokenizerBase]:
        names = label_names(splits["train"])
        model = new_model(base.config(), base.tokenizer, names, used.word_vectors)
        objective = partial(adversary_loss, lambda_=lambda_, tvd_factor=options.tvd_factor)
        trainer = papers_trainer(
            model,
            base.tokenizer,
            {name: splits[name] for name in SPLITS},
            folder,
            procedure_of(used, model.config),
            seed=used.seed,
            progress=progress(folder),
            settings=LOWEST_OBJECTIVE,
            columns=partial(_targets, base),
            kind=partial(AdversaryTrainer, objective=objective),
        )
        return trainer, base.tokenizer

    return as_trained(folder, train_or_load(folder, record, prepare))


def _targets(
    base: Base,
    split: str,
    examples: "datasets.Dataset",
    input_ids: list[list[int]],
) -> Mapping[str, list]:
    """The base's outputs and attention, as columns of the training texts.

    A text without tokens has nothing to imitate: its targets are equal probabilities.
    """
    if split != "train":
        return {}
    outputs = base.outputs(examples)
    probs = dict(zip(outputs.example_ids, outputs.probs.tolist(), strict=True))
    special = special_ids(base.tokenizer)
    rows = guide_rows(to_guide(outputs), examples, input_ids, special)
    n_classes = len(base.labels)
    equal = [1 / n_classes] * n_classes
    ids = column_of(examples, "example_id")
    return {
        "base_attention": rows,
        "base_probs": [probs.get(example_id, equal) for example_id in ids],
    }


def adversary_loss(
    probs: Tensor,
    attention: Tensor,
    base_probs: Tensor,
    base_attention: Tensor,
    mask: Tensor,
    *,
    lambda_: float,
    tvd_factor: float = 1.0,
) -> Tensor:
    """Σ over the batch of TVD(ŷ_a, ŷ_b) − λ·KL(α_a‖α_b), a finite scalar.

    It is low for a model close to the base in output and far from it in attention
    (Wiegreffe & Pinter 2019, Section 4). ln α_b is clamped at ln 1e-10: where the base's
    weight underflows, the KL would be infinite. The paper's code then multiplies every
    batch by its class weights; this does not.

    Args:
        probs, base_probs: [batch, classes].
        attention, base_attention: [batch, keys].
        mask: bool [batch, keys], the tokens that enter the KL.
        lambda_: weight of the KL, at least 0.
        tvd_factor: 0.5 for the TVD of the paper's code, which halves the difference of
            two sigmoids.
    """
    distance = (probs - base_probs).abs().sum(-1) / 2
    smallest = torch.finfo(attention.dtype).tiny
    log_attention = attention.clamp_min(smallest).log()
    log_base = base_attention.clamp_min(1e-10).log()
    log_ratio = log_attention - log_base
    terms = (attention * log_ratio).masked_fill(~mask, 0)
    divergence = terms.sum(-1)
    loss = tvd_factor * distance - lambda_ * divergence
    return loss.sum()


# --- The adversary that is reported, chosen on other texts than it is reported on. Pure ----------


def crossed_choice(
    labels: np.ndarray,
    base: np.ndarray,
    adversaries: Sequence[np.ndarray],
    divergences: Sequence[np.ndarray],
    *,
    tolerance: float,
    seed: int = 0,
) -> np.ndarray:
    """Chooses for every text the adversary that is farthest on the other half of the texts.

    The farthest of several is far by luck too on the texts that chose it. Each half of
    the texts, drawn at random, chooses the farthest on average of those that lose at
    most ``tolerance`` of F1, or the one that loses least if none does.

    Args:
        labels: the true classes [texts].
        base: probabilities of the base [texts, classes].
        adversaries: of each adversary, likewise.
        divergences: JSD of each adversary's attention to the base's [texts].
        tolerance: of F1.
        seed: of the halves.

    Returns:
        Places in ``adversaries``, [texts].
    """
    half = np.random.default_rng(seed).permutation(len(labels)) % 2
    choosing = np.stack([half == 1, half == 0]).astype(float)  # [halves, texts]
    f1 = []
    for probs in (base, *adversaries):
        scores = weighted_metrics(labels, one_hot(probs), choosing)
        f1.append(scores["f1"])
    lost = f1[0] - np.stack(f1[1:])  # [adversaries, halves]
    distance = np.stack(divergences) @ choosing.T
    is_good = lost <= tolerance
    value = np.where(is_good, distance, -np.inf)
    value = np.where(is_good.any(0), value, -lost)
    chosen = value.argmax(0)  # by half
    return chosen[half]
