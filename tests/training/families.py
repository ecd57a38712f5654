"""A tiny encoder with random weights of each family, made by transformers' own classes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confide.seeds import seeded
from training.encoders import bert_tokenizer

SPACE = "▁"
WORDS = ["the", "patient", "took", "pain", "head", "ache", "headache", "s", "b", "c", "aa", "bb"]
MOST = 40  # pieces that a tiny encoder reads at once

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": MOST,
    "initializer_range": 0.2,
}


@dataclass(frozen=True)
class Family:
    """How a family's encoder is made: transformers' names, a tokenizer, and sizes of its own."""

    model: str
    tokenizer: Callable[[Path], dict[str, int]]
    sizes: dict[str, Any]
    lacks: frozenset[str] = frozenset()
    """What of it cannot be tuned alone."""


def _settings(folder: Path, **settings: Any) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def uncased(folder: Path) -> dict[str, int]:
    """WordPiece of lower-case letters."""
    return {"vocab_size": bert_tokenizer(folder, WORDS), "pad_token_id": 0}


def cased(folder: Path) -> dict[str, int]:
    """WordPiece that tells capitals from small letters."""
    from tokenizers.implementations import BertWordPieceTokenizer

    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,-"
    specials = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    pieces = [*specials, *WORDS, *letters, *(f"##{letter}" for letter in letters)]
    known = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    BertWordPieceTokenizer(known, lowercase=False).save(str(folder / "tokenizer.json"))
    names = ("pad", "unk", "cls", "sep", "mask")
    stated = {f"{name}_token": text for name, text in zip(names, specials, strict=True)}
    _settings(
        folder,
        tokenizer_class="BertTokenizer",
        do_lower_case=False,
        model_max_length=MOST,
        **stated,
    )
    return {"vocab_size": len(known), "pad_token_id": 0}


def _bytes(folder: Path, kind: str, **settings: Any) -> int:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([" ".join(WORDS)] * 4, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    tokenizer.save(str(folder / "tokenizer.json"))
    stated = {"bos": "<s>", "eos": "</s>", "cls": "<s>", "sep": "</s>", "pad": "<pad>"}
    stated |= {"unk": "<unk>", "mask": "<mask>"}
    named = {f"{name}_token": text for name, text in stated.items()}
    _settings(folder, tokenizer_class=kind, model_max_length=MOST, **named, **settings)
    return int(tokenizer.get_vocab_size())


def bytes_of_roberta(folder: Path) -> dict[str, int]:
    """Bytes for pieces, a space before each word; places begin behind that of padding."""
    return {"vocab_size": _bytes(folder, "RobertaTokenizer"), "pad_token_id": 1}


def bytes_of_modern(folder: Path) -> dict[str, int]:
    """Bytes for pieces, read by transformers' class of no family."""
    size = _bytes(folder, "PreTrainedTokenizerFast")
    own = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    return {"vocab_size": size, **own, "cls_token_id": 0, "sep_token_id": 2}


def _unigram(folder: Path, kind: str, specials: list[str], ends: tuple[str, str]) -> int:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    letters = [chr(code) for code in range(33, 127)]
    pieces = [*specials, *(SPACE + word for word in WORDS), SPACE, *letters]
    scored = [
        (piece, -float(place > 12) - 1.0) for place, piece in enumerate(dict.fromkeys(pieces))
    ]
    tokenizer = Tokenizer(
        models.Unigram(scored, unk_id=specials.index("<unk>" if "<unk>" in specials else "[UNK]"))
    )
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    before, after = ends
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{before} $A {after}", special_tokens=[(one, specials.index(one)) for one in ends]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    _settings(folder, tokenizer_class=kind, model_max_length=MOST)
    return len(scored)


def sentencepiece_of_xlm_r(folder: Path) -> dict[str, int]:
    """Unigram pieces with XLM-R's special ones."""
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    size = _unigram(folder, "XLMRobertaTokenizer", specials, ("<s>", "</s>"))
    return {"vocab_size": size + 2, "pad_token_id": 1}


def sentencepiece_of_deberta(folder: Path) -> dict[str, int]:
    """Unigram pieces with DeBERTa-v3's special ones."""
    specials = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    size = _unigram(folder, "DebertaV2Tokenizer", specials, ("[CLS]", "[SEP]"))
    return {"vocab_size": size + 2, "pad_token_id": 0}


def slow(folder: Path) -> dict[str, int]:
    """PhoBERT's: pairs of bytes in Python code, without a fast tokenizer."""
    letters = "abcdefghijklmnopqrstuvwxyz.,-"
    pieces = [*(f"{one}@@" for one in letters), *letters, "the", "took", "pain"]
    (folder / "vocab.txt").write_text("".join(f"{piece} 9\n" for piece in pieces))
    merges = ["t h 9", "th e</w> 9", "t o 9", "to o 9", "too k</w> 9"]
    (folder / "bpe.codes").write_text("\n".join(merges) + "\n")
    _settings(folder, tokenizer_class="PhobertTokenizer", model_max_length=MOST)
    return {"vocab_size": len(pieces) + 8, "pad_token_id": 1}


DISTIL = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32}
DISTIL |= {"max_position_embeddings": MOST, "initializer_range": 0.2}

FAMILIES: dict[str, Family] = {
    "bert": Family("Bert", uncased, SIZES),
    "bert-cased": Family("Bert", cased, SIZES),
    "roberta": Family("Roberta", bytes_of_roberta, SIZES | {"max_position_embeddings": MOST + 2}),
    "deberta-v3": Family(
        "DebertaV2",
        sentencepiece_of_deberta,
        SIZES
        | {
            "relative_attention": True,
            "position_buckets": 8,
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "pos_att_type": "p2c|c2p",
            "position_biased_input": False,
            "type_vocab_size": 0,
        },
    ),
    "electra": Family("Electra", uncased, SIZES | {"embedding_size": 8}),
    "xlm-r": Family(
        "XLMRoberta", sentencepiece_of_xlm_r, SIZES | {"max_position_embeddings": MOST + 2}
    ),
    "distilbert": Family("DistilBert", uncased, DISTIL),
    "modernbert": Family(
        "ModernBert",
        bytes_of_modern,
        SIZES
        | {"local_attention": 8, "global_attn_every_n_layers": 2, "initializer_cutoff_factor": 2.0},
        lacks=frozenset({"bias"}),
    ),
    "longformer": Family(
        "Longformer",
        bytes_of_roberta,
        SIZES | {"attention_window": 8, "max_position_embeddings": MOST + 2},
    ),
    "phobert": Family("Roberta", slow, SIZES | {"max_position_embeddings": MOST + 2}),
}


def tiny(family: str, folder: Path, *, head: str = "Model", **other: Any) -> Path:
    """The folder of a tiny encoder of this family, as `save_pretrained` writes it."""
    import transformers

    folder.mkdir(parents=True)
    own = FAMILIES[family]
    config = getattr(transformers, f"{own.model}Config")(
        **own.sizes | own.tokenizer(folder) | other
    )
    with seeded(1):
        getattr(transformers, f"{own.model}{head}")(config).save_pretrained(folder)
    return folder
