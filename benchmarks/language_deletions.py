"""CPU seconds to delete each sentence of a passage, compared with loops, captum and ContextCite.

    python benchmarks/language_deletions.py MODEL [--prompts 3] [--dtype bfloat16]

All of them explain the right answers to planted prompts of 8 sentences
(``language_audit.planted``). The loops and captum must agree with this package to 1e-4 nats in
float32. In bfloat16, rounding is larger than that, so the difference is only printed. ContextCite
deletes 64 random halves instead of single sentences, so its numbers are others. Packages that are
not installed are left out. Used with captum 0.9.0 and context-cite 0.0.4.
"""

import argparse
import time
from collections.abc import Callable
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from language_audit import planted
from language_peers import TOLERANCE, contextcite, log_prob
from torch import Tensor
from transformers import DynamicCache

from hf_attnprobe import Answers, AuditOptions
from hf_attnprobe.audits.setup import AuditRequest, prepare_audit
from hf_attnprobe.faithfulness.passage_units import measure_deletion_effects
from hf_attnprobe.inference.batching import collate


class Case(NamedTuple):
    """A prompt with its answer, for every tool in the form that it reads.

    Attributes:
        row: Passage and question.
        prompt: The prompt as text.
        sentences: Start and end of each sentence in the prompt, in characters.
        ids: Token ids of prompt and answer, int [1, tokens].
        unit_ids: Number of each token's sentence, or -1, int [tokens].
        n_answer: Number of tokens in the answer.
        answer: The answer as text.
    """

    row: dict[str, Any]
    prompt: str
    sentences: list[tuple[int, int]]
    ids: Tensor
    unit_ids: Tensor
    n_answer: int
    answer: str

    def list_sentences(self) -> list[tuple[int, str]]:
        """Start and text of every sentence."""
        return [(start, self.prompt[start:end]) for start, end in self.sentences]

    @property
    def answer_ids(self) -> Tensor:
        """Token ids of the answer, int [answer]."""
        return self.ids[0, -self.n_answer :]


def score(model: Any, ids: Tensor, n_answer: int, **arguments: Any) -> Tensor:
    """Log-probability of the answer at the end of the tokens."""
    logits = model(ids[:, :-1], logits_to_keep=n_answer, **arguments).logits
    return log_prob(logits, ids[0, -n_answer:])[0]


def delete_by_full_passes(model: Any, case: Case) -> Tensor:
    """Losses of the answer, by a pass over the whole shortened prompt for each sentence."""
    whole = score(model, case.ids, case.n_answer, use_cache=False)
    scores = [
        score(model, case.ids[:, case.unit_ids != unit], case.n_answer, use_cache=False)
        for unit in range(len(case.sentences))
    ]
    return whole - torch.stack(scores)


def delete_with_cached_keys(model: Any, case: Case) -> Tensor:
    """The same, but the tokens before each sentence are taken from a cache of keys and values."""
    cache = DynamicCache()
    whole = score(model, case.ids, case.n_answer, past_key_values=cache)
    losses = []
    for unit in range(len(case.sentences)):
        start = int((case.unit_ids == unit).nonzero()[0])
        prefix = DynamicCache()
        for layer, states in enumerate(cache.layers):
            prefix.update(states.keys[:, :, :start], states.values[:, :, :start], layer)
        remaining = case.unit_ids != unit
        remaining[:start] = False
        rest = case.ids[:, remaining]
        losses.append(whole - score(model, rest, case.n_answer, past_key_values=prefix))
    return torch.stack(losses)


class Captum:
    """captum's feature ablation, with a sentence as a feature.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        uses_cache: Whether captum keeps its cache of keys and values, as it does by default. The
            results for answers of several tokens are then different ones.
    """

    def __init__(self, model: Any, tokenizer: Any, uses_cache: bool) -> None:
        from captum.attr import FeatureAblation, LLMAttribution

        self.attribution = LLMAttribution(FeatureAblation(model), tokenizer)
        self.uses_cache = uses_cache

    def __call__(self, model: Any, case: Case) -> Tensor:
        from captum.attr import TextTemplateInput

        # White space between two sentences belongs to the second, as it does in the tokens.
        bounds = [case.sentences[0][0]]
        bounds += [start + len(text.rstrip()) for start, text in case.list_sentences()]
        values = [case.prompt[start:end] for start, end in pairwise(bounds)]
        first, last = bounds[0], bounds[-1]

        def fill(*parts: str) -> str:
            return case.prompt[:first] + "".join(parts) + case.prompt[last:]

        found = self.attribution.attribute(
            TextTemplateInput(fill, values, baselines=[""] * len(values)),
            target=case.answer_ids,
            use_cached_outputs=self.uses_cache,
        )
        return found.seq_attr.double()


