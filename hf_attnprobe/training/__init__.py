"""Training classifiers, from scratch or fine-tuned, that can be killed and resumed."""
