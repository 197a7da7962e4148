"""Define the attacks to test, each on clients with random sizes, networks, labels and precisions."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import augment, defenses, metrics
from gradleak.data.speech import pseudo_speech
from gradleak.errors import GradleakError
from gradleak.hunting.broken import BROKEN, Broken, options
from gradleak.hunting.outcomes import Answer, answer
from gradleak.images import (
    certify_features,
    invert_units,
    peel,
    trace_convolutional,
    trace_fully_connected,
    trace_transformer,
    unmix_features,
)
from gradleak.images.inversion.fully_connected import SURE as EXACT
from gradleak.images.inversion.fully_connected import Inversion, Rule
from gradleak.images.peeling.attack import SURE as PEELED
from gradleak.labels import (
    PRIORS,
    BatchLabels,
    SoftLabels,
    count_labels,
    recover_batch,
    recover_jointly,
    recover_soft_labels,
    reveal_labels,
)
from gradleak.labels.priors import KNOWN, Score
from gradleak.labels.soft.explanations import KNOWN_FEATURE
from gradleak.leak import Leak, observe
from gradleak.losses import PADDING
from gradleak.models.language import batch_of, build_language_model
from gradleak.models.recogniser import END, Recogniser, Size
from gradleak.models.transformer import Positions, VisionTransformer
from gradleak.sequences import observe_speech, read_output, read_sentences, read_sharing, read_transcripts
from gradleak.wording import counted, label_kind

T = TypeVar("T")

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "ReLU": nn.ReLU,
    "LeakyReLU": lambda: nn.LeakyReLU(0.2),
    "ELU": nn.ELU,
    "Sigmoid": nn.Sigmoid,
    "Tanh": nn.Tanh,
}
# A convolutional chain with ReLU cannot be inverted.
SMOOTH = tuple(name for name in ACTIVATIONS if name != "ReLU")
KINDS = ("smoothing", "onehot", "mixup")
# Priors that are functions, by the kind of label that each of them allows.
SCORES: dict[str, Score] = {
    "one entry zero": lambda labels: labels.abs().amin(dim=-1),
    "two entries equal": lambda labels: labels.sort(dim=-1).values.diff(dim=-1).amin(dim=-1),
    "two entries zero": lambda labels: labels.square().sort(dim=-1).values[..., :2].sum(dim=-1),
    "an entry above one half": lambda labels: (0.5 - labels.amax(dim=-1)).clamp(min=0),
}
# The options of the attack on single labels, in words.
VARIANTS = {
    "plain": "default options",
    "scale": "gradient scale unknown",
    "proof": "certified by proof",
    "bias": "with the bias's gradient if there is a bias",
}
# The number of single samples that share a last layer.
TOGETHER = 20
# The largest number of starts for each family of labels if an assumption is broken; usual are 40. A search without a
# solution uses all of its starts.
STARTS = 8
# The number of steps of the search for images that give a peeled map.
STEPS = 200
# The ranges of random batch norms.
NORM = {"weight": (0.5, 1.5), "bias": (-0.3, 0.3), "running_mean": (-0.3, 0.3), "running_var": (0.5, 1.5)}
# The largest vocabulary of a language model or a recogniser.
WORDS = 40
# The number of prefixes at which the search for sentences gives up; usual are 4000, which can take seconds.
PREFIXES = 1000


class Draw:
    """Random choices from a seed, equal on every machine."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.generator = torch.Generator().manual_seed(seed)

    def of(self, choices: Sequence[T]) -> T:
        """Return a random choice."""
        return choices[int(torch.randint(len(choices), (1,), generator=self.generator))]

    def number(self, low: int, high: int) -> int:
        """Return a random integer from `low` to `high`, both included."""
        return low + int(torch.randint(high - low + 1, (1,), generator=self.generator))

    def chance(self) -> float:
        """Return a random number between 0 and 1."""
        return float(torch.rand(1, generator=self.generator))

    def inputs(self, *shape: int) -> Tensor:
        """Return random inputs in float64, either all positive or of both signs."""
        draw = torch.rand if self.chance() < 0.5 else torch.randn
        return draw(shape, generator=self.generator, dtype=torch.float64)

    def network(self, build: Callable[[], nn.Module]) -> nn.Module:
        """Return a network with random weights in float32 or float64, in eval mode."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.number(0, 2**31 - 1))
            return build().eval().to(self.of((torch.float32, torch.float64)))

    def noise(self) -> float:
        """Return the standard deviation of noise that the attacker knows: none, or from 1e-9 to 1e-2."""
        level = 10 ** (-9 + 7 * self.chance())
        return level if self.chance() < 0.5 else 0.0

    def noisy(self, gradient: Tensor, noise: float) -> Tensor:
        """Return a gradient with normal noise."""
        draws = torch.randn(gradient.shape, generator=self.generator, dtype=torch.float64)
        return gradient + noise * draws.to(gradient)

    def labels(
        self, kind: str, count: int, classes: int, *, apart: bool = False, likely: Tensor | None = None
    ) -> Tensor:
        """Return labels (N, C) of one kind in float64.

        With `apart`, no two samples have the same main class. With `likely` (N,), these are the main classes.
        """
        order = torch.randperm(classes, generator=self.generator)
        first = order[:count] if apart else torch.randint(classes, (count,), generator=self.generator)
        first = first if likely is None else likely
        if kind in SCORES:
            return self._scored(kind, first, classes)
        share = torch.rand(count, generator=self.generator, dtype=torch.float64)
        if kind == "smoothing":
            return augment.smooth(first, classes, share / 2)
        hot = augment.one_hot(first, classes).double()
        if kind == "onehot":
            return hot
        second = (first + torch.randint(1, classes, (count,), generator=self.generator)) % classes
        return share[:, None] * hot + (1 - share[:, None]) * augment.one_hot(second, classes).double()

    def _scored(self, kind: str, first: Tensor, classes: int) -> Tensor:
        """Return labels (N, C) that a function allows."""
        label = 0.02 + torch.rand(len(first), classes, generator=self.generator, dtype=torch.float64)
        others = (first[:, None] + torch.arange(1, 3)) % classes
        if kind == "an entry above one half":
            label.scatter_(1, first[:, None], 1.2 * classes)
        elif kind == "two entries equal":
            label.scatter_(1, others[:, :1], label.gather(1, others[:, 1:]))
        else:
            label.scatter_(1, others[:, : 1 + (kind == "two entries zero")], 0.0)
        return label / label.sum(dim=1, keepdim=True)


@dataclass(frozen=True)
class Client:
    """A client with a random network: its leak, its true inputs and labels, and the attacker's prior."""

    leak: Leak
    inputs: Tensor
    labels: Tensor
    prior: str
    setting: str


