"""The columns of the rows that the pages on wang2024 record."""

from gradleak.runs import kinds
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
    # Sums of pseudo labels, for all samples, and in each decade of |λ / λ*|, named by the exponent of its lower end. A
    # rounding error divided by its bound is as uncertain as the error.
    pseudo_labels=Column("pseudo labels", "{:,}"),
    sum_error=Column("largest |Σŷ − 1|", ERROR),
    median_sum_error=Column("median |Σŷ − 1|", ERROR),
    bound_share=Column("largest error / its bound", ".1%", kinds.rounding(near=1.0)),
    invalid_percent=Column("with a negative entry", SHARE),
    **{
        f"sum_error_decade_{low}": Column(f"largest |Σŷ − 1| at |λ / λ*| from 1e{low}", ERROR) for low in (-2, -1, 0, 1)
    },
    # Labels of random layers with a bias: their median L1 errors, at the true scalar and without a scalar.
    median_label_error=Column("L1 error, bias used, true λ*", ERROR),
    median_label_error_bias_ignored=Column("L1 error, bias ignored, true λ*", ERROR),
    median_label_error_closed_form=Column("L1 error, bias gradient used, no λ", ERROR),
    # The interval of scalars around the true one in which every label is valid.
    truth=Column("true scalar λ*", ".4g"),
    low=Column("end nearer to zero", ".4g"),
    high=Column("other end, infinite if there is none", ".4g"),
    elsewhere=Column("other intervals", "{:.0f}"),
    least=Column("least |λ| with a valid label", ".4g"),
    widening=Column("far end / near end, median", ".2f"),
    interval=Column("samples with an interval", ".1%"),
    endless=Column("interval unbounded", ".1%"),
    label_distance=Column("L1 distance of the end labels", ".2f"),
    # The minima of the loss over the scalar with the sign of the true one, and the rules that choose a wrong minimum.
    minima=Column("minima", "{:.0f}"),
    first=Column("first minimum outward from ±1", ".4g"),
    first_scaled=Column("first minimum outward from ±¼", ".4g"),
    best=Column("lowest minimum", ".4g"),
    first_wrong=Column("first minimum from ±1 wrong", ".1%"),
    first_scaled_wrong=Column("first minimum from ±¼ wrong", ".1%"),
    best_wrong=Column("lowest minimum wrong", ".1%"),
    accepted_wrong=Column("wrong minimum accepted", ".1%"),
    square_right=Column("mean square: lowest minimum right", ".1%"),
    negative_interval=Column("negative mass: zero on an interval", ".1%"),
    # The label path of a sample that figures show. Logits in float32 contain the rounding errors of all layers.
    example=Column("shown in figures"),
    logits=Column("logits of the row g_r", kind=kinds.measured(relative=1e-5)),
    ratios=Column("ratios g_i / g_r", kind=kinds.measured(relative=1e-5)),
    # What was attacked, and how.
    sample=Column("sample", "{:.0f}"),
    labels=Column("kind of label"),
    classes=Column("classes", "{:.0f}"),
    draw=Column("random network", "{:.0f}"),
    dataset=Column("images"),
    network=Column("network"),
    stage=Column("stage of training"),
    test_accuracy=Column("test accuracy", "{:.0%}"),
    solver=Column("solver"),
    dtype=Column("precision"),
    milliseconds=Column("time per sample (ms)", ".3g"),
    # noise: disturbed gradients; the paper's measures of a scalar, and measures of the label.
    std=Column("standard deviation of the noise, or strength of another defence", ".3g"),
    utility=Column("cosine of the sent and the clean gradient", ".3g"),
    attack=Column("attack"),
    within_one=Column("scalars within 1 of the truth", SHARE),
    scalar_error=Column("median L_s", ERROR),
    mean_scalar_error=Column("mean L_s of the scalars within 1", ERROR),
    label_error=Column("median L_r", ERROR),
    mean_label_error=Column("mean L_r", ERROR),
    within_tenth=Column("labels within 0.1 (L1)", SHARE),
    # failure-analysis: the published search, and the solver's failures on random gradients.
    searched_right=Column("published search: labels recovered", "{:.0f} %"),
    searched_wrong=Column("published search: wrong labels returned", "{:.0f} %"),
    missed=Column("no label found for a nonzero gradient", SHARE),
    truth_among=Column("true label among the candidates", SHARE),
    # identifiability: what a gradient determines. The bound on the error of a determined label has the size of rounding
    # errors.
    n=Column("cases", "{:,.0f}"),
    spread=Column("standard deviation of the logits", "{:g}"),
    known=Column("gradient scale known"),
    open=Column("bound on the label error", ERROR, kinds.rounding()),
    wrong=Column("wrong certificates", "{:.0f}"),
    unique_searched=Column("unique by the search", SHARE),
    confirmed=Column("unique by the search and by a proof", SHARE),
    search_milliseconds=Column("time per sample of the search (ms)", ".3g"),
    gradient_of=Column("gradient of"),
    unique_count=Column("unique", "{:,.0f}"),
    ambiguous_count=Column("ambiguous", "{:,.0f}"),
    failed_count=Column("no label found", "{:,.0f}"),
    unusable=Column("gradient zero or not finite", "{:,.0f}"),
    proved=Column("proved unique", "{:,.0f}"),
    proved_wrong=Column("wrong, but proved unique", "{:,.0f}"),
    norm=Column("clipped to norm", "{:g}"),
    touched=Column("clipped", SHARE),
    unaware=Column("right if scale 1 is assumed", SHARE),
    unaware_wrong=Column("wrong certificates if scale 1 is assumed", "{:.0f}"),
    unique_right=Column("unique and right", SHARE),
    times_seconds=Column("CPU time relative to a known scale", ".1f"),
)
