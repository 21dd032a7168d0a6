// EM for mixtures of products on the likelihood of what was observed: scores, the E step, draws of components.
//
// The joint density of row x and component k is, on the log scale,
//
//     log w_k + sum_v ( table[code_v, k] + x_v linear[v, k] + x_v^2 square[v, k] )    over the observed variables v.
//
// The component is the innermost index of all arrays. O(rows * variables * components).
#include "exponentials.hpp"
#include "module.hpp"
#include "vectors.hpp"

#include <algorithm>
#include <limits>

namespace {

// Rows whose shares are in the cache together.
constexpr Index TILE = 128;
constexpr double INFINITE = std::numeric_limits<double>::infinity();
// The squared distance of two different categories, and of two rows without a common variable: the mean for two
// independent standardised numbers.
constexpr double APART = 2.0;

// Encoded rows (knothole.densities.univariate.packed.Values).
template <class Code>
struct Values {
    View<const Code, 2> code;  // rows of the stacked table; negative where a value is missing
    View<const double, 2> z;
    View<const double, 1> base;
    View<const std::int64_t, 1> slot;  // column of z of each variable; negative for one without

    template <class Reader>
    static void fields(Values& self, Reader& read) {
        read("code", self.code, {"rows", "variables"});
        read("z", self.z, {"rows", "slots"});
        read("base", self.base, {"rows"});
        read("slot", self.slot, {"variables"});
        for (Index v = 0; v < self.slot[0]; ++v)
            Arguments::require(self.slot(v) < self.z[1], "slot names a column that z does not have");
    }
};

// A row for each code, and two for each slot: parameters, or sums of shares.
template <class T>
struct Stacked {
    View<T, 2> table, linear, square;