def _client(
    draw: Draw,
    broken: Broken,
    model: nn.Module,
    inputs: Tensor,
    kind: str,
    *,
    apart: bool = False,
    confident: bool = False,
) -> Client:
    """Return a client with this network, these inputs and this kind of label, in the network's precision.

    With `confident`, the main classes of its labels are those that the network predicts.
    """
    dtype = next(model.parameters()).dtype
    with torch.no_grad():
        scores = model(inputs.to(dtype))
    classes = scores.shape[1]
    labels = draw.labels(kind, len(inputs), classes, apart=apart, likely=scores.argmax(dim=1) if confident else None)

    def look(own: nn.Module) -> Leak:
        return observe(own, inputs.to(dtype), labels.to(dtype), **options(broken))

    leak = broken.sent(look, model, draw.generator)
    sides = " × ".join(map(str, inputs.shape[1:]))
    each = f"{sides} inputs each" if inputs.ndim == 2 else f"inputs of {sides}"
    setting = (
        f"batch of {len(inputs)}, {each}, {classes} classes, {label_kind(kind)}, {str(dtype).removeprefix('torch.')}"
    )
    return Client(leak, inputs, labels, broken.prior or kind, setting)


# ------------------------------------------------------------------------------------------------------------- labels
def _labels(draw: Draw, broken: Broken) -> list[Answer]:
    """Return the outcomes for single samples that share a random last layer."""
    kind, classes = draw.of((*KINDS, *KINDS, *SCORES)), draw.of((2, 3, 4, 5, 10, 30, 100))
    if classes < (5 if kind in SCORES else PRIORS[kind].free + 2):
        kind = "onehot" if classes == 2 else "smoothing"
    width, bias = draw.of((1, 2, 3, 5, 8, 64, 256)), draw.chance() < 0.4
    spread, confident, noise = 10 ** (4.5 * draw.chance() - 2), draw.chance() < 0.4, draw.noise()
    model = draw.network(lambda: nn.Linear(width, classes, bias=bias))
    model.get_parameter("weight").data.mul_(spread * math.sqrt(3))
    clients = [
        _client(own, broken, model, draw.inputs(1, width).abs(), kind, confident=confident) for own in _draws(draw)
    ]
    gradients = torch.stack([client.leak.weight_gradient for client in clients])
    leak, prior = clients[0].leak, clients[0].prior
    known: dict[str, Any] = {"prior": SCORES.get(prior, prior), "bias": leak.bias, "noise": noise}
    variant = draw.of(("plain", "plain", "scale", "proof", "bias", "bias"))
    variant = "plain" if kind in SCORES and variant in ("scale", "proof") else variant
    if variant == "bias" and bias:
        errors = torch.stack([client.leak.gradients["bias"] for client in clients])
        known["bias_gradient"] = draw.noisy(errors, noise)
        known["prior"] = None if draw.chance() < 0.3 else known["prior"]
    elif variant in ("scale", "proof"):
        known |= {"scale": None} if variant == "scale" else {"certify": "proof"}
    result = recover_soft_labels(draw.noisy(gradients, noise), leak.weight, **known)
    sizes = f"{classes} classes, {counted(width, 'feature')}"
    setting = f"{sizes}, {label_kind(kind)}, {VARIANTS[variant]}, logits with SD {spread:.2g}"
    setting += f", known noise of {noise:.0e}" if noise else ""
    return _of_singles(result, [(one.labels[0], one.inputs[0]) for one in clients], setting)


