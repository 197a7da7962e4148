"""Define the objective of gradient matching: the distance between gradients, and the prior of images."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import grad, vmap
from torch.nn import functional as F

from gradleak.arguments import check_fields, checked_arguments
from gradleak.calling import called, copy_of
from gradleak.devices import accelerated
from gradleak.errors import InputError, unknown
from gradleak.images.matching.patches import patched
from gradleak.leak import Gradients, Leak, only_logits

Kind = Literal["l2", "cosine", "layers"]
# On a GPU so many attacks at once compute convolutions by patches. For few attacks cuDNN's kernels are faster.
MANY = 16


@dataclass(frozen=True)
class Distance:
    """The distance between gradients, and between last-layer inputs (wang2024, Eqn. 8).

    Attributes:
        kind: "l2", the squared L2 distance over all layers (zhu2019); or "cosine", one minus the cosine over all
            parameters (geiping2020); or "layers", the logarithm of the mean of that and of one minus the cosine of each
            tensor, weighted by the square root of its number of entries. Relative to a logarithm, the weight of a prior
            falls with the distance.
        head: The weight of the last layer's gradient, α.
        feature: The weight of the distance of the last layer's input from the recovered one, β.
    """

    kind: Kind = "l2"
    head: float = 1.0
    feature: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.kind not in get_args(Kind):
            raise unknown("distance", self.kind, get_args(Kind))
        if not (self.head >= 0 and self.feature >= 0):
            raise InputError(f"weights of a distance must not be negative; got {self.head} and {self.feature}")

    def between(self, own: Gradients, observed: Gradients, head: str, norms: Tensor | None = None) -> Tensor:
        """Return the distance (A,) of gradients whose T tensors are (A, …); `head` names the last layer's parameters.

        Our gradients of a single attack may lack the first dimension. The `squared_norms` of the observed gradients are
        computed here if they are not given.
        """
        weights = {name: self.head if name.rpartition(".")[0] == head else 1.0 for name in own}
        pairs = [(weights[name], value, observed[name].flatten(1)) for name, value in own.items() if weights[name] > 0]
        if self.kind == "l2":
            return torch.stack(
                [weight * (_rows(value, target) - target).square().sum(dim=1) for weight, value, target in pairs]
            ).sum(dim=0)
        theirs = squared_norms(observed) if norms is None else norms
        if len(pairs) < len(theirs):
            theirs = torch.stack([row for row, weight in zip(theirs, weights.values(), strict=True) if weight > 0])
        both = *(computed for _, computed, _ in pairs), *(target for _, _, target in pairs)
        products = *_Products.apply(*both), theirs
        if self.head != 1:
            scales = [weight for weight, _, _ in pairs]
            products = tuple(torch.stack([w * row for w, row in zip(scales, rows, strict=True)]) for rows in products)
        whole = one_minus_cosine(*(rows.sum(dim=0) for rows in products))
        if self.kind == "cosine":
            return whole
        # The derivative is finite where a tensor is zero.
        lengths = [rows.clamp(min=torch.finfo(rows.dtype).tiny).sqrt() for rows in products[1:]]
        each = 1 - products[0] / (lengths[0] * lengths[1])
        sides = [target.shape[1] ** 0.5 for _, _, target in pairs]
        shares = torch.stack([side / sum(sides) * row for side, row in zip(sides, each, strict=True)]).sum(dim=0)
        distance: Tensor = ((whole + shares) / 2).clamp(min=torch.finfo(whole.dtype).eps).log()
        return distance

    def of_features(self, own: Tensor, known: Tensor) -> Tensor:
        """Return the distance (A,) of last-layer inputs (A, B, I)."""
        own, known = own.flatten(1), known.flatten(1)
        if self.kind == "l2":
            return (own - known).square().sum(dim=1)
        return one_minus_cosine((own * known).sum(dim=1), own.square().sum(dim=1), known.square().sum(dim=1))


class _Products(torch.autograd.Function):
    """The inner products a·b and a·a, (T, A) each, of T tensors a (A, …) and b (A, P) of our and of observed gradients.

    The slope is written out: autograd takes more operations, and keeps several copies of all gradients.
    """

    @staticmethod
    def forward(ctx: Any, *both: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(*both)
        theirs = both[len(both) // 2 :]
        ours = [_rows(a, b) for a, b in zip(both, theirs, strict=False)]
        product, own = (
            torch.stack([torch.linalg.vecdot(a, b) for a, b in zip(ours, others, strict=True)])
            for others in (theirs, ours)
        )
        return product, own

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, product: Tensor, own: Tensor) -> tuple[Tensor | None, ...]:
        both, count = ctx.saved_tensors, len(product)
        slopes = zip((2 * own).unsqueeze(2), product.unsqueeze(2), both[:count], both[count:], strict=True)
        found = ((along * _rows(a, b)).addcmul_(across, b).view_as(a) for along, across, a, b in slopes)
        return *found, *[None] * count


def _rows(ours: Tensor, theirs: Tensor) -> Tensor:
    """Return a tensor of our gradients as rows (A, P) like those of the observed ones."""
    return ours.reshape(-1, theirs.shape[1])


def squared_norms(gradients: Gradients) -> Tensor:
    """Return the squared norms (T, A) of the T tensors (A, …) of gradients."""
    return torch.stack([value.flatten(1).square().sum(dim=1) for value in gradients.values()])


def one_minus_cosine(product: Tensor, ours: Tensor, theirs: Tensor) -> Tensor:
    """Return one minus the cosine (A,) of vectors x and y from x·y, x·x and y·y."""
    return 1 - product / (ours * theirs).sqrt().clamp(min=torch.finfo(product.dtype).tiny)


@dataclass(frozen=True)
class ImagePrior:
    """The prior of private images, in the space of the network's inputs.

    Attributes:
        variation: The weight of the anisotropic total variation, mean |∂x| + mean |∂y| as in wang2024's and
            geiping2020's code.
        box: Lower and upper bounds to which every iterate is clamped, each broadcast to the shape of one input.
    """

    variation: float = 0.0
    box: tuple[Tensor, Tensor] | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def of(self, images: Tensor) -> Tensor | float:
        """Return the prior's penalty (A,) on images (A, B, C, H, W)."""
        return self.variation * variation(images) if self.variation else 0.0


