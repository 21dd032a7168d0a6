// Leaves compatible with the observed values of rows. O(rows * nodes that are reached).
#include "module.hpp"
#include "nodes.hpp"

#include <algorithm>

namespace {

// Call f(row, leaf) for all leaves compatible with the rows, tree by tree.
template <class F>
void for_leaves(View<const double, 2> points, const NodeArrays& nodes, F f) {
    const bool finite = std::none_of(points.data, points.data + points.size(), [](double x) { return x == INF; });
    const bool plain = finite && nodes.sets[0] == 0;
    std::vector<Index> waiting;
    for (Index t = 0; t < nodes.roots[0]; ++t)
        for (Index row = 0; row < points[0]; ++row) {
            waiting.assign(1, nodes.roots(t));
            while (!waiting.empty()) {
                const Index node = nodes.follow(points.at(row), waiting.back(), plain);
                waiting.pop_back();
                if (!nodes.is_leaf(node)) {
                    waiting.push_back(nodes.left(node) + 1);
                    waiting.push_back(nodes.left(node));
                } else {
                    f(row, nodes.left(node));
                }
            }
        }
}

Index count_leaves(nb::object points_, nb::object nodes_) {
    Arguments arguments;
    auto points = arguments.array<const double, 2>("points", points_, {"rows", "variables"});
    auto nodes = arguments.record<NodeArrays>("nodes", nodes_);
    nodes.check(points[1]);
    nb::gil_scoped_release unlocked;
    Index count = 0;
    for_leaves(points, nodes, [&](Index, Index) { ++count; });
    return count;
}

Index list_leaves(nb::object points_, nb::object nodes_, nb::object row_, nb::object leaf_) {
    Arguments arguments;
    auto points = arguments.array<const double, 2>("points", points_, {"rows", "variables"});
    auto nodes = arguments.record<NodeArrays>("nodes", nodes_);
    nodes.check(points[1]);
    auto out_row = arguments.array<std::int32_t, 1>("row", row_, {"entries"});
    auto out_leaf = arguments.array<std::int32_t, 1>("leaf", leaf_, {"entries"});
    nb::gil_scoped_release unlocked;
    Index count = 0;
    for_leaves(points, nodes, [&](Index row, Index leaf) {
        if (count < out_row[0]) {
            out_row(count) = std::int32_t(row);
            out_leaf(count) = std::int32_t(leaf);
        }
        ++count;
    });
    return count;
}

}  // namespace

void bind_circuit(nb::module_& m) {
    m.def("count_leaves", &count_leaves, nb::arg("points"), nb::arg("nodes"), "Number of pairs (row, leaf) whose leaf is compatible with the observed values.");
    m.def("list_leaves", &list_leaves, nb::arg("points"), nb::arg("nodes"), nb::arg("row"), nb::arg("leaf"),
          "List the pairs (row, leaf), tree by tree, until out is full; returns their number.");
}
