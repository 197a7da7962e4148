"""Define the attacks to test, each on clients with random sizes, networks, labels and precisions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import augment, metrics
from gradleak.data.speech import pseudo_speech
from gradleak.errors import GradleakError
from gradleak.hunting.broken import BROKEN, Broken, options
from gradleak.hunting.outcomes import Answer, answer
from gradleak.images import certify_features, peel, trace_convolutional, trace_fully_connected, unmix_features
from gradleak.images.inversion.fully_connected import SURE as EXACT
from gradleak.images.inversion.fully_connected import Inversion, Rule
from gradleak.images.peeling.attack import SURE as PEELED
from gradleak.labels import count_labels, recover_batch, recover_jointly, recover_soft_labels, reveal_labels
from gradleak.labels.verdict import KNOWN
from gradleak.leak import Leak, observe
from gradleak.models.language import batch_of, build_language_model
from gradleak.models.recogniser import END, Recogniser, Size
from gradleak.sequences import observe_speech, read_output, read_sentences, read_sharing, read_transcripts

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
# The number of single samples that share a last layer.
TOGETHER = 20
# The largest number of starts for each family of labels if an assumption is broken; usual are 40. A search without a
# solution uses all of its starts.
STARTS = 8
# The number of steps of the search for images that give a peeled map.
STEPS = 200
# A recogniser that is small enough for hundreds of trials.
HEARS = Size(heard=24, encoder_layers=1, state=64, decoder_layers=1, embedding=24, attention=16, convolution=None)
WORDS = 40


class Draw:
    """Random choices from a seed, equal on every machine."""

    def __init__(self, seed: int) -> None:
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

    def labels(self, kind: str, count: int, classes: int, *, apart: bool = False) -> Tensor:
        """Return labels (N, C) of one kind in float64; with `apart`, no two samples have the same main class."""
        order = torch.randperm(classes, generator=self.generator)
        first = order[:count] if apart else torch.randint(classes, (count,), generator=self.generator)
        share = torch.rand(count, generator=self.generator, dtype=torch.float64)
        if kind == "smoothing":
            return augment.smooth(first, classes, share / 2)
        hot = augment.one_hot(first, classes).double()
        if kind == "onehot":
            return hot
        second = (first + torch.randint(1, classes, (count,), generator=self.generator)) % classes
        return share[:, None] * hot + (1 - share[:, None]) * augment.one_hot(second, classes).double()


@dataclass(frozen=True)
class Client:
    """A client with a random network: its leak, its true inputs and labels, and the attacker's prior."""

    leak: Leak
    inputs: Tensor
    labels: Tensor
    prior: str
    setting: str


def _client(
    draw: Draw, broken: Broken, model: nn.Module, inputs: Tensor, kind: str, classes: int, *, apart: bool = False
) -> Client:
    """Return a client with this network, these inputs and this kind of label, in the network's precision."""
    dtype = next(model.parameters()).dtype
    labels = draw.labels(kind, len(inputs), classes, apart=apart)

    def look(own: nn.Module) -> Leak:
        return observe(own, inputs.to(dtype), labels.to(dtype), **options(broken))

    leak = broken.sent(look, model, draw.generator)
    setting = (
        f"{len(inputs)} of {tuple(inputs.shape[1:])}, {classes} classes, {kind}, {str(dtype).removeprefix('torch.')}"
    )
    return Client(leak, inputs, labels, broken.prior or kind, setting)