@checked_arguments()
def total_variation(images: Tensor) -> Tensor:
    """Return the anisotropic total variation (A,) of images (A, …, H, W), mean |∂x| + mean |∂y|.

    In breaching's code (2023) it is the same, with a border of zeros behind the last row and column.

    Examples:
        >>> total_variation(torch.tensor([[[0.0, 1.0], [0.0, 1.0]]]))
        tensor([1.])
    """
    if images.ndim < 3 or not images.is_floating_point():
        raise InputError(f"images must be (A, …, H, W), floating point; got {tuple(images.shape)} of {images.dtype}")
    return variation(images)


def variation(images: Tensor) -> Tensor:
    """Compute `total_variation` without a check, which would keep a step of matching out of a CUDA graph."""
    inner = tuple(range(1, images.ndim))
    return images.diff(dim=-1).abs().mean(dim=inner) + images.diff(dim=-2).abs().mean(dim=inner)


def _hard_sigmoid(values: Tensor) -> Tensor:
    return F.relu6(values + 3) / 6


def _once_only(gradients: Sequence[Tensor]) -> bool:
    """Return whether gradients have a part that cannot be differentiated, which torch would leave out without an error.

    A function marked with `once_differentiable` raises its error only where torch asks for the derivatives of all
    leaves, and matching asks for those of the inputs alone.
    """
    seen, left = set(), [value.grad_fn for value in gradients]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        if node.name() == "torch::autograd::Error":
            return True
        seen.add(node)
        left += [further for further, _ in node.next_functions]
    return False


