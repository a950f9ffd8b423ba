"""The public function ``write_card``: a checkpoint's card, and both on the Hub."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hf_attnprobe.cards.metadata import EVAL_RESULTS, Card, eval_results_yaml
from hf_attnprobe.cards.names import public_record
from hf_attnprobe.cards.readme import Readme, has_findings, updated, with_others
from hf_attnprobe.checkpoints.loading import load_model
from hf_attnprobe.checkpoints.readme import README, describe, read_text, write_files
from hf_attnprobe.checkpoints.records import RECORD
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.functional.fingerprint import model_fingerprint
from hf_attnprobe.progress import quiet_libraries
from hf_attnprobe.publishing.audits import ReadAudit, as_told, read_audits
from hf_attnprobe.publishing.hub import Hub
from hf_attnprobe.publishing.options import CardOptions
from hf_attnprobe.publishing.report import WrittenCard
from hf_attnprobe.publishing.rows import rows_files


ROWS = "{repository}-attention-audit"
"""The data set of rows of a model's repository."""
OF_TRAININGS = ("optimizer", "scheduler", "rng_state", "trainer_state", "training_args")
"""What files of a Trainer begin with that nobody needs to use the model."""


@quiet_libraries()
def write_card(
    model: str | Path,
    audits: Sequence[str | Path] = (),
    *,
    options: CardOptions = CardOptions(),
) -> WrittenCard:
    """Writes or updates a checkpoint's README.md and ``.eval_results``, and publishes it.

        write_card("bilstm-sst", ["audit"])
        write_card(
            "bilstm-sst", ["audit"], options=CardOptions(push_to_hub="org/bilstm-sst")
        )

    The card says what the model is, how it was trained, how it is used, what the audits
    found with every interval and yardstick, and what attention cannot tell. It stands
    between two comments in the README; what is written around them, and what the front
    matter says already, stays. With ``push_to_hub`` the model, tokenizer, code and card go
    into one repository, in one commit, and the rows of the audits before it into a data
    set beside it. Run again to publish what an interruption left out.

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
        return WrittenCard(tuple(write_files(folder, card)))
    return _publish(folder, card, read, options.push_to_hub, options)


def _publish(
    folder: Path,
    card: Card,
    read: list[ReadAudit],
    repository: str,
    options: CardOptions,
) -> WrittenCard:
    """Rows first, so that the card's link to them is never a dead one."""
    hub, rows_url = Hub(options.token, options.private), None
    if read:
        rows = ROWS.format(repository=repository)
        rows_url = hub.make(rows, "dataset")
        files = rows_files(read, rows, repository, options.license)
        hub.commit(rows, "dataset", files)
        told = tuple(replace(audit, rows_url=rows_url) for audit in card.audits)
        card = replace(card, audits=told)
    written = write_files(folder, card)
    model_url = hub.make(repository, "model")
    hub.commit(repository, "model", _files_of(folder, card, hub, repository))
    return WrittenCard(tuple(written), model_url, rows_url)


def _files_of(folder: Path, card: Card, hub: Hub, repository: str) -> dict[str, Path | bytes]:
    """The checkpoint's files, its card joined with what stands on the Hub."""
    files: dict[str, Path | bytes] = {
        file.name: file
        for file in sorted(folder.iterdir())
        if file.is_file() and file.name[0] != "." and not _is_of_training(file)
    }
    record = card.checkpoint.record
    if record:
        files[RECORD] = (json.dumps(public_record(record), indent=1) + "\n").encode()
    there = hub.text(repository, "model", README)
    files[README] = _joined(read_text(folder / README), there, card).encode()
    results = eval_results_yaml(card, hub.text(repository, "model", EVAL_RESULTS))
    if results is not None:
        files[EVAL_RESULTS] = results.encode()
    return files


def _joined(here: str | None, there: str | None, card: Card) -> str:
    """The README that is published: the user's text here, or where there is none, there."""
    if there is None or here is None:
        return updated(here or there, card)
    if Readme.of(here).own_text:
        return with_others(here, there)
    return with_others(updated(there, card), here)


def _is_of_training(file: Path) -> bool:
    return file.name.startswith(OF_TRAININGS)
