// Expectations under a latent tree, exactly (knothole.expectation.exact.latent_tree).
//
// Given x_o, latents without a missing variable below them are summed out once per row; the decision trees then walk with
// the small tree that remains (latent_messages.hpp). At a split on a missing variable a position brings the variable into
// focus, reads off the probability of the left side, confines the variable to one side after the other, and returns to the
// messages it had on arrival. O(latents * states^2) a row, O(distance in the latent tree * states^2) a split.
#include "latent_messages.hpp"

#include "exponentials.hpp"
#include "module.hpp"

namespace {

struct LatentGiven {
    View<const double, 3> like;   // (rows, latents, states) of what is known of each variable
    View<const bool, 1> used;     // (variables,) that trees split on
    Latents latents;
    View<const double, 2> go_left;  // (nodes, states) part of what arrives that goes left
    Index n_states = 0;           // without those that were added up to a multiple of four
    LeafWords words;
    bool plain = false;           // see NodeArrays::follow

    template <class Reader>
    static void fields(LatentGiven& self, Reader& read) {
        read("used", self.used, {"variables"});
        read("latents", self.latents);
        read("like", self.like, {"rows", "latents", "states"});
        read("go_left", self.go_left, {"nodes", "states"});
        read("n_states", self.n_states);
        read("words", self.words);
        read("plain", self.plain);
    }
    void check(const Walk& walk) const {
        latents.check();
        words.check(walk);
        Arguments::require(latents.n() >= used[0], "there must be a latent for each variable");
        Arguments::require(n_states >= 0 && n_states <= like[2], "n_states must not be more than there are");
    }

    template <class F>
    void with_family(const Walk& walk, F f) const;
};

// Probability of the left side, from those of both up to a factor.
double left_share(double goes_left, double goes_right, const double* left, const double* right, Index n_states) {
    if (goes_left + goes_right <= 0.0)
        // The row is impossible under the density: let the variable's own masses decide.
        for (Index z = 0; z < n_states; ++z) goes_left += left[z], goes_right += right[z];
    const double both = goes_left + goes_right;
    return both > 0.0 ? goes_left / both : 0.0;
}

// Reduce the latent tree to the row's missing variables, which may be anything.
template <class N>
void reduce_to_missing(const LatentGiven& given, LatentMessages<N>& messages, const double* x, Index row) {
    const Index n_variables = given.used[0];
    for (Index v = 0; v < given.latents.n(); ++v) messages.active[v] = v < n_variables && given.used(v) && std::isnan(x[v]);
    messages.reduce(given.like.at(row));
}

// Whatever the row, a part of what arrives at a split goes left, in every state of the variable's latent.
template <class Trees, class N>
class LatentWalk {
  public:
    static constexpr Index block = 1;

    LatentWalk(const Walk& walk, const LatentGiven& given, Trees trees, N states)
        : walk(walk), given(given), trees(trees), states(states), messages(given.latents, walk.tables.depth, states) {}

    // A split's frame has the right child and the probability that waits for it. Of both sides of the split at depth d, what
    // is left of its variable is at e[n + 2 d] and after it.
    struct Frame {
        typename Trees::Place at;
        double probability;
        bool left;        // whether the position is on the left side: the right one waits
        Index mark;       // length of the log on arrival
        Index focus;
        Index believed;   // where the belief of the variable is
    };
    struct Position {
        Index row = 0, tree = 0;
        std::vector<Frame> frame;
        explicit Position(const LatentWalk& family) : frame(family.walk.tables.depth) {}
    };

    void begin_row(const double* x, Index row) {
        reduce_to_missing(given, messages, x, row);
        messages.start();
    }
    void place(Position& position, Index tree, Index row) const { position.row = row, position.tree = tree; }

