"""How far a version's attention is from the model's, weight by weight.

Measure:  half the sum of |a − a'| over what is explained of a text (total variation), of every
          head in the row that the prediction is read from: 0 is the same attention, 1 is
          attention to other units only. Means over texts, with intervals over all heads at
          once.
"""

from collections.abc import Iterator

import numpy as np
import torch

from hf_attnprobe.auditing.comparison import MovedHead
from hf_attnprobe.auditing.prepare import PreparedAudit
from hf_attnprobe.inference.batching import by_length, collated
from hf_attnprobe.statistics.estimates import simultaneous_interval


Reads = dict[int, np.ndarray]
"""By text: the attention of every head to what is explained, [heads, units]."""


@torch.no_grad()
def reads_of(job: PreparedAudit) -> Reads:
    """The attention of a model to every text."""
    adapter, found = job.subject.adapter, {}
    sites = adapter.sites()
    for batch in collated(
        adapter,
        by_length(job.tokenized.texts),
        job.subject.tokenizer.pad_token_id or 0,
        adapter.texts_at_once or job.options.batch_size,
    ):
        observation = adapter.observe(batch)
        weights = torch.stack([observation.read(site) for site in sites], 1).double().cpu()
        content = batch.content_mask.cpu()
        for number, example_id in enumerate(batch.example_ids):
            found[example_id] = weights[number][:, content[number]].numpy()
    return found


def moved_heads(first: Reads, other: Reads, job: PreparedAudit, audit: str) -> Iterator[MovedHead]:
    """How far each head moved, the farthest first; nothing where the texts are cut otherwise.

    Args:
        first, other: of the model and of a version.
        job: of the version.
        audit: its name.
    """
    shared = [k for k in first if k in other and first[k].shape == other[k].shape]
    if not shared:
        return
    distances = np.stack([np.abs(first[k] - other[k]).sum(-1) / 2 for k in shared])
    low, high = simultaneous_interval(distances, seed=job.options.seed)
    means, sites = distances.mean(0), job.subject.adapter.sites()
    for k in np.argsort(-means, kind="stable"):
        ends = float(low[k]), float(high[k])
        yield MovedHead(audit, sites[k].layer, sites[k].head, float(means[k]), ends, len(shared))
