"""Model cards with audit results, and publication of models, cards and rows on the Hub.

:func:`write_card` implements ``attnprobe card``. Start reading there.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hf_attnprobe.attention_map import MAP_FILE, AttentionMap
from hf_attnprobe.cards.card import (
    PublishedRows,
    extract_user_text,
    has_findings,
    merge_remote_metadata,
    read_card,
    render_rows_readme,
    update_readme,
)
from hf_attnprobe.cards.metadata import (
    EVAL_RESULTS_FOLDER,
    EVAL_RESULTS_PREFIX,
    IN_MEMORY_NAME,
    AuditSummary,
    CardContent,
    DatasetReference,
    build_eval_result_files,
    name_audits,
    replace_local_paths,
    strip_local_folders,
    strip_record_folders,
)
from hf_attnprobe.checkpoints.hub import HubClient
from hf_attnprobe.checkpoints.loading import load_model
from hf_attnprobe.checkpoints.records import (
    README_FILE,
    RECORD_FILE,
    describe_checkpoint,
    read_text_file,
    write_readme_locked,
)
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import public_function
from hf_attnprobe.data.columns import PAIR_NAME_SEPARATOR
from hf_attnprobe.functional.fingerprint import compute_fingerprint
from hf_attnprobe.integrations.card_options import CardOptions
from hf_attnprobe.reports.report import Report, check_distinct_folders, read_audit
from hf_attnprobe.reports.verdict import format_conclusion
from hf_attnprobe.storage.provenance import (
    EARLIER_RUNS_KEY,
    OBJECT_NAME,
    TEXTS_FILE,
    format_repeat_command,
)


ROWS_REPOSITORY_TEMPLATE = "{repository}-attention-audit"
"""Template for the Hub id under which the audit rows of a model are published as a data set.

For example, the rows for the model ``org/bert`` are published as ``org/bert-attention-audit``.
"""
TRAINER_FILE_PREFIXES = (
    "optimizer",
    "scheduler",
    "rng_state",
    "trainer_state",
    "training_args",
)
"""Files with these name prefixes are not published, because only the Trainer needs them."""
PUBLISHED_AUDIT_FILES = ("summary.json", TEXTS_FILE, "report.html", "report.md")
"""Names of the audit files that are published, apart from the file with the rows."""
ROWS_SPLIT = "model"
"""Name of the only split in a published data set of audit rows."""


@dataclass(frozen=True)
class WrittenCard:
    """A written model card, with the URLs of repositories in which it was published.

    Attributes:
        file: README.md in the folder of the checkpoint.
        model_url: URL of the model on the Hub; None if it was not published.
        rows_url: URL of the data set with the audit rows; None if they were not published.
    """

    file: Path
    model_url: str | None = None
    rows_url: str | None = None

    def __str__(self) -> str:
        lines = [f"card in {self.file}"]
        if self.model_url:
            lines.append(f"model at {self.model_url}")
        if self.rows_url:
            lines.append(f"rows at {self.rows_url}")
        return "\n".join(lines)


# --- Audits of the model ---


@dataclass(frozen=True)
class AuditFolder:
    """Output folder of an audit, with the report that was read from it.

    Attributes:
        folder: Output folder.
        report: The report in it.
    """

    folder: Path
    report: Report

    @property
    def data(self) -> DatasetReference:
        """Data set of the audit."""
        return DatasetReference.from_name(self.report.dataset.name)

    def get_public_names(self, model_id: str) -> dict[str, str]:
        """Map the local paths of the model, its map and the data set to names for published files.

        Args:
            model_id: Public model name.

        Returns:
            Public names by local path or name.
        """
        provenance = self.report.provenance
        settings = provenance.get("asked_for") or {}
        origin = provenance.get("origin") or {}
        public_names: dict[str, str] = {}
        all_settings = [settings, *provenance.get(EARLIER_RUNS_KEY, ())]
        model_names = [self.report.model, origin.get("checkpoint")]
        data_names = [self.report.dataset.name]
        for run_settings in all_settings:
            map_name = str(run_settings.get("map", ""))
            public_names[map_name] = strip_local_folders(map_name)
            model_names.append(run_settings.get("model"))
            data_names.append(run_settings.get("dataset"))
        public_names |= {str(model_name): model_id for model_name in model_names}
        public_names |= {str(data_name): self.data.name for data_name in data_names}
        return public_names


def load_audits(
    folders: Sequence[str | Path], model_folder: Path, fingerprint: str
) -> list[AuditFolder]:
    """Read audits, and check that they belong to a checkpoint.

    Args:
        folders: Output folders.
        model_folder: Folder of the checkpoint, for the error message.
        fingerprint: Hash of the checkpoint weights.

    Returns:
        The audits.

    Raises:
        AttnProbeError: A folder occurs twice, contains no audit, or contains an audit with other
            weights.
    """
    audits = [AuditFolder(Path(folder), read_audit(folder)) for folder in folders]
    check_distinct_folders(folders)
    for audit in audits:
        audited_fingerprint = audit.report.provenance.get("model_fingerprint")
        if audited_fingerprint != fingerprint:
            raise AttnProbeError(
                f"the audit in {audit.folder} does not belong to the model in {model_folder}: the "
                f"fingerprint of its weights is {audited_fingerprint} instead of {fingerprint}. "
                "Audit this model with `attnprobe audit`."
            )
    return audits


def _format_audit_conclusion(report: Report) -> str | None:
    """Return the question about attention with its answer, in terms of the audit's units and inputs."""
    conclusion = format_conclusion(report.findings, report.words)
    return None if conclusion is None else report.rename_units(conclusion)


