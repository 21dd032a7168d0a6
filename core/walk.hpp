// Walks through trees that branch where a row has a missing value (knothole.expectation.exact.walk).
//
// A position goes from leaf to leaf of one tree, depth first, through the leaves that a row can reach. If it keeps the region
// of every missing value, a second position can start inside a leaf of the first and go through another tree there, which
// gives the probability of a pair of leaves (Lemma 2). It can also start from any region, such as a partly observed one-hot
// group.
//
// Densities differ in their family. A family has
//     Position                              the state of a walk: frames, and what the density needs to return
//     block                                 rows that walk a tree one after the other, so that its nodes stay in cache
//     begin_row(x, row)                     prepare for a row; where block is more than 1, leave nothing behind
//     place(position, tree, row)            before the first leaf of a tree, with all of the row's probability
//     advance(x, position, found)           go on to the next leaves, as many as the list takes; returns their number
// and, with regions (RegionWalk has advance),
//     place_inside(position, root, outer)   before the first leaf below root, inside the leaf of another position
//     leave_inside(outer)                   forget a position that was placed inside another's leaf and has finished
//     divide_region(position, top, v, left, right, probabilities)  divide what arrives at a split on v by masses of its sides
//     enter_side(position, top, v, left, right)  continue on one side of the last split in frame top (`right`: which)
//     leave_split(position, top, v)         return to what arrived at the split in frame top
// O(leaves that a row reaches * states) a row and tree; squared for pairs.
#pragma once
#include "leaf_sets.hpp"
#include "vectors.hpp"

// Uninitialised scratch memory: most calls use a part of it.
template <class T>
struct Unset : Aligned<T> {
    template <class U>
    struct rebind { using other = Unset<U>; };
    template <class U, class... A>
    void construct(U* place, A&&... value) {
        if constexpr (sizeof...(A) > 0) ::new (static_cast<void*>(place)) U(static_cast<A&&>(value)...);
    }
};
template <class T>
using Room = std::vector<T, Unset<T>>;

inline void prefetch(const double* x, Index n) {
    for (Index z = 0; z < n; z += Index(CACHE_LINE / sizeof(double))) __builtin_prefetch(x + z);
}

// ---- what walks read --------------------------------------------------------------------------------------------------

// Tables of trees and univariate distributions (knothole.expectation.tables).
struct WalkTables {
    View<const std::int32_t, 1> position;    // (nodes,) of the threshold, in its variable's grid
    View<const std::int64_t, 1> offset;      // (variables + 1,) first row of each variable in mass
    View<const double, 2> mass;              // (grid rows, states) cumulative masses and probabilities
    View<const double, 2> absent;            // (variables, states) mass of "not recorded" of numeric variables
    View<const std::int64_t, 1> n_levels;    // (variables,)
    View<const std::int64_t, 1> unrecorded;  // (variables,) code of "not recorded" of categorical ones, else -1
    View<const std::int64_t, 1> set_offset;  // (variables + 1,) first word of each variable in a region's sets
    Index depth = 0;                         // the most frames that a walk can need

    template <class Reader>
    static void fields(WalkTables& self, Reader& read) {
        read("position", self.position, {"nodes"});
        read("n_levels", self.n_levels, {"variables"});
        read("offset", self.offset, {Dim("variables", 1)});
        read("mass", self.mass, {"grid rows", "states"});
        read("absent", self.absent, {"variables", "states"});
        read("unrecorded", self.unrecorded, {"variables"});
        read("set_offset", self.set_offset, {Dim("variables", 1)});
        read("depth", self.depth);
    }
    Index n_variables() const { return n_levels[0]; }
    Index n_words() const { return set_offset(n_variables()); }
    Index states() const { return mass[1]; }
};

struct Leaves {
    View<const std::int64_t, 1> start;   // (trees + 1,) first leaf of each tree
    View<const double, 2> value;         // (leaves, width) times the tree's weight
    View<const std::int32_t, 1> output;  // (trees,) first output that each tree serves

