"""An image is read from the gradient of any vision transformer, and what cannot be read is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import VisionTransformer as TorchvisionTransformer

import gradleak
from gradleak import observe
from gradleak.errors import GradleakWarning, InputError
from gradleak.images import invert_transformer, trace_transformer
from gradleak.images.inversion.tokens import attention_of, embedding_of
from gradleak.images.inversion.transformer import EXPECTED, solve
from gradleak.labels import count_labels, recover_soft_labels
from gradleak.leak import Leak
from gradleak.models.transformer import VisionTransformer
from tests.images.inversion.test_in_front import Front


class Packed(nn.Module):
    """As in timm: packed queries, keys and values. Positions are added before the class token, which is the last."""

    def __init__(self, width: int = 48, *, rms: bool = False) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, width, 4, 4)
        self.cls_token, self.pos_embed = (nn.Parameter(torch.randn(1, count, width)) for count in (1, 16))
        self.norm1 = nn.RMSNorm(width, eps=1e-6) if rms else nn.LayerNorm(width, eps=1e-6)
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=not rms), nn.Linear(width, width)
        self.fc_norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x).flatten(2).transpose(1, 2) + self.pos_embed
        x = torch.cat([x, self.cls_token.expand(len(x), -1, -1)], dim=1)
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return self.head(self.fc_norm(x.tanh().mean(dim=1)))


class Encoder(nn.Module):
    """torch's own encoder, sequence first, on unfolded patches, with a table of positions; norms follow the layers."""

    def __init__(self, norm_first: bool = False) -> None:
        super().__init__()
        self.embed, self.positions = nn.Linear(48, 40), nn.Embedding(16, 40)
        layer = nn.TransformerEncoderLayer(40, 4, 60, dropout=0.1, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(40, 10)

    def forward(self, x: Tensor) -> Tensor:
        patches = F.unfold(0.5 * x - 0.1, 4, stride=4).permute(2, 0, 1)
        tokens = self.embed(patches) + self.positions(torch.arange(16, device=x.device))[:, None]
        return self.head(self.encoder(tokens).mean(dim=0))


class HuggingFace(nn.Module):
    """The structure of ViTForImageClassification, with a second special token as in DeiT; outputs hold the logits."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        patches = nn.Module()
        patches.projection = nn.Conv2d(3, width, 4, 4)
        embeddings = nn.Module()
        embeddings.patch_embeddings, embeddings.cls_token = patches, nn.Parameter(torch.randn(1, 2, width))
        embeddings.position_embeddings = nn.Parameter(torch.randn(1, 18, width))
        self.vit = nn.Module()
        self.vit.embeddings = embeddings
        self.vit.layer = VisionTransformer(width=width, depth=2).blocks
        self.vit.layernorm, self.classifier = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, pixel_values: Tensor) -> Any:
        own = self.vit.embeddings
        tokens = own.patch_embeddings.projection(pixel_values).flatten(2).transpose(1, 2)
        tokens = torch.cat([own.cls_token.expand(len(tokens), -1, -1), tokens], dim=1) + own.position_embeddings
        return SimpleNamespace(logits=self.classifier(self.vit.layernorm(self.vit.layer(tokens))[:, 0]))


class Distilled(nn.Module):
    """Two heads whose outputs are averaged, as in a distilled DeiT."""

    def __init__(self) -> None:
        super().__init__()
        self.body = VisionTransformer(16, 4, 48, depth=2)
        self.body.head = nn.Identity()
        self.head, self.head_dist = nn.Linear(48, 10), nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Tensor:
        features = self.body(x)
        return (self.head(features) + self.head_dist(features.roll(1, dims=1))) / 2


class Map(nn.Module):
    """Positions (1, D, H, W) that are added to the map of patches."""

    def __init__(self) -> None:
        super().__init__()
        self.body = VisionTransformer(16, 4, 48, depth=1)
        self.body.positions = nn.Parameter(torch.randn(1, 48, 4, 4))

    def forward(self, x: Tensor) -> Tensor:
        tokens = (self.body.embedding(x) + self.body.positions).flatten(2).transpose(1, 2)
        return self.body.head(self.body.norm(self.body.blocks(tokens)).mean(dim=1))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "own": lambda: VisionTransformer(16, 4, 48),
    "batch norm": lambda: VisionTransformer(16, 4, 48, trained_form=True),
    "torchvision": lambda: TorchvisionTransformer(16, 4, 2, 4, 48, 96, num_classes=10),
    "packed": Packed,
    "RMS norm without biases": lambda: Packed(rms=True),
    "norm after": Encoder,
    "norm before": lambda: Encoder(norm_first=True),
    "wrapped logits": HuggingFace,
    "averaged heads": Distilled,
    "map": Map,
}


def seen(build: Callable[[], nn.Module], dtype: torch.dtype = torch.float32, count: int = 1) -> tuple[Leak, Tensor]:
    """Return the leak of a client with a random network, and its images."""
    torch.manual_seed(0)
    model, images, labels = build().to(dtype).eval(), torch.randn(count, 3, 16, 16, dtype=dtype), torch.arange(count)
    if isinstance(model, TorchvisionTransformer):
        nn.init.normal_(model.heads.head.weight, std=0.1)
    if not isinstance(model, HuggingFace):
        return observe(model, images, labels), images
    loss = F.cross_entropy(model(images).logits, labels)
    values = torch.autograd.grad(loss, list(model.parameters()))
    gradients = dict(zip(dict(model.named_parameters()), values, strict=True))
    return Leak(model, gradients, "classifier", count, (3, 16, 16)), images


def error(found: Tensor, truth: Tensor) -> float:
    return float((found - truth).norm() / truth.norm())


@pytest.mark.parametrize("form", ["positions", "attention"])
@pytest.mark.parametrize("name", MODELS)
def test_the_image_is_read_whatever_the_structure(name: str, form: Any) -> None:
    for dtype, limit in ((torch.float32, 1e-3), (torch.float64, 1e-9)):
        leak, image = seen(MODELS[name], dtype)
        found = trace_transformer(leak, form=form)
        assert (found.status, found.reason) == ("exact", "")
        assert error(found.inputs, image) < min(found.claimed, limit)
        assert found.claimed < 100 * limit


@pytest.mark.parametrize("positions", ["frozen", "sinusoidal"])
def test_positions_without_a_gradient_need_the_attention(positions: Any) -> None:
    leak, image = seen(lambda: VisionTransformer(16, 8, 64, positions=positions))
    assert embedding_of(leak).positions == ""
    found = trace_transformer(leak)
    assert found.status == "exact"
    assert error(found.inputs, image) < found.claimed < 1e-2
    with pytest.raises(InputError, match="no gradient of learned positions"):
        trace_transformer(leak, form="positions")


def test_the_structure_is_found_by_its_effects() -> None:
    leak, _ = seen(MODELS["wrapped logits"])
    nn.init.zeros_(leak.model.get_parameter("vit.embeddings.position_embeddings"))
    embedding = embedding_of(leak)
    assert embedding.positions == "vit.embeddings.position_embeddings", "zero positions are found as well"
    assert embedding.places.tolist() == embedding.rows.tolist() == list(range(2, 18))
    last = embedding_of(seen(Packed)[0])
    assert (last.places.tolist(), last.tokens) == (list(range(16)), 17)
    scaled = embedding_of(seen(Encoder)[0])
    assert scaled.positions == "positions.weight"
    torch.testing.assert_close(scaled.factor, torch.full((16, 48), 0.5))
    leak, _ = seen(lambda: Packed(rms=True), torch.float64)
    attention = attention_of(leak)
    assert (attention.parameters, attention.centred, attention.normalised) == (("qkv.weight",), False, True)
    assert attention_of(seen(MODELS["torchvision"], torch.float64)[0]).parameters == (
        "encoder.layers.encoder_layer_0.self_attention.in_proj_weight",
        "encoder.layers.encoder_layer_0.self_attention.in_proj_bias",
    )


def test_a_wrong_gradient_is_never_exact() -> None:
    leak, _ = seen(MODELS["own"], count=2)
    for form in ("positions", "attention"):
        mixed = trace_transformer(replace(leak, batch_size=1), form=form)
        assert mixed.status in ("partial", "failed"), "two images that are said to be one"
    alone, image = seen(MODELS["own"])
    changed = {name: value.sign() for name, value in alone.gradients.items()}
    assert trace_transformer(replace(alone, gradients=changed)).status == "partial"
    half = {name: value * (0.5 if "blocks.1" in name else 1) for name, value in alone.gradients.items()}
    found = trace_transformer(replace(alone, gradients=half))
    assert (found.status, error(found.inputs, image) < 1e-5) == ("partial", True)
    assert "what was found has another gradient: 'blocks.1" in found.reason


def test_more_patches_than_the_width_leave_some_open() -> None:
    leak, image = seen(lambda: VisionTransformer(16, 2, 48))
    found = trace_transformer(leak)
    assert found.status == "partial"
    assert found.reason == "the gradient of 'positions' gives equations of rank 47 for 64 unknowns"
    assert 0.1 < error(found.inputs, image) < found.claimed
    other = trace_transformer(leak, form="attention")
    assert (other.status, other.reason) == (
        "failed", "the gradient of 'blocks.0.attention.query.weight' has rows of 49 numbers, too few for 65 tokens",
    )  # fmt: skip


def test_one_block_that_only_the_class_token_leaves_shows_few_tokens() -> None:
    """Its gradient has at most two rows for each head, and one for the query."""
    leak, image = seen(lambda: VisionTransformer(16, 4, 48, heads=4, depth=1))
    assert trace_transformer(leak, form="attention").reason == (
        "the gradient of 'blocks.0.attention.query.weight' has a lower rank than 17, the number of tokens"
    )
    assert error(trace_transformer(leak).inputs, image) < 1e-5


def test_a_zero_gradient_is_named() -> None:
    def fresh() -> nn.Module:
        model = VisionTransformer(16, 4, 48)
        nn.init.zeros_(model.head.weight)
        return model

    leak, _ = seen(fresh)
    for form, name in (("positions", "positions"), ("attention", "blocks.0.attention.query.weight")):
        found = trace_transformer(leak, form=form)
        assert found.status == "failed"
        assert found.reason.startswith(f"the gradient of '{name}' is zero, because the last layer's weight is zero")
        assert found.inputs.isnan().all()


@pytest.mark.parametrize("function", [lambda x: (15 * x).round() / 15, lambda x: x.clamp(0, 1), lambda x: x - x.mean()])
def test_what_the_network_computes_from_pixels_is_read_without_a_guarantee(
    function: Callable[[Tensor], Tensor],
) -> None:
    torch.manual_seed(0)
    image = torch.rand(1, 3, 16, 16)
    found = trace_transformer(observe(Front(function, VisionTransformer(16, 4, 48)), image, torch.tensor([1])))
    assert found.status == "partial"
    assert "constant factor" in found.in_front
    assert error(found.inputs, function(image)) < 1e-3


def test_batches_and_local_steps_are_refused_with_the_reason() -> None:
    leak, _ = seen(MODELS["own"], count=2)
    with pytest.warns(GradleakWarning, match="sums the tokens of 2 images"):
        assert invert_transformer(leak).isnan().all()
    with pytest.raises(InputError, match="the sum of the gradients of 3 local steps"):
        trace_transformer(replace(leak, local_steps=3))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(784, 10)), "'0', does not embed patches"),
        (nn.Sequential(nn.Flatten(), nn.Linear(768, 10)), "'1', does not embed patches"),
        (nn.Sequential(nn.Conv2d(3, 4, 4, 4), nn.Flatten(), nn.Linear(64, 10)), "no later module receives the outputs"),
        (nn.Sequential(nn.AvgPool2d(2), VisionTransformer(8, 4, 48)), "are not the image's pixels"),
        (nn.Sequential(nn.ZeroPad2d(4), VisionTransformer(24, 4, 48)), "are not the image's pixels"),
        (nn.Sequential(nn.Upsample(scale_factor=2), VisionTransformer(32, 4, 48)), "each pixel once"),
    ],
)
def test_other_networks_are_refused(model: nn.Module, message: str) -> None:
    with pytest.raises(InputError, match=message):
        trace_transformer(seen(lambda: model)[0])


def test_an_audit_shows_the_image_and_names_a_fresh_head() -> None:
    torch.manual_seed(0)
    model, images = VisionTransformer(16, 4, 48), torch.rand(4, 3, 16, 16)
    report = gradleak.audit(model, images, torch.arange(4), batch_sizes=(1, 2), defenses=("none", "clip/0.1"), steps=1)
    for defense in ("none", "clip/0.1"):
        found = next(
            one for one in report.findings
            if (one.attack, one.defense, one.batch_size) == ("patches of a transformer", defense, 1)
        )  # fmt: skip
        assert found.certificate == "exact"
        assert found.measures["image-psnr"] > 80
    refused = next(one.why for one in report.not_tried if one.attack == "patches of a transformer")
    assert refused == "the gradients sum the tokens of all images, and these equations do not separate them"
    nn.init.zeros_(model.head.weight)
    fresh = gradleak.audit(model, images, torch.arange(4), batch_sizes=(1,), steps=1)
    found = next(one for one in fresh.findings if one.attack == "patches of a transformer")
    assert (found.certificate, "the last layer's weight is zero" in found.sentence) == ("failed", True)


def test_averaged_heads_give_the_image_and_no_labels() -> None:
    leak, image = seen(Distilled)
    model, state, step = leak.model, leak.model.state_dict(), 0.1
    after = {name: value - step * leak.gradients[name] for name, value in state.items()}
    update = Leak.from_update(model, state, after, rate=step, batch_size=1, input_shape=(3, 16, 16))
    label = torch.tensor([0])
    for found in (leak, update):
        assert (found.head, found.averaged) == ("head", ("head", "head_dist"))
        for attack in (recover_soft_labels, lambda own: count_labels(own, "llg"), lambda own: own.weight_gradient):
            with pytest.raises(InputError, match="mean of several layers' outputs: 'head', 'head_dist'"):
                attack(found)
    for report in (
        gradleak.audit(model, image, label, batch_sizes=(1,), steps=1),
        gradleak.audit_update(update, inputs=image, targets=label, steps=1),
    ):
        outcomes = {one.target: one for one in report.outcomes}
        assert (outcomes["inputs"].certified, report.broken) == (1, [])
        assert outcomes["labels"].outcome == "not attacked"
        assert "mean of several layers' outputs" in outcomes["labels"].why
        assert "not attacked: labels" in report.verdict
    other = Distilled()
    other.forward = lambda x: other.head(other.body(x)) + other.head_dist(other.body(x))  # type: ignore[method-assign]
    with pytest.raises(InputError, match="does not end in a Linear layer"):
        observe(other, image, label)


def test_equations_are_measured_by_what_they_miss():
    """Equations with ten times the expected error count less; without spare equations all count the same."""
    torch.manual_seed(0)
    unknowns, columns, error = 20, 400, torch.ones(100, 1, dtype=torch.float64)
    error[::2] = 10
    matrix, value = torch.randn(100, unknowns).double(), torch.randn(unknowns, columns).double()
    target = matrix @ value + error * torch.randn(100, columns).double()
    spread = solve(matrix, target, prior=1e3).spread
    assert float(spread[::2].min()) > 1.5 * float(spread[1::2].max())
    weighted = solve(matrix / spread[:, None], target / spread[:, None], prior=1e3)
    missed = [float((one.value - value).norm()) for one in (solve(matrix, target, prior=1e3), weighted)]
    assert missed[1] < missed[0] / 2
    square = solve(matrix[:unknowns], target[:unknowns], prior=1e3).spread
    torch.testing.assert_close(square, torch.ones_like(square), atol=1 / EXPECTED, rtol=0)
