"""The posterior attack: counting labels on untrained and trained networks

posterior2023, section 4: Tables 2 and 3, Figures 3 and 4.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import augment, claims, data, metrics, studies
from gradleak.labels import Knowledge, count_heads
from gradleak.leak import HeadLeaks, head_inputs, observe_heads
from gradleak.losses import CrossEntropy, Focal, Loss
from gradleak.models import training
from gradleak.show.aggregate import aggregate, among, joined, only, select
from gradleak.show.drawn import Look, arranged, drawn, level, lines, only_rows, panel, powers_of_two
from gradleak.show.summary import Leaks, Summary
from gradleak.show.tables import duration
from gradleak.studies import Columns, Experiment, Group, Record, Sees, setting
from gradleak.studies.shared.attacked_networks import Adapted, built
from gradleak.studies.shared.outcomes import Outcome, average_of, collected, guessed, stages
from gradleak.studies.shared.tally import LOOKS, load, others

PLACE = "Section 4, Tables 2 and 3, Figures 3 and 4"
ATTACKS = {"LLG": "llg*", "iLRG": "ilrg", "posterior": "posterior", "guess": "guess"}
# LLG and iLRG as published assume cross-entropy, and LLG's random inputs are pixels although the client normalises its
# inputs. In the "told" variants both know the loss and the smoothing, and random inputs are normalised too.
TOLD = {name: ATTACKS[name] for name in ("LLG", "iLRG", "guess")}
# The claim of the page's key number.
KEY = "posterior-vgg16-with-relu-cifar-10-posterior-instance-accuracy"
# The largest total number of auxiliary samples, for datasets with many classes.
MOST = 2000
# The batch size of Figure 4 on a trained model.
SIZE = 32
# The size of the batches that a model learns by plain gradient descent, and the number of its private images.
LEARNED, PRIVATE = 64, 2000
OPTIMIZERS = {"adam": "Adam", "sgd": "SGD with momentum"}
# Section 4.3 says that the accuracy is above this in every setting of Figure 3; its curves have no numbers.
PUBLISHED_BOUND = 0.9
UNTRAINED = "posterior, untrained"
PUBLISHED: Look = {"color": "0.1", "linestyle": (0, (1, 1)), "linewidth": 1.2}
# The usual loss and labels.
USUAL = {"loss": "ce", "temperature": 1.0, "epsilon": 0.0}
# Schemes of initial weights by their names in tables.
WEIGHTS = {"torch": "layer default", "kaiming": "He, fan-out", "uniform": "uniform"}


class Attacked(Group):
    """A network, its private images and the batch size; the activation is empty for the network's default."""

    dataset: str
    network: str
    activation: str
    size: PositiveInt


class Variant(Group):
    """A loss, its temperature, and the smoothing ε of its labels."""

    loss: Literal["ce", "focal"]
    temperature: float = Field(gt=0)
    epsilon: float = Field(ge=0, lt=1)


class Learner(Group):
    """A network with its initial weights, and the rate and the number of its steps of plain gradient descent."""

    network: str
    init: str
    rate: float = Field(gt=0)
    steps: PositiveInt


