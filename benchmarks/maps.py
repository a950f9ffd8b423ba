"""Measure which attention maps `fit_map` certifies, and whether the certificates can be trusted.

    python benchmarks/maps.py language MODEL [--gguf-file FILE] [--prompts 80] [--seed 0]
    python benchmarks/maps.py classifier MODEL... --dataset sst [--limit 130]
    python benchmarks/maps.py bypass [--draws 10]

- `language` fits a map to a language model with prompts from six templates, for answers that the model
  generates. A quarter of the prompts chooses the map. These prompts ask only about facts of three
  templates. The other prompts certify the map; half of them ask about the other three templates, so the
  table shows faithfulness for templates that were used for the choice, and for unseen templates.
- `classifier` fits a map to each classifier, and shows the faithfulness of all candidates.
- `bypass` fits maps to constructed models whose decision hardly passes through attention. They read the
  words that attention points to, or other words. No map may be certified.

Every part prints its CPU seconds, and how many maps that were chosen by shuffled costs would pass.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_attnprobe import Answers, Data, fit_map
from hf_attnprobe.maps import fitting
from hf_attnprobe.maps.fitting import FittedMap, measure_map_faithfulness
from hf_attnprobe.maps.selection import split_texts
from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.statistics.scale import compute_faithfulness


# The constructed models are shared with the tests.
sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.helpers import bypassing_models, planted_heads


Template = tuple[str, str, list[str], list[str]]
"""A sentence and a question about a subject {0} with the answer {1}, the subjects, and the answers."""
TEMPLATES: list[Template] = [
    (
        "{0} drives a {1} car.",
        "Which colour is the car that {0} drives?",
        ["Alma", "Boris", "Cora", "Derek", "Edith", "Frank", "Gina", "Henry"],
        ["silver", "beige", "maroon", "violet", "golden", "brown", "grey", "pink"],
    ),
    (
        "The {0} exhibition closes in {1}.",
        "In which month does the {0} exhibition close?",
        ["photography", "pottery", "fossil", "fashion", "space", "coin", "toy", "map"],
        ["March", "April", "May", "June", "August", "October", "January", "July"],
    ),
    (
        "{0} keeps a {1} as a pet.",
        "Which animal does {0} keep as a pet?",
        ["Ralph", "Stella", "Toby", "Ursula", "Victor", "Wanda", "Yvonne", "Zack"],
        ["rabbit", "parrot", "turtle", "hamster", "goat", "snake", "cat", "pony"],
    ),
    (
        "The room for {0} is on floor {1}.",
        "On which floor is the room for {0}?",
        ["storage", "yoga", "meetings", "painting", "printing", "chess", "cooking", "prayer"],
        ["2", "3", "4", "5", "6", "7", "8", "9"],
    ),
    (
        "{0} studied {1} at university.",
        "What did {0} study at university?",
        ["Igor", "Jane", "Keith", "Laura", "Mark", "Nadia", "Oscar", "Paula"],
        ["law", "history", "physics", "music", "biology", "chemistry", "economics", "medicine"],
    ),
    (
        "The soup at the {0} contains {1}.",
        "What does the soup at the {0} contain?",
        ["inn", "hospital", "airport", "school", "castle", "harbour", "theatre", "stadium"],
        ["leeks", "lentils", "fennel", "pumpkin", "cabbage", "mushrooms", "celery", "spinach"],
    ),
]
N_SENTENCES = 8
"""Number of sentences in the passage of a prompt."""
N_SEEN_TEMPLATES = 3
"""Number of templates about which the prompts that choose the map ask."""
CHOOSING_SHARE = 0.25
"""Share of the prompts that choose the map."""
MAX_NEW_TOKENS = 24
"""Largest number of tokens in a generated answer."""
N_BYPASS_TEXTS = 60
"""Number of texts for each constructed model."""
ATTENTION_SHARES = (0.01, 0.08)
"""Smallest and largest share of the logits that passes through attention in a constructed model."""
TIMED_STEPS = {
    "costs and scores of units": "_measure_costs",
    "choice": "list_candidates",
    "audit": "run_prepared_audit",
    "control": "run_shuffled_control",
}
"""Functions of a fit whose CPU seconds are printed, by description."""


class Stopwatch:
    """Adds up the CPU seconds of the steps of a fit.

    Attributes:
        seconds: CPU seconds by step.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(["total", *TIMED_STEPS], 0.0)

    @contextmanager
    def time_steps(self) -> Iterator[None]:
        """Add up the CPU seconds of all fits within the context."""
        start = time.process_time()
        with mock.patch.multiple(fitting, **self._wrap_functions()):
            yield
        self.seconds["total"] += time.process_time() - start

    def _wrap_functions(self) -> dict[str, Any]:
        """Wrap the timed functions, so that they add their CPU seconds to the right step."""
        wrapped = {}
        for step, name in TIMED_STEPS.items():
            function = getattr(fitting, name)

            def run_timed(*args: Any, _step: str = step, _function: Any = function, **kwargs: Any):
                start = time.process_time()
                result = _function(*args, **kwargs)
                self.seconds[_step] += time.process_time() - start
                return result

            wrapped[name] = run_timed
        return wrapped

    def __str__(self) -> str:
        steps = [f"{step} {seconds:.1f}" for step, seconds in self.seconds.items()]
        return f"CPU seconds: {', '.join(steps)}"


