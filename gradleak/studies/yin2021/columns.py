"""The columns of the rows that the pages on yin2021 record."""

from gradleak.runs import kinds
from gradleak.runs.columns import Column, Columns
from gradleak.show.aggregate import decibels

ERROR = ".1e"

COLUMNS = Columns(
    # Pages batch-restoration and cocktail-party: the labels that a rule restores, over `count` batches of one size.
    rule=Column("rule"),
    size=Column("batch size", "{:.0f}"),
    repeats=Column("classes may repeat"),
    accuracy=Column("labels restored (%)", ".2f"),
    spread=Column("standard deviation over batches", ".1f"),
    count=Column("cases", "{:.0f}"),
    # The cosines of a batch's true and recovered features. FastICA iterates until two steps are nearly alike. Where
    # features are no independent components it amplifies rounding errors until single batches differ; the statuses are
    # compared exactly.
    batch=Column("batch", "{:.0f}"),
    attack=Column("attack"),
    status=Column("status"),
    seconds=Column("time (s)", ".2g"),
    cosine=Column("mean cosine", ".3f", kinds.measured(absolute=0.5)),
    least=Column("least cosine", ".3f", kinds.measured(absolute=0.5)),
    near=Column("features with a cosine of at least 0.99", "{:.0f} %", kinds.measured(absolute=50.0)),
    # GradInversion's two pages. Rows are of several kinds. A row about the images of a run, an attack or a baseline:
    what=Column("kind of row"),
    part=Column("part of the page"),
    run=Column("attack"),
    kind=Column("kind of image"),
    batch_size=Column("batch size", "{:.0f}"),
    first=Column("first batch", "{:.0f}"),
    image=Column("image", "{:.0f}"),
    psnr=Column("PSNR (dB)", decibels),
    ssim=Column("SSIM", ".3f"),
    registered=Column("PSNR at the best shift (dB)", decibels),
    frequencies=Column("FFT2D", ".2f"),
    relative_l2=Column("relative L2", ".2f"),
    lpips=Column("LPIPS", ".3f"),
    identified=Column("identified by another network", ".0%"),
    identified_by_own=Column("identified by the attacked network", ".0%"),
    loud=Column("norm of the error p − y", ".2g"),
    right_label=Column("label right"),
    known_feature=Column("features found", ".0%"),
    loss=Column("loss", ERROR),
    picture=Column("first images, as one picture"),
    # All images of some batches: the labels that the paper's rule (as a share, or in percent) and the solver find.
    labels=Column("labels found by the paper's rule", ".0%"),
    counted=Column("labels found by the paper's rule (%)", ".0f"),
    recovered=Column("labels recovered (%)", ".0f"),
    gallery=Column("images in the gallery", "{:.0f}"),
    chance=Column("identified by chance (%)", ".2f"),
    test_accuracy=Column("test accuracy (%)", ".1f"),
    # The mean gain of one run over another in a measure, with its 95 % interval, and gains of loud over quiet images.
    measure=Column("measure"),
    gain=Column("gain", "+.2f"),
    low=Column("lower 95 % bound", "+.2f"),
    high=Column("upper 95 % bound", "+.2f"),
    batches=Column("batches", "{:.0f}"),
    psnr_gain=Column("gain in PSNR of images with a large error (dB)", "+.1f"),
    identified_gain=Column("gain in identified images with a large error (points)", "+.0f"),
    # A measure of pure noise by one definition.
    definition=Column("definition"),
    value=Column("here", ".3f"),
    error=Column("standard error", ".3f"),
    of_eight=Column("standard error for a batch of 8", "± {:.3f}"),
    published=Column("paper", ".3f"),
    # Peeled images and the inputs of their layers.
    reason=Column("reason of the status"),
    matched=Column("maps from which the image was searched"),
    opened=Column("last map recovered"),
    layers=Column("layers recovered", ".0f"),
    cpu_seconds=Column("CPU time (s)", ".1f"),
    number=Column("layers behind it", "{:.0f}"),
    layer=Column("inputs of"),
    equations=Column("equations", "{:.0f}"),
    unknowns=Column("unknowns", "{:.0f}"),
    claimed=Column("claimed error", ERROR),
    off=Column("true error", ERROR),
    honest=Column("claimed error honest"),
)
