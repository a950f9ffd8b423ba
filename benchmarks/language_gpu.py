"""A language model of a given shape on a GPU, or wherever it runs: seconds a prompt, memory, and
how much of the time is the model's own.

    python benchmarks/language_gpu.py [--shape 7b] [--prompts 8] [--tokens 2000] [--sentences 16]

The weights are random and the words made up, which costs as much as real ones. Counted are the
tokens that the audit feeds through the blocks; the same number in plain full passes says what the
machine can do. Then log-probabilities beside full passes of the plain model: units deleted and
knocked out, in the model's format.
"""

import argparse
import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from language_speed import full_pass, hidden_from, knocked_out, prompt_of
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from hf_attnprobe import Answers, AuditOptions, audit, explain
from hf_attnprobe.adapters.language_model.adapter import LanguageModelAdapter


SHAPES = {
    "7b": {
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "135m": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
    },
}
N_WORDS = 32_000
BESIDE = 4  # units whose edits are compared with full passes
LOOKS = 0.05  # seconds between two looks at how busy the GPU is


def word_tokenizer() -> PreTrainedTokenizerFast:
    """A token a word."""
    words = ["<unk>", "<s>", "</s>", ".", "?", ":", "The", "Context", "Question", "Answer"]
    words += [f"w{k}" for k in range(N_WORDS - len(words))]
    tokenizer = Tokenizer(WordLevel({word: k for k, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


def prompts(n: int, n_tokens: int, n_sentences: int) -> list[dict[str, str]]:
    """Passages of made-up words, each with a question."""
    draws = random.Random(0)

    def words(n_drawn: int) -> str:
        return " ".join(f"w{draws.randrange(10, 20_000)}" for _ in range(n_drawn))

    each = n_tokens // n_sentences - 2
    return [
        {
            "context": " ".join(f"The {words(each)}." for _ in range(n_sentences)),
            "question": f"The {words(8)}?",
        }
        for _ in range(n)
    ]


class Fed:
    """Counts the tokens that go through embeddings of words, the twin's too, and the passes."""

    def __init__(self) -> None:
        self.tokens = self.passes = 0

    def __call__(self, module: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        if not isinstance(module, nn.Embedding):
            return
        self.tokens += given[0].numel()
        self.passes += 1


class Busy:
    """Looks in a thread at how busy the GPU is, in percent."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._ends.wait(LOOKS):
            self.seen.append(torch.cuda.utilization())

    def __enter__(self) -> "Busy":
        if torch.cuda.is_available():
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ends.set()

    def __str__(self) -> str:
        return f"GPU busy {sum(self.seen) / len(self.seen):.0f}%" if self.seen else "no GPU"


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds by the clock until the device has done it, and what it returns."""
    is_gpu = torch.cuda.is_available()
    if is_gpu:
        torch.cuda.synchronize()
    begun = time.perf_counter()
    found = run()
    if is_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - begun, found


def compare(model: PreTrainedModel, n_tokens: int) -> None:
    """Prints how far deletions and knockouts are from full passes of the plain model."""
    adapter = LanguageModelAdapter(model)
    inputs = prompt_of(model, n_tokens, 24)
    batch = adapter.prepare(inputs, (0,))
    observation = adapter.observe(batch)
    ids, units = batch.inputs["input_ids"], batch.inputs["unit_ids"][0]
    first = observation.state.prompt.first_row
    chosen = torch.linspace(0, int(units.max()), BESIDE).long().tolist()
    erased = torch.zeros(BESIDE, *batch.mask.shape, dtype=torch.bool, device=ids.device)
    erased[range(BESIDE), 0, chosen] = True

    def masked(unit: int) -> torch.Tensor:
        mask = hidden_from(ids, units == unit, first)
        return full_pass(model, ids, attention_mask=mask)

    def say(name: str, ours: torch.Tensor, plain: list[torch.Tensor]) -> None:
        found = adapter.compute_log_prob(observation, ours)[:, 0]
        apart = float((torch.stack(plain) - found).abs().max())
        print(f"  {name}: {apart:.1e} nats apart", flush=True)

    deleted = [full_pass(model, ids[:, units != unit]) for unit in chosen]
    say("deleted", adapter.erase_inputs(observation, erased), deleted)
    say("knocked out", knocked_out(adapter, observation, chosen), [*map(masked, chosen)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="7b")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--sentences", type=int, default=16)
    parser.add_argument("--answer", type=int, default=64, help="tokens")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    dtype = getattr(torch, given.dtype)
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=N_WORDS, max_position_embeddings=16_384, **SHAPES[given.shape])
    torch.set_default_dtype(dtype)
    with torch.device(device):
        model = LlamaForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    n_weights = sum(weight.numel() for weight in model.parameters())
    print(f"{name}, torch {torch.__version__}, {n_weights / 1e9:.2f} billion weights, {dtype}")
    tokenizer, asked = word_tokenizer(), prompts(given.prompts, given.tokens, given.sentences)

    ids = torch.randint(10, N_WORDS, (1, given.tokens), device=device)
    full_pass(model, ids)
    plain = min(timed(lambda: full_pass(model, ids))[0] for _ in range(5))
    n_blocks = n_weights - 2 * N_WORDS * config.hidden_size
    rate = 2 * n_blocks * given.tokens / plain / 1e12
    print(f"a plain pass of {given.tokens} tokens: {plain:.3f} s, {rate:.0f} TFLOP/s", flush=True)

    for _ in range(2):  # the first one loads kernels
        seconds, _ = timed(lambda: explain(model, tokenizer, **asked[0]))
        print(f"explain, one prompt: {seconds:.2f} s", flush=True)

    data = Answers(asked, max_new_tokens=given.answer)
    for together in (1, 8):
        fed = Fed()
        handle = register_module_forward_pre_hook(fed)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        options = AuditOptions(batch_size=together)
        run = partial(audit, model, data, tokenizer=tokenizer, options=options)
        with Busy() as busy:
            seconds, report = timed(run)
        handle.remove()
        own = fed.tokens / given.tokens * plain
        print(
            f"audit of {given.prompts} prompts, {together} side by side: {seconds:.1f} s, "
            f"{seconds / given.prompts:.2f} a prompt; {fed.passes} passes over {fed.tokens} tokens, "
            f"which plain passes read in {own:.1f} s ({own / seconds:.0%}); {busy}",
            flush=True,
        )
        if device == "cuda":
            most = torch.cuda.max_memory_allocated() / 1e9
            print(f"memory {most:.1f} GB, of it weights {n_weights * dtype.itemsize / 1e9:.1f} GB")
    print(report)
    print(f"beside full passes, {given.tokens} tokens:")
    compare(model, given.tokens)


if __name__ == "__main__":
    main()