def list_cases(job: Any, rows: list[dict[str, Any]]) -> list[Case]:
    """Prompts of a prepared audit, as the other tools read them."""
    cases = []
    for text, example in zip(job.tokenized.texts, job.examples, strict=True):
        ids = torch.tensor([text.inputs["input_ids"]])
        n_answer = sum(text.inputs["labelled"])
        cases.append(
            Case(
                row=rows[text.example_id],
                prompt=example["text"],
                sentences=[tuple(span) for span in example["units"]],
                ids=ids,
                unit_ids=torch.tensor(text.inputs["unit_ids"]),
                n_answer=n_answer,
                answer=example["answer"],
            )
        )
    return cases


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder or Hub id of a causal language model")
    parser.add_argument("--prompts", type=int, default=3)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = planted(arguments.prompts)
    asked = [
        {"context": row["context"], "question": row["question"], "answer": row["value"]}
        for row in rows
    ]
    options = AuditOptions(dtype=arguments.dtype)
    job = prepare_audit(AuditRequest(arguments.model, Answers(asked), ["sources"], options))
    adapter, tokenizer = job.audited_model.adapter, job.audited_model.tokenizer
    model = adapter.user_model.to(getattr(torch, arguments.dtype)).eval()
    peers: dict[str, Callable[[Any, Case], Tensor]] = {
        "a loop of full passes": delete_by_full_passes,
        "a loop with cached keys": delete_with_cached_keys,
    }
    if find_spec("captum"):
        peers["captum without its cache"] = Captum(model, tokenizer, uses_cache=False)
        peers["captum"] = Captum(model, tokenizer, uses_cache=True)
    seconds: dict[str, float] = {}
    differences: dict[str, float] = {}

    def time_run(name: str, run: Callable[[], Any]) -> Any:
        start = time.process_time()
        result = run()
        seconds[name] = seconds.get(name, 0.0) + time.process_time() - start
        return result

    cases = list_cases(job, rows)
    # The first edit of every layer is checked, and the first pass loads kernels.
    warm_up = adapter.observe(collate(adapter, job.tokenized.texts[:1], 0))
    measure_deletion_effects(warm_up)
    for text, case in zip(job.tokenized.texts, cases, strict=True):

        def delete(text: Any = text) -> Tensor:
            return measure_deletion_effects(adapter.observe(collate(adapter, [text], 0)))[0]

        losses = time_run("ours", delete)[: len(case.sentences)]
        for name, run in peers.items():
            result = time_run(name, lambda run=run, case=case: run(model, case))
            difference = float((result - losses).abs().max())
            differences[name] = max(differences.get(name, 0.0), difference)
        if find_spec("context_cite"):
            time_run(
                "ContextCite, 64 masks",
                lambda case=case: contextcite(model, tokenizer, case.row, case.answer),
            )
    n_answer = sum(case.n_answer for case in cases) / len(cases)
    print(
        f"{len(cases)} prompts in {arguments.dtype}, {len(cases[0].sentences)} sentences, answers "
        f"of {n_answer:.1f} tokens on average"
    )
    for name, taken in seconds.items():
        apart = f", {differences[name]:.1e} nats apart" if name in differences else ""
        ratio = taken / seconds["ours"]
        print(f"{name}: {taken / len(cases):.2f} CPU s a prompt, {ratio:.2f} of ours{apart}")
    if arguments.dtype == "float32":
        exact = differences.keys() - {"captum"}
        far = [name for name in sorted(exact) if not differences[name] <= TOLERANCE]
        if far:
            raise SystemExit(f"expected equal results, other ones: {', '.join(far)}")


if __name__ == "__main__":
    main()
