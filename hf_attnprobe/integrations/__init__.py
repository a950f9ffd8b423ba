"""Makes the package known to Transformers: Auto classes and pipelines.

What is registered is known as soon as both packages are imported, in either order.
"""

from typing import Any


TASK = "attention-explain"


class AnyHead:
    """The class by which ``pipeline`` loads a model: it returns the class that was saved."""

    @classmethod
    def from_pretrained(cls, name: str, **options: Any) -> Any:
        """Loads the model; every weight must be found and used.

        Args:
            name: a folder or a Hub id.
            options: of ``pipeline``; those that say nothing of where the model is from or
                of its number format change nothing.

        Raises:
            AttnProbeError: see :func:`hf_attnprobe.checkpoints.loading.load_model`.
        """
        from hf_attnprobe.integrations.pipeline import load

        return load(name, **options)


def register_with_transformers() -> None:
    """Registers attention classifiers with the Auto classes, and the task with ``pipeline``.

    The class of the pipeline is named, as Transformers names its own, and imported when
    it is used.
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

    kind = configuration.AttentionClassifierConfig
    AutoConfig.register(kind.model_type, kind, exist_ok=True)
    AutoModel.register(kind, modeling.AttentionClassifierModel, exist_ok=True)
    classifier = modeling.AttentionClassifierForSequenceClassification
    AutoModelForSequenceClassification.register(kind, classifier, exist_ok=True)
    PIPELINE_REGISTRY.supported_tasks[TASK] = {
        "impl": "hf_attnprobe.integrations.pipeline.AttentionExplainPipeline",
        "pt": (AnyHead,),
        "type": "text",
    }
