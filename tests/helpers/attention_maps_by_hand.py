"""All attention maps of a tiny BERT, computed from hooks and weights, one text at a time."""

import numpy as np
import torch

from tests.helpers import tiny_models


WIDTH, N_HEADS, N_LAYERS = 4, 4, 3
TEXTS = ([1, 11, 12, 13, 14, 15, 16, 17, 2], [1, 21, 22, 23, 2], [1, 31, 2])


def make_model(implementation="sdpa"):
    model = tiny_models.bert(
        layers=N_LAYERS, heads=N_HEADS, attn_implementation=implementation
    ).double()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.normal_(0, 0.4)  # BERT's start at 0, where nobody sees them forgotten
    return model


def make_padded_inputs():
    return tiny_models.encoded(TEXTS, special=(1, 2))


class ByHand:
    """All maps [queries, keys] of one text from the eager model."""

    def __init__(self, text):
        self.model = make_model("eager")
        ids = torch.tensor([text])
        with torch.enable_grad():
            result = self.model(input_ids=ids, output_attentions=True, output_hidden_states=True)
            probs = result.logits.softmax(-1)[0]
            self.slopes = [s[0] for s in torch.autograd.grad(probs.max(), result.attentions)]
        self.attention = [a[0].detach() for a in result.attentions]
        self.hidden = [h.detach() for h in result.hidden_states]

    def f(self, layer, head):
        """(x W_V + b_V) W_O of every token."""
        module = self.model.bert.encoder.layer[layer].attention
        part = slice(head * WIDTH, (head + 1) * WIDTH)
        value, dense = module.self.value, module.output.dense
        values = self.hidden[layer][0] @ value.weight[part].T + value.bias[part]
        return (values @ dense.weight[:, part].T).detach()

    def raw_attention(self, layer, head):
        return self.attention[layer][head]

    def attention_times_gradient(self, layer, head):
        return self.attention[layer][head] * self.slopes[layer][head]

    def effective_attention(self, layer, head):
        transform, attention = self.f(layer, head).numpy(), self.attention[layer][head].numpy()
        left, singular, _ = np.linalg.svd(transform)
        null = left[:, (singular > 1e-9).sum() :]
        return torch.from_numpy(attention - attention @ null @ null.T)

    def norm_based(self, layer, head):
        return self.attention[layer][head] * self.f(layer, head).norm(dim=-1)

    def mean_attention(self, layer, head):
        return sum(self.attention[layer]) / N_HEADS

    def rollout(self, layer, head):
        total = torch.eye(len(self.hidden[0][0])).double()
        for attention in self.attention[: layer + 1]:
            total = (0.5 * attention.mean(0) + 0.5 * torch.eye(len(total))) @ total
        return total

    def layer_norm_based(self, layer, head):
        parts = [self.attention[layer][h][..., None] * self.f(layer, h) for h in range(N_HEADS)]
        return sum(parts).norm(dim=-1)

    def value_zeroing(self, layer, head):
        block, columns = self.model.bert.encoder.layer[layer], []
        for j in range(len(self.hidden[0][0])):

            def zero(module, args, output, j=j):
                output = output.clone()
                output[:, j] = 0
                return output

            with torch.no_grad(), block.attention.self.value.register_forward_hook(zero):
                moved = block(self.hidden[layer])
            moved = moved[0] if isinstance(moved, tuple) else moved
            columns.append(1 - torch.cosine_similarity(moved, self.hidden[layer + 1], dim=-1)[0])
        result = torch.stack(columns, dim=1)
        return result / result.sum(1, keepdim=True)

    def value_zeroing_rollout(self, layer, head):
        total = torch.eye(len(self.hidden[0][0])).double()
        for below in range(layer + 1):
            total = self.value_zeroing(below, head) @ total
        return total