    // All leaves of a tree at once.
    Index advance(const double* x, Position& position, const LeafList& found) {
        const Index tree = position.tree, n = given.latents.n(), most = walk.tables.depth;
        Frame* frames = position.frame.data();
        typename Trees::Place at = trees.start(position.row, tree);
        double probability = 1.0;
        Index side = TOP, count = 0, top = -1, node;
        while (true) {
            if (!trees.divides(x, at, tree, node)) {
                found.put(count++, node, probability);
            } else {
                const double* go_left = given.go_left.at(node);
                prefetch(go_left, states);  // the table is too large for the near caches
                const Index depth = (side >> 1) + 1, i = messages.node_of(walk.nodes.feature(node));
                if (depth >= most) throw std::invalid_argument("a tree is deeper than it should be");
                if (i < 0) throw std::invalid_argument("a set of leaves divides at a value that is known");
                Index believed = i;
                if (side == TOP) {
                    messages.undo(0, i);
                } else {
                    const Frame& before = frames[depth - 1];
                    const Index above = before.focus;
                    messages.undo(before.mark, above);
                    messages.confine(above, n + side);
                    believed = before.believed;
                    if (i != above) {
                        believed = n + depth;
                        messages.move_focus(i, messages.belief.data() + believed * states);
                    }
                }
                Frame& here = frames[depth];
                here.focus = i, here.mark = messages.length(), here.believed = believed;
                const double *e = messages.likelihood(i), *belief = messages.belief.data() + believed * states;
                const double share = divide(e, go_left, belief, messages.likelihood_at(n + 2 * depth));
                here.probability = probability - probability * share;
                here.at = trees.right_of(at, node, tree);
                here.left = true;
                at = trees.left_of(at, node, tree);
                probability *= share, side = 2 * depth, top = depth;
                if (probability > 0.0) continue;
            }
            // Back to the last split whose right side waits.
            while (top >= 0 && (!frames[top].left || frames[top].probability <= 0.0)) --top;
            if (top < 0) return count;
            frames[top].left = false;
            at = frames[top].at, probability = frames[top].probability, side = 2 * top + 1;
        }
    }

  private:
    // The side of no split.
    static constexpr Index TOP = -1;

    // Divide what arrives at a split; return the probability of the left side.
    double divide(const double* e, const double* go_left, const double* belief, double* left) const {
        double* right = left + states;
        Four to_left = spread(0.0), to_right = spread(0.0);
        for (Index z = 0; z < states; z += AT_ONCE) {
            const Four here = load(e + z), believed = load(belief + z), part = here * load(go_left + z), rest = here - part;
            store(left + z, part);
            store(right + z, rest);
            to_left = to_left + believed * part;
            to_right = to_right + believed * rest;
        }
        return left_share(total(to_left), total(to_right), left, right, given.n_states);
    }

    const Walk& walk;
    const LatentGiven& given;
    Trees trees;
    N states;
    LatentMessages<N> messages;
};

template <class F>
void LatentGiven::with_family(const Walk& walk, F f) const {
    const auto with_states = [&](auto states) {
        if (words.word[1] > 0)
            f(LatentWalk(walk, *this, SmallTrees{words, walk.nodes.roots.data}, states));
        else
            f(LatentWalk(walk, *this, LargeTrees{walk.nodes, plain}, states));
    };
    with_constant(like[2], with_states);
}

// ---- with regions -------------------------------------------------------------------------------------------------------

struct LatentRegionsGiven : LatentGiven {
    RegionRows known;

    template <class Reader>
    static void fields(LatentRegionsGiven& self, Reader& read) {
        LatentGiven::fields(self, read);
        read("known", self.known);
    }
    void check(const Walk& walk) const {
        LatentGiven::check(walk);
        known.check(walk);
    }

    template <class F>
    void with_family(const Walk& walk, F f) const;
};

template <class N>
class LatentRegions : public RegionWalk<LatentRegions<N>> {
    using Base = RegionWalk<LatentRegions<N>>;

  public:
    LatentRegions(const Walk& walk, const LatentRegionsGiven& given, N states)
        : Base(walk, given.known), given(given), states(states), messages(given.latents, walk.tables.depth, states) {}