# ------------------------------------------------------------------------------------------------------------- labels
def _labels(seed: int, broken: Broken) -> list[Answer]:
    """Return the outcomes for single samples that share a random last layer."""
    draw = Draw(seed)
    kind, classes = draw.of(KINDS), draw.of((3, 4, 5, 10, 30, 100))
    kind = "smoothing" if classes == 3 and kind == "mixup" else kind
    width, bias = draw.of((1, 2, 8, 64, 256)), draw.chance() < 0.3
    spread = 10 ** (4 * draw.chance() - 2)
    model = draw.network(lambda: nn.Linear(width, classes, bias=bias))
    with torch.no_grad():
        model.get_parameter("weight").mul_(spread * math.sqrt(3))
    clients = [
        _client(Draw(seed + 7919 * (place + 1)), broken, model, draw.inputs(1, width).abs(), kind, classes)
        for place in range(TOGETHER)
    ]
    gradients = torch.stack([one.leak.weight_gradient for one in clients])
    leak = clients[0].leak
    knows: dict[str, Any] = {"prior": clients[0].prior, "bias": leak.bias}
    how = draw.of(("plain", "plain", "scale", "proof", "bias", "bias"))
    if how == "bias" and bias:
        knows["bias_gradient"] = torch.stack([one.leak.gradients["bias"] for one in clients])
        knows["prior"] = None if draw.chance() < 0.5 else clients[0].prior
    elif how in ("scale", "proof"):
        knows |= {"scale": None} if how == "scale" else {"certify": "proof"}
    found = recover_soft_labels(gradients, leak.weight, **knows)
    setting = f"{classes} classes, {width} features, {kind}, {how}, spread {spread:.2g}"
    answers = []
    for place, one in enumerate(clients):
        off = float((found.labels[place] - one.labels[0]).abs().sum())
        near = [float((other - one.labels[0]).abs().sum()) for other in found.candidates[place]]
        status, left = found.status[place], float(found.open[place])
        within = off if status != "ambiguous" else min([off, *near])
        answers.append(
            answer(
                certain=status == "unique", failed=status == "failed", error=within if status != "unique" else off,
                promised=KNOWN, open_=max(KNOWN, left), setting=setting,
            )
        )  # fmt: skip
    return answers


def _apart(found: Tensor, truth: Tensor) -> float:
    """Return the largest L1 distance of a true label (B, C) from the nearest label that was found."""
    return float(torch.cdist(found.nan_to_num(nan=9.0), truth, p=1).amin(dim=0).max())


def _batches(seed: int, broken: Broken) -> list[Answer]:
    """Return the outcome for one batch at a random last layer."""
    draw = Draw(seed)
    kind, classes, width = draw.of(("smoothing", "onehot", "mixup")), draw.of((8, 20, 50)), draw.of((16, 64))
    size = draw.number(2, 4 if kind != "mixup" else 2)
    model = draw.network(lambda: nn.Linear(width, classes, bias=draw.chance() < 0.5))
    with torch.no_grad():
        model.get_parameter("weight").mul_(10 ** (1.5 * draw.chance() - 0.5))
    one = _client(draw, broken, model, draw.inputs(size, width).abs(), kind, classes)
    leak = one.leak
    found = recover_batch(
        leak.weight_gradient, leak.weight, batch_size=leak.batch_size, prior=one.prior, bias=leak.bias,
        bias_gradient=leak.bias_gradient, seed=seed, rounds=40 if broken == BROKEN["none"] else STARTS,
    )  # fmt: skip
    return [_of_batch(found.status, found.labels, found.open, one)]


def _of_batch(status: str, labels: Tensor, left: Tensor, one: Client) -> Answer:
    return answer(
        certain=status == "unique", failed=status == "failed", error=_apart(labels, one.labels), promised=KNOWN,
        open_=max(KNOWN, float(left.max())), setting=one.setting,
    )  # fmt: skip


def _joint(seed: int, broken: Broken) -> list[Answer]:
    """Return the outcome for a batch with about as many samples as classes."""
    draw = Draw(seed)
    kind, classes = draw.of(("smoothing", "onehot")), draw.of((5, 6))
    size = draw.number(2, classes - 2)
    model = draw.network(lambda: nn.Linear(32, classes, bias=False))
    one = _client(draw, broken, model, draw.inputs(size, 32).abs(), kind, classes)
    found = recover_jointly(
        one.leak.weight_gradient, one.leak.weight, batch_size=one.leak.batch_size, prior=one.prior, seed=seed,
        starts=16, multisets=40,
    )  # fmt: skip
    return [_of_batch(found.status, found.labels, found.open, one)]


