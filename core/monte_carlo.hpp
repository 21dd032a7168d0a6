// Trees in the form that draws pass through (knothole.expectation.monte_carlo.records): records, and divisions of draws.
//
// Four words of 64 draws are handled together. For every threshold of a missing number, and every code of a missing
// category, a row of masks marks the draws that go left; a split is then one AND. For trees with at most 64 leaves, sets of
// leaves say which leaves are compatible with the observed values, and which splits on missing values divide them. These
// splits are listed once per row, parents before their children, and words of draws are divided at one after the other.
#pragma once
#include "leaf_sets.hpp"
#include "nodes.hpp"
#include "vectors.hpp"
#include "words.hpp"

struct Forest {
    NodeArrays nodes;
    Lookup look;
    View<const std::uint32_t, 1> threshold_row;  // (nodes,) row of masks with the draws below; one that is 0 at sets
    View<const std::uint32_t, 1> mask_row;       // (nodes,) row of masks with the draws that go left
    View<const std::int64_t, 1> row_variable;    // variable of the first rows of masks
    View<const double, 1> row_threshold;
    View<const std::int64_t, 1> set_nodes;  // nodes with rows of masks of their own, after all others: in this order
    View<const std::int64_t, 1> tree_output;
    bool plain = false;  // whether splits are numeric and nothing, observed or drawn, is "not recorded"

    template <class Reader>
    static void fields(Forest& self, Reader& read) {
        read("nodes", self.nodes);
        read("look", self.look);
        read("cut_row", self.threshold_row, {"nodes"});
        read("mask_row", self.mask_row, {"nodes"});
        read("row_variable", self.row_variable, {"rows of thresholds"});
        read("row_threshold", self.row_threshold, {"rows of thresholds"});
        read("set_nodes", self.set_nodes, {"set nodes"});
        read("tree_output", self.tree_output, {"trees"});
        read("plain", self.plain);
    }

    Index n_trees() const { return tree_output[0]; }
    Index first_own() const { return look.offset(look.used[0]) + 1; }
    Index n_masks() const { return first_own() + set_nodes[0]; }
    // The nodes with masks of their own split on variables that there are, and their sets are there.
    void check_sets() const {
        bool fits = true;
        for (Index i = 0; i < set_nodes[0] && fits; ++i) {
            const Index node = set_nodes(i), n_nodes = mask_row[0];
            fits = node >= 0 && node < n_nodes && nodes.feature(node) >= 0 && nodes.feature(node) < look.used[0];
            if (!fits || nodes.set_start(node) < 0) continue;
            fits = nodes.set_start(node) + (Index(look.n_levels(nodes.feature(node))) - 1) / 64 < nodes.sets[0];
        }
        Arguments::require(fits, "set_nodes must be nodes whose sets are there");
    }
    // Checks beyond sizes of axes: each node has one of the rows of masks, and rows of thresholds come first.
    void check() const {
        look.check();
        std::uint32_t last = 0;
        for (Index n = 0; n < mask_row[0]; ++n) last = std::max({last, mask_row(n), threshold_row(n)});
        Arguments::require(first_own() > 0 && Index(last) < n_masks(), "mask_row and cut_row must be rows of masks");
        check_sets();
        Arguments::require(row_variable[0] == first_own() - 1, "row_variable must have a number for each row of masks");
    }
};

// All trees as sets of leaves, grouped by output.
struct SmallTrees {
    View<const std::uint8_t, 3> parting;  // (trees, LEAVES, LEAVES) node where two leaves part, counted from the root
    View<const Word, 3> node;             // (trees, 2 LEAVES, 2) leaves on the right of a split, and its row of masks
    View<const std::int64_t, 1> output;   // (trees,)
    View<const std::int64_t, 2> leaf;     // (trees, LEAVES) of each bit
    View<const std::int64_t, 1> place;    // (trees,) position of each tree of the ensemble in this order

    template <class Reader>
    static void fields(SmallTrees& self, Reader& read) {
        read("parting", self.parting, {"trees", int(LEAVES), int(LEAVES)});
        read("node", self.node, {"trees", 2 * int(LEAVES), 2});
        read("output", self.output, {"trees"});
        read("leaf", self.leaf, {"trees", int(LEAVES)});
        read("place", self.place, {"trees"});
    }
    Index n_trees() const { return output[0]; }
};

