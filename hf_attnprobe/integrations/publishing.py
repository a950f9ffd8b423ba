"""The verb ``card``: writes a checkpoint's card from its audits, and publishes both on the Hub."""

import contextlib
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from huggingface_hub import CommitOperationAdd, HfApi, constants
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from hf_attnprobe.cards.card import (
    PublishedRows,
    has_findings,
    own_text,
    read_card,
    rows_readme,
    updated,
    with_others,
)
from hf_attnprobe.cards.metadata import (
    IN_MEMORY,
    AuditedOn,
    Card,
    DataName,
    anonymous,
    public,
    public_record,
)
from hf_attnprobe.checkpoints.loading import load_model
from hf_attnprobe.checkpoints.origins import first_line
from hf_attnprobe.checkpoints.records import (
    README,
    RECORD,
    describe,
    read_text,
    write_alone,
)
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import public_function
from hf_attnprobe.data.columns import PAIRED
from hf_attnprobe.functional.fingerprint import model_fingerprint
from hf_attnprobe.integrations.card_options import CardOptions
from hf_attnprobe.reports.report import Report, check_once, read_audit
from hf_attnprobe.reports.verdict import conclusion_sentence
from hf_attnprobe.storage.provenance import OBJECT, repeating


ROWS = "{repository}-attention-audit"
"""The data set of rows of a model's repository."""
OF_TRAININGS = (
    "optimizer",
    "scheduler",
    "rng_state",
    "trainer_state",
    "training_args",
)
"""What files of a Trainer begin with that nobody needs to use the model."""
TEXTS = "texts.json"
BESIDE = ("summary.json", TEXTS, "report.html", "report.md")
"""Files of an audit that are published with its rows, as far as they have no texts."""
SPLIT = "model"
"""Of the rows in their data set."""
Kind = Literal["model", "dataset"]
AGAIN = "nothing here is lost: run the same command again"


@dataclass(frozen=True)
class WrittenCard:
    """Path of the card, and URLs of what was published.

    Attributes:
        file: in the checkpoint's folder.
        model_url: of the repository on the Hub; None where it was not published.
        rows_url: of the data set of rows; None where there are no audits.
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


# --- repositories: made, read and written in one commit, errors in one line -------------


@dataclass(frozen=True)
class Hub:
    """Writes to repositories on the Hub.

    Attributes:
        token: that may write; None: the one that is logged in.
        private: whether new repositories are private.
    """

    token: str | None = field(default=None, repr=False)
    private: bool = False

    @property
    def api(self) -> HfApi:
        """The Hub's client."""
        return HfApi(token=self.token)

    def make(self, repository: str, kind: Kind) -> str:
        """Creates a repository if there is none.

        Returns:
            Its address.

        Raises:
            AttnProbeError: the token may not, the organisation is not there, no network.
        """
        with _reported(repository, kind):
            made = self.api.create_repo(
                repository,
                repo_type=kind,
                # Of one that is there nothing is changed.
                private=self.private or None,
                exist_ok=True,
            )
        return str(made)

    def text(self, repository: str, kind: Kind, path: str) -> str | None:
        """Reads a text file of a repository; None if there is none.

        Raises:
            AttnProbeError: as :meth:`make`.
        """
        with _reported(repository, kind):
            try:
                file = self.api.hf_hub_download(repository, path, repo_type=kind)
            except (EntryNotFoundError, RepositoryNotFoundError):
                return None
            with Path(file).open(newline="", encoding="utf-8-sig") as opened:
                return opened.read()

    def commit(self, repository: str, kind: Kind, files: Mapping[str, Path | bytes]) -> None:
        """Writes all files in one commit, or none.

        Raises:
            AttnProbeError: as :meth:`make`.
        """
        operations = [
            CommitOperationAdd(path, str(file) if isinstance(file, Path) else io.BytesIO(file))
            for path, file in files.items()
        ]
        with _reported(repository, kind):
            self.api.create_commit(
                repository,
                operations,
                repo_type=kind,
                commit_message="attnprobe card",
            )


