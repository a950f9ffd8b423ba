"""What the heads of a BERT write because of their attention patterns, computed from its modules."""

from typing import Any

import torch
from torch import Tensor


@torch.no_grad()
def compute_amounts(model: Any, inputs: dict[str, Tensor], content: Tensor) -> Tensor:
    """Compute the change of each head's output if it attends evenly to the content tokens.

    Args:
        model: BERT with eager attention.
        inputs: Token ids and attention mask of a batch.
        content: Tokens of each text that are explained, bool [batch, tokens].

    Returns:
        Norms of the changes [layers, batch, heads, queries].
    """
    output = model(**inputs, output_hidden_states=True, output_attentions=True)
    n_heads = model.config.num_attention_heads
    amounts = torch.zeros(len(output.attentions), *output.attentions[0].shape[:3]).double()
    for layer, attention in enumerate(output.attentions):
        block = model.bert.encoder.layer[layer].attention
        values = block.self.value(output.hidden_states[layer])
        width = values.shape[-1] // n_heads
        for text, is_content in enumerate(content):
            for head in range(n_heads):
                columns = slice(head * width, (head + 1) * width)
                projection = block.output.dense.weight[:, columns]
                for query, row in enumerate(attention[text, head]):
                    even_row = row.clone()
                    even_row[is_content] = row[is_content].mean()
                    before = projection @ (row @ values[text, :, columns])
                    after = projection @ (even_row @ values[text, :, columns])
                    amounts[layer, text, head, query] = (before - after).norm()
    return amounts


def weigh_heads(amounts: Tensor) -> Tensor:
    """Divide the heads' amounts [layers, batch, heads] by their sum in each text.

    All heads count equally if all amounts are 0.
    """
    total = amounts.sum((0, 2), keepdim=True)
    n_heads = amounts.shape[0] * amounts.shape[2]
    return torch.where(total > 0, amounts / total.clamp_min(1e-300), 1 / n_heads)
