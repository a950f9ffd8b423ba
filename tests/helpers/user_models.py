"""Model classes as users write them, and the objects in which they hold a model."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    GPT2Config,
    GPT2Model,
    PreTrainedModel,
    RobertaConfig,
    RobertaModel,
    Trainer,
    TrainingArguments,
)
from transformers.modeling_outputs import SequenceClassifierOutput


WIDTH, N_CLASSES = 16, 3
SIZES: dict[str, Any] = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": WIDTH,
    "initializer_range": 0.4,
}


def make_encoder(name: str, vocab_size: int) -> PreTrainedModel:
    """Make a small encoder without a head, with random weights."""
    torch.manual_seed(0)
    if name == "bert":
        return BertModel(BertConfig(vocab_size=vocab_size, **SIZES))
    if name == "roberta":
        return RobertaModel(RobertaConfig(vocab_size=vocab_size, pad_token_id=0, **SIZES))
    if name == "distilbert":
        return DistilBertModel(
            DistilBertConfig(
                vocab_size=vocab_size,
                dim=WIDTH,
                hidden_dim=WIDTH,
                n_layers=2,
                n_heads=2,
                initializer_range=0.4,
            )
        )
    assert name == "gpt2"
    return GPT2Model(
        GPT2Config(vocab_size=vocab_size, n_embd=WIDTH, n_layer=2, n_head=2, initializer_range=0.4)
    )


def read_first(hidden, mask):
    return hidden[:, 0]


def read_last(hidden, mask):
    return hidden[torch.arange(len(hidden)), mask.sum(1) - 1]


def read_mean(hidden, mask):
    return (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


READERS: dict[str, Callable[..., Any]] = {
    "first": read_first,
    "last": read_last,
    "mean": read_mean,
}
"""Functions from hidden states and mask to one vector per text, by name of the read-out."""
OUTPUTS: dict[str, Callable[..., Any]] = {
    "tensor": lambda logits: logits,
    "tuple": lambda logits: (logits,),
    "loss and logits": lambda logits: (logits.sum(), logits),
    "dict": lambda logits: {"logits": logits},
    "other dict": lambda logits: {"scores": logits, "loss": None},
    "object": lambda logits: SequenceClassifierOutput(logits=logits),
    "own object": lambda logits: SimpleNamespace(logits=logits),
}
"""Forms in which users return logits."""


class PlainModule(nn.Module):
    """A module with an encoder and a linear layer, as in most tutorials."""

    def __init__(self, encoder, readout, output, n_classes=N_CLASSES):
        super().__init__()
        self.encoder = encoder
        self.dropout = nn.Dropout(0.5)
        self.linear = nn.Linear(WIDTH, n_classes)
        self.read, self.wrap_output = READERS[readout], OUTPUTS[output]

    def forward(self, input_ids, attention_mask):
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        logits = self.linear(self.dropout(self.read(hidden, attention_mask)))
        return self.wrap_output(logits)


class KeywordModule(PlainModule):
    """The same, with any further inputs, and an encoder that is called with all of them."""

    def forward(self, input_ids=None, attention_mask=None, labels=None, **inputs):
        if isinstance(self.encoder, DistilBertModel):
            inputs.pop("token_type_ids", None)
        hidden = self.encoder(input_ids, attention_mask=attention_mask, **inputs)[0]
        return self.wrap_output(self.linear(self.read(hidden, attention_mask)))


class OwnPreTrainedModel(PreTrainedModel):
    """A subclass of `PreTrainedModel` that does not set `base_model_prefix`."""

    config_class = BertConfig
    _supports_sdpa = True

    def __init__(self, encoder, readout, output):
        super().__init__(BertConfig(num_labels=N_CLASSES))
        self.backbone = encoder
        self.linear = nn.Linear(WIDTH, N_CLASSES)
        self.read, self.wrap_output = READERS[readout], OUTPUTS[output]

    def forward(self, input_ids=None, attention_mask=None):
        hidden = self.backbone(input_ids, attention_mask=attention_mask)[0]
        return self.wrap_output(self.linear(self.read(hidden, attention_mask)))


CLASSES = (PlainModule, KeywordModule, OwnPreTrainedModel)


class CrossEncoder(nn.Module):
    """An object with the attributes of a `CrossEncoder` from sentence-transformers."""

    def __init__(self, model, tokenizer):
        super().__init__()
        self.model, self.tokenizer, self.max_length = model, tokenizer, 512

    def forward(self, *inputs, **named_inputs):
        return self.model(*inputs, **named_inputs)


def make_trainer(model: nn.Module, tokenizer: Any, folder: Any) -> Trainer:
    """Make a `Trainer` that writes nothing."""
    arguments = TrainingArguments(str(folder), report_to=[], use_cpu=True)
    return Trainer(model, arguments, processing_class=tokenizer)


def compile_lazily(model: nn.Module) -> Any:
    """Compile a model; nothing is compiled before its first call."""
    return torch.compile(model, backend="eager")


HOLDERS: dict[str, Callable[..., Any]] = {
    "bare": lambda model, tokenizer, folder: (model, tokenizer),
    "DataParallel": lambda model, tokenizer, folder: (nn.DataParallel(model), tokenizer),
    "compiled": lambda model, tokenizer, folder: (compile_lazily(model), tokenizer),
    "compiled DataParallel": lambda model, tokenizer, folder: (
        compile_lazily(nn.DataParallel(model)),
        tokenizer,
    ),
    "Trainer": make_trainer,
    "CrossEncoder": lambda model, tokenizer, folder: CrossEncoder(model, tokenizer),
}
"""Functions that put a model and its tokenizer into an object that an audit accepts."""


def make_bert_classifier(vocab_size: int) -> BertForSequenceClassification:
    """Make a BERT with three classes."""
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(vocab_size=vocab_size, num_labels=N_CLASSES, **SIZES)
    )
