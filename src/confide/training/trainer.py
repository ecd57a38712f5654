"""The trainer of all models that learn from rows of text: fit, predict, distil, gradients.

A trainer makes models of one kind and form. Text is encoded once (`prepared`); annotation, which
may change from round to round, is laid over it. A kind says how rows become a batch, what makes of
the model's output two losses of each row, and which layer is the last: that of the site's own
annotation (source), and that of what another model found (target; Wang et al. 2023, Eq. 6 to 10).
Training, single gradients, gradients of units, losses, slopes and distillation follow from these.

Encoded text has a row for each sentence, window of a long one, pair or bag, with `lengths_S`;
annotated text has it as `text`.

Shapes: S rows, B rows of a batch, T rows of a public text (tokens, spans, pairs), Y classes, G
numbers of the last layer's weight.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import islice
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from confide.errors import DataError
from confide.privacy.noise import UnitGradients
from confide.seeds import derive_seed
from confide.text.document import Document
from confide.text.segment import segmented
from confide.text.tagging import entities_from_spans
from confide.training.batches import (
    Example,
    Rows,
    TagSet,
    TypedSpan,
    Window,
    check_covers,
    examples_from,
    offsets,
)
from confide.training.devices import (
    Place,
    at_home,
    beside,
    drawing,
    enough_memory,
    home,
    homeward,
    most_read,
    on,
    predicting,
    where_is,
)
from confide.training.examples import (
    RowGradients,
    WholeGradients,
    last_layer_gradients,
    unit_gradients,
)
from confide.training.optimisers import Descent, FusedSteps, Optimiser, Steps
from confide.training.tagger import drawn_rows, longest_first, shuffled
from confide.training.weights import (
    Arrays,
    gradients_of,
    named_parameters,
    still,
    trained_parameters,
)

# --- Joining what was found in the windows of long sentences


class FoundSpan(NamedTuple):
    """Tokens `start` to `end` of an example, and the probability that they are an entity."""

    start: int
    end: int
    type: str
    confidence: float


def join_windows(
    by_window: Sequence[Sequence[FoundSpan]],
    windows: Sequence[Window],
    *,
    examples: int,
    flat: bool = True,
) -> list[list[FoundSpan]]:
    """The spans of each example, in order of start and, if `flat`, without overlaps.

    `by_window` are those of each window, numbered by its own tokens. A span belongs to the window
    that owns its first token.
    """
    by_example: list[list[FoundSpan]] = [[] for _ in range(examples)]
    for window, found in zip(windows, by_window, strict=True):
        kept = by_example[window.example]
        for span in found:
            start, end = span.start + window.start, span.end + window.start
            free = not flat or not kept or kept[-1].end <= start
            if window.own_start <= start < window.own_end and free:
                kept.append(span._replace(start=start, end=end))
    return by_example


# --- Documents in, documents with entities out


def bare_sentences(documents: Sequence[Document]) -> tuple[list[Document], list[Example]]:
    """The documents, segmented and without annotation, and their sentences."""
    bare = [
        replace(one, entities=(), relations=()) if one.entities or one.relations else one
        for one in map(segmented, documents)
    ]
    return bare, examples_from(bare)[0]


def with_entities(
    documents: Sequence[Document], examples: Sequence[Example], found: Sequence[list[FoundSpan]]
) -> list[Document]:
    """The documents with these spans of each of their examples as entities."""
    spans: list[list[list[TypedSpan]]] = [[[] for _ in d.sentences] for d in documents]
    confidences: list[list[list[float]]] = [[[] for _ in d.sentences] for d in documents]
    for example, spotted in zip(examples, found, strict=True):
        spans[example.document][example.sentence] = [span[:3] for span in spotted]
        confidences[example.document][example.sentence] = [span.confidence for span in spotted]
    entities = (
        entities_from_spans(document, per_sentence, confidences=chances)
        for document, per_sentence, chances in zip(documents, spans, confidences, strict=True)
    )
    return [
        replace(document, entities=own) if own or document.entities else document
        for document, own in zip(documents, entities, strict=True)
    ]


def paths_of(
    tags: TagSet, spans: Sequence[tuple[int, TypedSpan]], *, grown: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """For each span: at_2N, its row and first token; tags_NK, its tags; lengths_N, their number.

    `grown` adds the tag that would extend it by one. Padding is 0.
    """
    paths = [tags.path(name, end - start + grown) for _, (start, end, name) in spans]
    lengths_N = torch.tensor([len(path) for path in paths])
    steps_K = torch.arange(int(lengths_N.max()))
    tags_NK = torch.zeros(len(paths), len(steps_K), dtype=torch.int64)
    tags_NK[steps_K < lengths_N[:, None]] = torch.tensor([tag for path in paths for tag in path])
    at_2N = torch.tensor([[place for place, _ in spans], [span[0] for _, span in spans]])
    return at_2N, tags_NK, lengths_N


# --- The distillation loss
#
# Against a teacher that gives each example a probability of every class.
#
# Sui et al. 2020, FedED, Eq. 4 to 6: the teacher's logits are softened by a temperature τ, and the
# student learns from them by KL(teacher ‖ student), and from labels if there are any.
#
# Shapes: B examples, R classes.


def softened(logits_BR: Tensor, temperature: float) -> Tensor:
    """The probabilities of logits divided by the temperature (Eq. 4)."""
    return torch.softmax(logits_BR / temperature, -1)


def distillation_loss(logits_BR: Tensor, teacher_BR: Tensor, *, temperature: float = 1.0) -> Tensor:
    """loss_B: KL(teacher ‖ student), the first part of Eq. 6. A teacher of zeros teaches nothing.

    `temperature` softens the student too, so the gradient shrinks with its square; this is
    compensated (Hinton, Vinyals & Dean 2015, 2). The paper softens only the teacher: 1.
    """
    student_BR = torch.log_softmax(logits_BR / temperature, -1)
    divergence_B = functional.kl_div(student_BR, teacher_BR, reduction="none").sum(-1)
    return divergence_B * temperature**2


# --- Distillation row by row
#
# Predicting every row of a public text, and learning others' predictions.
#
# The kinds differ in what a row is (a token, a span of words, a pair of entities) and in what they
# believe of one (a CRF its marginals, a classifier its logits); reading windows, and the loss of a
# sentence, are the same (Sui et al. 2020, Eq. 6, with a row in place of an example):
#
#     loss = [labels] w · ordinary loss of the sentence + Σ_t τ² KL(teacher_t ‖ student_t)
#
# Rows are counted over all sentences, in order: by first word, then width. Where a sentence is read
# in windows, a row is predicted by the window that owns its first word, and learnt in every window
# that it lies in. A span that reaches out of its window is predicted to be none.
#
# Shapes: T rows of all sentences, B windows of a batch, N rows of a window, Z classes.


@dataclass(frozen=True, eq=False)
class DistillationTarget:
    """The targets of training on a text, or on other rows.

    `teacher_TY` are probabilities; a row of zeros teaches nothing. `temperature` softens the
    student. `labels_T` is how much the loss of each row's own label counts, the same for all tokens
    of a sentence; if all are 0, labels are not learnt.
    """

    teacher_TY: NDArray[np.float32]
    temperature: float
    labels_T: NDArray[np.float32]

    @property
    def labelled(self) -> bool:
        """True if any label is learnt."""
        return bool(self.labels_T.any())


NEVER = -12.0
"""The logit of each class but the first, of a row that no window holds."""
_USUAL = 256
"""The most words of a sentence whose tables are cached."""


def cells_from(words: int, width: int) -> NDArray[np.int64]:
    """For each word of a sentence, and its end, the number of spans that begin before it.

    >>> cells_from(3, 2).tolist()
    [0, 2, 4, 5]
    """
    return _cells(words, width) if words <= _USUAL else _cells.__wrapped__(words, width)


@lru_cache(maxsize=4096)
def _cells(words: int, width: int) -> NDArray[np.int64]:
    found = offsets(np.minimum(width, words - np.arange(words)))
    found.setflags(write=False)
    return found


@dataclass(frozen=True, eq=False)
class Cells:
    """The rows of a text's windows: spans of at most `width` words, 1: words. E sentences."""

    windows: Sequence[Window]
    width: int
    words_E: list[int]
    from_E1: Rows

    @classmethod
    def of(cls, windows: Sequence[Window], width: int = 1) -> Cells:
        """Those of windows that come in the order of sentences; each one's last ends with it."""
        ends: dict[int, int] = {window.example: window.end for window in windows}
        words_E = [ends.get(one, 0) for one in range(max(ends, default=-1) + 1)]
        each_E = [int(cells_from(words, width)[-1]) for words in words_E]
        return cls(windows, width, words_E, offsets(each_E))

    def rows_of(self, rows_B: Rows, *, words: int, owned: bool = False) -> Rows:
        """rows_BN of windows padded to this many words: -1 for a span that ends outside.

        With `owned`, also -1 for a span whose first word is another window's.
        """
        rows_BLW = np.full((len(rows_B), words, self.width), -1, np.int64)
        for place, number in enumerate(rows_B.tolist()):
            window = self.windows[number]
            length = window.end - window.start
            before_L = cells_from(self.words_E[window.example], self.width)
            firsts_L1 = np.arange(window.start, window.end)[:, None]
            found_LW = before_L[firsts_L1] + np.arange(self.width) + self.from_E1[window.example]
            inside_LW = firsts_L1 + np.arange(self.width) < window.end
            if owned:
                inside_LW &= (window.own_start <= firsts_L1) & (firsts_L1 < window.own_end)
            rows_BLW[place, :length] = np.where(inside_LW, found_LW, -1)
        return rows_BLW.reshape(len(rows_B), words * self.width)

    def said(self, given: Iterable[tuple[Rows, Tensor]], *, classes: int) -> NDArray[np.float32]:
        """logits_TZ of every row, from the logits_BNZ of windows, batch by batch."""
        logits_TZ = np.full((int(self.from_E1[-1]), classes), NEVER, np.float32)
        logits_TZ[:, 0] = 0.0
        for rows_B, logits_BNZ in given:
            places_BN = self.rows_of(rows_B, words=logits_BNZ.shape[1] // self.width, owned=True)
            logits_TZ[places_BN[places_BN >= 0]] = at_home(logits_BNZ)[places_BN >= 0]
        return logits_TZ

    def distillation_losses(
        self, soft_target: DistillationTarget, logits_BNZ: Tensor, rows_B: Rows
    ) -> Tensor:
        """loss_B: τ² KL(teacher ‖ student), summed over each window's rows."""
        places_BN = self.rows_of(rows_B, words=logits_BNZ.shape[1] // self.width)
        # a teacher of zeros teaches nothing
        teacher_BNZ = np.where((places_BN >= 0)[:, :, None], soft_target.teacher_TY[places_BN], 0)
        return distillation_loss(
            logits_BNZ,
            on(teacher_BNZ, logits_BNZ).to(logits_BNZ.dtype),
            temperature=soft_target.temperature,
        ).sum(1)

    def label_weights(self, soft_target: DistillationTarget, rows_B: Rows) -> Tensor:
        """weights_B: how much the ordinary loss of each window counts; on the processor."""
        firsts_B = [self.from_E1[self.windows[row].example] for row in rows_B.tolist()]
        return torch.from_numpy(soft_target.labels_T[firsts_B])


# --- Local training: some epochs over a place's own sentences


class FitReport(NamedTuple):
    """The mean loss of a sentence in the last epoch, and the sentences and steps of all epochs."""

    loss: float
    sentences: int
    steps: int


def train_epochs(
    model: nn.Module,
    batches: Callable[[int], Iterable[Any]],
    loss: Callable[[Any], Tensor],
    *,
    epochs: int,
    optimiser: Optimiser,
    seed: int,
    make: Callable[[list[nn.Parameter], Optimiser], Steps] = FusedSteps,
    count: Callable[[Any], int] = len,
) -> FitReport:
    """Train any model in place on the mean loss of each batch's sentences.

    The same model, batches and seed give the same bits (with one torch thread). `batches` gives an
    epoch's batches for its seed, each with a length, `tokens_B` and `part`; `loss` the loss of each
    sentence of a batch; `make` makes the optimiser, and `count` says how many sentences the report
    counts a batch as. A batch is one step, however large: its gradient is computed in parts that
    fit the device, and dropout is drawn for each. Training ends after `epochs` or `optimiser.most`
    steps, whichever comes first. Raises DataError if there is no batch, and SmallBatchError for one
    of fewer rows than a gradient may cover.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    descent = Descent(trained.values(), optimiser, make=make, names=trained)
    steps = sentences = 0
    mean = 0.0
    model.train()
    place = where_is(model)
    with drawing(model, derive_seed(seed, "dropout")), enough_memory(place):
        for epoch in range(epochs):
            values, sizes = list[Tensor](), list[int]()
            drawn = batches(derive_seed(seed, "batches", epoch))
            for batch in islice(drawn, optimiser.left(steps)):
                check_covers(len(batch))
                losses = _losses(loss, batch, model, place)
                values.append(descent.step_down(losses))
                sizes.append(len(batch))
                steps, sentences = steps + 1, sentences + count(batch)
            if not sizes:
                raise DataError("there is no sentence to train on")
            means = home(torch.stack(values)).tolist()
            total = 0.0
            for one, size in zip(means, sizes, strict=True):
                total += one * size
            mean = total / sum(sizes)
            if optimiser.left(steps) == 0:
                break
    descent.steps.zero_grad()  # gradients would be held until the next training
    model.eval()
    return FitReport(mean, sentences, steps)


def _losses(
    loss: Callable[[Any], Tensor], batch: Any, model: nn.Module, place: Place
) -> Iterator[Tensor]:
    """The shares of a batch's mean loss, each of as many sentences as fit the place at once."""
    size = len(batch)
    for start, end in _parts(batch.tokens_B, place):
        whole = end - start == size
        loss_B = loss(beside(batch if whole else batch.part(start, end), model))
        yield loss_B.mean() if whole else loss_B.sum() / size


def _parts(tokens_B: Rows, place: Place) -> Iterator[tuple[int, int]]:
    """The first row of each part of a batch, and the one after its last."""
    most = place.micro_batch_size or len(tokens_B)
    start = total = 0
    for row, tokens in enumerate(tokens_B.tolist()):
        total += tokens
        if row - start == most or (row > start and total > place.padded_tokens):
            yield start, row
            start, total = row, tokens
    yield start, len(tokens_B)


# --- The gradient of one batch


def gradients(
    model: nn.Module, loss: Callable[[], Tensor], *, seed: int, clip: float
) -> tuple[float, Arrays]:
    """The mean of `loss` (loss_B of a batch), and its gradient by trained parameter.

    The norm of the whole gradient is at most `clip` (0: no bound). Dropout is drawn from the seed.
    The model keeps its weights, and is left in training mode. Raises SmallBatchError for a batch of
    fewer rows than a gradient may cover.
    """
    parameters = trained_parameters(model)
    for parameter in parameters.values():
        parameter.grad = None
    if not model.training:
        model.train()
    with drawing(model, derive_seed(seed, "dropout")), enough_memory(where_is(model)):
        loss_B = loss()
        check_covers(len(loss_B))
        mean = loss_B.mean()
        mean.backward()  # type: ignore[no-untyped-call]
    if clip > 0.0:
        nn.utils.clip_grad_norm_(parameters.values(), clip)
    return float(home(mean)), gradients_of(parameters)


# --- Few rows of a large embedding table
#
# They are trained as if they were the whole table.
#
# A row that no example reads has a gradient of zero at every step. A fresh optimiser without
# weight decay leaves it as it is, bit for bit, but still fills in, squares and divides its zeros
# at every step, and the table is half of a small encoder. So the rows that are read are trained
# as a table of their own, then put back.
#
# Shapes: V rows of the whole table, K rows that are read, D numbers of a row.


@contextmanager
def only_rows(model: nn.Module, table: nn.Embedding, ids: NDArray[np.integer]) -> Iterator[None]:
    """Reduce `table` to the rows `ids` (in any order, with repeats) for the duration.

    Lookups still use the old ids; any other id is an IndexError. Afterwards, even after an
    exception, the table has its old parameter again, whose data is replaced and never overwritten;
    until then `weights.arrays` gives the old values. Nothing happens if unread rows may matter: if
    the table is shared with another module of `model`, has a maximum norm, or is not trained.
    """
    named_parameters(model)  # cached on first use, which must not see the temporary parameter
    whole = table.weight
    if not _alone(model, table) or not whole.requires_grad:
        yield
        return
    read_K = torch.from_numpy(np.unique(ids).astype(np.int64))
    place_V = torch.full((len(whole),), len(read_K))
    place_V[read_K] = torch.arange(len(read_K))
    padding = table.padding_idx
    # its gradient is discarded
    kept = None if padding is None or place_V[padding] == len(read_K) else int(place_V[padding])
    rows_K, place_V = on(read_K, whole), on(place_V, whole)

    def renumbered(_: nn.Module, asked: tuple[Tensor]) -> tuple[Tensor]:
        return (place_V[asked[0]],)

    table.padding_idx = kept
    table.weight = nn.Parameter(whole.detach()[rows_K])
    hook = table.register_forward_pre_hook(renumbered)
    try:
        yield
    finally:
        hook.remove()
        table.padding_idx = padding
        trained_VD = whole.detach().clone()
        trained_VD[rows_K] = table.weight.detach()
        whole.data = trained_VD
        table.weight = whole


def _alone(model: nn.Module, table: nn.Embedding) -> bool:
    """Return whether the table is only used by ordinary lookups."""
    owners = [m for m in model.modules() for p in m.parameters(recurse=False) if p is table.weight]
    settled = table.max_norm is None and not table.scale_grad_by_freq
    return owners == [table] and settled


Random = np.random.Generator
Parts = tuple[Tensor, Tensor]
Make = Callable[[list[nn.Parameter], Optimiser], Steps]
"""Makes an optimiser of parameters."""


class LastLayerGradients(NamedTuple):
    """Each row's gradients by the last layer's weight, flattened (Wang et al. 2023, Eq. 11).

    `source_SG` is of the loss of the site's own annotation, `target_SG` of what another model
    found; zeros for a row without either.
    """

    source_SG: NDArray[np.float32]
    target_SG: NDArray[np.float32]


class Pulls(NamedTuple):
    """Gradients by the last layer's weight, as far as instance weights need them.

    `source` has each row's gradient of the site's own annotation; `target_G` is the sum over all
    rows for the model's annotation, which `rows` rows have.
    """

    source: RowGradients
    target_G: NDArray[np.float32]
    rows: int


class Epochs(NamedTuple):
    """The number of passes over a text, their steps and their order."""

    epochs: int
    batch_size: int
    optimiser: Optimiser
    seed: int


def pieces_read(
    model: nn.Module, encoder: Any, text: Any, *, optimiser: Optimiser
) -> AbstractContextManager[None]:
    """Reduce the table of this encoder, a part of `model`, to the pieces that the text has.

    Nothing happens if the optimiser moves rows that are not read.
    """
    if not optimiser.keeps_still:
        return nullcontext()
    read_N = np.append(text.ids_N, text.padding)
    return only_rows(model, encoder.get_input_embeddings(), read_N)


class RowTrainer(ABC):
    """Makes, trains and measures models of one kind and form.

    `head` is the name of a model's last linear layer, `per_batch` the most padded places of a batch
    that is only read.
    """

    head: ClassVar[str]
    per_batch: ClassVar[int]

    # --- what a kind says -------------------------------------------------------------------

    @abstractmethod
    def initial(self, seed: int) -> Any:
        """A new model; parameters that require a gradient are trained, and travel."""

    @abstractmethod
    def batch(self, model: Any, text: Any, rows_B: Rows, *, own: Any = None) -> Any:
        """These rows, with the annotation `own`."""

    @abstractmethod
    def losses(self, model: Any, own: Any, batch: Any, *, output: Tensor) -> Parts:
        """source_B and target_B of the model's output for these rows of annotated text."""

    def loss(self, model: Any, own: Any, batch: Any, *, output: Tensor) -> Tensor:
        """loss_B of rows that each count once."""
        source_B, target_B = self.losses(model, own, batch, output=output)
        return source_B + target_B

    def output(self, model: Any, batch: Any) -> Tensor:
        """Compute the model's output for a batch."""
        output: Tensor = model(batch)
        return output

    def epoch(self, model: Any, own: Any, *, batch_size: int, random: Random) -> Iterator[Any]:
        """The batches of one epoch in random order, each of similar lengths."""
        for rows_B in shuffled(own.text.lengths_S, batch_size, random=random):
            batch = self.batch(model, own.text, rows_B, own=own)
            self.lose(batch, random)
            yield batch

    def lose(self, batch: Any, random: Random) -> None:  # noqa: B027
        """Leave out, in place, what training reads without."""

    def counted(self, batch: Any) -> int:
        """Count the training examples of a batch."""
        return len(batch)

    def reduced(
        self, model: Any, own: Any, optimiser: Optimiser
    ) -> AbstractContextManager[Make | None]:
        """Reduce tables to the rows that the text reads, if the numbers stay the same.

        Here that of the model's encoder, to the pieces of the text. Gives what makes the optimiser;
        None: `FusedSteps`.
        """
        return pieces_read(model, model.encoder, own.text, optimiser=optimiser)

    def beliefs(self, model: Any, batch: Any, output: Tensor) -> Tensor:
        """logits_BNZ, whose softmax is what the model believes of each row of a public text."""
        return output

    def cells(self, text: Any) -> Cells:
        """The rows of a public text, here its tokens."""
        return Cells.of(text.windows)

    @property
    def classes(self) -> int:
        """The number of classes of a row of a public text."""
        raise NotImplementedError

    # --- what follows -----------------------------------------------------------------------

    def fit(
        self,
        model: Any,
        own: Any,
        *,
        weights_S: NDArray[np.float32] | None = None,
        epochs: int,
        batch_size: int,
        optimiser: Optimiser,
        seed: int,
    ) -> FitReport:
        """Train in place with a fresh optimiser on the mean loss of each batch's rows.

        A row's loss is its weight times its source loss, plus its target loss. Raises DataError if
        there is no row.
        """

        def loss(batch: Any) -> Tensor:
            output = self.output(model, batch)
            each_B = None if weights_S is None else weights_S[batch.rows_B]
            if each_B is None or (each_B == 1.0).all():
                return self.loss(model, own, batch, output=output)
            source_B, target_B = self.losses(model, own, batch, output=output)
            return on(each_B, source_B).to(source_B.dtype) * source_B + target_B

        return self._train(model, own, loss, Epochs(epochs, batch_size, optimiser, seed))

    def distil(
        self,
        model: Any,
        own: Any,
        *,
        soft_target: DistillationTarget,
        epochs: int,
        batch_size: int,
        optimiser: Optimiser,
        seed: int,
    ) -> FitReport:
        """Train in place on a teacher's beliefs and, as the target says, on the text's labels.

        The loss is that of `training.trainer`. Raises DataError if there is no row.
        """
        cells = self.cells(own.text)

        def loss(batch: Any) -> Tensor:
            output = self.output(model, batch)
            beliefs = self.beliefs(model, batch, output)
            loss_B = cells.distillation_losses(soft_target, beliefs, batch.rows_B).to(output.dtype)
            if not soft_target.labelled:
                return loss_B
            weights_B = on(cells.label_weights(soft_target, batch.rows_B), loss_B)
            return loss_B + weights_B * self.loss(model, own, batch, output=output)

        return self._train(model, own, loss, Epochs(epochs, batch_size, optimiser, seed))

    def _train(self, model: Any, own: Any, loss: Callable[[Any], Tensor], how: Epochs) -> FitReport:
        def batches(seed: int) -> Iterator[Any]:
            random = np.random.default_rng(seed)
            return self.epoch(model, own, batch_size=how.batch_size, random=random)

        # a term may move rows that the text does not read
        still = how.optimiser.term_keeps_still
        with self.reduced(model, own, how.optimiser) if still else nullcontext() as make:
            return train_epochs(
                model,
                batches,
                loss,
                epochs=how.epochs,
                optimiser=how.optimiser,
                seed=how.seed,
                make=make or FusedSteps,
                count=self.counted,
            )

    def gradient(
        self, model: Any, own: Any, *, size: int, clip: float, seed: int
    ) -> tuple[float, Arrays]:
        """The mean loss of `size` rows drawn by the seed, and its gradient by parameter.

        The norm of the whole gradient is at most `clip` (0: no bound).
        """
        random = np.random.default_rng(seed)
        rows_B = drawn_rows(own.text.lengths_S, size, random=random)
        drawn = self.batch(model, own.text, rows_B, own=own)
        self.lose(drawn, random)
        batch = beside(drawn, model)
        return gradients(model, lambda: self._loss_of(model, own, batch), seed=seed, clip=clip)

    def unit_gradients(
        self, model: Any, own: Any, units: Iterable[Rows]
    ) -> Iterator[UnitGradients]:
        """The gradient of each unit's loss, without dropout (`training.examples`)."""

        def losses(rows_B: Rows) -> Tensor:
            batch = beside(self.batch(model, own.text, rows_B, own=own), model)
            return self._loss_of(model, own, batch)

        return unit_gradients(model, losses, units, lengths_S=own.text.lengths_S)

    def row_losses(self, model: Any, own: Any) -> NDArray[np.float64]:
        """losses_S: what training would lose on each row, without dropout."""
        losses_S = np.zeros(len(own))
        with predicting(model):
            loss = partial(self._loss_of, model, own)
            for batch, loss_B in self._found(model, own.text, loss, own=own):
                losses_S[batch.rows_B] = loss_B.numpy()
        return losses_S

    def example_losses(self, model: Any, own: Any) -> NDArray[np.float64]:
        """losses_E: what training would lose on each example, of one row or several windows."""
        owners_S = np.array([window.example for window in own.text.windows], np.int64)
        losses_E = np.zeros(own.text.examples)
        np.add.at(losses_E, owners_S, self.row_losses(model, own))
        return losses_E

    def row_gradients(self, model: Any, own: Any) -> LastLayerGradients:
        """The gradients of each row's two losses by the last layer's weight, without dropout.

        The model keeps its weights.
        """
        linear = model.get_submodule(self.head)
        assert isinstance(linear, nn.Linear)
        shape = (len(own), linear.weight.numel())
        source_SG, target_SG = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        with still(model):
            for one in self.reads(model, own.text, own=own):
                batch = beside(one, model)

                def losses(output: Tensor, batch: Any = batch) -> Parts:
                    return self.losses(model, own, batch, output=output)

                outputs = partial(self.output, model, batch)
                found = last_layer_gradients(linear, outputs, losses=losses)
                source_SG[batch.rows_B], target_SG[batch.rows_B] = map(at_home, found)
        return LastLayerGradients(source_SG, target_SG)

    def pulls(self, model: Any, own: Any) -> Pulls:
        """The row gradients, with those of what another model found summed."""
        found = self.row_gradients(model, own)
        rows = int(found.target_SG.any(1).sum())
        return Pulls(WholeGradients(found.source_SG), found.target_SG.sum(0), rows)

    def row_logits(self, model: Any, text: Any) -> NDArray[np.float32]:
        """logits_TY of every row of a public text; their softmax is the model's belief."""

        def beliefs(batch: Any) -> Tensor:
            return self.beliefs(model, batch, self.output(model, batch))

        with predicting(model):
            found = self._found(model, text, beliefs)
            said = ((batch.rows_B, logits_BNZ) for batch, logits_BNZ in found)
            return self.cells(text).said(said, classes=self.classes)

    def reads(self, model: Any, text: Any, *, own: Any = None) -> Iterator[Any]:
        """Every row once, longest first, in batches of `per_batch`, or of more (`most_read`)."""
        for rows_B in longest_first(text.lengths_S, most_read(model, self.per_batch)):
            yield self.batch(model, text, rows_B, own=own)

    def _found(
        self, model: Any, text: Any, compute: Callable[[Any], Tensor], *, own: Any = None
    ) -> Iterator[tuple[Any, Tensor]]:
        """Every batch, and what is computed of it, at home.

        A device apart is asked for the next batch's before this one's is waited for.
        """
        asked = deque[tuple[Any, Callable[[], Tensor]]]()
        ahead = 1 if where_is(model).apart else 0
        for batch in self.reads(model, text, own=own):
            asked.append((batch, homeward(compute(beside(batch, model)))))
            if len(asked) > ahead:
                first, found = asked.popleft()
                yield first, found()
        yield from ((batch, found()) for batch, found in asked)

    def _loss_of(self, model: Any, own: Any, batch: Any) -> Tensor:
        return self.loss(model, own, batch, output=self.output(model, batch))


class EntityTrainer(RowTrainer):
    """A trainer of models that find entities.

    An entity is a site's own annotation (source) or another model's (target), by its type. `flat`:
    no two of those that it finds share a token.
    """

    flat: ClassVar[bool] = True

    @property
    @abstractmethod
    def types(self) -> tuple[str, ...]:
        """The complete tag set, in order."""

    @abstractmethod
    def prepared(self, examples: Sequence[Example]) -> Any:
        """Sentences, encoded, without their spans."""

    @abstractmethod
    def annotated(
        self, text: Any, spans: Sequence[Sequence[TypedSpan]], *, source: Set[str]
    ) -> Any:
        """The text with these spans of each example; types in `source` are the site's own."""

    def scores(self, model: Any) -> Any:
        """The numbers that decoding needs of the model besides its output, on the processor."""
        return None

    def spans(
        self, scores: Any, batch: Any, output: Tensor, *, wanted: Collection[str] | None
    ) -> Iterable[list[FoundSpan]]:
        """The spans of each row of a batch, numbered by its own tokens, from the model's output.

        The output is on the processor; `scores` are those of `scores`, and `wanted` as for `find`.
        """
        raise NotImplementedError

    def find(
        self, model: Any, text: Any, *, wanted: Collection[str] | None = None
    ) -> list[list[FoundSpan]]:
        """The spans of each example, in order of start; windows of one example are joined.

        With `wanted`, the model chooses among these types and "no entity" alone.
        """
        by_window: list[list[FoundSpan]] = [[] for _ in range(len(text))]
        with predicting(model):
            scores = self.scores(model)
            for batch, output in self._found(model, text, partial(self.output, model)):
                found = self.spans(scores, batch, output, wanted=wanted)
                for row, spans in zip(batch.rows_B.tolist(), found, strict=True):
                    by_window[row] = spans
        return join_windows(by_window, text.windows, examples=text.examples, flat=self.flat)


@dataclass(frozen=True)
class Read:
    """Documents ready for prediction: segmented, without annotation, and encoded."""

    documents: list[Document]
    examples: list[Example]
    text: Any


def read_bare(trainer: EntityTrainer, documents: Sequence[Document]) -> Read:
    """Prepare documents: the work that does not depend on weights, done once for many rounds."""
    bare, examples = bare_sentences(documents)
    return Read(bare, examples, trainer.prepared(examples))


def annotate_with(
    trainer: EntityTrainer, model: nn.Module, found: Read, *, wanted: Collection[str] | None = None
) -> list[Document]:
    """The documents, segmented, with only the entities that the model finds, of `wanted` types."""
    spans = trainer.find(model, found.text, wanted=wanted)
    return with_entities(found.documents, found.examples, spans)
