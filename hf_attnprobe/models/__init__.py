"""Model classes that Transformers can load: attention classifiers from published papers."""