def _certain(draw: Draw, broken: Broken) -> list[Answer]:
    """Return the outcomes for single samples with one large feature, whose gradients have an unknown scale.

    The softmax is then so sure of one class that only faint differences of the others determine the label.
    """
    kind, classes = draw.of(("smoothing", *KINDS)), draw.of((5, 6, 8, 10, 20))
    width, alike = classes + draw.number(0, 20), draw.chance() < 0.7
    model = draw.network(lambda: nn.Linear(width, classes, bias=False))
    if alike:
        nn.init.eye_(model.get_parameter("weight"))
    clients = []
    for own in _draws(draw):
        inputs = torch.rand(1, width, generator=own.generator, dtype=torch.float64)
        inputs[0, own.number(0, classes - 1)] = 5 + 55 * own.chance()
        clients.append(_client(own, broken, model, inputs, kind, confident=own.chance() < 0.5))
    scale = 10 ** (6 * draw.chance() - 3)
    gradients = scale * torch.stack([client.leak.weight_gradient for client in clients])
    result = recover_soft_labels(gradients, clients[0].leak.weight, prior=clients[0].prior, scale=None)
    rows = "one class each" if alike else "random"
    setting = f"{classes} classes, {counted(width, 'feature')}, {label_kind(kind)}, {rows}"
    return _of_singles(result, [(one.labels[0], one.inputs[0]) for one in clients], setting)


def _draws(draw: Draw) -> list[Draw]:
    """Return the random choices of each single sample that shares a last layer with others."""
    return [Draw(draw.seed + 7919 * (index + 1)) for index in range(TOGETHER)]


def _of_label(status: str, error: float, apart: float, bound: float, setting: str) -> Answer:
    """Return the outcome for a label, whose certificate promises a feature as well.

    `apart`: the relative error of the feature; `bound`: the attack's bound on the label's error.
    """
    if status == "unique" and not apart <= KNOWN_FEATURE:
        error = max(error, apart)
    return answer(status, error, KNOWN, max(KNOWN, bound), setting)


def _of_singles(result: SoftLabels, truth: Sequence[tuple[Tensor, Tensor]], setting: str) -> list[Answer]:
    """Return the outcomes for single samples, given each true label (C,) and feature (I,)."""
    answers = []
    for index, (label, feature) in enumerate(truth):
        status, error = result.status[index], float((result.labels[index] - label).abs().sum())
        if status == "ambiguous":
            error = min([error, *(float((one - label).abs().sum()) for one in result.candidates[index])])
        apart = float((result.features[index] - feature).norm() / feature.norm())
        answers.append(_of_label(status, error, apart, float(result.open[index]), setting))
    return answers


def _apart(found: Tensor, truth: Tensor) -> float:
    """Return the largest L1 distance of a true label (B, C) from the nearest label that was found."""
    return float(torch.cdist(found.nan_to_num(nan=9.0), truth, p=1).amin(dim=0).max())


def _batches(draw: Draw, broken: Broken) -> list[Answer]:
    """Return the outcome for one batch at a random last layer."""
    kind, classes, width = draw.of(KINDS), draw.of((6, 8, 20, 50)), draw.of((4, 16, 64))
    size = draw.number(2, 4 if kind != "mixup" else 2)
    model = draw.network(lambda: nn.Linear(width, classes, bias=draw.chance() < 0.5))
    noise, confident = draw.noise(), draw.chance() < 0.2
    model.get_parameter("weight").data.mul_(10 ** (2.5 * draw.chance() - 1))
    client = _client(draw, broken, model, draw.inputs(size, width).abs(), kind, confident=confident)
    leak = client.leak
    result = recover_batch(
        draw.noisy(leak.weight_gradient, noise), leak.weight, batch_size=leak.batch_size, prior=client.prior,
        bias=leak.bias, bias_gradient=None if leak.bias_gradient is None else draw.noisy(leak.bias_gradient, noise),
        noise=noise, seed=draw.seed, rounds=40 if broken == BROKEN["none"] else STARTS,
    )  # fmt: skip
    return [_of_batch(result, replace(client, setting=client.setting + f", known noise of {noise:.0e}" * (noise > 0)))]


def _of_batch(result: BatchLabels, one: Client) -> Answer:
    apart = _relative(result.features, one.inputs) if result.status == "unique" else 0.0
    return _of_label(result.status, _apart(result.labels, one.labels), apart, float(result.open.max()), one.setting)


def _joint(draw: Draw, broken: Broken) -> list[Answer]:
    """Return the outcome for a batch with about as many samples as classes."""
    kind, classes, width = draw.of(("smoothing", "onehot")), draw.of((4, 5, 6)), draw.of((4, 8, 32))
    size = draw.number(2, classes - 2)
    model = draw.network(lambda: nn.Linear(width, classes, bias=False))
    model.get_parameter("weight").data.mul_(10 ** (2 * draw.chance() - 1))
    client = _client(draw, broken, model, draw.inputs(size, width).abs(), kind)
    result = recover_jointly(
        client.leak.weight_gradient, client.leak.weight, batch_size=client.leak.batch_size, prior=client.prior,
        seed=draw.seed, starts=16, multisets=40,
    )  # fmt: skip
    return [_of_batch(result, client)]