    template <class Reader>
    static void fields(Leaves& self, Reader& read) {
        read("start", self.start, {Dim("trees", 1)});
        read("value", self.value, {"leaves", "width"});
        read("output", self.output, {"trees"});
    }
};

// The rows and trees of a walk.
struct Walk {
    View<const double, 2> points;  // (rows, variables)
    NodeArrays nodes;
    Leaves leaves;
    WalkTables tables;

    Walk(Arguments& arguments, nb::handle points_, nb::handle nodes_, nb::handle leaves_, nb::handle tables_)
        : nodes(arguments.record<NodeArrays>("nodes", nodes_)), leaves(arguments.record<Leaves>("leaves", leaves_)),
          tables(arguments.record<WalkTables>("tables", tables_)) {
        points = arguments.array<const double, 2>("points", points_, {"rows", Dim::at_least("variables")});
        Arguments::require(tables.states() % AT_ONCE == 0, "states must be a multiple of four");
        nodes.check(leaves.value[0], tables.n_levels);
        bool ordered = tables.set_offset(0) == 0, rises = tables.offset(0) == 0;
        for (Index v = 0; v < tables.n_variables(); ++v) {
            const Index words = tables.n_levels(v) > 0 ? tables.n_levels(v) / 64 + 1 : 0;
            ordered &= tables.set_offset(v + 1) - tables.set_offset(v) == words;
            rises &= tables.offset(v + 1) >= tables.offset(v);
        }
        Arguments::require(ordered, "set_offset must leave as many words to each variable as its levels have");
        Arguments::require(rises && tables.offset(tables.n_variables()) == tables.mass[0], "offset must rise to the rows of mass");
        Arguments::require(tables.depth > 0, "depth must be at least 1");
        rises = leaves.start(0) == 0;
        for (Index t = 0; t < n_trees(); ++t) rises &= leaves.start(t + 1) >= leaves.start(t);
        Arguments::require(rises && leaves.start(n_trees()) == leaves.value[0], "start must rise to the number of leaves");
    }
    Index n_trees() const { return nodes.roots[0]; }
    // Room for the leaves of a tree: one more than leaves, since a full list means "not finished", and one to spare.
    Index places(Index tree) const { return leaves.start(tree + 1) - leaves.start(tree) + 2; }
    Index most_places() const {
        Index most = 0;
        for (Index t = 0; t < n_trees(); ++t) most = std::max(most, places(t));
        return most;
    }
    void check_outputs(Index n) const {
        bool inside = true;
        for (Index t = 0; t < n_trees(); ++t) inside &= leaves.output(t) >= 0 && leaves.output(t) + leaves.value[1] <= n;
        Arguments::require(inside, "a tree serves an output that out does not have");
    }
};

// Leaves that a position reached, and their probabilities.
struct LeafList {
    std::int32_t* leaves;
    double* probabilities;
    Index size;

    void put(Index i, Index leaf, double probability) const {
        if (i >= size) throw std::invalid_argument("a tree has more leaves than it should");
        leaves[i] = std::int32_t(leaf), probabilities[i] = probability;
    }
};
struct LeafRoom {
    Room<std::int32_t> leaves;
    Room<double> probabilities;
    LeafList list;
    explicit LeafRoom(Index n) : leaves(n), probabilities(n), list{leaves.data(), probabilities.data(), n} {}
};

// ---- walks without regions: where a row branches ------------------------------------------------------------------------

// Leaves of small trees compatible with observed values (LeafSets), for all trees; no trees if some tree is too large.
struct LeafWords {
    View<const Word, 2> word;             // (rows, trees)
    View<const std::uint8_t, 3> parting;  // (trees, LEAVES, LEAVES)
    View<const Word, 2> right;            // (trees, 2 LEAVES)
    View<const std::int64_t, 2> leaf;     // (trees, LEAVES)

