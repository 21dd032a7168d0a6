// The leaves of each tree compatible with a row's observed values, as the bits of a word (knothole.expectation.tables).
//
// Between two thresholds, all values of a variable are compatible with the same leaves of every tree. These sets are
// tabulated; a row's set is their intersection over its observed values. A value is looked up in one of CELLS cells of equal
// width between its variable's outer thresholds; the thresholds of the cell are searched by bisection, with the same number
// of steps in every cell, without branches. O(observed values * trees) a row.
#pragma once
#include "nodes.hpp"
#include "vectors.hpp"
#include "views.hpp"

#include <algorithm>
#include <cmath>

constexpr Index CELLS = 256;
// The most leaves of a tree, and the most trees in one table.
constexpr Index LEAVES = 64, TREES = 128;
// One in so many thresholds has sets for ranges of values (RangeSets).
constexpr Index EVERY = 4;

// The cell of a value; values outside have the nearest cell, and every x has some cell.
inline Index cell_of(double x, double lowest, double scale) {
    double place = (x - lowest) * scale;
    place = place > 0.0 ? place : 0.0;  // NaN too: infinity has no place without a scale
    return Index(std::int32_t(std::min(place, CELLS - 1.0)));
}
// One step of the search for the first threshold above x: stay at `at`, or move 2^power thresholds on.
inline std::uint32_t halved(double x, std::uint32_t at, Index power, const double* thresholds) {
    const std::uint32_t further = at + (std::uint32_t(1) << power);
    return thresholds[further - 1] <= x ? further : at;
}
// The first threshold above x, exactly: rounding may have led to a neighbouring cell. x must be less than infinity.
inline Index settled(double x, Index at, Index first, const double* thresholds) {
    while (at > first && thresholds[at - 1] > x) --at;
    while (thresholds[at] <= x) ++at;
    return at;
}

struct Lookup {
    View<const double, 1> thresholds;     // of one variable after the other, each followed by infinite ones
    View<const std::uint32_t, 1> start;   // (variables,) first threshold
    View<const std::uint32_t, 2> cells;   // (variables, CELLS) first threshold that may lie in each cell
    View<const double, 2> rulers;         // (variables, 2) where cells begin, and how many there are per unit
    View<const std::int64_t, 1> halvings; // (variables,)
    View<const std::int64_t, 1> offset;   // (variables + 1,) first row in tables of values
    View<const std::int32_t, 1> n_levels; // (variables,)
    View<const bool, 1> used;             // (variables,) that some tree splits on

    template <class Reader>
    static void fields(Lookup& self, Reader& read) {
        read("thresholds", self.thresholds, {"thresholds"});
        read("used", self.used, {"variables"});
        read("start", self.start, {"variables"});
        read("cells", self.cells, {"variables", int(CELLS)});
        read("rulers", self.rulers, {"variables", 2});
        read("halvings", self.halvings, {"variables"});
        read("offset", self.offset, {Dim("variables", 1)});
        read("n_levels", self.n_levels, {"variables"});
    }

    // Checks beyond sizes of axes: each number has two fewer thresholds than rows, followed by infinite ones where every
    // search ends.
    void check() const {
        bool fits = offset(0) >= 0;
        for (Index v = 0; v < used[0] && fits; ++v) {
            fits = offset(v) <= offset(v + 1) && start(v) <= thresholds[0];
            if (!fits || n_levels(v) > 0) continue;
            const Index end = start(v) + offset(v + 1) - offset(v) - 2;
            fits = halvings(v) >= 0 && halvings(v) < 32 && end >= start(v) && cells(v, CELLS - 1) <= end &&
                   end + (Index(1) << halvings(v)) <= thresholds[0] && std::isinf(thresholds(end));
        }
        Arguments::require(fits, "each variable must have its thresholds");
    }

    Index cell_of(double x, Index v) const { return ::cell_of(x, rulers(v, 0), rulers(v, 1)); }

    // The first threshold of variable v above a finite x.
    Index first_above(double x, Index v) const {
        std::uint32_t at = cells(v, cell_of(x, v));
        for (Index power = halvings(v); power-- > 0;) at = halved(x, at, power, thresholds.data);
        return settled(x, at, start(v), thresholds.data);
    }

    // The row of an observed value in tables of its variable's values; the last row is for "not recorded".
    Index row_of(double x, Index v) const {
        const Index rows = offset(v + 1) - offset(v);
        if (n_levels(v) > 0) return offset(v) + std::clamp<Index>(Index(x), 0, std::max<Index>(rows - 1, 0));
        if (x == INF) return offset(v + 1) - 1;
        return offset(v) + first_above(x, v) - start(v);
    }
};

// Trees that serve one output, one word each; their axis is "trees of sets", since ensembles may have more trees.
struct LeafSets {
    Lookup look;
    View<const Word, 2> sets;             // (rows of values + 1, trees) last, all leaves that any number leads to
    View<const std::uint8_t, 3> parting;  // (trees, LEAVES, LEAVES) node where two leaves part, counted from the root
    View<const Word, 2> right;            // (trees, 2 LEAVES) the leaves on the right of a split, counted from the root
    View<const std::int64_t, 1> root;     // (trees,) of the whole ensemble's nodes
    View<const std::int64_t, 2> leaf;     // (trees, LEAVES) of the whole ensemble's leaves
    Index output = 0;

