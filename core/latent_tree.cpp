// Latent trees: both passes of EM, log p of rows, and draws of latents given rows.
//
// Variable v has a latent z_v with S states, transition[v, i, j] = p(z_v = j | z_parent = i), and depends on z_v alone.
// Upwards, beta_v(j) = p(x_v | z_v = j) prod over children c of message_c(j), and message_v(i) = sum over j of
// transition[v, i, j] beta_v(j): log p(row) = log sum over k of prior(k) beta_root(k). Downwards, gamma_v(j) = p(z_v = j | row)
// = beta_v(j) sum over i of transition[v, i, j] gamma_parent(i) / message_v(i). O(rows * variables * S^2).
//
// Messages stay in linear space; whenever two are multiplied, a row's largest entry is moved to its log scale. Passes work
// on tiles of rows, states before rows, so that inner loops run over rows whatever S is. The rows of a tile are filled up
// to a multiple of four with rows of which nothing is known and whose weight is 0.
#include "exponentials.hpp"
#include "module.hpp"
#include "packed.hpp"
#include "vectors.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace {

// Rows that go through a pass together: the messages of a few variables should stay in the cache.
constexpr Index TILE = 128;
constexpr double INF = std::numeric_limits<double>::infinity();

struct Distributions : Stacked<const double> {
    View<const double, 1> peak;    // (codes,) largest entry of a code in the table
    View<const double, 2> factor;  // (codes, states) exp(table - peak): serves variables without z

    template <class Reader>
    static void fields(Distributions& self, Reader& read) {
        Stacked<const double>::fields(self, read);
        read("peak", self.peak, {"codes"});
        read("factor", self.factor, {"codes", "states"});
    }
};

struct Model {
    View<const std::int64_t, 1> order;   // (variables,) parents before children, the children of one side by side
    View<const std::int64_t, 1> parent;  // -1 at the root
    View<const double, 1> prior;         // (states,)
    View<const double, 3> transition;    // (variables, states, states); the root's rows are its prior

    template <class Reader>
    static void fields(Model& self, Reader& read) {
        read("order", self.order, {"variables"});
        read("parent", self.parent, {"variables"});
        read("prior", self.prior, {"states"});
        read("transition", self.transition, {"variables", "states", "states"});
    }
};

struct Sums {
    View<double, 1> roots;  // (states,)
    View<double, 3> pairs;  // (variables, states, states)
    Stacked<double> distributions;

    template <class Reader>
    static void fields(Sums& self, Reader& read) {
        read("roots", self.roots, {"states"});
        read("pairs", self.pairs, {"variables", "states", "states"});
        read("distributions", self.distributions);
    }
};

// Messages (variables, states, width) of a tile of `width` rows, and numbers a row.
struct Tile {
    Index width, states, size;
    bool both;  // whether the downward pass will follow: it wants the messages of all variables
    Scratch<double> betas, messages, gammas, rows_first;
    Scratch<double> scale = Scratch<double>(TILE), spare = Scratch<double>(TILE), fall = Scratch<double>(TILE), z = Scratch<double>(TILE);

    Tile(Index n_rows, Index n_variables, Index n_states, bool both)
        : width((std::min(n_rows, TILE) + AT_ONCE - 1) / AT_ONCE * AT_ONCE), states(n_states), size(width * n_states), both(both),
          betas(n_variables * size), messages((both ? n_variables : 1) * size), gammas(both ? n_variables * size : 0),
          rows_first(both ? size : 0) {}

    double* beta(Index v) { return betas.data() + v * size; }
    double* message(Index v) { return messages.data() + (both ? v * size : 0); }
    double* gamma(Index v) { return gammas.data() + v * size; }
};

// out[i] = sum over j of matrix(i, j) x[j], for I states i and W times four rows. (Also of the transposed matrix.)
template <int I, int W>
void product_block(const double* matrix, Index next_i, Index next_j, const double* x, double* out, Index states, Index width) {
    Four sum[I][W];
    for (int i = 0; i < I; ++i)
        for (int w = 0; w < W; ++w) sum[i][w] = spread(0.0);
    for (Index j = 0; j < states; ++j) {
        Four here[W];
        for (int w = 0; w < W; ++w) here[w] = load(x + j * width + w * AT_ONCE);
        for (int i = 0; i < I; ++i) {
            const Four factor = spread(matrix[i * next_i + j * next_j]);
            for (int w = 0; w < W; ++w) sum[i][w] = sum[i][w] + factor * here[w];
        }
    }
    for (int i = 0; i < I; ++i)
        for (int w = 0; w < W; ++w) store(out + i * width + w * AT_ONCE, sum[i][w]);
}