    template <class Reader>
    static void fields(LeafWords& self, Reader& read) {
        read("word", self.word, {"rows", "small trees"});
        read("parting", self.parting, {"small trees", int(LEAVES), int(LEAVES)});
        read("right", self.right, {"small trees", 2 * int(LEAVES)});
        read("leaf", self.leaf, {"small trees", int(LEAVES)});
    }
    void check(const Walk& walk) const {
        Arguments::require(word[1] == 0 || word[1] == walk.n_trees(), "words must be of all trees, or of none");
    }
};

// From split to split where a set of leaves divides in two. A place is the remaining set.
struct SmallTrees {
    using Place = Word;
    const LeafWords& words;
    const std::int32_t* roots;

    Place start(Index row, Index tree) const { return words.word(row, tree); }
    // Whether the row branches further down, and the node where it does, or else the leaf that it reaches.
    bool divides(const double*, Place at, Index tree, Index& node) const {
        const int lowest = lowest_bit(at), highest = highest_bit(at);
        if (lowest == highest) {
            node = words.leaf.data[tree * LEAVES + lowest];
            return false;
        }
        node = roots[tree] + Index(words.parting.data[(tree * LEAVES + lowest) * LEAVES + highest]);
        return true;
    }
    Place right_of(Place at, Index node, Index tree) const { return at & words.right.data[2 * tree * LEAVES + node - roots[tree]]; }
    Place left_of(Place at, Index node, Index tree) const { return at ^ right_of(at, node, tree); }
};

// From node to node. A place is a node.
struct LargeTrees {
    using Place = Index;
    const NodeArrays& nodes;
    bool plain;

    Place start(Index, Index tree) const { return nodes.roots.data[tree]; }
    bool divides(const double* x, Place at, Index, Index& node) const {
        at = nodes.follow(x, at, plain);
        const bool inside = !nodes.is_leaf(at);
        node = inside ? at : nodes.left.data[at];
        return inside;
    }
    Place left_of(Place, Index node, Index) const { return nodes.left.data[node]; }
    Place right_of(Place, Index node, Index) const { return nodes.left.data[node] + 1; }
};

// ---- walks with regions -------------------------------------------------------------------------------------------------

// What is known of the missing values of rows.
struct RegionRows {
    View<const Word, 2> allowed;  // (rows, words) the codes that are possible
    View<const double, 2> odds;   // (rows, variables) odds of missing values (Evidence.odds)

    template <class Reader>
    static void fields(RegionRows& self, Reader& read) {
        read("allowed", self.allowed, {"rows", "words of regions"});
        read("odds", self.odds, {"rows", "variables"});
    }
    void check(const Walk& walk) const {
        Arguments::require(allowed[1] == walk.tables.n_words(), "allowed must have the words of all variables");
    }
};

// The remaining region of a numeric variable: grid positions, and whether "not recorded" is excluded.
struct Interval {
    Index low, high;
    bool recorded;
};

// A stack with one frame for each split on a missing value between the root and a position.
struct RegionFrames {
    enum Phase { ENTER, RIGHT, LEAVE };
    struct Frame {
        double probability;  // leaf probability, so far
        Index node;
        Phase phase;
        Interval saved;  // the region of the split's variable on arrival
    };
    Index top = -1, words;
    std::vector<Frame> frame;
    std::vector<Word> saved;           // the same for a category, `words` for each frame
    Scratch<double> left, right;  // masses of the sides of the last split that divided

    explicit RegionFrames(const WalkTables& tables) : words(0), frame(tables.depth), left(tables.states()), right(tables.states()) {
        for (Index v = 0; v < tables.n_variables(); ++v) words = std::max(words, tables.set_offset(v + 1) - tables.set_offset(v));
        saved.resize(words * tables.depth);
    }
    void start(Index root, double probability) {
        top = 0;
        frame[0].probability = probability, frame[0].node = root, frame[0].phase = ENTER;
    }
};

template <class Family>
class RegionWalk {
  public:
    static constexpr Index block = 1;

    RegionWalk(const Walk& walk, const RegionRows& known)
        : walk(walk), known(known), mass(walk.tables.mass.data), numbers(walk.tables.n_variables()), sets(walk.tables.n_words()) {}

