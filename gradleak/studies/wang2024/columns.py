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
    # Pages cnn-reconstruction and feature-matching: images that runs of matching restored, each from a random start,
    # and the best images up to a step.
    what=Column("kind of row"),
    run=Column("run"),
    image=Column("image", "{:.0f}"),
    restart=Column("random start", "{:.0f}"),
    psnr=Column("PSNR (dB)", ".1f"),
    # Above 40 dB only few of the 8-bit pixels are off, by one level: rounding decides on them.
    eight_bit=Column("PSNR of 8-bit pixels (dB)", ".1f", kinds.rounding(near=1e-2, decibels=True)),
    ssim=Column("SSIM", ".3f"),
    lpips=Column("LPIPS", ".3f"),
    exact=Column("only rounding errors remain"),
    label_error=Column("label error L_r (L1)", ERROR),
    seconds=Column("time (s)", ".2g"),
    status=Column("status"),
    step=Column("step", "{:.0f}"),
    steps=Column("Jacobians", "{:.0f}"),
    loss=Column("loss", ERROR),
    lost=Column("diverged", "{:.0f}"),
    bad=Column("losses that are not finite", "{:.0f}"),
    picture=Column("images side by side"),
    # The mean difference between two runs, the ends of its 95 % interval, and the larger of their absolute values.
    images=Column("images", "{:.0f}"),
    difference=Column("difference in mean PSNR (dB)", "+.2f"),
    lower=Column("lower 95 % bound (dB)", "+.2f"),
    upper=Column("upper 95 % bound (dB)", "+.2f"),
    apart=Column("bound on the size of the difference (dB)", ".2f"),
)
