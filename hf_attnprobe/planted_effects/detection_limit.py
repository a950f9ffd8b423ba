"""What tests see of a planted effect of known size, and the smallest that they see.

The twins of :mod:`hf_attnprobe.planted_effects.planting` are audited at the head that was written,
on texts with the token, at doses from 0 up. At 0 the token is there and void.

Effect:   how far the token moves the probability of the last class, or of the answer, and
          its log-odds: means over texts, against dose 0.
From which effect on an audit's own rule says yes is :mod:`hf_attnprobe.statistics.detection`'s.
"""

import hashlib
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from scipy.stats import spearmanr

from hf_attnprobe.audits.audited_model import make_subject
from hf_attnprobe.audits.options import AuditOptions
from hf_attnprobe.audits.runner import rows_of_tests
from hf_attnprobe.audits.setup import (
    PreparedAudit,
    fingerprints,
    given_model,
    prepare_audit,
    set_reference,
)
from hf_attnprobe.audits.site_selection import parse_head_sets
from hf_attnprobe.core.distributed import process_state
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import public_function
from hf_attnprobe.core.serialization import plain_fields
from hf_attnprobe.data.examples import dataset_name
from hf_attnprobe.data.specs import Answers
from hf_attnprobe.documents.blocks import Cell as Entry
from hf_attnprobe.documents.blocks import (
    Code,
    Document,
    Facts,
    Figures,
    Number,
    Section,
    Table,
)
from hf_attnprobe.documents.formats import Documented
from hf_attnprobe.faithfulness.options import Permutation
from hf_attnprobe.faithfulness.passage_units import log_prob
from hf_attnprobe.faithfulness.registry import tests
from hf_attnprobe.inference.batching import by_length, collated
from hf_attnprobe.inference.encoding import ImageReader, Text
from hf_attnprobe.planted_effects.options import SpikeOptions
from hf_attnprobe.planted_effects.planting import (
    NoSpike,
    Spike,
    fit,
    planted,
    twin_of,
    unused_token,
)
from hf_attnprobe.protocol import (
    AnswersFromPassage,
    AttentionModelBase,
    Batch,
    Observation,
    Site,
)
from hf_attnprobe.reports.detection_limits import ROWS, SPIKED
from hf_attnprobe.statistics.calibration_table import share
from hf_attnprobe.statistics.detection import (
    DRAWS,
    LOG_PROB,
    Decision,
    Limit,
    by_dose,
    drawn,
    effect_at,
    effects_of,
    limit_of,
    says_yes,
)
from hf_attnprobe.statistics.verdicts import RULES
from hf_attnprobe.storage.folders import alone_in, write_atomically, write_json
from hf_attnprobe.storage.provenance import versions
from hf_attnprobe.storage.rows import NO_SITE, rows_of_parts, to_rows


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from hf_attnprobe.audits.audited_model import Model


logger = logging.getLogger(__name__)

SEES = {
    "standard_tvd": "permutation",
    "zero_tvd": "head_ablation",
    "mean_tvd": "head_ablation",
    "resample_tvd": "head_ablation",
    "uniform_tvd": "uniform_attention",
    "largest_knockout_tvd@renormalised": "knockout",
}
"""Statistics of how far an edit of the head moves the output, by test; the rule of effect reads
the first, and the others are held against its threshold."""

FITTED, AT_ONCE = 48, 16
"""Texts to which a spike is fitted, and texts in a batch."""
TEST_OPTIONS = {"permutation": Permutation(n_permutations=20)}
TABLES = ("limits", "planted", "effects", "responses")
Record = dict[str, Entry]
"""A row of a table by the names of its columns."""


# --- What was found ------------------------------------------------------------------------------


@dataclass(frozen=True)
class SpikeIn(Documented):
    """What tests see of a known effect in a user's model. ``print(found)`` shows it.

    Attributes:
        model, dataset, n, seed: what was measured, on ``n`` texts.
        fingerprints: of the model's weights, configuration and tokenizer, as an audit names them.
        limits: of every head and statistic, with half, as many and twice as many texts.
        planted: every head that was written.
        effects: by head and dose: what the token does.
        responses: of every head and statistic the mean at every dose.
        without: heads that could not be written, with the reason.
        versions: of the packages that computed the numbers.
        seconds: of the processor.
        rows: by head, dose and text.
    """

    model: str
    fingerprints: dict[str, str]
    dataset: str
    n: int
    seed: int
    limits: list[Record]
    planted: list[Record]
    effects: list[Record]
    responses: list[Record]
    without: dict[str, str]
    versions: dict[str, str]
    seconds: float
    rows: pd.DataFrame

    def document(self) -> Document:
        """All that was found."""
        made = (
            f"{self.model} on {self.n} texts of {self.dataset}, seed {self.seed}; "
            f"{self.seconds:.0f} s of one processor. Versions: "
            f"{', '.join(f'{k} {v}' for k, v in self.versions.items())}."
        )
        planted = [_table(self.planted, "Heads that look at the token")]
        planted += [_table(self.effects, "Mean effect of each dose")]
        smallest = "Smallest effect on the probability with a yes in 95% of draws"
        return Document(
            f"What would the tests have missed in {self.model}?",
            [(Code("attnprobe spike"), ": ", SAID), made],
            [
                Section(
                    "Limits of detection",
                    [_table(self.limits, smallest)],
                    brief=True,
                ),
                Section("What was planted", planted),
                Section(
                    "Dose and response",
                    [_table(self.responses, "Means by dose")],
                ),
                Section("Heads without a spike", [Facts(self.without)]),
            ],
            data=plain_fields(self, "rows"),
        )