    template <class Reader>
    static void fields(Stacked& self, Reader& read) {
        read("table", self.table, {"codes", "components"});
        read("linear", self.linear, {"slots", "components"});
        read("square", self.square, {"slots", "components"});
    }
};
using Form = Stacked<const double>;
using Sums = Stacked<double>;

// Call f with an empty Values of the type that the codes have.
template <class F>
auto with_codes(nb::handle values, F f) {
    return Arguments::holds<std::int16_t>(nb::getattr(values, "code", nb::none())) ? f(Values<std::int16_t>()) : f(Values<std::int32_t>());
}

template <class Code, class T>
void check_codes(const Values<Code>& values, const Stacked<T>& stacked) {
    Arguments::require(within(values.code, std::numeric_limits<Code>::min(), stacked.table[0]), "code must be that of a row of the table");
}

// joint[k] = log of weight times density of row i, without the base measure.
template <class N, class Code>
void join_row(N n, const Values<Code>& values, const Form& form, const double* log_weight, Index i, double* __restrict joint) {
    std::copy(log_weight, log_weight + n, joint);
    for (Index v = 0; v < values.code[1]; ++v) {
        const Code c = values.code(i, v);
        if (c < 0) continue;
        const double* __restrict row = form.table.data + c * n;
        const Index s = values.slot(v);
        if (s < 0) {
            for (Index k = 0; k < n; ++k) joint[k] += row[k];
        } else {
            const double x = values.z(i, s);
            const double *__restrict linear = form.linear.data + s * n, *__restrict square = form.square.data + s * n;
            for (Index k = 0; k < n; ++k) joint[k] += row[k] + x * (linear[k] + x * square[k]);
        }
    }
}

double largest_of(const double* x, Index n) {
    const Index whole = n - n % AT_ONCE;
    Four most = spread(-INFINITE);
    for (Index k = 0; k < whole; k += AT_ONCE) {
        const Four next = load(x + k);
        most = next > most ? next : most;
    }
    double out = std::max(std::max(most[0], most[1]), std::max(most[2], most[3]));
    for (Index k = whole; k < n; ++k) out = std::max(out, x[k]);
    return out;
}

double sum_of(const double* x, Index n) {
    const Index whole = n - n % AT_ONCE;
    double out = sum(x, whole);
    for (Index k = whole; k < n; ++k) out += x[k];
    return out;
}

// Turn a row's log joint densities into shares, and return log p without the base measure. An impossible row
// (log p = -inf) has the components' weights as shares.
template <class N>
double normalise(N n, double* __restrict share, const double* weight) {
    const double largest = largest_of(share, n);
    if (largest == -INFINITE) {
        std::copy(weight, weight + n, share);
        return -INFINITE;
    }
    for (Index k = 0; k < n; ++k) share[k] = exponential(share[k] - largest);
    const double total = sum_of(share, n), part = 1.0 / total;
    for (Index k = 0; k < n; ++k) share[k] *= part;
    return largest + std::log(total);
}

// Add the shares of some rows, from `start` on, to the statistics: by code, and times z and z^2. Variable by variable,
// so that its sums stay in the cache.
template <class N, class Code>
void gather_rows(N n, const Values<Code>& values, Index start, Index n_rows, const double* shares, const Sums& sums) {
    for (Index v = 0; v < values.code[1]; ++v) {
        const Index s = values.slot(v);
        for (Index i = 0; i < n_rows; ++i) {
            const Code c = values.code(start + i, v);
            if (c < 0) continue;
            const double* __restrict share = shares + i * n;
            double* __restrict count = sums.table.data + c * n;
            if (s < 0) {
                for (Index k = 0; k < n; ++k) count[k] += share[k];
            } else {
                const double x = values.z(start + i, s), square = x * x;
                double *__restrict first = sums.linear.data + s * n, *__restrict second = sums.square.data + s * n;
                for (Index k = 0; k < n; ++k) {
                    count[k] += share[k];
                    first[k] += x * share[k];
                    second[k] += square * share[k];
                }
            }
        }
    }
}

void join(nb::object values_, nb::object form_, nb::object log_weight_, nb::object out_) {
    with_codes(values_, [&](auto values) {
        Arguments arguments;
        values = arguments.record<decltype(values)>("values", values_);
        auto form = arguments.record<Form>("form", form_);
        auto log_weight = arguments.array<const double, 1>("log_weight", log_weight_, {"components"});
        auto out = arguments.array<double, 2>("out", out_, {"rows", "components"});
        check_codes(values, form);
        nb::gil_scoped_release unlocked;
        with_constant_or_one(out[1], [&](auto n) {
            for (Index i = 0; i < out[0]; ++i) join_row(n, values, form, log_weight.data, i, out.at(i));
        });
    });
}

void gather(nb::object values_, nb::object share_, nb::object sums_) {
    with_codes(values_, [&](auto values) {
        Arguments arguments;
        values = arguments.record<decltype(values)>("values", values_);
        auto share = arguments.array<const double, 2>("share", share_, {"rows", "components"});
        auto sums = arguments.record<Sums>("sums", sums_);
        check_codes(values, sums);
        nb::gil_scoped_release unlocked;
        with_constant_or_one(share[1], [&](auto n) { gather_rows(n, values, 0, share[0], share.data, sums); });
    });
}

void score(nb::object values_, nb::object form_, nb::object log_weight_, nb::object weight_, nb::object share_, nb::object log_p_) {
    with_codes(values_, [&](auto values) {
        Arguments arguments;
        values = arguments.record<decltype(values)>("values", values_);
        auto form = arguments.record<Form>("form", form_);
        auto log_weight = arguments.array<const double, 1>("log_weight", log_weight_, {"components"});
        auto weight = arguments.array<const double, 1>("weight", weight_, {"components"});
        auto share = arguments.array<double, 2>("share", share_, {"rows", "components"});
        auto log_p = arguments.array<double, 1>("log_p", log_p_, {"rows"});
        check_codes(values, form);
        nb::gil_scoped_release unlocked;
        with_constant_or_one(share[1], [&](auto n) {
            for (Index i = 0; i < share[0]; ++i) {
                join_row(n, values, form, log_weight.data, i, share.at(i));
                log_p(i) = normalise(n, share.at(i), weight.data) + values.base(i);
            }
        });
    });
}

double expect(nb::object values_, nb::object weight_, nb::object form_, nb::object log_prior_, nb::object prior_, nb::object total_,
              nb::object sums_) {
    return with_codes(values_, [&](auto values) {
        Arguments arguments;
        values = arguments.record<decltype(values)>("values", values_);
        auto weight = arguments.array<const double, 1>("weight", weight_, {"rows"});
        auto form = arguments.record<Form>("form", form_);
        auto log_prior = arguments.array<const double, 1>("log_prior", log_prior_, {"components"});
        auto prior = arguments.array<const double, 1>("prior", prior_, {"components"});
        auto total = arguments.array<double, 1>("total", total_, {"components"});
        auto sums = arguments.record<Sums>("sums", sums_);
        check_codes(values, sums);
        nb::gil_scoped_release unlocked;
        return with_constant_or_one(prior[0], [&](auto n) {
            Scratch<double> shares(TILE * n);
            double log_likelihood = 0.0;
            for (Index start = 0; start < weight[0]; start += TILE) {
                const Index n_rows = std::min(TILE, weight[0] - start);
                for (Index i = 0; i < n_rows; ++i) {
                    double *__restrict share = shares.data() + i * n, *__restrict to = total.data;
                    join_row(n, values, form, log_prior.data, start + i, share);
                    const double w = weight(start + i);
                    log_likelihood += w * (normalise(n, share, prior.data) + values.base(start + i));
                    for (Index k = 0; k < n; ++k) {
                        share[k] *= w;
                        to[k] += share[k];
                    }
                }
                gather_rows(n, values, start, n_rows, shares.data(), sums);
            }
            return log_likelihood;
        });
    });
}

// The first component whose cumulative share exceeds a uniform number, or the last possible one.
void pick(nb::object share_, nb::object uniform_, nb::object out_) {
    Arguments arguments;
    auto share = arguments.array<const double, 2>("share", share_, {"rows", "components"});
    auto uniform = arguments.array<const double, 2>("uniform", uniform_, {"rows", "draws"});
    auto out = arguments.array<std::int64_t, 2>("out", out_, {"rows", "draws"});
    nb::gil_scoped_release unlocked;
    const Index n = share[1], n_draws = out[1];
    std::vector<double> reached(n);
    for (Index i = 0; i < share[0]; ++i) {
        std::int64_t last = 0;
        double sum = 0.0;
        for (Index k = 0; k < n; ++k) {
            reached[k] = sum += share(i, k);
            if (share(i, k) > 0) last = k;
        }
        const double* u = uniform.at(i);
        std::int64_t* number = out.at(i);
        Index d = 0;
        for (; d + AT_ONCE <= n_draws; d += AT_ONCE) {
            const Four four = load(u + d);
            FourMasks count{};
            for (Index k = 0; k < n; ++k) count -= spread(reached[k]) <= four;
            count = count < last ? count : FourMasks{last, last, last, last};
            std::memcpy(number + d, &count, sizeof count);
        }
        for (; d < n_draws; ++d) {
            std::int64_t count = 0;
            for (Index k = 0; k < n; ++k) count += reached[k] <= u[d];
            number[d] = std::min(count, last);
        }
    }
}

// Assign to a new seed the rows that are nearer to it than to the seeds before.
void nearer(nb::object value_, nb::object category_, nb::object seed_, std::int64_t number, nb::object distance_, nb::object nearest_) {
    Arguments arguments;
    auto value = arguments.array<const double, 2>("value", value_, {"rows", "variables"});
    auto category = arguments.array<const bool, 1>("category", category_, {"variables"});
    auto seed = arguments.array<const double, 1>("seed", seed_, {"variables"});
    auto distance = arguments.array<double, 1>("distance", distance_, {"rows"});
    auto nearest = arguments.array<std::int64_t, 1>("nearest", nearest_, {"rows"});
    nb::gil_scoped_release unlocked;
    const Index n = seed[0], whole = n - n % AT_ONCE;
    const Four zero = spread(0.0);
    Scratch<double> apart(n);  // of two categories; NaN for numbers
    for (Index v = 0; v < n; ++v) apart[v] = category(v) ? APART : std::numeric_limits<double>::quiet_NaN();
    for (Index i = 0; i < value[0]; ++i) {
        const double* x = value.at(i);
        // Branch-free: a branch on missing values would be mispredicted.
        Four totals = zero;
        FourMasks counts{};
        for (Index v = 0; v < whole; v += AT_ONCE) {
            const Four difference = load(x + v) - load(seed.data + v), of_categories = load(apart.data() + v);
            const Four term = of_categories == of_categories ? (difference != zero ? of_categories : zero) : difference * difference;
            const FourMasks known = difference == difference;
            totals += known ? term : zero;
            counts -= known;
        }
        double sum = total(totals), shared = double(counts[0] + counts[1] + counts[2] + counts[3]);
        for (Index v = whole; v < n; ++v) {
            const double difference = x[v] - seed(v);
            if (std::isnan(difference)) continue;
            shared += 1.0;
            sum += category(v) ? (difference != 0 ? APART : 0.0) : difference * difference;
        }
        const double mean = shared > 0 ? sum / shared : APART;
        if (mean < distance(i)) {
            distance(i) = mean;
            nearest(i) = number;
        }
    }
}

}  // namespace

