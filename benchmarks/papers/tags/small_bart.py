"""A small BART for LightNER where none can be downloaded: MiniLM and three layers that write.

    python benchmarks/papers/tags/small_bart.py --out bart --minutes 60
    confide run tags-medical --set model.kind=lightner --set lightner.bart=bart

The encoder is MiniLM, weight by weight. The decoder starts from MiniLM's first, third and last
layer, its attention to the text from the same layer's self-attention, and learns to restore noised
text (Lewis et al. 2020, section 2.2: spans of words become one [MASK], sentences are shuffled). The
encoder and the table of pieces stay as they are. The text is the training text of the recipes;
their development and test sentences are left out. What is written is a folder of transformers'.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer, BartConfig, BartForConditionalGeneration, BertModel

from confide.recipes import recipe_path
from confide.runs.sites import gather
from confide.settings import load_settings
from confide.text.document import Document
from confide.text.segment import segmented
from confide.training.encoder import find_folder

HIDDEN, MEAN_SPAN = 0.3, 3.0  # share of words that are masked, mean words of a span
LONGEST, LEAST = 128, 8  # pieces of a passage
FROM_ROW = 2  # BART's first position
ATTENTION = {
    "q_proj": "attention.self.query",
    "k_proj": "attention.self.key",
    "v_proj": "attention.self.value",
    "out_proj": "attention.output.dense",
}
REST = {"fc1": "intermediate.dense", "fc2": "output.dense", "final_layer_norm": "output.LayerNorm"}


# --- the model --------------------------------------------------------------------------------


def made_of(bert: BertModel, tokenizer: Any, decoder_layers: int) -> BartForConditionalGeneration:
    """The BART that reads as this encoder does, and does not write sense yet.

    BART has no token types, so row 0 of BERT's is added to each position; the epsilon of its norms
    is 1e-5 where BERT's is 1e-12.
    """
    own, last = bert.config, bert.config.num_hidden_layers - 1
    spread = [round(place * last / max(1, decoder_layers - 1)) for place in range(decoder_layers)]
    config = BartConfig(
        vocab_size=own.vocab_size,
        max_position_embeddings=own.max_position_embeddings,
        d_model=own.hidden_size,
        encoder_layers=own.num_hidden_layers,
        decoder_layers=decoder_layers,
        encoder_attention_heads=own.num_attention_heads,
        decoder_attention_heads=own.num_attention_heads,
        encoder_ffn_dim=own.intermediate_size,
        decoder_ffn_dim=own.intermediate_size,
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        bos_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
        pad_token_id=tokenizer.pad_token_id,
        decoder_start_token_id=tokenizer.cls_token_id,
        forced_eos_token_id=tokenizer.sep_token_id,
    )
    given = bert.state_dict()
    positions = given["embeddings.position_embeddings.weight"]
    positions = positions + given["embeddings.token_type_embeddings.weight"][0]
    positions = torch.cat((torch.zeros(FROM_ROW, own.hidden_size), positions))
    made = {"shared.weight": given["embeddings.word_embeddings.weight"]}
    for side, layers in (("encoder", range(last + 1)), ("decoder", spread)):
        made[f"{side}.embed_positions.weight"] = positions
        for part in ("weight", "bias"):
            norm = given[f"embeddings.LayerNorm.{part}"]
            made[f"{side}.layernorm_embedding.{part}"] = norm
            for place, number in enumerate(layers):
                here, there = f"{side}.layers.{place}", f"encoder.layer.{number}"
                for kind in ("self_attn", "encoder_attn")[: 1 + (side == "decoder")]:
                    for name, its in ATTENTION.items():
                        made[f"{here}.{kind}.{name}.{part}"] = given[f"{there}.{its}.{part}"]
                    norm = given[f"{there}.attention.output.LayerNorm.{part}"]
                    made[f"{here}.{kind}_layer_norm.{part}"] = norm
                for name, its in REST.items():
                    made[f"{here}.{name}.{part}"] = given[f"{there}.{its}.{part}"]
    model = BartForConditionalGeneration(config)
    found = model.model.load_state_dict(made, strict=False)
    assert all("embed_tokens" in name for name in found.missing_keys), found
    model.tie_weights()
    return model


# --- the text ---------------------------------------------------------------------------------


def sentences(documents: Sequence[Document]) -> Iterator[list[str]]:
    for document in documents:
        yield [document.text[one.start : one.end] for one in segmented(document).sentences]


def texts_of(recipes: Sequence[str]) -> tuple[list[list[str]], list[list[str]]]:
    """The training text of the recipes, each sentence once, and their held-out text."""
    learnt, held = list[list[str]](), list[list[str]]()
    for recipe in recipes:
        settings = load_settings(recipe_path(recipe), ["data.train_share=1"])
        with tempfile.TemporaryDirectory() as folder:
            for spec in gather(settings, Path(folder), key_file=None).specs:
                learnt += sentences(spec.train)
                held += sentences([*spec.dev, *spec.test])
    seen = {key(one) for document in held for one in document}
    kept = list[list[str]]()
    for document in learnt:
        fresh = [one for one in document if key(one) not in seen]
        seen |= {key(one) for one in fresh}
        kept.append(fresh)
    return kept, held


def key(sentence: str) -> str:
    return "".join(filter(str.isalnum, sentence.lower()))


def passages(documents: Sequence[Sequence[str]], tokenizer: Any) -> list[list[list[int]]]:
    """Runs of sentences of one document, as many as fit; each sentence is its pieces."""
    room, found = LONGEST - 2, list[list[list[int]]]()
    for document in documents:
        held: list[list[int]] = []
        for ids in (
            tokenizer(list(document), add_special_tokens=False)["input_ids"] if document else ()
        ):
            ids = ids[:room]
            if held and sum(map(len, held)) + len(ids) > room:
                found.append(held)
                held = []
            held.append(ids)
        found.append(held)
    return [one for one in found if sum(map(len, one)) >= LEAST]


def noised(
    passage: Sequence[Sequence[int]], mask: int, continues: set[int], random: np.random.Generator
) -> list[int]:
    """The sentences in another order, spans of their words each replaced by one mask."""
    pieces = [piece for place in random.permutation(len(passage)) for piece in passage[place]]
    words = list[list[int]]()
    for piece in pieces:
        if words and piece in continues:
            words[-1].append(piece)
        else:
            words.append([piece])
    left, spans = round(HIDDEN * len(words)), list[int]()
    while left > 0:
        spans.append(min(left, max(1, random.poisson(MEAN_SPAN))))
        left -= spans[-1]
    steps = np.array([0] * (len(words) - sum(spans)) + spans)  # 0: a word that stays
    random.shuffle(steps)
    written, at = list[int](), 0
    for step in steps:
        written += [mask] if step else words[at]
        at += int(step) or 1
    return written


def batch_of(
    chosen: Sequence[Sequence[Sequence[int]]],
    tokenizer: Any,
    continues: set[int],
    random: np.random.Generator,
) -> dict[str, Tensor]:
    before, after = tokenizer.cls_token_id, tokenizer.sep_token_id
    read = [[before, *noised(p, tokenizer.mask_token_id, continues, random), after] for p in chosen]
    told = [[*(piece for one in p for piece in one), after] for p in chosen]

    ids, labels = (
        pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=filler)
        for rows, filler in ((read, tokenizer.pad_token_id), (told, -100))
    )
    seen = (ids != tokenizer.pad_token_id).long()
    return {"input_ids": ids, "attention_mask": seen, "labels": labels}


# --- the training -----------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipes", nargs="+", default=["tags-medical", "tags-crossner"])
    parser.add_argument("--encoder", default="minilm", help="a name or folder of BERT's form")
    parser.add_argument("--decoder-layers", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--batch", type=int, default=4, help="passages")
    parser.add_argument("--rate", type=float, default=7e-4)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    random = np.random.default_rng(given.seed)
    folder = find_folder(given.encoder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = made_of(BertModel.from_pretrained(folder), tokenizer, given.decoder_layers)
    model.requires_grad_(False)
    model.model.decoder.layers.requires_grad_(True)
    learnt, held = (passages(one, tokenizer) for one in texts_of(given.recipes))
    continues = {id for piece, id in tokenizer.get_vocab().items() if piece.startswith("##")}
    trained = [p for p in model.parameters() if p.requires_grad]
    steps = torch.optim.AdamW(trained, lr=given.rate)
    started, done, losses = time.monotonic(), 0, list[float]()
    while (share := (time.monotonic() - started) / (60 * given.minutes)) < 1:
        rate = given.rate * min(share / 0.05, (1 - share) / 0.95)
        chosen = [learnt[place] for place in random.integers(len(learnt), size=given.batch)]
        loss = model(**batch_of(chosen, tokenizer, continues, random)).loss
        steps.zero_grad()
        steps.param_groups[0]["lr"] = rate
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        steps.step()
        done, losses = done + 1, [*losses[-99:], loss.item()]
        if done % 100 == 0:
            print(f"{share:6.1%}  {done} steps, loss {np.mean(losses):.3f}", flush=True)
    model.eval()
    with torch.no_grad():
        some = [held[place] for place in random.permutation(len(held))[:64]]
        loss = model(**batch_of(some, tokenizer, continues, random)).loss
    print(f"{done} steps, loss {loss.item():.3f} on held-out text")
    model.save_pretrained(given.out)
    tokenizer.save_pretrained(given.out)


if __name__ == "__main__":
    main()
