"""The tables of papers: our numbers, and the published ones where the data set is theirs.

The tables are made of the steps with the names that the study files of the package use.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from hf_attnprobe.published import PUBLISHED, Published
from hf_attnprobe.retraining.report import RetrainingReport
from hf_attnprobe.retraining.verdict import (
    FRONTIER_NOTE,
    PUBLISHED_NOTE,
    adversaries,
    curve,
    published_point,
)
from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.statistics.scores import find_score
from hf_attnprobe.statistics.summary import ATTENTION_BINS, bin_names, js_by_gap
from hf_attnprobe.statistics.verdicts import RULES
from hf_attnprobe.studies.plan import Job
from hf_attnprobe.studies.results import (
    Cell,
    Results,
    ResultTable,
    dataset_of,
    estimate,
    mean_of,
    median_of,
    rounded,
    score_of,
)


# --- Jain & Wallace 2019, "Attention is not Explanation" -----------------------------------------

LABELS = ("data set", "encoder", "attention")
FIGURES = {
    "τ(g, loo) − τ(α, loo)": "leave_one_out_tau_difference",
    "τ(g, loo) − τ(α, g)": "gradient_tau_difference",
}
PAIRS = (
    ("attention_gradient", "τ(α, g)"),
    ("attention_leave_one_out", "τ(α, loo)"),
    ("gradient_leave_one_out", "τ(g, loo)"),
)
BETWEEN = "τ(α, loo) of the average − of the BiLSTM"


@dataclass(frozen=True)
class _Group:
    """The texts of an audit for which one class was predicted; all where it is None."""

    job: Job
    predicted: int | None
    rows: pd.DataFrame

    @property
    def encoder(self) -> str:
        return str(self.job.cell.get("encoder", "bilstm"))

    @property
    def labels(self) -> tuple[str, str, str]:
        """Data set, encoder and attention."""
        attention = str(self.job.cell.get("attention", "additive"))
        return dataset_of(self.job), self.encoder, attention

    def published(self, table: Mapping[str, Mapping[str, Any]], *keys: str) -> Any:
        """The published value for the class; None where the paper has none."""
        return Published(*self.labels).of_class(table, *keys, number=self.predicted)

    @property
    def shown(self) -> Cell:
        """The predicted class in a table."""
        return "all" if self.predicted is None else self.predicted


def jain_wallace(results: Results) -> list[ResultTable]:
    """τ with gradients and leave-one-out, adversaries, and shuffling, by predicted class."""
    groups = list(_groups(results))
    return [
        _correlation(groups),
        _overall(results),
        _differences(results),
        _adversarial(results, groups),
        _permutation(groups),
    ]


def _groups(results: Results) -> Iterator[_Group]:
    for job in results.jobs("audit"):
        rows = results.rows(job.folder)
        if dataset_of(job) in PUBLISHED.pooled:
            yield _Group(job, None, rows)
            continue
        for predicted in sorted(rows.predicted_class.dropna().unique().astype(int)):
            yield _Group(job, int(predicted), rows[rows.predicted_class == predicted])


def _correlation(groups: Sequence[_Group]) -> ResultTable:
    table = []
    for group, measure in itertools.product(groups, ("gradient", "leave_one_out")):
        tau = group.rows.get(f"attention_{measure}_tau")
        if tau is None:
            continue
        # The paper counts both signs; our ``significant`` is agreement only.
        share = _share(group.rows[f"attention_{measure}_p_value"] <= 0.05)
        ours = mean_of(tau), round(tau.std(ddof=0), 3), share
        paper = group.published(PUBLISHED.tau, measure, group.encoder)
        paper = paper or (None, None, None)
        table.append((*group.labels, measure, group.shown, *ours, *paper))
    return ResultTable(
        "Does attention rank tokens as importance does? (Table 2)",
        (
            *(*LABELS, "τ with", "predicted"),
            *("τ", "std", "significant"),
            *("published τ", "published std", "published significant"),
        ),
        tuple(table),
        (
            "Significant is p ≤ .05 with either sign of τ, as the paper counts it. Texts "
            "of question answering are not divided by predicted class, as in the paper.",
        ),
    )


def _overall(results: Results) -> ResultTable:
    """All texts of an audit, which the authors' released reruns do not divide either."""
    table: list[tuple[Cell, ...]] = []
    for job in results.jobs("audit"):
        group = _Group(job, None, results.rows(job.folder))
        dataset, encoder, attention = group.labels
        reruns = PUBLISHED.reruns.get(dataset, {}).get(encoder, {})
        *theirs, score = reruns.get(attention, (None,) * 4)
        measure, ours = _performance(group.rows)
        table.append((*group.labels, measure, ours, None, score, None))
        for (name, measure), paper in zip(PAIRS, theirs, strict=True):
            tau, p = group.rows.get(f"{name}_tau"), group.rows.get(f"{name}_p_value")
            if tau is not None and p is not None:
                numbers = mean_of(tau), _share(p <= 0.05), *(paper or (None, None))
                table.append((*group.labels, measure, *numbers))
    return ResultTable(
        "All predicted classes together, beside the authors' released reruns",
        (
            *(*LABELS, "measure", "ours", "significant"),
            *("published", "published significant"),
        ),
        tuple(table),
        (
            "α is attention, g the gradient, loo leave-one-out. F1 is that of class 1. "
            "Significant is p ≤ .05 with either sign of τ.",
        ),
    )


