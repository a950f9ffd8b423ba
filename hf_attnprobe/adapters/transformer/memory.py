"""How much memory a Transformer needs under the tests, from the shapes of its weights; and giving back what it freed."""

from torch import nn

from hf_attnprobe.adapters.transformer.layout import Layout


def bytes_per_example(
    model: nn.Module,
    layout: Layout,
    n_keys: int,
    n_copies: int,
    *,
    tokens_per_pass: int,
    backward: bool,
) -> int:
    """Upper estimate for one text; ``backward``: with a graph through all layers and copies, as a search needs it."""
    size, squares = (
        max(model.dtype.itemsize, 4),
        [layer.n_heads * n_keys**2 for layer in layout.layers],
    )
    hidden, widest = _widths(model, layout)
    per_token = (
        3 * widest + 12 * hidden
    ) * size  # of one layer: feed-forward, residuals, projections, norms
    kept = sum(squares) * 2 * size + len(squares) * (n_keys**2 + n_keys * hidden * size)
    given = (
        4 * n_copies * max(squares) * size
    )  # one layer's edits, their origins, the caller's copy
    working = (
        8 * max(squares) * size
    )  # of one text in one layer: scores, position scores, masks, weights
    n_tokens = min(max(n_copies, n_keys) * n_keys, max(tokens_per_pass, n_keys))
    forward = n_tokens * (per_token + working // n_keys)
    graph = max(n_copies, 1) * len(squares) * (n_keys * per_token + working)
    return kept + given + (graph if backward else forward)


def _widths(model: nn.Module, layout: Layout) -> tuple[int, int]:
    """The model's width and the largest width of any projection in its layers."""
    weights = [
        w
        for block in layout.blocks or [model]
        for w in block.parameters()
        if w.dim() == 2
    ]
    return model.config.get_text_config().hidden_size, max(
        max(w.shape) for w in weights
    )
