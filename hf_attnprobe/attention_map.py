"""A certified attention map of one model, which is stored next to the model."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from hf_attnprobe.checkpoints.hub import HubClient
from hf_attnprobe.checkpoints.origins import locate_checkpoint
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import check_path
from hf_attnprobe.core.serialization import convert_to_plain, read_json
from hf_attnprobe.faithfulness.rankings import (
    FITTED_MAP_RANKING,
    compute_importance,
    is_ranking_available,
    supports_ranking,
)
from hf_attnprobe.faithfulness.scale import EVALUATED_GROUP_RANKINGS
from hf_attnprobe.functional.divergence import normalise_positive_part
from hf_attnprobe.plots.highlighted_text import CERTIFIED_MAP_NAME, UNCERTIFIED_MAP_NAME
from hf_attnprobe.protocol import (
    AnswersFromPassage,
    AttentionModelBase,
    Observation,
    Site,
)
from hf_attnprobe.statistics.estimates import Estimate
from hf_attnprobe.statistics.questions import COMPARED_RANKINGS
from hf_attnprobe.statistics.verdicts import RULES
from hf_attnprobe.storage.folders import make_folder_error, write_json


MAP_FILE = "attention_map.json"
"""Name of the file, next to the model's weights, that stores an attention map."""
MAP_FILE_REMEDY = "Fit the map again with attnprobe fit-map."
"""Advice in the error message if the file cannot be read."""
MEAN_CANDIDATE = "attention"
"""Name of the ranking by the model's attention as a whole, the mean of all heads."""
HeadIndex = tuple[int, int]
"""Layer and head."""


@dataclass(frozen=True)
class HeadWeight:
    """A head of a map with its weight.

    Attributes:
        layer: Layer index.
        head: Head index within the layer.
        weight: Weight of the head's attention shares; the weights of a map sum to 1.
    """

    layer: int
    head: int
    weight: float


@dataclass(frozen=True)
class GateValue:
    """Answer to one question that a model must pass before a map of it means anything.

    Attributes:
        rule: Key of the question, such as "effect" or "path_share".
        answer: Its answer.
        estimate: The measured number.
    """

    rule: str
    answer: str
    estimate: Estimate


@dataclass(frozen=True)
class ShuffledControl:
    """Maps that were chosen by shuffled costs, measured on other texts with shuffled costs.

    Attributes:
        n_runs: Number of repetitions, each with another shuffle.
        mean: Mean agreement over the repetitions.
        largest: Largest agreement.
        n_passing: Number of repetitions in which the lower end of the agreement's 95% interval
            reaches the threshold for a yes.
    """

    n_runs: int
    mean: float
    largest: float
    n_passing: int


@dataclass(frozen=True)
class MapCertificate:
    """Evidence that a map shows what the model's predictions are based on.

    Attributes:
        faithfulness: Faithfulness of the map on the certifying texts, from 0 (random order) to 1
            (best order).
        gate: Answers about the model's attention as a whole on the same texts.
        n_choosing: Number of texts by which the map was chosen.
        n_certifying: Number of other texts, by which the map was certified. Faithfulness is measured on
            ``faithfulness.n`` of them, for example only on those with an answer of the model itself.
        n_candidates: Number of maps among which it was chosen, including all single heads.
        control: What maps achieve that are chosen by shuffled costs.
        dataset: Data set and split, without local folders.
        date: Day of the certification, such as "2026-11-28".
        version: Version of hf_attnprobe.
    """

    faithfulness: Estimate
    gate: tuple[GateValue, ...]
    n_choosing: int
    n_certifying: int
    n_candidates: int
    control: ShuffledControl
    dataset: str
    date: str
    version: str

    @property
    def gate_text(self) -> str:
        """The gate's questions with their numbers and answers, separated by commas."""
        values = [
            f"{RULES[value.rule].name.lower()} {value.estimate.interval_text} ({value.answer})"
            for value in self.gate
        ]
        return ", ".join(values)

    def __str__(self) -> str:
        return (
            f"faithfulness {self.faithfulness.interval_text} on {self.faithfulness.n} texts of "
            f"{self.dataset}, chosen on {self.n_choosing} other texts among {self.n_candidates} maps "
            f"({self.date}, hf_attnprobe {self.version})"
        )


