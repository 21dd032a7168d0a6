// Exact expectations under a mixture of products (knothole.expectation.exact.mixture).
//
// Given the component, missing values are independent, so the probability q of going left at a node does not depend on the
// row. A row has a weight for each component, initially p(k | x_o). At a missing value the weights divide into w q and
// w (1 - q); at a leaf their sum is the leaf's probability.
//
// Expected margins of small trees need no walk: the expected value of a tree, given the component, is computed from its leaves
// upwards, over the splits that still branch for the row. It does not depend on the row's weights, which are applied once to
// the sum over all trees. O(splits that branch * components).
#include "module.hpp"
#include "product_regions.hpp"

namespace {

// ---- walks --------------------------------------------------------------------------------------------------------------

template <class Trees, class N>
class ProductWalk {
  public:
    static constexpr Index block = 256;

    ProductWalk(const Walk& walk, View<const double, 2> weights, View<const double, 2> go_left, Trees trees, N n)
        : walk(walk), weights(weights), go_left(go_left), trees(trees), n(n) {}

    // A frame holds the weights of the right side until the walk gets there.
    struct Position {
        Index row = 0, tree = 0;
        std::vector<typename Trees::Place> at;
        Scratch<double> weight;  // (frames, components)
        explicit Position(const ProductWalk& family) : at(family.walk.tables.depth), weight(family.walk.tables.depth * family.n) {}
    };

    void begin_row(const double*, Index) const {}
    void place(Position& position, Index tree, Index row) const { position.row = row, position.tree = tree; }

    // All leaves of a tree at once.
    Index advance(const double* x, Position& position, const LeafList& found) const {
        const Index tree = position.tree, depth = walk.tables.depth;
        const double* weight = weights.at(position.row);
        typename Trees::Place at = trees.start(position.row, tree);
        Index count = 0, top = 0, node;
        while (true) {
            while (trees.divides(x, at, tree, node)) {
                if (top + 1 >= depth) throw std::invalid_argument("a tree is deeper than it should be");
                double *right = position.weight.data() + top * n, *left = right + n;
                const double* go = go_left.data + node * n;
                for (Index k = 0; k < n; k += AT_ONCE) {
                    const Four here = load(weight + k), goes_left = here * load(go + k);
                    store(left + k, goes_left);
                    store(right + k, here - goes_left);
                }
                position.at[top++] = trees.right_of(at, node, tree);
                at = trees.left_of(at, node, tree);
                weight = left;
            }
            found.put(count++, node, sum(weight, n));
            if (--top < 0) return count;
            at = position.at[top], weight = position.weight.data() + top * n;
        }
    }

  private:
    const Walk& walk;
    View<const double, 2> weights;  // (rows, components) p(component | x_o)
    View<const double, 2> go_left;  // (nodes, components) q
    Trees trees;
    N n;
};

struct MixtureGiven {
    View<const double, 2> weights, go_left;
    LeafWords words;
    bool plain = false;  // see NodeArrays::follow

    template <class Reader>
    static void fields(MixtureGiven& self, Reader& read) {
        read("weights", self.weights, {"rows", "states"});
        read("go_left", self.go_left, {"nodes", "states"});
        read("words", self.words);
        read("plain", self.plain);
    }
    void check(const Walk& walk) const { words.check(walk); }

    template <class F>
    void with_family(const Walk& walk, F f) const {
        with_constant(weights[1], [&](auto n) {
            if (words.word[1] > 0)
                f(ProductWalk(walk, weights, go_left, SmallTrees{words, walk.nodes.roots.data}, n));
            else
                f(ProductWalk(walk, weights, go_left, LargeTrees{walk.nodes, plain}, n));
        });
    }
};

class MixtureRegions : public ProductRegions<MixtureRegions> {
  public:
    MixtureRegions(const Walk& walk, const RegionRows& known, View<const double, 2> weights)
        : ProductRegions(walk, known), weights(weights) {}

    void begin_row(const double*, Index row) { reset_region(row); }
    void place(Position& position, Index tree, Index row) const { start(position, walk.nodes.roots(tree), weights.at(row)); }

  private:
    View<const double, 2> weights;
};

struct MixtureRegionsGiven {
    View<const double, 2> weights;
    RegionRows known;

