"""CLAM as its authors publish it, written independently: it reads one bag at a time."""

import torch
from torch import nn


class AttentionNet(nn.Module):
    def __init__(self, width, hidden, n_branches):
        super().__init__()
        self.attention_a = nn.Sequential(nn.Linear(width, hidden), nn.Tanh())
        self.attention_b = nn.Sequential(nn.Linear(width, hidden), nn.Sigmoid())
        self.attention_c = nn.Linear(hidden, n_branches)

    def forward(self, states):
        return self.attention_c(self.attention_a(states) * self.attention_b(states)), states


class Clam(nn.Module):
    """Attributes have the names of the published code."""

    def __init__(self, width, n_classes=2, *, n_branches, hidden=12):
        super().__init__()
        self.n_classes = n_classes
        attention = AttentionNet(hidden, 6, n_branches)
        layers = [nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(0.25), attention]
        self.attention_net = nn.Sequential(*layers)
        if n_branches == 1:
            self.classifiers = nn.Linear(hidden, n_classes)
        else:
            self.classifiers = nn.ModuleList([nn.Linear(hidden, 1) for _ in range(n_classes)])

    def forward(self, bag):
        scores, states = self.attention_net(bag)
        pooled = scores.T.softmax(1) @ states
        if isinstance(self.classifiers, nn.Linear):
            logits = self.classifiers(pooled)
        else:
            branches = zip(self.classifiers, pooled, strict=True)
            logits = torch.stack([classifier(state)[0] for classifier, state in branches])[None]
        return logits, logits.softmax(1), logits.argmax(1), scores.T, {}


class CLAM_SB(Clam):  # noqa: N801
    def __init__(self, width, n_classes=2):
        super().__init__(width, n_classes, n_branches=1)


class CLAM_MB(Clam):  # noqa: N801
    def __init__(self, width, n_classes=2):
        super().__init__(width, n_classes, n_branches=n_classes)


# The module of the published code.
CLAM_SB.__module__ = CLAM_MB.__module__ = "models.model_clam"


def train(model, rows, n_epochs=12, lr=0.005):
    """Train a model on bags, one bag at a time as the authors do, and return it in eval mode."""
    optimizer = torch.optim.Adam(model.parameters(), lr)
    for _ in range(n_epochs):
        for row in rows:
            logits = model(torch.tensor(row["features"], dtype=torch.float32))[0]
            loss = nn.functional.cross_entropy(logits, torch.tensor([row["label"]]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.eval()
