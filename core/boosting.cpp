// Small boosted trees on codes, grown as scikit-learn's HistGradientBoosting grows them.
//
// The leaf with the best split is divided next. Sums of slopes g and curvatures h over its rows, by column and code, give the
// gain of every split, with NaN on either side:
//
//     g_l^2 / (h_l + penalty) + g_r^2 / (h_r + penalty) - g^2 / (h + penalty).
//
// Sums are computed over the rows of the smaller of two children, and subtracted from the parent's for the other.
// O(rows * columns * depth).
#include "module.hpp"

#include <algorithm>
#include <memory>
#include <utility>

namespace {

// Limits of a tree.
constexpr Index LEAVES = 16, NODES = 2 * LEAVES - 1;
// The most codes of numbers; NaN has the code after the last of its column.
constexpr Index DISTINCT = 64, CODES = DISTINCT + 1;
constexpr double LEAST_ROWS = 15, LEAST_CURVATURE = 1e-3, RATE = 0.1, PENALTY = 1.0;

// Slopes, curvatures and the number of some rows.
struct Sum {
    double g, h, n;
};

struct Node {
    Index feature = 0, code = 0;
    bool missing_left = false;
    Index left = -1;  // the right child follows; -1 at leaves
    Index start = 0, stop = 0;  // its rows
    Index place = 0;            // position of its sums
    double value = 0.0, gain = 0.0, g = 0.0, h = 0.0, left_g = 0.0, left_h = 0.0;

    Index size() const { return stop - start; }
};

// Rows with a code up to `code` go to the node `left` (negative at leaves), others to the next.
struct Tree {
    View<std::int64_t, 1> feature, code, left;
    View<bool, 1> missing_left;
    View<double, 1> value;

    template <class Reader>
    static void fields(Tree& self, Reader& read) {
        read("feature", self.feature, {int(NODES)});
        read("code", self.code, {int(NODES)});
        read("left", self.left, {int(NODES)});
        read("missing_left", self.missing_left, {int(NODES)});
        read("value", self.value, {int(NODES)});
    }
};

class Grower {
  public:
    Grower(View<const std::uint8_t, 2> code, View<const std::int64_t, 1> width, View<const double, 1> slope, View<const double, 1> curvature)
        : code_(code), width_(width), slope_(slope), curvature_(curvature), rows_(slope[0]), others_(slope[0]),
          sums_(new Sum[LEAVES * width[0] * CODES]) {}

    // Grow the tree; returns the number of its nodes.
    Index grow() {
        Node& root = node[0];
        root = Node();
        root.stop = slope_[0];
        for (Index i = 0; i < slope_[0]; ++i) {
            rows_[i] = std::int32_t(i);
            root.g += slope_(i);
            root.h += curvature_(i);
        }
        Index left = 0, right = 0, small = 0, large = 0;  // nodes examined next, from left to right
        while (right < NODES - 1) {
            if (node[large].size() >= 2 * LEAST_ROWS) {
                node[small].place = (right + 1) / 2;
                add_up(node[small]);
                if (small != large) take_off(sums(node[small]), sums(node[large]));
                for (Index child = left; child <= right; ++child) seek(node[child]);
            }
            Index best = 0;
            for (Index other = 1; other <= right; ++other)
                if (node[other].gain > node[best].gain) best = other;
            Node& parent = node[best];
            if (!(parent.gain > 0)) break;
            left = right + 1;
            right += 2;
            parent.gain = 0.0;
            parent.left = left;
            const Index middle = divide(parent);
            node[left] = node[right] = Node();
            node[left].start = parent.start;
            node[left].stop = node[right].start = middle;
            node[right].stop = parent.stop;
            node[left].g = parent.left_g;
            node[left].h = parent.left_h;
            node[right].g = parent.g - parent.left_g;
            node[right].h = parent.h - parent.left_h;
            for (Index child : {left, right}) node[child].value = -node[child].g / (node[child].h + PENALTY);
            small = node[left].size() < node[right].size() ? left : right;
            large = left + right - small;
            node[large].place = parent.place;
            if (entry(sums(parent), parent.feature, width_(parent.feature)).n == 0)  // no row has NaN: with most of them
                parent.missing_left = node[left].size() > node[right].size();
        }
        return right + 1;
    }

    std::int32_t row(Index i) const { return rows_[i]; }

    Node node[NODES];

  private:
    Sum* sums(const Node& of) { return sums_.get() + of.place * width_[0] * CODES; }
    static Sum& entry(Sum* sums, Index column, Index code) { return sums[column * CODES + code]; }

    // Sums over a node's rows, by column and code.
    void add_up(const Node& of) {
        Sum* own = sums(of);
        const Index n_columns = width_[0];
        for (Index j = 0; j < n_columns; ++j)
            for (Index c = 0; c <= width_(j); ++c) entry(own, j, c) = Sum{0.0, 0.0, 0.0};
        for (Index i = of.start; i < of.stop; ++i) {
            const Index row = rows_[i];
            const double g = slope_(row), h = curvature_(row);
            const std::uint8_t* codes = code_.at(row);
            for (Index j = 0; j < n_columns; ++j) {
                Sum& to = entry(own, j, codes[j]);
                to.g += g;
                to.h += h;
                to.n += 1.0;
            }
        }
    }