class Objective:
    """The loss of A attacks on N leaks of one model, and its gradient, computed for all attacks at once.

    Throughout, `places` (A, P) has each attack's B inputs, followed by B × C label scores if labels are searched as
    well. `owners` (A,) has the index of each attack's leak. `attacks` is the number of attacks that is expected.
    """

    def __init__(
        self,
        leaks: list[Leak],
        labels: Tensor | None,
        features: Tensor | None,
        distance: Distance,
        prior: ImagePrior,
        *,
        attacks: int = 1,
    ) -> None:
        first = leaks[0]
        assert first.input_shape is not None
        self.model: nn.Module = copy_of(first.model).eval().requires_grad_(False)
        for module in self.model.modules():
            if isinstance(module, nn.Hardsigmoid):
                # torch's own kernel has no second derivative.
                module.forward = _hard_sigmoid  # type: ignore[assignment, method-assign]
        if attacks >= MANY and accelerated(first.weight_gradient.device):
            patched(self.model)
        self._leaves = [self.model.get_parameter(name).requires_grad_() for name in first.gradients]
        self.parameters: Gradients = dict(zip(first.gradients, (leaf.detach() for leaf in self._leaves), strict=True))
        self.count, self.head = len(leaks), first.head
        self.labels, self.features = labels, features
        self.distance, self.prior = distance, prior
        self.shape = (first.batch_size, *first.input_shape)
        self.size = torch.Size(self.shape).numel()
        self.classes = len(first.weight)
        # Rows, because on a small network even a view takes time.
        self.observed = {
            name: torch.stack([leak.gradients[name] for leak in leaks]).flatten(1) for name in first.gradients
        }
        self._seen: list[Tensor] = []
        self._checked = False
        self._owners: tuple[Tensor, bool] | None = None
        if features is not None:
            self.watch_features()

    @functools.cached_property
    def norms(self) -> Tensor:
        """The squared norms (T, N) of the observed gradients."""
        return squared_norms(self.observed)

    def watch_features(self) -> None:
        """Note the last layer's inputs from now on; every call of the network then takes one percent longer."""
        layer = self.model.get_submodule(self.head) if self.head else self.model
        layer.register_forward_pre_hook(lambda _module, inputs: self._seen.append(inputs[0]))

    def inputs(self, places: Tensor) -> Tensor:
        """Return the inputs (A, B, …) of places."""
        own = places if places.shape[1] == self.size else places[:, : self.size]
        return own.reshape(-1, *self.shape)

    def labels_at(self, places: Tensor, owners: Tensor) -> Tensor:
        """Return the labels (A, B, C) of places: the known labels, or the softmax of the scores."""
        if self.labels is not None:
            return self.labels if self._every_leak(owners) else self.labels[owners]
        return places[:, self.size :].reshape(-1, self.shape[0], self.classes).softmax(dim=2)

    def boxed(self, places: Tensor) -> Tensor:
        """Return the places with every input clamped to the prior's box."""
        if self.prior.box is None:
            return places
        low, high = (edge.to(places) for edge in self.prior.box)
        inputs = self.inputs(places).clamp(low, high).flatten(1)
        return torch.cat([inputs, places[:, self.size :]], dim=1) if places.shape[1] > self.size else inputs

    def gradients(self, inputs: Tensor, labels: Tensor) -> tuple[Gradients, list[Tensor]]:
        """Return the gradients of clients with inputs (A, B, …) and labels (A, B, C), and their features (A, B, I).

        The tensors of a single client's gradient have the shapes of the parameters. The list of features is empty
        unless they are watched.
        """
        if len(inputs) == 1:
            return self._of_one(inputs.squeeze(0), labels.squeeze(0))

        def loss(parameters: Gradients, own: Tensor, label: Tensor) -> tuple[Tensor, list[Tensor]]:
            return self._loss(lambda x: called(self.model, parameters, (x,)), own, label)

        own, features = vmap(grad(loss, has_aux=True), (None, 0, 0))(self.parameters, inputs, labels)
        return own, features

    def _of_one(self, inputs: Tensor, labels: Tensor) -> tuple[Gradients, list[Tensor]]:
        """Return the gradients and features of a single client by plain autograd, without the cost of `vmap`."""
        # A copy, because the model may change its inputs in place.
        loss, features = self._loss(self.model, inputs.clone(), labels)
        found = torch.autograd.grad(loss, self._leaves, create_graph=True, materialize_grads=True)
        if not self._checked:
            if _once_only(found):
                raise InputError(
                    f"{type(self.model).__name__} has no second derivative, which the search needs: a function of its "
                    "code is marked with once_differentiable"
                )
            self._checked = True
        return dict(zip(self.parameters, found, strict=True)), [own.unsqueeze(0) for own in features]

    def _loss(self, logits_of: Callable[[Tensor], Any], inputs: Tensor, labels: Tensor) -> tuple[Tensor, list[Tensor]]:
        self._seen.clear()
        logits = only_logits(logits_of(inputs))
        features = self._seen[-1:]
        self._seen.clear()
        return -(labels * F.log_softmax(logits, dim=1)).sum(dim=1).mean(), features

    def losses(self, places: Tensor, owners: Tensor) -> Tensor:
        """Return the loss (A,) at places."""
        inputs = self.inputs(places)
        computed, seen = self.gradients(inputs, self.labels_at(places, owners))
        value = self.distance.between(computed, *self._observed_by(owners)) + self.prior.of(inputs)
        if self.features is not None and self.distance.feature:
            (features,) = seen
            value = value + self.distance.feature * self.distance.of_features(features, self.features[owners])
        return value

    def _observed_by(self, owners: Tensor) -> tuple[Gradients, str, Tensor]:
        """Return what the distance needs of the attacked leaks; all attacks on a single leak share its gradients."""
        if self.count == 1 or self._every_leak(owners):
            return self.observed, self.head, self.norms
        return {name: value[owners] for name, value in self.observed.items()}, self.head, self.norms[:, owners]

    def _every_leak(self, owners: Tensor) -> bool:
        """Return whether the owners are all leaks in order; what belongs to leaks needs no copy then.

        Cache the answer for the last tensor, because each comparison on a GPU makes the host wait.
        """
        if self._owners is None or self._owners[0] is not owners:
            ordered = len(owners) == self.count and torch.equal(owners, torch.arange(self.count, device=owners.device))
            self._owners = owners, ordered
        return self._owners[1]

    def evaluate(self, places: Tensor, owners: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss (A,) at places (A, P) and its gradient there, inside `devices.differentiable`."""
        with torch.enable_grad():
            places = places.detach().requires_grad_()
            losses = self.losses(places, owners)
            (slopes,) = torch.autograd.grad([losses], [places], [torch.ones_like(losses)])
        return losses.detach(), slopes