def summarize_audit(audit: AuditFolder, model_id: str) -> AuditSummary:
    """Summarise an audit for a model card.

    Args:
        audit: The audit.
        model_id: Public model name.
    """
    report = audit.report
    return AuditSummary(
        data=audit.data,
        split=report.dataset.split,
        n_texts=report.n,
        n_distinct=report.n_distinct,
        n_answered=report.attention_conclusion.n,
        seed=report.seed,
        conclusion=_format_audit_conclusion(report),
        answer=report.attention_answer,
        command=_format_audit_command(audit, model_id),
        has_pairs=PAIR_NAME_SEPARATOR in (report.provenance.get("text_columns") or ""),
        findings=report.findings,
        notes=report.notes,
        contradictions=report.contradictions,
        provenance=report.provenance,
    )


def _format_audit_command(audit: AuditFolder, model_id: str) -> str:
    """Format the commands of all runs of an audit, or return "" if its data was in memory."""
    provenance = audit.report.provenance
    commands = []
    for settings in (*provenance.get(EARLIER_RUNS_KEY, ()), provenance["asked_for"]):
        if settings["dataset"] == OBJECT_NAME or audit.data.name == IN_MEMORY_NAME:
            return ""
        public_settings = {
            **strip_record_folders(settings),
            "model": model_id,
            "dataset": audit.data.name,
        }
        commands.append(format_repeat_command("audit", {"asked_for": public_settings}))
    return " && ".join(commands)


# --- Model cards ---


@public_function
def write_card(
    model: str | Path,
    audits: Sequence[str | Path] = (),
    *,
    options: CardOptions = CardOptions(),
) -> WrittenCard:
    """Write or update the model card of a checkpoint, and optionally publish it with the model.

    The card describes the model, its training and its use. It contains the audit results with confidence
    intervals, and explains the limits of attention as an explanation. If the folder contains a fitted
    attention map (``attention_map.json``), the card shows its certificate. In README.md, the card is between
    two comments; text outside them and existing metadata are kept. Results on data sets of the Hub are
    also written to ``.eval_results``, from which the Hub shows them on the page of the model.

    With ``push_to_hub``, the audit rows and reports are published first, as a data set. Example texts are
    omitted from the reports unless ``publish_texts`` is set. Then the model, tokenizer, code and card
    are published in one commit. After an interruption, run the same call again.

    Args:
        model: Folder of the checkpoint.
        audits: Output folders of its audits. Without audits, the card states that there are none.
        options: License, data set and repository.

    Returns:
        Path of the card and URLs of the repositories.

    Raises:
        AttnProbeError: There is no checkpoint, an audit or the map belongs to another model, the existing card
            contains results but ``audits`` is empty, README.md cannot be merged, or publication failed.

    Example:
        write_card("bilstm-sst", ["audit"])
        write_card("bilstm-sst", ["audit"], options=CardOptions(push_to_hub="org/bilstm-sst"))
    """
    folder = Path(model)
    if not folder.is_dir():
        raise AttnProbeError(
            f"expected the folder of a checkpoint, but {model} is not a folder. If the model is on "
            "the Hub, download it first with `hf download`."
        )
    loaded_model = load_model(
        folder,
        trust_remote_code=options.trust_remote_code,
        allow_pickle=options.allow_pickle,
    )
    loaded_audits = load_audits(audits, folder, compute_fingerprint(loaded_model))
    if not loaded_audits and has_findings(read_text_file(folder / README_FILE)):
        raise AttnProbeError(
            f"the existing card in {folder} contains audit results, but no audits were given. Pass "
            f"the folders of the audits, or delete {README_FILE}."
        )
    checkpoint = describe_checkpoint(folder, loaded_model, options.push_to_hub)
    attention_map = load_local_map(folder, compute_fingerprint(loaded_model))
    card = CardContent(
        checkpoint=checkpoint,
        audits=tuple(summarize_audit(audit, checkpoint.name) for audit in loaded_audits),
        data_id=options.data_id,
        license=options.license,
        map_description="" if attention_map is None else attention_map.description,
        map_certificate="" if attention_map is None else attention_map.certificate_text,
    )
    if options.push_to_hub is None:
        return WrittenCard(write_readme_locked(folder, card))
    return _publish(folder, card, loaded_audits, options.push_to_hub, options)


