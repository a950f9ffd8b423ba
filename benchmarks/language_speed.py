"""What a language model's edits take, beside loops of full passes: CPU seconds of one thread.

    python benchmarks/language_speed.py [--model FOLDER] [--tokens 130 860]

Prompts are random tokens: passages of sentences of 11 tokens, then rows behind them. Every loop of
full passes is what its results are compared with. Without a folder the model is tiny and random.
"""

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from hf_attnprobe.adapters.language_model.adapter import LanguageModelAdapter
from hf_attnprobe.protocol import Observation


PER_SENTENCE, TEMPLATE, N_ANSWER = 11, 4, 2
TRIED = 8  # units, and heads of a full pass each, that are timed


def load(folder: Path | None) -> PreTrainedModel:
    """A model in float32, in sdpa."""
    if folder is not None:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=200, **sizes, **heads)).eval()


def prompt_of(model: PreTrainedModel, n_tokens: int, n_behind: int) -> dict[str, Tensor]:
    """Inputs of the adapter: template, units, and as many rows behind them."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, model.config.vocab_size, (1, n_tokens), generator=generator)
    places = torch.arange(n_tokens)
    n_units = (n_tokens - 1 - n_behind - TEMPLATE) // PER_SENTENCE
    first = n_tokens - 1 - n_behind - n_units * PER_SENTENCE
    unit = (places - first).div(PER_SENTENCE, rounding_mode="floor")
    is_unit = (unit >= 0) & (unit < n_units)
    answer = places >= n_tokens - N_ANSWER
    return {
        "input_ids": ids,
        "unit_ids": unit.where(is_unit, -1)[None],
        "labelled": answer.long()[None],
    }


def timed(run: Callable[[], Any], n: int = 1) -> tuple[float, Any]:
    """CPU seconds of one of the ``n`` things that ``run`` does, and what it returns."""
    start = time.process_time()
    found = run()
    return (time.process_time() - start) / n, found


@torch.no_grad()
def full_pass(model: PreTrainedModel, ids: Tensor, **arguments: Any) -> Tensor:
    """Log-probability of the answer, as a user runs the model."""
    logits = model(ids[:, :-1], use_cache=False, logits_to_keep=N_ANSWER, **arguments).logits
    each = logits.double().log_softmax(-1).gather(-1, ids[:, -N_ANSWER:, None])
    return each.sum((1, 2))[0]


def hidden_from(ids: Tensor, gone: Tensor, first: int) -> Tensor:
    """A mask [1, 1, rows, keys] by which rows from ``first`` on do not see some keys."""
    n_rows = ids.shape[1] - 1
    looks = torch.ones(n_rows, n_rows, dtype=torch.bool, device=ids.device).tril()
    looks[first:, gone[:n_rows]] = False
    return looks[None, None]


@contextmanager
def head_off(model: PreTrainedModel, layer: int, head: int, first: int) -> Iterator[None]:
    """A head's output set to 0 in front of the projection, at the rows from ``first`` on."""
    attention = model.model.layers[layer].self_attn
    width = attention.head_dim

    def change(module: Any, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden = given[0].clone()
        hidden[:, first:, head * width : (head + 1) * width] = 0
        return (hidden,)

    handle = attention.o_proj.register_forward_pre_hook(change)
    try:
        yield
    finally:
        handle.remove()


def measure(
    model: PreTrainedModel, adapter: LanguageModelAdapter, n_tokens: int, n_behind: int
) -> None:
    """Prints a line per kind of edit: seconds of a full pass, seconds here, largest difference."""
    inputs = prompt_of(model, n_tokens, n_behind)
    ids, units = inputs["input_ids"], inputs["unit_ids"][0]
    full_pass(model, ids)  # the first one loads kernels
    prepared, batch = timed(lambda: adapter.prepare(inputs, (0,)))
    observed, observation = timed(lambda: adapter.observe(batch))
    checked, _ = timed(lambda: adapter.self_check(batch))
    first, n_units = observation.state.prompt.first_row, int(units.max()) + 1
    once, _ = timed(lambda: [full_pass(model, ids) for _ in range(2)], 2)
    print(f"{n_tokens} tokens, {n_tokens - 1 - first} rows behind {n_units} units")
    print(
        f"  full pass {once:.3f} s; prepare {prepared:.3f} s, observe {observed:.3f} s, "
        f"self-check {checked:.2f} s"
    )
    chosen = torch.linspace(0, n_units - 1, min(TRIED, n_units)).long().tolist()

    def said(name: str, plain: float, expected: list[Tensor], ours: float, found: Tensor) -> None:
        error = float((torch.stack(expected) - found).abs().max())
        print(
            f"  {name}: {plain:.3f} s, here {ours:.3f} s ({ours / plain:.2f}, "
            f"{plain / ours:.1f}×), difference {error:.0e} nats"
        )

    def log_prob(probs: Tensor) -> Tensor:
        return adapter.compute_log_prob(observation, probs)[:, 0]

    def masked(unit: int) -> Tensor:
        return full_pass(model, ids, attention_mask=hidden_from(ids, units == unit, first))

    plain, expected = timed(lambda: [masked(unit) for unit in chosen], len(chosen))
    ours, found = timed(lambda: log_prob(knocked_out(adapter, observation, chosen)), len(chosen))
    said("a unit knocked out in all layers", plain, expected, ours, found)

    def deleted(unit: int) -> Tensor:
        return full_pass(model, ids[:, units != unit])

    erased = torch.zeros(len(chosen), 1, n_units + 2, dtype=torch.bool)
    erased[range(len(chosen)), 0, chosen] = True
    plain, expected = timed(lambda: [deleted(unit) for unit in chosen], len(chosen))
    ours, found = timed(lambda: log_prob(adapter.erase_inputs(observation, erased)), len(chosen))
    said("a unit deleted", plain, expected, ours, found)
    measure_heads(model, observation, first, said)


def knocked_out(
    adapter: LanguageModelAdapter, observation: Observation, units: list[int]
) -> Tensor:
    """Probabilities with each unit knocked out in all layers."""
    kept = observation.attention[0].new_ones(len(units), 1, 1, 1, observation.batch.mask.shape[-1])
    kept[range(len(units)), ..., units] = 0
    every = dict.fromkeys(range(len(adapter.layers)), kept)
    return adapter.replay_masked(observation, every, operator="renormalised")


def measure_heads(
    model: PreTrainedModel, observation: Observation, first: int, said: Callable[..., None]
) -> None:
    """All heads ablated, a layer's together; of the loop of full passes some, the rest alike."""
    adapter, ids = observation.model, observation.batch.inputs["input_ids"]

    def ablated() -> Tensor:
        parts = []
        for layer, own in enumerate(observation.attention):
            n_heads = own.shape[1]
            edits = own.repeat(n_heads, 1, 1, 1, 1)
            edits[range(n_heads), :, range(n_heads)] = 0
            parts.append(
                adapter.compute_log_prob(observation, adapter.replay(observation, {layer: edits}))
            )
        return torch.cat(parts)[:, 0]

    ablated()  # the first edit of a layer is checked
    sites = adapter.sites()
    ours, found = timed(ablated, len(sites))
    places = torch.linspace(0, len(sites) - 1, min(TRIED, len(sites))).long().tolist()

    def off(place: int) -> Tensor:
        with head_off(model, sites[place].layer, sites[place].head, first):
            return full_pass(model, ids)

    plain, expected = timed(lambda: [off(place) for place in places], len(places))
    said("a head ablated at the rows behind", plain, expected, ours, found[places])
    print(
        f"  all {len(sites)} heads: {plain * len(sites):.1f} s by full passes, "
        f"here {ours * len(sites):.1f} s"
    )


def peak(arguments: argparse.Namespace, n_tokens: int) -> None:
    """Prints the peak memory of a process that runs the model, and of one that observes."""
    sizes = []
    for kind in ("plain", "observe"):
        command = [sys.executable, __file__, "--peak", kind, "--tokens", str(n_tokens)]
        command += ["--behind", str(arguments.behind)]
        command += [] if arguments.model is None else ["--model", str(arguments.model)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        sizes.append(float(done.stdout))
    plain, observe = sizes
    print(
        f"{n_tokens} tokens: peak {plain:.2f} GB by a plain forward, here {observe:.2f} GB "
        f"({observe / plain:.2f})"
    )


def run_for_peak(arguments: argparse.Namespace) -> None:
    """Runs one of the two, and prints the process's peak memory in GB."""
    model, n_tokens = load(arguments.model), arguments.tokens[0]
    inputs = prompt_of(model, n_tokens, arguments.behind)
    if arguments.peak == "plain":
        with torch.no_grad():
            model(inputs["input_ids"])
    else:
        adapter = LanguageModelAdapter(model)
        observation = adapter.observe(adapter.prepare(inputs, (0,)))
        knocked_out(adapter, observation, [0, 1])
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="folder of a causal language model")
    parser.add_argument("--tokens", type=int, nargs="+", default=[130, 860])
    parser.add_argument("--behind", type=int, default=24, help="rows behind the passage")
    parser.add_argument("--memory", type=int, help="tokens of a prompt whose memory is measured")
    parser.add_argument("--peak", choices=("plain", "observe"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.peak:
        run_for_peak(arguments)
        return
    model = load(arguments.model)
    wrapped, adapter = timed(lambda: LanguageModelAdapter(model))
    print(f"wrapped in {wrapped:.1f} s, {len(adapter.sites())} heads")
    for n_tokens in arguments.tokens:
        measure(model, adapter, n_tokens, arguments.behind)
    if arguments.memory:
        peak(arguments, arguments.memory)


if __name__ == "__main__":
    main()
