"""Texts from one gradient of a transformer of any package

Beyond dang2021: whole texts from models of GPT-2's and LLaMA's form, without marks for their start and end, and with
the last layer tied to the embedding. One of the models is trained, and its texts are English.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from typing import Any, Literal

import torch
from matplotlib.figure import Figure
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from gradleak import claims, studies
from gradleak.data import text
from gradleak.errors import MissingData
from gradleak.leak import observe
from gradleak.models.language import build_language_model
from gradleak.models.smollm2 import smollm2
from gradleak.sequences import read_sentences
from gradleak.show.aggregate import select
from gradleak.show.drawn import drawn, lines
from gradleak.show.summary import Leaks, Summary
from gradleak.studies import Columns, Experiment, Group, Record, setting
from gradleak.studies.dang2021.experiments import two_digits
from gradleak.studies.shared.attempts import timed
from gradleak.studies.shared.outcomes import Outcome, collected, share_of
from gradleak.studies.shared.read import reading_of
from gradleak.wording import counted

PLACE = "Beyond section 2.5"
# The models by name: their titles, and the sizes of their vocabularies.
TITLES = {"package": "this book's transformer", "gpt2": "GPT-2's form", "llama": "LLaMA's form", "smollm2": "SmolLM2"}
PIECES = {"package": 1000, "gpt2": 50_257, "llama": 32_000}


class Client(Group):
    """A model, its width and layers, and batches of `size` texts of `length` tokens; SmolLM2 has width 576."""

    model: Literal["package", "gpt2", "llama", "smollm2"]
    width: int = Field(ge=64, multiple_of=64)
    layers: PositiveInt
    size: PositiveInt
    length: int = Field(ge=2)
    batches: PositiveInt


class Parameters(studies.Parameters):
    """Parameters of the page: clients with their models and batches, and those with one model and more and more texts.

    Models other than this package's need the package `transformers`, and SmolLM2 its own package.
    """

    clients: list[Client] = setting(
        paper=Client.listed(
            ("smollm2", 576, 30, 1, 32, 10),
            ("gpt2", 768, 12, 1, 64, 1),
            ("gpt2", 768, 2, 4, 32, 2),
            ("llama", 512, 2, 4, 32, 2),
        ),
        smallest=Client.listed(("package", 64, 2, 2, 6, 1)),
    )
    limits: list[Client] = setting(
        paper=Client.listed(
            *(("package", width, 2, size, 16, 5) for width in (64, 128) for size in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10))
        ),
        smallest=Client.listed(("package", 64, 2, 5, 16, 1)),
    )

    def experiments(self) -> Iterator[Experiment]:
        """Yield the batches of each client, then those of the clients with more and more texts."""
        for part, clients in ((ReadTexts, self.clients), (ReadMoreTexts, self.limits)):
            for client in clients:
                about = {name: value for name, value in dict(client).items() if name != "batches"}
                for number in range(client.batches):
                    yield part.of(self, **about, number=number)

    def about(self) -> str:
        """Return the size of a run in a few words."""
        batches = sum(client.batches for client in (*self.clients, *self.limits))
        return f"{batches:,} batches of {len({client.model for client in self.clients})} models"


class OnTransformer(Experiment):
    """The batch with a `number`, of texts without marks."""

    model: str
    width: int
    layers: int
    size: int
    length: int
    number: int

    def run(self) -> Iterator[Columns]:
        """Read the batch."""
        model, tokenizer = built(self.model, self.width, self.layers, self.seed)
        model.to(self.device)
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + 1009 * self.size + self.number)
        if tokenizer is None:
            own = torch.randint(PIECES[self.model], (self.size, self.length), generator=generator)
        else:
            own = spoken(tokenizer, self.size, self.length, generator)
        found, seconds = timed(read_sentences, observe(model, own.to(self.device)), None, end=None)
        # Every token but a text's last one is an input.
        yield reading_of(found, own.tolist()) | {"tokens": own[:, 1:].numel(), "seconds": seconds}


class ReadTexts(OnTransformer, part="read"):
    """Batches of several models."""


class ReadMoreTexts(OnTransformer, part="limit"):
    """Batches with more and more texts, until their tokens fill the layers."""


@functools.lru_cache(maxsize=1)
def built(name: str, width: int, layers: int, seed: int) -> tuple[nn.Module, Any]:
    """Return a model in eval mode, untrained but for SmolLM2, and its tokenizer, None for an untrained model."""
    if name == "smollm2":
        return smollm2()
    if name == "package":
        sizes = {"pieces": PIECES[name], "width": width, "layers": layers}
        return build_language_model("transformer", **sizes, tied=True, seed=seed), None
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise MissingData(f"{TITLES[name]} needs a package: pip install 'gradleak[transformers]'") from error
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name == "gpt2":
            config = transformers.GPT2Config(n_embd=width, n_layer=layers, n_head=width // 64)
            return transformers.GPT2LMHeadModel(config).eval(), None
        heads = {"num_attention_heads": width // 64, "num_key_value_heads": width // 64}
        config = transformers.LlamaConfig(
            vocab_size=PIECES[name], hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers,
            tie_word_embeddings=True, **heads,
        )  # fmt: skip
        return transformers.LlamaForCausalLM(config).eval(), None


def spoken(tokenizer: Any, size: int, length: int, generator: torch.Generator) -> Tensor:
    """Return texts (B, T) of this project's sentences, drawn at random and joined."""
    sentences = text.texts("sentences")
    rows = []
    for _ in range(size):
        order = torch.randperm(len(sentences), generator=generator)[:length].tolist()
        joined = " ".join(f"{sentences[one].capitalize()}." for one in order)
        rows.append(tokenizer.encode(joined).ids[:length])
    return torch.tensor(rows)


