"""The columns of the rows that the pages on dang2021 record."""

from gradleak.runs.columns import Column, Columns
from gradleak.studies.dang2021.experiments import percent, two_digits

COLUMNS = Columns(
    # Pages reveal-labels and words: the set of classes or tokens that one attack found, compared with the true set.
    precision=Column("precision", ".3f"),
    recall=Column("recall", ".3f"),
    f1=Column("F1", ".3f"),
    exact=Column("exactly right", percent),
    batch=Column("number of the batch", "{:.0f}"),
    attack=Column("attack"),
    found=Column("classes found", ".1f"),
    labels=Column("distinct classes in the batch", ".1f"),
    # reveal-labels measures the elapsed time.
    seconds=Column("CPU time (s)", two_digits),
    # words: utterances, or batches of them, and the number of tokens that the attack estimates.
    number=Column("number of the utterance or batch", "{:.0f}"),
    length=Column("tokens", "{:.0f}"),
    length_error=Column("length error (tokens)", ".2g"),
    same=Column("same words from artificial speech"),
    count=Column("utterances in which some word is found", "{:.0f}"),
    # sentences: the sentences that were read from a batch. `exact` is whether the attack found
    # all of its sentences and no others; `rank` is that of the gradient whose row span contains the prefixes.
    right=Column("sentences correct", ".0%"),
    false=Column("false sentences per batch", ".1f"),
    status=Column("status"),
    unique=Column("certified as unique", "{:.0f}"),
    wrongly_sure=Column("certified but wrong", "{:.0f}"),
    tokens=Column("tokens", ".0f"),
    prefixes=Column("prefixes in the span", ".0f"),
    rank=Column("rank", "{:.0f}"),
    misfit=Column("relative error of the recomputed gradient", ".1e"),
    # The words that the attack tries: "all", or "free" for those that the embedding's gradient shows.
    words=Column("words tried"),
    # Mean loss per token of a trained model: in the first and the last epoch, and on the attacked sentences.
    loss_first=Column("loss, first epoch", ".2f"),
    loss_last=Column("loss, last epoch", ".2f"),
    loss_test=Column("loss, attacked sentences", ".2f"),
    utility=Column("cosine to the clean gradient", ".3g"),
    multiplier=Column("standard deviation of the noise / clipping norm", "{:g}"),
    reader=Column("attack"),
    # A sentence that is read step by step: the distances of words from the span, relative to the norm of their vectors.
    # A step after the last word has no word.
    step=Column("step", "{:.0f}"),
    word=Column("word"),
    miss=Column("distance of the word", ".1e"),
    nearest=Column("distances of the nearest words"),
    nearest_words=Column("nearest words"),
    middle=Column("median distance of all words", ".2g"),
    # Pages transcripts and harder-transcripts: transcripts of an utterance or a batch.
    word_errors=Column("word error rate", ".3f"),
    read=Column("transcripts of the batch that are read", "{:.0f}"),
    of=Column("utterances in the batch", "{:.0f}"),
    shared=Column("two utterances begin with the same word"),
    failed=Column("reported as failed", "{:.0f}"),
    # Distances of words from the span, relative to the norm of their vectors: the largest of the words that were read,
    # the smallest of all other words, and at one step the distances of some other words.
    worst=Column("distance of the worst word read", ".1e"),
    other=Column("distance of the nearest other word", ".1e"),
    piece=Column("word or part of a word"),
    rest=Column("distances of other words"),
    # Gradient matching: whether the bag of words was given ("with", "without"), and the gains in exact transcripts.
    bag=Column("bag"),
    best_of=Column("runs", "{:.0f}"),
    variables=Column("unknowns", "{:,.0f}"),
    distance=Column("distance of the gradients", ".2g"),
    bag_gains=Column("gain by the bag of words", "{:+.0f}"),
    starts_gain=Column("gain by further runs", "{:+.0f}"),
    # The recovered bag of words.
    bag_exact=Column("bags exact", ".0%"),
    # The last layer alone.
    steps_found=Column("steps found", "{:.0f}"),
    distinct=Column("distinct tokens", "{:.0f}"),
    # The norm of an utterance's gradient of all layers, before it is clipped.
    norm=Column("norm of the gradient", ".3g"),
    # The sound.
    voice=Column("voice"),
    frames=Column("frames of 10 ms", "{:.0f}"),
)
