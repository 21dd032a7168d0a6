// Trees on complete rows: leaf numbers and margins.
//
// A block of rows walks one tree at a time, one level at a time: the tree's nodes stay in cache, and rows do not wait for
// each other. A leaf points to itself (its threshold is NaN, so no value goes right there). Trees that are too deep for
// that, or have sets of categories, are walked row by row. O(rows * trees * depth).
#include "trees.hpp"

#include <algorithm>
#include <limits>
#include <vector>

namespace {

constexpr Index BLOCK = 256;
// Deeper trees walk row by row: most of their rows reach a leaf long before the last level.
constexpr Index LEVELS = 12;

bool goes_right(double x, Index n, Index column, const WalkNodes& nodes) {
    if (std::isnan(x)) return nodes.missing_right(n);
    const Index start = nodes.set_start(n);
    if (start < 0) return x >= nodes.threshold(n);
    Index code = nodes.n_levels(column);
    if (x >= 0 && x < double(code)) code = Index(x);
    return !has(nodes.sets.data, start, code);
}

// The final node of each of some rows in tree t.
void walk(View<const double, 2> X, Index start, Index n_rows, Index t, const WalkNodes& nodes, bool has_nan, std::int32_t* node) {
    const std::int32_t *left = nodes.left.data, *feature = nodes.feature.data;
    const double *threshold = nodes.threshold.data, *rows = X.at(start);
    const Index width = X[1];
    if (nodes.depth(t) > LEVELS || nodes.sets[0] > 0) {
        for (Index i = 0; i < n_rows; ++i) {
            std::int32_t n = nodes.roots(t);
            while (left[n] != n) n = left[n] + goes_right(rows[i * width + feature[n]], n, feature[n], nodes);
            node[i] = n;
        }
        return;
    }
    std::fill(node, node + n_rows, nodes.roots(t));
    const bool* missing_right = nodes.missing_right.data;
    for (Index level = 0; level < nodes.depth(t); ++level)
        for (Index i = 0; i < n_rows; ++i) {
            const std::int32_t n = node[i];
            const double x = rows[i * width + feature[n]];
            bool right = x >= threshold[n];
            if (has_nan) right |= std::isnan(x) & missing_right[n];
            node[i] = left[n] + right;
        }
}

// Call f(row, tree, leaf) for all rows and trees.
template <class F>
void for_leaves(View<const double, 2> X, const WalkNodes& nodes, bool has_nan, F f) {
    std::int32_t node[BLOCK];
    for (Index start = 0; start < X[0]; start += BLOCK) {
        const Index n_rows = std::min(BLOCK, X[0] - start);
        for (Index t = 0; t < nodes.roots[0]; ++t) {
            walk(X, start, n_rows, t, nodes, has_nan, node);
            for (Index i = 0; i < n_rows; ++i) f(start + i, t, nodes.leaf_number(node[i]));
        }
    }
}

void leaves(nb::object X_, nb::object nodes_, bool has_nan, nb::object out_) {
    Arguments arguments;
    auto X = arguments.array<const double, 2>("X", X_, {"rows", "columns"});
    auto nodes = arguments.record<WalkNodes>("nodes", nodes_);
    auto out = arguments.array<std::int32_t, 2>("out", out_, {"rows", "trees"});
    nb::gil_scoped_release unlocked;
    for_leaves(X, nodes, has_nan, [&](Index row, Index t, std::int32_t leaf) { out(row, t) = leaf; });
}

void add_margin(nb::object X_, nb::object nodes_, bool has_nan, nb::object value_, nb::object output_, nb::object out_) {
    Arguments arguments;
    auto X = arguments.array<const double, 2>("X", X_, {"rows", "columns"});
    auto nodes = arguments.record<WalkNodes>("nodes", nodes_);
    auto value = arguments.array<const double, 2>("value", value_, {"leaves", "width"});
    auto output = arguments.array<const std::int32_t, 1>("output", output_, {"trees"});
    auto out = arguments.array<double, 2>("out", out_, {"rows", Dim::at_least("width")});
    nb::gil_scoped_release unlocked;
    for_leaves(X, nodes, has_nan, [&](Index row, Index t, std::int32_t leaf) {
        for (Index j = 0; j < value[1]; ++j) out(row, output(t) + j) += value(leaf, j);
    });
}

// The least and the largest leaf value that a row can reach, whatever its missing values are, added up over trees. A value
// that is not finite goes both ways. O(rows * leaves).
void add_range(nb::object X_, nb::object nodes_, nb::object value_, nb::object output_, nb::object low_, nb::object high_) {
    Arguments arguments;
    auto X = arguments.array<const double, 2>("X", X_, {"rows", "columns"});
    auto nodes = arguments.record<WalkNodes>("nodes", nodes_);
    auto value = arguments.array<const double, 2>("value", value_, {"leaves", "width"});
    auto output = arguments.array<const std::int32_t, 1>("output", output_, {"trees"});
    auto low = arguments.array<double, 2>("low", low_, {"rows", Dim::at_least("width")});
    auto high = arguments.array<double, 2>("high", high_, {"rows", Dim::at_least("width")});
    const Index width = value[1];
    std::vector<std::int32_t> waiting;
    std::vector<double> least(width), most(width);
    nb::gil_scoped_release unlocked;
    for (Index row = 0; row < X[0]; ++row)
        for (Index t = 0; t < nodes.roots[0]; ++t) {
            std::fill(least.begin(), least.end(), std::numeric_limits<double>::infinity());
            std::fill(most.begin(), most.end(), -std::numeric_limits<double>::infinity());
            waiting.assign(1, nodes.roots(t));
            while (!waiting.empty()) {
                const std::int32_t n = waiting.back();
                waiting.pop_back();
                const std::int32_t left = nodes.left(n);
                if (left == n) {
                    for (Index j = 0; j < width; ++j) {
                        const double x = value(nodes.leaf_number(n), j);
                        least[j] = std::min(least[j], x);
                        most[j] = std::max(most[j], x);
                    }
                    continue;
                }
                const Index column = nodes.feature(n);
                const double x = X(row, column);
                const bool known = std::isfinite(x), right = known && goes_right(x, n, column, nodes);
                if (!known || right) waiting.push_back(left + 1);
                if (!right) waiting.push_back(left);
            }
            for (Index j = 0; j < width; ++j) {
                low(row, output(t) + j) += least[j];
                high(row, output(t) + j) += most[j];
            }
        }
}

}  // namespace

void bind_trees(nb::module_& m) {
    m.def("leaves", &leaves, nb::arg("X"), nb::arg("nodes"), nb::arg("has_nan"), nb::arg("out"),
          "Leaf numbers of complete rows, (rows, trees).");
    m.def("add_margin", &add_margin, nb::arg("X"), nb::arg("nodes"), nb::arg("has_nan"), nb::arg("value"), nb::arg("output"),
          nb::arg("out"), "Add the weighted values of every tree to out (rows, outputs).");
    m.def("add_range", &add_range, nb::arg("X"), nb::arg("nodes"), nb::arg("value"), nb::arg("output"), nb::arg("low"),
          nb::arg("high"), "Add each tree's least and largest leaf value that a row can reach, whatever its missing values are.");
}