# --- Language models -----------------------------------------------------------------------------


def draw_prompt(template_index: int, rng: random.Random) -> dict[str, str]:
    """Draw a prompt about one sentence of a template, among sentences of all templates.

    Args:
        template_index: Index of the template about which the prompt asks.
        rng: Random number generator.
    """
    other_indices = [index for index in range(len(TEMPLATES)) if index != template_index] * 2
    rng.shuffle(other_indices)
    indices = other_indices[: N_SENTENCES - 1]
    asked_position = rng.randrange(N_SENTENCES)
    indices.insert(asked_position, template_index)
    pairs_by_template = [
        list(zip(rng.sample(subjects, 8), rng.sample(answers, 8), strict=True))
        for _, _, subjects, answers in TEMPLATES
    ]
    pairs = [pairs_by_template[index].pop() for index in indices]
    sentences = [
        TEMPLATES[index][0].format(*pair) for index, pair in zip(indices, pairs, strict=True)
    ]
    subject, answer = pairs[asked_position]
    question = TEMPLATES[template_index][1].format(subject)
    return {"context": " ".join(sentences), "question": question, "expected": answer}


def draw_prompts(n_prompts: int, seed: int) -> tuple[list[dict[str, Any]], set[int]]:
    """Draw prompts so that the prompts that choose the map ask about few templates.

    The templates are shuffled by the seed. Their first :data:`N_SEEN_TEMPLATES` are *seen*.

    Args:
        n_prompts: Number of prompts.
        seed: Seed.

    Returns:
        The prompts, and the ids of the certifying prompts about unseen templates.
    """
    rng = random.Random(seed)
    order = rng.sample(range(len(TEMPLATES)), len(TEMPLATES))
    seen, unseen = order[:N_SEEN_TEMPLATES], order[N_SEEN_TEMPLATES:]
    _, certifying_ids = split_texts(dict.fromkeys(range(n_prompts)), CHOOSING_SHARE)
    prompts, unseen_ids = [], set()
    for example_id in range(n_prompts):
        templates = seen
        if example_id in certifying_ids and sorted(certifying_ids).index(example_id) % 2:
            templates = unseen
            unseen_ids.add(example_id)
        prompt = draw_prompt(templates[example_id % len(templates)], rng)
        prompts.append({"example_id": example_id, **prompt})
    return prompts, unseen_ids


def measure_faithfulness_of(fitted: FittedMap, ranking: str, example_ids: set[int]) -> Estimate:
    """Measure the faithfulness of a ranking on some of the certifying texts.

    Args:
        fitted: The result of a fit.
        ranking: Name of the ranking.
        example_ids: Ids of the texts.
    """
    assert fitted.report.evidence is not None
    evidence = fitted.report.evidence
    is_selected = np.array([int(example_id) in example_ids for example_id in evidence.texts.index])
    texts = evidence.select_texts(is_selected).texts
    return compute_faithfulness(texts, ranking, evidence.parts).score


