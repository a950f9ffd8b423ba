"""Training a model to hide its attention to some tokens (Pruthi et al. 2020)."""