SAID = (
    "in each copy of the model one head looks at a token that no text has, planted in every "
    "text, and says something of known size; the dose is what it adds to the log-odds of the "
    "last class, or of the answer, to first order. At dose 0 the token is there and void. The "
    "limit of detection is the smallest effect of which the audit's own rule, a mean that surely "
    "reaches the threshold of effect, says yes in 95% of draws, with its 95% interval over texts."
)


def _table(records: Sequence[Record], caption: str) -> Table:
    head = [*dict.fromkeys(name for record in records for name in record)]
    return Table(
        head,
        [[record.get(name) for name in head] for record in records],
        caption,
    )


def _write(found: SpikeIn, folder: Path) -> None:
    """Writes the rows first: what is said of them has their hash."""
    rows = found.rows.to_csv(index=False, float_format="%.6g")
    write_atomically(folder / ROWS, rows)
    digest = hashlib.sha256((folder / ROWS).read_bytes()).hexdigest()
    write_json(folder / SPIKED, plain_fields(found, "rows") | {"rows_sha256": digest})
    write_atomically(folder / "spike_in.md", found.to_markdown())
    write_atomically(folder / "spike_in.html", found.to_html())


def _seen(head: str, rows: pd.DataFrame, sign: int, seed: int) -> Iterator[tuple[Record, Record]]:
    """Response and limits of every statistic of a head."""
    moved, raised = effects_of(rows, sign)
    doses, n = sorted(set(rows.dose)), rows.example_id.nunique()
    rule = Decision(RULES["effect"].yes)
    for statistic in [name for name in SEES if (rows.statistic == name).any()]:
        values = by_dose(rows, statistic)
        if values.shape[1] < 2:
            continue
        named: Record = {"head": head, "statistic": Code(statistic)}
        means = values.mean(1)
        rises = float(spearmanr(doses, means).statistic)
        of_doses = {f"dose {dose:g}": float(mean) for dose, mean in zip(doses, means, strict=True)}
        own = {size: limit_of(values, size, seed, rule) for size in (n // 2, n, 2 * n)}
        limits = {f"{size} texts": _number(effect_at(moved, limit)) for size, limit in own.items()}
        draws = drawn(values.shape[1], n, seed)
        void = round(float(says_yes(values[0], draws, rule)) * DRAWS)
        yield (
            named | of_doses | {"rank correlation": rises},
            named
            | limits
            | {
                "in log-odds": _number(effect_at(raised, own[n])),
                "yes at dose 0": Figures(share(void, DRAWS)),
            },
        )


def _number(limit: Limit) -> Number:
    if limit.interval is None:
        return Number(limit.effect, before="more than")
    return Number(limit.effect, limit.interval)


# --- Twins, audited ------------------------------------------------------------------------------


@public_function
def spike_in(
    model: "Model",
    dataset: Any,
    output_dir: str | Path | None = None,
    *,
    options: SpikeOptions = SpikeOptions(),
    tokenizer: "PreTrainedTokenizerBase | None" = None,
) -> SpikeIn:
    """Plants an effect of known size in copies of a model and counts what sees it.

    The model itself stays as it is.

    Args:
        model, dataset, tokenizer: as :func:`hf_attnprobe.audit` takes them.
        output_dir: where ``spike_in.json``, its page and ``rows.csv`` go, a new or empty folder
            or that of the same spike; None writes nothing.
        options: which heads, which doses.

    Raises:
        AttnProbeError: a model that predicts something else than a class or an answer, no
            unused token, or no head that could be written.
    """
    begun = time.process_time()
    audit = AuditOptions(seed=options.seed, groups=False)
    job = prepare_audit(model, dataset, ["head_ablation"], audit, tokenizer)
    if output_dir is None:
        return _found(job, options, begun)
    identity = {
        **job.identity,
        "test_limit": job.data.test_limit,
        "spike": asdict(options),
    }
    with alone_in(output_dir, "spike.json", identity=identity):
        found = _found(job, options, begun)
        if process_state().is_main_process:
            _write(found, Path(output_dir))
    return found


def _found(job: PreparedAudit, options: SpikeOptions, begun: float) -> SpikeIn:
    """Plants the heads one by one and measures each.

    Args:
        begun: seconds of the processor before the model was loaded.
    """
    adapter, reads, own = (
        job.subject.adapter,
        job.subject.tokenizer,
        job.tokenized.texts,
    )
    if adapter.prediction.kind not in ("classes", "answer") or isinstance(reads, ImageReader):
        raise AttnProbeError(
            "expected a model that predicts a class or an answer from a text, "
            f"{job.subject.name} does not; it takes no spike"
        )
    n_tokens = min(adapter.n_embeddings or 0, len(reads))
    token = unused_token(own, n_tokens, reads.all_special_ids, options.seed)
    ordered = by_length(own)
    pairs = [(text, planted(text, token, options.seed)) for text in ordered]
    plain, new = (
        _batches(job, adapter, side) for side in zip(*_spread(pairs, FITTED), strict=True)
    )
    texts = [text for _, text in pairs]
    found: dict[str, list[Record]] = {name: [] for name in TABLES}
    rows, without = [], {}
    for site in _sites(adapter, options):
        head = f"{site.layer}.{site.head}"
        try:
            spike = fit(given_model(job.subject), plain, new, site, token)
        except NoSpike as reason:
            logger.warning("%s", reason)
            without[head] = str(reason)
            continue
        doses = (0.0, *options.doses)
        twins = [_measured(job, spike, dose, texts) for dose in doses]
        of_head = pd.concat(twins, ignore_index=True)
        rows.append(of_head.assign(head=head))
        spiked = {
            "attention": spike.attention,
            "agreement": spike.agreement,
            "leak": spike.leak,
        }
        found["planted"].append({"head": head, "token": str(reads.decode([token])), **spiked})
        moved, raised = effects_of(of_head, spike.sign)
        for k, dose in enumerate(doses):
            found["effects"].append(
                {
                    "head": head,
                    "dose": dose,
                    "probability": float(moved[k]),
                    "log-odds": float(raised[k]),
                }
            )
        for response, limits in _seen(head, of_head, spike.sign, options.seed):
            found["responses"].append(response)
            found["limits"].append(limits)
        logger.info("head %s: %.0f s so far", head, time.process_time() - begun)
    if not rows:
        raise AttnProbeError("; ".join(without.values()))
    return SpikeIn(
        model=job.subject.name,
        fingerprints=fingerprints(job.subject),
        dataset=str(dataset_name(job.data.dataset, job.data.split)),
        n=len(texts),
        seed=options.seed,
        **found,
        without=without,
        versions=versions(),
        seconds=round(time.process_time() - begun, 1),
        rows=pd.concat(rows, ignore_index=True),
    )


def _sites(adapter: AttentionModelBase, options: SpikeOptions) -> list[Site]:
    """The heads that are named, or some drawn by the seed."""
    if options.spiked_heads is not None:
        sets = parse_head_sets(adapter, options.spiked_heads)
        return [site for members in sets for site in members]
    known = adapter.sites()
    order = np.random.default_rng(options.seed).permutation(len(known))
    return sorted(known[k] for k in order[: options.n_spiked])


def _spread(items: Sequence[Any], n: int) -> list[Any]:
    """``n`` of the items, or all, evenly from first to last."""
    return [items[int(k)] for k in np.linspace(0, len(items) - 1, min(n, len(items)))]


def _batches(job: PreparedAudit, adapter: AttentionModelBase, texts: Sequence[Text]) -> list[Batch]:
    pad = job.subject.tokenizer.pad_token_id or 0
    return [*collated(adapter, texts, pad, adapter.texts_at_once or AT_ONCE)]


def _measured(job: PreparedAudit, spike: Spike, dose: float, texts: Sequence[Text]) -> pd.DataFrame:
    """Audits a twin, and returns the rows of the head."""
    unit = job.data.units if isinstance(job.data, Answers) else None
    reads = job.subject.tokenizer
    options = job.options
    site = spike.site
    twin = twin_of(given_model(job.subject), spike, dose)
    adapter = make_subject((twin, reads), None, options, process_state().device, unit=unit).adapter
    adapter.sharpness = job.subject.adapter.sharpness  # one temperature for all doses
    set_reference(adapter, reads, job.examples, SEES.values())
    where = {}
    for name in SEES.values():
        if tests()[name].lacks(adapter, site) is None:
            where[name] = [site]
    parts = []
    for batch in _batches(job, adapter, texts):
        observation = adapter.observe(batch)
        own = {LOG_PROB: _log_prob(observation)}
        parts += [to_rows("effect", batch.example_ids, {NO_SITE: own})]
        parts += [rows_of_tests(observation, where, TEST_OPTIONS, options.seed)]
    rows = rows_of_parts(parts).long().assign(dose=dose)
    return rows[rows.statistic.isin([*SEES, LOG_PROB])]


def _log_prob(observation: Observation) -> torch.Tensor:
    """Of the last class or the answer, [batch]."""
    if observation.model.lacks(AnswersFromPassage) is None:
        return log_prob(observation).double()
    return observation.probs[:, -1].double().log()