def load_local_map(folder: Path, fingerprint: str) -> AttentionMap | None:
    """Load the fitted attention map that is stored next to a model.

    Args:
        folder: Folder of the checkpoint.
        fingerprint: Hash of the checkpoint weights.

    Returns:
        The map; None if the folder contains none.

    Raises:
        AttnProbeError: The map belongs to another model, or its file is damaged.
    """
    if not (folder / MAP_FILE).is_file():
        return None
    attention_map = AttentionMap.from_pretrained(folder)
    attention_map.check_fingerprint(fingerprint)
    return attention_map


def describe_upload(options: CardOptions, n_audits: int) -> str:
    """Describe the planned upload and who can read it.

    Args:
        options: Options with the name of the repository.
        n_audits: Number of audits.

    Returns:
        One line, which the command line prints before the upload.

    >>> describe_upload(CardOptions(push_to_hub="org/m"), 1)
    'publishing (new repositories are public) as the model org/m: the files of its folder, with the card; as the data set org/m-attention-audit: rows and reports of 1 audit, without texts (--publish-texts adds them)'
    """
    visibility = "private" if options.private else "public"
    description = (
        f"publishing (new repositories are {visibility}) as the model {options.push_to_hub}: the files "
        "of its folder, with the card"
    )
    if not n_audits:
        return description
    if options.publish_texts:
        texts = "with their example texts"
    else:
        texts = "without texts (--publish-texts adds them)"
    plural = "s" if n_audits > 1 else ""
    rows_repository = ROWS_REPOSITORY_TEMPLATE.format(repository=options.push_to_hub)
    return (
        f"{description}; as the data set {rows_repository}: rows and reports of {n_audits} "
        f"audit{plural}, {texts}"
    )


def _publish(
    folder: Path,
    card: CardContent,
    audits: list[AuditFolder],
    repository: str,
    options: CardOptions,
) -> WrittenCard:
    """Publish a model and the results of its audits on the Hub.

    The results of single texts (the rows) are published first, so that the model card can link to
    them.
    """
    hub = HubClient(options.token, options.private)
    rows_url = None
    if audits:
        rows_repository = ROWS_REPOSITORY_TEMPLATE.format(repository=repository)
        rows_url = hub.create_repository(rows_repository, "dataset")
        files = build_rows_files(
            audits,
            rows_repository,
            repository,
            options.license,
            with_texts=options.publish_texts,
        )
        hub.commit_files(rows_repository, "dataset", files)
        linked_audits = tuple(replace(audit, rows_url=rows_url) for audit in card.audits)
        card = replace(card, audits=linked_audits)
    card_file = write_readme_locked(folder, card)
    model_url = hub.create_repository(repository, "model")
    model_files = _collect_model_files(folder, card, hub, repository)
    outdated_results = [
        path
        for path in hub.list_paths(repository, "model")
        if path.startswith(f"{EVAL_RESULTS_FOLDER}/{EVAL_RESULTS_PREFIX}")
        and path not in model_files
    ]
    hub.commit_files(repository, "model", model_files, outdated_results)
    return WrittenCard(card_file, model_url, rows_url)


