"""What kernels are given: flat arrays, and records that say where things lie in them.

An array of any rank and strides is a flat window of memory with, for each head, the place of its
first element, and two strides. Kernels therefore read and write arrays as they lie, and one
compiled kernel serves every shape. Records keep the names without the cost of as many arguments.
"""

import numpy as np

CALL = np.dtype(
    [
        *(
            (name, np.int64)
            for name in (
                "n_batches",  # sets of keys; each has n_folded query heads, which share its tiles
                "n_folded",
                "n_queries",
                "n_keys",
                "head_size",
                "value_size",
                # strides in elements
                "query_row",
                "query_column",
                "key_row",
                "key_column",
                "value_row",
                "value_column",
                "out_row",
                "out_column",
                "bias_row",
                "bias_column",
                "mask_row",
                "mask_column",
                "weights_row",
                "weights_column",
                "full",  # lanes of a full tile
                "left",  # how many keys a row sees before its own position, and behind it
                "right",
                "block_keys",
                "n_parts",  # of the keys of a set, in decoding
                "part_size",  # numbers that a part leaves
                "bundle",  # query rows that read a key together, and how many such bundles
                "n_bundles",
                "asks",  # whether keys and values are asked for before they are read, in decoding
                # what is observed beside the output
                "n_turns",  # parts of the tiles of a set of keys, each done in order by one thread
                "n_phases",  # 2 where each weight is wanted, once its sum is known
                "k",  # of the largest weights, 0 for none
                # bools
                "has_moments",
                "has_distance",
                "has_weights",
                "has_received",
                "keeps",  # the scores of a tile stay in the scratch from one phase to the next
                "lead",  # weights of a row before the first that begins a line
                "streams",  # weights go past the caches: they lie in whole lines, and are many
                "by_rows",  # the tiles of all sets of keys go together, row by row
                "has_output",
                "has_rows",  # whether maxima and sums of the rows are wanted
                "has_bias",
                "has_mask",
                "has_sinks",
                "is_plain",  # scores stay products until the exponent, which holds the scale
                # places in the scratch of floats; lanes are those of a full tile
                "at_queries",  # Qᵀ [D][lanes]
                "at_scores",  # [block_keys][lanes], then the weights in place
                "at_output",  # Oᵀ [E][lanes]
                "at_taint",  # [E][lanes]: what visible NaN and infinities add to the output
                "at_forbidden",  # [block_keys][lanes]: 1 where the mask forbids
                "at_keys",  # [block_keys][D]: keys widened from 16 bits
                "at_values",  # [block_keys][E]: values widened
                "at_row_max",  # [lanes], like the next three
                "at_row_sum",
                "at_shrink",  # what the sums so far shrink by as the maximum grows
                "at_factor",  # what finishes the output
                "at_gain",  # what makes weights of a block's exponentials
                "at_products",  # [block_keys][lanes]: products whose scores are restricted
                "at_block_max",  # [blocks][lanes]: maxima that kept exponentials are relative to
                "at_tops",  # [k][lanes]: the largest scores, descending
                "at_tags",  # [k][lanes]: their keys, as bits of integers
                "at_candidate",  # [lanes], like all that follow: where in a block a new maximum is
                "at_grown",  # 1 where a block has a new maximum
                "at_gap",  # by how much it is larger
                "at_position",  # of the rows among the keys
                "at_rest",  # the moments of `scaledot.statistics`
                "at_rest_2",
                "at_rest_3",
                "at_surprise",
                "at_distance",
                "at_count",
                "at_pivot",
                "at_offset",
                "at_squares",
                "at_peak",
            )
        ),
        ("scale", np.float64),
        ("softcap", np.float64),  # 0 for none
        ("exponent", np.float64),  # what takes differences of scores to exponents of 2
        ("least", np.float64),  # the difference from which on the weight is 0
        ("unit", np.float64),  # what takes scores, as they are kept, to scores
    ]
)
"""One call: sizes, strides, what the scores go through, and the plan of the scratch."""

HEAD = np.dtype(
    [
        (name, np.int64)
        for name in (
            "query",
            "out",
            "bias",
            "mask",
            "weights",
            "query_offset",
            "n_keys",
            "n_queries",
        )
    ]
)
"""One query head: the places of its first elements, and its numbers."""

KEYED = np.dtype([("key", np.int64), ("value", np.int64)])
"""One set of keys: the places of its first elements."""

ROWS = ("row_max", "shift", "total")
"""What is written of each row."""
MOMENTS = (
    "rest", "rest_2", "rest_3", "surprise", "distance", "count", "pivot", "offset", "squares",
    "peak",
)  # fmt: skip
"""And beside it where moments are wanted."""

QUERY, OUT, ROW, BIAS, MASK, WEIGHTS, RECEIVED, N_PLACES = range(8)
"""Sections of `at`, each of `full` lanes: where the row of a lane begins in each array."""
