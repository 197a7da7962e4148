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
    # llg-training, llg-defenses, label-attacks-compared. `test_accuracy` is a share, and None for untrained networks.
    over_llg=Column("labels found above LLG", "{:.1f} points"),
    lost=Column("labels lost to training or to the defence", "{:.1f} points"),
    step=Column("training steps", "{:.0f}"),
    accuracy=Column("accuracy on test images", SHARE),
    own_accuracy=Column("accuracy on the clients’ batches", SHARE),
    utility=Column("cosine with the clean gradient", ".3f"),
    clipped=Column("gradients, or tensors, above the clipping norm", SHARE),
    test_accuracy=Column("test accuracy", "{:.0%}"),
)