def _share(is_so: pd.Series) -> Cell:
    """The share of the texts, in three digits."""
    return round(float(is_so.mean()), 3)


def _performance(rows: pd.DataFrame) -> tuple[str, Cell]:
    """F1 of class 1 where there are two classes, else accuracy."""
    known = rows[rows.label >= 0]
    classes = set(known.label) | set(known.predicted_class)
    if not classes <= {0, 1}:
        return "accuracy", mean_of(known.accuracy)
    both = ((known.label == 1) & (known.predicted_class == 1)).sum()
    either = (known.label == 1).sum() + (known.predicted_class == 1).sum()
    return "F1", round(float(2 * both / either), 3) if either else None


def _differences(results: Results) -> ResultTable:
    """Their Figures 3, 4 and 5: differences of τ in the same texts."""
    table: list[tuple[Cell, ...]] = []
    for job in results.jobs("audit"):
        rows = results.rows(job.folder)
        for figure, statistic in FIGURES.items():
            if statistic in rows:
                name = f"{figure}, {job.cell.get('encoder', 'bilstm')}"
                table.append(_difference_row(job, name, statistic, rows[statistic]))
    for average, bilstm in _encoder_pairs(results):
        tau = [
            results.rows(job.folder).get("attention_leave_one_out_tau") for job in (average, bilstm)
        ]
        if tau[0] is not None and tau[1] is not None:
            texts = tau[0] - tau[1]  # by example id
            row = _difference_row(bilstm, BETWEEN, "encoder_difference", texts)
            table.append(row)
    return ResultTable(
        "By how much do τ differ in the same text? (Figures 3 to 5)",
        (
            *("data set", "attention", "difference of τ"),
            *("mean", "median", "above 0", "published mean"),
        ),
        tuple(table),
        (
            "g is the gradient, α attention, loo leave-one-out; a positive difference "
            "speaks against attention, or between encoders for the average's. Above 0 is "
            "the share of texts.",
            "Published are averages over the paper's data sets of BiLSTMs with additive "
            "attention, read off its figures; on SNLI the first two are −.07 and −.05.",
        ),
    )


def _difference_row(job: Job, name: str, statistic: str, texts: pd.Series) -> tuple[Cell, ...]:
    """Published averages stand beside BiLSTMs with additive attention."""
    attention = str(job.cell.get("attention", "additive"))
    is_theirs = (attention, job.cell.get("encoder", "bilstm")) == ("additive", "bilstm")
    paper = PUBLISHED.tau_differences[statistic] if is_theirs else None
    texts = texts.dropna()
    above = mean_of((texts > 0).astype(float))
    numbers = mean_of(texts), median_of(texts), above
    return dataset_of(job), attention, name, *numbers, paper


