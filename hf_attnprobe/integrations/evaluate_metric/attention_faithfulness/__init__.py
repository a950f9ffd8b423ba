"""The evaluate metric ``attention_faithfulness`` and its Gradio app."""