    // See the top of this file. With room for only one leaf, the current region is that of the leaf when it stops there.
    // After the last leaf, the region is what it was at the start.
    template <class Position>
    Index advance(const double* x, Position& position, const LeafList& found) {
        using F = RegionFrames;
        const NodeArrays& nodes = walk.nodes;
        // Callers that take leaves one by one need the leaf's region, others only its probability.
        const bool one_by_one = found.size == 1;
        const Index most = one_by_one ? 1 : found.size - 1;
        Index count = 0, top = position.top;
        double *left = position.left.data(), *right = position.right.data(), probabilities[2];
        while (top >= 0 && count < most) {
            F::Frame& here = position.frame[top];
            const bool enter = here.phase == F::ENTER;
            if (enter) here.node = nodes.follow(x, here.node, false);
            const Index node = here.node, v = nodes.feature(node);
            if (v < 0) {
                if (enter) {
                    here.phase = F::LEAVE;
                    found.put(count++, nodes.left(node), here.probability);
                } else {
                    --top;
                }
                continue;
            }
            bool to_right = true;
            double child_probability;
            if (enter) {
                side_masses(v, node, left, right);
                self().divide_region(position, top, v, left, right, probabilities);
                const Index left_node = nodes.follow(x, nodes.left(node), false);
                const Index right_node = nodes.follow(x, nodes.left(node) + 1, false);
                const bool left_ends = !one_by_one && (nodes.is_leaf(left_node) || probabilities[0] <= 0.0);
                const bool right_ends = !one_by_one && (nodes.is_leaf(right_node) || probabilities[1] <= 0.0);
                if (left_ends && probabilities[0] > 0.0) found.put(count++, nodes.left(left_node), probabilities[0]);
                if (right_ends && probabilities[1] > 0.0) found.put(count++, nodes.left(right_node), probabilities[1]);
                if (left_ends && right_ends) {
                    self().leave_split(position, top, v);
                    --top;
                    continue;
                }
                prefetch_masses(left_node);
                prefetch_masses(right_node);
                save(position, v, top);
                here.phase = left_ends || right_ends ? F::LEAVE : F::RIGHT;
                here.probability = probabilities[1], to_right = left_ends;
                child_probability = left_ends ? probabilities[1] : probabilities[0];
            } else if (here.phase == F::RIGHT) {
                here.phase = F::LEAVE;
                child_probability = here.probability;
            } else {
                self().leave_split(position, top, v);
                restore(position, v, top);
                --top;
                continue;
            }
            // Most pairs of regions are disjoint: a side with probability 0 is not visited.
            if (child_probability > 0.0) {
                if (top + 2 >= Index(position.frame.size())) throw std::invalid_argument("a tree is deeper than it should be");
                confine(position, top, node, v, to_right);
                self().enter_side(position, top, v, left, to_right);
                ++top;
                position.frame[top].probability = child_probability;
                position.frame[top].node = nodes.left(node) + to_right;
                position.frame[top].phase = F::ENTER;
            }
        }
        position.top = top;
        return count;
    }

  protected:
    const Walk& walk;
    const RegionRows& known;
    const double* mass;  // (grid rows, states)
    // The remaining region of each missing variable.
    std::vector<Interval> numbers;
    std::vector<Word> sets;
    const double* odds = nullptr;

    // Reset: every missing value may be anything that the row's sets allow.
    void reset_region(Index row) {
        const WalkTables& tables = walk.tables;
        for (Index v = 0; v < tables.n_variables(); ++v) numbers[v] = {0, tables.offset(v + 1) - tables.offset(v) - 1, false};
        odds = known.odds.at(row);
        std::copy_n(known.allowed.at(row), sets.size(), sets.begin());
    }

  private:
    Family& self() { return static_cast<Family&>(*this); }