    // Subtract a node's smaller child's sums from its own, which gives the other child's. Sums over no rows are exactly 0.
    void take_off(Sum* small, Sum* large) {
        for (Index j = 0; j < width_[0]; ++j)
            for (Index c = 0; c <= width_(j); ++c) {
                Sum& whole = entry(large, j, c);
                const Sum& part = entry(small, j, c);
                const double n = whole.n - part.n;
                whole = Sum{n > 0 ? whole.g - part.g : 0.0, n > 0 ? whole.h - part.h : 0.0, n};
            }
    }

    // Find the best split of a node.
    void seek(Node& of) {
        const double without = -of.g * of.value, n = double(of.size());
        double best = without;  // what both sides together must exceed
        if (n < 2 * LEAST_ROWS || of.h < LEAST_CURVATURE) return;
        for (Index j = 0; j < width_[0]; ++j) {
            const Sum* own = &entry(sums(of), j, 0);
            const Index width = width_(j);
            const bool missing = own[width].n > 0;
            for (int backwards = 0; backwards <= int(missing); ++backwards) {  // NaN on the right, then on the left
                Sum near{0.0, 0.0, 0.0};
                const Index steps = width - 1 + (missing && !backwards);
                for (Index step = 0; step < steps; ++step) {
                    const Index c = backwards ? width - 1 - step : step;
                    if (own[c].n == 0) continue;  // the same split as before: rounding must not decide
                    near.g += own[c].g;
                    near.h += own[c].h;
                    near.n += own[c].n;
                    if (near.n < LEAST_ROWS || near.h < LEAST_CURVATURE) continue;
                    const double far_g = of.g - near.g, far_h = of.h - near.h;
                    if (n - near.n < LEAST_ROWS || far_h < LEAST_CURVATURE) break;
                    const double one = near.h + PENALTY, other = far_h + PENALTY;
                    const double both = near.g * near.g * other + far_g * far_g * one, unit = one * other;
                    if (both > best * unit) {  // a division would take as long as everything else
                        best = both / unit;
                        of.gain = best - without;
                        of.feature = j;
                        of.missing_left = backwards;
                        of.code = backwards ? c - 1 : c;
                        of.left_g = backwards ? far_g : near.g;
                        of.left_h = backwards ? far_h : near.h;
                    }
                }
            }
        }
    }

    // Move the rows that go left before the others, keeping the order of both; returns where the others begin.
    Index divide(const Node& of) {
        Index at = of.start, n_others = 0;
        const Index nan = width_(of.feature);
        for (Index i = of.start; i < of.stop; ++i) {
            const std::int32_t row = rows_[i];
            const Index code = code_(row, of.feature);
            const bool goes_left = code <= of.code || (code == nan && of.missing_left);
            if (goes_left) rows_[at++] = row;
            else others_[n_others++] = row;
        }
        std::copy(others_.begin(), others_.begin() + n_others, rows_.begin() + at);
        return at;
    }

    View<const std::uint8_t, 2> code_;
    View<const std::int64_t, 1> width_;
    View<const double, 1> slope_, curvature_;
    std::vector<std::int32_t> rows_, others_;
    std::unique_ptr<Sum[]> sums_;  // (leaves, columns, codes)
};

Index grow(nb::object code_, nb::object width_, nb::object slope_, nb::object curvature_, nb::object margin_, nb::object tree_) {
    Arguments arguments;
    auto code = arguments.array<const std::uint8_t, 2>("code", code_, {"rows", "columns"});
    auto width = arguments.array<const std::int64_t, 1>("width", width_, {"columns"});
    auto slope = arguments.array<const double, 1>("slope", slope_, {"rows"});
    auto curvature = arguments.array<const double, 1>("curvature", curvature_, {"rows"});
    auto margin = arguments.array<double, 1>("margin", margin_, {"rows"});
    auto tree = arguments.record<Tree>("tree", tree_);
    Arguments::require(within(width, 0, DISTINCT + 1), "width must be at most 64");
    Arguments::require(within(code, 0, DISTINCT + 1), "code must be at most 64");
    nb::gil_scoped_release unlocked;
    Grower grower(code, width, slope, curvature);
    const Index n_nodes = grower.grow();
    for (Index k = 0; k < n_nodes; ++k) {
        const Node& node = grower.node[k];
        tree.feature(k) = node.feature;
        tree.code(k) = node.code;
        tree.left(k) = node.left;
        tree.missing_left(k) = node.missing_left;
        tree.value(k) = RATE * node.value;
        if (node.left >= 0) continue;
        for (Index i = node.start; i < node.stop; ++i) margin(grower.row(i)) += tree.value(k);
    }
    return n_nodes;
}

}  // namespace

void bind_boosting(nb::module_& m) {
    m.attr("LEAVES") = LEAVES;
    m.attr("DISTINCT") = DISTINCT;
    m.attr("LEAST_ROWS") = Index(LEAST_ROWS);
    m.attr("LEAST_CURVATURE") = LEAST_CURVATURE;
    m.attr("RATE") = RATE;
    m.attr("PENALTY") = PENALTY;
    m.def("grow", &grow, nb::arg("code"), nb::arg("width"), nb::arg("slope"), nb::arg("curvature"), nb::arg("margin"), nb::arg("tree"),
          "Grow a tree, add its values to the margins of its rows, and return how many nodes it has.");
}
