"""The columns of the rows that the pages on wang2024 record."""

from gradleak.runs.columns import Column, Columns

SHARE = "{:.1f} %"
ERROR = ".1e"

COLUMNS = Columns(
    # Labels of an exact solver, compared with the truth.
    count=Column("samples", "{:.0f}"),
    accuracy=Column("labels recovered", SHARE),
    unique=Column("unique", SHARE),
    ambiguous=Column("ambiguous", SHARE),
    failed=Column("no label found", SHARE),
    silent=Column("wrong but called unique", "{:.0f}"),
    mean_error=Column("mean L_r", ERROR),
    spread_error=Column("standard deviation of L_r", ERROR),
    median_error=Column("median L_r", ERROR),
    largest_error=Column("largest L_r", ERROR),
    # The same samples counted in other ways, and other attacks on them.
    zero=Column("zero gradient", SHARE),
    counted_zero=Column("recovered, as the code counts", SHARE),
    class_right=Column("class right", SHARE),
    idlg=Column("class right, iDLG", SHARE),
    searches=Column("samples of the published search", "{:.0f}"),
    searched=Column("published search, as the code counts", "{:.0f} %"),
    drawn=Column("recovered, as the code counts", SHARE),
    drawn_known=Column("labels recovered", SHARE),
    drawn_idlg=Column("class right, iDLG", SHARE),
    counted=Column("counted with the true scalar", "{:.1f} %"),
    oracle=Column("counted with the true scalar", "{:.0f} %"),
    ended=Column("search ended", SHARE),
    out_of_reach=Column("true scalar out of bounds", "{:.0f} %"),
    certain=Column("probability of the most likely class (%)", ".1f"),
    # What was attacked, and how.
    classes=Column("classes", "{:.0f}"),
    draw=Column("random network", "{:.0f}"),
    dataset=Column("images"),
    network=Column("network"),
    stage=Column("stage of training"),
    test_accuracy=Column("test accuracy", "{:.0%}"),
    solver=Column("solver"),
    dtype=Column("precision"),
    milliseconds=Column("time per sample (ms)", ".3g"),
)
