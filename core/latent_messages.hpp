// A latent tree given the observed values of a row, and messages in what remains of it.
//
// Given x_o, every latent without a missing variable below it is summed out, and so is every chain of latents between two
// that remain. What remains is a small tree over the latents of the missing variables and their branching points: node i has
// a constant vector g[i], and a matrix between it and its parent.
//
// Each node has the likelihood e[i] of the region that its variable is confined to, initially ones. The message along an
// edge is the likelihood of everything confined behind the edge, given the state of the receiving node. It is 1 in every
// state if nothing is confined there, so only messages from confined variables are ever computed and multiplied. One node is
// in focus: all messages directed towards it are valid. Then the probability of any region of its own variable is one dot
// product with its belief, and changing its e does not invalidate messages. Moving the focus to a neighbour costs one
// matrix-vector product: O(states^2).
//
// A new message does not overwrite the old one: it is written to the next place of an arena, and the log records the place of
// the old one. So a walk returns to a branching point by restoring the old places. At the root of a decision tree nothing is
// confined: there are no messages, and any node may be in focus.
//
// The number of states N is a multiple of four, which may be known at compile time.
#pragma once
#include "vectors.hpp"
#include "walk.hpp"

// Scale a vector to mean 1, given its sum; zeros stay.
inline void rescale(double* x, double total, Index n) {
    if (total > 0.0) times(x, double(n) / total, n);
}
inline void scale(double* x, Index n) { rescale(x, sum(x, n), n); }

// out = matrix @ vector, for a matrix stored by columns: sixteen rows and two columns at a time where possible, so that
// sums do not wait for each other.
template <class N>
void multiply(const double* columns, const double* vector, double* out, N n) {
    const Index last = n - n % 16;
    for (Index a = 0; a < last; a += 16) {
        Four x0 = spread(0.0), x1 = x0, x2 = x0, x3 = x0, y0 = x0, y1 = x0, y2 = x0, y3 = x0;
        for (Index z = 0; z < n; z += 2) {
            const double *first = columns + z * n + a, *second = first + n;
            const Four one = spread(vector[z]), other = spread(vector[z + 1]);
            x0 = x0 + load(first) * one, y0 = y0 + load(second) * other;
            x1 = x1 + load(first + 4) * one, y1 = y1 + load(second + 4) * other;
            x2 = x2 + load(first + 8) * one, y2 = y2 + load(second + 8) * other;
            x3 = x3 + load(first + 12) * one, y3 = y3 + load(second + 12) * other;
        }
        store(out + a, x0 + y0);
        store(out + a + 4, x1 + y1);
        store(out + a + 8, x2 + y2);
        store(out + a + 12, x3 + y3);
    }
    for (Index a = last; a < n; a += AT_ONCE) {
        Four even = spread(0.0), odd = spread(0.0);
        for (Index z = 0; z < n; z += 2) {
            even = even + load(columns + z * n + a) * spread(vector[z]);
            odd = odd + load(columns + (z + 1) * n + a) * spread(vector[z + 1]);
        }
        store(out + a, even + odd);
    }
}

// The latent tree of a density; one latent for each variable.
struct Latents {
    View<const std::int64_t, 1> parent;       // (latents,) -1 at the root
    View<const std::int64_t, 1> order;        // (latents,) parents before children
    View<const std::int64_t, 1> child_start;  // (latents + 1,) into children
    View<const std::int64_t, 1> children;     // (latents,) the root comes last: it is nobody's child
    View<const double, 3> transition;         // (latents, states, states) p(state | parent's), a row for the parent's state
    View<const double, 3> transposed;         // the same, a row for the latent's own state
    View<const double, 1> prior;              // (states,) of the root

