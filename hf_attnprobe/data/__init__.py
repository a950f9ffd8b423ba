"""Data sets: where they come from, how papers split them, and how their columns are read.

The main names are :class:`~hf_attnprobe.data.specs.Data` (the data arguments of every command),
:func:`~hf_attnprobe.data.examples.load_examples` (one split as rows of `example_id`, `text` and
`label`) and :func:`~hf_attnprobe.data.tokenizer.build_tokenizer`. Start reading in `examples.py`.

specs.py      the data arguments of the commands: `Data` for labelled texts, `Answers` for passages
examples.py   reads one split of any source as rows of the same form
sources.py    opens names, folders, files, Hub ids and objects in memory
columns.py    finds and reads the columns of texts and images
labels.py     reads labels, answers, choices, rationales and tags
recipes.py    the registered data sets and the rules of the papers; they are listed in recipes.yaml
catalog.py    descriptions of the registered data sets, for `attnprobe datasets`
synthetic.py  generated texts with known rationales
tokenizer.py  word-level tokenizers, sentence splitting, pretrained word vectors
"""
