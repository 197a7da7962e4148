"""The pages of posterior2023, one module each.

Columns of their rows whose names do not say what they hold:

    classes, instances, spread: the Jaccard index of found and true classes, that of found and true labels, and its
        standard deviation over `count` batches
    seconds: the elapsed time per batch
    series, share, auxiliary: Figure 3 ("settings") or 4 ("scale"), the share of one class, auxiliary samples per class
    accuracy: of the network on test images (%)
    form, worst, median, least_weight: a formula for a gradient, its relative errors, and the least weight Φ
    confidence, found, exact: the mean probability of a sample's own class, samples counted right (%), and batches
        without error (%)
    side, mean, q05 to q95: samples of the class `label` or all others, and their probabilities of this class
"""