    template <class Reader>
    static void fields(Latents& self, Reader& read) {
        read("parent", self.parent, {"latents"});
        read("order", self.order, {"latents"});
        read("child_start", self.child_start, {Dim("latents", 1)});
        read("children", self.children, {"latents"});
        read("transition", self.transition, {"latents", "states", "states"});
        read("transposed", self.transposed, {"latents", "states", "states"});
        read("prior", self.prior, {"states"});
    }
    void check() const {
        const Index latents = n();
        std::vector<bool> known(latents, false);
        bool fits = child_start(0) == 0 && child_start(latents) == latents - 1;
        for (Index i = 0; i < latents && fits; ++i) {
            const Index v = order(i);
            fits = v >= 0 && v < latents && !known[v] && (i == 0 ? parent(v) == -1 : parent(v) >= 0 && parent(v) < latents && known[parent(v)]);
            fits = fits && child_start(v) >= 0 && child_start(v) <= child_start(v + 1);
            if (fits) known[v] = true;
        }
        for (Index i = 0; i < latents - 1; ++i) fits = fits && children(i) >= 0 && children(i) < latents;
        Arguments::require(fits, "parent, order, child_start and children must be a tree, parents before their children");
    }
    Index n() const { return parent[0]; }
};

template <class N>
class LatentMessages {
  public:
    // The most moves of the focus in the log: one for each frame of a position, and there may be two positions.
    LatentMessages(const Latents& latents, Index depth, N states)
        : active(latents.n()), belief((latents.n() + depth) * states), latents(latents), n(latents.n()), states(states), with_active(n),
          slot(n), message(n * states), local(n * states), buffer(states * states), parent(n), child(n), sibling(n), g(n * states),
          matrix(2 * n * states * states), e((n + 2 * depth) * states), arena((2 * n + 2 * (depth + 1) * (n + 1)) * states),
          place(3 * n), target(3 * n), count(n), toward(n * n), vector(Index(states)) {
        log.reserve(64);
    }

    std::vector<char> active;  // (latents,) whether a latent's variable is missing, and trees split on it
    Room<double> belief;       // (latents + depths, states) of each node if nothing is confined; see LatentWalk
    Index focus = 0;           // the node in focus
    Index confined = 0;        // number of confined variables

    Index node_of(Index v) const { return slot[v]; }
    Index length() const { return Index(log.size()); }
    Index n_nodes() const { return nodes; }

    // e of a node whose variable is not confined, or of a side of a split.
    double* likelihood_at(Index where) { return e.data() + where * states; }
    // e of a node: ones where its variable is not confined.
    const double* likelihood(Index node) const {
        const Index where = place[2 * n + node];
        return e.data() + (where == NOWHERE ? node : where) * states;
    }
    // Confine the variable of a node to a side of a split.
    void confine(Index node, Index where) { renew(2 * n + node, where); }
    // From now on e is changed in place, so it is always multiplied in.
    void confine_in_place() {
        for (Index node = 0; node < nodes; ++node) place[2 * n + node] = node, count[node] = 1;
    }

    // Sum out everything but the latents of active variables and their branching points. `like` (latents, states) is the
    // likelihood of what is known of each variable, ones for active variables.
    void reduce(const double* like) {
        nodes = 0;
        for (Index i = n - 1; i >= 0; --i) gather_below(latents.order(i), like);
        for (Index i = 0; i < n; ++i) {
            const Index v = latents.order(i);
            if (!with_active[v]) continue;
            if (nodes == 0) outside(v);
            if (slot[v] == KEPT) keep(v);
        }
        fill(e.data(), 1.0, nodes * states);
    }

    // Make the matrices those of p(a node's state, divided by e | a neighbour's), with beliefs of all nodes, and no message yet.
    void start() {
        log.clear();
        focus = confined = 0;
        for (Index node = 0; node < nodes; ++node) {
            place[node] = place[n + node] = place[2 * n + node] = NOWHERE;
            target[node] = parent[node], target[n + node] = node, target[2 * n + node] = node;
            count[node] = 0;
            find_ways(node);
        }
        const Index edges = nodes - 1;
        for (Index step = 0; step < 2 * edges; ++step) {
            // First upwards, children before parents; then downwards, parents before children.
            const bool upwards = step < edges;
            const Index node = upwards ? edges - step : step - edges + 1;
            const Index source = upwards ? node : parent[node], to = upwards ? parent[node] : node, edge = upwards ? node : n + node;
            double *m = matrix.data() + edge * states * states, *out = arena.data() + edge * states, *x = vector.data();
            combine(g.data() + source * states, source, to, x);
            scale(x, states);
            for (Index z = 0; z < states; ++z) times(m + z * states, x[z], states);
            multiply(m, e.data() + source * states, out, states);
            for (Index z = 0; z < states; ++z) x[z] = out[z] > SMALL ? 1.0 / out[z] : 0.0;
            for (Index z = 0; z < states; ++z) product(m + z * states, m + z * states, x, states);
            scale(out, states);
            place[edge] = edge;
        }
        for (Index node = 0; node < nodes; ++node) {
            combine(g.data() + node * states, node, NOBODY, belief.data() + node * states);
            place[node] = place[n + node] = NOWHERE;  // these two are no longer needed
        }
    }

