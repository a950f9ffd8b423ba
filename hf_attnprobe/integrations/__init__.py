"""Integrations with the Hugging Face libraries.

- ``pipeline``: ``pipeline("attention-explain")`` and explanations of single texts.
- ``publishing``: model cards, and publication of models and rows on the Hub.
- ``card_options``: options for model cards and their publication.
- ``trainer_callback``: audits during training with Transformers' Trainer.
- ``evaluate_metric``: ``evaluate.load("attention_faithfulness")``.

This module registers our models and the pipeline with Transformers.
"""

from typing import Any


PIPELINE_TASK = "attention-explain"
"""Name of the pipeline task, as in ``transformers.pipeline("attention-explain")``."""


class AutoModelForAnyTask:
    """Class that ``transformers.pipeline`` uses to load a checkpoint, whatever its task is."""

    @classmethod
    def from_pretrained(cls, name: str, **options: Any) -> Any:
        """Load a model with the class that its configuration names, and check its weights.

        Args:
            name: A folder or Hub id.
            options: Options of ``pipeline``; only options about the model source and the number
                format have an effect.

        Returns:
            The model.

        Raises:
            AttnProbeError: A weight is missing or unused, or the model cannot be loaded.
        """
        from hf_attnprobe.integrations.pipeline import load_pipeline_model

        return load_pipeline_model(name, **options)


def register_with_transformers() -> None:
    """Register the attention classifiers with the Auto classes, and the task with ``pipeline``.

    The pipeline class is registered by name, so that it is only imported when it is used.
    """
    from transformers import (
        AutoConfig,
        AutoModel,
        AutoModelForSequenceClassification,
    )
    from transformers.pipelines import PIPELINE_REGISTRY

    from hf_attnprobe.models.attention_classifier import (
        configuration_attention_classifier as configuration,
    )
    from hf_attnprobe.models.attention_classifier import (
        modeling_attention_classifier as modeling,
    )

    config_class = configuration.AttentionClassifierConfig
    AutoConfig.register(config_class.model_type, config_class, exist_ok=True)
    AutoModel.register(config_class, modeling.AttentionClassifierModel, exist_ok=True)
    classifier_class = modeling.AttentionClassifierForSequenceClassification
    AutoModelForSequenceClassification.register(config_class, classifier_class, exist_ok=True)
    PIPELINE_REGISTRY.supported_tasks[PIPELINE_TASK] = {
        "impl": "hf_attnprobe.integrations.pipeline.AttentionExplainPipeline",
        "pt": (AutoModelForAnyTask,),
        "type": "text",
    }