    template <class Reader>
    static void fields(MixtureRegionsGiven& self, Reader& read) {
        read("weights", self.weights, {"rows", "states"});
        read("known", self.known);
    }
    void check(const Walk& walk) const { known.check(walk); }

    template <class F>
    void with_family(const Walk& walk, F f) const { f(MixtureRegions(walk, known, weights)); }
};

// ---- sets of leaves -----------------------------------------------------------------------------------------------------

// Rows processed together, so that a tree's q stays in cache; and splits whose sides are combined together.
constexpr Index ROWS = 256, SPLITS = 256;

// The odds of missing values of nullable variables (Evidence.odds).
struct NodeOdds {
    View<const double, 2> odds;             // (rows, variables)
    View<const double, 2> share;            // (nodes, components) fraction of the arriving mass that is not recorded
    View<const std::int32_t, 1> variable;   // (nodes,)
    View<const bool, 1> goes_left;          // (nodes,) whether "not recorded" goes left

    template <class Reader>
    static void fields(NodeOdds& self, Reader& read) {
        read("odds", self.odds, {"rows", "variables"});
        read("share", self.share, {"nodes", "components"});
        read("variable", self.variable, {"nodes"});
        read("goes_left", self.goes_left, {"nodes"});
    }
};

// Splits that still branch for some rows of a tree, found one after the other.
struct Split {
    Word word;           // the leaves on both sides of the split
    Index row;
    Index node;
    double step;         // value of the first leaf on the right minus that of the first leaf of all
    Index left, right;   // the next splits on either side, 0 for a leaf
};

template <class N>
class Expected {
  public:
    Expected(View<const double, 2> points, View<const double, 2> weights, const NodeOdds* telling, const LeafSets& trees,
             View<const double, 2> go_left, View<const double, 2> value, View<double, 2> out, N n)
        : points(points), weights(weights), telling(telling), trees(trees), go_left(go_left), value(value), out(out), n(n) {}

    void add() {
        const Index most = std::min(ROWS, points[0]), n_trees = trees.n_trees();
        sets.resize(most * n_trees), known.resize(most), given.resize(most * n);
        splits.resize(SPLITS + 2), added.resize((SPLITS + 2) * n), told.resize(n);
        fill(added.data(), 0.0, n);
        for (Index start = 0; start < points[0]; start += ROWS) {
            const Index n_block = std::min(ROWS, points[0] - start);
            for (Index i = 0; i < n_block; ++i) trees.read_sets(points.at(start + i), &sets[i * n_trees]);
            std::fill_n(known.begin(), n_block, 0.0);
            fill(given.data(), 0.0, n_block * n);
            for (Index tree = 0; tree < n_trees; ++tree) {
                for (Index bit = 0; bit < LEAVES; ++bit) values[bit] = value(trees.leaf(tree, bit), 0);
                const Index root = trees.root(tree);
                for (Index i = 0; i < n_block;) {
                    const Index first = begin(i, n_block, tree), last = find_splits(first, tree);
                    for (Index s = last - 1; s >= first; --s) join(added.data() + s * n, s, goes_left(start, root, s), false);
                    for (Index s = 1; s < first; ++s) join(given.data() + splits[s].row * n, s, goes_left(start, root, s), true);
                }
            }
            for (Index i = 0; i < n_block; ++i)
                out(start + i, trees.output) += known[i] + dot(weights.at(start + i), given.data() + i * n, n);
        }
    }

