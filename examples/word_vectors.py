"""Write word vectors for `attnprobe train --word-vectors` from the input embeddings of a Transformer.

    python examples/word_vectors.py --model sentence-transformers/all-MiniLM-L6-v2 --dataset sst --output minilm.vec

The vector of a word is the mean over its word pieces. The file has the GloVe format and contains the words of the
training texts. Use this if no fastText or GloVe file is available.
"""

import argparse

from transformers import AutoModel, AutoTokenizer

from hf_attnprobe import build_tokenizer, load_examples


def write_vectors(model: str, texts: list[str], output: str) -> int:
    """Write the vectors of all words in the texts to a file, and return the number of words."""
    pieces, embeddings = (
        AutoTokenizer.from_pretrained(model),
        AutoModel.from_pretrained(model).get_input_embeddings(),
    )
    words = build_tokenizer(texts)
    n_written = 0
    with open(output, "w") as file:
        for word in sorted(set(words.get_vocab()) - set(words.all_special_tokens)):
            ids = pieces(word, add_special_tokens=False)["input_ids"]
            if ids:
                numbers = embeddings.weight[ids].detach().mean(0).tolist()
                file.write(f"{word} {' '.join(f'{number:.5f}' for number in numbers)}\n")
                n_written += 1
    return n_written


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for flag in ("--model", "--dataset", "--output"):
        parser.add_argument(flag, required=True)
    given = parser.parse_args()
    written = write_vectors(
        given.model, load_examples(given.dataset, "train")["text"][:], given.output
    )
    print(f"{written} vectors in {given.output}")
