"""Which of a row's 64 completions lie below each cut, as the bits of one word for every cut.

For a row and one word of draws, ``masks`` has a word for every row of the grid
(:class:`~knothole.expectation.tables.Grid`): of a numeric hole, the draws below each cut; of a
categorical one, the draws with each code; and two words more, which are always 0 and always
:data:`ALL`. ``absent`` has the draws in which a numeric variable is not recorded. The draws that
go left at a split on a hole are then one look-up and one AND.
"""

from __future__ import annotations

import numpy as np

from knothole.compiled.policy import inlined, inner
from knothole.compiled.sobol import WORD
from knothole.expectation.cuts import cell_of, first_above, halved, settled

ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
# "Not recorded" is infinite; a search for it must not go on among the infinite cuts.
LARGEST = np.finfo(np.float64).max


@inlined
def all_first_above(draws, v, cuts, start, cells, rulers, halvings, found):  # type: ignore[no-untyped-def]
    """:func:`first_above` of 64 draws at once; of an infinite one the first infinite cut."""
    lowest, scale = rulers[v]
    own = cells[v]
    for draw in range(WORD):
        found[draw] = own[cell_of(draws[draw], lowest, scale)]
    for power in range(halvings[v] - 1, -1, -1):
        for draw in range(WORD):
            found[draw] = halved(min(draws[draw], LARGEST), found[draw], power, cuts)
    first = np.int64(start[v])
    for draw in range(WORD):
        found[draw] = settled(min(draws[draw], LARGEST), np.int64(found[draw]), first, cuts)


@inner
def fill_masks(points, draws, row, look, observed, found, masks, absent):  # type: ignore[no-untyped-def]
    """Masks of one row from the draws of its holes (variables, 64).

    Where ``observed`` says so, also of the observed variables, which are numeric then: all draws
    are on one side of a cut. ``found`` (64,) is working memory.
    """
    cuts, start, cells, rulers, halvings, offset, n_levels, used = look
    for v in range(len(n_levels)):
        if not used[v]:
            continue
        first = offset[v]
        shift = first + 1 - np.int64(start[v])
        x = points[row, v]
        if not np.isnan(x):
            if observed:
                above = first_above(x, v, cuts, start, cells, rulers, halvings) + shift
                masks[first:above] = np.uint64(0)
                masks[above : offset[v + 1]] = ALL
            continue
        absent[v] = np.uint64(0)
        masks[first : offset[v + 1]] = np.uint64(0)
        if n_levels[v] > 0:
            for draw in range(WORD):
                masks[first + int(draws[row, v, draw])] |= np.uint64(1) << np.uint64(draw)
            continue
        all_first_above(draws[row, v], v, cuts, start, cells, rulers, halvings, found)
        for draw in range(WORD):
            bit = np.uint64(1) << np.uint64(draw)
            if draws[row, v, draw] == np.inf:
                absent[v] |= bit
            else:
                masks[np.uint64(found[draw] + shift)] |= bit
        so_far = np.uint64(0)
        for i in range(first, offset[v + 1]):
            so_far |= masks[i]
            masks[i] = so_far
