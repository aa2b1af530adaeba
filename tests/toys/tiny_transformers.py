"""Tiny nets and tokenizers of transformers, saved to folders."""

from __future__ import annotations

import torch

SIZES = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}


def save_tokenizer(library, folder, words):
    """Save a word tokenizer like BERT's, with letters for other words; return its size."""
    letters = [chr(c) for c in range(33, 127)]
    vocabulary = [*words, *letters, *(f"##{letter}" for letter in letters), "photo", "cat", "dog"]
    vocabulary = [*dict.fromkeys(vocabulary)]
    file = folder / "vocab.txt"
    file.write_text("\n".join(vocabulary))
    names = {"pad_token": words[0], "unk_token": words[1], "cls_token": words[2]}
    ids = {word: number for number, word in enumerate(vocabulary)}
    try:  # transformers 5
        made = library.BertTokenizer(vocab=ids, sep_token=words[3], **names)
    except TypeError:
        made = library.BertTokenizer(str(file), sep_token=words[3], **names)
    made.model_max_length = 20
    made.save_pretrained(folder)
    return len(made)


def save_bert(library, folder):
    folder.mkdir()
    size = save_tokenizer(library, folder, ["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    config = library.BertConfig(
        vocab_size=size, hidden_size=12, max_position_embeddings=24, **SIZES
    )
    torch.manual_seed(0)
    model = library.BertModel(config)
    model.save_pretrained(folder)
    return folder