@dataclass(frozen=True)
class AttentionMap:
    """A map of a model's attention that scores the units of a text, with its certificate.

    Attributes:
        ranking: Name of a ranking, such as "product" for attention × gradient; empty for a mean of
            heads.
        heads: Heads with their weights; empty for a ranking.
        model: Name of the model, without local folders.
        model_fingerprint: Hash of the weights of the model. The map is refused for other weights.
        certificate: Evidence that the map is faithful; None for a map without a certificate.

    Raises:
        AttnProbeError: The map has neither a ranking nor heads, or both.

    Example::

        fitted = fit_map("bilstm-sst", "sst")
        fitted.map.save_pretrained("bilstm-sst")
        attention_map = AttentionMap.from_pretrained("bilstm-sst")
        explain_text(model, tokenizer, "A gorgeous, witty movie.", attention_map=attention_map)
    """

    ranking: str
    heads: tuple[HeadWeight, ...]
    model: str
    model_fingerprint: str
    certificate: MapCertificate | None = None

    def __post_init__(self) -> None:
        if bool(self.ranking) == bool(self.heads):
            raise AttnProbeError(
                "expected an attention map with either a ranking or heads, got "
                f"ranking={self.ranking!r} and {len(self.heads)} heads"
            )

    @classmethod
    def from_candidate(
        cls,
        name: str,
        heads: tuple[HeadIndex, ...],
        *,
        model: str,
        model_fingerprint: str,
        certificate: MapCertificate | None = None,
    ) -> "AttentionMap":
        """Make the map of a candidate, in which all heads have the same weight.

        Args:
            name: Name of the candidate, which is the name of the ranking if there are no heads.
            heads: Layer and index of each head; empty for a ranking.
            model: Name of the model.
            model_fingerprint: Hash of the model's weights.
            certificate: Evidence that the map is faithful.
        """
        weighted_heads = tuple(HeadWeight(*head, 1 / len(heads)) for head in heads)
        ranking = "" if heads else name
        return cls(ranking, weighted_heads, model, model_fingerprint, certificate)

    @property
    def description(self) -> str:
        """What the map shows, such as "attention × gradient" or "head 3.1 (layer.head)"."""
        if not self.heads:
            labels = {MEAN_CANDIDATE: "attention of the whole model"}
            return (labels | COMPARED_RANKINGS).get(self.ranking, self.ranking)
        names = [f"{head.layer}.{head.head}" for head in self.heads]
        if len(names) == 1:
            return f"head {names[0]} (layer.head)"
        return f"mean of {len(names)} heads (layer.head): {', '.join(names)}"

    @property
    def name(self) -> str:
        """Name of the map in tables, which states whether the map lacks a certificate."""
        return UNCERTIFIED_MAP_NAME if self.certificate is None else CERTIFIED_MAP_NAME

    @property
    def certificate_text(self) -> str:
        """The certificate with its gate, as a sentence without a full stop."""
        if self.certificate is None:
            return "The map has no certificate"
        return (
            f"Certificate: {self.certificate}; attention as a whole: {self.certificate.gate_text}"
        )

    def __str__(self) -> str:
        certificate = self.certificate or "no certificate"
        return f"{self.description}; {certificate}"

    # --- Scores ---

    def check_model(self, adapter: AttentionModelBase) -> None:
        """Raise an error if the map was fitted to other weights than those of a model.

        Args:
            adapter: The model.

        Raises:
            AttnProbeError: The model has other weights.
        """
        self.check_fingerprint(adapter.compute_fingerprint())

    def check_fingerprint(self, fingerprint: str) -> None:
        """Raise an error if the map was fitted to other weights than those with a fingerprint.

        Args:
            fingerprint: Hash of the weights of a model.

        Raises:
            AttnProbeError: The model has other weights.
        """
        if fingerprint != self.model_fingerprint:
            raise AttnProbeError(
                f"this attention map belongs to {self.model} (fingerprint "
                f"{self.model_fingerprint}), but this model has other weights (fingerprint "
                f"{fingerprint}). Fit a map of this model with attnprobe fit-map."
            )

    @torch.enable_grad()
    def compute_scores(self, observation: Observation, site: Site) -> Tensor:
        """Compute the map's scores of the units in a batch.

        Args:
            observation: Model outputs and attention for a batch.
            site: The model's attention as a whole, for a map that is a ranking.

        Returns:
            Scores `[batch, keys]`, larger for more important units. Only entries in ``content_mask``
            are meaningful.

        Raises:
            AttnProbeError: The model does not have the ranking.
        """
        if self.ranking:
            if not is_ranking_available(observation, site, self.ranking):
                raise self._make_ranking_error()
            return compute_importance(observation, site, self.ranking)
        shares = [
            head.weight * compute_head_shares(observation, Site(head.layer, head.head))
            for head in self.heads
        ]
        return torch.stack(shares).sum(0)

    def find_measured_ranking(self, adapter: AttentionModelBase, site: Site) -> str:
        """Find the ranking in an audit's rows that belongs to the map, and let the audit measure it.

        An audit measures some rankings anyway, such as attention × gradient. If the map is another
        one, the adapter computes it as the ranking :data:`FITTED_MAP_RANKING`.

        Args:
            adapter: The audited model; its attribute ``compute_fitted_map`` may be set.
            site: The model's attention as a whole.

        Returns:
            Name of the ranking.

        Raises:
            AttnProbeError: The model does not have the map's ranking or heads.
        """
        self._check_heads(adapter)
        if self.ranking and not supports_ranking(adapter, site, self.ranking):
            raise self._make_ranking_error()
        is_prompted = adapter.lacks(AnswersFromPassage) is None
        measured_rankings = (MEAN_CANDIDATE,) if is_prompted else EVALUATED_GROUP_RANKINGS
        if self.ranking in measured_rankings:
            return self.ranking
        adapter.compute_fitted_map = self.compute_scores
        return FITTED_MAP_RANKING

    def _check_heads(self, adapter: AttentionModelBase) -> None:
        """Raise an error if the model lacks a head of the map."""
        model_heads = {(site.layer, site.head) for site in adapter.sites()}
        missing_heads = [h for h in self.heads if (h.layer, h.head) not in model_heads]
        if missing_heads:
            head = missing_heads[0]
            raise AttnProbeError(
                f"the attention map needs head {head.layer}.{head.head} (layer.head), which this model "
                "does not have"
            )

    def _make_ranking_error(self) -> AttnProbeError:
        """Make the error for a model that does not support the map's ranking."""
        return AttnProbeError(
            f"the attention map needs the ranking {self.ranking!r}, which this model does not support"
        )

    # --- Storage ---

    def to_json(self) -> dict:
        """Convert the map to plain data, as stored in ``attention_map.json``."""
        return convert_to_plain(self)

    def save_pretrained(self, save_directory: str | Path) -> Path:
        """Save the map as ``attention_map.json``.

        Args:
            save_directory: A folder, usually that of the model. It is created if it does not exist.

        Returns:
            The file.

        Raises:
            AttnProbeError: The folder cannot be created.
        """
        folder = Path(save_directory)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise make_folder_error(folder, error) from error
        write_json(folder / MAP_FILE, self.to_json())
        return folder / MAP_FILE

    @classmethod
    def from_pretrained(
        cls, name: str | Path, *, revision: str | None = None, token: str | None = None
    ) -> "AttentionMap":
        """Load the map that is stored next to a model.

        Args:
            name: Folder or Hub id of the model, or the file of the map itself.
            revision: Branch, tag or commit on the Hub.
            token: Hub token for a private repository.

        Raises:
            AttnProbeError: The path does not exist, the model has no map, or the file is damaged.
        """
        if Path(name).is_file():
            return read_json(Path(name), cls, MAP_FILE_REMEDY)
        check_path("map", str(name))
        origin = locate_checkpoint(str(name), revision=revision, token=token)
        file = origin.find_file(MAP_FILE)
        if file is None:
            raise AttnProbeError(
                f"{name} has no {MAP_FILE}. Fit a map with attnprobe fit-map --model {name} "
                "--dataset DATASET --output-dir FOLDER."
            )
        return read_json(file, cls, MAP_FILE_REMEDY)

    def push_to_hub(self, repo_id: str, *, token: str | None = None, private: bool = False) -> str:
        """Upload the map to a model repository on the Hub, which is created if necessary.

        Args:
            repo_id: Hub id of the model.
            token: Token with write access; None for the token of ``hf auth login``.
            private: Whether a new repository is private.

        Returns:
            URL of the repository.

        Raises:
            AttnProbeError: The token has no write access, or the network failed.
        """
        from hf_attnprobe.documents.formats import format_json

        hub = HubClient(token, private)
        url = hub.create_repository(repo_id, "model")
        content = format_json(self.to_json()).encode()
        hub.commit_files(repo_id, "model", {MAP_FILE: content}, message="attnprobe fit-map")
        return url


def compute_head_shares(observation: Observation, head: Site) -> Tensor:
    """Compute which share of a head's attention to the explained units each unit receives.

    Heads that attend mostly to special tokens or to the attention sink therefore count as much as
    others.

    Args:
        observation: Model outputs and attention for a batch.
        head: A single head.

    Returns:
        Shares `[batch, keys]` that sum to 1 over the units.
    """
    weights = observation.read(head).double()
    shares = normalise_positive_part(weights, observation.batch.content_mask)
    # A head with a sliding window may give the text no attention at all.
    return shares.nan_to_num(0.0)
