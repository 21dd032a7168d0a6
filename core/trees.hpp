// The nodes of an ensemble, in the form for walks over complete rows.
#pragma once
#include "bits.hpp"
#include "views.hpp"

#include <cmath>

struct WalkNodes {
    View<const std::int32_t, 1> roots;        // (trees,)
    View<const std::int32_t, 1> feature;      // (nodes,) 0 at leaves
    View<const double, 1> threshold;          // NaN at leaves
    View<const std::int32_t, 1> left;         // the right child follows; a leaf points to itself
    View<const bool, 1> missing_right;
    View<const std::int32_t, 1> set_start;    // first word of the set that goes left; negative at numeric splits
    View<const Word, 1> sets;
    View<const std::int32_t, 1> n_levels;     // (columns,)
    View<const std::int32_t, 1> depth;        // (trees,)
    View<const std::int32_t, 1> leaf_number;  // (nodes,)

    template <class Reader>
    static void fields(WalkNodes& self, Reader& read) {
        read("roots", self.roots, {"trees"});
        read("feature", self.feature, {"nodes"});
        read("threshold", self.threshold, {"nodes"});
        read("left", self.left, {"nodes"});
        read("missing_right", self.missing_right, {"nodes"});
        read("set_start", self.set_start, {"nodes"});
        read("sets", self.sets, {"words"});
        read("n_levels", self.n_levels, {"columns"});
        read("depth", self.depth, {"trees"});
        read("leaf_number", self.leaf_number, {"nodes"});
    }
};