@contextlib.contextmanager
def _reported(repository: str, kind: Kind) -> Iterator[None]:
    """Turns any exception of the client into one line that says what to do."""
    try:
        yield
    except Exception as error:  # its own errors, those of the network, of the disk
        what = f"cannot publish the {kind} {repository}"
        raise AttnProbeError(f"{what}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """One line: the cause, and what to do."""
    if isinstance(error, OfflineModeIsEnabled):
        return f"HF_HUB_OFFLINE is set; unset it and {AGAIN}"
    if isinstance(error, HfHubHTTPError):
        response = getattr(error, "response", None)
        status = getattr(response, "status_code", None)
        said = first_line(error)
        if status in (401, 403):
            return (
                f"the token may not write there ({said}); give one that may with --token "
                "or hf auth login"
            )
        if status == 404:
            return f"there is no such organisation or repository ({said}); mend ORG/NAME"
        return f"{constants.ENDPOINT} refused it ({said}); {AGAIN}"
    return (
        f"the connection to {constants.ENDPOINT} failed ({type(error).__name__}: "
        f"{first_line(error)}); {AGAIN}"
    )


# --- audits of this model, and of no other, as a card tells them -------------------------


@dataclass(frozen=True)
class ReadAudit:
    """An audit's folder and the report in it."""

    folder: Path
    report: Report

    @property
    def data(self) -> DataName:
        """The audited data."""
        return DataName.of(self.report.dataset.name)

    def public_names(self, model: str) -> dict[str, str]:
        """Public names of model and data, by their local ones.

        Args:
            model: its public name.
        """
        report = self.report
        asked = report.provenance.get("asked_for") or {}
        origin = report.provenance.get("origin") or {}
        of_model = (report.model, asked.get("model"), origin.get("checkpoint"))
        of_data = (report.dataset.name, asked.get("dataset"))
        names = dict.fromkeys(map(str, of_model), model)
        return names | dict.fromkeys(map(str, of_data), self.data.name)


def read_audits(folders: Sequence[str | Path], model: Path, fingerprint: str) -> list[ReadAudit]:
    """Reads the audits in these folders.

    Args:
        model: the checkpoint's folder, for the error.
        fingerprint: of its weights.

    Raises:
        AttnProbeError: a folder without an audit, or with one of other weights, or one
            folder given twice.
    """
    read = [ReadAudit(Path(folder), read_audit(folder)) for folder in folders]
    check_once(folders)
    for audit in read:
        found = audit.report.provenance.get("model_fingerprint")
        if found != fingerprint:
            raise AttnProbeError(
                f"expected audits of {model} (fingerprint {fingerprint}), {audit.folder} "
                f"is of another model ({found}); audit this one with attnprobe audit"
            )
    return read


def as_told(audit: ReadAudit, model: str) -> AuditedOn:
    """An audit in the form that a card needs.

    Args:
        model: its public name.
    """
    report = audit.report
    return AuditedOn(
        data=audit.data,
        split=report.dataset.split,
        n=report.n,
        seed=report.seed,
        conclusion=conclusion_sentence(report.findings, report.words),
        answer=report.answer,
        command=_command(audit, model),
        has_pairs=PAIRED in (report.provenance.get("text_columns") or ""),
        findings=report.findings,
        notes=report.notes,
        contradictions=report.contradictions,
        provenance=report.provenance,
    )


def _command(audit: ReadAudit, model: str) -> str:
    """The command that repeats an audit, with public names; none for data given in memory."""
    asked = public_record(audit.report.provenance["asked_for"])
    if asked["dataset"] == OBJECT or audit.data.name == IN_MEMORY:
        return ""
    return repeating(
        "audit",
        {"asked_for": {**asked, "model": model, "dataset": audit.data.name}},
    )


# --- the verb ---------------------------------------------------------------------------


@public_function
def write_card(
    model: str | Path,
    audits: Sequence[str | Path] = (),
    *,
    options: CardOptions = CardOptions(),
) -> WrittenCard:
    """Writes or updates a checkpoint's README.md, and publishes it with the checkpoint.

        write_card("bilstm-sst", ["audit"])
        write_card(
            "bilstm-sst", ["audit"], options=CardOptions(push_to_hub="org/bilstm-sst")
        )

    The card says what the model is, how it was trained, how it is used, what the audits
    found with every interval, and what attention cannot tell. It stands
    between two comments in the README; what is written around them, and what the front
    matter says already, stays. With ``push_to_hub`` the model, tokenizer, code and card go
    into one repository, in one commit, and the rows of the audits before it into a data
    set beside it, with the reports; the texts that these show are left out unless
    ``publish_texts`` asks for them. Run again to publish what an interruption left out.

    Args:
        model: the folder of a checkpoint.
        audits: output folders of its audits; none says that it was not audited.
        options: license, data, and where on the Hub it goes.

    Returns:
        The files, and the addresses.

    Raises:
        AttnProbeError: no checkpoint, an audit of another model, no audits where the card
            there tells of some, a README that cannot be kept, or a Hub that refuses.
    """
    folder = Path(model)
    if not folder.is_dir():
        raise AttnProbeError(
            f"expected the folder of a checkpoint, got {model}, which is none; download "
            "a model of the Hub first, with hf download"
        )
    loaded = load_model(
        folder,
        trust_remote_code=options.trust_remote_code,
        allow_pickle=options.allow_pickle,
    )
    read = read_audits(audits, folder, model_fingerprint(loaded))
    if not read and has_findings(read_text(folder / README)):
        raise AttnProbeError(
            f"expected the audits that the card in {folder} tells of, got none; name "
            f"their folders, or delete {README}"
        )
    checkpoint = describe(folder, loaded, options.push_to_hub)
    card = Card(
        checkpoint=checkpoint,
        audits=tuple(as_told(audit, checkpoint.name) for audit in read),
        data_id=options.data_id,
        license=options.license,
    )
    if options.push_to_hub is None:
        return WrittenCard(write_alone(folder, card))
    return _publish(folder, card, read, options.push_to_hub, options)


def announcement(options: CardOptions, n_audits: int) -> str:
    """Says what will be uploaded and who may read it, before it is uploaded.

    >>> announcement(CardOptions(push_to_hub="org/m"), 1)
    'publishing org/m (new repositories are public): model, tokenizer, code, card; rows and reports of 1 audit, without texts (--publish-texts adds them)'
    """
    who = "private" if options.private else "public"
    said = f"publishing {options.push_to_hub} (new repositories are {who}): model, tokenizer, code, card"
    if not n_audits:
        return said
    texts = "with the texts that they show"
    if not options.publish_texts:
        texts = "without texts (--publish-texts adds them)"
    return f"{said}; rows and reports of {n_audits} audit{'s' if n_audits > 1 else ''}, {texts}"


def _publish(
    folder: Path,
    card: Card,
    read: list[ReadAudit],
    repository: str,
    options: CardOptions,
) -> WrittenCard:
    """Publishes rows first, so that the card never links to a missing page."""
    hub, rows_url = Hub(options.token, options.private), None
    if read:
        rows = ROWS.format(repository=repository)
        rows_url = hub.make(rows, "dataset")
        files = rows_files(
            read,
            rows,
            repository,
            options.license,
            with_texts=options.publish_texts,
        )
        hub.commit(rows, "dataset", files)
        told = tuple(replace(audit, rows_url=rows_url) for audit in card.audits)
        card = replace(card, audits=told)
    written = write_alone(folder, card)
    model_url = hub.make(repository, "model")
    hub.commit(repository, "model", _files_of(folder, card, hub, repository))
    return WrittenCard(written, model_url, rows_url)


def _files_of(folder: Path, card: Card, hub: Hub, repository: str) -> dict[str, Path | bytes]:
    """The checkpoint's files, with its card merged into the one on the Hub."""
    files: dict[str, Path | bytes] = {
        file.name: file
        for file in sorted(folder.iterdir())
        if file.is_file() and file.name[0] != "." and not file.name.startswith(OF_TRAININGS)
    }
    record = card.checkpoint.record
    if record:
        files[RECORD] = (json.dumps(public_record(record), indent=1) + "\n").encode()
    there = hub.text(repository, "model", README)
    files[README] = _joined(read_text(folder / README), there, card).encode()
    return files


def _joined(here: str | None, there: str | None, card: Card) -> str:
    """The README to publish: the user's text from here, else the one on the Hub."""
    if there is None or here is None:
        return updated(here or there, card)
    if own_text(read_card(here)):
        return with_others(here, there)
    return with_others(updated(there, card), here)


# --- an audit's folder as files of a data set, without folders of this machine ----------


def rows_files(
    audits: Sequence[ReadAudit],
    repository: str,
    model: str,
    license: str | None,
    *,
    with_texts: bool = False,
) -> dict[str, bytes]:
    """Files of the data set of rows, by path.

    Args:
        repository: the data set's id.
        model: the model's id, which stands where a report names a folder.
        license: of the data set.
        with_texts: whether the texts that the reports show may be seen by anybody.
    """
    files: dict[str, bytes] = {}
    published = []
    for config, audit in zip(_configs(audits), audits, strict=True):
        own = _own_files(audit, model, with_texts=with_texts)
        files |= {f"{config}/{name}": content for name, content in own.items()}
        published.append(
            PublishedRows(
                config=config,
                data=audit.data,
                split=audit.report.dataset.split,
                n=audit.report.n,
                conclusion=conclusion_sentence(audit.report.findings, audit.report.words),
                files={SPLIT: f"{SPLIT}.parquet"} if f"{SPLIT}.parquet" in own else {},
                beside=tuple(name for name in BESIDE if name in own),
            )
        )
    readme = rows_readme(repository, model, published, license)
    return files | {"README.md": readme.encode()}


def _configs(audits: Sequence[ReadAudit]) -> list[str]:
    """Names each audit by data and split, numbered where these are equal."""
    names: list[str] = []
    for audit in audits:
        words = f"{public(audit.data.name).replace('/', '-')}-{audit.report.dataset.split}"
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", words).strip("-.") or "audit"
        number = 2
        free = name
        while free in names:
            free, number = f"{name}-{number}", number + 1
        names.append(free)
    return names


def _own_files(audit: ReadAudit, model: str, *, with_texts: bool) -> dict[str, bytes]:
    """Rows as Parquet, and reports in the form that anyone may see."""
    rows = audit.report.to_pandas()
    files = {f"{SPLIT}.parquet": rows.to_parquet(index=False)} if len(rows) else {}
    names = audit.public_names(model)
    for name, text in _reports(audit, with_texts=with_texts).items():
        files[name] = anonymous(text, names).encode()
    return files


def _reports(audit: ReadAudit, *, with_texts: bool) -> dict[str, str]:
    """The reports published beside the rows; rewritten without texts where they show some."""
    found = {
        name: file.read_text(encoding="utf-8")
        for name in BESIDE
        if (file := audit.folder / name).is_file()
    }
    if not with_texts:
        found.pop(TEXTS, None)
        silent = replace(audit.report, examples=())
        forms = {"report.html": silent.to_html, "report.md": silent.to_markdown}
        found |= {name: form() for name, form in forms.items() if name in found}
    return found
