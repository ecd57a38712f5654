"""The adapter of a run with updates of low rank, as a folder that anyone's peft loads.

For an encoder that tags words, peft lays it over `AutoModelForTokenClassification` and puts the
last layer in its place. For relations it is laid over `AutoModel`; the last layer and the rows of
the marks, for which no class of transformers has a place, lie beside it in `head.safetensors`.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from safetensors.torch import save_file

from confide.errors import SettingsError
from confide.jobs.export import Copy
from confide.jobs.export.graphs import graph_of
from confide.jobs.export.hugging import CLOSE, distance, last_layer, their_model
from confide.learning.relations import RelationTrainer
from confide.learning.tokens import TokenTrainer
from confide.learning.tuning import peft_library, updated

HEAD = "head.safetensors"
"""What of a relation classifier lies beside its adapter."""


def write_peft(copy: Copy) -> dict[str, Any]:
    """Write the adapter; gives what it is about.

    Raises SettingsError if the model was not trained with `encoder.tune = "lora"`.
    """
    trainer = copy.model.trainer
    known = isinstance(trainer, (TokenTrainer, RelationTrainer))
    if not known or trainer.form.tuning.tune != "lora":
        raise SettingsError(
            "this model has no adapter",
            expected='a run with encoder.tune = "lora"',
            got=f"encoder.tune = {trainer.form.tuning.tune!r}" if known else "no encoder",
        )
    peft, graph = peft_library(), graph_of(copy.model)
    if isinstance(trainer, TokenTrainer):
        away = _over_words(copy, peft)
    else:
        away = _over_encoder(copy, peft)
    if away > CLOSE:
        raise SettingsError("peft does not give this model's numbers", got=f"{away:.1g} away")
    return {**graph.about, "digest": trainer.encoder.digest, "largest_difference": away}


def _config(copy: Copy, peft: Any, **own: Any) -> Any:
    trainer = copy.model.trainer
    tuning = trainer.form.tuning
    return peft.LoraConfig(
        r=tuning.rank,
        lora_alpha=tuning.alpha,
        lora_dropout=0.0,
        target_modules=updated(trainer.encoder.loaded.model),
        bias="none",
        inference_mode=True,
        **own,
    )


def _over_words(copy: Copy, peft: Any) -> float:
    trainer, model = copy.model.trainer, copy.model.model
    theirs = their_model(trainer.encoder, "TokenClassification", trainer.tags.tags)
    theirs.base_model.load_state_dict(trainer.encoder.loaded.model.state_dict(), strict=False)
    last = last_layer(theirs, len(trainer.tags))
    name = next(name for name, one in theirs.named_modules() if one is last)
    config = _config(copy, peft, task_type="TOKEN_CLS", modules_to_save=[name])
    made = _laid_over(theirs, config, peft)
    copied = _copy_updates(model.encoder, theirs.base_model)
    own = last_of(made, name)
    with torch.no_grad():
        own.weight.copy_(model.tag.weight)
        own.bias.copy_(model.tag.bias)
    graph, away = graph_of(copy.model), 0.0
    made.eval()
    with torch.no_grad():
        for probe in graph.probes:
            said = made(input_ids=probe["input_ids"], attention_mask=probe["attention_mask"]).logits
            rows_B1 = torch.arange(len(said))[:, None]
            ours = graph.module(*probe.values())
            away = max(away, distance(said[rows_B1, probe["firsts"]], ours))
    _save(made, copy, copied)
    return away


def _laid_over(theirs: Any, config: Any, peft: Any) -> Any:
    theirs.config._name_or_path = theirs.name_or_path = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft's, of what transformers renamed
        return peft.get_peft_model(theirs, config)


def last_of(made: Any, name: str) -> Any:
    """The copy of a layer that peft trains."""
    wrapped = made.base_model.model.get_submodule(name)
    return wrapped.modules_to_save["default"]


def _over_encoder(copy: Copy, peft: Any) -> float:
    trainer, model = copy.model.trainer, copy.model.model
    theirs = trainer.encoder.loaded.body()
    config = _config(copy, peft, task_type="FEATURE_EXTRACTION")
    made = _laid_over(theirs, config, peft)
    copied = _copy_updates(model.encoder, theirs)
    made.eval()
    ids = torch.arange(3, 9)[None]
    mask = torch.ones_like(ids)
    with torch.no_grad():
        said = made(input_ids=ids, attention_mask=mask).last_hidden_state
        ours = model.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    head = {
        "relation.weight": model.relation.weight,
        "relation.bias": model.relation.bias,
        "marks": model.encoder.get_input_embeddings().marks_KD,
    }
    save_file({name: p.detach().contiguous() for name, p in head.items()}, copy.out / HEAD)
    _save(made, copy, copied)
    return distance(said, ours)


def _copy_updates(ours: Any, theirs: Any) -> int:
    """Copy the updates of low rank by name; gives how many."""
    own = {name: p for name, p in ours.named_parameters() if ".lora_" in name}
    there = {name: p for name, p in theirs.named_parameters() if ".lora_" in name}
    if own.keys() != there.keys():
        raise SettingsError("peft names the updates of this encoder in another way")
    with torch.no_grad():
        for name, parameter in own.items():
            there[name].copy_(parameter)
    return len(own)


def _save(made: Any, copy: Copy, copied: int) -> None:
    assert copied, "an adapter has updates"
    # nobody learns where the encoder lies here, and nothing is looked up elsewhere
    made.peft_config["default"].base_model_name_or_path = None
    made.save_pretrained(copy.out, save_embedding_layers=False)
    (copy.out / "README.md").unlink(missing_ok=True)  # peft's; the release's card takes its place