def summary(record: Record) -> Summary:
    """Return the finding: whole texts are read from one gradient, as long as the tokens do not fill the layers."""
    known = claims.judgements(record)
    read, sure = known["language-models-smollm2"], known["language-models-promise"]
    rows = select(record.rows(ReadTexts), model="smollm2")
    seconds = "" if rows.empty else f", in {two_digits(rows['seconds'].median())} CPU seconds each on median"
    return Summary(
        f"From one gradient of the trained language model SmolLM2 a server reads whole texts ({read.cases} "
        f"exactly{seconds}); an untrained transformer reveals all texts until their tokens fill its width.",
        true=bool(read.agrees and sure.agrees and known["language-models-limit"].agrees),
        claim="language-models-smollm2",
        what="texts of 32 tokens read exactly (SmolLM2, trained, 135 million parameters)",
        figure=figure_limits,
        of="texts",
        leaks=Leaks(
            "a whole text",
            "one text of 32 tokens; SmolLM2, trained",
            f"{read.cases} texts read exactly",
            f"{two_digits(rows['seconds'].median())} s" if len(rows) else "–",
            kind="text",
            attack="words in the span",
            network="SmolLM2",
            batch=1,
        ),
        outcomes=outcomes(record),
    )


def outcomes(record: Record) -> list[Outcome]:
    """Return what the attack reached for each model and batch size."""
    rows = record.frame()
    trained = rows["model"] == "smollm2"
    return collected(
        record, rows, "text", share_of("exact", "batches read completely", "batches"), attack="words in the span",
        network=rows["model"].map(TITLES), training=trained.map({True: "trained", False: "untrained"}),
        data=trained.map({True: "sentences", False: "random tokens"}), batch=rows["size"],
        detail="width " + rows["width"].astype(int).astype(str) + ", layers: " + rows["layers"].astype(int).astype(str),
    )  # fmt: skip


def figure_limits(record: Record) -> Figure:
    """Draw the share of texts that are read against the number of tokens, in widths of the model."""
    frame = record.rows(ReadMoreTexts)
    frame = frame.assign(
        filled=frame["tokens"] / frame["width"], model="width " + frame["width"].astype(int).astype(str)
    )
    return drawn(
        frame,
        lines("filled", "right", by="model", aside=0.0),
        height=3.2,
        legend=2,
        xlabel="tokens of the batch / width of the model",
        ylabel="share of texts read exactly (mean)",
        ylim=(-0.03, 1.05),
    )


def readings(record: Record) -> str:
    """Return a sentence on each model: how many batches were read and certified, and in which time."""
    lines = []
    keys = ["model", "width", "layers", "size", "length"]
    for _, rows in record.rows(ReadTexts).groupby(keys, sort=False):
        client = rows.iloc[0]
        layers, texts = counted(int(client["layers"]), "layer"), counted(int(client["size"]), "text")
        lines.append(
            f"- {TITLES[client['model']]}, width {client['width']:.0f}, {layers}, {texts} of {client['length']:.0f} "
            f"tokens: {rows['exact'].sum()} of {len(rows)} read exactly, {rows['unique'].sum()} certified, "
            f"{rows['wrongly_sure'].sum()} of them wrongly; the recomputed gradient differs by at most "
            f"{rows['misfit'].max():.0e}; {two_digits(rows['seconds'].median())} s of CPU time (median)."
        )
    return "\n".join(lines)