def _encoder_pairs(results: Results) -> Iterator[tuple[Job, Job]]:
    """Audits of the average encoder and of the BiLSTM that differ in nothing else."""
    audits = results.jobs("audit")
    for average in audits:
        if average.cell.get("encoder") != "mlp":
            continue
        wanted = {**average.cell, "encoder": "bilstm"}
        yield from ((average, other) for other in audits if other.cell == wanted)


def _adversarial(results: Results, groups: Sequence[_Group]) -> ResultTable:
    column = "epsilon_max_jsd@0.05"
    table = []
    for group in groups:
        search = results.rows(results.at("search", group.job.cell).folder)
        searched = median_of(search.reindex(group.rows.index)[column])
        exact = _exactly(group.rows, column)
        paper = group.published(PUBLISHED.epsilon_max_jsd, group.encoder)
        table.append((*group.labels, group.shown, searched, exact, paper))
    return ResultTable(
        "Could attention have looked elsewhere? Median ε-max JSD (ε = .05)",
        (
            *(*LABELS, "predicted"),
            *("searched", "exactly", "published (searched)"),
        ),
        tuple(table),
        (
            "Published are medians of the authors' released reruns, ±.01. ε-max JSD "
            "follows saturation and peakedness, and its ceiling is each model's own: rows "
            "are not to be compared with each other by it.",
            "Exactly is known of models of single texts with two classes; of others the "
            "search gives a lower bound. Where the read-out is not linear (pairs), ours also "
            "starts from one and two tokens and may find more than the authors'.",
        ),
    )


def _exactly(rows: pd.DataFrame, column: str) -> Cell:
    """The median where the audit knows the farthest attention of every text."""
    exact = rows.get("epsilon_max_jsd_exact")
    if column not in rows or exact is None or not (exact == 1).all():
        return None
    return median_of(rows[column])


def _permutation(groups: Sequence[_Group]) -> ResultTable:
    table = []
    for group in groups:
        largest = group.rows.max_attention
        for name, (low, high) in zip(bin_names(), itertools.pairwise(ATTENTION_BINS), strict=True):
            last = high == 1.0
            inside = (largest >= low) & ((largest < high) | last)
            if not inside.any():
                continue
            end = "]" if last else ")"
            weights = f"[{low:g}, {high:g}{end}"
            median = median_of(group.rows[inside].median_tvd)
            paper = group.published(PUBLISHED.permutation, group.encoder, name)
            table.append((*group.labels, group.shown, weights, median, paper))
    return ResultTable(
        "Does it matter which token got which weight?",
        (*LABELS, "predicted", "largest weight", "median Δŷ", "published"),
        tuple(table),
        ("Published are medians of the authors' released reruns, ±.005.",),
    )


# --- Serrano & Smith 2019, "Is Attention Interpretable?" -----------------------------------------

RANKINGS = ("random", "attention", "gradient", "product", "least_attention")
POOLED = ", pooled"


def serrano_smith(results: Results) -> list[ResultTable]:
    """Weights erased before the decision flips, by ranking, and single ones by size."""
    jobs = results.jobs("audit")
    return [_fractions(results, jobs), _single_weights(results, jobs)]


def _labels(job: Job) -> tuple[str, str, str]:
    """Data set, the paper's name for the architecture, and encoder."""
    model = "HAN" if job.cell.get("hierarchical") else "FLAN"
    return dataset_of(job), model, str(job.cell.get("encoder", "bigru"))


