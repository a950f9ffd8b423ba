"""Does attention lie on the words that are enough? Mohankumar et al. 2020, Section 5.2.

Question: of the tokens that suffice for the model's answer, a rationale, how much
          attention do they get?
Measure:  a selector is trained to keep few tokens from which the model, which stays as it
          is, still tells the true class: reward ln p(true class) + λ · share of tokens
          left out. Per test text, of the tokens it keeps (probability over ½): their
          share of the tokens, and of the attention that the model has on the whole text.
Compare:  the two shares: as many tokens at random get, on average, their share of tokens.
          Whether the model is right on the rationale alone, beside the whole text.
Reading:  much attention on a short rationale with no loss of accuracy: attention is where
          the deciding words are. A long rationale, or one that loses accuracy, says
          nothing of attention: the selector has found none. Another selector may find
          other tokens that are enough too.

The paper's code reads attention on the shortened text; here, it is that on the text as it
is. The paper's settings for models without its penalties: ``size=256, sparsity=0.2``.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers import initialization as init

from hf_attnprobe.adapters.pretrained import PretrainedFacts
from hf_attnprobe.attention_classifier import AttentionClassifierForSequenceClassification
from hf_attnprobe.attention_classifier.layers_attention_classifier import run_recurrent
from hf_attnprobe.inference.encoding import tokenize
from hf_attnprobe.inference.outputs import predict
from hf_attnprobe.readings import share
from hf_attnprobe.retraining import register_retraining
from hf_attnprobe.retraining.base import (
    Base,
    Progress,
    Setup,
    Splits,
    Trained,
    Variant,
    as_trained,
    silent,
)
from hf_attnprobe.retraining.options import Rationale
from hf_attnprobe.training.trainer import PlainTrainer, make_trainer, train_or_load


if TYPE_CHECKING:
    import datasets


@register_retraining(
    title="A selector of the tokens that are enough",
    readings={
        "rationale_length": share("the selector keeps {mean:.0%} of a text's tokens"),
        "rationale_attention": share(
            "the tokens that the selector keeps have {mean:.0%} of the base's attention on "
            "the whole text"
        ),
        "rationale_attention_above_length": (
            "the share of attention of the tokens that the selector keeps is {mean:+.2f} "
            "above their share of the tokens, which as many at random get on average"
        ),
        "rationale_correct": share(
            "from the tokens that the selector keeps alone, the base is right in {mean:.0%} of texts"
        ),
    },
)
def rationale(setup: Setup, options: Rationale) -> Iterator[Variant]:
    """The base on the tokens that a selector keeps; only the selector is trained."""
    train = partial(train_selector, options=options)
    yield Variant("rationale alone", "rationale", train, read_selected)


def read_selected(
    base: Base, model: PreTrainedModel, examples: "datasets.Dataset"
) -> dict[str, Tensor]:
    """The base's outputs from the selected tokens alone, and its attention on them.

    Returns:
        ``probs`` [texts, classes], and [texts]: ``length``, the share of the tokens that are
        selected, ``attention``, their share of the base's attention, both in [0, 1], and
        ``attention_above_length``, the second minus the first.
    """
    assert isinstance(model, TokenSelector)
    own = base.outputs(examples)
    selected, left = select(base, model, examples)
    shortened = predict(
        base.model, base.tokenizer, examples, edit=lambda text: left[text.example_id]
    )
    length = selected.sum(-1).double() / own.mask.sum(-1)
    attention = (own.attention * selected).sum(-1)
    return {
        "probs": shortened,
        "length": length,
        "attention": attention,
        "attention_above_length": attention - length,
    }


@torch.no_grad()
def select(
    base: Base, selector: "TokenSelector", examples: "datasets.Dataset"
) -> tuple[Tensor, dict[int, list[int]]]:
    """The selected tokens of every text, and its ids with all others blanked.

    Shape: bool [texts, tokens], texts in the order of their ids, content tokens only.
    """
    texts = tokenize(base.tokenizer, examples, PretrainedFacts(base.model)).texts
    content_mask = base.model.attention_classifier.content_mask
    pad_id = base.tokenizer.pad_token_id
    rows, left = [], {}
    for text in sorted(texts, key=lambda text: text.example_id):
        ids = torch.tensor([text.inputs["input_ids"]], device=selector.device)
        mask = torch.ones_like(ids)
        content = content_mask(mask, ids)
        kept = selector(ids, mask) > 0
        left[text.example_id] = ids.where(kept | ~content, pad_id)[0].tolist()
        rows.append(kept[content].cpu())
    return pad_sequence(rows, batch_first=True), left


# --- A model that selects the tokens that another model needs, trained by REINFORCE --------------
# Source: Mohankumar et al. 2020, Section 5.2 and released code; after Lei et al. 2016.

N_DRAWS = 4
"""Selections that are drawn of every text in a step."""


class TokenSelectorConfig(PreTrainedConfig):
    """Sizes of a :class:`TokenSelector`."""

    model_type = "attnprobe_token_selector"

    def __init__(
        self,
        vocab_size: int = 100,
        embedding_size: int = 300,
        selector_size: int = 64,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.vocab_size = vocab_size
        self.embedding_size = embedding_size
        self.selector_size = selector_size


class TokenSelector(PreTrainedModel):
    """A bidirectional LSTM that outputs each token's log odds of being selected."""

    config_class = TokenSelectorConfig
    base_model_prefix = "token_selector"

    def __init__(self, config: TokenSelectorConfig) -> None:
        super().__init__(config)
        size = config.selector_size
        self.embeddings = nn.Embedding(config.vocab_size, config.embedding_size)
        self.lstm = nn.LSTM(config.embedding_size, size, batch_first=True, bidirectional=True)
        self.classifier = nn.Linear(2 * size, 1)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """PyTorch's defaults, U(±1/√size)."""
        if isinstance(module, (nn.LSTM, nn.Linear)):
            bound = self.config.selector_size**-0.5
            for parameter in module.parameters(recurse=False):
                init.uniform_(parameter, -bound, bound)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Log odds [batch, keys]."""
        states = run_recurrent(self.lstm, self.embeddings(input_ids), attention_mask)
        return self.classifier(states).squeeze(-1)


class Reading(NamedTuple):
    """The base's outputs on selections.

    Attributes:
        log_likelihood: ln p of the true class, [...].
        reward: that plus the weight times the share of tokens that are not selected.
    """

    log_likelihood: Tensor
    reward: Tensor


class Judge:
    """The frozen base, reading texts reduced to the selected tokens.

    A token that is not selected keeps its place and has the word vector of padding, which
    is 0, as in the paper's code. Special tokens stay, where the code blanks them too.
    """

    def __init__(self, base: Base, sparsity: float) -> None:
        self.model: AttentionClassifierForSequenceClassification = base.model.eval()
        self.pad_id = base.tokenizer.pad_token_id
        self.sparsity = sparsity

    def content(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Tokens that can be selected, bool [batch, keys]."""
        return self.model.attention_classifier.content_mask(attention_mask, input_ids)

    @torch.no_grad()
    def read(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        labels: Tensor,
        selected: Tensor,
    ) -> Reading:
        """Reads texts reduced to the ``selected`` tokens, bool [draws, batch, keys].

        Results are [draws, batch].
        """
        content = self.content(input_ids, attention_mask)
        n_draws = len(selected)
        left = torch.where(selected | ~content, input_ids, self.pad_id)
        masks = attention_mask.expand(n_draws, -1, -1)
        nn.Module.to(self.model, input_ids.device)  # as .to, whose annotation is narrower
        logits = self.model(left.flatten(0, 1), masks.flatten(0, 1)).logits
        log_probs = logits.log_softmax(-1).unflatten(0, (n_draws, -1))
        of_label = labels.expand(n_draws, -1)[..., None]
        log_likelihood = log_probs.gather(-1, of_label)[..., 0]
        n_tokens = content.sum(-1).clamp_min(1)
        left_out = (content & ~selected).sum(-1) / n_tokens
        return Reading(log_likelihood, log_likelihood + self.sparsity * left_out)


