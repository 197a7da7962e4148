"""The pages of yin2021, one module each.

Columns of their rows whose names do not say what they hold:

    accuracy, spread: labels that a rule restores (%), and their standard deviation over `count` batches
    cosine, least, near: the mean and the least cosine of true and recovered features, and those of at least 0.99 (%)
    what, run: the kind of a row on GradInversion's two pages; the attack or baseline
    registered: the PSNR at the best shift (dB); frequencies: FFT2D; relative_l2: the relative L2 distance
    identified, identified_by_own: whether another network, or the attacked one, finds the image in the `gallery`;
        `chance`: how often a random choice would (%)
    loud: the norm of the error p − y; known_feature: whether the batch's features are found
    labels (share), counted (%): labels that the paper's rule finds; recovered: labels that the solver finds (%)
    gain, low, high: the mean gain of one run over another in a `measure`, with its 95 % interval
    psnr_gain, identified_gain: gains (dB, points) of images with a large error over those with a small error
    value, error, of_eight, published: a measure of noise by one `definition`, its standard error, that of a batch of
        eight, and the paper's value
    opened, matched, layers: whether the last map was recovered; maps from which an image was searched; layers recovered
    number, claimed, off, honest: the layers behind a layer, the claimed and the true error of its inputs, and whether
        they agree within a factor
"""