def _counts(draw: Draw, broken: Broken) -> list[Answer]:
    """Return the outcome for the set of classes in a batch, or for their counts."""
    classes, width, size = draw.of((2, 3, 4, 5, 10, 40)), draw.of((1, 2, 5, 8, 16, 64)), draw.number(1, 6)
    model = draw.network(lambda: nn.Linear(width, classes, bias=draw.chance() < 0.5))
    client = _client(draw, broken, model, draw.inputs(size, width).abs(), "onehot")
    truth = client.labels.sum(dim=0).long()
    method = draw.of(("classes", "idlg", "gradinversion", "row sums", "llg", "llg*", "ilrg", "rlg"))
    if method == "classes":
        right = reveal_labels(client.leak.weight_gradient) == set(truth.nonzero()[:, 0].tolist())
    else:
        right = torch.equal(count_labels(client.leak, method, seed=draw.seed), truth)
    return [answer("counted", 0.0 if right else math.inf, setting=f"{method}, {client.setting}")]


def _features(draw: Draw, broken: Broken) -> list[Answer]:
    """Return the outcomes for proposed features of a batch: true, slightly mixed, or unmixed by FastICA."""
    kind, classes, width = draw.of(("smoothing", "onehot")), draw.of((4, 5, 8, 12, 20)), draw.of((8, 60))
    size = draw.number(2, min(4, classes - 1))
    model = draw.network(lambda: nn.Linear(width, classes, bias=draw.chance() < 0.5))
    model.get_parameter("weight").data.mul_(10 ** (2 * draw.chance() - 0.5))
    client = _client(draw, broken, model, draw.inputs(size, width).abs() ** 3, kind, apart=draw.chance() < 0.7)
    variant = draw.of(("true", "mixed", "unmixed"))
    proposed = client.inputs
    if variant == "mixed":
        share = 10 ** (-6 * draw.chance())
        proposed = torch.cat([client.inputs[:1] + share * client.inputs[1:2], client.inputs[1:]])
    if variant == "unmixed":
        proposed = unmix_features(client.leak.weight_gradient, client.leak.batch_size, seed=draw.seed)
    result = certify_features(
        client.leak.weight_gradient, client.leak.weight, proposed, bias=client.leak.bias, prior=client.prior
    )  # fmt: skip
    errors = torch.cdist(result.labels.nan_to_num(nan=9.0), client.labels, p=1).amin(dim=1)
    apart = [
        min(float((feature - truth).norm() / truth.norm()) for truth in client.inputs) for feature in result.features
    ]
    return [
        _of_label(*own, f"{variant}, {client.setting}")
        for own in zip(result.status, errors.tolist(), apart, result.open.tolist(), strict=True)
    ]


# ------------------------------------------------------------------------------------------------------------- images
def _relative(found: Tensor, truth: Tensor) -> float:
    """Return the largest relative error of a sample, after matching found and true samples."""
    found = found.flatten(1)
    if not found.isfinite().all() or len(found) != len(truth):
        return math.inf
    expected = truth.flatten(1)
    return float(((found[metrics.match_batch(found, expected)] - expected).norm(dim=1) / expected.norm(dim=1)).max())


def _told(draw: Draw, client: Client) -> tuple[Client, float]:
    """Return a client with noise in its gradient, and this noise, which the client states; in half of all cases 0."""
    if draw.chance() < 0.5:
        return client, 0.0
    deviation = 10 ** (-9 + 7 * draw.chance())
    noisy = defenses.gaussian(deviation, draw.generator)
    leak = replace(client.leak, gradients=noisy(client.leak.gradients))
    return replace(client, leak=leak, setting=f"{client.setting}, noise of {deviation:.0e} stated"), deviation


def _promised(limit: float, claimed: float, broken: Broken) -> float:
    """Return the error that a certificate promises. An attack's own estimate holds only if all assumptions do."""
    return min(limit, claimed) if broken is BROKEN["none"] else limit


def _of_inversion(found: Inversion, truth: Tensor, setting: str, broken: Broken) -> Answer:
    """Return the outcome of an inversion."""
    promised = _promised(EXACT, found.claimed, broken)
    return answer(found.status, _relative(found.inputs, truth), promised, max(EXACT, found.claimed), setting)


def _scaled(draw: Draw, model: nn.Module) -> nn.Module:
    """Return a network whose layers are multiplied by random factors in a third of all cases."""
    if draw.chance() < 0.3:
        for parameter in model.parameters():
            parameter.data.mul_(10 ** (2 * draw.chance() - 0.5))
    return model


def _connected(draw: Draw, broken: Broken) -> list[Answer]:
    """Return the outcome for the inversion of a fully connected network, which may be too narrow for the batch."""
    size, kind = draw.of((1, 1, 2, 4)), draw.of(KINDS[:2])
    rule: Rule = draw.of(("least-squares", "least-squares", "mean")) if size == 1 else "least-squares"
    activation, width = draw.of(tuple(ACTIVATIONS)), draw.of((1, 2, 3, 6, 20, 64))
    classes = draw.of(tuple(count for count in (3, 4, 5, 10, 40) if count > size + 1))
    hidden = draw.of(((1, 2, 3, 4, 8), (16, 60, 100)))
    widths = [width, *(draw.of(hidden) for _ in range(draw.number(int(broken != BROKEN["none"]), 3))), classes]
    bias = draw.chance() < 0.5 and rule != "mean"

    def build() -> nn.Module:
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(widths):
            layers += [nn.Linear(inputs, outputs, bias=bias), ACTIVATIONS[activation]()]
        return nn.Sequential(*layers[:-1])

    model = _scaled(draw, draw.network(build))
    client = _client(draw, broken, model, draw.inputs(size, width), kind, apart=True)
    labels = client.labels if draw.chance() < 0.3 and size == client.leak.batch_size and rule != "mean" else None
    client, noise = (client, 0.0) if rule == "mean" else _told(draw, client)
    found = trace_fully_connected(client.leak, labels, prior=client.prior, rule=rule, noise=noise)
    return [_of_inversion(found, client.inputs, client.setting, broken)]


