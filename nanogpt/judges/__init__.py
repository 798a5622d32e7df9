"""The judges of *Your turn*: what a chapter's central function must do, asked of the reader's own.

Each takes the reader's function, tries it where the right answer is known, and raises an
AssertionError that says in one sentence what came, what was expected and where to look. It returns
None for every right answer, however it is written. Use: `attempt(judges.trim, my_trim)`.
"""

from nanogpt.judges.chapter_01 import head_forward
from nanogpt.judges.chapter_02 import cached_step
from nanogpt.judges.chapter_03 import counted_table
from nanogpt.judges.chapter_04 import verify
from nanogpt.judges.chapter_05 import accept
from nanogpt.judges.chapter_06 import trim
from nanogpt.judges.chapter_07 import generate
from nanogpt.judges.chapter_08 import check
from nanogpt.judges.chapter_09 import expected_tokens
from nanogpt.judges.chapter_10 import back_off
from nanogpt.judges.chapter_11 import rewind
from nanogpt.judges.chapter_12 import entropy_policy
from nanogpt.judges.chapter_13 import fair_clock
from nanogpt.judges.chapter_14 import early_exit
from nanogpt.judges.chapter_15 import labels_ahead
from nanogpt.judges.chapter_16 import tree_mask
from nanogpt.judges.chapter_17 import accept_siblings
from nanogpt.judges.chapter_18 import typical
from nanogpt.judges.chapter_19 import feature_pairs
from nanogpt.judges.chapter_20 import token_after_next
from nanogpt.judges.chapter_21 import fixed_point
from nanogpt.judges.chapter_22 import told_block
from nanogpt.judges.chapter_23 import batch_mask
from nanogpt.judges.chapter_24 import schedule
from nanogpt.judges.chapter_25 import slots
from nanogpt.judges.chapter_26 import outcomes
from nanogpt.judges.chapter_27 import round_rows
from nanogpt.judges.chapter_28 import texts_that_fit
from nanogpt.judges.chapter_29 import engine_verdict

__all__ = [
    "accept",
    "accept_siblings",
    "back_off",
    "batch_mask",
    "cached_step",
    "check",
    "counted_table",
    "early_exit",
    "engine_verdict",
    "entropy_policy",
    "expected_tokens",
    "fair_clock",
    "feature_pairs",
    "fixed_point",
    "generate",
    "head_forward",
    "labels_ahead",
    "outcomes",
    "rewind",
    "round_rows",
    "schedule",
    "slots",
    "texts_that_fit",
    "token_after_next",
    "told_block",
    "tree_mask",
    "trim",
    "typical",
    "verify",
]