class Parameters(studies.Parameters):
    """Parameters of the page: networks and their training, losses, batches and auxiliary samples."""

    rows: list[Attacked] = setting(
        paper=Attacked.listed(
            *(("mnist", "lenet5", activation, 32) for activation in ("sigmoid", "tanh")),
            *(("cifar100", "resnet50-cifar", activation, 256) for activation in ("relu", "selu")),
            *(("cifar10", "vgg16", activation, 32) for activation in ("elu", "relu")),
        ),
        smallest=Attacked.listed(("photos", "lenet5", "sigmoid", 8)),
        min_length=1,
    )
    init: str
    told: list[str] = setting(paper=["lenet5", "vgg16"])
    inits: list[Literal["kaiming", "uniform"]] = setting(paper=["kaiming", "uniform"])
    networks: int = setting(paper=4, smallest=1, ge=1, le=1000)
    batches: int = setting(smallest=2, ge=1, le=10_000)
    auxiliary: int = setting(paper=100, smallest=2, ge=1, le=1000)
    variants: list[Variant] = setting(smallest=Variant.listed(("ce", 0.8, 0)))
    sizes: list[PositiveInt] = setting(paper=[64, 128, 256, 512, 1024], smallest=[8])
    shares: list[float] = setting(paper=[0.1, 0.3, 0.5, 0.7, 0.9], smallest=[0.5])
    scales: list[PositiveInt] = setting(paper=[1, 5, 10, 50, 100], smallest=[1])
    epochs: int = setting(ge=1, le=100)
    learns: str = setting(paper="cifar10-jpeg")
    optimizers: list[Literal["adam", "sgd"]] = setting(smallest=["adam"])
    rates: list[float] = setting(paper=[0.001, 0.003, 0.01, 0.1], smallest=[0.1])
    learning_steps: list[PositiveInt] = setting(paper=[40, 782], smallest=[2])
    learners: list[Learner] = setting(
        paper=Learner.listed(*(("vgg16-plain", init, 0.001, 782) for init in ("kaiming", "torch"))),
        smallest=Learner.listed(("lenet5", "torch", 0.1, 2)),
    )

    def sees(self) -> list[Sees]:
        """Return the networks of all rows with their images, and the trained model with its training set."""
        last = self.rows[-1]
        return [
            *(Sees(row.network, row.dataset, activation=row.activation) for row in self.rows),
            *(
                Sees(network, last.dataset, activation=last.activation, learns=self.learns)
                for network in (last.network, *(one.network for one in self.learners))
            ),
        ]

    def experiments(self) -> Iterator[Experiment]:
        """Yield the rows of Tables 2 and 3, the settings of the figures, rows with more knowledge or other weights, and
        the models that are trained on a whole training set.
        """
        first = [row for row in self.rows if row.network == self.rows[0].network]
        main = USUAL | dict(self.rows[-1])
        made: list[tuple[type[Counting], dict[str, Any]]] = [
            *((OfRow, USUAL | dict(row)) for row in self.rows),
            *((OfVariant, main | dict(variant)) for variant in self.variants),
            *((OfScale, main | {"auxiliary": scale}) for scale in self.scales),
            *((Told, USUAL | dict(row)) for row in self.rows if row.network in self.told),
            *((Told, main | dict(variant)) for variant in self.variants),
            *((OfWeights, USUAL | dict(row) | {"init": init}) for row in first for init in self.inits),
        ]
        for kind, inputs in made:
            yield kind.of(self, **inputs)
        last = {name: value for name, value in self.rows[-1] if name != "size"}
        last |= {"batches": self.networks * self.batches}
        for optimizer in self.optimizers:
            yield TrainedModel.of(self, **last, optimizer=optimizer, shares=[0.0, *self.shares])
        for steps in self.learning_steps:
            for rate in self.rates:
                yield LearningModel.of(self, **last, rate=rate, steps=steps)
        for learner in self.learners:
            yield LearnedModel.of(self, **last | dict(learner), shares=[0.0, *self.shares])

    def about(self) -> str:
        """Return the number of networks and batches of a run in a few words."""
        images = ", ".join(data.title(name) for name in dict.fromkeys(row.dataset for row in self.rows))
        return f"{self.networks} networks a row with {self.batches} batches each; {images}"


def skewed(private: data.Dataset, size: int, share: float, generator: torch.Generator) -> Tensor:
    """Return the indices (B,) of a batch in which a share of the samples has the same class.

    The other samples have random other classes. With a share of 0 all classes are drawn at random.
    """
    wanted = torch.randint(private.classes, (size,), generator=generator)
    if share:
        few = round(share * size)
        others = wanted[few:] % (private.classes - 1)
        first = int(torch.randint(private.classes, (1,), generator=generator))
        wanted = torch.cat([torch.full((few,), first), others + (others >= first)])
    return augment.samples_of(private.labels, wanted, generator)


