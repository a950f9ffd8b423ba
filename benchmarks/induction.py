"""Heads that are named as induction heads, and what copying loses without them.

    python benchmarks/induction.py FOLDER [--seeds 0 1 2] [--questions 200]

Decoders of two layers are trained to copy records (kept in the folder), and asked what follows a
word of a passage. The record that says it is planted: how often deletion, knockout and attention
find it is counted, and how often greedy decoding says the whole answer without each head, without
those that are named, and without the others of their layer.
"""

import argparse
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from language import interval
from language_speed import head_off, timed
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from hf_attnprobe import Answers
from hf_attnprobe.adapters import wrap
from hf_attnprobe.data.synthetic import RECORD_LENGTH, generate_record_questions
from hf_attnprobe.demonstration import PROMPT_TEMPLATE
from hf_attnprobe.faithfulness.head_roles import head_roles
from hf_attnprobe.inference.answers import encode_answers, prepare_prompts
from hf_attnprobe.inference.batching import collate
from hf_attnprobe.protocol import ALL, Site
from hf_attnprobe.training.decoder import N_STEPS, train_decoder


QUESTIONS_SEED = 1000  # of passages that no training has seen
MOST_OF_IT = 0.5  # of a head's attention, which names it an induction head


@torch.no_grad()
def exact_share(
    model: Any,
    tokenizer: Any,
    asked: Sequence[dict[str, Any]],
) -> float:
    """Returns the share of questions whose whole answer greedy decoding says.

    Args:
        asked: rows of :func:`~hf_attnprobe.data.synthetic.generate_record_questions`.
    """
    right = []
    for row in asked:
        question = f"{row['context']} {row['question']}"
        prompt = tokenizer(question)["input_ids"][:-1]
        answer = tokenizer(row["answer"], add_special_tokens=False)["input_ids"]
        ids = torch.tensor([[*prompt, *answer]], device=model.device)
        logits = model(ids).logits[0]
        of_answer = logits[len(prompt) - 1 : -1]
        said = of_answer.argmax(-1).tolist()
        right.append(said == answer)
    return sum(right) / len(right)


def share_without(
    model: PreTrainedModel,
    tokenizer: Any,
    asked: Sequence[dict[str, Any]],
    heads: Iterable[Site],
    everywhere: bool,
) -> list[float]:
    """Whether greedy decoding says each answer with heads zeroed, by full passes.

    Args:
        everywhere: in all rows, or only in those behind the passage.
    """
    right = []
    for row in asked:
        n_before = 1 + RECORD_LENGTH * len(row["context"].split("\n\n"))
        with ExitStack() as stack:
            for head in heads:
                off = head_off(model, head.layer, head.head, 0 if everywhere else n_before)
                stack.enter_context(off)
            right.append(exact_share(model, tokenizer, [row]))
    return right


@torch.no_grad()
def found_and_roles(
    model: PreTrainedModel, tokenizer: Any, asked: list[dict[str, Any]]
) -> tuple[dict[str, list[bool]], dict[Site, dict[str, float]]]:
    """Whether each ranking puts the planted record first, and every head's roles."""
    adapter = wrap(model)
    data = Answers(asked, units="passage", template=PROMPT_TEMPLATE)
    made = prepare_prompts(data.load_examples(), data, tokenizer, adapter, model)
    texts = {text.example_id: text for text in encode_answers(made).texts}
    sources = {row["example_id"]: row["source"] for row in asked}
    found: dict[str, list[bool]] = {}
    roles: dict[Site, dict[str, list[Tensor]]] = {}
    layers = range(len(adapter.layers))
    for number, text in texts.items():
        observation = adapter.observe(collate(adapter, [text], tokenizer.pad_token_id))
        n_units = int(observation.batch.content_mask.sum())
        each = 1 - torch.eye(n_units, len(observation.batch.mask[0]))[:, None, None, None]
        after = adapter.replay_masked(
            observation, dict.fromkeys(layers, each), operator="renormalised"
        )
        without = observation.leave_one_out.transpose(0, 1)[:n_units]
        rankings = {
            "deletion": -adapter.compute_log_prob(observation, without)[:, 0],
            "knockout, renormalised": -adapter.compute_log_prob(observation, after)[:, 0],
            "attention, all heads": observation.read(Site(ALL, ALL))[0, :n_units],
        }
        for name, values in rankings.items():
            found.setdefault(name, []).append(int(values.argmax()) == sources[number])
        for site in adapter.sites():
            result = head_roles(observation, site)
            for role, value in vars(result).items():
                roles.setdefault(site, {}).setdefault(role, []).append(value)
    means = {
        site: {role: float(torch.cat(values).nanmean()) for role, values in by_role.items()}
        for site, by_role in roles.items()
    }
    return found, means


def measure(folder: Path, seed: int, n_questions: int, n_steps: int) -> None:
    """Trains a decoder if it is not there, and prints what is found and what heads do."""
    if not (folder / "config.json").exists():
        seconds, _ = timed(
            lambda: train_decoder(folder, seed=seed, n_steps=n_steps, progress=False)
        )
        print(f"trained in {seconds:.0f} CPU seconds")
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    asked = [*generate_record_questions(n_questions, seed=QUESTIONS_SEED + seed)]
    found, roles = found_and_roles(model, tokenizer, asked)
    print(f"seed {seed}, {n_questions} questions")
    for name, hits in found.items():
        print(f"  precision@1 of {name}: {interval(hits)}")
    named = [site for site, means in roles.items() if means["induction"] >= MOST_OF_IT]

    def said(what: str, heads: Iterable[Site]) -> None:
        shares = [
            share_without(model, tokenizer, asked, heads, everywhere)
            for everywhere in (True, False)
        ]
        print(
            f"  whole answers without {what}: {interval(shares[0])}, "
            f"in the rows behind alone {interval(shares[1])}"
        )

    said("no head", [])
    for site, means in roles.items():
        told = ", ".join(f"{role} {mean:.2f}" for role, mean in means.items())
        said(f"{site.layer}.{site.head} ({told})", [site])
    names = " ".join(f"{site.layer}.{site.head}" for site in named)
    said(f"the named {names or '(none)'}", named)
    rest = [site for site in roles if site.layer == len(model.model.layers) - 1]
    rest = [site for site in rest if site not in named]
    said("the others of the last layer", rest)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where decoders are kept, one per seed")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--steps", type=int, default=N_STEPS, help="of the training")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for one in given.seeds:
        measure(given.folder / str(one), one, given.questions, given.steps)