    // Move the focus to another node, edge by edge, and write its current belief.
    void move_focus(Index to, double* out) {
        const std::int32_t* ways = toward.data() + to * n;
        Index node = focus;
        // Usually this is all there is to send on: first e, then the message that has just arrived.
        const double* x = likelihood(node);
        bool arrived = false;
        while (node != to) {
            const Index following = ways[node];
            const bool upwards = following < node;  // parents have smaller numbers
            const Index edge = upwards ? node : n + following, back = upwards ? n + node : following;
            const Index factors = count[node] - (place[back] != NOWHERE);
            if (factors == 2 && arrived && place[2 * n + node] != NOWHERE) {
                product(vector.data(), x, likelihood(node), states);
                x = vector.data();
            } else if (factors > 1) {
                combine(likelihood(node), node, following, vector.data());
                x = vector.data();
            }
            const Index arrived_at = 2 * n + length();
            if ((arrived_at + 1) * states > Index(arena.size())) throw std::invalid_argument("a tree is deeper than it should be");
            renew(edge, arrived_at);
            double* next = arena.data() + arrived_at * states;
            multiply(matrix.data() + edge * states * states, x, next, states);
            x = next, arrived = true, node = following;
        }
        focus = to;
        const double* first = belief.data() + to * states;
        if (arrived && count[to] - (place[2 * n + to] != NOWHERE) == 1)
            product(out, first, x, states);
        else
            combine(first, to, NOBODY, out);
    }

    // Restore the places at the time when the log had length `mark`, and the focus at that time.
    void undo(Index mark, Index before) {
        while (length() > mark) {
            const Entry& last = log.back();
            place[last.what] = last.old;
            count[target[last.what]] -= last.old == NOWHERE;
            log.pop_back();
        }
        focus = before;
    }

  private:
    // Entries of `slot` for latents without a number in the reduced tree.
    static constexpr Index SUMMED_OUT = -1, KEPT = -2;
    // Products are rescaled after so many factors: so many vectors of mean 1 neither vanish nor overflow.
    static constexpr Index FACTORS = 8;
    // States that are less likely than this, given what is known, count as impossible.
    static constexpr double SMALL = 1e-280;
    // For `combine`: include all neighbours (-1 stands for the parent of the root).
    static constexpr Index NOBODY = -2;
    // The place of a message, or of e, that is 1 in every state.
    static constexpr Index NOWHERE = -1;

    // ---- the reduced tree

    // Likelihood of what is known at and below latent v, up to active latents.
    void gather_below(Index v, const double* like) {
        double* here = local.data() + v * states;
        copy(here, like + v * states, states);
        Index branches = 0;
        for (Index j = latents.child_start(v); j < latents.child_start(v + 1); ++j) {
            const Index below = latents.children(j);
            if (with_active[below]) {
                ++branches;
            } else {
                product(here, here, message.data() + below * states, states);
                scale(here, states);
            }
        }
        slot[v] = active[v] || branches > 1 ? KEPT : SUMMED_OUT;
        with_active[v] = active[v] || branches > 0;
        if (!with_active[v]) {
            double* out = message.data() + v * states;
            multiply(latents.transposed.at(v), here, out, states);
            scale(out, states);
        }
    }

    // Probability of a latent's states together with what is known outside of its subtree, as a message. Only for latents
    // from the root down to the first that stays in the reduced tree.
    void outside(Index v) {
        double* out = message.data() + v * states;
        const Index above = latents.parent(v);
        if (above < 0) return copy(out, latents.prior.data, states);
        double* from_above = message.data() + above * states;
        product(from_above, from_above, local.data() + above * states, states);
        multiply(latents.transition.at(v), from_above, out, states);
        scale(out, states);
    }

