"""Wide products: the same numbers as PyTorch's own, forwards and backwards."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from cases import each
from confide.errors import SettingsError
from confide.training import devices
from confide.training.devices import Int8Linear, WideLinear, has_wide_products, in_int8, widen

SHAPES = [(7, 5), (3, 7, 5), (2, 3, 7, 5)]


@pytest.fixture(autouse=True)
def small_layers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_LEAST", 1)


@pytest.fixture(params=[True, False], ids=["wide", "usual"])
def processor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN multiplies on any processor, however fast."""
    if request.param and not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this build of PyTorch has no oneDNN")
    monkeypatch.setattr(devices, "has_wide_products", lambda: request.param)


def pair(*, bias: bool = True) -> tuple[nn.Linear, nn.Linear]:
    """The same layer in double precision, and wide."""
    torch.manual_seed(1)
    plain = nn.Linear(5, 4, bias=bias)
    wide = nn.Sequential(copy.deepcopy(plain))
    widen(wide)
    found = wide[0]
    assert isinstance(found, WideLinear)
    return plain.double(), found


@pytest.mark.usefixtures("processor")
@each("bias", [True, False])
@each("shape", SHAPES)
def test_values_and_gradients_are_those_of_double_precision(
    shape: tuple[int, ...], bias: bool
) -> None:
    plain, wide = pair(bias=bias)
    values = torch.randn(shape)
    inputs = [values.double().requires_grad_(), values.clone().requires_grad_()]
    outputs = [layer(given) for layer, given in zip((plain, wide), inputs, strict=True)]
    assert outputs[1].shape == (*shape[:-1], 4)
    weights = torch.randn(outputs[1].shape)
    for output in outputs:
        (output * weights).sum().backward()
    found = [(outputs[1], outputs[0]), (inputs[1].grad, inputs[0].grad)]
    found += [(w.grad, p.grad) for w, p in zip(wide.parameters(), plain.parameters(), strict=True)]
    for one, other in found:
        torch.testing.assert_close(one, other.float(), rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("processor")
def test_views_are_read_as_they_are() -> None:
    plain, wide = pair()
    values = torch.randn(5, 3, 7).permute(2, 1, 0)
    wide(values).transpose(0, 1).cumsum(0).sum().backward()
    plain(values.double()).transpose(0, 1).cumsum(0).sum().backward()
    assert plain.weight.grad is not None
    torch.testing.assert_close(wide.weight.grad, plain.weight.grad.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("processor")
def test_what_is_frozen_gets_no_gradient() -> None:
    _, wide = pair()
    wide.weight.requires_grad_(False)
    values = torch.randn(3, 5, requires_grad=True)
    wide(values).sum().backward()
    assert wide.weight.grad is None
    assert values.grad is not None
    assert wide.bias.grad is not None


@each("values", [torch.zeros(0, 5), torch.ones(2, 5).double()])
def test_nothing_and_other_types_go_the_usual_way(values: torch.Tensor) -> None:
    _, wide = pair()
    assert wide.to(values.dtype)(values).shape == (len(values), 4)


def test_parameters_keep_their_names_order_and_identity() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Tanh(), nn.Linear(3, 1, bias=False)))
    before = dict(model.eval().named_parameters())
    widen(model)
    after = dict(model.named_parameters())
    assert list(before) == list(after)
    assert all(before[name] is after[name] for name in before)
    assert not any(module.training for module in model.modules())
    assert sum(isinstance(module, WideLinear) for module in model.modules()) == 2


def test_small_layers_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_LEAST", 7)
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3))
    widen(model)
    assert [type(layer) for layer in model] == [nn.Linear, WideLinear]


def test_a_build_without_the_operator_goes_the_usual_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> torch.Tensor:
        raise AttributeError("no such operator")

    monkeypatch.setattr(devices, "_is_intel", lambda: False)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    with monkeypatch.context() as build:
        build.setattr(devices, "_product", lambda left, right: left @ right.t())
        assert has_wide_products.__wrapped__()
        build.setattr(devices, "_is_intel", lambda: True)
        assert not has_wide_products.__wrapped__()  # MKL is the faster one there
    monkeypatch.setattr(devices, "_product", missing)
    assert not has_wide_products.__wrapped__()
    monkeypatch.setattr(devices, "_product", lambda left, right: left @ right.t() + 1)
    assert not has_wide_products.__wrapped__()