template <int I>
void product_rows(const double* matrix, Index next_i, Index next_j, const double* x, double* out, Index states, Index width) {
    Index n = 0;
    for (; n + 2 * AT_ONCE <= width; n += 2 * AT_ONCE) product_block<I, 2>(matrix, next_i, next_j, x + n, out + n, states, width);
    for (; n < width; n += AT_ONCE) product_block<I, 1>(matrix, next_i, next_j, x + n, out + n, states, width);
}

void multiply(const double* matrix, Index next_i, Index next_j, const double* x, double* out, Index states, Index width) {
    Index i = 0;
    for (; i + 4 <= states; i += 4) product_rows<4>(matrix + i * next_i, next_i, next_j, x, out + i * width, states, width);
    for (; i < states; ++i) product_rows<1>(matrix + i * next_i, next_i, next_j, x, out + i * width, states, width);
}

// out(i, j) += sum over rows of a[i] b[j], for some states i and j.
template <int I, int J>
void outer_block(const double* a, const double* b, double* out, Index states, Index width) {
    Four sum[I][J];
    for (int i = 0; i < I; ++i)
        for (int j = 0; j < J; ++j) sum[i][j] = spread(0.0);
    for (Index n = 0; n < width; n += AT_ONCE) {
        Four other[J];
        for (int j = 0; j < J; ++j) other[j] = load(b + j * width + n);
        for (int i = 0; i < I; ++i) {
            const Four one = load(a + i * width + n);
            for (int j = 0; j < J; ++j) sum[i][j] = sum[i][j] + one * other[j];
        }
    }
    for (int i = 0; i < I; ++i)
        for (int j = 0; j < J; ++j) out[i * states + j] += total(sum[i][j]);
}

template <int I>
void outer_rows(const double* a, const double* b, double* out, Index states, Index width) {
    Index j = 0;
    for (; j + 4 <= states; j += 4) outer_block<I, 4>(a, b + j * width, out + j, states, width);
    for (; j < states; ++j) outer_block<I, 1>(a, b + j * width, out + j, states, width);
}

void add_outer(const double* a, const double* b, double* out, Index states, Index width) {
    Index i = 0;
    for (; i + 2 <= states; i += 2) outer_rows<2>(a + i * width, b, out + i * states, states, width);
    for (; i < states; ++i) outer_rows<1>(a + i * width, b, out + i * states, states, width);
}

// The row of a table (codes, states) that each row of the tile has, `none` where the value is missing.
template <class Code>
void find_rows(const Values<Code>& values, Index first, Index n_rows, Index v, View<const double, 2> table, const double* none,
               const double** rows, Index width) {
    for (Index n = 0; n < n_rows; ++n) {
        const Index c = values.code(first + n, v);
        rows[n] = c < 0 ? none : table.at(c);
    }
    std::fill(rows + n_rows, rows + width, none);
}