def _units(draw: Draw, broken: Broken) -> list[Answer]:
    """Return the outcome for the samples that units of a first layer show, on networks whose mixtures may agree."""
    size, width, hidden = draw.of((1, 2, 2, 3, 4, 8)), draw.of((1, 3, 8, 30, 64)), draw.of((4, 16, 60, 150))
    classes, between = draw.of((2, 3, 3, 5, 10, 20)), draw.of((0, 0, 0, 1, 2, 20))
    activation = draw.of(("ReLU", "ReLU", "ReLU", "ReLU", *SMOOTH))

    def build() -> nn.Module:
        rest: list[nn.Module] = [nn.Linear(between, classes)] if between else []
        layers = [nn.Linear(width, hidden), ACTIVATIONS[activation](), nn.Linear(hidden, between or classes)]
        return nn.Sequential(*layers, *([nn.ReLU()] if between else []), *rest)

    model = _scaled(draw, draw.network(build))
    variant = draw.of(("plain", "plain", "alike units", "alike samples", "equal samples"))
    inputs = draw.inputs(size, width)
    if variant == "alike units":
        # Units in pairs have equal weights, and equal slopes behind them.
        for name, dim in (("0.weight", 0), ("0.bias", 0), ("2.weight", 1)):
            value = model.get_parameter(name).data
            half = value.shape[dim] // 2
            value.narrow(dim, half, half).copy_(value.narrow(dim, 0, half))
    if variant != "plain" and size > 1 and variant != "alike units":
        share = 10 ** (-1 - 4 * draw.chance()) if variant == "alike samples" else 0.0
        inputs[1:] = inputs[:1] + share * inputs[1:]
    client = _client(draw, broken, model, inputs, draw.of(("onehot", "onehot", "onehot", "smoothing")))
    found = invert_units(client.leak)
    sure = found.inputs[found.guaranteed].flatten(1)
    errors = (sure[:, None] - client.inputs).norm(dim=2) / client.inputs.norm(dim=1)
    error = float(errors.amin(dim=1).max()) if len(sure) else math.inf
    status = "failed" if found.status == "failed" else "exact" if len(sure) else "partial"
    if found.status == "exact" and _relative(found.inputs, client.inputs) > EXACT:
        error = math.inf
    setting = f"{client.setting}, {counted(hidden, 'unit')}, then {between}, {activation}, {variant}"
    return [answer(status, error, _promised(EXACT, found.claimed, broken), math.inf, setting)]


def _convolutional(draw: Draw, broken: Broken) -> list[Answer]:
    """Return the outcome for the inversion of a chain of convolutions, which may not determine all pixels."""
    activation, side, channels = draw.of(SMOOTH), draw.of((3, 5, 8, 16)), draw.of((1, 3))
    kind, bias, classes, depth = draw.of(KINDS[:2]), draw.chance() < 0.5, draw.of((3, 4, 10, 20)), draw.of((1, 1, 2, 3))
    alike = 10 ** (-1 - 4 * draw.chance()) if draw.chance() < 0.2 else 0.0

    def build() -> nn.Module:
        layers: list[nn.Module] = []
        inputs, length = channels, side
        for _ in range(depth):
            kernel, stride, outputs = draw.of((1, 2, 3, 5)), draw.of((1, 1, 2, 3)), draw.of((2, 4, 6, 12))
            padding = kernel // 2
            convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=bias)
            if alike:
                # Channels that hardly differ.
                weight = convolution.weight.data
                weight.copy_(weight[:1] + alike * weight)
            layers += [convolution, ACTIVATIONS[activation]()]
            inputs, length = outputs, (length + 2 * padding - kernel) // stride + 1
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(inputs * length**2, classes))

    model = _scaled(draw, draw.network(build))
    client = _client(draw, broken, model, draw.inputs(1, channels, side, side), kind)
    client, noise = _told(draw, client)
    found = trace_convolutional(client.leak, prior=client.prior, noise=noise)
    return [_of_inversion(found, client.inputs, client.setting, broken)]