def _fractions(results: Results, jobs: Sequence[Job]) -> ResultTable:
    """The share of the weights that go, on the texts that some set of them flips."""
    table = []
    for job in jobs:
        name, model, encoder = _labels(job)
        flat = PUBLISHED.fraction_to_flip if model == "FLAN" else {}
        theirs = flat.get(PUBLISHED.nearest.get(name, name), {}).get(encoder, {})
        for order, *values in _orders(results.rows(job.folder)):
            paper = theirs.get(order.removesuffix(POOLED))
            table.append((name, model, encoder, order, *values, paper))
    head = (
        *("data set", "model", "encoder", "order"),
        *("median share of tokens erased", "never flips", "way to smallest set"),
        "published median",
    )
    notes = (
        "All orders on the same texts, those that some set of tokens flips; an order "
        "that never flips one counts as all of its tokens, and the share of such texts "
        "stands beside it. The way is the mean over texts of (random − it) / (random − "
        "smallest set).",
        "Published medians are read off box plots of flat models (±.02); that of none "
        "on amazon, random, is doubtful. They leave out, order by order, the texts that "
        "the order never flips, so they can be lower. Those of HANs, whose attention "
        "weighs sentences, are not known to us. Beside imdb, which has two classes, they "
        "are those of imdb10: other reviews, whose ten ratings have nearer rivals.",
        "Random is the mean of a text's random orders, and the median one over texts; "
        "pooled, the median is over the orders of all texts. The paper's box plots "
        "show the first of five. In the order "
        "least_attention the smallest weight goes first.",
    )
    title = "How many tokens (HAN: sentences) go before the decision flips?"
    return ResultTable(title, head, tuple(table), notes)


def _single_weights(results: Results, jobs: Sequence[Job]) -> ResultTable:
    table = []
    for job in jobs:
        rows = results.rows(job.folder)
        if "delta_js" not in rows:
            continue
        for texts in js_by_gap(rows.delta_attention, rows.delta_js):
            # Medians lie between 1e-5 and .4: two digits, not two places.
            numbers = texts.n, float(f"{texts.median:.2g}"), rounded(texts.negative)
            table.append((*_labels(job), texts.name, *numbers))
    head = (
        *("data set", "model", "encoder", "Δα"),
        *("texts", "median ΔJS", "ΔJS below 0"),
    )
    notes = (
        "ΔJS is how much farther the output moves (nats) without the largest weight than "
        "without another, drawn one; Δα by how much the largest is larger. The paper's "
        "figure has no numbers that could stand beside: ΔJS is almost never below 0 and "
        "near 0 unless Δα is large; of HANs with a BiGRU .2 to .4 near Δα 1.",
    )
    title = "Does a larger weight move the output more?"
    return ResultTable(title, head, tuple(table), notes)


def _orders(rows: pd.DataFrame) -> Iterator[tuple[str, Cell, Cell, Cell]]:
    """Order of erasure, median share erased, share never flipped, way to the best."""
    for ranking in RANKINGS:
        erased = f"fraction_to_flip@{ranking}"
        if erased in rows:
            way = rows.get(f"way_to_best@{ranking}")
            yield (
                ranking,
                median_of(rows[erased]),
                mean_of(rows[f"never_flips@{ranking}"]),
                None if way is None else mean_of(way),
            )
        draws = [name for name in rows if name.startswith(f"{erased}_")]
        if draws:
            yield ranking + POOLED, *_pooled(rows, draws), None
    if "minimal_fraction" in rows:
        yield "smallest set", median_of(rows["minimal_fraction"]), None, None


def _pooled(rows: pd.DataFrame, draws: Sequence[str]) -> tuple[Cell, Cell]:
    """Median share erased and share never flipped over the random orders of all texts."""
    shares = pd.Series(rows[draws].to_numpy().ravel())
    never = rows[[name.replace("fraction_to_flip", "never_flips") for name in draws]]
    means = never.mean(axis=1)  # of each text, so that the interval is over texts
    return median_of(shares), mean_of(means)


# --- Tutek & Šnajder 2020, "Staying True to Your Word" -------------------------------------------

CHECKPOINT_LABELS = ("data set", "attention", "model")


@dataclass(frozen=True)
class _Checkpoint:
    """A model of a comparison: its entry in the summary file, and the number of texts."""

    dataset: str
    entry: dict[str, Any]
    n: int

    @property
    def labels(self) -> tuple[str, str, str]:
        return self.dataset, self.entry["attention"], self.entry["name"]

    def value(self, name: str, *, scale: float = 1.0) -> Estimate | None:
        return estimate(self.entry["found"].get(name), self.n, scale=scale)


def tutek_snajder(results: Results) -> list[ResultTable]:
    """Change of F1 under other attention, and what else regularising changes."""
    checkpoints = list(_checkpoints(results))
    return [_changes(checkpoints), _others(checkpoints), _adversaries_of_checkpoints(checkpoints)]