def accuracy(attack: str, counts: list[Tensor], truth: list[Tensor]) -> Columns:
    """Return a row with an attack's accuracy, averaged over batches, from found and true counts (N, C) of some batches.

    Returns:
        The class accuracy, which is the Jaccard index of found and true sets of classes; the instance accuracy, which
        is the Jaccard index of found and true counts, with its standard deviation; and the number of batches.
    """
    found, true = torch.cat(counts), torch.cat(truth)
    instances = metrics.count_jaccard(found, true)
    return {
        "attack": attack,
        "classes": float(metrics.class_jaccard(found, true).mean()),
        "instances": float(instances.mean()),
        "spread": float(instances.std()) if len(instances) > 1 else 0.0,
        "count": len(instances),
    }


class Leaked(NamedTuple):
    """The leaks of some batches, and what attackers know.

    Attributes:
        heads: The leaks of the batches (N).
        truth: The true counts (N, C).
        known: What the posterior attack knows.
        earlier: What LLG and iLRG know.
    """

    heads: HeadLeaks
    truth: Tensor
    known: Knowledge
    earlier: Knowledge


def counted(attacks: Mapping[str, str], batches: Iterable[Leaked]) -> list[Columns]:
    """Count the labels of batches by each attack, and return the accuracy of each attack and its time per batch.

    Args:
        attacks: The attacks' names in tables, and their methods.
        batches: The leaks of the batches.
    """
    found: dict[str, list[Tensor]] = {name: [] for name in attacks}
    true, seconds = [], dict.fromkeys(attacks, 0.0)
    for heads, counts, known, earlier in batches:
        true.append(counts)
        for name, method in attacks.items():
            started = time.perf_counter()
            own = earlier if name in ("LLG", "iLRG") else known
            found[name].append(count_heads(heads, method, own, whatever_holds=True).cpu())
            seconds[name] += time.perf_counter() - started
    number = sum(map(len, true))
    return [accuracy(name, own, true) | {"seconds": seconds[name] / number} for name, own in found.items()]


class Attacking(Experiment):
    """Batches on networks of one kind."""

    dataset: str
    network: str
    activation: str
    init: str
    batches: int
    auxiliary: int

    def through_head(
        self, model: nn.Module, settings: Iterable[tuple[int, float, int]], images: int | None = None
    ) -> Iterator[list[Columns]]:
        """Attack batches through the last layer of a model, and yield the rows of each setting.

        Samples do not influence each other, so the last layer's inputs are computed only once.

        Args:
            model: The model.
            settings: Batch sizes, shares of one class, and numbers of auxiliary samples per class.
            images: The number of private images, by default all.
        """
        private, public = load(self.dataset, "train"), load(self.dataset, "test")
        generator = torch.Generator().manual_seed(self.seed)
        if images is not None:
            few = torch.randperm(len(private), generator=generator)[:images]
            private = replace(private, images=private.images[few], labels=private.labels[few])
        earlier = Knowledge(model, input_shape=tuple(private.images.shape[1:]), seed=self.seed)
        private, public = _seen(model, private, self.device), _seen(model, public, self.device)
        head = model.get_submodule("head")

        def batches(size: int, share: float, each: int) -> Iterator[Leaked]:
            for number in range(self.batches):
                chosen = skewed(private, size, share, generator)
                inputs, labels = private.images[chosen].to(self.device), private.labels[chosen]
                heads = observe_heads(head, inputs, labels.to(self.device), batch_size=size)
                given, classes = others(public, each, generator)
                known = Knowledge(head, (given.to(self.device), classes.to(self.device)), seed=self.seed + number)
                yield Leaked(heads, labels.bincount(minlength=private.classes).unsqueeze(0), known, earlier)

        for size, share, each in settings:
            setting: Columns = {"size": size, "share": share, "auxiliary": each}
            yield [row | setting for row in counted(ATTACKS, batches(size, share, each))]


