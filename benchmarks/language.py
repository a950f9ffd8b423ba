"""What finds the sentence that an answer rests on: planted prompts, a real language model.

    python benchmarks/language.py MODEL rows.jsonl --prompts 200 [--masks 64]
    python benchmarks/language.py MODEL rows.jsonl --passages questions.jsonl
    python benchmarks/language.py MODEL rows.jsonl --prompts 40 --own-words

Five templates of 8 to 20 sentences, one of which says the answer, at every place. Of each
prompt a row is kept: what deleting every sentence costs the answer in nats, what knocking out
its attention from behind costs, the attention of every head, and, with masks, the answer's
logit without random halves of the sentences (ContextCite, AT2). An interrupted run goes on;
what the rows say is printed at its end. Of passages with questions of one's own (context and
question) the deciding sentence is the one whose deletion costs most, and the answer the model's.

With --own-words, the prompt does not begin the answer. The model generates it in its own words, and
the planted sentence is the one whose value the answer contains. The last table counts the prompts in
which there is something to find: the deletion of some sentence costs at least 1 nat.
"""

import argparse
import json
import random
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import kendalltau, spearmanr
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_attnprobe import Answers
from hf_attnprobe.adapters import wrap
from hf_attnprobe.functional.attribution import compute_logit, fit_lasso
from hf_attnprobe.inference.answers import encode_answers, prepare_prompts
from hf_attnprobe.inference.batching import collate
from hf_attnprobe.protocol import KNOCKOUTS


PEOPLE = [
    "Anna Berg",
    "Tom Hill",
    "Maria Lopez",
    "John Reed",
    "Sara Klein",
    "Paul Novak",
    "Lucy Chen",
    "Omar Farah",
    "Nina Rossi",
    "Karl Braun",
    "Ivan Petrov",
    "Rosa Diaz",
    "Hugo Blanc",
    "Eva Lind",
    "Max Weber",
    "Lena Holm",
    "Emil Varga",
    "Ruth Cohen",
    "Amir Khan",
    "Julia Moreau",
    "Peter Stone",
    "Clara Vogel",
    "Simon Ward",
    "Helen Park",
]
CITIES = [
    "Oslo",
    "Madrid",
    "Cairo",
    "Lima",
    "Prague",
    "Dublin",
    "Tokyo",
    "Boston",
    "Athens",
    "Vienna",
    "Paris",
    "Rome",
    "Berlin",
    "Delhi",
    "Quito",
    "Seoul",
    "Lagos",
    "Havana",
    "Zurich",
    "Naples",
    "Kyoto",
    "Geneva",
    "Lisbon",
    "Warsaw",
]
THINGS = [
    "violin",
    "lamp",
    "map",
    "clock",
    "mirror",
    "kettle",
    "ladder",
    "basket",
    "helmet",
    "blanket",
    "camera",
    "statue",
    "globe",
    "hammer",
    "umbrella",
    "radio",
    "suitcase",
    "vase",
    "carpet",
    "bicycle",
    "telescope",
    "piano",
    "drum",
    "compass",
]
PLACES = [
    "attic",
    "kitchen",
    "garage",
    "library",
    "cellar",
    "garden",
    "office",
    "hallway",
    "stable",
    "chapel",
    "tower",
    "studio",
    "bakery",
    "harbour",
    "museum",
    "barn",
    "theatre",
    "school",
    "market",
    "pharmacy",
    "cabin",
    "station",
    "castle",
    "workshop",
]
COLOURS = [
    "red",
    "blue",
    "green",
    "yellow",
    "black",
    "white",
    "brown",
    "grey",
    "purple",
    "orange",
    "pink",
    "silver",
    "golden",
    "violet",
    "crimson",
    "ivory",
    "beige",
    "amber",
    "copper",
    "turquoise",
    "maroon",
    "olive",
    "navy",
    "lilac",
]
NUMBERS = [str(n) for n in range(11, 35)]
TEMPLATES = (
    (PEOPLE, CITIES, "{0} lives in {1}.", "Where does {0} live?", "{0} lives in"),
    (
        THINGS,
        PLACES,
        "The {0} is kept in the {1}.",
        "Where is the {0} kept?",
        "The {0} is kept in the",
    ),
    (PEOPLE, NUMBERS, "{0} is {1} years old.", "How old is {0}?", "{0} is"),
    (PEOPLE, THINGS, "{0} bought a new {1}.", "What did {0} buy?", "{0} bought a new"),
    (
        THINGS,
        COLOURS,
        "The {0} was painted {1}.",
        "Which colour was the {0} painted?",
        "The {0} was painted",
    ),
)


