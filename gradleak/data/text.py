"""Load texts by name, each with its vocabulary of word pieces."""

from __future__ import annotations

import functools
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gradleak import paths
from gradleak.data import recordings
from gradleak.data.base import DatasetState, Split
from gradleak.errors import InputError, MissingData, StorageError, unknown

RECORDED = "librispeech-recorded"
NAMES = ("sentences", "librispeech", RECORDED)
TITLES = {"sentences": "sentences of our own", "librispeech": "LibriSpeech", RECORDED: "LibriSpeech, recorded"}
# Sentences written for this project, for studies of words on machines without other texts.
SENTENCES = Path(__file__).with_name("sentences.txt")
TRANSCRIPTS, PIECES = "librispeech_transcripts.txt", "librispeech_vocabulary.txt"
# The largest number of characters of a transcript that dang2021 attacks; longer transcripts are for training.
SHORT = 50
ALIKE = 10  # dang2021 attacks at most this number of transcripts of each length in characters
UNKNOWN, START, END = "<unk>", "<s>", "</s>"
SPACE = "▁"  # marks the beginning of a word
EMBEDDED_PIECES = 1024


@dataclass(frozen=True)
class Vocabulary:
    """Word pieces of a byte-pair encoding, in the order in which they were merged; `▁` marks the start of a word.

    Attributes:
        pieces: The pieces; a piece's index is its token.
        places: The token of each piece.
    """

    pieces: tuple[str, ...]
    places: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "places", {piece: place for place, piece in enumerate(self.pieces)})
        if len(self.places) != len(self.pieces):
            raise InputError("a vocabulary must not have a piece twice")
        for mark in (UNKNOWN, START, END):
            if mark not in self.places:
                raise InputError(f"a vocabulary must have the mark {mark}")

    def __len__(self) -> int:
        return len(self.pieces)

    @property
    def unknown(self) -> int:
        """The token of characters that no piece covers."""
        return self.places[UNKNOWN]

    @property
    def start(self) -> int:
        """The token before a sentence."""
        return self.places[START]

    @property
    def end(self) -> int:
        """The token after a sentence."""
        return self.places[END]

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without the marks of start and end.

        Each word starts as single letters. Two adjacent pieces are merged whenever the result is in the vocabulary. If
        several results are, the one that comes first in the vocabulary is merged first.
        """
        return [token for word in text.lower().split() for token in self._word(word)]

    def _word(self, word: str) -> list[int]:
        parts = [SPACE, *word]
        while len(parts) > 1:
            candidates = [self.places.get(left + right, len(self)) for left, right in itertools.pairwise(parts)]
            earliest = min(candidates)
            if earliest == len(self):
                break
            position = candidates.index(earliest)
            parts[position : position + 2] = [self.pieces[earliest]]
        return [self.places.get(part, self.unknown) for part in parts]

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of tokens, without the marks of start and end."""
        marks = (self.start, self.end)
        return "".join(self.pieces[token] for token in tokens if token not in marks).replace(SPACE, " ").strip()


def build_vocabulary(sentences: Sequence[str], size: int) -> Vocabulary:
    """Return a vocabulary of `size` pieces by byte-pair encoding: all letters, then the most frequent pairs.

    The vocabulary is smaller if all words are single pieces before that size is reached.

    Examples:
        >>> pieces = build_vocabulary(["gradient", "gradients leak"], 32)
        >>> pieces.decode(pieces.encode("leak gradients"))
        'leak gradients'
    """
    count = Counter(word for sentence in sentences for word in sentence.lower().split())
    parts = {word: [SPACE, *word] for word in sorted(count)}
    letters = Counter({SPACE: sum(count.values())})
    pairs: Counter[tuple[str, str]] = Counter()
    holders: dict[tuple[str, str], set[str]] = defaultdict(set)

    def tally(word: str, sign: int) -> None:
        for pair in itertools.pairwise(parts[word]):
            pairs[pair] += sign * count[word]
            holders[pair].add(word)

    for word in parts:
        for letter in word:
            letters[letter] += count[word]
        tally(word, 1)
    pieces = [
        UNKNOWN,
        START,
        END,
        *sorted(letters, key=lambda character: (character != SPACE, -letters[character], character)),
    ]
    while len(pieces) < size:
        pair, frequency = max(pairs.items(), key=lambda item: (item[1], item[0]), default=(("", ""), 0))
        if frequency < 1:
            break
        merged = "".join(pair)
        for word in sorted(holders.pop(pair)):
            tally(word, -1)
            joined: list[str] = []
            for part in parts[word]:
                if joined and (joined[-1], part) == pair:
                    joined[-1] = merged
                else:
                    joined.append(part)
            parts[word] = joined
            tally(word, 1)
        del pairs[pair]
        if merged not in pieces:
            pieces.append(merged)
    return Vocabulary(tuple(pieces))


