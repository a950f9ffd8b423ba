"""This package in the places where users of Transformers look for it.

:func:`register_pipeline` runs when ``hf_attnprobe`` is imported and loads nothing else.
"""

from typing import Any

from transformers.pipelines import PIPELINE_REGISTRY


TASK = "attention-explain"


class AnyHead:
    """What ``pipeline`` loads a model by its name with: the class that was saved."""

    @classmethod
    def from_pretrained(cls, name: str, **options: Any) -> Any:
        """The model, with every weight found and used.

        Args:
            name: a folder or a Hub id.
            options: of ``pipeline``; those that say nothing of where the model is from or
                of its number format change nothing.

        Raises:
            AttnProbeError: see :func:`hf_attnprobe.checkpoints.loading.load_model`.
        """
        from hf_attnprobe.integrations.pipeline import load

        return load(name, **options)


def register_pipeline() -> None:
    """Makes ``transformers.pipeline("attention-explain", model=…)`` known.

    The class is named, as Transformers names its own, and imported when it is used.
    """
    PIPELINE_REGISTRY.supported_tasks[TASK] = {
        "impl": "hf_attnprobe.integrations.pipeline.AttentionExplainPipeline",
        "pt": (AnyHead,),
        "type": "text",
    }