void bind_mixture(nb::module_& m) {
    m.def("join", &join, nb::arg("values"), nb::arg("form"), nb::arg("log_weight"), nb::arg("out"),
          "Log of weight times density (rows, components), without the base measure.");
    m.def("gather", &gather, nb::arg("values"), nb::arg("share"), nb::arg("sums"),
          "Add shares (rows, components) to the statistics: by code, and times z and z**2.");
    m.def("score", &score, nb::arg("values"), nb::arg("form"), nb::arg("log_weight"), nb::arg("weight"), nb::arg("share"),
          nb::arg("log_p"), "Responsibilities (rows, components) and log p of rows.");
    m.def("expect", &expect, nb::arg("values"), nb::arg("weight"), nb::arg("form"), nb::arg("log_prior"), nb::arg("prior"),
          nb::arg("total"), nb::arg("sums"), "Add a pass of EM over rows to the sums; returns the weighted sum of log p.");
    m.def("pick", &pick, nb::arg("share"), nb::arg("uniform"), nb::arg("out"),
          "Draw components (rows, draws) from shares and uniform numbers.");
    m.def("nearer", &nearer, nb::arg("value"), nb::arg("category"), nb::arg("seed"), nb::arg("number"), nb::arg("distance"),
          nb::arg("nearest"), "Assign the rows that are nearer to a new seed than to those before.");
}