    // Give a latent the next number in the reduced tree; connect it to its nearest ancestor there.
    void keep(Index v) {
        const Index size = states * states, node = nodes++;
        slot[v] = node;
        child[node] = sibling[node] = -1;
        double* here = g.data() + node * states;
        copy(here, local.data() + v * states, states);
        if (node == 0) {
            parent[0] = -1;
            product(here, here, message.data() + v * states, states);
            scale(here, states);
            return;
        }
        double* downwards = matrix.data() + (n + node) * size;
        copy(downwards, latents.transition.at(v), size);
        Index above = latents.parent(v);
        for (; slot[above] == SUMMED_OUT; above = latents.parent(above))
            contract(latents.transition.at(above), local.data() + above * states, downwards);
        parent[node] = std::int32_t(slot[above]);
        sibling[node] = child[parent[node]];
        child[parent[node]] = std::int32_t(node);
        double* upwards = matrix.data() + node * size;
        for (Index a = 0; a < states; ++a)
            for (Index z = 0; z < states; ++z) upwards[z * states + a] = downwards[a * states + z];
    }

    // matrix = transition @ diag(local) @ matrix, scaled.
    void contract(const double* transition, const double* diagonal, double* m) {
        const Index size = states * states;
        double total = 0.0;
        for (Index b = 0; b < states; ++b) times(m + b * states, diagonal[b], states);
        for (Index a = 0; a < states; ++a) {
            multiply(m, transition + a * states, buffer.data() + a * states, states);
            total += sum(buffer.data() + a * states, states);
        }
        copy(m, buffer.data(), size);
        rescale(m, total * double(states), size);  // rows sum to 1 on average
    }

    // ---- messages

    // Product of a vector and all messages to a node, except that of one neighbour.
    void combine(const double* first, Index node, Index without, double* out) {
        copy(out, first, states);
        if (parent[node] != without && place[n + node] != NOWHERE) product(out, out, arena.data() + place[n + node] * states, states);
        Index factors = 1;
        for (Index below = child[node]; below >= 0; below = sibling[below])
            if (below != without && place[below] != NOWHERE) {
                product(out, out, arena.data() + place[below] * states, states);
                if (++factors % FACTORS == 0) scale(out, states);
            }
    }

    // Find the next node on the way from each node to a target.
    void find_ways(Index to) {
        std::int32_t* ways = toward.data() + to * n;
        for (Index node = 0; node < nodes; ++node) ways[node] = parent[node];
        for (Index node = to; parent[node] >= 0; node = parent[node]) ways[parent[node]] = std::int32_t(node);
    }

    // Give an edge's message, or a node's e, a new place, and record it in the log.
    void renew(Index what, Index where) {
        const Index old = place[what];
        log.push_back({what, old});
        place[what] = where;
        count[target[what]] += old == NOWHERE;
    }

    struct Entry {
        Index what, old;
    };

    const Latents& latents;
    const Index n;
    const N states;

    std::vector<char> with_active;  // (latents,) whether an active latent is at or below it
    std::vector<Index> slot;        // (latents,) a latent's node, or SUMMED_OUT
    Room<double> message, local;    // (latents, states)
    Room<double> buffer;            // (states, states)

    // The reduced tree; children have larger numbers than their parents.
    Index nodes = 0;
    std::vector<std::int32_t> parent, child, sibling;  // (nodes,) -1 at the root; first child or -1; next child of the same parent or -1
    Room<double> g;       // (nodes, states)
    Room<double> matrix;  // (2 latents, states, states) of edges to parents, a row for each of the node's states; then of edges from them

    // Edges have numbers: i for the message from node i to its parent, n + i for the one to node i from its parent.
    Room<double> e;             // (latents + sides of splits, states)
    Room<double> arena;         // (2 latents + moves, states)
    std::vector<Index> place;   // (3 latents,) where an edge's valid message is; a node's e; or NOWHERE
    std::vector<Entry> log;     // what got a new place, and its old place
    std::vector<Index> target;  // (3 latents,) the receiver of a message
    std::vector<Index> count;   // (latents,) number of factors of a node: its messages and its own e
    Room<std::int32_t> toward;  // (latents, latents) the next node on the way to a target, for each node
    Room<double> vector;        // (states,)
};
