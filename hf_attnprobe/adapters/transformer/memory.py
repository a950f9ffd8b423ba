"""How much memory a Transformer needs under the tests, from the shapes of its weights."""

from transformers import PreTrainedModel

from hf_attnprobe.adapters.transformer.layout import Layout


def bytes_per_example(
    model: PreTrainedModel,
    layout: Layout,
    n_keys: int,
    n_copies: int,
    *,
    tokens_per_pass: int,
    backward: bool,
) -> int:
    """Upper estimate for one text, in bytes.

    Args:
        model, layout: the model and what it looks like.
        n_keys: positions of the text.
        n_copies: edits that are replayed at once.
        tokens_per_pass: how many tokens are fed at once.
        backward: with a graph through all layers and copies, as a search needs it.
    """
    size = max(model.dtype.itemsize, 4)
    maps = [layer.n_heads * n_keys**2 * size for layer in layout.layers]
    hidden, widest = _widths(model, layout)
    # feed-forward, residuals, projections and norms of one layer
    per_token = (3 * widest + 12 * hidden) * size
    # scores, position scores, masks and weights of one text in one layer
    working = 8 * max(maps)
    # one layer's edits, their origins, the caller's copy; or an edit of every layer
    edits = 4 * max(n_copies * max(maps), sum(maps))
    kept = 2 * sum(maps) + len(maps) * (n_keys**2 + n_keys * hidden * size)
    if backward:
        graph = max(n_copies, 1) * len(maps) * (n_keys * per_token + working)
        return kept + edits + graph
    n_tokens = min(max(n_copies, n_keys) * n_keys, max(tokens_per_pass, n_keys))
    return kept + edits + n_tokens * (per_token + working // n_keys)


def _widths(model: PreTrainedModel, layout: Layout) -> tuple[int, int]:
    """The model's width and the largest width of any projection in its layers."""
    widest = 0
    for block in layout.blocks or [model]:
        for weight in block.parameters():
            if weight.dim() == 2:
                widest = max(widest, *weight.shape)
    return model.config.get_text_config().hidden_size, widest