def test_exporters_see_a_usual_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """They know no operator of oneDNN."""
    monkeypatch.setattr(devices, "has_wide_products", lambda: True)
    monkeypatch.setattr(devices, "_product", None)
    layer, values = WideLinear(5, 3).eval(), torch.ones(2, 5)
    with torch.no_grad():
        with pytest.warns(DeprecationWarning):
            traced: nn.Module = torch.jit.trace(layer, values, check_trace=False)
        exported = torch.export.export(layer, (values,)).module()
        for made in (traced, exported):
            assert torch.equal(made(values), functional.linear(values, layer.weight, layer.bias))


# --- int8 ---------------------------------------------------------------------------------------


class Body(nn.Sequential):
    """An encoder, as `devices` knows one."""

    def get_input_embeddings(self) -> nn.Module:
        return self[0]


def has_vnni(monkeypatch: pytest.MonkeyPatch, *, vnni: bool) -> None:
    if vnni and not torch.cpu.get_capabilities().get("avx512_vnni"):
        pytest.skip("this processor has no VNNI")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_vnni": vnni})


@each("vnni", [True, False])
@each("bias", [True, False])
def test_a_layer_in_int8_gives_about_the_same_numbers(
    vnni: bool, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_vnni(monkeypatch, vnni=vnni)
    torch.manual_seed(1)
    layer, values = nn.Linear(63, 48, bias=bias), torch.randn(3, 7, 63) + 0.5
    narrow = Int8Linear(layer)
    for given in (values, values[:1, :1], values[:, :0], values[:0], values.mT.contiguous().mT):
        found, wanted = narrow(given), layer(given)
        assert found.shape == wanted.shape
        if len(given):
            assert (found - wanted).norm() <= 0.02 * wanted.norm()
    assert not torch.equal(narrow(values), layer(values))


def test_with_vnni_a_row_does_not_move_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    has_vnni(monkeypatch, vnni=True)
    torch.manual_seed(1)
    narrow, values = Int8Linear(nn.Linear(64, 48)), torch.randn(5, 64)
    beside = values * torch.tensor([[1.0], [1000], [1], [1], [1]])
    torch.testing.assert_close(narrow(beside)[2:], narrow(values)[2:], rtol=1e-4, atol=1e-5)


def test_products_by_row_that_lack_or_are_wrong_are_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has_vnni(monkeypatch, vnni=True)
    layer, values, real = nn.Linear(8, 8), torch.randn(2, 8), devices._by_rows
    assert devices.multiplies_rows()

    def missing(*_: object) -> None:
        raise AttributeError("no such operator")

    for other in (missing, lambda w, s, b: lambda v: real(w, s, b)(v) + 99):
        with monkeypatch.context() as patch:
            patch.setattr(devices, "_by_rows", other)
            patch.setattr(devices, "multiplies_rows", devices.multiplies_rows.__wrapped__)
            torch.testing.assert_close(Int8Linear(layer)(values), layer(values), atol=0.05, rtol=0)


def test_a_copy_in_int8_shares_all_else_and_leaves_the_model_alone() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(Body(nn.Embedding(9, 8), nn.Linear(8, 8)), nn.Linear(8, 8))
    ids = torch.arange(9)
    before = model(ids)
    narrow = in_int8(model)
    assert [type(one) for one in narrow[0]] == [nn.Embedding, Int8Linear]
    assert narrow[0][0].weight is model[0][0].weight
    assert type(narrow[1]) is nn.Linear and narrow[1].weight is model[1].weight
    assert type(model[0][1]) is nn.Linear and torch.equal(model(ids), before)
    torch.testing.assert_close(narrow(ids), before, atol=0.1, rtol=0)


def test_models_without_large_layers_have_no_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_LEAST", 2**16)
    with pytest.raises(SettingsError, match="large linear layers of an encoder"):
        in_int8(nn.Sequential(Body(nn.Linear(8, 8)), nn.Linear(400, 400), nn.LSTM(400, 400)))
