"""Tiny language models with a tokenizer of bytes and pairs, and the real one where it can be had."""

from types import SimpleNamespace
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from hf_attnprobe import Answers
from hf_attnprobe.inference.answers import prepare_prompts


CHAT = (
    "{% for turn in messages %}{% if turn.role not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('roles are system, user and assistant') }}{% endif %}"
    "<|{{ turn.role }}|>\n{{ turn.content | trim }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
PASSAGE = "Ann lives in Rome. Bob lives in Oslo.\nTickets cost nine euros. Dr. Li sings!"
ROWS = [
    {"context": PASSAGE, "question": "Where does Bob live?", "answer": "Oslo"},
    {"context": "One. Two is more. Three is most.", "question": "What is most?", "answer": "Three"},
]


def tokenizer(*, chat: bool = True, begins: bool = False) -> PreTrainedTokenizerFast:
    """Bytes and their pairs, as GPT-2's; with a chat template, with a token that begins a text."""
    texts = [
        PASSAGE,
        "Question: Where does Bob live?\nAnswer: Oslo",
        *(row["context"] for row in ROWS),
    ]
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<|begin|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    backend.train_from_iterator(texts * 3, trainer)
    if begins:
        backend.post_processor = processors.TemplateProcessing(
            single="<|begin|> $A", special_tokens=[("<|begin|>", 0)]
        )
    made = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<|begin|>", eos_token="<|end|>", model_max_length=512
    )
    made.chat_template = CHAT if chat else None
    return made


def llama(tokenizer: Any, *, seed: int = 0, kind: Any = LlamaForCausalLM, **fields: Any) -> Any:
    """A Llama, or another kind of its fields, with random weights and grouped queries, in eval mode."""
    sizes = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": None,
    }
    torch.manual_seed(seed)
    return kind(kind.config_class(**{**sizes, **fields})).eval()


def prompts(rows: Any, tokenizer: Any, model: Any, **options: Any) -> Any:
    """Rows as prompt, units, answer and tokens."""
    data, longest = Answers(rows, **options), model.config.max_position_embeddings
    facts = SimpleNamespace(
        n_embeddings=model.config.vocab_size, get_max_length=lambda _: longest, prediction=None
    )
    return prepare_prompts(data.load_examples(), data, tokenizer, facts, model)


def units(row: Any) -> list[str]:
    """The texts of the units of such a row."""
    return [row["text"][start:end].strip() for start, end in row["units"]]