    // Store the region of variable v in a frame, or restore it.
    void save(RegionFrames& frames, Index v, Index top) const {
        const WalkTables& tables = walk.tables;
        frames.frame[top].saved = numbers[v];
        std::copy(sets.begin() + tables.set_offset(v), sets.begin() + tables.set_offset(v + 1), frames.saved.begin() + top * frames.words);
    }
    void restore(const RegionFrames& frames, Index v, Index top) {
        const WalkTables& tables = walk.tables;
        numbers[v] = frames.frame[top].saved;
        std::copy_n(frames.saved.begin() + top * frames.words, tables.set_offset(v + 1) - tables.set_offset(v),
                    sets.begin() + tables.set_offset(v));
    }
    // Confine variable v to the left or right side of the region stored in the frame, at a split.
    void confine(const RegionFrames& frames, Index top, Index node, Index v, bool right) {
        const WalkTables& tables = walk.tables;
        if (tables.n_levels(v) > 0) {
            const Index first = tables.set_offset(v), n = tables.set_offset(v + 1) - first;
            const Word* split = walk.nodes.sets.data + walk.nodes.set_start(node);
            for (Index i = 0; i < n; ++i) sets[first + i] = frames.saved[top * frames.words + i] & (right ? ~split[i] : split[i]);
            return;
        }
        const Interval& saved = frames.frame[top].saved;
        const Index middle = std::min(std::max<Index>(tables.position(node), saved.low), saved.high);
        // NaN goes to one side; on the other, the variable is known to be recorded.
        const bool elsewhere = walk.nodes.missing_left(node) == right;
        numbers[v] = {right ? middle : saved.low, right ? saved.high : middle, elsewhere || saved.recorded};
    }
    // Masses of the two sides of the remaining region of a variable at a split.
    void side_masses(Index v, Index node, double* left, double* right) const {
        const WalkTables& tables = walk.tables;
        const Index states = tables.states();
        const double* first = mass + tables.offset(v) * states;
        if (tables.n_levels(v) > 0) {
            fill(left, 0.0, states);
            fill(right, 0.0, states);
            for (Index code = 0; code < tables.n_levels(v); ++code)
                if (has(sets.data(), tables.set_offset(v), code)) {
                    double* side = has(walk.nodes.sets.data, walk.nodes.set_start(node), code) ? left : right;
                    add_times(side, first + code * states, code == tables.unrecorded(v) ? odds[v] : 1.0, states);
                }
            return;
        }
        const Interval& here = numbers[v];
        const Index middle = std::min(std::max<Index>(tables.position(node), here.low), here.high);
        difference(left, first + middle * states, first + here.low * states, states);
        difference(right, first + here.high * states, first + middle * states, states);
        if (!here.recorded) add_times(walk.nodes.missing_left(node) ? left : right, tables.absent.at(v), odds[v], states);
    }
    // Prefetch the masses below a node's threshold: their table is too large for the near caches.
    void prefetch_masses(Index node) const {
        const Index v = walk.nodes.feature(node), states = walk.tables.states();
        if (v >= 0) prefetch(mass + (walk.tables.offset(v) + walk.tables.position(node)) * states, states);
    }
};

// ---- kernels ------------------------------------------------------------------------------------------------------------

// Add the expected margin of each row to out (rows, outputs): Prop. 1.
template <class Family>
void add_margin(const Walk& walk, Family& family, View<double, 2> out) {
    const Leaves& leaves = walk.leaves;
    const Index width = leaves.value[1];
    const LeafRoom found(walk.most_places());
    typename Family::Position position(family);
    for (Index start = 0; start < walk.points[0]; start += Family::block) {
        const Index stop = std::min(start + Family::block, walk.points[0]);
        for (Index tree = 0; tree < walk.n_trees(); ++tree)
            for (Index row = start; row < stop; ++row) {
                const double* x = walk.points.at(row);
                if (tree == 0) family.begin_row(x, row);
                family.place(position, tree, row);
                const Index n = family.advance(x, position, found.list);
                for (Index j = 0; j < width; ++j) {
                    double expected = 0.0;
                    for (Index i = 0; i < n; ++i) expected += found.list.probabilities[i] * leaves.value(found.list.leaves[i], j);
                    out(row, leaves.output(tree) + j) += expected;
                }
            }
    }
}