    struct Position : RegionFrames {
        Scratch<double> e;               // (frames, states) of the variable on arrival
        Scratch<double> right_masses;    // (frames, states) masses of the right side
        std::vector<Index> mark, focus;  // (frames,) length of the log on arrival
        Scratch<double> belief;          // (states,)
        explicit Position(const LatentRegions& family)
            : RegionFrames(family.walk.tables), e(family.walk.tables.depth * family.states), right_masses(e.size()),
              mark(family.walk.tables.depth), focus(family.walk.tables.depth), belief(Index(family.states)) {}
    };

    // Reduce the latent tree to missing variables, each confined to what the row leaves of it.
    void begin_row(const double* x, Index row) {
        const WalkTables& tables = this->walk.tables;
        this->reset_region(row);
        reduce_to_missing(given, messages, x, row);
        for (Index v = 0; v < tables.n_variables(); ++v) {
            if (!messages.active[v]) continue;
            double* e = messages.likelihood_at(messages.node_of(v));
            if (tables.n_levels(v) > 0) {
                // A one-hot group observed in part: ones where nothing is excluded, to rounding.
                fill(e, 0.0, states);
                for (Index code = 0; code < tables.n_levels(v); ++code)
                    if (has(this->sets.data(), tables.set_offset(v), code))
                        add_times(e, tables.mass.at(tables.offset(v) + code), code == tables.unrecorded(v) ? this->odds[v] : 1.0, states);
            } else {
                add_times(e, tables.absent.at(v), this->odds[v] - 1.0, states);
            }
        }
        messages.start();
        messages.confine_in_place();
    }
    void place(Position& position, Index tree, Index) const { position.start(this->walk.nodes.roots(tree), 1.0); }
    void place_inside(Position& position, Index root, Position& outer) {
        // The frame above the outer position's is free: note there what to return to.
        outer.mark[outer.top + 1] = messages.length();
        outer.focus[outer.top + 1] = messages.focus;
        position.start(root, outer.frame[outer.top].probability);
    }
    void leave_inside(const Position& outer) { messages.undo(outer.mark[outer.top + 1], outer.focus[outer.top + 1]); }

    // By the belief of the variable, brought into focus.
    void divide_region(Position& position, Index top, Index v, const double* left, const double* right, double* probabilities) {
        const Index i = messages.node_of(v);
        if (i < 0) throw std::invalid_argument("a walk divides at a value that is known");
        const double probability = position.frame[top].probability;
        if (messages.confined == 0) messages.focus = i;
        double* belief = position.belief.data();
        messages.move_focus(i, belief);
        const double share = left_share(dot(belief, left, states), dot(belief, right, states), left, right, states);
        position.mark[top] = messages.length();
        ++messages.confined;
        copy(position.e.data() + top * states, messages.likelihood_at(i), states);
        copy(position.right_masses.data() + top * states, right, states);
        probabilities[0] = probability * share, probabilities[1] = probability - probability * share;
    }
    void enter_side(Position& position, Index top, Index v, const double* left, bool right) {
        const Index i = messages.node_of(v);
        messages.undo(position.mark[top], i);
        copy(messages.likelihood_at(i), right ? position.right_masses.data() + top * states : left, states);
    }
    void leave_split(const Position& position, Index top, Index v) {
        const Index i = messages.node_of(v);
        messages.undo(position.mark[top], i);
        --messages.confined;
        copy(messages.likelihood_at(i), position.e.data() + top * states, states);
    }

  private:
    const LatentRegionsGiven& given;
    N states;
    LatentMessages<N> messages;
};

template <class F>
void LatentRegionsGiven::with_family(const Walk& walk, F f) const { f(LatentRegions(walk, *this, like[2])); }

// ---- likelihoods --------------------------------------------------------------------------------------------------------

// Rows of all variables, as codes of one stacked table and standardised values (knothole.densities.univariate.packed).
template <class Code>
struct Values {
    View<const Code, 2> code;           // (rows, variables) -1 where nothing is known
    View<const double, 2> z;            // (rows, slots)
    View<const std::int64_t, 1> slot;   // (variables,) column of z, -1 without

