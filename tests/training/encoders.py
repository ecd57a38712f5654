"""Tiny encoders with random weights, as folders, and what transformers itself makes of a sentence.

Shapes: L words, P pieces, X numbers of a state.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from confide.seeds import seeded

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WHOLE = ("the", "patient", "took", "pain", "head", "##ache", "##s", "[", "]", ".")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
LIMIT = 32  # pieces that a tiny encoder reads at once, the two special ones included


def bert_tokenizer(folder: Path, words: Sequence[str] = ()) -> int:
    """Writes a WordPiece tokenizer of few words and all letters; gives the number of pieces."""
    from tokenizers.implementations import BertWordPieceTokenizer

    pieces = [*SPECIALS, *WHOLE, *LETTERS, *(f"##{letter}" for letter in LETTERS), *words]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    BertWordPieceTokenizer(vocabulary).save(str(folder / "tokenizer.json"))
    names = ("pad", "unk", "cls", "sep", "mask")
    settings = {f"{name}_token": text for name, text in zip(names, SPECIALS, strict=True)}
    settings |= {"tokenizer_class": "BertTokenizer", "model_max_length": LIMIT}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return len(vocabulary)


def tiny_bert(
    folder: Path,
    *,
    seed: int = 0,
    model: str = "BertModel",
    words: Sequence[str] = (),
    **other: Any,
) -> Path:
    """A BERT of 2 layers and 16 numbers a state; weights are large, so that the context counts.

    It has a piece for each of `words`.
    """
    import transformers

    folder.mkdir(parents=True)
    sizes = {
        "vocab_size": bert_tokenizer(folder, words),
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": LIMIT,
        "initializer_range": 0.5,
    }
    config = transformers.BertConfig(**sizes | other)
    with seeded(seed):
        getattr(transformers, model)(config).save_pretrained(folder)
    return folder


def byte_tokenizer(folder: Path, kind: str) -> int:
    """Byte-level pieces as RoBERTa and BART have them; `kind` is the tokenizer's class."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the patient took the pain and the head ached"] * 4, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
    return int(tokenizer.get_vocab_size())


def tiny_roberta(folder: Path) -> Path:
    """Bytes for pieces, a space before each word, places that begin at 2; no limit is stated."""
    from transformers import RobertaConfig, RobertaModel

    folder.mkdir(parents=True)
    config = RobertaConfig(
        vocab_size=byte_tokenizer(folder, "RobertaTokenizer"),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=LIMIT + 2,
        initializer_range=0.5,
    )
    with seeded(1):
        RobertaModel(config).save_pretrained(folder)
    return folder


def tiny_bart(folder: Path) -> Path:
    """An encoder with a decoder behind it."""
    from transformers import BartConfig, BartModel

    folder.mkdir(parents=True)
    config = BartConfig(
        vocab_size=bert_tokenizer(folder),
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_position_embeddings=LIMIT,
        init_std=0.5,
        pad_token_id=0,
    )
    with seeded(2):
        BartModel(config).save_pretrained(folder)
    return folder


def tiny_llama(folder: Path) -> Path:
    """A decoder whose configuration does not say so."""
    from transformers import LlamaConfig, LlamaModel

    folder.mkdir(parents=True)
    config = LlamaConfig(
        vocab_size=bert_tokenizer(folder),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=LIMIT,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=3,
    )
    with seeded(3):
        LlamaModel(config).save_pretrained(folder)
    return folder


class Reference:
    """The plain way: one sentence, no padding, a loop over words."""

    def __init__(self, folder: Path | str) -> None:
        from transformers import AutoModel, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(folder, add_prefix_space=True)
        model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
        self.model = model.get_encoder() if model.config.is_encoder_decoder else model

    def run(self, ids: list[int]) -> NDArray[np.float32]:
        """states_PX of these pieces."""
        with torch.no_grad():
            states: NDArray[np.float32] = (
                self.model(torch.tensor([ids])).last_hidden_state[0].numpy()
            )
        return states

    def states(self, words: list[str]) -> NDArray[np.float32]:
        """states_LX of a sentence that is short enough."""
        encoded = self.tokenizer(words, is_split_into_words=True, split_special_tokens=True)
        return mean_by_word(self.run(encoded["input_ids"]), encoded.word_ids(), len(words))


def mean_by_word(
    states_PX: NDArray[np.float32], word_of: list[int | None], words: int
) -> NDArray[np.float32]:
    """The mean over each word's pieces; zeros for a word that has none."""
    rows = []
    for word in range(words):
        own = [state for state, of in zip(states_PX, word_of, strict=True) if of == word]
        rows.append(np.mean(own, axis=0) if own else np.zeros(states_PX.shape[1]))
    return np.array(rows, np.float32).reshape(words, states_PX.shape[1])
