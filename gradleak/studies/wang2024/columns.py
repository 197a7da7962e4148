"""The columns of the pages on wang2024 whose values are compared with a tolerance of their own."""

from gradleak.runs import kinds
from gradleak.runs.columns import Column, Columns

COLUMNS = Columns(
    # A rounding error divided by its bound is as uncertain as the error.
    bound_share=Column("largest |Σŷ − 1| / its bound", kind=kinds.rounding(near=1.0)),
    # The label path of a sample that figures show: logits in float32 contain the rounding errors of all layers.
    logits=Column("logits of the row g_r", kind=kinds.measured(relative=1e-5)),
    ratios=Column("ratios g_i / g_r", kind=kinds.measured(relative=1e-5)),
    # Above 40 dB only few of the 8-bit pixels are off, by one level: rounding decides on them.
    eight_bit=Column("PSNR of 8-bit pixels (dB)", kind=kinds.rounding(near=1e-2, decibels=True)),
    # In an exactly restored batch, PSNRs and the ratio of errors measure only rounding errors.
    images_ratio=Column("estimated / true error of an image", kind=kinds.rounding(near=10.0)),
    sure=Column("PSNR of the sure sample (dB)", kind=kinds.rounding(decibels=True)),
    other=Column("PSNR of the other sample (dB)", kind=kinds.rounding(decibels=True)),
    # 1 − p of a sample is rounded as its label's probability p.
    unsure=Column("1 − p of the sure sample", kind=kinds.measured(relative=1e-5)),
    # For a determined label the bound has the size of rounding errors.
    open=Column("bound on the label error", kind=kinds.rounding()),
)