def _checkpoints(results: Results) -> Iterator[_Checkpoint]:
    for job in results.jobs("compared"):
        comparison = results.read_json(job, "comparison.json")
        for entry in comparison["checkpoints"]:
            yield _Checkpoint(dataset_of(job), entry, comparison["n"])


def _changes(checkpoints: Sequence[_Checkpoint]) -> ResultTable:
    table = []
    for checkpoint in checkpoints:
        dataset, attention, name = checkpoint.labels
        names = ("f1", "uniform_change", "permuted_change")
        ours = [checkpoint.value(statistic, scale=100) for statistic in names]
        regularised = PUBLISHED.regularised.get(dataset, {}).get(attention, {})
        theirs = regularised.get(name.split(" ")[0], (None, None, None))
        table.append((*checkpoint.labels, *ours, *theirs))
    head = (
        *(*CHECKPOINT_LABELS, "F1 trained", "change, uniform", "change, permuted"),
        *("published trained", "published uniform", "published permuted"),
    )
    note = (
        "In points of F1 (100 is all); intervals are over texts, of one training each. "
        "Published values of the residual model are not known."
    )
    return ResultTable("How much hangs on attention?", head, tuple(table), (note,))


def _others(checkpoints: Sequence[_Checkpoint]) -> ResultTable:
    columns = {
        "probability": "mean top probability",
        "share_of_largest@0.01": "exact ε-max JSD (.01) / largest JSD",
        "largest_jsd": "largest JSD",
        "conicity": "conicity",
        "probability_range": "range over single tokens",
    }
    table = []
    for checkpoint in checkpoints:
        values = [checkpoint.value(statistic) for statistic in columns]
        table.append((*checkpoint.labels, *values))
    head = (*CHECKPOINT_LABELS, *columns.values())
    note = (
        "ε-max JSD follows saturation and peakedness: a larger share alone does not mean "
        "that attention explains less. Intervals are over texts, of one training each."
    )
    title = "What else does regularising change?"
    return ResultTable(title, head, tuple(table), (note,))


def _adversaries_of_checkpoints(checkpoints: Sequence[_Checkpoint]) -> ResultTable:
    table = []
    for checkpoint in checkpoints:
        for adversary in checkpoint.entry["adversaries"]:
            values = [rounded(adversary[name]) for name in ("jsd", "tvd", "f1")]
            table.append((*checkpoint.labels, adversary["name"], *values))
    note = (
        "Harder is: more TVD for the same JSD, which one λ each cannot tell. "
        "Adversaries are trained with the penalties of their model, for at most the epochs that the study gives them "
        "(Wiegreffe & Pinter have 80), and scored on all test texts."
    )
    head = (*CHECKPOINT_LABELS, "", "mean JSD", "mean TVD", "F1")
    notes = (note,) if table else ()
    return ResultTable("Is an adversary harder to train?", head, tuple(table), notes)


# --- Wiegreffe & Pinter 2019, "Attention is not not Explanation" ---------------------------------

FAR = RULES["elsewhere_without_seeds"].yes
GUIDES = ("uniform guide", "trained guide", "base guide", "adversary guide")


@dataclass(frozen=True)
class _Retrained:
    """The report of the models trained for one data set."""

    dataset: str
    report: RetrainingReport

    def f1(
        self, test: str, models: Sequence[str], theirs: Mapping[str, float]
    ) -> Iterator[tuple[str, Estimate, Estimate | None, float | None]]:
        """Name of a model, its F1, F1 lost against the reference, published F1."""
        n = self.report.n
        for model in models:
            score = find_score(self.report.scores.get(test, ()), model)
            if score is None:
                continue
            is_reference = model == score.reference
            lost = None if is_reference else score.lost(n)
            yield model, score_of(score, n), lost, theirs.get(model)


def wiegreffe_pinter(results: Results) -> list[ResultTable]:
    """Uniform attention, seeds, guides, and adversaries."""
    retrained = [
        _Retrained(dataset_of(job), results.retraining(job.folder))
        for job in results.jobs("retrained")
    ]
    by_test = [_uniform(retrained), _seeds(retrained), _guides(retrained)]
    return by_test + [_adversaries(one) for one in retrained]