class _Block(nn.Module):
    """A residual block that halves the side of its maps."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Conv2d(channels, outputs, 3, stride, 1, bias=False) for channels, stride in ((inputs, 2), (outputs, 1))
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(outputs) for _ in range(2))
        self.shortcut = nn.Conv2d(inputs, outputs, 1, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        hidden = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(hidden)) + self.shortcut(x))


def _peeled(draw: Draw, broken: Broken) -> list[Answer]:
    """Return the outcome for the peeling of a small residual network, which may be too narrow."""
    size, classes = draw.of((1, 1, 2, 3)), draw.of((5, 12))
    width, side = draw.of((4, 8, 24, 40, 40)), draw.of((3, 4, 6))

    def build() -> nn.Module:
        front = nn.Conv2d(3, width, 3, padding=1, bias=False)
        network = nn.Sequential(
            front, nn.BatchNorm2d(width), nn.ReLU(), _Block(width, 2 * width), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(2 * width, classes, bias=False),
        )  # fmt: skip
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                for name, ends in NORM.items():
                    getattr(module, name).data.uniform_(*ends)
        return network

    kind = draw.of(("smoothing", "onehot"))
    client = _client(draw, broken, draw.network(build), draw.inputs(size, 3, side, side), kind, apart=True)
    result = peel(client.leak, prior=client.prior, steps=STEPS, seed=draw.seed)
    promised = _promised(PEELED, float(result.relative.max()), broken)
    return [answer(result.status, _relative(result.images, client.inputs), promised, 0.1, client.setting)]


def _transformers(draw: Draw, broken: Broken) -> list[Answer]:
    """Return the outcome for a vision transformer, whose first attention may not determine all patches."""
    patch, side, heads = draw.of((2, 4, 8)), draw.of((8, 16)), draw.of((1, 2, 4))
    width, depth, classes, trained = heads * draw.of((4, 8, 16)), draw.of((1, 2)), draw.of((3, 10)), draw.chance() < 0.4
    kinds: tuple[Positions, ...] = ("learned", "learned", "frozen", "sinusoidal")
    positions, kind = draw.of(kinds), draw.of(KINDS[:2])

    def build() -> nn.Module:
        return VisionTransformer(side, patch, width, heads, depth, classes, positions=positions, trained_form=trained)

    client = _client(draw, broken, _scaled(draw, draw.network(build)), draw.inputs(1, 3, side, side), kind)
    client, noise = _told(draw, client)
    found = trace_transformer(client.leak, noise=noise)
    setting = f"{client.setting}, patches of {patch}, width {width}, {positions} positions"
    return [_of_inversion(found, client.inputs, setting, broken)]


# ------------------------------------------------------------------------------------------------------------ updates
def _from_update(draw: Draw, model: nn.Module, leak: Leak) -> Leak:
    """Return the leak that a server computes from the weights after a client's step of gradient descent."""
    rate, decay, momentum = 10 ** (-2 * draw.chance()), draw.of((0.0, 1e-3)), draw.of((0.0, 0.9))
    trained = copy.deepcopy(model)
    optimiser = torch.optim.SGD(trained.parameters(), lr=rate, weight_decay=decay, momentum=momentum)
    for name, parameter in trained.named_parameters():
        parameter.grad = leak.gradients[name].clone()
    optimiser.step()
    return Leak.from_update(
        model, model.state_dict(), trained.state_dict(), rate=rate, batch_size=leak.batch_size, momentum=momentum,
        weight_decay=decay, input_shape=leak.input_shape, head=leak.head,
    )  # fmt: skip


def _updates(draw: Draw, broken: Broken) -> list[Answer]:
    """Return the outcomes for the label, and for the input, of one sample whose client sends its weights."""
    classes, width, hidden = draw.of((3, 5, 10, 30)), draw.of((8, 64)), draw.of((16, 60))
    activation, kind, private = draw.of(tuple(ACTIVATIONS)), draw.of(KINDS[:2]), draw.chance() < 0.3
    bias = draw.chance() < 0.5

    def build() -> nn.Module:
        return nn.Sequential(
            nn.Linear(width, hidden, bias=bias), ACTIVATIONS[activation](), nn.Linear(hidden, classes, bias=bias)
        )

    model = draw.network(build)
    dtype = next(model.parameters()).dtype
    inputs, labels = draw.inputs(1, width).to(dtype), draw.labels(kind, 1, classes)
    # As in DP-SGD by Opacus: the sample's gradient is clipped, then noise is added. Its deviation is public.
    clip, noise = defenses.clip(10 ** (2 * draw.chance() - 1)), 10 ** (-2 - 6 * draw.chance()) if private else None
    noisy = defenses.gaussian(noise or 0.0, draw.generator)

    def look(network: nn.Module) -> Leak:
        leak = observe(network, inputs, labels.to(dtype), **options(broken))
        if noise is not None:
            leak = replace(leak, gradients=noisy(clip(leak.gradients)))
        return _from_update(draw, network, leak)

    leak, prior = broken.sent(look, model, draw.generator), broken.prior or kind
    # As in an audit: the noise of an update without a defence is estimated.
    found = recover_soft_labels(
        leak.weight_gradient, leak.weight, bias=leak.bias, bias_gradient=leak.bias_gradient, prior=prior, noise=noise,
        scale=None if private else 1.0, nonnegative=activation in ("ReLU", "Sigmoid"),
    )  # fmt: skip
    sort = f"DP-SGD with noise {noise:.0e}" if private else "gradient descent"
    setting = f"{sort}, {classes} classes, {counted(hidden, 'feature')}, {label_kind(kind)}, {activation}"
    # The feature is not promised, but the input.
    answers = _of_singles(found, [(labels[0], found.features[0])], setting)
    if private:
        return answers
    traced = trace_fully_connected(leak, prior=prior, noise=None)
    return [*answers, _of_inversion(traced, inputs, setting, broken)]