    template <class Reader>
    static void fields(Values& self, Reader& read) {
        read("code", self.code, {"rows", "variables"});
        read("z", self.z, {"rows", "slots"});
        read("slot", self.slot, {"variables"});
    }
};
// Log probabilities of codes, and the factors of z and z^2.
struct Parameters {
    View<const double, 2> table;           // (codes, states)
    View<const double, 2> linear, square;  // (slots, states)

    template <class Reader>
    static void fields(Parameters& self, Reader& read) {
        read("table", self.table, {"codes", "states"});
        read("linear", self.linear, {"slots", "states"});
        read("square", self.square, {"slots", "states"});
    }
};

// Likelihood of values in each state, like (rows, variables, padded states); each vector's largest entry becomes 1. It is 1 at
// missing values. So it is at values that no state can have: their rows are flagged.
template <class Code>
void fill_likelihood(Arguments& arguments, nb::handle values_, nb::handle parameters_, nb::handle missing_, nb::handle like_,
                     nb::handle impossible_) {
    const auto values = arguments.record<Values<Code>>("values", values_);
    const auto parameters = arguments.record<Parameters>("parameters", parameters_);
    const auto missing = arguments.array<const bool, 2>("missing", missing_, {"rows", "variables"});
    const auto like = arguments.array<double, 3>("like", like_, {"rows", "variables", Dim::at_least("states")});
    const auto impossible = arguments.array<bool, 1>("impossible", impossible_, {"rows"});
    bool fits = true;
    for (Index v = 0; v < values.slot[0]; ++v) fits &= values.slot(v) < values.z[1];
    for (Index i = 0; i < values.code.size(); ++i) fits &= values.code.data[i] < parameters.table[0];
    Arguments::require(fits, "a value has a code or slot that is not there");
    nb::gil_scoped_release unlocked;
    const Index n_states = parameters.table[1], states = like[2];
    for (Index row = 0; row < like[0]; ++row)
        for (Index v = 0; v < like[1]; ++v) {
            const Index c = values.code(row, v), slot = values.slot(v);
            double *out = like.at(row, v), largest = -INF;
            std::fill(out + n_states, out + states, 0.0);
            if (c >= 0 && !missing(row, v)) {
                const double* term = parameters.table.at(c);
                if (slot >= 0) {
                    const double at = values.z(row, slot), *linear = parameters.linear.at(slot), *square = parameters.square.at(slot);
                    for (Index k = 0; k < n_states; ++k) out[k] = term[k] + at * (linear[k] + at * square[k]);
                } else {
                    std::copy_n(term, n_states, out);
                }
                for (Index k = 0; k < n_states; ++k) largest = std::max(largest, out[k]);
                if (largest == -INF) impossible(row) = true;
            }
            if (largest == -INF)
                std::fill_n(out, n_states, 1.0);
            else
                for (Index k = 0; k < n_states; ++k) out[k] = exponential(out[k] - largest);
        }
}

void bind_likelihood(nb::module_& m) {
    m.def("fill_likelihood", [](nb::object values, nb::object parameters, nb::object missing, nb::object like, nb::object impossible) {
        Arguments arguments;
        const bool small = Arguments::holds<std::int16_t>(nb::getattr(values, "code", nb::none()));
        (small ? fill_likelihood<std::int16_t> : fill_likelihood<std::int32_t>)(arguments, values, parameters, missing, like, impossible);
    }, nb::arg("values"), nb::arg("parameters"), nb::arg("missing"), nb::arg("like"), nb::arg("impossible"),
    "Likelihood of packed values in each state, like (rows, variables, states).");
}

}  // namespace

void bind_latent_walk(nb::module_& m) {
    bind_walks<LatentGiven>(m);
    bind_likelihood(m);
}
void bind_latent_regions(nb::module_& m) { bind_walks_of_regions<LatentRegionsGiven>(m); }
