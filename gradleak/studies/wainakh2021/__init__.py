"""The pages of wainakh2021, one module each.

Columns of their rows whose names do not say what they hold:

    success, spread, classes: labels found (%), their standard deviation over `count` batches, and classes found (%)
    over_guess, over_llg, lost: labels found above the guess, above LLG, and lost to training or to the defence (points)
    seconds: the time of all batches of a row
    accuracy, own_accuracy: of the trained model on test images and on the clients' batches (%)
    utility, clipped: the cosine of the sent and the clean gradient; gradients or tensors above the clipping norm (%)
    what: the kind of a row of the part "properties", which compares the last layer's row sums, raw or calibrated
        (`kind`), with the numbers of samples of their classes (`occurs`), with quantiles q05 to q95
    absent_negative, present_positive: negative row sums of absent classes, nonnegative ones of present classes (%)
    impact: the change of a class's row sum by one sample of the class; its spread and variation are over networks
    variation, least, most: the spread over classes of the fitted impact, relative to its mean, and its extremes
    correlation, within: absolute correlations of row sums with counts over all batches, and within a batch
"""
