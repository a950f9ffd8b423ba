"""A model ready to work on a job: loaded once, kept over the partitions."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from hf_attnprobe.auditing.options import AuditOptions
from hf_attnprobe.auditing.prepare import fingerprints, set_reference
from hf_attnprobe.auditing.rehearsal import rehearse
from hf_attnprobe.auditing.selection import (
    Choice,
    choose,
    sites_by_test,
)
from hf_attnprobe.auditing.subject import (
    Subject,
    check_unit,
    make_subject,
)
from hf_attnprobe.auditing.sweep import Where, bytes_per_text
from hf_attnprobe.data.columns import column_of
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.faithfulness.registry import asked_tests
from hf_attnprobe.inference.batching import by_length, in_batches, parse_bytes
from hf_attnprobe.inference.choices import encode
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.options import Options, from_flat
from hf_attnprobe.partitions.plan import Plan, partition_of, read_texts_of
from hf_attnprobe.partitions.store import Store
from hf_attnprobe.statistics.summary import PREDICTION
from hf_attnprobe.storage.provenance import versions
from hf_attnprobe.storage.rows import NO_SITE


if TYPE_CHECKING:
    import datasets


@dataclass(frozen=True)
class Trust:
    """What a user says and no plan can: whose token, and what foreign files may do."""

    token: str | None = None
    trust_remote_code: bool = False
    allow_pickle: bool = False


@dataclass(frozen=True)
class Auditor:
    """What turns texts of a job into rows.

    Attributes:
        store: of the job.
        plan: of the job.
        subject: the model behind the protocol, with its tokenizer.
        options: of the audit.
        tests: that run, with their options.
        where: the tests, each with the sites where it looks.
        anchor: a text with tokens. It is tokenized beside those of a partition and
            dropped, since a partition may have none but empty ones.
    """

    store: Store
    plan: Plan
    subject: Subject
    options: AuditOptions
    tests: Mapping[str, Options]
    where: Where
    anchor: "datasets.Dataset"

    @property
    def pad_token_id(self) -> int:
        """What texts are padded with."""
        return self.subject.tokenizer.pad_token_id or 0

    def texts(self, k: int) -> list[Text]:
        """The texts of a partition that have tokens, in ascending order of length."""
        import datasets

        examples = read_texts_of(self.store, k, self.plan.texts[k]["sha256"])
        both = datasets.concatenate_datasets([examples, self.anchor])
        tokenized = encode(
            self.subject.tokenizer,
            both,
            self.subject.adapter,
            truncate=self.options.truncate,
            segment=self.options.segment,
        )
        own = set(column_of(examples, "example_id"))
        found = {text.example_id: text for text in tokenized.texts}
        return by_length([text for key, text in found.items() if key in own])

    def batches(self, texts: Sequence[Text]) -> list[list[Text]]:
        """The texts in batches that follow from the plan alone.

        Not from the memory that is free, as in an audit: what a text is padded beside
        moves its numbers in the last bits, and every worker must write the same bytes.
        """
        if not texts:
            return []
        size = bytes_per_text(self.subject.adapter, self.tests)
        budget = parse_bytes(self.options.memory_budget)
        return [*in_batches(texts, size, budget, self.options.batch_size)]


def load_auditor(store: Store, plan: Plan, trust: Trust) -> Auditor:
    """Loads the model of a plan and checks that it is the one.

    Args:
        trust: what the user says.

    Raises:
        AttnProbeError: other versions or weights than the plan's, or a model that does
            not load.
    """
    _check_versions(plan)
    options = replace(from_flat(plan.options, AuditOptions), **vars(trust))
    subject = make_subject(plan.model["name"], None, options, device_here(), spread=plan.spread)
    for name, found in fingerprints(subject).items():
        if found != plan.model.get(name):
            raise AttnProbeError(
                f"expected the {name.replace('_', ' ')} of the plan, {plan.model.get(name)}, "
                f"{plan.model['name']} has {found}; bring the model back as it was, or "
                "make another plan"
            )
    examples = reference_examples(store, plan.texts, plan.reference, plan.seed)
    return examined(store, plan, subject, options, asked_tests(plan.tests), examples)[0]


def examined(
    store: Store,
    plan: Plan,
    subject: Subject,
    options: AuditOptions,
    asked: Mapping[str, Options],
    examples: "datasets.Dataset",
) -> tuple[Auditor, Choice]:
    """An auditor whose model was tried on a sample of the texts, and what it runs.

    Args:
        asked: of :func:`~hf_attnprobe.faithfulness.registry.asked_tests`.
        examples: the sample, whose head outputs also replace those of ablated heads.

    Raises:
        AttnProbeError: edits that do not arrive, probabilities that are not the model's
            own, or what a test refuses.
    """
    adapter = subject.adapter
    choice = choose(adapter, asked, plan.rationales, options)
    check_unit(subject)
    set_reference(adapter, subject.tokenizer, examples, choice.tests)
    sites = choice.sites if options.single_heads else []
    where = sites_by_test([*choice.tests], adapter, sites, choice.groups)
    where = {**where, PREDICTION: [NO_SITE]}
    anchor = examples.select([0])
    auditor = Auditor(store, plan, subject, options, choice.tests, where, anchor)
    _rehearse(auditor, choice, examples)
    return auditor, choice


def _rehearse(auditor: Auditor, choice: Choice, examples: "datasets.Dataset") -> None:
    """Runs the model on the sample, and asks every test."""
    subject, options = auditor.subject, auditor.options
    tokenized = encode(
        subject.tokenizer,
        examples,
        subject.adapter,
        truncate=options.truncate,
        segment=options.segment,
    )
    rehearse(
        subject.adapter,
        tokenized.texts,
        choice.tests,
        choice.sites,
        tokenizer=subject.tokenizer,
        rationales=choice.rationales,
    )


def reference_examples(
    store: Store, texts: Sequence[Mapping], reference: Sequence[int], seed: int
) -> "datasets.Dataset":
    """The texts of the sample that the plan names, in the order of their ids."""
    import datasets

    wanted = set(reference)
    found = []
    for k in sorted(set(partition_of([*reference], len(texts), seed).tolist())):
        examples = read_texts_of(store, k, texts[k]["sha256"])
        ids = column_of(examples, "example_id")
        rows = [row for row, example_id in enumerate(ids) if example_id in wanted]
        found.append(examples.select(rows))
    joined = datasets.concatenate_datasets(found)
    ids = column_of(joined, "example_id")
    return joined.select(sorted(range(len(ids)), key=ids.__getitem__))


def device_here() -> torch.device:
    """This process's GPU, or the CPU; processes of a launcher have a GPU each."""
    n_devices = torch.cuda.device_count()
    if not n_devices:
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % n_devices)


def _check_versions(plan: Plan) -> None:
    """Other versions of what computes may compute other bytes."""
    here = versions()
    for name, version in plan.versions.items():
        if name != "python" and here.get(name) != version:
            raise AttnProbeError(
                f"expected {name} {version} as in the plan, here is {here.get(name)}; "
                "install that version, or make another plan"
            )