def measure_language_model(arguments: argparse.Namespace) -> None:
    """Fit a map to a language model, and print its faithfulness for seen and unseen templates."""
    load_options = {"gguf_file": arguments.gguf_file} if arguments.gguf_file else {}
    tokenizer = AutoTokenizer.from_pretrained(arguments.model, **load_options)
    model = AutoModelForCausalLM.from_pretrained(
        arguments.model, dtype=torch.float32, **load_options
    ).eval()
    prompts, unseen_ids = draw_prompts(arguments.prompts, arguments.seed)
    stopwatch = Stopwatch()
    with stopwatch.time_steps():
        fitted = fit_map(
            model,
            Answers(prompts, max_new_tokens=MAX_NEW_TOKENS),
            tokenizer=tokenizer,
            choosing_share=CHOOSING_SHARE,
            output_dir=arguments.output_dir,
        )
    print(fitted)
    all_ids = {int(example_id) for example_id in fitted.report.example_ids}
    rankings = {"mean of all heads": "attention", "chosen map": "given"}
    for description, ranking in rankings.items():
        for name, ids in (
            ("all", all_ids),
            ("seen templates", all_ids - unseen_ids),
            ("unseen templates", all_ids & unseen_ids),
        ):
            score = measure_faithfulness_of(fitted, ranking, ids)
            if score.n:
                print(f"{description}, {name}: {score.interval_text} on {score.n} prompts")
    print(stopwatch)


# --- Classifiers ---------------------------------------------------------------------------------


def measure_classifier(model: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Fit a map to a classifier, and print and return the faithfulness of all candidates."""
    stopwatch = Stopwatch()
    data = Data(arguments.dataset, test_limit=arguments.limit)
    with stopwatch.time_steps():
        fitted = fit_map(model, data, choosing_share=CHOOSING_SHARE)
    print(f"\n{model}\n{fitted}\n{stopwatch}", flush=True)
    return {**fitted.to_json(), "seconds": stopwatch.seconds}


# --- Constructed models --------------------------------------------------------------------------


def measure_bypassing_models(n_draws: int) -> None:
    """Fit maps to models whose evidence bypasses attention, and print how many are certified."""
    tokenizer = planted_heads.build_tokenizer_for_heads()
    for kind in bypassing_models.KINDS:
        n_certified, scores, path_shares = 0, [], []
        stopwatch = Stopwatch()
        for draw in range(n_draws):
            rng = random.Random(draw)
            model = bypassing_models.build_bypassing_model(
                kind, attention_share=rng.uniform(*ATTENTION_SHARES), seed=draw
            )
            rows = bypassing_models.draw_rows(model, N_BYPASS_TEXTS, seed=draw)
            with stopwatch.time_steps():
                fitted = fit_map(model, rows, tokenizer=tokenizer, progress=False)
            n_certified += fitted.map is not None
            scores.append(measure_map_faithfulness(fitted.report, "attention").value)
            path_shares += [g.estimate.value for g in fitted.gate if g.rule == "path_share"]
        print(
            f"{kind}: {n_certified} of {n_draws} certified; faithfulness of attention "
            f"{min(scores):.2f} to {max(scores):.2f}; path share {min(path_shares):.2f} to "
            f"{max(path_shares):.2f}; {stopwatch}",
            flush=True,
        )


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    language = commands.add_parser("language")
    language.add_argument("model", help="folder or Hub id of a language model")
    language.add_argument("--gguf-file", help="name of a GGUF file in the folder")
    language.add_argument("--prompts", type=int, default=80)
    language.add_argument("--seed", type=int, default=0, help="seed for the prompts")
    language.add_argument("--output-dir", type=Path, help="folder for the result and the audit")
    classifier = commands.add_parser("classifier")
    classifier.add_argument("models", nargs="+", help="folders or Hub ids of classifiers")
    classifier.add_argument("--dataset", required=True)
    classifier.add_argument("--limit", type=int, default=130, help="number of test texts")
    classifier.add_argument("--output", type=Path, help="JSON Lines file for the results")
    bypass = commands.add_parser("bypass")
    bypass.add_argument("--draws", type=int, default=10, help="number of models of each kind")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    if arguments.command == "language":
        measure_language_model(arguments)
    elif arguments.command == "classifier":
        for model in arguments.models:
            result = measure_classifier(model, arguments)
            if arguments.output is not None:
                with arguments.output.open("a") as file:
                    file.write(json.dumps(result) + "\n")
    else:
        measure_bypassing_models(arguments.draws)


if __name__ == "__main__":
    main()
