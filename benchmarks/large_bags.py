"""Memory and CPU time of audits of large bags, next to a loop of full passes.

    python benchmarks/large_bags.py --bags 2 --source npy

The model is the gated classifier of this package without an encoder, with random weights. The bags
contain Gaussian noise, which is shifted so that half of the bags are predicted as each class.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from hf_attnprobe import Data, audit
from hf_attnprobe.adapters import wrap
from hf_attnprobe.models.attention_classifier import (
    AttentionClassifierConfig,
    AttentionClassifierForSequenceClassification,
)


def build_model(size):
    """Return a gated classifier with random weights for vectors of a size."""
    torch.manual_seed(0)
    config = AttentionClassifierConfig(
        inputs="features", feature_size=size, attention="gated", encoder="none"
    )
    return AttentionClassifierForSequenceClassification(config).eval()


def draw_bag(model, index, shape):
    """Draw the vectors of a bag, `[instances, size]`, which the model predicts as `index % 2`."""
    direction = model.classifier.weight.detach()[0].numpy()
    shift = (1 if index % 2 else -1) * direction / np.abs(direction).max()
    noise = np.random.default_rng(index).standard_normal(shape, dtype=np.float32)
    return 0.3 * noise + shift


def prepare_data(model, options, folder):
    """Return the bags as rows in memory, or write them to files and return their folder."""
    shape = options.instances, options.size
    if options.source == "memory":
        return [
            {"features": draw_bag(model, index, shape), "label": index % 2}
            for index in range(options.bags)
        ]
    lines = ["features,label"]
    for index in range(options.bags):
        path = Path(folder) / f"bag{index}.{options.source}"
        if options.source == "npy":
            np.save(path, draw_bag(model, index, shape))
        else:
            import h5py

            with h5py.File(path, "w") as file:
                file["features"] = draw_bag(model, index, shape)
        lines.append(f"{path.name},{index % 2}")
    (Path(folder) / "test.csv").write_text("\n".join(lines))
    return folder


def measure_cpu_seconds(function):
    """Return the CPU seconds of a call."""
    start = time.process_time()
    function()
    return time.process_time() - start


def get_peak_memory():
    """Return the peak memory of this process in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


@torch.no_grad()
def time_passes(model, vectors, n_passes):
    """Return the CPU seconds of leaving out one instance after another with full passes."""
    n_instances = len(vectors)

    def run():
        for instance in range(n_passes):
            remaining = torch.cat([vectors[:instance], vectors[instance + 1 :]])[None]
            mask = torch.ones(1, n_instances - 1, dtype=torch.long)
            model(features=remaining, attention_mask=mask)

    return measure_cpu_seconds(run)


def compare_with_passes(model, vectors, n_passes):
    """Print the CPU seconds of leave-one-out, and those of a loop of full passes."""
    adapter = wrap(model)
    mask = torch.ones(1, len(vectors))
    batch = adapter.prepare({"features": vectors[None], "attention_mask": mask}, (0,))

    def leave_one_out():
        adapter.compute_leave_one_out(adapter.observe(batch))

    print(f"leave-one-out of a bag: {measure_cpu_seconds(leave_one_out):.2f} CPU s")
    for name, dtype in (("float32", torch.float32), ("float64", torch.float64)):
        seconds = time_passes(model.to(dtype), vectors.to(dtype), n_passes)
        scaled = seconds * len(vectors) / n_passes
        print(
            f"full passes in {name}: {seconds:.2f} CPU s for {n_passes}, which is {scaled:.0f} CPU s "
            f"for {len(vectors)}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bags", type=int, default=2)
    parser.add_argument("--audited-bags", type=int, help="audit only some of the bags")
    parser.add_argument("--instances", type=int, default=10_000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--source", default="npy", choices=["npy", "h5", "memory"])
    parser.add_argument("--passes", type=int, default=50)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = build_model(options.size)
    if options.passes:
        vectors = torch.tensor(draw_bag(model, 0, (options.instances, options.size)))
        compare_with_passes(build_model(options.size), vectors, options.passes)
        del vectors
    with tempfile.TemporaryDirectory() as folder:
        data = Data(prepare_data(model, options, folder), test_limit=options.audited_bags)
        before = get_peak_memory()
        seconds = measure_cpu_seconds(lambda: audit(model, data, progress=False))
    n_audited = options.audited_bags or options.bags
    print(
        f"default audit of {n_audited} of {options.bags} bags ({options.source}): "
        f"{seconds / n_audited:.1f} CPU s per bag, peak memory {get_peak_memory():.2f} GB, "
        f"{before:.2f} GB before the audit"
    )


if __name__ == "__main__":
    main()