  private:
    // Start with the root splits of as many rows, from i on, as there is room for. Returns the number of splits; number 0
    // stands for no split.
    Index begin(Index& i, Index n_block, Index tree) {
        Index count = 1;
        for (Index left = SPLITS - 1; i < n_block && left >= LEAVES; ++i) {
            const Word word = sets[i * trees.n_trees() + tree];
            known[i] += values[lowest_bit(word)];
            splits[count].word = word, splits[count].row = i;
            count += several(word);
            left -= popcount(word) - 1;
        }
        return count;
    }
    // Find all splits below the first ones, parents before their children. Branch-free: branches would be mispredicted.
    Index find_splits(Index count, Index tree) {
        const std::uint8_t* parting = trees.parting.at(tree);
        const Word* beyond = trees.right.at(tree);
        Split* all = splits.data();
        for (Index s = 1; s < count; ++s) {
            const Word word = all[s].word;
            const Index row = all[s].row;
            const int first = lowest_bit(word);
            const Index node = parting[first * LEAVES + highest_bit(word)];
            const Word above = word & beyond[node], below = word ^ above;
            all[s].node = node;
            all[s].step = values[lowest_bit(above)] - values[first];
            all[count].word = below, all[count].row = row;
            all[s].left = count & -Index(several(below));
            count += several(below);
            all[count].word = above, all[count].row = row;
            all[s].right = count & -Index(several(above));
            count += several(above);
        }
        return count;
    }
    // The probability of going left at a split, for each component, given the odds of the row.
    const double* goes_left(Index start, Index root, Index s) {
        const Index node = root + splits[s].node;
        const double* go = go_left.data + node * n;
        if (!telling) return go;
        const double more = telling->odds(start + splits[s].row, telling->variable(node)) - 1.0;
        if (more == 0.0) return go;
        for (Index k = 0; k < n; ++k) {
            const double part = more * telling->share(node, k);
            const double gone_left = telling->goes_left(node) ? go[k] + part : go[k];
            told[k] = part > -1.0 ? gone_left / (1.0 + part) : 0.0;
        }
        return told.data();
    }
    // The expected value of both sides of a split, for each component, added or written to `to`.
    void join(double* to, Index s, const double* go, bool adds) const {
        const Four step = spread(splits[s].step);
        const double *left = added.data() + splits[s].left * n, *right = added.data() + splits[s].right * n;
        for (Index k = 0; k < n; k += AT_ONCE) {
            const Four there = load(right + k) + step;
            Four both = there + load(go + k) * (load(left + k) - there);
            if (adds) both = load(to + k) + both;
            store(to + k, both);
        }
    }

    View<const double, 2> points, weights;
    const NodeOdds* telling;
    const LeafSets& trees;
    View<const double, 2> go_left, value;
    View<double, 2> out;
    N n;

    Room<Word> sets;        // (rows, trees)
    Room<double> known;     // (rows,) the first leaves of all trees
    Room<double> given;     // (rows, components) expected addition to them, given the component
    double values[LEAVES];  // of a tree's leaves
    Room<Split> splits;
    Room<double> added;     // (splits, components) expected addition below a split; 0 at number 0
    Room<double> told;      // (components,) probability of going left, where missing values have odds
};

void add_expected(nb::object points_, nb::object weights_, nb::object telling_, nb::object trees_, nb::object go_left_,
                  nb::object value_, nb::object out_) {
    Arguments arguments;
    const auto trees = arguments.record<LeafSets>("trees", trees_);
    auto points = arguments.array<const double, 2>("points", points_, {"rows", Dim::at_least("variables")});
    auto weights = arguments.array<const double, 2>("weights", weights_, {"rows", "components"});
    auto go_left = arguments.array<const double, 2>("go_left", go_left_, {"nodes", "components"});
    auto value = arguments.array<const double, 2>("value", value_, {"leaves", Dim::any()});
    auto out = arguments.array<double, 2>("out", out_, {"rows", "outputs"});
    trees.check(go_left[0], value[0]);
    NodeOdds telling;
    if (!telling_.is_none()) telling = arguments.record<NodeOdds>("telling", telling_);
    Arguments::require(weights[1] % AT_ONCE == 0, "components must be a multiple of four");
    Arguments::require(value[1] > 0 && trees.output >= 0 && trees.output < out[1], "out does not have the trees' output");
    nb::gil_scoped_release unlocked;
    with_constant(weights[1], [&](auto n) {
        Expected(points, weights, telling_.is_none() ? nullptr : &telling, trees, go_left, value, out, n).add();
    });
}

}  // namespace

void bind_mixture_walk(nb::module_& m) {
    bind_walks<MixtureGiven>(m);
    m.def("add_expected", &add_expected, nb::arg("points"), nb::arg("weights"), nb::arg("telling").none(), nb::arg("trees"),
          nb::arg("go_left"), nb::arg("value"), nb::arg("out"),
          "Add the expected margin of each row to out (rows, outputs), by sets of leaves.");
}
void bind_mixture_regions(nb::module_& m) { bind_walks_of_regions<MixtureRegionsGiven>(m); }
