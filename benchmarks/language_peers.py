"""What an answer loses without each head of a layer, at the rows behind the passage, beside peers.

    python benchmarks/language_peers.py MODEL [--prompts 3] [--layer 15]
    python benchmarks/language_peers.py MODEL --every-layer
    python benchmarks/language_peers.py MODEL --contextcite 10

Of every layer only the fastest peer runs. ContextCite (64 masks) explains the model's own answers to
passages that it divides as this package does; the drops of both are from full passes of the plain
model over prompts without the sentences that each puts first. Seen with context-cite 0.0.4.

Every peer zeroes the same heads of the same prompts (``language_audit.planted``, answers given) in
float32, and must agree to 1e-4 nats. What is not installed is left out. For models that are built
as Llama is. Seen with nnsight 0.8.1 and transformer-lens 4.3.0.
"""

import argparse
import copy
import re
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from language_audit import planted
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from hf_attnprobe import Answers, AuditOptions, explain
from hf_attnprobe.audits.setup import AuditRequest, prepare_audit
from hf_attnprobe.inference.batching import collate
from hf_attnprobe.protocol import Observation


TOLERANCE = 1e-4
"""Nats."""


def log_prob(logits: Tensor, ids: Tensor) -> Tensor:
    """Log-probability of the answer, [copies, answer, words] and int [answer] -> [copies]."""
    each = logits.double().log_softmax(-1)
    return each.gather(-1, ids.expand(len(each), -1)[..., None])[..., 0].sum(-1)


def ours(observation: Observation, layer: int) -> Tensor:
    model = observation.model
    attention = observation.attention[layer]
    n_heads = attention.shape[1]
    others = 1 - torch.eye(n_heads, dtype=attention.dtype)
    kept = others[:, None, :, None, None].expand(-1, *attention.shape)
    probs = model.replay_masked(observation, {layer: kept})
    return model.compute_log_prob(observation, probs)[:, 0]


@contextmanager
def without_heads(model: Any, layer: int, heads: list[int], start: int) -> Iterator[None]:
    """Zeroes what a head gives the output projection, in every copy another one's."""
    attention = model.model.layers[layer].self_attn

    def zero(module: Any, given: tuple[Tensor]) -> tuple[Tensor]:
        by_head = given[0].clone().unflatten(-1, (-1, attention.head_dim))
        for number, head in enumerate(heads):
            by_head[number, start:, head] = 0
        return (by_head.flatten(-2),)

    hook = attention.o_proj.register_forward_pre_hook(zero)
    try:
        yield
    finally:
        hook.remove()


def loop_of_hooks(model: Any, ids: Tensor, answer: Tensor, start: int, layer: int) -> Tensor:
    found = []
    for head in range(model.config.num_attention_heads):
        with without_heads(model, layer, [head], start):
            logits = model(ids, logits_to_keep=len(answer), use_cache=False).logits
        found.append(log_prob(logits, answer))
    return torch.cat(found)


def loop_with_cache(model: Any, ids: Tensor, answer: Tensor, start: int, layer: int) -> Tensor:
    """The passage's keys and values are computed once, and all copies run at once."""
    n_heads = model.config.num_attention_heads
    cache = DynamicCache()
    model(ids[:, :start], past_key_values=cache, logits_to_keep=1)
    cache.batch_repeat_interleave(n_heads)
    rest = ids[:, start:].expand(n_heads, -1)
    with without_heads(model, layer, [*range(n_heads)], 0):
        logits = model(rest, past_key_values=cache, logits_to_keep=len(answer)).logits
    return log_prob(logits, answer)


class NNsight:
    """A trace per head."""

    def __init__(self, model: Any) -> None:
        from nnsight import NNsight as Wrapped

        self.traced, self.config = Wrapped(model), model.config

    def __call__(self, ids: Tensor, answer: Tensor, start: int, layer: int) -> Tensor:
        width, found = self.config.head_dim, []
        for head in range(self.config.num_attention_heads):
            here = slice(head * width, (head + 1) * width)
            with self.traced.trace(ids, logits_to_keep=len(answer), use_cache=False):
                self.traced.model.layers[layer].self_attn.o_proj.input[:, start:, here] = 0
                logits = self.traced.output.logits.save()
            found.append(log_prob(logits, answer))
        return torch.cat(found)


class TransformerLens:
    """A hook per head; the bridge changes the model that it is given."""

    def __init__(self, model: Any) -> None:
        from transformer_lens.model_bridge import TransformerBridge

        self.n_heads = model.config.num_attention_heads
        name = model.config._name_or_path
        self.bridge = TransformerBridge.boot_transformers(name, hf_model=copy.deepcopy(model))

    def __call__(self, ids: Tensor, answer: Tensor, start: int, layer: int) -> Tensor:
        found = []
        for head in range(self.n_heads):

            def zero(heads: Tensor, hook: Any, head: int = head) -> Tensor:
                new = heads.clone()
                new[:, start:, head] = 0
                return new

            hooks = [(f"blocks.{layer}.attn.hook_z", zero)]
            logits = self.bridge.run_with_hooks(ids, return_type="logits", fwd_hooks=hooks)
            found.append(log_prob(logits[:, -len(answer) :], answer))
        return torch.cat(found)


FASTEST = "a loop that keeps keys and values"
PEERS: dict[str, tuple[str, Callable[[Any], Callable[..., Tensor]]]] = {
    "a loop of hooks": ("torch", lambda model: partial(loop_of_hooks, model)),
    FASTEST: ("torch", lambda model: partial(loop_with_cache, model)),
    "nnsight": ("nnsight", NNsight),
    "TransformerLens": ("transformer_lens", TransformerLens),
}