MOST_SAID = 8  # tokens of an answer that is generated
MAX_OWN_TOKENS = 32
"""Maximum length of an answer in the model's own words, in tokens."""
MIN_LOSS = 1.0
"""Smallest loss, in nats, that makes a sentence worth finding."""


def ridge(columns: Tensor, outputs: Tensor, penalty: float = 1.0) -> Tensor:
    """Returns weights of standardised columns by least squares with ``penalty · n · ‖w‖²``.

    AT2 (Cohen-Wang et al. 2025) learns one weight per head so that the sum of heads'
    attention to the units that stay follows the output. Its code climbs the correlation;
    this is the closed form of the same regression. Columns and outputs are centred by
    text before, see :func:`of_text`.

    Args:
        columns: [rows, heads].
        outputs: [rows].

    Returns:
        [heads], on the columns' own scale.
    """
    scale = columns.square().mean(0).sqrt()
    scale = scale.masked_fill(scale == 0, 1)
    columns = columns / scale
    n_rows, n_heads = columns.shape
    products = columns.T @ columns / n_rows
    eye = torch.eye(n_heads, dtype=columns.dtype, device=columns.device)
    wanted = columns.T @ outputs / n_rows
    return torch.linalg.solve(products + penalty * eye, wanted) / scale


def of_text(attention: Tensor, kept: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """A text's rows for :func:`ridge`: attention to the units that stay, and the outputs.

    Args:
        attention: [heads, units].
        kept: bool [masks, units].
        outputs: [masks].

    Returns:
        [masks, heads] and [masks], both centred: texts differ in level.
    """
    columns = kept.to(attention.dtype) @ attention.T
    return columns - columns.mean(0), outputs - outputs.mean()


def planted(
    n: int, tokenizer: Any, seed: int = 0, *, own_words: bool = False
) -> Iterator[dict[str, Any]]:
    """Prompts, each with the number of the sentence that says the answer.

    With `own_words`, the prompt ends before the answer, and the row has no answer.
    """
    rng = random.Random(seed)
    for number in range(n):
        names, values, sentence, question, lead = TEMPLATES[number % len(TEMPLATES)]
        n_sentences = 8 + number // len(TEMPLATES) % 13
        chosen = rng.sample(names, n_sentences)
        said = rng.sample(values, n_sentences)
        facts = [sentence.format(*pair) for pair in zip(chosen, said, strict=True)]
        # every place in turn, so that each is met as often
        source = (number // (len(TEMPLATES) * 13) + 3 * (number // len(TEMPLATES))) % n_sentences
        context = " ".join(facts)
        turn = f"{context}\n\n{question.format(chosen[source])}"
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": turn}], tokenize=False, add_generation_prompt=True
        )
        row = {"example_id": number, "context": context, "source": source, "values": said}
        if own_words:
            yield {**row, "prompt": prompt}
        else:
            yield {
                **row,
                "prompt": prompt + lead.format(chosen[source]),
                "answer": f" {said[source]}",
            }


def contributions(adapter: Any, observation: Any) -> list[list[float]]:
    """What each unit gives to each head's output, by head; over all tokens it sums to 1.

    c_ij = α_ij ⟨v_j W, o_i⟩ / ‖o_i‖², o_i = Σ_j α_ij v_j W (after Contribution Weights, 2606.07604),
    the mean over the rows that predict the answer.
    """
    units = observation.batch.inputs["unit_ids"][0, :-1]
    of_unit = torch.nn.functional.one_hot(units + 1)[:, 1:].float()
    rows = adapter.find_answer_rows(observation)
    projections = adapter.get_output_projections()

    def read(layer: int, weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        parts = values.float() @ projections[layer].float()  # [heads, tokens, hidden]
        outputs = weights[:, rows].float() @ parts
        along = outputs @ parts.transpose(1, 2) / outputs.square().sum(-1, keepdim=True)
        return ((weights[:, rows] * along) @ of_unit).mean(1)

    found = adapter.read_token_attention(observation, read)
    return [[round(float(w), 7) for w in head] for layer in found for head in layer]


@torch.no_grad()
def measured(adapter: Any, text: Any, n_masks: int) -> dict[str, Any]:
    """All numbers of one prompt; CPU seconds by what they were spent on."""
    seconds, clock = {}, time.process_time()

    def done(what: str) -> None:
        nonlocal clock
        seconds[what], clock = time.process_time() - clock, time.process_time()

    observation = adapter.observe(collate(adapter, [text], 0))
    n_units = int(observation.batch.content_mask.sum())
    said = float(adapter.compute_log_prob(observation, observation.probs))
    done("observed")
    gone = adapter.compute_log_prob(observation, observation.leave_one_out.transpose(0, 1))[
        :n_units, 0
    ]
    done("deletion")
    each = 1 - torch.eye(n_units, len(observation.batch.mask[0]))[:, None, None, None]
    layers = range(len(adapter.layers))
    knocked = {}
    for operator in KNOCKOUTS:
        after = adapter.replay_masked(observation, dict.fromkeys(layers, each), operator=operator)
        knocked[operator] = (said - adapter.compute_log_prob(observation, after)[:, 0]).tolist()
    done("knockout")
    row = {
        "tokens": text.n_tokens,
        "layers": len(adapter.layers),
        "units": n_units,
        "log_prob": said,
        "greedy": bool(adapter.is_greedy(observation)),
        "gain": said
        - float(
            adapter.compute_log_prob(
                observation, adapter.compute_probs_without_passage(observation)
            )
        ),
        "lengths": adapter.count_unit_tokens(observation)[0, :n_units].tolist(),
        "deletion": (said - gone).tolist(),
        "knockout": knocked,
        "attention": [
            [round(float(w), 7) for w in head[:n_units]]
            for layer in observation.attention
            for head in layer[0, :, adapter.find_answer_rows(observation)].mean(1)
        ],
        "contribution": contributions(adapter, observation),
        "sink": float(
            torch.stack(
                [
                    a[0, :, adapter.find_answer_rows(observation), -1].mean()
                    for a in observation.attention
                ]
            ).mean()
        ),
    }
    if n_masks:
        drawn = torch.Generator().manual_seed(text.example_id)
        kept = torch.rand(2 * n_masks, n_units, generator=drawn) < 0.5
        clock = time.process_time()
        erased = torch.zeros(len(kept), 1, len(observation.batch.mask[0]), dtype=torch.bool)
        erased[:, 0, :n_units] = ~kept
        logits = compute_logit(
            adapter.compute_log_prob(observation, adapter.erase_inputs(observation, erased))[:, 0]
        )
        done("masks")
        row |= {"kept": kept.int().tolist(), "logits": logits.tolist()}
        order = np.argsort(row["deletion"])[::-1]
        names = {
            "deletion": order,
            "ContextCite": np.argsort(fit_lasso(kept[:n_masks], logits[:n_masks]).numpy())[::-1],
        }
        for name, first in names.items():
            sets = torch.zeros(2, 1, erased.shape[-1], dtype=torch.bool)
            for k, top in enumerate((1, 3)):
                sets[k, 0, first[:top].copy()] = True
            drops = (
                said
                - adapter.compute_log_prob(observation, adapter.erase_inputs(observation, sets))[
                    :, 0
                ]
            )
            row[f"drop {name}"] = drops.tolist()
    return row | {"seconds": seconds}


def run(name: str, path: Path, given: argparse.Namespace) -> None:
    """Appends a row to a file for each prompt of which it has none."""
    first, step = map(int, given.part.split("/"))
    known = {row["id"] for row in _rows(path)} if path.exists() else set()
    asked = None if given.passages is None else _rows(given.passages)
    n_prompts = given.prompts if asked is None else len(asked)
    if known.issuperset(range(first, n_prompts, step)):
        return
    tokenizer = AutoTokenizer.from_pretrained(name)
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32).eval()
    adapter = wrap(model)
    rows = [*planted(n_prompts, tokenizer, own_words=given.own_words)]
    if asked is not None:
        rows = [{"example_id": number, **row} for number, row in enumerate(asked)]
    # Answers are generated only for the prompts of this part.
    rows = rows[first::step]
    columns = ("example_id", "context", "prompt", "question", "answer")
    prompts = [{name: row[name] for name in columns if name in row} for row in rows]
    max_new_tokens = MAX_OWN_TOKENS if given.own_words else MOST_SAID
    data = Answers(prompts, max_new_tokens=max_new_tokens)
    made = prepare_prompts(data.load_examples(), data, tokenizer, adapter, model)
    texts = {text.example_id: text for text in encode_answers(made).texts}
    answers = dict(zip(made["example_id"], made["answer"], strict=True))
    for row in rows:
        number = row["example_id"]
        if number in known or number not in texts:
            continue
        found = measured(adapter, texts[number], given.masks)
        source = row.get("source", int(np.argmax(found["deletion"])))
        if given.own_words:
            found["answer"] = answers[number]
            found["written"] = find_written_values(answers[number], row["values"])
        with path.open("a") as file:
            file.write(json.dumps({"id": number, "source": source, **found}) + "\n")
        print(number, {k: round(v, 1) for k, v in found["seconds"].items()}, flush=True)


def find_written_values(answer: str, values: Sequence[str]) -> list[int]:
    """Find the sentences whose value an answer contains as a word.

    Args:
        answer: The model's answer.
        values: Value of each sentence.

    Returns:
        Indices of these sentences.
    """
    return [k for k, value in enumerate(values) if re.search(rf"\b{value}\b", answer)]


def print_own_words(rows: Sequence[dict[str, Any]]) -> None:
    """Print how often each ranking puts the planted sentence first, in answers in the model's words.

    Only prompts whose answer contains the value of a single sentence are counted.
    """
    counted = [row for row in rows if len(row["written"]) == 1]
    findable = [row for row in rows if max(row["deletion"]) >= MIN_LOSS]
    print(f"\na sentence costs at least {MIN_LOSS:g} nat in {len(findable)} of {len(rows)} prompts")
    print(f"{len(counted)} of {len(rows)} answers contain the value of a single sentence")
    groups: dict[str, list[Any]] = {"the right sentence": [], "another sentence": []}
    for row in counted:
        is_right = row["written"] == [row["source"]]
        if max(row["deletion"]) >= MIN_LOSS:
            groups["the right sentence" if is_right else "another sentence"].append(row)
    for name, group in groups.items():
        print(f"the value of {name}, and a sentence costs at least {MIN_LOSS:g} nat: {len(group)}")
        rankings = {
            "deletion": [row["deletion"] for row in group],
            **{f"knockout, {o}": [row["knockout"][o] for row in group] for o in KNOCKOUTS},
            "attention, all heads": [np.mean(row["attention"], 0) for row in group],
        }
        for ranking, scores in rankings.items():
            hits = [
                int(np.argmax(values)) == row["written"][0]
                for values, row in zip(scores, group, strict=True)
            ]
            print(f"  {ranking} | {sum(hits)} of {len(hits)}")


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def interval(values: Sequence[float]) -> str:
    """Mean with its bootstrap interval."""
    array = np.asarray(values, dtype=float)
    array = array[~np.isnan(array)]
    draws = np.random.default_rng(0).choice(array, (2000, len(array))).mean(1)
    low, high = np.quantile(draws, (0.025, 0.975))
    return f"{array.mean():.3f} [{low:.3f}, {high:.3f}]"


def tell(path: Path, fitted_on: Path | None) -> None:
    """Prints precision@1, rank correlations, mediated shares, drops and LDS."""
    rows = _rows(path)
    n_heads = len(rows[0]["attention"]) // rows[0]["layers"]
    n_tokens = np.mean([r["tokens"] for r in rows])
    print(f"{len(rows)} prompts, {n_heads} heads a layer, {n_tokens:.0f} tokens")
    print("greedy decoding says the answer:", interval([r["greedy"] for r in rows]))
    print("contextual gain, nats:", interval([r["gain"] for r in rows]))
    print("attention on the sink:", interval([r["sink"] for r in rows]))
    print("chance of precision@1:", interval([1 / r["units"] for r in rows]))
    heads = [np.asarray(r["attention"]) for r in rows]
    scores: dict[str, list[np.ndarray]] = {
        "deletion": [np.asarray(r["deletion"]) for r in rows],
        **{f"knockout, {o}": [np.asarray(r["knockout"][o]) for r in rows] for o in KNOCKOUTS},
        "attention, all heads": [a.mean(0) for a in heads],
        "attention, last layer": [a[-n_heads:].mean(0) for a in heads],
        "contribution weights, all heads": [np.mean(r["contribution"], 0) for r in rows],
        "contribution weights, last layer": [
            np.mean(r["contribution"][-n_heads:], 0) for r in rows
        ],
        "length": [np.asarray(r["lengths"], dtype=float) for r in rows],
    }
    parts = {
        "attention": heads,
        "contribution weights": [np.asarray(r["contribution"]) for r in rows],
    }
    for name, of_heads in parts.items():
        best = _of_the_other_half(of_heads, rows, n_heads)
        scores[f"{name}, best layer of the other half"] = best
    print("\nranking | precision@1 | tau with deletion")
    for name, values in scores.items():
        hits = [np.argmax(v) == r["source"] for v, r in zip(values, rows, strict=True)]
        taus = [kendalltau(v, r["deletion"])[0] for v, r in zip(values, rows, strict=True)]
        print(f"{name} | {interval(hits)} | {interval(taus)}")
    _tell_shares(rows)
    if all("written" in r for r in rows):
        print_own_words(rows)
    masked = [(r, a) for r, a in zip(rows, heads, strict=True) if "kept" in r]
    if not masked:
        return
    print(f"\n{len(masked)} prompts with masks")
    for name in ("deletion", "ContextCite"):
        for k, top in enumerate((1, 3)):
            print(f"top-{top} drop, {name}: {interval([r[f'drop {name}'][k] for r, _ in masked])}")
    for k, top in enumerate((1, 3)):
        gaps = [r["drop deletion"][k] - r["drop ContextCite"][k] for r, _ in masked]
        print(f"top-{top} drop, deletion less ContextCite, paired: {interval(gaps)}")
    more = [] if fitted_on is None else _rows(fitted_on)
    _tell_lds(masked, [(r, np.asarray(r["attention"])) for r in more])


def _tell_shares(rows: Sequence[dict[str, Any]]) -> None:
    """What knocking the source out costs over what deleting it costs, where that is over 1 nat."""
    costly = [r for r in rows if r["deletion"][r["source"]] > 1]
    print(f"\nmediated share of the source, {len(costly)} prompts where deletion costs over 1 nat")
    for operator in KNOCKOUTS if costly else ():
        share = [r["knockout"][operator][r["source"]] / r["deletion"][r["source"]] for r in costly]
        quartiles = np.quantile(share, (0.25, 0.5, 0.75)).round(2)
        print(f"{operator} | {interval(share)} | quartiles {quartiles}")


def _of_the_other_half(
    heads: Sequence[np.ndarray], rows: Sequence[dict[str, Any]], n_heads: int
) -> list[np.ndarray]:
    """Attention of the layer that finds the source most often in prompts of the other half."""
    by_layer = [a.reshape(-1, n_heads, a.shape[-1]).mean(1) for a in heads]
    hits = np.asarray(
        [[np.argmax(one) == r["source"] for one in a] for a, r in zip(by_layer, rows, strict=True)]
    )
    even = np.asarray([r["id"] % 2 == 0 for r in rows])
    chosen = {half: int(hits[even != half].mean(0).argmax()) for half in (True, False)}
    print("best layers (even, odd prompts):", chosen[True], chosen[False])
    return [a[chosen[bool(e)]] for a, e in zip(by_layer, even, strict=True)]


def _tell_lds(
    masked: Sequence[tuple[dict[str, Any], np.ndarray]],
    more: Sequence[tuple[dict[str, Any], np.ndarray]],
) -> None:
    """LDS on held-out masks, beside the passes that a method takes.

    Args:
        masked: prompts that are told of; AT2 is fitted on every other one for those between.
        more: prompts on which it is fitted in any case.
    """
    columns, outputs = [], []
    for row, attention in [*masked, *more]:
        kept, logits = torch.tensor(row["kept"]).bool(), torch.tensor(row["logits"]).double()
        of_row = of_text(torch.tensor(attention).double(), kept, logits)
        columns.append(of_row[0])
        outputs.append(of_row[1])
    n_masks = len(masked[0][0]["kept"]) // 2
    found: dict[str, list[float]] = {}
    for k, (row, attention) in enumerate(masked):
        kept, logits = torch.tensor(row["kept"]).bool(), torch.tensor(row["logits"]).double()
        others = [j for j in range(len(columns)) if j >= len(masked) or j % 2 != k % 2]
        weights = ridge(
            torch.cat([columns[j] for j in others]), torch.cat([outputs[j] for j in others])
        )
        scores = {
            "deletion": torch.tensor(row["deletion"]).double(),
            "knockout": torch.tensor(row["knockout"]["none"]).double(),
            "ContextCite": fit_lasso(kept[:n_masks], logits[:n_masks]).double(),
            "attention, all heads": torch.tensor(attention).double().mean(0),
            "contribution weights, all heads": torch.tensor(row["contribution"]).double().mean(0),
            "AT2": weights @ torch.tensor(attention).double(),
        }
        for name, values in scores.items():
            summed = kept[n_masks:].double() @ values
            found.setdefault(name, []).append(spearmanr(summed, logits[n_masks:])[0])
    units = np.mean([r["units"] for r, _ in masked])
    passes = {
        "deletion": f"{units:.0f} from a cache",
        "ContextCite": str(n_masks),
        "AT2": f"1, and {len(torch.cat(outputs))} for all prompts that it may be fitted on",
    }
    for name, values in found.items():
        print(f"LDS, {name}: {interval(values)}; passes {passes.get(name, '1')}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder of a causal language model")
    parser.add_argument("rows", type=Path, help="file of JSON lines")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--passages", type=Path, help="JSON lines of context and question")
    parser.add_argument("--own-words", action="store_true", help="the model generates the answers")
    parser.add_argument("--masks", type=int, default=0)
    parser.add_argument("--fit", type=Path, help="rows of other prompts, with masks, for AT2")
    parser.add_argument("--part", default="0/1", help="which prompts, as first/step")
    given = parser.parse_args()
    torch.set_num_threads(1)
    run(given.model, given.rows, given)
    tell(given.rows, given.fit)