    template <class Reader>
    static void fields(LeafSets& self, Reader& read) {
        read("look", self.look);
        read("root", self.root, {"trees of sets"});
        read("sets", self.sets, {"rows of sets", "trees of sets"});
        read("parting", self.parting, {"trees of sets", int(LEAVES), int(LEAVES)});
        read("right", self.right, {"trees of sets", 2 * int(LEAVES)});
        read("leaf", self.leaf, {"trees of sets", int(LEAVES)});
        read("output", self.output);
    }
    // Checks beyond sizes of axes: the rows of values are rows of the sets.
    void check() const {
        look.check();
        Arguments::require(look.offset(n_variables()) < sets[0], "values must have rows of sets");
    }
    // The same for the nodes and leaves of the whole ensemble.
    void check(Index n_nodes, Index n_leaves) const {
        check();
        bool fits = true;
        for (Index i = 0; i < leaf.size(); ++i) fits &= (leaf.data[i] >= 0) & (leaf.data[i] < n_leaves);
        for (Index t = 0; t < n_trees(); ++t) {
            Index last = 2 * LEAVES - 1;  // split
            while (last > 0 && right(t, last) == 0) --last;
            fits &= root(t) >= 0 && root(t) + last < n_nodes;
        }
        Arguments::require(fits, "a tree has nodes or leaves that are not there");
    }

    Index n_trees() const { return root[0]; }
    Index n_variables() const { return look.used[0]; }

    // The leaves of each tree compatible with a row's observed values.
    void read_sets(const double* x, Word* out) const;
    // The row of sets for one observed value.
    const Word* row_of(double x, Index v) const { return sets.at(look.row_of(x, v)); }
};

// The leaves compatible with ranges of a number, for trees whose splits are all numeric.
struct RangeSets {
    View<const std::int64_t, 1> first;  // (variables + 1,) first row of each variable in the two that follow
    View<const Word, 2> from_on;        // (rows, trees) for values from a threshold on: of every EVERY-th threshold
    View<const Word, 2> up_to;          // (rows, trees) for values up to a threshold

    template <class Reader>
    static void fields(RangeSets& self, Reader& read) {
        read("first", self.first, {Dim("variables", 1)});
        read("from_on", self.from_on, {"rows of ranges", "trees of sets"});
        read("up_to", self.up_to, {"rows of ranges", "trees of sets"});
    }
};

// Intersect sets with others.
inline void meet(Word* out, const Word* sets, Index n) {
    for (Index t = 0; t < n; ++t) out[t] &= sets[t];
}

// out = the intersection of `n` rows of sets: BLOCKS vectors of four trees at a time, in registers.
template <Index BLOCKS>
inline void intersect_block(const Word* const* rows, Index n, Index t, Word* out) {
    typedef Word FourWords __attribute__((vector_size(32)));
    FourWords left[BLOCKS], other;
    for (Index b = 0; b < BLOCKS; ++b) std::memcpy(&left[b], rows[0] + t + 4 * b, sizeof other);
    for (Index i = 1; i < n; ++i)
        for (Index b = 0; b < BLOCKS; ++b) {
            std::memcpy(&other, rows[i] + t + 4 * b, sizeof other);
            left[b] &= other;
        }
    for (Index b = 0; b < BLOCKS; ++b) std::memcpy(out + t + 4 * b, &left[b], sizeof other);
}
// out may be one of the rows.
inline void intersect(const Word* const* rows, Index n, Index n_trees, Word* out) {
    Index t = 0;
    for (; t + 32 <= n_trees; t += 32) intersect_block<8>(rows, n, t, out);
    for (; t + 4 <= n_trees; t += 4) intersect_block<1>(rows, n, t, out);
    for (; t < n_trees; ++t) {
        Word left = rows[0][t];
        for (Index i = 1; i < n; ++i) left &= rows[i][t];
        out[t] = left;
    }
}

inline void LeafSets::read_sets(const double* x, Word* out) const {
    constexpr Index MOST = 32;
    const Word* rows[MOST];
    Index n = 0;
    rows[n++] = sets.at(sets[0] - 1);
    for (Index v = 0; v < n_variables(); ++v) {
        if (!look.used(v) || std::isnan(x[v])) continue;
        if (n == MOST) {
            intersect(rows, n, n_trees(), out);
            rows[0] = out;
            n = 1;
        }
        rows[n++] = row_of(x[v], v);
    }
    intersect(rows, n, n_trees(), out);
}

// The least and the largest of 64 numbers.
inline void ends(const double* values, double& least, double& largest) {
    Four low[2], high[2];
    for (Index b = 0; b < 2; ++b) low[b] = high[b] = load(values + 4 * b);
    for (Index i = 8; i < 64; i += 8)
        for (Index b = 0; b < 2; ++b) {
            const Four next = load(values + i + 4 * b);
            low[b] = next < low[b] ? next : low[b];
            high[b] = next > high[b] ? next : high[b];
        }
    least = low[0][0], largest = high[0][0];
    for (Index b = 0; b < 2; ++b)
        for (int i = 0; i < 4; ++i) {
            least = low[b][i] < least ? low[b][i] : least;
            largest = high[b][i] > largest ? high[b][i] : largest;
        }
}

// Restrict sets to the leaves that a word of 64 draws of one missing number can reach, by its least and its largest draw.
// All thresholds of cells before that of a value are below it, those of cells after it are not; one more cell on either
// side is included, since rounding may have led to a neighbour.
inline void narrow(const LeafSets& trees, const RangeSets& ranges, Index v, const double* draws, Word* out) {
    double least, largest;
    ends(draws, least, largest);
    const Lookup& look = trees.look;
    const Index start = look.start(v), first = ranges.first(v);
    Index cell = std::max<Index>(look.cell_of(least, v), 1) - 1;
    meet(out, ranges.from_on.at(first + (Index(look.cells(v, cell)) - start) / EVERY), trees.n_trees());
    cell = look.cell_of(largest, v) + 2;
    if (cell < CELLS) meet(out, ranges.up_to.at(first + (Index(look.cells(v, cell)) - start) / EVERY), trees.n_trees());
}