# ---------------------------------------------------------------------------------------------------------- sequences
def _said(draw: Draw, count: int, longest: int, words: int) -> list[list[int]]:
    """Return random sentences, some of which share a beginning, are repeated or are empty."""
    sentences: list[list[int]] = []
    for _ in range(count):
        prefix = list(draw.of(sentences)) if sentences and draw.chance() < 0.5 else []
        if prefix and draw.chance() < 0.3:
            sentences.append(prefix)
            continue
        prefix = prefix[: draw.number(0, len(prefix))]
        sentences.append([*prefix, *(draw.number(3, words - 1) for _ in range(draw.number(0, longest - len(prefix))))])
    return sentences


def _masked(draw: Draw, targets: Tensor) -> Tensor:
    """Return targets (B, T) without those of some sentences or positions, but with at least one target."""
    share, rows = 0.1 + 0.5 * draw.chance(), draw.chance() < 0.5
    shape = (len(targets), 1) if rows else targets.shape
    masked = targets.masked_fill(torch.rand(shape, generator=draw.generator) < share, PADDING)
    return masked if bool((masked != PADDING).any()) else targets


def _confident(draw: Draw, head: nn.Module) -> None:
    """Multiply the last layer's parameters by a random factor in four of ten cases, so that predictions saturate."""
    factor = 10 ** (2 * draw.chance()) if draw.chance() < 0.4 else 1.0
    for parameter in head.parameters():
        parameter.data.mul_(factor)


def _sentences(draw: Draw, broken: Broken) -> list[Answer]:
    """Return the outcome for a batch of sentences in a language model."""
    kind, layers, tied = draw.of(("lstm", "gru", "transformer")), draw.of((1, 1, 2)), draw.chance() < 0.2
    words, width = draw.number(5, WORDS), draw.of((8, 16, 32, 32))
    model = build_language_model(kind, pieces=words, width=width, layers=layers, tied=tied, seed=draw.number(0, 10**6))
    model = model.to(draw.of((torch.float32, torch.float64)))
    _confident(draw, model.get_submodule("head"))
    sentences = _said(draw, draw.number(1, 8), 5, words)
    inputs, targets = batch_of(sentences)
    masked, update = draw.chance() < 0.2, draw.chance() < 0.2
    if masked:
        targets = _masked(draw, targets)

    def look(network: nn.Module) -> Leak:
        leak = observe(network, inputs, targets, head="head", **options(broken))
        return _from_update(draw, network, leak) if update else leak

    leak = broken.sent(look, model, draw.generator)
    if broken.more:
        # A batch and its multiples have the same gradient.
        leak = replace(leak, batch_size=draw.of((len(sentences) + 1, 2 * len(sentences), 3 * len(sentences))))
    result = read_sentences(leak, most=PREFIXES)
    right = result.all() == sorted(sentences) if result.tokens else False
    setting = f"{kind}, {counted(layers, 'layer')}, {counted(len(sentences), 'sentence')}, {words} words, width {width}"
    setting += ", tied" * tied + ", targets masked" * masked + ", update" * update
    return [answer(result.status, 0.0 if right else math.inf, setting=setting)]


def _texts(draw: Draw, broken: Broken) -> list[Answer]:
    """Return the outcome for a batch of texts without marks in a transformer, some of whose words have no target."""
    words, width, layers, tied = draw.number(5, WORDS), draw.of((8, 16, 32)), draw.of((1, 2)), draw.chance() < 0.5
    model = build_language_model(
        "transformer", pieces=words, width=width, layers=layers, tied=tied, seed=draw.number(0, 10**6)
    )
    model = model.to(draw.of((torch.float32, torch.float64)))
    _confident(draw, model.get_submodule("head"))
    texts = [[*text, 3, 4][: max(2, len(text))] for text in _said(draw, draw.number(1, 5), 8, words)]
    inputs, targets = batch_of(texts, None, None)
    masked = draw.chance() < 0.5
    if masked:
        targets = _masked(draw, targets)
    leak = broken.sent(lambda network: observe(network, inputs, targets, head="head"), model, draw.generator)
    result = read_sentences(leak, None, end=None, most=PREFIXES)
    # Words behind the last target leave no trace.
    lengths = [max([0, *(row != PADDING).nonzero()[:, 0].tolist()]) + 2 for row in targets]
    traced = [bool((row != PADDING).any()) for row in targets]
    truth = sorted(text[:length] for text, length, kept in zip(texts, lengths, traced, strict=True) if kept)
    setting = f"{counted(layers, 'layer')}, {counted(len(texts), 'text')}, {words} words, width {width}"
    setting += ", tied" * tied + ", targets masked" * masked
    return [answer(result.status, 0.0 if result.all() == truth else math.inf, setting=setting)]


