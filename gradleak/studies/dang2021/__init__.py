"""The pages of dang2021, one module each.

Columns of their rows whose names do not say what they hold:

    number, batch: the number of the utterance or batch; length: its tokens; length_error: of their estimated number
    exact, right, false: whether all and only the true words or sentences were found; the share found; false ones
    unique, wrongly_sure: whether the attack certified its result, and whether it did so wrongly
    rank, prefixes, misfit: of the gradient whose row span holds the prefixes; how many; the recomputed gradient's error
    words: the words tried, "all" or those that the embedding's gradient shows ("free")
    loss_first, loss_last, loss_test: mean loss per token in the first and last epoch, and on the attacked sentences
    utility, norm: the cosine of the sent and the clean gradient; the norm of the whole gradient before clipping
    multiplier: the standard deviation of the noise, relative to the clipping norm
    miss, worst, other, nearest, rest, middle: distances of words from the span, relative to the norm of their vectors:
        of the right word, the worst word read, the nearest other word, the nearest, some others, and the median
    read, of, shared: transcripts read, of how many in the batch; whether two begin with the same word
    bag, best_of, variables, distance: whether the bag of words was given, runs, unknowns, distance of the gradients
    bag_gains, starts_gain: the gain in exact transcripts by the bag of words, and by further runs
    bag_exact, steps_found, distinct, frames: whether the bag is exact; steps found; distinct tokens; frames of 10 ms
"""