def _collect_model_files(
    folder: Path, card: CardContent, hub: HubClient, repository: str
) -> dict[str, Path | bytes]:
    """Collect the files of a model folder for the upload.

    Hidden files are left out, except for the evaluation results of this card, and so are files of the
    Trainer. The README is merged with the one on the Hub.
    """
    files: dict[str, Path | bytes] = {}
    for file in sorted(folder.iterdir()):
        is_excluded = file.name.startswith((".", *TRAINER_FILE_PREFIXES))
        if file.is_file() and not is_excluded:
            files[file.name] = file
    record = card.checkpoint.record
    if record:
        files[RECORD_FILE] = (json.dumps(strip_record_folders(record), indent=1) + "\n").encode()
    local_readme = read_text_file(folder / README_FILE)
    remote_readme = hub.read_text(repository, "model", README_FILE)
    files[README_FILE] = _merge_readmes(local_readme, remote_readme, card).encode()
    for path, text in build_eval_result_files(card).items():
        files[path] = text.encode()
    return files


def _merge_readmes(local: str | None, remote: str | None, card: CardContent) -> str:
    """Merge a local README with the one on the Hub.

    Args:
        local: Local README; None if there is none.
        remote: README on the Hub; None if there is none.
        card: Content of the model card.

    Returns:
        The local README if it contains text that is not generated, otherwise the README from the
        Hub with the new card. In both cases, metadata from the other README are added.
    """
    if remote is None or local is None:
        return update_readme(local or remote, card)
    if extract_user_text(read_card(local)):
        return merge_remote_metadata(local, remote)
    return merge_remote_metadata(update_readme(remote, card), local)


# --- The data set of rows ---


def build_rows_files(
    audits: Sequence[AuditFolder],
    repository: str,
    model_id: str,
    license: str | None,  # noqa: A002
    *,
    with_texts: bool = False,
) -> dict[str, bytes]:
    """Build the files for a Hub data set that contains audit rows.

    Args:
        audits: The audits.
        repository: Hub id of the data set.
        model_id: Hub id of the model, which replaces local paths in the reports.
        license: License of the data set.
        with_texts: Whether the reports include their example texts.

    Returns:
        File contents by path in the repository, without local paths.
    """
    files: dict[str, bytes] = {}
    published_rows = []
    configurations = name_audits(
        [(audit.data.name, audit.report.dataset.split) for audit in audits]
    )
    for configuration, audit in zip(configurations, audits, strict=True):
        audit_files = _build_audit_files(audit, model_id, with_texts=with_texts)
        for name, content in audit_files.items():
            files[f"{configuration}/{name}"] = content
        rows_file = f"{ROWS_SPLIT}.parquet"
        published_rows.append(
            PublishedRows(
                config=configuration,
                data=audit.data,
                split=audit.report.dataset.split,
                n_texts=audit.report.n,
                n_distinct=audit.report.n_distinct,
                n_answered=audit.report.attention_conclusion.n,
                conclusion=_format_audit_conclusion(audit.report),
                files={ROWS_SPLIT: rows_file} if rows_file in audit_files else {},
                other_files=tuple(name for name in PUBLISHED_AUDIT_FILES if name in audit_files),
                provenance=audit.report.provenance,
            )
        )
    readme = render_rows_readme(repository, model_id, published_rows, license)
    return files | {"README.md": readme.encode()}


def _build_audit_files(audit: AuditFolder, model_id: str, *, with_texts: bool) -> dict[str, bytes]:
    """Build the published files of an audit: its rows as a Parquet file, and its reports.

    Args:
        audit: The audit.
        model_id: Public model name, which replaces local paths in the reports.
        with_texts: Whether the reports include their example texts.

    Returns:
        File contents by file name.
    """
    rows = audit.report.to_pandas()
    files: dict[str, bytes] = {}
    if len(rows):
        files[f"{ROWS_SPLIT}.parquet"] = rows.to_parquet(index=False)
    public_names = audit.get_public_names(model_id)
    for name, text in _collect_reports(audit, with_texts=with_texts).items():
        files[name] = replace_local_paths(text, public_names).encode()
    return files


def _collect_reports(audit: AuditFolder, *, with_texts: bool) -> dict[str, str]:
    """Collect the report files of an audit, with or without the example texts in them."""
    reports = {
        name: (audit.folder / name).read_text(encoding="utf-8")
        for name in PUBLISHED_AUDIT_FILES
        if (audit.folder / name).is_file()
    }
    if not with_texts:
        reports.pop(TEXTS_FILE, None)
        report_without_texts = replace(audit.report, examples=())
        if "report.html" in reports:
            reports["report.html"] = report_without_texts.to_html()
        if "report.md" in reports:
            reports["report.md"] = report_without_texts.to_markdown()
    return reports
