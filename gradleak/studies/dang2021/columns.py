"""The columns of the rows that the pages on dang2021 record."""

from gradleak.runs.columns import Column, Columns

COLUMNS = Columns(
    number=Column("number of the utterance or batch", "{:.0f}"),
    attack=Column("attack"),
    reader=Column("attack"),
    length=Column("tokens", "{:.0f}"),
    length_error=Column("length error (tokens)", ".2g"),
    exact=Column("exactly right", ".0%"),
    unique=Column("certified as unique", "{:.0f}"),
    wrongly_sure=Column("certified but wrong", "{:.0f}"),
    seconds=Column("CPU time (s)", ".2g"),
    precision=Column("precision", ".3f"),
    recall=Column("recall", ".3f"),
    f1=Column("F1", ".3f"),
    utility=Column("cosine to the clean gradient", ".3g"),
    step=Column("step", "{:.0f}"),
    miss=Column("distance of the word", ".1e"),
    # Pages transcripts, matched-transcripts, harder-transcripts and spoken: transcripts of an utterance or a batch.
    word_errors=Column("word error rate", ".3f"),
    read=Column("transcripts of the batch that are read", "{:.0f}"),
    of=Column("utterances in the batch", "{:.0f}"),
    shared=Column("two utterances begin with the same word"),
    failed=Column("reported as failed", "{:.0f}"),
    # Distances of words from the span, relative to the norm of their vectors: the largest of the words that were read,
    # the smallest of all other words, and those of a sample of other words at one step.
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