def _transcripts(draw: Draw, broken: Broken) -> list[Answer]:
    """Return the outcome for several utterances in a small recogniser, or for one from the last layer's gradient."""
    words, layers = draw.number(6, WORDS), draw.of((1, 1, 2))
    size = Size(
        heard=draw.of((4, 12, 24)), encoder_layers=1, state=draw.of((16, 32, 64)), decoder_layers=layers,
        embedding=draw.of((8, 24)), attention=16, convolution=None,
    )  # fmt: skip
    model = draw.network(lambda: Recogniser(size, words))
    _confident(draw, model.get_submodule("head"))
    reader = draw.of(("transcripts", "sharing", "output"))
    alone = reader == "output" and draw.chance() < 0.8
    sentences = _said(draw, 1 if alone else draw.number(1, 4), 6, words)
    steps = 2 if draw.chance() < 0.2 else 1
    if steps == 2:
        # The same utterances in both local steps, or half of them in each.
        sentences = sentences if len(sentences) % 2 == 0 and draw.chance() < 0.5 else 2 * sentences
    rate = 10 ** (-1 - 4 * draw.chance())
    dtype = next(model.parameters()).dtype
    # Repeated sentences have the same sound, or different ones.
    alike = draw.chance() < 0.5
    sounds = [
        pseudo_speech(("a" if alike else chr(97 + place)) + "".join(chr(97 + word % 26) for word in sentence)).to(dtype)
        for place, sentence in enumerate(sentences)
    ]
    tokens = [[*sentence, END] for sentence in sentences]

    def look(network: nn.Module) -> Leak:
        return observe_speech(cast(Recogniser, network), sounds, tokens, local_steps=steps, rate=rate)

    leak = broken.sent(look, model, draw.generator)
    readers = {"output": read_output, "transcripts": read_transcripts, "sharing": read_sharing}
    result = readers[reader](leak)
    right = sorted(result.tokens) == sorted(tokens if reader == "output" else sentences)
    statuses = set(result.status) or {"failed"}
    status = "unique" if statuses == {"unique"} else "ambiguous" if "ambiguous" in statuses else "failed"
    setting = f"{reader}, {counted(len(sentences), 'utterance')}, {counted(steps, 'local step')}, {words} words"
    return [answer(status, 0.0 if right else math.inf, setting=f"{setting}, {counted(layers, 'layer')}")]


class Family(NamedTuple):
    """An attack to test.

    Attributes:
        words: A description of what the attack recovers.
        promise: The error that its certificate guarantees, in words.
        run: Runs the attack on the clients of a seed.
        idle: The broken assumptions that do not matter to the attack.
    """

    words: str
    promise: str
    run: Callable[[Draw, Broken], list[Answer]]
    idle: tuple[str, ...] = ()

    def hunted(self, seed: int, broken: str) -> list[Answer]:
        """Return the outcomes for the clients of a seed with one assumption broken."""
        try:
            return self.run(Draw(seed), BROKEN[broken])
        except GradleakError as error:
            return [Answer("refused", setting=str(error).partition(":")[0])]


# Features are those that the last layer sees, and tokens are not numbers.
_AS_THEY_ARE = "changed inputs"
_HEAD_ALONE = ("lower layers clipped", "signs of lower layers", _AS_THEY_ARE)
_LABEL, _NOTHING = "the label to 0.001 (L1), and the feature to 10 %", "none: no answer is certified"
_CLAIMED = "; if every assumption holds, also to the error that is claimed"
FAMILIES: dict[str, Family] = {
    "labels": Family("soft label of one sample", _LABEL, _labels, ("another batch size", *_HEAD_ALONE)),
    "certain": Family(
        "soft label of one sample, prediction certain, gradient scale unknown", _LABEL, _certain,
        ("clipped", "another batch size", *_HEAD_ALONE),
    ),
    "batches": Family(
        "labels of a batch", "every label to 0.001 (L1), and every feature to 10 %", _batches, _HEAD_ALONE
    ),
    "joint": Family("labels of a batch, all at once", _NOTHING, _joint, _HEAD_ALONE),
    "counts": Family("classes of a batch and their counts", _NOTHING, _counts, ("another prior", *_HEAD_ALONE)),
    "features": Family(
        "labels of unmixed features", "the label of a sample to 0.001 (L1), and its feature to 10 %", _features,
        _HEAD_ALONE,
    ),
    "connected": Family("inputs of fully connected layers", f"every input to 1 %{_CLAIMED}", _connected),
    "units": Family("samples that units of a first layer show", f"a sample to 1 %{_CLAIMED}", _units),
    "convolutional": Family(
        "image, from convolutions", f"the image to 1 %{_CLAIMED}", _convolutional, ("another batch size",)
    ),
    "peeling": Family("images, by peeling", f"every image to 0.1 %{_CLAIMED}", _peeled),
    "transformers": Family(
        "image, from a vision transformer", f"the image to 1 %{_CLAIMED}", _transformers, ("another prior",)
    ),
    "updates": Family(
        "label and input of a sample, from the weights that a client sends",
        f"the label to 0.001 (L1), and the input to 1 %{_CLAIMED}", _updates,
    ),
    "sentences": Family(
        "sentences of a language model", "every sentence, and how often it occurs in the batch", _sentences,
        ("another prior", _AS_THEY_ARE),
    ),
    "texts": Family(
        "texts without marks", "every text up to its last target", _texts,
        ("another loss", "another prior", _AS_THEY_ARE),
    ),
    "transcripts": Family(
        "transcripts of a recogniser", "every transcript", _transcripts, ("another loss", "another prior", _AS_THEY_ARE)
    ),
}  # fmt: skip
