"""A trained model as ONNX, checked with onnxruntime; weights of linear layers in int8 if asked."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from confide.errors import SettingsError, printable
from confide.jobs.export import Copy
from confide.jobs.export.graphs import Graph, graph_of
from confide.learning.encoder_files import first_line

MODEL = "model.onnx"
CLOSE = 1e-4
"""How far a written model's numbers may be from confide's."""


def write_onnx(copy: Copy) -> dict[str, Any]:
    """Write `model.onnx`; gives what it is about.

    Raises SettingsError if a library is missing, or no exporter of torch writes this model so that
    onnxruntime gives confide's numbers.
    """
    _libraries()
    graph = graph_of(copy.model)
    file = copy.out / MODEL
    failures = []
    for modern in (False, True):  # the modern exporter takes ten times as long
        try:
            with _silent(), torch.no_grad():
                _write(graph, file, modern=modern)
            away = distance(graph, file)
        except Exception as error:  # whatever an exporter or a runtime raises
            failures.append(printable(first_line(error)))
            continue
        if away <= CLOSE:
            break
        failures.append(f"its numbers are {away:.1g} away")
    else:
        raise SettingsError(
            "torch cannot write this model as ONNX", got="; ".join(failures), fix='use to = "hf"'
        )
    about = {**graph.about, "largest_difference": away, "int8": copy.int8}
    if copy.int8:
        _narrow(file)
        about["largest_difference"] = distance(graph, file)
    return about


def _libraries() -> Any:
    try:
        import onnx  # noqa: F401
        import onnxruntime
    except ImportError as error:
        raise SettingsError(
            "ONNX needs the libraries onnx and onnxruntime", fix="pip install 'confide[onnx]'"
        ) from error
    return onnxruntime


def _write(graph: Graph, file: Path, *, modern: bool) -> None:
    probe = max(graph.probes, key=lambda one: next(iter(one.values())).numel())
    names = list(probe)
    sizes: dict[str, Any]
    if modern:
        sizes = {"dynamic_shapes": _shapes(graph, names)}
    else:
        sizes = {"dynamic_axes": graph.axes, "opset_version": 17}
    torch.onnx.export(
        graph.module,
        tuple(probe.values()),
        str(file),
        input_names=names,
        output_names=[graph.output],
        dynamo=modern,
        verbose=False,
        **sizes,
    )


def _shapes(graph: Graph, names: list[str]) -> Any:
    dynamic = torch.export.Dim.DYNAMIC
    shapes = [dict.fromkeys(graph.axes[name], dynamic) for name in names]
    return (tuple(shapes),) if graph.together else tuple(shapes)


def distance(graph: Graph, file: Path) -> float:
    """How far the file's numbers are from the model's, at most, over probes of several sizes.

    Numbers of the padding do not count.
    """
    runtime = _libraries()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = max(1, torch.get_num_threads())
    options.log_severity_level = 3
    session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    reads = {one.name for one in session.get_inputs()}
    away = 0.0
    for probe in graph.probes:
        given = {name: value.numpy() for name, value in probe.items() if name in reads}
        (said,) = session.run(None, given)
        with torch.no_grad():
            ours = graph.module(*probe.values()).numpy()
        apart = np.abs(said - ours)
        if "lengths" in probe:
            steps_L = np.arange(ours.shape[1])
            apart = apart[steps_L < probe["lengths"].numpy()[:, None]]
        away = max(away, float(apart.max(initial=0.0)))
    return away


def _narrow(file: Path) -> None:
    """Write linear layers' weights in int8, with a scale for each column, in place of the file.

    The weights take seven of the eight bits: without VNNI, processors add two products of bytes in
    16 bits and saturate above 2 × 255 × 64, so eight bits would give other numbers there.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    narrow = file.with_name("narrow.onnx")
    with _silent():
        quantize_dynamic(
            str(file), str(narrow),
            weight_type=QuantType.QInt8, per_channel=True, reduce_range=True,
        )  # fmt: skip
    file.with_name(f"{file.name}.data").unlink(missing_ok=True)  # of large models: the weights
    narrow.rename(file)


@contextmanager
def _silent() -> Iterator[None]:
    """Keep exporters from warning of what is checked here."""
    import logging

    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
