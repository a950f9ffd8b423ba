"""Model classes that Transformers can load: the attention classifiers of the papers."""