def _sentences(retrained: Sequence[_Retrained], question: str) -> tuple[str, ...]:
    """What the verdicts say about one question, by data set."""
    sentences = []
    for one in retrained:
        answer = one.report.verdict.sentence(question)
        if answer:
            sentences.append(f"{one.dataset}: {answer}")
    return tuple(sentences)


def _uniform(retrained: Sequence[_Retrained]) -> ResultTable:
    table = []
    for one in retrained:
        theirs = PUBLISHED.uniform.get(one.dataset, {})
        for model, *cells in one.f1("uniform", ("base", "uniform"), theirs):
            reported = PUBLISHED.reported.get(one.dataset) if model == "base" else None
            table.append((one.dataset, model, *cells, reported))
    head = (
        *("data set", "attention", "F1", "F1 lost"),
        *("published F1", "Jain & Wallace's F1"),
    )
    sentences = _sentences(retrained, "need")
    return ResultTable("Is attention needed? (Table 2)", head, tuple(table), sentences)


def _seeds(retrained: Sequence[_Retrained]) -> ResultTable:
    table = []
    for one in retrained:
        theirs = PUBLISHED.seed_jsd.get(one.dataset)
        for weights, predicted, n, median in one.report.bins:
            ours = Estimate(median, None, n)
            table.append((one.dataset, weights, predicted, ours, theirs))
    head = (
        *("data set", "largest weight", "predicted", "median JSD to another seed"),
        "published, all texts (read off a figure)",
    )
    title = "How much does attention vary by chance?"
    return ResultTable(title, head, tuple(table), _sentences(retrained, "chance"))


def _guides(retrained: Sequence[_Retrained]) -> ResultTable:
    table = []
    for one in retrained:
        theirs = PUBLISHED.diagnostic_mlp.get(one.dataset, {})
        for model, *cells in one.f1("diagnostic_mlp", GUIDES, theirs):
            table.append((one.dataset, model.removesuffix(" guide"), *cells))
    return ResultTable(
        "Do the weights tell another model something? (Table 3)",
        ("data set", "guide", "F1", "F1 lost against trained", "published F1"),
        tuple(table),
        _sentences(retrained, "transfer"),
    )


def _adversaries(one: _Retrained) -> ResultTable:
    report = one.report
    theirs = published_point(one.dataset)
    points = curve(report.statistics, report.scores) + theirs
    table = []
    for point in points:
        values = [rounded(value) for value in (point.jsd, point.tvd, point.f1)]
        table.append((point.name, *values))
    sentences = [report.verdict.sentence("elsewhere"), _best_adversary(report)]
    sentences += [FRONTIER_NOTE, PUBLISHED_NOTE if theirs else None]
    return ResultTable(
        f"Can a model be trained to look elsewhere? {one.dataset} (Table 4 and Figure 5)",
        ("", "mean JSD", "mean TVD", "F1"),
        tuple(table),
        tuple(filter(None, sentences)),
    )


def _best_adversary(report: RetrainingReport) -> str | None:
    """The adversary of the best F1 among those that look far away, if there is any."""
    points = adversaries(report.statistics, report.scores)
    far = [point for point in points if point.jsd > FAR and point.f1 is not None]
    if not far:
        return None
    best = max(far, key=lambda point: point.f1 or 0.0)
    return (
        f"Best F1 with a mean JSD above {FAR:g}, as in Table 4: {best.name} "
        f"(F1 {best.f1:.3f}, JSD {best.jsd:.3f}, TVD {best.tvd:.3f}). Chosen on the "
        "texts it is reported on, so that its F1 is a best case."
    )


# --- All of them ---------------------------------------------------------------------------------

PAPER_TABLES = {
    "jain-wallace": jain_wallace,
    "serrano-smith": serrano_smith,
    "wiegreffe-pinter": wiegreffe_pinter,
    "tutek-snajder": tutek_snajder,
}


def paper_tables(results: Results) -> list[ResultTable]:
    """The tables of the study's paper; none of a paper whose numbers could not be had."""
    tables = PAPER_TABLES.get(results.plan.paper or "")
    return tables(results) if tables else []
