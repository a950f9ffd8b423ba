"""Compare exchange and deletion of sentences on planted prompts of a language model.

    python benchmarks/language_exchange.py MODEL --prompts 40 --output rows.jsonl

The prompts are those of `language.py`: one of several sentences contains the answer. Each sentence
is deleted, and each sentence is exchanged with a sentence from other prompts of the same template.
The new sentence has the same attention rank (mean over all heads, in the row that predicts the
answer's first token). The loss of a sentence is the decrease of the answer's log probability. An
operator is right if the sentence with the answer has the largest loss.

The script runs full forward passes without any code of the package except the prompts.
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from language import interval, planted
from transformers import AutoModelForCausalLM, AutoTokenizer


N_DONORS = 2
"""Number of donors, which are other prompts of the same template, for each prompt."""
N_TEMPLATES = 5
"""Number of templates in `language.py`, which take turns."""
MIN_POOL_SIZE = 10 * N_TEMPLATES
"""Smallest number of prompts among which donors are drawn."""


def split_sentences(context: str) -> list[str]:
    """Split a planted context into its sentences, which all end with a full stop."""
    return re.split(r"(?<=\.) ", context)


def join_prompt(row: dict[str, Any], sentences: list[str]) -> str:
    """Return a prompt in which the context consists of other sentences.

    Args:
        row: A planted prompt.
        sentences: New sentences of the context.
    """
    return row["prompt"].replace(row["context"], " ".join(sentences))


class AnswerScorer:
    """Runs a language model on prompts and reads the log probability of an answer.

    Args:
        folder: Folder or Hub id of the model.
        gguf_file: Name of a GGUF file in this folder, or None.
    """

    def __init__(self, folder: str, gguf_file: str | None = None) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=gguf_file)
        self.model = AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=gguf_file, dtype=torch.float32, attn_implementation="eager"
        ).eval()

    @torch.no_grad()
    def compute_log_prob(self, prompt: str, answer: str) -> float:
        """Compute the log probability of an answer after a prompt, in nats."""
        prompt_ids = self.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        answer_ids = self.tokenizer(answer, add_special_tokens=False)["input_ids"]
        ids = torch.tensor([prompt_ids + answer_ids])
        logits = self.model(ids, logits_to_keep=len(answer_ids) + 1).logits[0, :-1].double()
        log_probs = logits.log_softmax(-1)
        return float(log_probs.gather(1, torch.tensor(answer_ids)[:, None]).sum())

    @torch.no_grad()
    def order_sentences(self, row: dict[str, Any]) -> list[int]:
        """Order the sentences of a prompt by attention, the most attended sentence first."""
        encoding = self.tokenizer(
            row["prompt"], add_special_tokens=False, return_offsets_mapping=True
        )
        output = self.model(torch.tensor([encoding["input_ids"]]), output_attentions=True)
        attention = torch.stack(output.attentions)[:, 0, :, -1].mean((0, 1)).numpy()
        token_starts = np.array(encoding["offset_mapping"])[:, 0]
        start = row["prompt"].index(row["context"])
        masses = []
        for sentence in split_sentences(row["context"]):
            end = start + len(sentence) + 1
            masses.append(attention[(token_starts >= start) & (token_starts < end)].sum())
            start = end
        return list(np.argsort(masses)[::-1])


def measure_prompt(
    scorer: AnswerScorer, row: dict[str, Any], donors: list[dict[str, Any]]
) -> dict[str, Any]:
    """Measure the loss of each sentence by deletion and by exchange, in nats.

    Args:
        scorer: The language model.
        row: A planted prompt.
        donors: Other prompts with the same template.
    """
    sentences = split_sentences(row["context"])
    answer = row["answer"]
    whole = scorer.compute_log_prob(row["prompt"], answer)
    ranks = {index: rank for rank, index in enumerate(scorer.order_sentences(row))}
    deletion, exchange = [], []
    for index in range(len(sentences)):
        remaining = sentences[:index] + sentences[index + 1 :]
        deletion.append(whole - scorer.compute_log_prob(join_prompt(row, remaining), answer))
        losses = []
        for donor in donors:
            donor_sentences = split_sentences(donor["context"])
            donor_order = donor["order"]
            new_index = donor_order[min(ranks[index], len(donor_order) - 1)]
            edited = [*sentences]
            edited[index] = donor_sentences[new_index]
            losses.append(whole - scorer.compute_log_prob(join_prompt(row, edited), answer))
        exchange.append(losses)
    return {
        "id": row["example_id"],
        "source": row["source"],
        "log_prob": whole,
        "deletion": deletion,
        "exchange": np.mean(exchange, axis=1).tolist(),
        "one_donor": np.array(exchange)[:, 0].tolist(),
    }


def draw_donors(
    rows: list[dict[str, Any]], scorer: AnswerScorer, number: int
) -> list[dict[str, Any]]:
    """Draw donors for a prompt: other prompts of its template with another answer."""
    row = rows[number]
    candidates = [
        other
        for other in rows
        if (other["example_id"] - row["example_id"]) % N_TEMPLATES == 0
        and other["answer"] != row["answer"]
    ]
    drawn = np.random.default_rng([0, number]).permutation(len(candidates))[:N_DONORS]
    donors = [candidates[index] for index in drawn]
    for donor in donors:
        if "order" not in donor:
            donor["order"] = scorer.order_sentences(donor)
    return donors


def print_summary(measured: list[dict[str, Any]]) -> None:
    """Print how often each operator is right, for all prompts and for those with a large loss."""
    print("prompts | operator | right [95%]")
    for smallest_loss in (-np.inf, 0.5, 1.0):
        for operator in ("deletion", "one_donor", "exchange"):
            chosen = [row for row in measured if max(row["deletion"]) >= smallest_loss]
            hits = [float(np.argmax(row[operator]) == row["source"]) for row in chosen]
            print(f"loss >= {smallest_loss} nats ({len(chosen)}) | {operator} | {interval(hits)}")
    agreement = [np.argmax(row["deletion"]) == np.argmax(row["exchange"]) for row in measured]
    print("same first sentence by both operators:", interval([float(same) for same in agreement]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder or Hub id of a language model")
    parser.add_argument("--gguf-file", help="name of a GGUF file in the folder")
    parser.add_argument("--prompts", type=int, default=40, help="number of planted prompts")
    parser.add_argument("--output", type=Path, required=True, help="file for the measured rows")
    arguments = parser.parse_args()
    scorer = AnswerScorer(arguments.model, arguments.gguf_file)
    n_rows = max(arguments.prompts, MIN_POOL_SIZE)
    rows = list(planted(n_rows, scorer.tokenizer))
    measured = []
    if arguments.output.exists():
        measured = [json.loads(line) for line in arguments.output.read_text().splitlines()]
    for number in range(len(measured), arguments.prompts):
        donors = draw_donors(rows, scorer, number)
        measured.append(measure_prompt(scorer, rows[number], donors))
        with arguments.output.open("a") as file:
            file.write(json.dumps(measured[-1]) + "\n")
    print_summary(measured)


if __name__ == "__main__":
    main()