def texts(name: str, split: Split | None = None) -> tuple[str, ...]:
    """Return a text's sentences in lower case.

    Args:
        name: "sentences" for the sentences of this project, "librispeech", or "librispeech-recorded".
        split: "test" for sentences to attack, "train" for sentences to train on, None for all. The test split of
            "librispeech" has the transcripts of at most 50 characters (402, as in dang2021); the test split of
            "sentences" has every second sentence. "librispeech-recorded" has no others than its test split: by the same
            rule, at most ten transcripts of a length, those that have recordings, first those of "librispeech".
    """
    if split not in (None, "train", "test"):
        raise InputError(f"split must be 'train' or 'test'; got '{split}'")
    if name == "sentences":
        sentences = _read(SENTENCES)
        return {None: sentences, "test": sentences[::2], "train": sentences[1::2]}[split]
    _check(name)
    if name == RECORDED:
        return () if split == "train" else _recorded()
    lines = [line.partition(" ")[2].strip().lower() for line in _lines(TRANSCRIPTS)]
    return tuple(line for line in lines if split is None or (len(line) <= SHORT) == (split == "test"))


@functools.cache
def vocabulary(name: str) -> Vocabulary:
    """Return the vocabulary of a text: published for "librispeech", built here for "sentences"."""
    _check(name)
    return build_vocabulary(_read(SENTENCES), EMBEDDED_PIECES) if name == "sentences" else Vocabulary(_lines(PIECES))


def _recorded() -> tuple[str, ...]:
    """Return the transcripts to attack of which there are recordings, sorted by length."""
    listed = set(texts("librispeech", "test"))
    short = [text for text in recordings.transcripts() if len(text) <= SHORT]
    by_length = itertools.groupby(sorted(short, key=lambda text: (len(text), text not in listed)), key=len)
    return tuple(text for _, alike in by_length for text in itertools.islice(alike, ALIKE))


def source(name: str) -> str:
    """Return one line that names the source from which `texts` would read a text, without reading it."""
    _check(name)
    return next(f"{state.name}: {state.source}" for state in states() if state.name == name)


def states() -> list[DatasetState]:
    """Return the state of every text."""
    count = len(_read(SENTENCES))
    sentences = DatasetState(
        "sentences", "embedded", "sentences of our own", count, EMBEDDED_PIECES, "text", "classes: word pieces"
    )
    try:
        count, pieces, source = len(_lines(TRANSCRIPTS)), len(_lines(PIECES)), f"$GRADLEAK_TEXT/{TRANSCRIPTS}"
        published = DatasetState("librispeech", "file", source, count, pieces, "text", "classes: word pieces")
    except MissingData:
        needed = f"wants {TRANSCRIPTS} and {PIECES} in $GRADLEAK_TEXT"
        published = DatasetState("librispeech", "missing", needed, None, None, "text", "")
    except StorageError:
        published = DatasetState("librispeech", "damaged", TRANSCRIPTS, None, None, "text", "cannot be read")
    try:
        source, count = f"$GRADLEAK_DATA/{recordings.FILE}", len(recordings.transcripts())
        heard = DatasetState(RECORDED, "file", source, count, published.classes, "speech", "of LibriSpeech's test sets")
    except MissingData:
        heard = DatasetState(RECORDED, "missing", recordings.WANTED, None, None, "speech", "")
    except StorageError:
        heard = DatasetState(RECORDED, "damaged", recordings.FILE, None, None, "speech", "cannot be read")
    return [sentences, published, heard]


def _check(name: str) -> None:
    if name not in NAMES:
        raise unknown("text", name, NAMES)


@functools.cache
def _read(path: Path) -> tuple[str, ...]:
    return tuple(path.read_text("utf-8").removesuffix("\n").split("\n"))


def _lines(file: str) -> tuple[str, ...]:
    folder = paths.text_folder()
    if folder is None or not (folder / file).is_file():
        raise MissingData(
            f"{file} is not at hand: put it into a folder and set $GRADLEAK_TEXT to it (or name the folder 'text' "
            "and put it next to $GRADLEAK_DATA); 'sentences' is embedded and needs no file"
        )
    try:
        return _read(folder / file)
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"{file} in the folder of texts cannot be read: copy it again") from error