class Counting(Attacking):
    """Batches of one kind on untrained networks."""

    size: int
    networks: int
    loss: str
    temperature: float
    epsilon: float

    def run(self) -> list[Columns]:
        """Count the labels by each attack.

        In the part "told", all attacks know the loss, the smoothing and the normalisation of inputs. Otherwise only the
        posterior attack knows loss and smoothing.
        """
        told = self.part == "told"
        return counted(TOLD if told else ATTACKS, self._batches(told=told))

    def _batches(self, *, told: bool) -> Iterator[Leaked]:
        """Yield the batches of each network, with their true counts and what the posterior attack knows."""
        private, public = load(self.dataset, "train"), load(self.dataset, "test")
        generator = torch.Generator().manual_seed(self.seed)
        focal = self.loss == "focal"
        loss: Loss = Focal(temperature=self.temperature) if focal else CrossEntropy(self.temperature)
        for number in range(self.networks):
            seed = self.seed + number
            model = built(self.network, private, seed, self.device, init=self.init, activation=self.activation)
            given, classes = others(public, max(1, min(self.auxiliary, MOST // public.classes)), generator)
            chosen = torch.cat([skewed(private, self.size, 0.0, generator) for _ in range(self.batches)])
            labels = private.labels[chosen]
            targets = augment.smooth(labels, private.classes, self.epsilon, convention="posterior2023")
            inputs = private.images[chosen]
            if told:
                model = Adapted(data.normalise, model)
            else:
                inputs, given = data.normalise(inputs), data.normalise(given)
            inputs = inputs.to(self.device)
            heads = observe_heads(model, inputs, targets.to(self.device), loss=loss, batch_size=self.size)
            known = Knowledge(
                model,
                (given.to(self.device), classes.to(self.device)),
                tuple(inputs.shape[1:]),
                loss=loss,
                epsilon=self.epsilon,
                seed=seed,
            )
            counts = [one.bincount(minlength=private.classes) for one in labels.split(self.size)]
            earlier = known if told else replace(known, loss=None, epsilon=0.0)
            yield Leaked(heads, torch.stack(counts), known, earlier)


class OfRow(Counting, part="table 2"):
    """A row of Table 2: an untrained network and a batch size."""


class OfVariant(Counting, part="table 3"):
    """A loss, its temperature and a smoothing of Table 3."""


class OfScale(Counting, part="scale"):
    """A number of auxiliary samples of Figure 4, on untrained networks."""


class Told(Counting, part="told"):
    """A row of Table 2 or 3 for which LLG and iLRG also know loss, smoothing and the normalisation of inputs."""


class OfWeights(Counting, part="begun"):
    """A row of Table 2 with other initial weights."""


class AfterTraining(Attacking):
    """A model after training, and batches of every size, imbalance and number of auxiliary samples."""

    learns: str
    sizes: list[int]
    shares: list[float]
    scales: list[int]

    def in_settings(self, model: nn.Module, reached: float) -> Iterator[Columns]:
        """Count the labels by every attack, given a model and its accuracy on test images."""
        settings = [("settings", size, share, self.auxiliary) for size in self.sizes for share in self.shares]
        settings += [("scale", SIZE, 0.0, each) for each in self.scales]
        attacked = self.through_head(model.to(self.device), (setting[1:] for setting in settings))
        for (series, *_), rows in zip(settings, attacked, strict=True):
            for row in rows:
                yield row | {"series": series, "accuracy": 100 * reached}


class TrainedModel(AfterTraining, part="trained"):
    """A model that is trained by an optimizer with a one-cycle schedule."""

    epochs: int
    optimizer: Literal["adam", "sgd"]

    def run(self) -> Iterator[Columns]:
        """Train the model, and count the labels by every attack."""
        recipe = training.Recipe(
            network=self.network, dataset=self.learns, activation=self.activation, init=self.init, learning_rate=1e-3,
            seed=self.seed, epochs=self.epochs, optimizer=self.optimizer, weight_decay=0, flips_and_crops=False,
        )  # fmt: skip
        trained = training.train(recipe, device=self.device)
        yield from self.in_settings(trained.model, trained.accuracy)


class LearnedModel(AfterTraining, part="by descent"):
    """A model that learns by plain gradient descent, as `Learner` states it."""

    rate: float
    steps: int

    def run(self) -> Iterator[Columns]:
        """Train the model, and count the labels by every attack."""
        yield from self.in_settings(*by_descent(self))


class LearningModel(Attacking, part="learned"):
    """A model after some steps of plain gradient descent, with balanced batches of every size."""

    rate: float
    steps: int
    learns: str
    sizes: list[int]

    def run(self) -> Iterator[Columns]:
        """Train the model, and count the labels by every attack."""
        model, reached = by_descent(self)
        settings = [(size, 0.0, self.auxiliary) for size in self.sizes]
        first: list[Any] = []
        for rows in self.through_head(model, settings, PRIVATE):
            first = first or [row["instances"] for row in rows]
            for row, least in zip(rows, first, strict=True):
                yield row | {"accuracy": 100 * reached, "gain": row["instances"] - least}


def by_descent(wanted: LearnedModel | LearningModel) -> tuple[nn.Module, float]:
    """Return a model after some steps of plain gradient descent, and its accuracy on test images."""
    learning, device = load(wanted.learns, "train"), wanted.device
    generator = torch.Generator().manual_seed(wanted.seed)
    model = built(wanted.network, learning, wanted.seed, device, init=wanted.init, activation=wanted.activation)
    optimizer = torch.optim.SGD(model.parameters(), lr=wanted.rate)
    model.train()
    for _ in range(wanted.steps):
        chosen = torch.randint(len(learning), (LEARNED,), generator=generator)
        images, labels = data.normalise(learning.images[chosen]), learning.labels[chosen]
        optimizer.zero_grad()
        F.cross_entropy(model(images.to(device)), labels.to(device)).backward()
        optimizer.step()
    return model, training.accuracy(model, load(wanted.dataset, "test"), device)


def _seen(model: nn.Module, dataset: data.Dataset, device: str) -> data.Dataset:
    """Return a dataset with the last layer's inputs in place of its images."""
    features, _ = head_inputs(model, data.normalise(dataset.images).to(device))
    return replace(dataset, images=features.cpu())


# The inputs that define a setting.
SETTING = [name for name in Counting.model_fields if name not in ("seed", "device", "networks", "batches")]


def summary(record: Record) -> Summary:
    """Return the finding: nearly all labels are counted before training, and fewer the more a model has learned."""
    known = claims.judgements(record)
    names = "lenet5-with-tanh-mnist", "resnet50-with-relu-cifar-100"
    lenet, resnet = (known[f"posterior-{name}-posterior-instance-accuracy"] for name in names)
    rows = select(record.rows(OfRow), attack="posterior")
    relu = select(rows, activation="relu").set_index("network").to_dict("index")
    small, large = relu["vgg16"], relu["resnet50-cifar"]
    plain, adam = known["descent-sizes"], known["trained-sizes"]
    even = select(record.rows(TrainedModel), series="settings", share=0.0, optimizer="adam")
    smallest = select(even, size=even["size"].min()).set_index("attack")["instances"]
    return Summary(
        "The posterior attack counts nearly all labels on untrained networks with default weights (accuracy "
        f"{lenet.text} on LeNet5 and VGG16, {resnet.text} on ResNet50), but after one epoch, in small balanced "
        f"batches, {plain.text} (plain gradient descent, no batch norm) or {adam.text} (Adam); equal counts give "
        f"{smallest['guess']:.3f}.",
        true=bool(lenet.agrees and known[KEY].agrees and rows["instances"].min() > 0.97)
        and bool((plain.value or 0) > smallest["guess"] + 0.1 and smallest["posterior"] < smallest["guess"]),
        claim=KEY,
        what="instance accuracy of the posterior attack (untrained VGG16 with ReLU, CIFAR-10, batches of 32)",
        figure=figure_settings,
        of="batches",
        leaks=Leaks(
            "label counts, from posteriors",
            f"batches of {small['size']} (VGG16) and {large['size']} (ResNet50), untrained; auxiliary data",
            f"instance accuracy (Jaccard index) {known[KEY].text} and {resnet.text} "
            f"({small['count']:.0f} batches each)",
            f"{duration(small['seconds'])} and {duration(large['seconds'])} elapsed",
            kind="labels",
            attack="posterior",
            batch=large["size"],
        ),
        outcomes=_outcomes(record),
    )


def _outcomes(record: Record) -> list[Outcome]:
    """Return what each attack of this page reached."""
    # A trained model has the usual loss and labels; only its rows state the share of a class and how it was trained.
    rows = record.frame().fillna(USUAL | {"series": "", "optimizer": "", "share": 0.0, "epochs": 0})
    rows = rows[rows["part"] != LearningModel.part]
    rows = rows.assign(epochs=rows["epochs"].mask(rows["part"] == LearnedModel.part, 1))
    rows = rows.assign(chance=100 * guessed(rows, "instances", ["part", "series", "optimizer", "share", *SETTING]))
    rows = rows[rows["attack"] != "guess"]
    found = average_of("instances", "instance accuracy", "batches", of=1.0, spread="spread")
    return collected(
        record, rows, "labels", found, chance=rows["chance"], attack=rows["attack"],
        network=rows["network"] + ", " + rows["activation"], training=stages(rows["epochs"]), data=rows["dataset"],
        batch=rows["size"], detail=[_setting(row) for _, row in rows.iterrows()],
    )  # fmt: skip


def _setting(row: Any) -> str:
    """Return in words how a setting differs from cross-entropy on random batches."""
    words = {
        row["optimizer"]: row["part"] == "trained",
        "plain gradient descent": row["part"] == LearnedModel.part,
        "attacker knows the loss and the features": row["part"] == "told",
        f"{row['init']} initialisation": row["init"] != "torch",
        f"{row['loss']} loss": row["loss"] != "ce",
        f"temperature {row['temperature']:g}": row["temperature"] != 1,
        f"labels smoothed by {row['epsilon']:g}": row["epsilon"] > 0,
        f"{row['share']:.0%} of one class": row["share"] > 0,
        f"{row['auxiliary']:g} auxiliary samples per class": "scale" in (row["part"], row["series"]),
    }
    return ", ".join(text for text, holds in words.items() if holds)


def table(record: Record) -> pd.DataFrame:
    """Return Table 2, also for other initial weights: the class and the instance accuracy, "class / instance".

    One row for each dataset, network, activation, batch size and scheme of weights; one column for each attack.
    """
    rows = pd.concat([record.rows(OfRow), record.rows(OfWeights)])
    rows = rows.sort_values(["network", "activation"], kind="stable")
    both = joined(" / ", only("classes", ".3f"), only("instances", ".3f"))
    return aggregate(
        rows.assign(dataset=rows["dataset"].map(data.title), init=rows["init"].map(WEIGHTS)),
        {name: name for name in ("dataset", "network", "activation")}
        | {"batch size": "size", "initial weights": "init"},
        {
            **{name: among(both, attack=name) for name in ATTACKS},
            "batches": only("count", "{:.0f}"),
            "posterior: elapsed time per batch": among(only("seconds", duration), attack="posterior"),
        },
    )


def figure_settings(record: Record) -> Figure:
    """Draw instance accuracy against batch size, class imbalance (Figure 3) and number of auxiliary samples (Figure 4).

    Each row shows a trained model, on the right beside untrained networks: first those of plain gradient descent, then
    those of other optimizers. Bands are ± one standard deviation over batches. The paper's values are a bound for
    Figure 3 and the series of Figure 4.
    """
    bound = level(PUBLISHED_BOUND, "the paper’s lower bound", **PUBLISHED)
    before = select(record.rows(OfScale), attack="posterior").assign(attack=UNTRAINED)
    columns = {"size": "batch size", "share": "share of one class", "auxiliary": "auxiliary samples per class"}
    looks = LOOKS | {UNTRAINED: LOOKS["posterior"] | {"marker": "s", "linestyle": "-"}}
    after = [
        *record.rows(LearnedModel).groupby(["network", "init"], sort=False),
        *record.rows(TrainedModel).groupby(["network", "optimizer"], sort=False),
    ]
    panels = []
    for (network, recipe), rows in after:
        title = f"{network}, {OPTIMIZERS.get(recipe) or f'plain descent, {WEIGHTS[recipe]}'}"
        settings, scales = (select(rows, series=series) for series in ("settings", "scale"))
        for own, column, published in (
            (select(settings, share=settings["share"].min()), "size", bound),
            (select(settings, size=settings["size"].min()), "share", bound),
            (pd.concat([before, scales]), "auxiliary", _paper_series),
        ):
            accuracy = lines(column, "instances", by="attack", band="spread", order=[*ATTACKS, UNTRAINED], looks=looks)
            scale = [powers_of_two(column)] if column != "share" else []
            axes = {
                "title": title if column == "size" else "",
                "xlabel": columns[column],
                "ylabel": "instance accuracy",
                "ylim": (0, 1.05),
            }
            panels.append(panel(own, accuracy, published, *scale, **axes))
    return arranged(panels, 3, height=2.6, legend=3)


def figure_learning(record: Record) -> Figure:
    """Draw instance accuracy in balanced batches against the model's accuracy on test images (%).

    Lines: models after some steps of plain gradient descent at several rates, and the two models after an epoch of
    Adam and of gradient descent with momentum. Crosses: other networks after plain gradient descent. Dashed: a guess.
    Dotted: the paper's lower bound.
    """
    epoch, others = (select(record.rows(kind), series="settings", share=0.0) for kind in (TrainedModel, LearnedModel))
    rows = pd.concat([record.rows(LearningModel), epoch, others]).sort_values(["size", "accuracy"])
    rows = rows.assign(line=rows["part"] != LearnedModel.part)
    rows = rows[rows["size"].isin([rows["size"].min(), rows["size"].max()])].astype({"size": int})
    attacked = lines("accuracy", "instances", by="size", label="batches of {}".format)
    guess = lines("accuracy", "instances", by="size", label="a guess, batches of {}".format, linestyle="--", marker="")
    look: dict[str, Any] = {"linestyle": "", "marker": "X", "markersize": 9}
    crosses = lines("accuracy", "instances", by="size", label="other networks, batches of {}".format, **look)
    return drawn(
        rows,
        only_rows(attacked, attack="posterior", line=True),
        only_rows(crosses, attack="posterior", line=False),
        only_rows(guess, attack="guess", line=True),
        level(PUBLISHED_BOUND, "the paper’s lower bound", **PUBLISHED),
        height=3.2,
        legend=4,
        xlabel="accuracy on test images (%)",
        ylabel="instance accuracy",
        ylim=(0, 1.05),
    )


def _paper_series(axis: Axes, rows: pd.DataFrame) -> None:
    """Draw the paper's series of Figure 4: the accuracy by the number of auxiliary samples per class."""
    values = claims.published("posterior-attack", "instances", ["auxiliary"])
    series = sorted((each, float(value)) for (each,), value in values.items())
    axis.plot(*zip(*series, strict=True), marker="*", label="the paper’s Figure 4", **PUBLISHED)
