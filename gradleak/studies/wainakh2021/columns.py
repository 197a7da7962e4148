"""The columns of the rows that the pages on wainakh2021 record."""

from gradleak.runs.columns import Column, Columns

SHARE = "{:.1f} %"

COLUMNS = Columns(
    # The success of one attack on `count` batches of one size.
    attack=Column("attack"),
    size=Column("batch size", "{:.0f}"),
    success=Column("labels found", SHARE),
    spread=Column("standard deviation over batches", SHARE),
    count=Column("batches", "{:.0f}"),
    classes=Column("classes found", SHARE),
    seconds=Column("seconds for all batches", ".2g"),
    over_guess=Column("labels found above the guess", "{:.1f} points"),
    over_guess_least=Column("labels found above the guess, lower 95 % bound", "{:.1f} points"),
    over_guess_most=Column("labels found above the guess, upper 95 % bound", "{:.1f} points"),
    # llg-attack, properties: the last layer's row sums, raw or calibrated, compared with the counts of their classes.
    # Rows of different kinds have different columns.
    what=Column("kind of row"),
    row_sums=Column("row sums", "{:.0f}"),
    compared=Column("classes compared", "{:.0f}"),
    kind=Column("raw or calibrated"),
    absent_negative=Column("negative row sums of absent classes", "{:.2f} %"),
    present_positive=Column("nonnegative row sums of present classes", SHARE),
    impact=Column("impact of a sample", ".3g"),
    impact_spread=Column("standard deviation of the impact over networks", ".2g"),
    impact_variation=Column("standard deviation of the impact over networks / absolute mean", ".3f"),
    # The change of a class's row sum by one more sample of the class, fitted over all networks.
    variation=Column("standard deviation of the impact over classes / absolute mean", ".3f"),
    least=Column("impact of the class with the smallest impact", ".3g"),
    most=Column("impact of the class with the largest impact", ".3g"),
    # Absolute correlations of row sums with counts: over all rows together, and within a batch, mean over networks.
    networks=Column("batches with unequal counts", "{:.0f}"),
    correlation=Column("correlation over all batches", ".4f"),
    within=Column("correlation within a batch", ".4f"),
    within_spread=Column("standard deviation over networks of the correlation within a batch", ".3f"),
    # llg-attack: balanced batches compared with unbalanced ones, and DLG's time with that of the slowest LLG.
    over_unbalanced=Column("labels found above unbalanced batches", "{:.1f} points"),
    times_slower=Column("time of DLG / time of the slowest LLG", "{:,.0f}"),
    # Quantiles of the row sums whose class has `occurs` samples in its batch.
    occurs=Column("samples of the class", "{:.0f}"),
    q05=Column("5 % quantile", ".3g"),
    q25=Column("25 % quantile", ".3g"),
    q50=Column("median", ".3g"),
    q75=Column("75 % quantile", ".3g"),
    q95=Column("95 % quantile", ".3g"),
    # llg-defenses, label-attacks-compared. `test_accuracy` is a share, and None for untrained networks.
    over_llg=Column("labels found above LLG", "{:.1f} points"),
    over_others=Column("labels found above the best other attack", "{:.1f} points"),
    lost=Column("labels lost to training or to the defence", "{:.1f} points"),
    step=Column("training steps", "{:.0f}"),
    accuracy=Column("accuracy on test images", SHARE),
    own_accuracy=Column("accuracy on the clients’ batches", SHARE),
    utility=Column("cosine with the clean gradient", ".3f"),
    clipped=Column("gradients, or tensors, above the clipping norm", SHARE),
    test_accuracy=Column("test accuracy", "{:.0%}"),
)