// Leaf values that margins are sums of: weighted, and the same rounded to whole units (or not), for sums over draws.
template <class Step>
struct LeafValues {
    View<const double, 2> value;  // (trees, LEAVES) of small trees, else (leaves, width)
    View<const Step, 2> rounded;
    View<const double, 1> base;  // (outputs,)
    double unit = 1.0;

    template <class Reader>
    static void fields(LeafValues& self, Reader& read) {
        read("value", self.value, {"rows of leaf values", "columns of leaf values"});
        read("rounded", self.rounded, {"rows of leaf values", "columns of leaf values"});
        read("base", self.base, {"outputs"});
        read("unit", self.unit);
    }
    // For trees that are walked; small trees have one column of values.
    void check(const Forest& forest) const {
        Arguments::require(within(forest.tree_output, 0, base[0] - std::max<Index>(value[1], 1) + 1), "tree_output must be among the outputs");
    }
    void check(const SmallTrees& small) const {
        Arguments::require(within(small.output, 0, base[0]) && within(small.place, 0, small.n_trees()), "small trees must have outputs and places");
        Arguments::require(value[0] == small.n_trees() && value[1] == LEAVES, "value must have a number for each leaf of small trees");
    }
};

// "Not recorded" is infinite; a search for it must not go on among the infinite thresholds.
constexpr double LARGEST = std::numeric_limits<double>::max();

// The first threshold of variable v above each of 64 draws; for an infinite draw the first infinite threshold.
inline void all_first_above(const double* draws, Index v, const Lookup& look, std::uint32_t* found) {
    const double *thresholds = look.thresholds.data, lowest = look.rulers(v, 0), scale = look.rulers(v, 1);
    const std::uint32_t* first_of = look.cells.at(v);
    for (Index draw = 0; draw < WORD; ++draw) found[draw] = first_of[cell_of(draws[draw], lowest, scale)];
    for (Index power = look.halvings(v); power-- > 0;)
        for (Index draw = 0; draw < WORD; ++draw) found[draw] = halved(std::min(draws[draw], LARGEST), found[draw], power, thresholds);
    for (Index draw = 0; draw < WORD; ++draw)
        found[draw] = std::uint32_t(settled(std::min(draws[draw], LARGEST), found[draw], look.start(v), thresholds));
}

// Call f with a Step of the type that the rounded values of leaves have.
template <class F>
auto with_step_type(nb::handle leaves, F f) {
    const bool whole = Arguments::holds<std::int32_t>(nb::getattr(leaves, "rounded", nb::none()));
    return whole ? f(std::int32_t()) : f(double());
}

// A split divides the draws of one entry: those that go right become another entry.
struct Split {
    std::uint32_t from, to;
    Index row;  // of masks
};

// The splits that divide a row's set of leaves, and the draws on their sides. The first entries are for the first leaves of
// all trees; those for the leaves beyond the first of tree t begin at first[t].
template <class Step>
struct Division {
    std::vector<Index> first;
    std::vector<Word> queue;  // sets still to be divided, and the number of their split; later, words that have draws
    std::vector<Split> splits;
    std::vector<double> start;  // margins if all draws are in the first leaves
    Scratch<Word> draws;        // (entries, LANES), or one word an entry
    Scratch<Step> step;         // value of an entry's leaf minus that of the tree's first leaf
    Scratch<Step> some;         // the steps of those entries of a word that have draws
    Step total[WORD];
    Index n_splits = 0;

    // With room for any of these rows of sets.
    Division(View<const Word, 2> sets, Index n_outputs) : first(sets[1] + 1), start(n_outputs) {
        Index most = 0;
        for (Index row = 0; row < sets[0]; ++row) {
            Index n = 0;
            for (Index t = 0; t < sets[1]; ++t) n += popcount(sets(row, t));
            most = std::max(most, n);
        }
        queue.resize(most + 1);
        splits.resize(most + 1);
        draws.resize((most + 1) * LANES);
        step.resize(most + 1);
        some.resize(most + 1);
    }

    Index n_trees() const { return Index(first.size()) - 1; }

