"""A model that selects the tokens that another model needs, trained by REINFORCE.

Source: Mohankumar et al. 2020, Section 5.2 and released code; after Lei et al. 2016.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers import initialization as init

from hf_attnprobe.attention_classifier import (
    AttentionClassifierForSequenceClassification,
)
from hf_attnprobe.attention_classifier.layers_attention_classifier import run_recurrent
from hf_attnprobe.checkpoints import RECORD, read_record
from hf_attnprobe.retraining.base import (
    Base,
    Progress,
    Splits,
    Trained,
    as_trained,
    silent,
)
from hf_attnprobe.retraining.options import Rationale
from hf_attnprobe.training.trainer import (
    PlainTrainer,
    TrainedClassifier,
    begin,
    check_same,
    finish,
    make_trainer,
)


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
    """A bidirectional LSTM that gives every token the log odds of being selected."""

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
    """What the base makes of selections.

    Attributes:
        log_likelihood: ln p of the true class, [...].
        reward: that plus the weight times the share of tokens that are not selected.
    """

    log_likelihood: Tensor
    reward: Tensor


class Judge:
    """The base, frozen, reading texts of which only selected tokens are left.

    A token that is not selected keeps its place and has the word vector of padding, which
    is 0, as in the paper's code. Special tokens stay, where the code blanks them too.
    """

    def __init__(self, base: Base, sparsity: float) -> None:
        self.model: AttentionClassifierForSequenceClassification = base.model.eval()
        self.pad_id = base.tokenizer.pad_token_id
        self.sparsity = sparsity

    def content(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """The tokens that can be selected, bool [batch, keys]."""
        return self.model.attention_classifier.content_mask(attention_mask, input_ids)

    @torch.no_grad()
    def read(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        labels: Tensor,
        selected: Tensor,
    ) -> Reading:
        """Of texts with only the ``selected`` tokens, bool [draws, batch, keys].

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
    """Raises the expected reward of random selections; keeps the best epoch.

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
        """Minus the log probability of each selection times what it is worth."""
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
        metrics = {"eval_reward": torch.cat(rewards).mean().item()}
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics


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
        "sparsity": options.rationale_sparsity,
        "size": options.selector_size,
        "epochs": options.selector_epochs,
        "learning_rate": options.selector_learning_rate,
    }
    done = _finished(folder, record, base)
    if done is not None:
        return as_trained(folder, done)
    with begin(folder, base.settings.seed):
        trainer = make_trainer(
            new_selector(base, options.selector_size),
            base.tokenizer,
            {name: splits[name] for name in ("train", "validation")},
            folder,
            settings={
                "num_train_epochs": options.selector_epochs,
                "per_device_train_batch_size": base.settings.batch_size,
                "learning_rate": options.selector_learning_rate,
                "lr_scheduler_type": "constant",
                "weight_decay": 0.0,
                "max_grad_norm": 0.0,
                "seed": base.settings.seed,
                "metric_for_best_model": "reward",
                "remove_unused_columns": False,
            },
            progress=progress(folder),
            kind=SelectorTrainer,
            judge=Judge(base, options.rationale_sparsity),
        )
        trainer.scored = {}  # it has a reward and no scores
        result = finish(trainer, base.tokenizer, folder, record, resume=True)
    return as_trained(folder, result)


def new_selector(base: Base, size: int) -> TokenSelector:
    """A fresh selector with the base's word vectors."""
    table = base.model.get_input_embeddings()
    assert isinstance(table, nn.Embedding)
    n_words, width = table.weight.shape
    selector = TokenSelector(
        TokenSelectorConfig(vocab_size=n_words, embedding_size=width, selector_size=size)
    )
    with torch.no_grad():
        selector.embeddings.weight.copy_(table.weight)
    return selector


def _finished(folder: Path, record: Mapping[str, Any], base: Base) -> TrainedClassifier | None:
    """The finished training in a folder, or None."""
    if not (folder / RECORD).is_file():
        return None
    check_same(folder, read_record(folder), record)
    model = TokenSelector.from_pretrained(folder).eval()
    return TrainedClassifier(model, base.tokenizer, {})
