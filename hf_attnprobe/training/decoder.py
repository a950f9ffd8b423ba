"""A small decoder that learns to look things up, on passages whose deciding record is known.

What it must do, and nothing else does, is copy: behind a word that stands in the passage, say
the word that followed it there. A decoder of two layers does so with a head that marks every
token by the one before it and a head that looks for that mark, an induction head (Olsson et al.
2022, "In-context Learning and Induction Heads").
"""

import itertools
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
    PrinterCallback,
    TrainingArguments,
    set_seed,
)

from hf_attnprobe.core.options import public_function
from hf_attnprobe.core.progress import Bar
from hf_attnprobe.data.synthetic import RECORD_LENGTH, RECORD_WORDS, records
from hf_attnprobe.data.tokenizer import BOS, build_tokenizer
from hf_attnprobe.training.trainer import PlainTrainer, Progress


N_STEPS, IN_ORDER, MIXED = 4500, 800, 1000
"""Steps of the training; of these the first, and those over which the order is given up."""
N_PASSAGES = 24  # in a step
FEWEST, MOST, WIDEST_GAP = 2, 8, 5
"""Records of a passage, and words between a passage and its recital."""
WIDTH, N_HEADS = 64, 4
NEAR = 30.0
"""Base of the rotary positions: passages are short, and neighbours have to be told apart."""
ARCHITECTURE: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_attention_heads": N_HEADS,
    "max_position_embeddings": 512,
    "initializer_range": 0.05,
}
SETTINGS: dict[str, Any] = {
    "per_device_train_batch_size": 1,  # a step's passages are one item
    "train_sampling_strategy": "sequential",
    "num_train_epochs": 1,
    "learning_rate": 2e-3,
    "adam_beta2": 0.98,
    "weight_decay": 0.01,
    "warmup_steps": 50,
    "save_strategy": "no",
    "logging_strategy": "no",
    "report_to": [],
    "disable_tqdm": True,
    "dataloader_pin_memory": False,
}


class Recitals(Dataset):
    """Batches of passages, each recited behind itself; the same seed gives the same.

    At first the records are recited in the order of the passage, then in any order: where many
    tokens in a row can be copied, copying is soon found. A record's first word, which nothing
    tells, is not learned.

    Args:
        vocabulary: ids of the words and of the token that begins a text.
        seed: of all passages.
        n_steps: number of batches.
    """

    def __init__(self, vocabulary: Mapping[str, int], seed: int, n_steps: int = N_STEPS) -> None:
        self.vocabulary, self.seed, self.n_steps = vocabulary, seed, n_steps

    def __len__(self) -> int:
        return self.n_steps

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        """Returns ``input_ids`` and ``labels`` of a step, both int64 [passages, tokens]."""
        rng = random.Random(f"{self.seed} {step}")
        n_records = rng.randint(FEWEST, MOST)
        n_between = rng.randint(0, WIDEST_GAP)
        in_any_order = (step - IN_ORDER) / MIXED
        rows, learned = [], []
        for _ in range(N_PASSAGES):
            passage = records(rng, n_records)
            said = rng.sample(passage, n_records) if rng.random() < in_any_order else passage
            shown = [
                BOS,
                *itertools.chain(*passage),
                *rng.choices(RECORD_WORDS, k=n_between),
            ]
            recited = [*itertools.chain(*said)]
            words = [*shown, *recited]
            rows.append([self.vocabulary[word] for word in words])

            # A record's first word cannot be known; the others are learned where they are recited.
            begin = len(shown)
            starts = set(range(begin, len(words), RECORD_LENGTH))
            places = range(len(words))
            learned.append([place >= begin and place not in starts for place in places])
        ids = torch.tensor(rows)
        return {
            "input_ids": ids,
            "labels": ids.where(torch.tensor(learned), -100),
        }


@public_function
def train_decoder(
    output_dir: str | Path,
    *,
    seed: int = 0,
    n_layers: int = 2,
    n_steps: int = N_STEPS,
    progress: bool = True,
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerBase]:
    """Trains a decoder on generated passages, and saves it with its tokenizer.

    Llama's architecture, four heads in each layer, 64 wide; AdamW, learning rate .002, linear
    decay after 50 steps; some two minutes on two cores.

    Args:
        output_dir: where the checkpoint goes; what was there of an earlier one is replaced.
        seed: of the weights and the passages.
        n_layers: at least 2: one layer cannot look for what stands before a token.
        n_steps: batches of passages; of far fewer it does not learn to copy.
        progress: show a bar on stderr.
    """
    set_seed(seed)
    tokenizer = build_tokenizer([" ".join(RECORD_WORDS)])
    vocabulary = tokenizer.get_vocab()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        num_hidden_layers=n_layers,
        bos_token_id=vocabulary[BOS],
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        rope_parameters={"rope_type": "default", "rope_theta": NEAR},
        **ARCHITECTURE,
    )
    settings = TrainingArguments(
        output_dir=str(output_dir),
        seed=seed,
        use_cpu=not torch.cuda.is_available(),
        **SETTINGS,
    )
    model = LlamaForCausalLM(config)
    trainer = PlainTrainer(
        model,
        settings,
        train_dataset=Recitals(vocabulary, seed, n_steps),
        data_collator=lambda steps: steps[0],
    )
    trainer.remove_callback(PrinterCallback)
    with Bar("training", shown=progress) as bar:
        trainer.add_callback(Progress(bar))
        trainer.train()
    model.eval().to("cpu")
    model.save_pretrained(output_dir)
    tokenizer.save_pretrained(output_dir)
    return model, tokenizer