# --- attribution of a whole answer --------------------------------------------------------------

N_MASKS = 64
TOPS = (1, 3)


def contextcite(model: Any, tokenizer: Any, row: dict[str, Any], answer: str) -> list[float]:
    """Scores of the sentences of a passage by ContextCite, of an answer that is known."""
    from context_cite import ContextCiter
    from context_cite.context_partitioner import SimpleContextPartitioner

    partitioner = SimpleContextPartitioner(row["context"])
    sentences = re.findall(r"[^.]+\.", row["context"])
    partitioner._cache = {
        "parts": [sentence.strip() for sentence in sentences],
        "separators": [""] + [" "] * (len(sentences) - 1),
    }
    citer = ContextCiter(
        model,
        tokenizer,
        row["context"],
        row["question"],
        num_ablations=N_MASKS,
        partitioner=partitioner,
        prompt_template="{context}\n\n{query}",
    )
    citer._cache["output"] = citer._get_prompt_ids(return_prompt=True)[1] + answer
    return list(citer.get_attributions(verbose=False))


def lost_without(
    model: Any, tokenizer: Any, row: dict[str, Any], answer: str, gone: Collection[int]
) -> float:
    """Log-probability of an answer by a full pass over the prompt without some sentences."""
    sentences = re.findall(r"[^.]+\.", row["context"])
    context = "".join(s for k, s in enumerate(sentences) if k not in gone).strip()
    turn = {"role": "user", "content": f"{context}\n\n{row['question']}"}
    prompt = tokenizer.apply_chat_template([turn], tokenize=False, add_generation_prompt=True)
    own, said = (
        tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
        for text in (prompt, answer)
    )
    logits = model(torch.cat([own, said], 1), use_cache=False).logits[:, own.shape[1] - 1 : -1]
    return float(log_prob(logits, said[0]))


def beside_contextcite(folder: str, n: int) -> None:
    """Prints seconds and drops of ContextCite and of :func:`hf_attnprobe.explain`."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    drops: dict[str, list[list[float]]] = {"ours": [], "ContextCite": []}
    seconds = dict.fromkeys(drops, 0.0)
    for row in planted(n):
        begun = time.process_time()
        shown = explain(model, tokenizer, row["context"], row["question"])
        scores = {"ours": [unit["leave_one_out"] for unit in shown.units]}
        seconds["ours"] += time.process_time() - begun
        begun = time.process_time()
        scores["ContextCite"] = contextcite(model, tokenizer, row, shown.predicted)
        seconds["ContextCite"] += time.process_time() - begun
        lost = partial(lost_without, model, tokenizer, row, shown.predicted)
        whole = lost([])
        for name, of_sentences in scores.items():
            order = sorted(range(len(of_sentences)), key=lambda k: -of_sentences[k])
            drops[name].append([whole - lost(order[:top]) for top in TOPS])
    for name, of_prompts in drops.items():
        by_top = torch.tensor(of_prompts).mean(0).tolist()
        said = ", ".join(f"top-{k} drop {d:.2f} nats" for k, d in zip(TOPS, by_top, strict=True))
        print(f"{name}: {seconds[name] / n:.1f} CPU s a prompt, {said}")


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder or Hub id of a causal language model")
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--layer", type=int, default=15)
    parser.add_argument("--every-layer", action="store_true")
    parser.add_argument("--contextcite", type=int, metavar="PROMPTS")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.contextcite:
        beside_contextcite(given.model, given.contextcite)
        return
    asked = [
        {"context": row["context"], "question": row["question"], "answer": row["value"]}
        for row in planted(given.prompts)
    ]
    options = AuditOptions(dtype="float32")
    job = prepare_audit(AuditRequest(given.model, Answers(asked), ["sources"], options))
    adapter = job.audited_model.adapter
    own = job.audited_model.adapter.user_model.float().eval()
    chosen = {FASTEST: PEERS[FASTEST]} if given.every_layer else PEERS
    layers = range(own.config.num_hidden_layers) if given.every_layer else [given.layer]
    peers = {
        name: made(own)
        for name, (package, made) in chosen.items()
        if find_spec(package) is not None
    }
    seconds: dict[str, float] = {}
    apart: dict[str, float] = {}
    for text in job.tokenized.texts:
        begun = time.process_time()
        observation = adapter.observe(collate(adapter, [text], 0))
        expected = torch.stack([ours(observation, layer) for layer in layers])
        seconds["ours"] = seconds.get("ours", 0) + time.process_time() - begun
        prompt = observation.state.prompt
        answer = torch.tensor(text.inputs["input_ids"][-prompt.n_answer :])
        for name, run in peers.items():
            begun = time.process_time()
            each = [run(prompt.ids, answer, prompt.first_row, layer) for layer in layers]
            found = torch.stack(each)
            seconds[name] = seconds.get(name, 0) + time.process_time() - begun
            apart[name] = max(apart.get(name, 0), float((found - expected).abs().max()))
    for name, taken in seconds.items():
        print(f"{name}: {taken:.2f} CPU s, {apart.get(name, 0):.1e} nats apart")
    far = [name for name, error in apart.items() if not error <= TOLERANCE]
    if far:
        raise SystemExit(f"expected equal results, other ones: {', '.join(far)}")


if __name__ == "__main__":
    main()