def _counts(seed: int, broken: Broken) -> list[Answer]:
    """Return the outcome for the set of classes in a batch, or for their counts."""
    draw = Draw(seed)
    classes, width, size = draw.of((5, 10, 40)), draw.of((16, 64)), draw.number(1, 6)
    model = draw.network(lambda: nn.Linear(width, classes, bias=draw.chance() < 0.5))
    one = _client(draw, broken, model, draw.inputs(size, width).abs(), "onehot", classes)
    truth = one.labels.sum(dim=0).long()
    method = draw.of(("classes", "idlg", "gradinversion", "row sums", "llg", "llg*", "ilrg", "rlg"))
    if method == "classes":
        right = reveal_labels(one.leak.weight_gradient) == set(truth.nonzero()[:, 0].tolist())
    else:
        right = torch.equal(count_labels(one.leak, method, seed=seed), truth)
    told = answer(
        certain=False, failed=False, error=0.0 if right else math.inf, promised=0.0, open_=0.0,
        setting=f"{method}, {one.setting}",
    )  # fmt: skip
    return [told]


def _features(seed: int, broken: Broken) -> list[Answer]:
    """Return the outcomes for proposed features of a batch: true, slightly mixed, or unmixed by FastICA."""
    draw = Draw(seed)
    kind, classes, width, size = draw.of(("smoothing", "onehot")), draw.of((8, 12, 20)), 60, draw.number(2, 4)
    model = draw.network(lambda: nn.Linear(width, classes, bias=draw.chance() < 0.5))
    one = _client(draw, broken, model, draw.inputs(size, width).abs() ** 3, kind, classes, apart=draw.chance() < 0.7)
    how = draw.of(("true", "mixed", "unmixed"))
    proposed = one.inputs
    if how == "mixed":
        share = 10 ** (-6 * draw.chance())
        proposed = torch.cat([one.inputs[:1] + share * one.inputs[1:2], one.inputs[1:]])
    if how == "unmixed":
        proposed = unmix_features(one.leak.weight_gradient, one.leak.batch_size, seed=seed)
    found = certify_features(
        one.leak.weight_gradient, one.leak.weight, proposed, bias=one.leak.bias, prior=one.prior
    )  # fmt: skip
    apart = torch.cdist(found.labels.nan_to_num(nan=9.0), one.labels, p=1).amin(dim=1)
    return [
        answer(
            certain=status == "unique", failed=status == "failed", error=float(off), promised=KNOWN,
            open_=max(KNOWN, float(left)), setting=f"{how}, {one.setting}",
        )
        for status, off, left in zip(found.status, apart, found.open, strict=True)
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- images
def _relative(found: Tensor, truth: Tensor) -> float:
    """Return the largest relative error of a sample, after matching found and true samples."""
    found = found.flatten(1)
    if not found.isfinite().all() or len(found) != len(truth):
        return math.inf
    own = truth.flatten(1)
    return float(((found[metrics.match_batch(found, own)] - own).norm(dim=1) / own.norm(dim=1)).max())


def _of_inversion(found: Inversion, one: Client) -> list[Answer]:
    error = _relative(found.inputs, one.inputs)
    told = answer(
        certain=found.status == "exact", failed=found.status == "failed", error=error, promised=EXACT, open_=EXACT,
        setting=one.setting,
    )  # fmt: skip
    return [told]


def _connected(seed: int, broken: Broken) -> list[Answer]:
    """Return the outcome for the inversion of a fully connected network."""
    draw = Draw(seed)
    size = draw.of((1, 1, 2, 4))
    rule: Rule = draw.of(("least-squares", "least-squares", "mean")) if size == 1 else "least-squares"
    activation, width = draw.of(tuple(ACTIVATIONS)), draw.of((6, 20, 64))
    classes = draw.of(tuple(c for c in (3, 10, 40) if c > size + 1))
    widths = [width, *(draw.of((16, 60, 100)) for _ in range(draw.number(1, 3))), classes]
    bias = draw.chance() < 0.5 and rule != "mean"

    def build() -> nn.Module:
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(widths):
            layers += [nn.Linear(inputs, outputs, bias=bias), ACTIVATIONS[activation]()]
        return nn.Sequential(*layers[:-1])

    one = _client(draw, broken, draw.network(build), draw.inputs(size, width), "smoothing", classes, apart=True)
    labels = one.labels if draw.chance() < 0.3 and size == one.leak.batch_size and rule != "mean" else None
    return _of_inversion(trace_fully_connected(one.leak, labels, prior=one.prior, rule=rule), one)


def _convolutional(seed: int, broken: Broken) -> list[Answer]:
    """Return the outcome for the inversion of a chain of convolutions."""
    draw = Draw(seed)
    activation, side, channels, width = draw.of(SMOOTH), draw.of((6, 8)), draw.of((1, 3)), draw.of((6, 12))
    stride, second, bias, classes = draw.of((1, 2)), draw.chance() < 0.5, draw.chance() < 0.5, draw.of((4, 10, 20))

    def build() -> nn.Module:
        layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, stride, 1, bias=bias), ACTIVATIONS[activation]()]
        if second:
            layers += [nn.Conv2d(width, width, 3, 1, 1, bias=bias), ACTIVATIONS[activation]()]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width * (side // stride) ** 2, classes))

    inputs = draw.inputs(1, channels, side, side)
    one = _client(draw, broken, draw.network(build), inputs, "smoothing", classes)
    return _of_inversion(trace_convolutional(one.leak, prior=one.prior), one)


class _Block(nn.Module):
    """A residual block that halves the side of its maps."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(n, outputs, 3, s, 1, bias=False) for n, s in ((inputs, 2), (outputs, 1)))
        self.norms = nn.ModuleList(nn.BatchNorm2d(outputs) for _ in range(2))
        self.shortcut = nn.Conv2d(inputs, outputs, 1, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        hidden = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(hidden)) + self.shortcut(x))


def _peeled(seed: int, broken: Broken) -> list[Answer]:
    """Return the outcome for the peeling of a small residual network."""
    draw = Draw(seed)
    size, classes, width = draw.of((1, 1, 2, 3)), 12, draw.of((24, 40))

    def build() -> nn.Module:
        front = nn.Conv2d(3, width, 3, padding=1, bias=False)
        network = nn.Sequential(
            front, nn.BatchNorm2d(width), nn.ReLU(), _Block(width, 2 * width), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(2 * width, classes, bias=False),
        )  # fmt: skip
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                for values, low, high in (
                    (module.weight.data, 0.5, 1.5), (module.bias.data, -0.3, 0.3), (module.running_mean, -0.3, 0.3),
                    (module.running_var, 0.5, 1.5),
                ):  # fmt: skip
                    assert values is not None
                    values.uniform_(low, high)
        return network

    kind = draw.of(("smoothing", "onehot"))
    one = _client(draw, broken, draw.network(build), draw.inputs(size, 3, 6, 6), kind, classes, apart=True)
    found = peel(one.leak, prior=one.prior, steps=STEPS, seed=seed)
    error = _relative(found.images, one.inputs)
    told = answer(
        certain=found.status == "unique", failed=found.status == "failed", error=error, promised=PEELED, open_=0.1,
        setting=one.setting,
    )  # fmt: skip
    return [told]


# ---------------------------------------------------------------------------------------------------------- sequences
def _said(draw: Draw, count: int, longest: int) -> list[list[int]]:
    """Return random sentences, some of which share a beginning or are repeated."""
    said: list[list[int]] = []
    for _ in range(count):
        begun = list(draw.of(tuple(map(tuple, said)))) if said and draw.chance() < 0.4 else []
        begun = begun[: draw.number(0, len(begun))]
        said.append([*begun, *(draw.number(3, WORDS - 1) for _ in range(draw.number(0, longest - len(begun))))])
    return said


def _sentences(seed: int, broken: Broken) -> list[Answer]:
    """Return the outcome for a batch of sentences in a language model."""
    draw = Draw(seed)
    kind, layers, tied = draw.of(("lstm", "gru", "transformer")), draw.of((1, 1, 2)), draw.chance() < 0.2
    layers = 2 if kind == "transformer" else layers
    model = build_language_model(kind, pieces=WORDS, width=32, layers=layers, tied=tied, seed=draw.number(0, 10**6))
    model = model.to(draw.of((torch.float32, torch.float64)))
    said = _said(draw, draw.number(1, 4), 5)
    leak = broken.sent(lambda own: observe(own, *batch_of(said), **options(broken)), model, draw.generator)
    found = read_sentences(leak)
    right = found.all() == sorted(said) if found.tokens else False
    told = answer(
        certain=found.status == "unique", failed=found.status == "failed", error=0.0 if right else math.inf,
        promised=0.0, open_=0.0, setting=f"{kind}, {layers} layers, {len(said)} sentences",
    )  # fmt: skip
    return [told]


def _transcripts(seed: int, broken: Broken) -> list[Answer]:
    """Return the outcome for several utterances in a small recogniser, or for one from the last layer's gradient."""
    draw = Draw(seed)
    model = draw.network(lambda: Recogniser(HEARS, WORDS))
    reader = draw.of(("transcripts", "sharing", "output"))
    said = _said(draw, 1 if reader == "output" else draw.number(1, 3), 6)
    dtype = next(model.parameters()).dtype
    sounds = [pseudo_speech("".join(chr(97 + word % 26) for word in one) or "a").to(dtype) for one in said]
    tokens = [[*one, END] for one in said]
    leak = broken.sent(lambda own: observe_speech(cast(Recogniser, own), sounds, tokens), model, draw.generator)
    if reader == "output":
        ordered = read_output(leak)
        status, right = ordered.status, ordered.tokens == tokens[0]
    else:
        found = read_transcripts(leak) if reader == "transcripts" else read_sharing(leak)
        right = sorted(found.tokens) == sorted(said)
        statuses = set(found.status) or {"failed"}
        status = "unique" if statuses == {"unique"} else "ambiguous" if "ambiguous" in statuses else "failed"
    told = answer(
        certain=status == "unique", failed=status == "failed", error=0.0 if right else math.inf, promised=0.0,
        open_=0.0, setting=f"{reader}, {len(said)} utterances",
    )  # fmt: skip
    return [told]


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
    run: Callable[[int, Broken], list[Answer]]
    idle: tuple[str, ...] = ()

    def hunted(self, seed: int, broken: str) -> list[Answer]:
        """Return the outcomes for the clients of a seed with one assumption broken."""
        try:
            return self.run(seed, BROKEN[broken])
        except GradleakError as error:
            return [Answer("refused", setting=str(error).partition(":")[0])]


_NO_LABELS = ("another loss", "another prior")
FAMILIES: dict[str, Family] = {
    "labels": Family(
        "soft label of one sample", "the label to 0.001 (L1)", _labels, ("another batch size", "lower layers clipped",
        "signs of lower layers"),
    ),
    "batches": Family(
        "labels of a batch", "every label to 0.001 (L1)", _batches, ("lower layers clipped", "signs of lower layers")
    ),
    "joint": Family(
        "labels of a whole batch together", "none: no answer is certified", _joint,
        ("lower layers clipped", "signs of lower layers"),
    ),
    "counts": Family(
        "classes of a batch and their counts", "none: no answer is certified", _counts,
        ("another prior", "lower layers clipped", "signs of lower layers"),
    ),
    "features": Family(
        "labels of unmixed features", "the label of a sample to 0.001 (L1)", _features,
        ("lower layers clipped", "signs of lower layers"),
    ),
    "connected": Family("fully connected layers backwards", "every input to 1 %", _connected),
    "convolutional": Family(
        "convolutions backwards", "the image to 1 %", _convolutional, ("another batch size",)
    ),
    "peeling": Family("layers peeled off", "every image to 0.1 %", _peeled),
    "sentences": Family(
        "sentences of a language model", "every sentence, as often as it is there", _sentences, _NO_LABELS[1:]
    ),
    "transcripts": Family("transcripts of a recogniser", "every transcript", _transcripts, _NO_LABELS),
}  # fmt: skip
