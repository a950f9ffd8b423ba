"""Data sets: where they come from, how papers split them, and how their columns are read.

The main names are :class:`~hf_attnprobe.data.specs.Data` (every command's data arguments),
:func:`~hf_attnprobe.data.examples.load_examples` (one split as rows with `example_id`, `text` and
`label`) and :func:`~hf_attnprobe.data.tokenizer.build_tokenizer`. Start reading in `examples.py`.

specs.py      the data arguments of the commands: `Data` for labelled texts, `Answers` for passages
examples.py   reads one split from any source into the same columns
sources.py    opens names, folders, files, Hub ids and objects in memory
encodings.py  finds the character encoding of a data file
columns.py    finds and reads columns with texts or images
labels.py     reads labels, answers, choices, rationales and tags
recipes.py    the registered data sets and the papers' rules, which recipes.yaml lists
catalog.py    descriptions of the registered data sets, for `attnprobe datasets`
synthetic.py  generated texts with known rationales
tokenizer.py  word-level tokenizers, sentence splitting, pretrained word vectors
"""
