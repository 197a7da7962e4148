"""What the server sees is what a client's autograd computes, and nothing it should not see."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

import gradleak
from gradleak import defenses
from gradleak.errors import InputError
from gradleak.leak import Gradients, Leak, head_inputs, observe, observe_heads
from gradleak.losses import BinaryCrossEntropy, CrossEntropy, Focal
from tests.auditing.networks import Net


def network(classes: int = 5, bias: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5)
    return nn.Sequential(*layers, nn.Linear(64, classes, bias=bias))


def batch(count: int = 3, classes: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(count, 1, 6, 6, generator=generator), torch.randint(classes, (count,), generator=generator)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_those_of_mean_cross_entropy(bias: bool, dtype: torch.dtype) -> None:
    model, (inputs, targets) = network(bias=bias).to(dtype), batch()
    inputs = inputs.to(dtype)
    leak = observe(model, inputs, targets)
    model.eval()
    F.cross_entropy(model(inputs), targets).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(leak.gradients[name], parameter.grad)
    assert (leak.head, leak.batch_size, leak.weight.dtype, leak.weight.requires_grad) == ("5", 3, dtype, False)
    assert leak.weight_gradient is leak.gradients["5.weight"]
    assert leak.bias_gradient is leak.gradients.get("5.bias")
    assert (leak.bias is None) == (not bias)


def test_eval_mode_is_used_and_the_mode_given_back() -> None:
    model, (inputs, targets) = network().train(), batch()
    model[1].eval()
    first, second = observe(model, inputs, targets), observe(model, inputs, targets)
    torch.testing.assert_close(first.weight_gradient, second.weight_gradient, rtol=0, atol=0)
    assert model.training
    assert not model[1].training
    assert model[4].training
    assert torch.equal(model[1].running_mean, torch.zeros(4))
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("end", [nn.Linear(8, 3), nn.Linear(8, 1)])
def test_hooks_change_the_gradients_that_a_client_sends_in_both_modes_and_all_steps(end: nn.Linear) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), end)
    model[0].weight.register_hook(lambda gradient: gradient.sign())
    model[0].bias.register_hook(lambda gradient: 2 * gradient)
    model[0].bias.requires_grad_(False)
    for mode in ("eval", "train"):
        sent = observe(model, torch.rand(2, 6), torch.tensor([0, 1]), mode=mode).gradients["0.weight"]
        assert set(sent.unique().tolist()) <= {-1, 0, 1}
    stepped = observe(model, torch.rand(2, 6), torch.tensor([0, 1]), local_steps=2).gradients["0.weight"]
    assert set(stepped.unique().tolist()) <= {-2, -1, 0, 1, 2}


def test_final_layer_is_found_by_what_it_does() -> None:
    class Shuffled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.final = nn.Linear(8, 3)
            self.first = nn.Linear(36, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.final(self.first(x.flatten(1)).relu())

    inputs, _ = batch()
    assert observe(Shuffled(), inputs, torch.tensor([0, 1, 2])).head == "final"
    with pytest.raises(InputError, match="does not end in a Linear layer"):
        observe(Shuffled(), inputs, torch.tensor([0, 1, 2]), head="first")
    with pytest.raises(InputError, match="no Linear layer named 'finale'; it has final, first"):
        observe(Shuffled(), inputs, torch.tensor([0, 1, 2]), head="finale")


def test_the_logits_may_be_the_last_layer_s_output_at_one_position_of_each_sample() -> None:
    torch.manual_seed(0)
    inputs, places = torch.randn(3, 5, 4), torch.tensor([4, 0, 2])
    layers = {"body": nn.Linear(4, 6), "head": nn.Linear(6, 3)}
    model = Net(lambda net, x: net.head(net.body(x).relu())[torch.arange(len(x)), places[: len(x)]], **layers)
    leak = observe(model, inputs, torch.tensor([0, 1, 2]))
    features, logits = head_inputs(model, inputs)
    assert leak.head == "head"
    assert torch.equal(features, model.body(inputs[range(3), places]).relu())
    assert torch.equal(logits, model(inputs))
    other = observe(nn.Sequential(layers["body"], nn.ReLU(), layers["head"]), inputs[range(3), places], torch.arange(3))
    torch.testing.assert_close(leak.weight_gradient, other.gradients["2.weight"])
    mean = Net(lambda net, x: net.head(net.body(x).relu()).mean(dim=1), **layers)
    with pytest.raises(InputError, match="does not end in a Linear layer"):
        observe(mean, inputs, torch.tensor([0, 1, 2]))


@settings(max_examples=25)
@given(
    count=st.integers(1, 7),
    classes=st.integers(2, 12),
    bias=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    chunk=st.integers(1, 4),
    seed=st.integers(0, 2**16),
)
def test_heads_equal_a_loop_over_single_samples(
    count: int, classes: int, bias: bool, dtype: torch.dtype, chunk: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    model = network(classes, bias).to(dtype)
    inputs = torch.rand(count, 1, 6, 6, generator=generator, dtype=dtype)
    targets = torch.rand(count, classes, generator=generator, dtype=torch.float64)
    targets = (targets / targets.sum(dim=1, keepdim=True)).to(dtype)
    heads = observe_heads(model, inputs, targets, chunk=chunk)
    for n in range(count):
        single = observe(model, inputs[n : n + 1], targets[n : n + 1])
        torch.testing.assert_close(heads.weight_gradients[n], single.weight_gradient, rtol=1e-4, atol=1e-6)
        if bias:
            assert heads.bias_gradients is not None
            torch.testing.assert_close(heads.bias_gradients[n], single.bias_gradient, rtol=1e-4, atol=1e-6)
    assert (heads.bias_gradients is None) == (heads.bias is None) == (not bias)
    torch.testing.assert_close(heads.weight, model[5].weight.detach())


def test_a_defence_of_each_tensor_by_itself_needs_the_head_alone() -> None:
    # In float64 no entry lies so near a threshold that the order of sums decides on which side.
    model, (inputs, targets) = network(bias=True).double(), batch(4)
    inputs = inputs.double()
    heads = observe_heads(model, inputs, targets, batch_size=2)
    for defense in (gradleak.defenses.grad_drop(0.5), gradleak.defenses.quantize(4), gradleak.defenses.sign()):
        sent = heads.defended(defense)
        for n in range(2):
            part = slice(2 * n, 2 * n + 2)
            whole = observe(model, inputs[part], targets[part], defense=defense)
            torch.testing.assert_close(sent.weight_gradients[n], whole.weight_gradient)
            assert sent.bias_gradients is not None
            torch.testing.assert_close(sent.bias_gradients[n], whole.bias_gradient)


def test_parallel_networks_leak_as_the_network_that_they_run() -> None:
    model, (inputs, targets) = network(), batch()
    expected, wrapped = observe(model, inputs, targets), nn.DataParallel(model)
    found = observe(wrapped, inputs, targets)
    assert found.model is model
    before = {name: value.clone() for name, value in wrapped.state_dict().items()}
    moves = {f"module.{name}": value for name, value in expected.gradients.items()}
    after = before | {name: before[name] - 0.5 * value for name, value in moves.items()}
    updated = Leak.from_update(wrapped, before, after, rate=0.5, batch_size=3)
    assert found.head == updated.head == expected.head
    for leak in (found, updated):
        torch.testing.assert_close(leak.gradients, expected.gradients)


def test_unused_and_frozen_parameters() -> None:
    model, (inputs, targets) = network(), batch()
    model.register_parameter("spare", nn.Parameter(torch.ones(2)))
    model[0].requires_grad_(False)
    gradients = observe(model, inputs, targets).gradients
    assert torch.equal(gradients["spare"], torch.zeros(2))
    assert "0.weight" not in gradients


def test_sequences_have_a_target_a_place() -> None:
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9))
    tokens, targets = torch.tensor([[1, 5, 6], [1, 7, 2]]), torch.tensor([[5, 6, 2], [7, 2, -100]])
    leak = observe(model, tokens, targets)
    loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), ignore_index=-100)
    for value, own in zip(leak.gradients.values(), torch.autograd.grad(loss, list(model.parameters())), strict=True):
        torch.testing.assert_close(value, own)
    assert (leak.head, leak.batch_size, leak.input_shape) == ("1", 2, (3,))
    flat = nn.Sequential(nn.Flatten(), nn.Linear(3, 9))
    with pytest.raises(InputError, match="one feature vector for each sample"):
        observe_heads(model, tokens, targets)
    with pytest.raises(InputError, match=r"class indices \(N,\)"):
        observe(flat, tokens.float(), targets)


# ----------------------------------------------------------------------------------------------------- an update's leak
def trained(
    model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, steps: int, **options: float
) -> dict[str, torch.Tensor]:
    """Return the state dict that a client sends back after its own steps of torch's SGD."""
    client = copy.deepcopy(model).eval()
    optimiser = torch.optim.SGD(client.parameters(), **options)
    for some, wanted in zip(inputs.chunk(steps), targets.chunk(steps), strict=True):
        optimiser.zero_grad()
        F.cross_entropy(client(some), wanted).backward()
        optimiser.step()
    return client.state_dict()