// beta = p(x_v | z_v) of a tile's rows from `first` on, divided by a row's largest entry, whose log goes to the scale.
template <class Code>
void fill_terms(const Values<Code>& values, const Distributions& tables, Index first, Index n_rows, Tile& tile) {
    const Index states = tile.states, width = tile.width;
    const std::vector<double> ones(states, 1.0), zeros(states, 0.0);
    const double* rows[TILE];
    double *scale = tile.scale.data(), *peak = tile.spare.data(), *z = tile.z.data();
    std::fill_n(scale, width, 0.0);
    for (Index v = 0; v < values.slot[0]; ++v) {
        const Index slot = values.slot(v);
        double* beta = tile.beta(v);
        if (slot < 0) {
            find_rows(values, first, n_rows, v, tables.factor, ones.data(), rows, width);
            for (Index n = 0; n < n_rows; ++n) {
                const Index c = values.code(first + n, v);
                scale[n] += c < 0 ? 0.0 : tables.peak(c);
            }
            for (Index k = 0; k < states; ++k)
                for (Index n = 0; n < width; ++n) beta[k * width + n] = rows[n][k];
            continue;
        }
        find_rows(values, first, n_rows, v, tables.table, zeros.data(), rows, width);
        std::fill_n(z, width, 0.0);
        for (Index n = 0; n < n_rows; ++n) z[n] = values.code(first + n, v) < 0 ? 0.0 : values.z(first + n, slot);
        std::fill_n(peak, width, -INF);
        for (Index k = 0; k < states; ++k) {
            double* terms = beta + k * width;
            const Four linear = spread(tables.linear(slot, k)), square = spread(tables.square(slot, k));
            for (Index n = 0; n < width; ++n) terms[n] = rows[n][k];
            for (Index n = 0; n < width; n += AT_ONCE) {
                const Four x = load(z + n), term = load(terms + n) + x * (linear + x * square), most = load(peak + n);
                store(terms + n, term);
                store(peak + n, most > term ? most : term);
            }
        }
        for (Index n = 0; n < width; ++n) {
            scale[n] += peak[n];
            // Impossible in every state: all terms become 0.
            peak[n] = peak[n] > -INF ? peak[n] : 0.0;
        }
        for (Index k = 0; k < states; ++k) exponentials(beta + k * width, peak, width);
    }
}

// target *= factor, then divide each row by its largest entry and log that. A row that is 0 in every state stays so.
void multiply_in(double* target, const double* factor, Tile& tile) {
    double *scale = tile.scale.data(), *largest = tile.spare.data(), *fall = tile.fall.data();
    std::fill_n(largest, tile.width, 0.0);
    for (Index k = 0; k < tile.states; ++k)
        for (Index n = 0; n < tile.width; n += AT_ONCE) {
            const Index at = k * tile.width + n;
            const Four both = load(target + at) * load(factor + at), most = load(largest + n);
            store(target + at, both);
            store(largest + n, most > both ? most : both);
        }
    for (Index n = 0; n < tile.width; ++n)
        if (largest[n] > 0.0) {
            const double log = std::log(largest[n]);
            scale[n] += log;
            fall[n] += log;
            largest[n] = 1.0 / largest[n];
        }
    for (Index k = 0; k < tile.states; ++k)
        product(target + k * tile.width, target + k * tile.width, largest, tile.width);
}

// Collect evidence towards the root; out[n] becomes log p of row n. Afterwards beta is proportional to
// p(evidence at and below v | z_v), and the message to p(evidence at and below v | z_parent).
//
// A state whose distribution term vanished beside the row's largest one is lost. That is harmless unless the children say
// the opposite just as strongly: where their product falls below exp(limit) at one variable, out[n] is NaN, and the caller
// must evaluate the row in log space.
void upward(const Model& model, double limit, Tile& tile, Index n_rows, double* out) {
    double *scale = tile.scale.data(), *fall = tile.fall.data();
    Index above = -1;
    for (Index position = model.order[0] - 1; position > 0; --position) {
        const Index v = model.order(position);
        if (model.parent(v) != above) {
            above = model.parent(v);
            std::fill_n(fall, tile.width, 0.0);
        }
        multiply(model.transition.at(v), tile.states, 1, tile.beta(v), tile.message(v), tile.states, tile.width);
        multiply_in(tile.beta(above), tile.message(v), tile);
        for (Index n = 0; n < tile.width; ++n)
            if (fall[n] < limit) scale[n] = std::numeric_limits<double>::quiet_NaN();
    }
    const double* beta = tile.beta(model.order(0));
    for (Index n = 0; n < n_rows; ++n) {
        double p = 0.0;
        for (Index k = 0; k < tile.states; ++k) p += model.prior(k) * beta[k * tile.width + n];
        out[n] = std::log(p) + scale[n];
    }
}

// out[:n] += x * factor, of any length.
void add_any(double* out, const double* x, double factor, Index n) {
    const Index even = n / AT_ONCE * AT_ONCE;
    add_times(out, x, factor, even);
    for (Index k = even; k < n; ++k) out[k] += x[k] * factor;
}