// Where a kernel that fills lists continues: the first row of a block, a tree, and a row in the block.
struct Resume {
    Index start, tree, row;
};
struct EntriesOut {
    View<std::int32_t, 1> row, leaf;
    View<double, 1> probability;

    template <class Reader>
    static void fields(EntriesOut& self, Reader& read) {
        read("row", self.row, {"entries"});
        read("leaf", self.leaf, {"entries"});
        read("probability", self.probability, {"entries"});
    }
};

// Write (row, leaf, leaf probability) of rows until `out` is full; return the number of entries.
template <class Family>
Index emit(const Walk& walk, Family& family, Resume& at, const EntriesOut& out) {
    typename Family::Position position(family);
    Index count = 0;
    if (at.tree > 0 && at.start + at.row < walk.points[0]) family.begin_row(walk.points.at(at.start + at.row), at.start + at.row);
    for (; at.start < walk.points[0]; at.start += Family::block, at.tree = 0) {
        const Index n_block = std::min(Family::block, walk.points[0] - at.start);
        for (; at.tree < walk.n_trees(); ++at.tree, at.row = 0)
            for (; at.row < n_block; ++at.row) {
                const Index row = at.start + at.row, needed = walk.places(at.tree);
                if (count + needed > out.leaf[0]) return count;
                const double* x = walk.points.at(row);
                if (at.tree == 0) family.begin_row(x, row);
                family.place(position, at.tree, row);
                const Index n = family.advance(x, position, {out.leaf.data + count, out.probability.data + count, needed});
                std::fill_n(out.row.data + count, n, std::int32_t(row));
                count += n;
            }
    }
    return count;
}

// Visit every pair of leaves that a row reaches together, in trees t <= t' (Lemmas 1 and 2). If `pairs` (leaves, leaves) is
// not empty, probabilities of pairs times the row's weight are added to it (M of Prop. 3). If `squares` (rows, outputs) is
// not empty, E[margin^2] of each output, without the base, is added to it; then only trees with the same output are paired.
template <class Family>
void add_pairs(const Walk& walk, Family& family, View<const double, 1> weight, View<double, 2> pairs, View<double, 2> squares) {
    const Leaves& leaves = walk.leaves;
    const Index width = leaves.value[1];
    const LeafRoom one(1), mates(walk.most_places());
    typename Family::Position outer(family), inner(family);
    for (Index row = 0; row < walk.points[0]; ++row) {
        const double* x = walk.points.at(row);
        family.begin_row(x, row);
        for (Index tree = 0; tree < walk.n_trees(); ++tree) {
            const Index output = leaves.output(tree);
            family.place(outer, tree, row);
            // The outer position stops at each leaf, with the leaf's region.
            while (family.advance(x, outer, one.list)) {
                const Index leaf = one.list.leaves[0];
                const double probability = one.list.probabilities[0];
                if (pairs[0] > 0) pairs(leaf, leaf) += weight(row) * probability;
                if (squares[0] > 0)
                    for (Index j = 0; j < width; ++j) squares(row, output + j) += probability * leaves.value(leaf, j) * leaves.value(leaf, j);
                for (Index other = tree + 1; other < walk.n_trees(); ++other) {
                    if (squares[0] > 0 && leaves.output(other) != output) continue;
                    family.place_inside(inner, walk.nodes.roots(other), outer);
                    const Index n = family.advance(x, inner, mates.list);
                    family.leave_inside(outer);
                    if (pairs[0] > 0)
                        for (Index i = 0; i < n; ++i) pairs(leaf, mates.list.leaves[i]) += weight(row) * mates.list.probabilities[i];
                    if (squares[0] > 0)
                        for (Index j = 0; j < width; ++j) {
                            double expected = 0.0;
                            for (Index i = 0; i < n; ++i) expected += mates.list.probabilities[i] * leaves.value(mates.list.leaves[i], j);
                            squares(row, output + j) += 2.0 * leaves.value(leaf, j) * expected;
                        }
                }
            }
        }
    }
}

// ---- bindings -----------------------------------------------------------------------------------------------------------