@pytest.mark.parametrize("steps", [1, 3])
def test_an_update_is_the_sum_of_its_steps(steps: int) -> None:
    model, (inputs, targets) = network(bias=True).double(), batch(6)
    inputs = inputs.double()
    after = trained(model, inputs, targets, steps, lr=0.05)
    seen = Leak.from_update(model, model.state_dict(), after, rate=0.05, batch_size=6 // steps, local_steps=steps)
    assert (seen.model is not model, seen.model.training, model.training) == (True, False, True)
    wanted = observe(model, inputs, targets, local_steps=steps, rate=0.05)
    assert (seen.head, seen.batch_size, seen.local_steps) == (wanted.head, wanted.batch_size, steps)
    for name, gradient in wanted.gradients.items():
        torch.testing.assert_close(seen.gradients[name], gradient, rtol=1e-9, atol=1e-12)


def test_momentum_and_weight_decay_are_taken_off() -> None:
    model, (inputs, targets) = network(bias=True).double(), batch(1)
    inputs = inputs.double()
    before, wanted = model.state_dict(), observe(model, inputs, targets).gradients
    after = trained(model, inputs, targets, 1, lr=0.05, weight_decay=0.1)
    seen = Leak.from_update(model, before, after, rate=0.05, batch_size=1, weight_decay=0.1)
    for name, gradient in wanted.items():
        torch.testing.assert_close(seen.gradients[name], gradient, rtol=1e-9, atol=1e-12)
    # Of a path so short that its gradients are all alike: four times the same one.
    again, labels = inputs.expand(4, -1, -1, -1), targets.expand(4)
    options = {"lr": 1e-6, "momentum": 0.9, "weight_decay": 0.1}
    after = trained(model, again, labels, 4, **options)
    plain = Leak.from_update(model, before, after, rate=1e-6, batch_size=1, local_steps=4)
    told = Leak.from_update(
        model, before, after, rate=1e-6, batch_size=1, local_steps=4, momentum=0.9, weight_decay=0.1
    )
    size = torch.linalg.vector_norm(wanted["5.weight"])
    assert torch.linalg.vector_norm(told.weight_gradient - 4 * wanted["5.weight"]) < 1e-3 * size
    assert torch.linalg.vector_norm(plain.weight_gradient - 4 * wanted["5.weight"]) > size


# ------------------------------------------------------------------------------------------------------------- losses
@pytest.mark.parametrize(
    "loss", [CrossEntropy(), CrossEntropy(0.8), CrossEntropy(1.2), Focal(), Focal(0.5, 1.0, 1.2), BinaryCrossEntropy()]
)
def test_slopes_are_as_steep_as_each_loss_says(loss: CrossEntropy | Focal | BinaryCrossEntropy) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = F.one_hot(torch.randint(4, (6,), generator=generator), 4).double()
    (slopes,) = torch.autograd.grad(loss(logits, labels).sum(), [logits])
    probabilities = loss.probabilities(logits.detach())
    own = (labels * probabilities).sum(dim=1, keepdim=True)
    torch.testing.assert_close(slopes, loss.weight(own) * (probabilities - labels))


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("label", [0, 1])
def test_a_focal_loss_has_a_slope_where_the_network_is_sure(gamma: float, label: int) -> None:
    logits = torch.tensor([[200.0, 0.0, -1.0]], requires_grad=True)
    labels = F.one_hot(torch.tensor([label]), 3).float()
    loss = Focal(gamma=gamma)
    (slopes,) = torch.autograd.grad(loss(logits, labels).sum(), [logits])
    torch.testing.assert_close(slopes, logits.detach().softmax(dim=1) - labels)


class LogProbabilities(nn.Module):
    """A network that returns log-probabilities, as the loss of negative log-likelihood takes them."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return F.log_softmax(self.network(inputs), dim=1)


def test_log_probabilities_leak_what_logits_leak() -> None:
    inputs, targets = batch()
    logits, other = observe(network(), inputs, targets), observe(LogProbabilities(), inputs, targets)
    assert other.head == "network.5"
    for name, value in logits.gradients.items():
        torch.testing.assert_close(other.gradients[f"network.{name}"], value)


ENDS: dict[str, list[nn.Module]] = {
    "output": [],
    "output of another shape": [Net(lambda _, z: z.squeeze(-1))],
    "sigmoid": [nn.Sigmoid()],
    "sigmoid of another shape": [Net(lambda _, z: torch.sigmoid(z).view(-1))],
}


def binary_loss(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, end: str) -> torch.Tensor:
    loss = F.binary_cross_entropy if "sigmoid" in end else F.binary_cross_entropy_with_logits
    return loss(model(inputs).flatten(), targets)


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
@pytest.mark.parametrize("kind", [torch.long, torch.float32])
@pytest.mark.parametrize("end", ENDS)
def test_a_single_output_leaks_as_two_classes(shape: tuple[int, ...], kind: torch.dtype, end: str) -> None:
    (inputs, _), targets = batch(4), torch.tensor([0, 1, 1, 0])
    model = nn.Sequential(*network(1, bias=True), *ENDS[end])
    leak = observe(model, inputs, targets.to(kind).reshape(shape), loss=BinaryCrossEntropy())
    model.eval()
    binary_loss(model, inputs, targets.float(), end).backward()
    for name, parameter in model.named_parameters():
        sent = leak.gradients[name]
        if name.startswith("5."):
            torch.testing.assert_close(sent[:1], -sent[1:])
            sent = sent[1:]
        torch.testing.assert_close(sent, parameter.grad)
    assert (leak.single, observe(network(2), inputs, targets).single) == (True, False)
    assert torch.equal(observe(model, inputs, targets).weight_gradient, leak.weight_gradient)
    # The leak's network is copied, and run, as any other.
    torch.testing.assert_close(copy.deepcopy(leak.model).eval()(inputs), F.pad(model[:6](inputs), (1, 0)))


def test_a_defence_changes_the_one_row_that_a_client_with_a_single_output_has() -> None:
    inputs, model = batch(4)[0], network(1, bias=True)
    noisy = defenses.gaussian(0.1, torch.Generator().manual_seed(0))
    seen: dict[str, torch.Size] = {}

    def watched(gradients: Gradients) -> Gradients:
        seen.update({name: value.shape for name, value in gradients.items()})
        return noisy(gradients)

    leak = observe(model, inputs, torch.tensor([0, 1, 1, 0]), defense=watched)
    assert seen == {name: value.shape for name, value in model.named_parameters()}
    for value in (leak.weight_gradient, leak.bias_gradient):
        assert torch.equal(value[0], -value[1])


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("end", ["output", "sigmoid"])
def test_the_update_of_a_single_output_is_that_of_two_classes(end: str, steps: int) -> None:
    torch.manual_seed(0)
    inputs, targets = batch(4)[0].flatten(1).double(), torch.tensor([0.0, 1.0, 1.0, 0.0]).double()
    for body in ([nn.Linear(36, 1)], [nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 1, bias=False)]):
        before = nn.Sequential(*body, *ENDS[end]).double()
        after = copy.deepcopy(before)
        optimiser = torch.optim.SGD(after.parameters(), lr=0.5)
        for some, wanted in zip(inputs.chunk(steps), targets.chunk(steps), strict=True):
            optimiser.zero_grad()
            binary_loss(after, some, wanted, end).backward()
            optimiser.step()
        options = {"rate": 0.5, "local_steps": steps}
        states = before.state_dict(), after.state_dict()
        found = Leak.from_update(before, *states, **options, batch_size=4 // steps, input_shape=(36,))
        expected = observe(before, inputs, targets, **options)
        for name, value in expected.gradients.items():
            torch.testing.assert_close(found.gradients[name], value, atol=1e-12, rtol=1e-9)
        moved = {name: value - 0.5 * found.moves[name] for name, value in found.model.named_parameters()}
        outputs = after[: len(body)](inputs)
        torch.testing.assert_close(functional_call(found.model, moved, (inputs,)), F.pad(outputs, (1, 0)))
        report = gradleak.audit_update(found, inputs=inputs, targets=targets, loss=BinaryCrossEntropy(), steps=2)
        assert report.notes[0].startswith("the single output z is audited as two classes")
        assert (report.settings["loss"], report.broken) == (str(CrossEntropy()), [])
        assert steps > 1 or "labels" in report.measured


@pytest.mark.parametrize("targets", [torch.tensor([0.0, 1.5, 1.0]), torch.tensor([0, 1, 2]), torch.rand(3, 4)])
def test_a_single_output_that_is_no_probability_is_refused(targets: torch.Tensor) -> None:
    with pytest.raises(InputError, match="single output has targets that are 0, 1 or between"):
        observe(network(1), batch()[0], targets)


def test_a_single_output_near_zero_is_recognised() -> None:
    for seed in range(10):
        torch.manual_seed(seed)
        model, inputs = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 1)), torch.randn(3, 64)
        with torch.no_grad():
            model[2].bias -= model(inputs)[0]
        assert observe(model, inputs, torch.tensor([0, 1, 1])).single


def test_a_single_output_may_be_that_at_the_last_position() -> None:
    torch.manual_seed(0)
    model = Net(lambda net, x: net.head(net.body(x))[:, -1], body=nn.Embedding(9, 6), head=nn.Linear(6, 1))
    tokens, targets = torch.randint(9, (3, 5)), torch.tensor([0, 1, 1])
    leak = observe(model, tokens, targets)
    torch.testing.assert_close(leak.model(tokens), F.pad(model(tokens), (1, 0)))
    after = trained(leak.model, tokens, targets, 1, lr=0.1)
    single = model.state_dict() | {name: after[name][1:] for name in ("head.weight", "head.bias")}
    single["body.weight"] = after["body.weight"]
    update = Leak.from_update(model, model.state_dict(), single, rate=0.1, batch_size=3, input_shape=(5,))
    torch.testing.assert_close(update.weight_gradient, leak.weight_gradient, atol=1e-5, rtol=1e-4)
    assert (leak.single, update.single) == (True, True)


@pytest.mark.parametrize("scale", [2.0, -1.0])
def test_a_single_output_is_the_last_layer_s_or_its_sigmoid(scale: float) -> None:
    model = nn.Sequential(network(1), Net(lambda _, z: torch.sigmoid(scale * z)))
    with pytest.raises(InputError, match=r"neither the output z \(B, 1\) of the Linear layer '0.5' nor its sigmoid"):
        observe(model, batch()[0], torch.tensor([0, 1, 1]))


def test_several_labels_of_one_sample_are_refused() -> None:
    inputs, targets = batch()[0], torch.tensor([[1.0, 1, 0], [0, 0, 0], [0, 1, 0]])
    with pytest.raises(InputError, match="the sigmoid of each output of '5', as for several labels"):
        observe(nn.Sequential(*network(3), nn.Sigmoid()), inputs, targets)
    with pytest.raises(InputError, match="several labels of one sample are not supported"):
        observe(network(3), inputs, targets, loss=BinaryCrossEntropy())


def test_a_last_convolution_is_refused_with_the_layers_that_replace_it() -> None:
    torch.manual_seed(0)
    images, targets = torch.rand(3, 1, 6, 6), torch.arange(3)
    body, last = [nn.Conv2d(1, 8, 3), nn.ReLU()], nn.Conv2d(8, 5, 1)
    model = nn.Sequential(*body, last, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    squeezed = Net(lambda net, x: net.end(x.mean(dim=1).unsqueeze(1)), first=nn.Linear(6, 6), end=model)
    for refused in (model, squeezed):
        with pytest.raises(
            InputError, match=r"2' and an average .* AdaptiveAvgPool2d\(1\), Flatten and Linear\(8, 5\)"
        ):
            observe(refused, images, targets)
    linear = nn.Linear(8, 5)
    linear.load_state_dict(
        {name: value.flatten(1) if value.ndim > 1 else value for name, value in last.state_dict().items()}
    )
    other = nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), linear)
    torch.testing.assert_close(other(images), model(images))
    assert observe(other, images, targets).head == "4"