// Add responsibilities of the observed entries of a variable, and of those times z and z^2.
template <class Code>
void add_statistics(const Values<Code>& values, Index first, Index n_rows, Index v, Tile& tile, const Stacked<double>& sums) {
    const double* gamma = tile.gamma(v);
    double* rows_first = tile.rows_first.data();
    for (Index n = 0; n < n_rows; ++n)
        for (Index k = 0; k < tile.states; ++k) rows_first[n * tile.states + k] = gamma[k * tile.width + n];
    const Index slot = values.slot(v);
    for (Index n = 0; n < n_rows; ++n) {
        const Index c = values.code(first + n, v);
        if (c < 0) continue;
        const double* share = rows_first + n * tile.states;
        add_any(sums.table.at(c), share, 1.0, tile.states);
        if (slot < 0) continue;
        const double z = values.z(first + n, slot);
        add_any(sums.linear.at(slot), share, z, tile.states);
        add_any(sums.square.at(slot), share, z * z, tile.states);
    }
}

// Distribute evidence from the root: gamma becomes weight times p(z_v | row), and all statistics are added up.
//
// pairs(v, i, j) gains the weighted sum of p(z_parent = i, z_v = j | row), but for the factor transition(v, i, j), which is
// the same for all rows and is left to the caller. Overwrites the messages.
template <class Code>
void downward(const Model& model, const Values<Code>& values, Index first, Index n_rows, const double* weight, Tile& tile, Sums& sums) {
    const Index root = model.order(0), states = tile.states, width = tile.width;
    double* share = tile.spare.data();
    std::fill_n(share, width, 0.0);
    for (Index k = 0; k < states; ++k)
        for (Index n = 0; n < width; n += AT_ONCE) {
            const Four part = load(tile.beta(root) + k * width + n) * spread(model.prior(k));
            store(tile.gamma(root) + k * width + n, part);
            store(share + n, load(share + n) + part);
        }
    for (Index n = 0; n < n_rows; ++n) share[n] = share[n] > 0.0 ? weight[n] / share[n] : 0.0;
    std::fill(share + n_rows, share + width, 0.0);
    for (Index k = 0; k < states; ++k) {
        double* own = tile.gamma(root) + k * width;
        product(own, own, share, width);
        sums.roots(k) += sum(own, width);
    }
    add_statistics(values, first, n_rows, root, tile, sums.distributions);
    for (Index position = 1; position < model.order[0]; ++position) {
        const Index v = model.order(position);
        double *ratio = tile.message(v), *above = tile.gamma(model.parent(v)), *gamma = tile.gamma(v);
        for (Index n = 0; n < tile.size; n += AT_ONCE) {
            // Where the message is 0, so is gamma above.
            const Four message = load(ratio + n), quotient = load(above + n) / message, none = spread(0.0);
            store(ratio + n, message > none ? quotient : none);
        }
        add_outer(ratio, tile.beta(v), sums.pairs.at(v), states, width);
        multiply(model.transition.at(v), 1, states, ratio, gamma, states, width);
        product(gamma, gamma, tile.beta(v), tile.size);
        add_statistics(values, first, n_rows, v, tile, sums.distributions);
    }
}

// Latents of a row's draws, parents before children, after `upward`; beta is (variables, states), uniform (variables, draws).
void descend(const Model& model, const double* beta, View<const double, 3> uniform, Index row, View<std::int64_t, 3> out, Index n) {
    const Index states = model.prior[0];
    for (Index draw = 0; draw < out[1]; ++draw)
        for (Index position = 0; position < model.order[0]; ++position) {
            const Index v = model.order(position), parent = model.parent(v);
            // The root's transitions are its prior, whatever the state above.
            const Index above = parent < 0 ? 0 : out(n, draw, parent);
            if (above < 0) {
                out(n, draw, v) = -1;
                continue;
            }
            const double *weight = model.transition.at(v, above), *own = beta + v * states;
            double whole = 0.0;
            for (Index k = 0; k < states; ++k) whole += weight[k] * own[k];
            double left = uniform(row, v, draw) * whole;
            std::int64_t state = -1;
            for (Index k = 0; k < states; ++k) {
                const double share = weight[k] * own[k];
                if (!(share > 0.0)) continue;
                state = k;
                if (left < share) break;
                left -= share;
            }
            out(n, draw, v) = state;
        }
}

