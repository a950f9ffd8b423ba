"""Model classes, as ordinary Transformers models."""
