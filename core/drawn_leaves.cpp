// The leaves that draws of incomplete rows reach, and sums over draws by leaf.
//
// Numbers of leaves are as small as the largest tree allows: uint8, uint16 or uint32.
#include "bits.hpp"
#include "module.hpp"
#include "vectors.hpp"

namespace {

// Draws of a word.
constexpr Index WORD = 64;
// Partial sums for consecutive draws, which are often in the same leaf: none waits for another.
constexpr Index LANES = 8;

// Call f with a value of the type that leaf numbers have.
template <class F>
void with_numbers(nb::handle numbers, F f) {
    if (Arguments::holds<std::uint8_t>(numbers)) return f(std::uint8_t());
    if (Arguments::holds<std::uint16_t>(numbers)) return f(std::uint16_t());
    f(std::uint32_t());
}

// Write the leaf of each draw of a word. A row's entries are listed tree by tree, those of a tree up to ends[row, tree];
// the mask of an entry has the draws that reach its leaf. A complete row is one draw. O(entries + rows * trees * draws).
void place_leaves(nb::object leaf_, nb::object mask_, nb::object ends_, nb::object leaf_start_, nb::object first_,
                  nb::object incomplete_, nb::object out_) {
    with_numbers(out_, [&](auto kind) {
        using Number = decltype(kind);
        Arguments arguments;
        auto leaf = arguments.array<const std::int32_t, 1>("leaf", leaf_, {"entries"});
        auto mask = arguments.array<const Word, 1>("mask", mask_, {"entries"});
        auto ends = arguments.array<const std::int64_t, 2>("ends", ends_, {"rows", "trees"});
        auto leaf_start = arguments.array<const std::int64_t, 1>("leaf_start", leaf_start_, {Dim("trees", 1)});
        auto first = arguments.array<const std::int64_t, 1>("first", first_, {"rows"});
        auto incomplete = arguments.array<const bool, 1>("incomplete", incomplete_, {"rows"});
        auto out = arguments.array<Number, 2>("out", out_, {"trees", "draws"});
        for (Index row = 0; row < ends[0]; ++row)
            Arguments::require(first(row) >= 0 && first(row) + (incomplete(row) ? WORD : 1) <= out[1], "out must have room for all draws");
        Index last = 0;
        for (Index i = 0; i < ends.size(); ++i) {
            Arguments::require(ends.data[i] >= last && ends.data[i] <= leaf[0], "ends must ascend within entries");
            last = ends.data[i];
        }
        nb::gil_scoped_release unlocked;
        Index entry = 0;
        for (Index row = 0; row < ends[0]; ++row)
            for (Index tree = 0; tree < ends[1]; ++tree)
                for (; entry < ends(row, tree); ++entry) {
                    const Number number = Number(leaf(entry) - leaf_start(tree));
                    Number* draws = out.at(tree) + first(row);
                    if (!incomplete(row)) *draws = number;
                    else for (Word rest = mask(entry); rest != 0; rest &= rest - 1) draws[lowest_bit(rest)] = number;
                }
    });
}

// out[leaf] = sum of weight * values over the draws in a leaf, for outputs from `output` on.
void sum_by_leaf(nb::object leaf_, nb::object weight_, nb::object values_, Index output, nb::object out_) {
    with_numbers(leaf_, [&](auto kind) {
        Arguments arguments;
        auto leaf = arguments.array<const decltype(kind), 1>("leaf", leaf_, {"draws"});
        auto weight = arguments.array<const double, 1>("weight", weight_, {"draws"});
        auto out = arguments.array<double, 2>("out", out_, {"leaves", "width"});
        auto values = arguments.array<const double, 2>("values", values_, {"draws", Dim::at_least("width")});
        const Index width = out[1], size = out.size();
        Arguments::require(output >= 0 && output + width <= values[1], "output must leave room for the width of leaves");
        Arguments::require(within(leaf, 0, out[0]), "leaf must be one of out's");
        nb::gil_scoped_release unlocked;
        Scratch<double> lanes(LANES * size);
        with_constant_or_one(width, [&](auto n) {
            for (Index draw = 0; draw < leaf[0]; ++draw) {
                double* sums = lanes.data() + draw % LANES * size + leaf(draw) * n;
                for (Index j = 0; j < n; ++j) sums[j] += weight(draw) * values(draw, output + j);
            }
        });
        for (Index i = 0; i < size; ++i) {
            double total = 0.0;
            for (Index lane = 0; lane < LANES; ++lane) total += lanes[lane * size + i];
            out.data[i] = total;
        }
    });
}

// Add the leaf values of draws to margins (draws, outputs), from an output on.
void add_step(nb::object leaf_, nb::object step_, Index output, nb::object out_) {
    with_numbers(leaf_, [&](auto kind) {
        Arguments arguments;
        auto leaf = arguments.array<const decltype(kind), 1>("leaf", leaf_, {"draws"});
        auto step = arguments.array<const double, 2>("step", step_, {"leaves", "width"});
        auto out = arguments.array<double, 2>("out", out_, {"draws", Dim::at_least("width")});
        Arguments::require(output >= 0 && output + step[1] <= out[1], "output must leave room for the width of leaves");
        Arguments::require(within(leaf, 0, step[0]), "leaf must be one of step's");
        nb::gil_scoped_release unlocked;
        for (Index draw = 0; draw < leaf[0]; ++draw) {
            double* __restrict to = out.at(draw) + output;
            const double* __restrict from = step.at(leaf(draw));
            for (Index j = 0; j < step[1]; ++j) to[j] += from[j];
        }
    });
}

// Add the weights of draws, from `begin` on, to pairs of leaves: of one tree, and of the same or a later tree.
// O(draws * trees).
void add_pairs(nb::object leaf_, Index begin, nb::object weight_, nb::object trees_, Index place, nb::object start_, nb::object out_) {
    with_numbers(leaf_, [&](auto kind) {
        Arguments arguments;
        auto leaf = arguments.array<const decltype(kind), 2>("leaf", leaf_, {"all trees", "all draws"});
        auto weight = arguments.array<const double, 1>("weight", weight_, {"draws"});
        auto trees = arguments.array<const std::int64_t, 1>("trees", trees_, {"trees"});
        auto start = arguments.array<const std::int64_t, 1>("start", start_, {Dim("trees", 1)});
        auto out = arguments.array<double, 2>("out", out_, {"leaves", "leaves"});
        const Index n_draws = weight[0];
        Arguments::require(begin >= 0 && begin + n_draws <= leaf[1], "leaf must have all draws that have a weight");
        Arguments::require(place >= 0 && place < trees[0], "place must be that of a tree");
        for (Index t = 0; t < trees[0]; ++t) {
            Arguments::require(trees(t) >= 0 && trees(t) < leaf[0], "trees names a tree that is not there");
            Arguments::require(start(t) >= 0 && start(t) <= start(t + 1) && start(t + 1) <= out[0], "start must ascend within leaves");
        }
        for (Index t = place; t < trees[0]; ++t) {
            const View<const decltype(kind), 1> numbers{leaf.at(trees(t)) + begin, {n_draws}};
            Arguments::require(within(numbers, 0, start(t + 1) - start(t)), "leaf must be one of its tree's");
        }
        nb::gil_scoped_release unlocked;
        const auto* here = leaf.at(trees(place)) + begin;
        for (Index draw = 0; draw < n_draws; ++draw) {
            const Index i = start(place) + here[draw];
            out(i, i) += weight(draw);
        }
        for (Index other = place + 1; other < trees[0]; ++other) {
            const auto* there = leaf.at(trees(other)) + begin;
            for (Index draw = 0; draw < n_draws; ++draw) out(start(place) + here[draw], start(other) + there[draw]) += weight(draw);
        }
    });
}

}  // namespace

void bind_drawn_leaves(nb::module_& m) {
    m.def("place_leaves", &place_leaves, nb::arg("leaf"), nb::arg("mask"), nb::arg("ends"), nb::arg("leaf_start"), nb::arg("first"),
          nb::arg("incomplete"), nb::arg("out"), "Write the leaf of each draw of a word to out (trees, draws).");
    m.def("sum_by_leaf", &sum_by_leaf, nb::arg("leaf"), nb::arg("weight"), nb::arg("values"), nb::arg("output"), nb::arg("out"),
          "Weighted values (draws, outputs), from an output on, summed by leaf, (leaves, width).");
    m.def("add_step", &add_step, nb::arg("leaf"), nb::arg("step"), nb::arg("output"), nb::arg("out"),
          "Add the leaf values of draws to margins (draws, outputs), from an output on.");
    m.def("add_pairs", &add_pairs, nb::arg("leaf"), nb::arg("begin"), nb::arg("weight"), nb::arg("trees"), nb::arg("place"),
          nb::arg("start"), nb::arg("out"), "Add the weights of draws to pairs of leaves, of one tree and of the same or a later tree.");
}