    // List the splits of a row by its sets of leaves, from the roots down. Branch-free: branches would be mispredicted.
    void list(const Word* sets, const SmallTrees& small, const LeafValues<Step>& leaves, Index n_masks) {
        const Index n_trees = small.n_trees();
        const std::int64_t* output = small.output.data;
        const double* values = leaves.value.data;
        const Step* rounded = leaves.rounded.data;
        const std::uint8_t* parting = small.parting.data;
        const Word* nodes = small.node.data;
        Index* first_of = first.data();
        Word* parts = queue.data();
        Split* listed = splits.data();
        Step* steps = step.data();
        std::copy_n(leaves.base.data, start.size(), start.data());
        Index end = n_trees, n = 0;
        double sum = 0.0;
        for (Index t = 0; t < n_trees; ++t) {
            const Word own = sets[t];
            first_of[t] = end;
            end += popcount(own) - 1;
            parts[n] = own;
            listed[n] = {std::uint32_t(t), std::uint32_t(t), 0};
            n += several(own);
            sum += values[t * LEAVES + lowest_bit(own)];
            if (t + 1 == n_trees || output[t + 1] != output[t]) {
                start[output[t]] += sum;
                sum = 0.0;
            }
        }
        first_of[n_trees] = end;
        const Index stop = end - n_trees;
        Word last_row = 0;
        for (Index s = 0; s < stop; ++s) {
            const Word part = parts[s];
            const std::uint32_t entry = listed[s].from, t = listed[s].to;
            const Word own = sets[t];
            const Index tree = Index(t) * LEAVES;
            const Word* node = nodes + 2 * (2 * tree + parting[(tree + lowest_bit(part)) * LEAVES + highest_bit(part)]);
            const Word above = part & node[0], under = part ^ above;
            const int bit = lowest_bit(above);
            const std::uint32_t to = std::uint32_t(first_of[t] + popcount(own & ((Word(1) << bit) - 1)) - 1);
            steps[to] = rounded[tree + bit] - rounded[tree + lowest_bit(own)];
            listed[s] = {entry, to, Index(node[1])};
            last_row = std::max(last_row, node[1]);
            parts[n] = under;
            listed[n].from = entry, listed[n].to = t;
            n += several(under);
            parts[n] = above;
            listed[n].from = to, listed[n].to = t;
            n += several(above);
        }
        n_splits = stop;
        Arguments::require(last_row < Word(n_masks), "node must have rows of masks");
    }

    // Divide the draws of up to four words at all listed splits.
    void divide(Index lanes, const Word* masks) {
        for (Index t = 0; t < n_trees(); ++t)
            for (Index lane = 0; lane < LANES; ++lane) draws[LANES * t + lane] = lane < lanes ? ALL : 0;
        for (Index s = 0; s < n_splits; ++s) {
            const Split split = splits[s];
            const FourWords here = load_words(draws.data() + LANES * split.from);
            const FourWords left = here & load_words(masks + LANES * split.row);
            store_words(draws.data() + LANES * split.from, left);
            store_words(draws.data() + LANES * split.to, here ^ left);
        }
    }

    // Sum the steps of n entries over 64 draws, whose words are LANES apart. Half of the words have no draws: skipping them
    // takes less time than adding nothing.
    void add_steps(const Word* words, const Step* steps, Index n) {
        Index k = 0;
        for (Index entry = 0; entry < n; ++entry) {
            const Word word = words[LANES * entry];
            queue[k] = word;
            some[k] = steps[entry];
            k += word != 0;
        }
        std::fill_n(total, WORD, Step(0));
        add_where(total, queue.data(), some.data(), k);
    }

    // Margins of divided draws; out (words, 64, outputs) has room for some of the words.
    void write(const SmallTrees& small, double unit, Index lanes, Index word, double* out, Index n_words) {
        const Index n_outputs = start.size(), from = std::max<Index>(0, -word), to = std::min(lanes, n_words - word);
        Index t = 0;
        for (Index output = 0; output < n_outputs; ++output) {
            const Index entry = first[t];
            while (t < n_trees() && small.output(t) == output) ++t;
            const Index n = first[t] - entry;
            for (Index lane = from; lane < to; ++lane) {
                add_steps(draws.data() + LANES * entry + lane, step.data() + entry, n);
                double* margins = out + (word + lane) * WORD * n_outputs + output;
                for (Index draw = 0; draw < WORD; ++draw) margins[draw * n_outputs] = start[output] + unit * total[draw];
            }
        }
    }
};
