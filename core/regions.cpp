// Sets of categories that lead to each side of a split, as bits: for columns of a table, and for its variables.
#include "bits.hpp"
#include "module.hpp"

#include <algorithm>

namespace {

// An ensemble with the parent of every node, and the set of every edge below a categorical split.
struct SplitTree {
    View<const std::int32_t, 1> parent, feature, left;
    View<const std::int32_t, 1> edge_set;  // first word of the set of the edge above a node; negative at numeric splits
    View<std::int32_t, 1> arriving_set;    // the same for what arrives at a node
    View<Word, 1> sets;

    template <class Reader>
    static void fields(SplitTree& self, Reader& read) {
        read("parent", self.parent, {"nodes"});
        read("feature", self.feature, {"nodes"});
        read("left", self.left, {"nodes"});
        read("edge_set", self.edge_set, {"nodes"});
        read("arriving_set", self.arriving_set, {"nodes"});
        read("sets", self.sets, {"words"});
    }
};

// What arrives at each categorical split is the set of the nearest edge above whose split is on the same column, or the
// full set; parents come first. O(splits * (depth + words of a set)).
void split_sets(nb::object tree_, nb::object splits_, nb::object set_start_, nb::object left_sets_, nb::object full_start_,
                nb::object n_words_) {
    Arguments arguments;
    auto tree = arguments.record<SplitTree>("tree", tree_);
    auto splits = arguments.array<const std::int64_t, 1>("splits", splits_, {"splits"});
    auto set_start = arguments.array<const std::int32_t, 1>("set_start", set_start_, {"nodes"});
    auto left_sets = arguments.array<const Word, 1>("left_sets", left_sets_, {"left words"});
    auto full_start = arguments.array<const std::int32_t, 1>("full_start", full_start_, {"columns"});
    auto n_words = arguments.array<const std::int64_t, 1>("n_words", n_words_, {"columns"});
    const Index words = tree.sets[0];
    for (Index i = 0; i < splits[0]; ++i) {
        Arguments::require(splits(i) >= 0 && splits(i) < tree.feature[0], "splits names a node that is not there");
        const Index n = splits(i), left = tree.left(n), column = tree.feature(n);
        Arguments::require(column >= 0 && column < n_words[0] && left >= 0 && left + 1 < tree.feature[0], "splits must be inner nodes");
        const Index size = n_words(column), starts[] = {tree.edge_set(left), tree.edge_set(left + 1), full_start(column)};
        for (Index start : starts) Arguments::require(start >= 0 && start + size <= words, "sets must have room for all sets");
        Arguments::require(set_start(n) >= 0 && set_start(n) + size <= left_sets[0], "left_sets must have the set of every split");
    }
    nb::gil_scoped_release unlocked;
    for (Index i = 0; i < splits[0]; ++i) {
        const Index n = splits(i), column = tree.feature(n);
        Index arriving = full_start(column);
        for (Index node = n; tree.parent(node) >= 0; node = tree.parent(node))
            if (tree.feature(tree.parent(node)) == column && tree.edge_set(node) >= 0) {
                arriving = tree.edge_set(node);
                break;
            }
        tree.arriving_set(n) = std::int32_t(arriving);
        Word *to_left = tree.sets.data + tree.edge_set(tree.left(n)), *to_right = tree.sets.data + tree.edge_set(tree.left(n) + 1);
        for (Index w = 0; w < n_words(column); ++w) {
            const Word here = tree.sets(arriving + w), goes_left = left_sets(set_start(n) + w);
            to_left[w] = here & goes_left;
            to_right[w] = here & ~goes_left;
        }
    }
}

// Splits on columns, translated to variables node by node.
struct SplitsOnColumns {
    View<const std::int64_t, 1> n_levels;   // of the variable
    View<const bool, 1> nullable;           // whether the last of them is "not recorded"
    View<const std::int32_t, 1> dummy;      // the category whose dummy the split is on; negative if none
    View<const bool, 2> dummy_left;         // whether a dummy of 0, and of 1, goes left
    View<const bool, 1> missing_left;
    View<const std::int32_t, 1> own_levels;  // levels of the column
    View<const std::int32_t, 1> own_start;
    View<const Word, 1> own_sets;

    template <class Reader>
    static void fields(SplitsOnColumns& self, Reader& read) {
        read("n_levels", self.n_levels, {"nodes"});
        read("nullable", self.nullable, {"nodes"});
        read("dummy", self.dummy, {"nodes"});
        read("dummy_left", self.dummy_left, {"nodes", 2});
        read("missing_left", self.missing_left, {"nodes"});
        read("own_levels", self.own_levels, {"nodes"});
        read("own_start", self.own_start, {"nodes"});
        read("own_sets", self.own_sets, {"own words"});
    }

    // Whether a category of the variable goes left; one that the column does not have goes where unseen ones go.
    bool left(Index n, Index code) const {
        if (nullable(n) && code == n_levels(n) - 1) return missing_left(n);
        if (dummy(n) >= 0) return dummy_left(n, code == dummy(n));
        return has(own_sets.data, own_start(n), std::min<Index>(code, own_levels(n)));
    }
};

// The categories that go left at each split; the last bit is for unseen ones. O(splits * levels).
void variable_sets(nb::object splits_, nb::object nodes_, nb::object start_, nb::object sets_) {
    Arguments arguments;
    auto splits = arguments.record<SplitsOnColumns>("splits", splits_);
    auto nodes = arguments.array<const std::int64_t, 1>("nodes", nodes_, {"with sets"});
    auto start = arguments.array<const std::int32_t, 1>("start", start_, {"nodes"});
    auto sets = arguments.array<Word, 1>("sets", sets_, {"words"});
    for (Index i = 0; i < nodes[0]; ++i) {
        const Index n = nodes(i);
        Arguments::require(n >= 0 && n < start[0], "nodes names a node that is not there");
        Arguments::require(start(n) >= 0 && start(n) + splits.n_levels(n) / 64 < sets[0], "sets must have room for all sets");
        Arguments::require(splits.dummy(n) >= 0 || (splits.own_start(n) >= 0 && splits.own_levels(n) >= 0 &&
                               splits.own_start(n) + splits.own_levels(n) / 64 < splits.own_sets[0]), "own_sets must have the set of every split");
    }
    nb::gil_scoped_release unlocked;
    for (Index i = 0; i < nodes[0]; ++i) {
        const Index n = nodes(i);
        for (Index code = 0; code <= splits.n_levels(n); ++code)
            if (splits.left(n, code)) put(sets.data, start(n), code);
    }
}

}  // namespace

void bind_regions(nb::module_& m) {
    m.def("split_sets", &split_sets, nb::arg("tree"), nb::arg("splits"), nb::arg("set_start"), nb::arg("left_sets"),
          nb::arg("full_start"), nb::arg("n_words"), "Categories that arrive at each categorical split, and those that go to each side.");
    m.def("variable_sets", &variable_sets, nb::arg("splits"), nb::arg("nodes"), nb::arg("start"), nb::arg("sets"),
          "Which categories of its variable go left at each split; sets come in as zeros.");
}
