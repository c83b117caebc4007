"""Parameters that the loss depends on, that the model does not hold, and that nothing trains."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any
from weakref import ref

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import rangewatch
from rangewatch.wire.events import Unregistered, read
from tests.agent.ingest_double import IngestDouble

STEPS, WIDTH = 24, 12
X, Y = torch.randn(16, WIDTH), torch.randn(16, WIDTH)

Update = Callable[[nn.Module], None]


class Net(nn.Module):
    """`hidden`: what is in its plain attribute `parts`."""

    def __init__(self, hidden: Any = ()) -> None:
        super().__init__()
        self.embed, self.parts = nn.Linear(WIDTH, WIDTH), hidden

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for each in self.parts.values() if isinstance(self.parts, dict) else self.parts:
            h = h @ each if isinstance(each, nn.Parameter) else each(h.relu())
        return h


def train(
    ingest: IngestDouble, model: nn.Module, loss: Callable[[], Tensor], update: Callable[[], None] = lambda: None,
    **options: Any,
) -> list[Unregistered]:  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with rangewatch.attach(model, optimizer, url=ingest.url, **options):
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
            update()
    return [each for event in ingest.events("unregistered") if (each := read(Unregistered, event.data)) is not None]


def linear() -> nn.Linear:
    return nn.Linear(WIDTH, WIDTH)


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        ([linear(), linear()], ("parts[0].bias", "parts[0].weight", "parts[1].bias", "parts[1].weight")),
        ({"a": linear(), "b": nn.Sequential(linear())}, ("parts['a'].weight", "parts['b'].0.weight")),
        ((nn.Parameter(torch.eye(WIDTH)), nn.Parameter(torch.eye(WIDTH))), ("parts[0]", "parts[1]")),
    ],
    ids=["list", "dict", "parameters"],
)
def test_layers_in_a_plain_container(ingest: IngestDouble, parts: Any, names: tuple[str, ...]) -> None:
    model = Net(parts)
    (known,) = train(ingest, model, lambda: F.mse_loss(model(X), Y))
    assert known.is_inside and not known.is_alone and known.is_serial and known.first == 0
    assert set(names) <= set(known.names) and known.count == len(known.names) == len(known.shapes)


def test_where_the_collector_is_frozen_nobody_knows_who_has_what(
    ingest: IngestDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Net([linear(), linear()])
    every = gc.get_objects
    monkeypatch.setattr(gc, "get_objects", lambda: [each for each in every() if not isinstance(each, nn.Module)])
    assert train(ingest, model, lambda: F.mse_loss(model(X), Y)) == []


HEAD = linear()


@pytest.mark.parametrize("make", [linear, lambda: copy.deepcopy(HEAD)], ids=["fresh", "a copy"])
def test_a_head_of_each_task_that_inner_steps_adapt(ingest: IngestDouble, make: Callable[[], nn.Linear]) -> None:
    """In place, by gradients that nothing keeps."""
    body = linear()

    def loss() -> Tensor:
        head = make()
        for _ in range(5):
            inner = torch.autograd.grad(F.mse_loss(head(body(X).detach()), Y), list(head.parameters()))
            with torch.no_grad():
                for each, gradient in zip(head.parameters(), inner, strict=True):
                    each -= 0.1 * gradient
        return F.mse_loss(head(body(X)), Y)

    assert train(ingest, body, loss) == []


def test_a_long_list_beside_the_layers_is_no_hindrance(ingest: IngestDouble) -> None:
    model = Net([linear(), linear()])
    model.replay = [0] * 100_000  # type: ignore[assignment]
    (known,) = train(ingest, model, lambda: F.mse_loss(model(X), Y))
    assert known.is_inside and known.count == 4


def test_in_a_child_in_checkpoints_and_with_several_backwards(ingest: IngestDouble) -> None:
    inner = Net([linear(), linear()])
    model = nn.Sequential(linear(), inner)

    def loss() -> Tensor:
        F.mse_loss(model[0](X), Y).backward()
        return F.mse_loss(checkpoint(model, X, use_reentrant=False), Y)

    (known,) = train(ingest, model, loss)
    assert known.count == 4 and known.names[0].startswith("1.parts[0].")


@pytest.mark.parametrize("is_front", [False, True])
def test_a_head_or_an_embedding_beside_the_model(ingest: IngestDouble, is_front: bool) -> None:
    model, other = Net(), linear()
    (known,) = train(ingest, model, lambda: F.mse_loss(model(other(X)) if is_front else other(model(X)), Y))
    assert set(known.names) == {"Linear.weight", "Linear.bias"} and known.is_serial and known.is_fresh
    assert not known.is_inside and not known.is_anew and known.elements == WIDTH * WIDTH + WIDTH


@pytest.mark.parametrize("is_registered", [False, True])
def test_a_layer_made_in_forward(ingest: IngestDouble, is_registered: bool) -> None:
    model = Net()

    def loss() -> Tensor:
        made = linear()
        if is_registered:
            model.made = made
        return F.mse_loss(made(model(X)), Y)

    (known,) = train(ingest, model, loss)
    assert known.is_anew and known.count == 1 and known.shapes == ((WIDTH, WIDTH),)


def by_version(other: nn.Module) -> None:
    with torch.no_grad():
        for each in other.parameters():
            each -= torch.full_like(each, 0.01)


def by_data(other: nn.Module) -> None:
    for each in other.parameters():
        each.data -= 0.01


def by_new_data(other: nn.Module) -> None:
    for each in other.parameters():
        each.data = each.data * 0.99


@pytest.mark.parametrize("update", [by_version, by_data, by_new_data, nn.Module.zero_grad])
def test_what_somebody_updates_or_clears_by_hand(ingest: IngestDouble, update: Update) -> None:
    model, other = Net(), linear()
    assert train(ingest, model, lambda: F.mse_loss(other(model(X)), Y), lambda: update(other)) == []


def test_what_an_optimizer_has_that_has_not_stepped_yet(ingest: IngestDouble) -> None:
    """As of a GAN whose generator warms up."""
    model, other = Net(), nn.Sequential(linear(), nn.ReLU(), linear())
    optimizer = torch.optim.Adam(other.parameters())
    assert train(ingest, model, lambda: F.mse_loss(other(model(X)), Y)) == []
    assert len(optimizer.param_groups) == 1


def test_a_generator_and_its_discriminator(ingest: IngestDouble) -> None:
    model, other = Net(), nn.Sequential(linear(), nn.ReLU(), nn.Linear(WIDTH, 1))
    optimizer = torch.optim.Adam(other.parameters())

    def learn() -> None:
        optimizer.zero_grad()
        (other(model(X).detach()).mean() - other(Y).mean()).backward()
        optimizer.step()

    assert train(ingest, model, lambda: other(model(X)).mean(), learn) == []


def eval_only(other: nn.Module) -> nn.Module:
    return other.eval()


def trained_before(other: nn.Module) -> nn.Module:
    optimizer = torch.optim.Adam(other.parameters())
    for _ in range(16):
        other(X).mean().backward()
        optimizer.step()
    other.zero_grad()
    return other


@pytest.mark.parametrize("made", [eval_only, trained_before, lambda other: other.requires_grad_(False)])
@pytest.mark.parametrize("is_inside", [False, True])
def test_a_network_that_is_to_stay(ingest: IngestDouble, made: Callable[[Any], Any], is_inside: bool) -> None:
    other = made(linear())
    gc.collect()
    model = Net([other, made(linear())] if is_inside else ())
    assert train(ingest, model, lambda: F.mse_loss(model(X) if is_inside else other(model(X)), Y)) == []


def test_a_teacher_beside_the_model(ingest: IngestDouble) -> None:
    """Nobody wrote no_grad around it; the gradient of the model goes past it."""
    model, teacher = Net(), nn.Sequential(linear(), nn.ReLU(), linear())
    assert train(ingest, model, lambda: F.mse_loss(model(X), teacher(X))) == []


def test_a_network_hidden_on_purpose(ingest: IngestDouble) -> None:
    model = Net()
    model.__dict__["critic"] = critic = linear()
    assert train(ingest, model, lambda: F.mse_loss(critic(model(X)), Y)) == []


def test_a_network_alone_in_a_list(ingest: IngestDouble) -> None:
    model, other = Net(), linear()
    nn.init.orthogonal_(other.weight)
    model.__dict__["critic"] = [other]
    (known,) = train(ingest, model, lambda: F.mse_loss(other(model(X)), Y))
    assert known.is_inside and known.is_alone and not known.is_fresh


def test_learned_inputs(ingest: IngestDouble) -> None:
    model = Net()
    latent = torch.zeros_like(X, requires_grad=True)
    anew: Any = lambda: nn.Parameter(torch.rand(X.shape) * 0.1)  # noqa: E731 - as of adversarial training
    assert train(ingest, model, lambda: F.mse_loss(model(X + latent + anew()), Y)) == []


def test_an_inner_loop_and_functional_calls(ingest: IngestDouble) -> None:
    """A head that is made anew for each task, with inner steps of its own."""
    model = Net()

    def loss() -> Tensor:
        head = linear()
        weight: Tensor = head.weight
        bias: Tensor = head.bias
        features = model(X)
        for _ in range(2):
            grads = torch.autograd.grad(
                F.mse_loss(F.linear(features, weight, bias), Y), (weight, bias), create_graph=True
            )
            weight, bias = weight - 0.1 * grads[0], bias - 0.1 * grads[1]
        fast = {name: each * 1.0 for name, each in model.named_parameters()}
        more = torch.func.functional_call(model, fast, (X,))
        return F.mse_loss(F.linear(features, weight, bias), Y) + more.square().mean()

    assert train(ingest, model, loss) == []


def test_a_copy_that_is_trained_by_an_inner_optimizer(ingest: IngestDouble) -> None:
    model = Net()

    def loss() -> Tensor:
        head = copy.deepcopy(model.embed)
        inner = torch.optim.SGD(head.parameters(), lr=0.01)
        for _ in range(3):
            inner.zero_grad()
            F.mse_loss(head(model(X).detach()), Y).backward()
            inner.step()
        return F.mse_loss(head(model(X)), Y)

    assert train(ingest, model, loss) == []


@pytest.mark.parametrize("wrap", [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm])
def test_parametrizations_and_an_optimizer_of_its_own(ingest: IngestDouble, wrap: Callable[[Any], Any]) -> None:
    model = nn.Sequential(wrap(linear()), nn.ReLU(), linear())
    assert train(ingest, model, lambda: F.mse_loss(model(X), Y)) == []


def test_a_part_of_the_model_is_attached(ingest: IngestDouble) -> None:
    model = nn.Sequential(linear(), nn.ReLU(), linear())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with rangewatch.attach(model[0], optimizer, url=ingest.url):
        for _ in range(STEPS):
            optimizer.zero_grad()
            F.mse_loss(model(X), Y).backward()
            optimizer.step()
    assert ingest.events("unregistered") == []


def test_nothing_is_kept_alive(ingest: IngestDouble) -> None:
    model, others = Net(), [linear()]
    held = ref(others[0].weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with rangewatch.attach(model, optimizer, url=ingest.url):
        for _ in range(STEPS):
            optimizer.zero_grad()
            F.mse_loss(others[0](model(X)), Y).backward()
            optimizer.step()
        others.clear()
        gc.collect()
        assert held() is None
