"""How far a version's attention is from the model's, weight by weight.

Measure:  half the sum of |a − a'| over what is explained of a text (total variation), of every
          head in the row that the prediction is read from: 0 is the same attention, 1 is
          attention to other units only. Means over texts, with intervals over all heads at
          once.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from hf_attnprobe.attention_model import Site
from hf_attnprobe.audit_reports.comparison import MovedHead
from hf_attnprobe.auditing.prepare import PreparedAudit
from hf_attnprobe.inference.batching import by_length, collated
from hf_attnprobe.statistics.estimates import simultaneous_interval


@dataclass(frozen=True)
class Reads:
    """The attention of a model to every text.

    Attributes:
        sites: its heads.
        weights: by id and tokens of a text what every head gives to what is explained,
            [heads, units].
    """

    sites: list[Site]
    weights: dict[tuple[int, str], np.ndarray]


@torch.no_grad()
def reads_of(job: PreparedAudit) -> Reads:
    """The attention of a model to every text."""
    adapter, weights = job.subject.adapter, {}
    sites = adapter.sites()
    texts = by_length(job.tokenized.texts)
    tokens = {
        text.example_id: str(text.inputs.get("input_ids")) for text in texts
    }
    at_once = adapter.texts_at_once or job.options.batch_size
    for batch in collated(
        adapter, texts, job.subject.tokenizer.pad_token_id or 0, at_once
    ):
        observation = adapter.observe(batch)
        read = (
            torch.stack([observation.read(site) for site in sites], 1)
            .double()
            .cpu()
        )
        content = batch.content_mask.cpu()
        for number, example_id in enumerate(batch.example_ids):
            text = example_id, tokens[example_id]
            weights[text] = read[number][:, content[number]].numpy()
    return Reads(sites, weights)


def moved_heads(
    first: Reads, other: Reads, audit: str, *, seed: int
) -> Iterator[MovedHead]:
    """How far each head moved, the farthest first.

    Nothing where a version has other heads, or no text in the same tokens and units.

    Args:
        first, other: of the model and of a version.
        audit: its name.
        seed: of the resamples.
    """
    pairs = [
        (own, other.weights.get(text)) for text, own in first.weights.items()
    ]
    shared = [(a, b) for a, b in pairs if b is not None and a.shape == b.shape]
    if not shared or first.sites != other.sites:
        return
    distances = np.stack([np.abs(a - b).sum(-1) / 2 for a, b in shared])
    low, high = simultaneous_interval(distances, seed=seed)
    means = distances.mean(0)
    for k in np.argsort(-means, kind="stable"):
        ends, site = (float(low[k]), float(high[k])), first.sites[k]
        yield MovedHead(
            audit, site.layer, site.head, float(means[k]), ends, len(shared)
        )
