"""Training of a small decoder that learns to copy from a passage.

The decoder learns a single skill: if a word has already occurred in the text, predict the word that
followed it there. A decoder with two layers does this with an induction head (Olsson et al. 2022,
"In-context Learning and Induction Heads"): a head in the first layer marks every token with the
token before it, and a head in the second layer looks for that mark. A passage consists of short
records, and the record that decides the answer is known. This makes audits of the decoder
verifiable.
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
from hf_attnprobe.core.progress import ProgressBar
from hf_attnprobe.data.synthetic import RECORD_LENGTH, RECORD_WORDS, draw_records
from hf_attnprobe.data.tokenizer import BOS, build_tokenizer
from hf_attnprobe.training.trainer import PlainTrainer, ProgressBarCallback


N_STEPS = 4500
"""Default number of training steps."""
N_ORDERED_STEPS = 800
"""Number of steps at the start of training in which every passage is repeated in its original
order."""
N_MIXING_STEPS = 1000
"""Number of further steps, in which more and more passages are repeated in random order, and at
last all of them."""
PASSAGES_PER_STEP = 24
"""Number of passages in a training step."""
MIN_RECORDS, MAX_RECORDS = 2, 8
"""Smallest and largest number of records in a passage."""
MAX_GAP_WORDS = 5
"""Largest number of random words between a passage and its repetition."""
WIDTH, N_HEADS = 64, 4
"""Width of the hidden states and number of attention heads per layer."""
ROTARY_BASE = 30.0
"""Base of the rotary position embeddings. It is smaller than usual because the passages are
short."""
DECODER_CONFIG: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_attention_heads": N_HEADS,
    "max_position_embeddings": 512,
    "initializer_range": 0.05,
}
"""Configuration fields of the decoder that do not depend on the tokenizer."""
TRAINER_ARGUMENTS: dict[str, Any] = {
    # One item of the data set already holds all passages of a step.
    "per_device_train_batch_size": 1,
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
"""Arguments for :class:`TrainingArguments` in the training of the small decoder."""


class RecitationDataset(Dataset):
    """Data set of generated passages, each followed by a repetition of its records.

    One item is the batch for one training step. At first, the records are repeated in the order of
    the passage, because long repetitions make it easy to discover copying. Later, they are repeated
    in random order. The first word in a repeated record cannot be predicted, so the loss ignores
    it.

    Args:
        vocabulary: Token ids by word, including the token that begins a text.
        seed: Seed for all passages; the same seed gives the same batches.
        n_steps: Number of batches.
    """

    def __init__(self, vocabulary: Mapping[str, int], seed: int, n_steps: int = N_STEPS) -> None:
        self.vocabulary, self.seed, self.n_steps = vocabulary, seed, n_steps

    def __len__(self) -> int:
        return self.n_steps

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        """Generate the batch for a training step.

        Returns:
            ``input_ids`` and ``labels``, both int64 [passages, tokens]. Tokens without loss have the
            label -100.
        """
        rng = random.Random(f"{self.seed} {step}")
        n_records = rng.randint(MIN_RECORDS, MAX_RECORDS)
        gap_length = rng.randint(0, MAX_GAP_WORDS)
        shuffled_share = (step - N_ORDERED_STEPS) / N_MIXING_STEPS
        id_rows, loss_masks = [], []
        for _ in range(PASSAGES_PER_STEP):
            passage = draw_records(rng, n_records)
            repeated_records = passage
            if rng.random() < shuffled_share:
                repeated_records = rng.sample(passage, n_records)
            gap = rng.choices(RECORD_WORDS, k=gap_length)
            prefix = [BOS, *itertools.chain(*passage), *gap]
            words = [*prefix, *itertools.chain(*repeated_records)]
            id_rows.append([self.vocabulary[word] for word in words])

            # The first word of a repeated record cannot be predicted, all later words can.
            first_words = set(range(len(prefix), len(words), RECORD_LENGTH))
            loss_masks.append(
                [
                    position >= len(prefix) and position not in first_words
                    for position in range(len(words))
                ]
            )
        ids = torch.tensor(id_rows)
        return {
            "input_ids": ids,
            "labels": ids.where(torch.tensor(loss_masks), -100),
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
    """Train a decoder on generated passages, and save it with its tokenizer.

    The model has the Llama architecture with four heads per layer and width 64. It is trained with
    AdamW, learning rate 0.002 and linear decay after 50 warm-up steps, which takes about two
    minutes on two CPU cores.

    Args:
        output_dir: Checkpoint folder. An earlier checkpoint there is replaced.
        seed: Seed of the weights and the passages.
        n_layers: Number of layers, at least 2, because a single layer cannot look for the token
            before another token.
        n_steps: Number of training steps. With far fewer than the default, the model does not learn
            to copy.
        progress: Whether to show a progress bar on stderr.

    Returns:
        The trained model in evaluation mode, on the CPU, and its tokenizer.

    Example:
        Train and inspect the demonstration decoder::

            model, tokenizer = train_decoder("copying-decoder", seed=1)
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
        rope_parameters={"rope_type": "default", "rope_theta": ROTARY_BASE},
        **DECODER_CONFIG,
    )
    arguments = TrainingArguments(
        output_dir=str(output_dir),
        seed=seed,
        use_cpu=not torch.cuda.is_available(),
        **TRAINER_ARGUMENTS,
    )
    model = LlamaForCausalLM(config)
    trainer = PlainTrainer(
        model,
        arguments,
        train_dataset=RecitationDataset(vocabulary, seed, n_steps),
        data_collator=lambda steps: steps[0],
    )
    trainer.remove_callback(PrinterCallback)
    with ProgressBar("training", visible=progress) as bar:
        trainer.add_callback(ProgressBarCallback(bar))
        trainer.train()
    model.eval().to("cpu")
    model.save_pretrained(output_dir)
    tokenizer.save_pretrained(output_dir)
    return model, tokenizer
