// Sets of leaves of some trees: tabulated, looked up for rows, and restricted by draws.
#include "leaf_sets.hpp"
#include "module.hpp"

#include <vector>

namespace {

// The bits from `first` to `stop`, at least one.
Word bits(Index first, Index stop) { return (ALL >> (64 - stop + first)) << first; }

struct FilledSets {
    View<const std::int64_t, 1> offset;      // (variables + 1,)
    View<const std::int32_t, 1> n_levels;    // (variables,)
    View<const std::int32_t, 1> position;    // (nodes,) of a node's threshold among those of its variable, from 1
    View<Word, 2> sets;                      // (rows + 1, trees) initially all leaves
    View<std::uint8_t, 3> parting;
    View<Word, 2> right;
    View<std::int64_t, 2> leaf;

    template <class Reader>
    static void fields(FilledSets& self, Reader& read) {
        read("n_levels", self.n_levels, {"variables"});
        read("offset", self.offset, {Dim("variables", 1)});
        read("position", self.position, {"nodes"});
        read("sets", self.sets, {"rows", "trees"});
        read("parting", self.parting, {"trees", int(LEAVES), int(LEAVES)});
        read("right", self.right, {"trees", 2 * int(LEAVES)});
        read("leaf", self.leaf, {"trees", int(LEAVES)});
    }
};

// Tabulate trees of at most LEAVES leaves (knothole.expectation.tables.LeafSets). O(nodes * (thresholds + leaves^2)).
void fill(const NodeArrays& nodes, const FilledSets& out) {
    const Index n_nodes = nodes.feature[0], n_trees = nodes.roots[0];
    std::vector<Index> count(n_nodes), first(n_nodes);  // a node's leaves
    for (Index n = n_nodes; n-- > 0;) {                 // children come after their parents
        const Index left = nodes.left(n);
        count[n] = nodes.is_leaf(n) ? 1 : count[left] + count[left + 1];
    }
    for (Index tree = 0; tree < n_trees; ++tree) {
        const Index root = nodes.roots(tree), stop = tree + 1 < n_trees ? nodes.roots(tree + 1) : n_nodes;
        if (count[root] > LEAVES) throw nb::value_error("a tree has more than 64 leaves");
        first[root] = 0;
        for (Index n = root; n < stop; ++n) {
            if (nodes.is_leaf(n)) {
                out.leaf(tree, first[n]) = nodes.left(n);
                continue;
            }
            const Index left = nodes.left(n), v = nodes.feature(n), middle = first[n] + count[left], end = first[n] + count[n];
            first[left] = first[n], first[left + 1] = middle;
            for (Index a = first[n]; a < middle; ++a)
                for (Index b = middle; b < end; ++b) out.parting(tree, a, b) = std::uint8_t(n - root);
            const Word below = bits(first[n], middle), above = bits(middle, end);
            out.right(tree, n - root) = above;
            // Remove the leaves on the other side of the split from the sets of its variable's values.
            const Index start = out.offset(v), last = out.offset(v + 1) - 1;
            for (Index row = start; row <= last; ++row) {
                const bool goes_left = out.n_levels(v) > 0 ? has(nodes.sets.data, nodes.set_start(n), row - start)
                                       : row == last       ? nodes.missing_left(n)
                                                           : row - start < out.position(n);
                out.sets(row, tree) &= ~(goes_left ? above : below);
            }
        }
    }
}

// Requirements of `fill`: trees one after the other, parents before their children, at most LEAVES leaves.
void check(const NodeArrays& nodes, const FilledSets& out) {
    const Index n_nodes = nodes.feature[0], n_trees = nodes.roots[0], n_variables = out.n_levels[0];
    bool fits = n_trees > 0 && nodes.roots(0) == 0 && out.offset(0) >= 0 && out.offset(n_variables) < out.sets[0];
    for (Index v = 0; v < n_variables; ++v) fits &= out.offset(v) <= out.offset(v + 1);
    for (Index t = 0; t < n_trees; ++t) {
        const Index root = nodes.roots(t), stop = t + 1 < n_trees ? nodes.roots(t + 1) : n_nodes;
        fits &= root >= 0 && root < stop && stop <= n_nodes && stop - root < 2 * LEAVES;
        for (Index n = root; fits && n < stop; ++n)
            fits &= nodes.is_leaf(n) || (nodes.feature(n) < n_variables && nodes.left(n) > n && nodes.left(n) + 1 < stop &&
                                         (out.n_levels(nodes.feature(n)) == 0 ||
                                          (nodes.set_start(n) >= 0 && nodes.set_start(n) + out.n_levels(nodes.feature(n)) / 64 < nodes.sets[0])));
    }
    Arguments::require(fits, "trees must follow one another, parents before their children, with at most 64 leaves each");
}

void fill_sets(nb::object nodes_, nb::object out_) {
    Arguments arguments;
    const auto nodes = arguments.record<NodeArrays>("nodes", nodes_);
    const auto out = arguments.record<FilledSets>("out", out_);
    check(nodes, out);
    nb::gil_scoped_release unlocked;
    fill(nodes, out);
}

// The trees' sets are written to columns `first` and after of out.
void read_rows(nb::object points_, nb::object trees_, Index first, nb::object out_) {
    Arguments arguments;
    const auto trees = arguments.record<LeafSets>("trees", trees_);
    trees.check();
    const auto points = arguments.array<const double, 2>("points", points_, {"rows", Dim::at_least("variables")});
    const auto out = arguments.array<Word, 2>("out", out_, {"rows", "trees"});
    Arguments::require(first >= 0 && first <= out[1] - trees.n_trees(), "out must have a column for each tree from first on");
    nb::gil_scoped_release unlocked;
    for (Index row = 0; row < points[0]; ++row) trees.read_sets(points.at(row), out.at(row) + first);
}

// Restrict sets to the leaves that each word of draws can reach, by the least and the largest of its 64 draws.
void narrow_rows(nb::object points_, nb::object draws_, nb::object trees_, nb::object ranges_, nb::object sets_, Index first,
                 nb::object out_) {
    Arguments arguments;
    const auto trees = arguments.record<LeafSets>("trees", trees_);
    trees.check();
    const auto ranges = arguments.record<RangeSets>("ranges", ranges_);
    const auto points = arguments.array<const double, 2>("points", points_, {"rows", Dim::at_least("variables")});
    const auto sets = arguments.array<const Word, 2>("sets", sets_, {"rows", "trees"});
    const auto out = arguments.array<Word, 3>("out", out_, {"rows", "words", "trees"});
    Arguments::require(first >= 0 && first <= out[2] - trees.n_trees(), "out must have a column for each tree from first on");
    const auto draws = arguments.array<const double, 3>("draws", draws_, {"rows", Dim::at_least("variables"), Dim::any()});
    bool fits = ranges.first(0) >= 0;
    for (Index v = 0; v < trees.n_variables(); ++v) {
        const Index rows = ranges.first(v + 1) - ranges.first(v);
        fits &= rows >= 0 && (trees.look.cells(v, CELLS - 1) - Index(trees.look.start(v))) / EVERY < std::max<Index>(rows, 1);
    }
    Arguments::require(fits && ranges.first(trees.n_variables()) <= ranges.from_on[0], "each threshold must have rows of ranges");
    Arguments::require(draws[2] == 64 * out[1], "there must be 64 draws for each word");
    nb::gil_scoped_release unlocked;
    for (Index row = 0; row < points[0]; ++row)
        for (Index word = 0; word < out[1]; ++word) {
            Word* narrowed = out.at(row, word) + first;
            std::copy_n(sets.at(row) + first, trees.n_trees(), narrowed);
            for (Index v = 0; v < trees.n_variables(); ++v)
                if (trees.look.used(v) && std::isnan(points(row, v))) narrow(trees, ranges, v, draws.at(row, v) + 64 * word, narrowed);
        }
}

}  // namespace

void bind_leaf_sets(nb::module_& m) {
    m.def("fill", &fill_sets, nb::arg("nodes"), nb::arg("out"), "Tabulate the sets of leaves of small trees.");
    m.def("read_rows", &read_rows, nb::arg("points"), nb::arg("trees"), nb::arg("first"), nb::arg("out"),
          "Leaves compatible with the observed values, to columns `first` and after of out (rows, trees).");
    m.def("narrow_rows", &narrow_rows, nb::arg("points"), nb::arg("draws"), nb::arg("trees"), nb::arg("ranges"), nb::arg("sets"),
          nb::arg("first"), nb::arg("out"),
          "Restrict sets (rows, trees) to the leaves that each word of 64 draws can reach, out (rows, words, trees).");
}