// Given is a density's record of rows, with check(walk) and with_family(walk, f), which calls f with a family.
template <class Given>
void bind_add_margin(nb::module_& m) {
    m.def("add_margin", [](nb::object points, nb::object nodes, nb::object leaves, nb::object tables, nb::object given_, nb::object out_) {
        Arguments arguments;
        const Walk walk(arguments, points, nodes, leaves, tables);
        const auto given = arguments.record<Given>("given", given_);
        given.check(walk);
        const auto out = arguments.array<double, 2>("out", out_, {"rows", "outputs"});
        walk.check_outputs(out[1]);
        nb::gil_scoped_release unlocked;
        given.with_family(walk, [&](auto&& family) { add_margin(walk, family, out); });
    }, nb::arg("points"), nb::arg("nodes"), nb::arg("leaves"), nb::arg("tables"), nb::arg("given"), nb::arg("out"),
    "Add the expected margin of each row to out (rows, outputs).");
}

template <class Given>
void bind_emit(nb::module_& m) {
    m.def("emit", [](nb::object points, nb::object nodes, nb::object leaves, nb::object tables, nb::object given_, Index start,
                   Index tree, Index row, nb::object out_) {
        Arguments arguments;
        const Walk walk(arguments, points, nodes, leaves, tables);
        const auto given = arguments.record<Given>("given", given_);
        given.check(walk);
        const auto out = arguments.record<EntriesOut>("out", out_);
        Arguments::require(start >= 0 && tree >= 0 && tree <= walk.n_trees() && row >= 0, "there are no such row and tree to go on from");
        Arguments::require(out.leaf[0] >= walk.most_places(), "out must have room for the leaves of any tree, and two more");
        Resume at{start, tree, row};
        Index n = 0;
        {
            nb::gil_scoped_release unlocked;
            given.with_family(walk, [&](auto&& family) { n = emit(walk, family, at, out); });
        }
        return nb::make_tuple(n, at.start, at.tree, at.row);
    }, nb::arg("points"), nb::arg("nodes"), nb::arg("leaves"), nb::arg("tables"), nb::arg("given"), nb::arg("start"), nb::arg("tree"),
    nb::arg("row"), nb::arg("out"), "Write (row, leaf, leaf probability) until out is full; returns how many, and where to go on.");
}

template <class Given>
void bind_add_pairs(nb::module_& m) {
    m.def("add_pairs", [](nb::object points, nb::object nodes, nb::object leaves, nb::object tables, nb::object given_, nb::object weight_,
                   nb::object pairs_, nb::object squares_) {
        Arguments arguments;
        const Walk walk(arguments, points, nodes, leaves, tables);
        const auto given = arguments.record<Given>("given", given_);
        given.check(walk);
        View<const double, 1> weight;
        View<double, 2> pairs, squares;
        if (!pairs_.is_none()) {
            pairs = arguments.array<double, 2>("pairs", pairs_, {"leaves", "leaves"});
            weight = arguments.array<const double, 1>("weight", weight_, {"rows"});
        }
        if (!squares_.is_none()) {
            squares = arguments.array<double, 2>("squares", squares_, {"rows", "outputs"});
            walk.check_outputs(squares[1]);
        }
        nb::gil_scoped_release unlocked;
        given.with_family(walk, [&](auto&& family) { add_pairs(walk, family, weight, pairs, squares); });
    }, nb::arg("points"), nb::arg("nodes"), nb::arg("leaves"), nb::arg("tables"), nb::arg("given"), nb::arg("weight").none(),
    nb::arg("pairs").none(), nb::arg("squares").none(),
    "Add weighted probabilities of pairs of leaves to pairs (leaves, leaves), or E[margin^2] to squares (rows, outputs).");
}

// The kernels of a kind of walk; those with regions have pairs.
template <class Given>
void bind_walks(nb::module_& m) {
    bind_add_margin<Given>(m);
    bind_emit<Given>(m);
}
template <class Given>
void bind_walks_of_regions(nb::module_& m) {
    bind_walks<Given>(m);
    bind_add_pairs<Given>(m);
}
