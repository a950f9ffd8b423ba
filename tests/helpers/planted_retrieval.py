"""A GPT-2 with weights set by hand, in which one known head finds the word that answers a question.

Every word of a passage has a key and a value, such as "k3v5". The question is a key, such as "q3", and
the answer is the value of the word with this key, "v5". The retrieving head attends from the question to
the word with the same key and writes its value. Distracting heads attend to other words and write
nothing. There are no positions, and the feed-forward layers write nothing.

A hidden state consists of features. Each feature is a pair of entries (x, -x), so that layer norms only
rescale the states.
"""

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast


N_KEYS = 8
N_LAYERS, N_HEADS, HEAD_WIDTH = 3, 4, 16
WIDTH = N_HEADS * HEAD_WIDTH
RETRIEVING_HEAD = (1, 2)
"""Layer and index of the head that finds the answer."""
KEY, QUERY, VALUE, ANSWER = 0, N_KEYS, 2 * N_KEYS, 3 * N_KEYS
"""First feature of each kind."""
SHARPNESS = 2.0
CONFIDENCE = 3.0
TEMPLATE = "{context} {question}"


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token for each word."""
    numbers = range(N_KEYS)
    words = ["<end>", "<unknown>"]
    words += [f"k{key}v{value}" for key in numbers for value in numbers]
    words += [f"q{key}" for key in numbers] + [f"v{value}" for value in numbers]
    vocabulary = {word: number for number, word in enumerate(words)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unknown>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<end>", unk_token="<unknown>", model_max_length=64
    )


def draw_prompts(n_prompts: int, seed: int = 0) -> list[dict]:
    """Draw passages of six or seven words with different keys and values, and a question about one."""
    generator = np.random.default_rng(seed)
    rows = []
    for _ in range(n_prompts):
        n_words = int(generator.integers(6, N_KEYS))
        keys = generator.permutation(N_KEYS)[:n_words]
        values = generator.permutation(N_KEYS)[:n_words]
        words = [f"k{key}v{value}" for key, value in zip(keys, values, strict=True)]
        asked_key = generator.choice(keys)
        rows.append({"context": " ".join(words), "question": f"q{asked_key}"})
    return rows


@torch.no_grad()
def build_model(tokenizer: PreTrainedTokenizerFast, *, seed: int = 0) -> GPT2LMHeadModel:
    """Build the model; the seed draws what the distracting heads attend to."""
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=64,
        n_embd=WIDTH,
        n_layer=N_LAYERS,
        n_head=N_HEADS,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
    )
    model = GPT2LMHeadModel(config).eval()
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if ".ln_" not in name:
            weight.normal_(std=1e-3, generator=generator)
    model.transformer.wpe.weight.zero_()
    _write_embeddings(model, tokenizer)
    for layer, block in enumerate(model.transformer.h):
        # Distracting heads: the weights of queries and keys are random, and outputs stay tiny.
        block.attn.c_attn.weight[:, : 2 * WIDTH].normal_(std=0.35, generator=generator)
        if layer == RETRIEVING_HEAD[0]:
            _plant_retrieving_head(block.attn, RETRIEVING_HEAD[1])
    return model


def _write_embeddings(model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write the features of every word into the embeddings, and read the answer for the logits."""
    table, head = model.transformer.wte.weight, model.lm_head.weight
    for word, row in tokenizer.get_vocab().items():
        features = []
        if word[0] == "k":
            features = [KEY + int(word[1]), VALUE + int(word[3])]
        elif word[0] == "q":
            features = [QUERY + int(word[1])]
        elif word[0] == "v":
            answer = ANSWER + int(word[1])
            head[row, 2 * answer], head[row, 2 * answer + 1] = CONFIDENCE, -CONFIDENCE
        for feature in features:
            table[row, 2 * feature], table[row, 2 * feature + 1] = 1.0, -1.0


def _plant_retrieving_head(attention: torch.nn.Module, head: int) -> None:
    """Let a head attend from each question to the word with its key, and write the word's value."""
    columns = slice(head * HEAD_WIDTH, (head + 1) * HEAD_WIDTH)
    query, key, value = attention.c_attn.weight.split(WIDTH, dim=1)
    query[:, columns], key[:, columns], value[:, columns] = 0, 0, 0
    output = attention.c_proj.weight
    output[columns] = 0
    for number in range(N_KEYS):
        entry = columns.start + number
        query[2 * (QUERY + number), entry] = SHARPNESS
        key[2 * (KEY + number), entry] = SHARPNESS
        value[2 * (VALUE + number), entry] = 1.0
        output[entry, 2 * (ANSWER + number)] = 1.0
        output[entry, 2 * (ANSWER + number) + 1] = -1.0
