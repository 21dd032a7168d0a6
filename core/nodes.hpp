// The nodes of an ensemble over variables, as node_arrays() gives them, and walks over observed values.
#pragma once
#include "bits.hpp"
#include "views.hpp"

#include <cmath>
#include <limits>

constexpr double INF = std::numeric_limits<double>::infinity();

struct NodeArrays {
    View<const std::int32_t, 1> roots;      // (trees,)
    View<const std::int32_t, 1> feature;    // (nodes,) the variable; negative at leaves
    View<const double, 1> threshold;
    View<const std::int32_t, 1> left;       // the right child follows; of a leaf its number
    View<const bool, 1> missing_left;
    View<const std::int32_t, 1> set_start;  // first word of the set that goes left; negative at numeric splits
    View<const Word, 1> sets;

    template <class Reader>
    static void fields(NodeArrays& self, Reader& read) {
        read("roots", self.roots, {"trees"});
        read("feature", self.feature, {"nodes"});
        read("threshold", self.threshold, {"nodes"});
        read("left", self.left, {"nodes"});
        read("missing_left", self.missing_left, {"nodes"});
        read("set_start", self.set_start, {"nodes"});
        read("sets", self.sets, {"words of nodes"});
    }

    // Checks beyond sizes of axes: indices are within range.
    template <class Levels>
    void check(Index n_leaves, const Levels& n_levels) const {
        const Index n_nodes = feature[0], n_variables = n_levels[0];
        bool fits = true;
        for (Index i = 0; i < roots[0]; ++i) fits &= (roots.data[i] >= 0) & (roots.data[i] < n_nodes);
        for (Index n = 0; n < n_nodes; ++n)
            fits &= (feature.data[n] < n_variables) & (left.data[n] >= 0) &
                    (left.data[n] < (feature.data[n] < 0 ? n_leaves : n_nodes - 1));
        for (Index n = 0; fits && n < n_nodes; ++n)
            if (set_start.data[n] >= 0 && feature.data[n] >= 0) fits = set_start.data[n] + n_levels(feature.data[n]) / 64 < sets[0];
        Arguments::require(fits, "a node has a child, leaf, variable or set that is not there");
    }

    // The same where neither leaves nor levels are known.
    void check(Index n_variables) const {
        const Index n_nodes = feature[0];
        bool fits = true;
        for (Index i = 0; i < roots[0]; ++i) fits &= (roots.data[i] >= 0) & (roots.data[i] < n_nodes);
        for (Index n = 0; n < n_nodes; ++n)
            fits &= (feature.data[n] < n_variables) & (left.data[n] >= 0) & ((feature.data[n] < 0) | (left.data[n] < n_nodes - 1));
        Arguments::require(fits, "a node has a child or a variable that is not there");
    }

    bool is_leaf(Index node) const { return feature.data[node] < 0; }

    // Whether an observed value of a variable goes right: a number, a code, or "not recorded" (infinite).
    bool observed_right(double x, Index node) const {
        const Index start = set_start.data[node];
        if (start < 0) return x == INF ? !missing_left.data[node] : x >= threshold.data[node];
        const Index code = Index(x), word = start + (code >> 6);  // a code of a wrong array may lie beyond all sets
        return word < 0 || word >= sets[0] || !(sets.data[word] >> (code & 63) & 1);
    }

    // The first node from `node` on that is a leaf, or splits on a missing value of x. `plain`: every split is numeric and
    // nothing is "not recorded".
    Index follow(const double* x, Index node, bool plain) const {
        while (feature.data[node] >= 0) {
            const double value = x[feature.data[node]];
            if (std::isnan(value)) break;
            node = left.data[node] + (plain ? value >= threshold.data[node] : observed_right(value, node));
        }
        return node;
    }
};