template <class F>
void for_tiles(Index n_rows, F f) {
    for (Index first = 0; first < n_rows; first += TILE) f(first, std::min(TILE, n_rows - first));
}

void expectation(nb::object values_, nb::object tables_, nb::object model_, nb::object weight_, nb::object out_, nb::object sums_) {
    with_code_type(values_, [&](auto code) {
        Arguments arguments;
        auto values = arguments.record<Values<decltype(code)>>("values", values_);
        auto tables = arguments.record<Distributions>("tables", tables_);
        auto model = arguments.record<Model>("model", model_);
        auto weight = arguments.array<const double, 1>("weight", weight_, {"rows"});
        auto out = arguments.array<double, 1>("out", out_, {"rows"});
        auto sums = arguments.record<Sums>("sums", sums_);
        nb::gil_scoped_release unlocked;
        Tile tile(out[0], model.order[0], model.prior[0], true);
        for_tiles(out[0], [&](Index first, Index n_rows) {
            fill_terms(values, tables, first, n_rows, tile);
            upward(model, -INF, tile, n_rows, out.data + first);
            downward(model, values, first, n_rows, weight.data + first, tile, sums);
        });
    });
}

void log_likelihood(nb::object values_, nb::object tables_, nb::object model_, double limit, nb::object out_) {
    with_code_type(values_, [&](auto code) {
        Arguments arguments;
        auto values = arguments.record<Values<decltype(code)>>("values", values_);
        auto tables = arguments.record<Distributions>("tables", tables_);
        auto model = arguments.record<Model>("model", model_);
        auto out = arguments.array<double, 1>("out", out_, {"rows"});
        nb::gil_scoped_release unlocked;
        Tile tile(out[0], model.order[0], model.prior[0], false);
        for_tiles(out[0], [&](Index first, Index n_rows) {
            fill_terms(values, tables, first, n_rows, tile);
            upward(model, limit, tile, n_rows, out.data + first);
        });
    });
}

void draw_states(nb::object values_, nb::object tables_, nb::object model_, nb::object uniform_, nb::object out_) {
    with_code_type(values_, [&](auto code) {
        Arguments arguments;
        auto values = arguments.record<Values<decltype(code)>>("values", values_);
        auto tables = arguments.record<Distributions>("tables", tables_);
        auto model = arguments.record<Model>("model", model_);
        auto uniform = arguments.array<const double, 3>("uniform", uniform_, {Dim::any(), "variables", "draws"});
        auto out = arguments.array<std::int64_t, 3>("out", out_, {"rows", "draws", "variables"});
        const bool shared = uniform[0] == 1;
        arguments.require(shared || uniform[0] == out[0], "uniform must have one row, or as many as out");
        nb::gil_scoped_release unlocked;
        Tile tile(out[0], model.order[0], model.prior[0], false);
        std::vector<double> own(model.order[0] * tile.states), log_p(TILE);
        for_tiles(out[0], [&](Index first, Index n_rows) {
            fill_terms(values, tables, first, n_rows, tile);
            upward(model, -INF, tile, n_rows, log_p.data());
            for (Index n = 0; n < n_rows; ++n) {
                for (Index i = 0; i < Index(own.size()); ++i) own[i] = tile.betas[i * tile.width + n];
                descend(model, own.data(), uniform, shared ? 0 : first + n, out, first + n);
            }
        });
    });
}

}  // namespace

void bind_latent_tree(nb::module_& m) {
    m.def("expectation", &expectation, nb::arg("values"), nb::arg("tables"), nb::arg("model"), nb::arg("weight"), nb::arg("out"),
          nb::arg("sums"), "Both passes over weighted rows: log p into out, expected statistics added to sums.");
    m.def("log_likelihood", &log_likelihood, nb::arg("values"), nb::arg("tables"), nb::arg("model"), nb::arg("limit"), nb::arg("out"),
          "Log p of rows; NaN where messages fall by more than exp(limit) at one variable.");
    m.def("draw_states", &draw_states, nb::arg("values"), nb::arg("tables"), nb::arg("model"), nb::arg("uniform"), nb::arg("out"),
          "Latents drawn from p(z | row) with uniform numbers (rows or 1, variables, draws); -1 in rows of probability 0.");
}
