// Exact expectations of rows with a single missing number (knothole.expectation.gaussian.SingleMissing).
//
// The missing number has a mixture of normals, as a score z, different in each row. Every region of it is an interval
// between two thresholds: with F the cumulative distribution at all thresholds, a leaf's probability is the difference of F at
// the ends of its interval. O(normals * thresholds of the variable) a row. With sets of leaves, a tree is a step function of
// the number: O(normals * leaves in the set).
#include "module.hpp"
#include "product_regions.hpp"

namespace {

// Components with a smaller share of a row are left out: each changes a leaf probability by less than that, far below
// the precision of single-precision trees.
constexpr double LEAST_SHARE = 1e-10;
// Range and steps per unit of the tabulated normal distribution; cubic interpolation matches its slope too.
constexpr double END = 8.5, STEPS = 256.0;
constexpr int TABLE = int(2 * END * STEPS) + 2;

// P(Z < z) and its slope per step, at multiples of a step from -END on.
struct NormalTable {
    View<const double, 2> entries;  // (TABLE, 2)

    // P(Z < z) anywhere in the table, by interpolation.
    double below_at(double place) const {
        place = std::min(place > 0.0 ? place : 0.0, 2 * END * STEPS);  // NaN too
        const Index cell = Index(place);
        const double t = place - double(cell), *here = entries.at(cell);
        const double rise = here[2] - here[0], first = here[1] - rise, last = here[3] - rise;
        return here[0] + t * (rise + (1.0 - t) * ((1.0 - t) * first - t * last));
    }
};

struct Normals {
    View<const double, 2> share, mean, deviation;  // (rows, normals)

    template <class Reader>
    static void fields(Normals& self, Reader& read) {
        read("share", self.share, {"rows", "normals"});
        read("mean", self.mean, {"rows", "normals"});
        read("deviation", self.deviation, {"rows", "normals"});
    }
};

// The distributions of the rows' missing numbers, as densities with one component.
struct NumberGiven {
    RegionRows known;
    View<const std::int64_t, 1> variable;  // (rows,) the missing variable
    Normals normals;
    View<const double, 1> score;           // (grid rows,) of thresholds
    NormalTable table;

    template <class Reader>
    static void fields(NumberGiven& self, Reader& read) {
        read("known", self.known);
        read("variable", self.variable, {"rows"});
        read("normals", self.normals);
        read("score", self.score, {"grid rows"});
        read("table", self.table.entries, {TABLE, 2});
    }
    void check(const Walk& walk) const {
        known.check(walk);
        bool numbers = true;
        for (Index row = 0; row < variable[0]; ++row) numbers &= variable(row) >= 0 && variable(row) < walk.tables.n_variables();
        Arguments::require(numbers, "a row lacks a variable that the trees do not have");
    }

    template <class F>
    void with_family(const Walk& walk, F f) const;
};

class SingleMissing : public ProductRegions<SingleMissing> {
  public:
    SingleMissing(const Walk& walk, const NumberGiven& given)
        : ProductRegions(walk, given.known), given(given), first_alone(n), below(walk.tables.mass[0] * n) {
        first_alone[0] = 1.0;
        mass = below.data();
    }

    void begin_row(const double*, Index row) {
        reset_region(row);
        cumulate(row);
    }
    void place(Position& position, Index tree, Index) const { start(position, walk.nodes.roots(tree), first_alone.data()); }

  private:
    // F at all thresholds of a row's missing number, from 0 below everything to 1.
    void cumulate(Index row) {
        const Index v = given.variable(row), first = walk.tables.offset(v), n_rows = walk.tables.offset(v + 1) - first;
        const double* score = given.score.data + first;
        double* out = below.data() + first * n;
        for (Index i = 0; i < n_rows; ++i) out[i * n] = 0.0;
        for (Index k = 0; k < given.normals.share[1]; ++k) {
            const double share = given.normals.share(row, k);
            if (share < LEAST_SHARE) continue;
            const double scale = STEPS / given.normals.deviation(row, k), offset = END * STEPS - given.normals.mean(row, k) * scale;
            for (Index i = 1; i < n_rows - 1; ++i) out[i * n] += share * given.table.below_at(score[i] * scale + offset);
        }
        if (n_rows > 0) out[(n_rows - 1) * n] = 1.0;
        for (Index i = 1; i < n_rows; ++i) out[i * n] = std::min(std::max(out[i * n], out[(i - 1) * n]), 1.0);
    }

    const NumberGiven& given;
    Scratch<double> first_alone;  // (states,) all weight on the first
    Scratch<double> below;        // (grid rows, states) F in the first state
};

template <class F>
void NumberGiven::with_family(const Walk& walk, F f) const { f(SingleMissing(walk, *this)); }

// By sets of leaves: the output changes from one leaf of a set to the next at the threshold between them.
void add_expected(nb::object points_, nb::object normals_, nb::object trees_, nb::object node_score_, nb::object table_,
                  nb::object value_, nb::object out_) {
    Arguments arguments;
    const auto trees = arguments.record<LeafSets>("trees", trees_);
    const auto points = arguments.array<const double, 2>("points", points_, {"rows", Dim::at_least("variables")});
    const auto normals = arguments.record<Normals>("normals", normals_);
    const auto node_score = arguments.array<const double, 1>("node_score", node_score_, {"nodes"});
    const NormalTable table{arguments.array<const double, 2>("table", table_, {TABLE, 2})};
    const auto value = arguments.array<const double, 1>("value", value_, {"leaves"});
    const auto out = arguments.array<double, 2>("out", out_, {"rows", "outputs"});
    Arguments::require(trees.output >= 0 && trees.output < out[1], "out does not have the trees' output");
    trees.check(node_score[0], value[0]);
    nb::gil_scoped_release unlocked;

    const Index n_trees = trees.n_trees();
    std::vector<Word> sets(n_trees);
    Room<double> score(n_trees * LEAVES), change(n_trees * LEAVES);  // where a row's output changes, and by how much
    for (Index row = 0; row < points[0]; ++row) {
        trees.read_sets(points.at(row), sets.data());
        double expected = 0.0;
        Index n = 0;
        for (Index tree = 0; tree < n_trees; ++tree) {
            Word word = sets[tree];
            int last = lowest_bit(word);
            for (word &= word - 1; word != 0; word &= word - 1, ++n) {
                const int bit = lowest_bit(word);
                score[n] = node_score(trees.root(tree) + trees.parting(tree, last, bit));
                change[n] = value(trees.leaf(tree, last)) - value(trees.leaf(tree, bit));
                last = bit;
            }
            expected += value(trees.leaf(tree, last));
        }
        for (Index k = 0; k < normals.share[1]; ++k) {
            const double share = normals.share(row, k);
            if (share < LEAST_SHARE) continue;
            const double scale = STEPS / normals.deviation(row, k), offset = END * STEPS - normals.mean(row, k) * scale;
            double below = 0.0;
            for (Index i = 0; i < n; ++i) below += change[i] * table.below_at(score[i] * scale + offset);
            expected += share * below;
        }
        out(row, trees.output) += expected;
    }
}

}  // namespace

void bind_single_missing(nb::module_& m) {
    bind_walks<NumberGiven>(m);  // there are no pairs of leaves: only one number is missing
    m.def("add_expected", &add_expected, nb::arg("points"), nb::arg("normals"), nb::arg("trees"), nb::arg("node_score"),
          nb::arg("table"), nb::arg("value"), nb::arg("out"),
          "Add the expected margin of rows to out (rows, outputs), by sets of leaves.");
}