class SelectorTrainer(PlainTrainer):
    """Maximises the expected reward of random selections; keeps the best epoch.

    REINFORCE with the mean reward of a text's other draws subtracted from each, which
    leaves the expected gradient and lowers its variance. The paper's code draws once and
    subtracts nothing. An epoch is scored by the mean reward on the validation texts of
    the tokens that are more probable than not; the code draws there too.
    """

    judge: Judge

    def __init__(self, *args: Any, judge: Judge, **options: Any) -> None:
        super().__init__(*args, **options)
        self.judge = judge

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Minus the log probability of each selection times its reward."""
        ids, mask, labels = (inputs[n] for n in ("input_ids", "attention_mask", "labels"))
        odds = model(ids, mask)
        drawn = torch.rand(N_DRAWS, *odds.shape, device=odds.device) < odds.sigmoid()
        reward = self.judge.read(ids, mask, labels, drawn).reward
        advantage = (reward - reward.mean(0)) * N_DRAWS / (N_DRAWS - 1)
        log_prob = torch.where(drawn, F.logsigmoid(odds), F.logsigmoid(-odds))
        log_prob = (log_prob * self.judge.content(ids, mask)).sum(-1)
        loss = -(advantage * log_prob).mean()
        return (loss, {"logits": odds}) if return_outputs else loss

    @torch.no_grad()
    def evaluate(self, *args: Any, **options: Any) -> dict[str, float]:
        """The mean reward on the validation texts."""
        model, rewards = self.model, []
        assert isinstance(model, TokenSelector)
        model.eval()
        for batch in self.get_eval_dataloader():
            ids, mask = (batch[n].to(model.device) for n in ("input_ids", "attention_mask"))
            selected = model(ids, mask) > 0
            labels = batch["labels"].to(model.device)
            rewards.append(self.judge.read(ids, mask, labels, selected[None]).reward[0])
        model.train()
        return self.evaluated({"eval_reward": torch.cat(rewards).mean().item()})


def train_selector(
    base: Base,
    splits: Splits,
    folder: Path,
    options: Rationale = Rationale(),
    *,
    progress: Progress = silent,
) -> Trained:
    """Trains a selector for a base, or loads it if ``folder`` has it.

    Its word vectors start as the base's. An interrupted training is continued.

    Args:
        splits: train and validation texts.
        options: sizes and weight; the seed is the base's.
    """
    record: Mapping[str, Any] = {
        "seed": base.settings.seed,
        "sparsity": options.sparsity,
        "size": options.size,
        "epochs": options.epochs,
        "learning_rate": options.learning_rate,
    }

    def prepare(folder: Path) -> tuple[PlainTrainer, PreTrainedTokenizerBase]:
        trainer = make_trainer(
            new_selector(base, options.size),
            base.tokenizer,
            {name: splits[name] for name in ("train", "validation")},
            folder,
            settings={
                "num_train_epochs": options.epochs,
                "per_device_train_batch_size": base.settings.batch_size,
                "learning_rate": options.learning_rate,
                "lr_scheduler_type": "constant",
                "weight_decay": 0.0,
                "max_grad_norm": 0.0,
                "seed": base.settings.seed,
                "metric_for_best_model": "reward",
                "remove_unused_columns": False,
            },
            progress=progress(folder),
            kind=SelectorTrainer,
            judge=Judge(base, options.sparsity),
        )
        trainer.scored = {}  # it has a reward and no scores
        return trainer, base.tokenizer

    load = TokenSelector.from_pretrained
    return as_trained(folder, train_or_load(folder, record, prepare, load=load))


def new_selector(base: Base, size: int) -> TokenSelector:
    """A new selector with the base's word vectors."""
    table = base.model.get_input_embeddings()
    assert isinstance(table, nn.Embedding)
    n_words, width = table.weight.shape
    selector = TokenSelector(
        TokenSelectorConfig(vocab_size=n_words, embedding_size=width, selector_size=size)
    )
    with torch.no_grad():
        selector.embeddings.weight.copy_(table.weight)
    return selector
