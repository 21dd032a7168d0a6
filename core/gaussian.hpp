// Gaussian components with missing values: factors, distances, responsibilities.
//
// Everything is written in terms of the precision matrix P of a component. With r the residual of a row, o its observed
// part and m its missing values, and P_mm = L D L' (L with a unit diagonal, D diagonal),
//
//     (x_m - mean_m) | x_o  ~  N(-P_mm^-1 P_mo r_o, P_mm^-1)
//     r_o' S_oo^-1 r_o      =  r_o' P_oo r_o - |D^-1/2 L^-1 P_mo r_o|^2
//     log |S_oo|            =  log |P_mm| - log |P|
//
// so that only the block of the missing values is factorised, and only when the pattern differs from that of the row
// before: O(m^3) a pattern and O(d^2) a row, in each component. Components come last in all arrays, padded to n with
// copies of the last one: inner loops run across them.
//
// An observed score z_j may have a variance v_j of its own (a repeated value: see normal_scores.py). Log densities are
// lowered by v_j h_j / 2, where h_j is the sharpness of the component along z_j given all other variables with repeated
// values: an upper bound of the sharpness if these are only partly observed.
#pragma once
#include "exponentials.hpp"
#include "vectors.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

constexpr double LOG_TWO_PI = 1.8378770664093454836;
// A log density this far below the best has a share that is lost to rounding.
constexpr double FAR_BELOW = -37.0;
// Factors of a determinant that are multiplied before a logarithm is taken.
constexpr Index FACTORS = 8;

// A mixture of k components; n >= k is their padded number.
struct PackedComponents {
    View<const double, 2> mean;        // (d, n)
    View<const double, 3> blocks;      // (d, d, n) the precisions
    View<const double, 1> log_weight;  // (k,) log weight + log |P| / 2

    template <class Reader>
    static void fields(PackedComponents& self, Reader& read) {
        read("mean", self.mean, {"variables", "padded"});
        read("blocks", self.blocks, {"variables", "variables", "padded"});
        read("log_weight", self.log_weight, {"components"});
        const Index n = self.mean[1], k = self.log_weight[0];
        Arguments::require(n % AT_ONCE == 0 && n >= k && k > 0, "components must be padded to a multiple of four");
    }
};

// The pattern of a row: which values are observed, and which are missing.
class Pattern {
  public:
    std::vector<Index> observed, missing;

    explicit Pattern(Index d) : last_(d) {
        observed.reserve(d);
        missing.reserve(d);
    }
    // Whether the pattern of a row differs from that of the last row; true for the first row.
    bool differs(const double* z) const {
        Index differences = is_first_;
        for (Index j = 0; j < Index(last_.size()); ++j) differences += std::isnan(z[j]) != std::isnan(last_[j]);
        return differences > 0;
    }
    void read(const double* z) {
        is_first_ = false;
        observed.clear();
        missing.clear();
        for (Index j = 0; j < Index(last_.size()); ++j) {
            last_[j] = z[j];
            (std::isnan(z[j]) ? missing : observed).push_back(j);
        }
    }

  private:
    std::vector<double> last_;  // the last row
    bool is_first_ = true;
};

// The largest number of missing values of any row of z (rows, d), which scratch memory is needed for.
inline Index most_missing(const double* z, Index rows, Index d) {
    Index most = 0;
    for (Index n = 0; n < rows; ++n) {
        Index own = 0;
        for (Index j = 0; j < d; ++j) own += std::isnan(z[n * d + j]);
        most = std::max(most, own);
    }
    return most;
}

typedef std::int64_t FourMask __attribute__((vector_size(32)));

// F vectors of four that stay in registers: loops over a sum's terms are inside loops over components.
template <int F>
struct Lanes {
    Four x[F];

    static Lanes load(const double* from) {
        Lanes out;
        for (int f = 0; f < F; ++f) out.x[f] = ::load(from + f * AT_ONCE);
        return out;
    }
    static Lanes zero() {
        Lanes out;
        for (int f = 0; f < F; ++f) out.x[f] = spread(0.0);
        return out;
    }
    void store(double* to) const {
        for (int f = 0; f < F; ++f) ::store(to + f * AT_ONCE, x[f]);
    }
    void add_product(const double* a, const double* b) {
        for (int f = 0; f < F; ++f) x[f] = x[f] + ::load(a + f * AT_ONCE) * ::load(b + f * AT_ONCE);
    }
    void subtract_product(const double* a, const double* b) {
        for (int f = 0; f < F; ++f) x[f] = x[f] - ::load(a + f * AT_ONCE) * ::load(b + f * AT_ONCE);
    }
};

// The number of components, known when compiling or not, and how many vectors of four a loop over them takes at once.
template <class N>
struct LanesOf {
    static constexpr int F = 1;
};
template <Index n>
struct LanesOf<Constant<n>> {
    static constexpr int F = int(n % 16 == 0 ? 4 : n / AT_ONCE);  // more would not fit in registers
};

inline Four where(FourMask which, Four x, double otherwise) {
    return (Four)(((FourMask)x & which) | ((FourMask)spread(otherwise) & ~which));
}
inline Four larger(Four x, Four y) {
    const FourMask first = x > y;
    return (Four)(((FourMask)x & first) | ((FourMask)y & ~first));
}

// Turn log joint densities of k components, padded to n with -inf, into responsibilities in place; returns their log
// sum. If the row is impossible in every component, all are equally likely.
inline double normalise(double* joint, Index k, Index n) {
    constexpr double INF = std::numeric_limits<double>::infinity();
    Four tops = load(joint), sums = spread(0.0);
    for (Index c = AT_ONCE; c < n; c += AT_ONCE) tops = larger(load(joint + c), tops);
    const double top = std::max(std::max(tops[0], tops[2]), std::max(tops[1], tops[3]));
    if (k == 1 || top == -INF) {
        fill(joint, 0.0, n);
        for (Index c = 0; c < k; ++c) joint[c] = 1.0 / double(k);
        return top;
    }
    for (Index c = 0; c < n; c += AT_ONCE) {
        const Four below = load(joint + c) - spread(top), share = exponential(where(below > spread(FAR_BELOW), below, 2 * LEAST));
        store(joint + c, share);
        sums = sums + share;
    }
    const double sum = total(sums);
    times(joint, 1.0 / sum, n);
    return top + std::log(sum);
}

// A mixture given rows, one pattern after another. N is the padded number of components.
template <class N>
class Conditional {
  public:
    static constexpr int F = LanesOf<N>::F;
    static constexpr Index STEP = F * AT_ONCE;
    using Numbers = Lanes<F>;

    const PackedComponents& packed;
    const N n;
    const Index d, most;
    Pattern pattern;
    Scratch<double> lower;     // (most, most, n) L, with 1 / D on its diagonal
    Scratch<double> log_det;   // (n,) -log |P_mm| / 2
    Scratch<double> solved;    // (most, n) L^-1 P_mo r_o
    Scratch<double> distance;  // (n,) r_o' S_oo^-1 r_o

    Conditional(const PackedComponents& packed, N n, Index most)
        : packed(packed), n(n), d(packed.mean[0]), most(most), pattern(d), lower(most * most * n), log_det(n), solved(most * n),
          distance(n), log_weight_(n, -std::numeric_limits<double>::infinity()), unscaled_(most * n), residual_(d * n) {
        std::copy_n(packed.log_weight.data, packed.log_weight[0], log_weight_.begin());
    }

    double* entry(Index i, Index j) { return lower.data() + (i * most + j) * n; }
    const double* inverse_pivot(Index i) { return entry(i, i); }

    // Read the pattern of a row, and factorise P_mm if it is new; returns whether it is.
    bool read(const double* z) {
        if (!pattern.differs(z)) return false;
        pattern.read(z);
        factorise();
        return true;
    }

    // L^-1 P_mo r_o of a row, and the squared distance of its observed part. r_o' P_oo r_o is gathered as
    // 2 r_i (P_ii r_i / 2 + sum of P_ij r_j), j before i.
    void project(const double* z) {
        const std::vector<Index>&observed = pattern.observed, &missing = pattern.missing;
        const Index n_observed = Index(observed.size()), n_missing = Index(missing.size());
        for (Index c = 0; c < n; c += STEP) {
            Numbers squares = Numbers::zero();
            for (Index a = 0; a < n_observed; ++a) {
                const Index i = observed[a];
                const double *middle = packed.mean.at(i) + c, *own = packed.blocks.at(i, i) + c;
                double* r = residual_.data() + a * n + c;
                const Numbers sum = product_with_residuals(i, a, c);
                for (int f = 0; f < F; ++f) {
                    const Four x = spread(z[i]) - load(middle + f * AT_ONCE);
                    const Four half = x * load(own + f * AT_ONCE) * spread(0.5) + sum.x[f];
                    squares.x[f] = squares.x[f] + x * (half + half);
                    store(r + f * AT_ONCE, x);
                }
            }
            squares.store(distance.data() + c);
            for (Index i = 0; i < n_missing; ++i) product_with_residuals(missing[i], n_observed, c).store(solved.data() + i * n + c);
        }
        forward(solved.data());
        subtract_solved();
    }

    // Solve L y = vector (missing, n) in place.
    void forward(double* vector) {
        const Index n_missing = Index(pattern.missing.size());
        for (Index c = 0; c < n; c += STEP)
            for (Index i = 1; i < n_missing; ++i) {
                Numbers own = Numbers::load(vector + i * n + c);
                for (Index j = 0; j < i; ++j) own.subtract_product(entry(i, j) + c, vector + j * n + c);
                own.store(vector + i * n + c);
            }
    }

    // Solve D L' y = vector (missing, n) in place.
    void back(double* vector) {
        const Index n_missing = Index(pattern.missing.size());
        for (Index c = 0; c < n; c += STEP)
            for (Index i = n_missing - 1; i >= 0; --i) {
                Numbers own = Numbers::zero();
                own.add_product(vector + i * n + c, inverse_pivot(i) + c);
                for (Index j = i + 1; j < n_missing; ++j) own.subtract_product(entry(j, i) + c, vector + j * n + c);
                own.store(vector + i * n + c);
            }
    }

    // Take |D^-1/2 L^-1 P_mo r_o|^2 off the distances.
    void subtract_solved() { subtract_squares(solved.data(), distance.data()); }

    // out -= |D^-1/2 vector|^2
    void subtract_squares(const double* vector, double* out) {
        for (Index c = 0; c < n; c += STEP) {
            Numbers left = Numbers::load(out + c);
            for (Index i = 0; i < Index(pattern.missing.size()); ++i)
                for (int f = 0; f < F; ++f) {
                    const Four own = load(vector + i * n + c + f * AT_ONCE);
                    left.x[f] = left.x[f] - own * own * load(inverse_pivot(i) + c + f * AT_ONCE);
                }
            left.store(out + c);
        }
    }

    // P_mm^-1, its lower triangle, to out (most, most, n).
    void invert(double* out) {
        const Index n_missing = Index(pattern.missing.size());
        const auto at = [&](Index i, Index j) { return out + (i * most + j) * n; };
        for (Index c = 0; c < n; c += STEP) {
            // V = L^-1 first, below its unit diagonal, ...
            for (Index i = 1; i < n_missing; ++i)
                for (Index j = 0; j < i; ++j) {
                    Numbers own = Numbers::zero();
                    for (int f = 0; f < F; ++f) own.x[f] = own.x[f] - load(entry(i, j) + c + f * AT_ONCE);
                    for (Index p = j + 1; p < i; ++p) own.subtract_product(entry(i, p) + c, at(p, j) + c);
                    own.store(at(i, j) + c);
                }
            // ... then V' D^-1 V in place: entry (i, j) needs rows from i on, which are still there.
            double* scaled = unscaled_.data() + c;
            for (Index i = 0; i < n_missing; ++i) {
                for (Index p = i + 1; p < n_missing; ++p) product(scaled + p * n, at(p, i) + c, inverse_pivot(p) + c, STEP);
                for (Index j = 0; j < i; ++j) {
                    Numbers own = Numbers::zero();
                    own.add_product(at(i, j) + c, inverse_pivot(i) + c);
                    for (Index p = i + 1; p < n_missing; ++p) own.add_product(scaled + p * n, at(p, j) + c);
                    own.store(at(i, j) + c);
                }
                Numbers own = Numbers::load(inverse_pivot(i) + c);
                for (Index p = i + 1; p < n_missing; ++p) own.add_product(scaled + p * n, at(p, i) + c);
                own.store(at(i, i) + c);
            }
        }
    }

    // Add the sum of v_j h_j to the distances; sharpness is (d, k).
    void add_sharpness(const double* variance, View<const double, 2> sharpness) {
        for (Index j : pattern.observed)
            if (variance[j] > 0.0)
                for (Index c = 0; c < sharpness[1]; ++c) distance[c] += variance[j] * sharpness(j, c);
    }

    // Add log (weight p) to joint (n,) of every component, from its distance; beyond the k components, -inf.
    void add_log(double* joint) const {
        const Four constant = spread(double(pattern.observed.size()) * LOG_TWO_PI);
        for (Index c = 0; c < n; c += AT_ONCE) {
            const Four log_p = load(log_det.data() + c) - spread(0.5) * (load(distance.data() + c) + constant);
            store(joint + c, load(joint + c) + (load(log_weight_.data() + c) + log_p));
        }
    }

  private:
    Scratch<double> log_weight_;  // (n,) padded
    Scratch<double> unscaled_;  // (most, n) a row of L D
    Scratch<double> residual_;  // (d, n) r of what is observed

    // Sum of P_ij r_j over the first observed variables, of components from c on; in two parts that need not wait for
    // each other.
    Numbers product_with_residuals(Index i, Index first, Index c) const {
        const Index* observed = pattern.observed.data();
        const double *row = packed.blocks.at(i) + c, *r = residual_.data() + c;
        Numbers even = Numbers::zero(), odd = Numbers::zero();
        Index b = 0;
        for (; b + 2 <= first; b += 2) {
            even.add_product(row + observed[b] * n, r + b * n);
            odd.add_product(row + observed[b + 1] * n, r + (b + 1) * n);
        }
        if (b < first) even.add_product(row + observed[b] * n, r + b * n);
        for (int f = 0; f < F; ++f) even.x[f] = even.x[f] + odd.x[f];
        return even;
    }

    // P_mm = L D L', row by row: with U = L D, U_ij = P_ij - sum of U_ip L_jp.
    void factorise() {
        const std::vector<Index>& missing = pattern.missing;
        const Index n_missing = Index(missing.size());
        for (Index c = 0; c < n; c += STEP)
            for (Index i = 0; i < n_missing; ++i) {
                double* row = unscaled_.data() + c;
                for (Index j = 0; j < i; ++j) {
                    Numbers own = Numbers::load(packed.blocks.at(missing[i], missing[j]) + c);
                    for (Index p = 0; p < j; ++p) own.subtract_product(row + p * n, entry(j, p) + c);
                    own.store(row + j * n);
                }
                Numbers pivot = Numbers::load(packed.blocks.at(missing[i], missing[i]) + c);
                for (Index p = 0; p < i; ++p) {
                    product(entry(i, p) + c, row + p * n, inverse_pivot(p) + c, STEP);
                    pivot.subtract_product(row + p * n, entry(i, p) + c);
                }
                for (int f = 0; f < F; ++f) store(entry(i, i) + c + f * AT_ONCE, spread(1.0) / pivot.x[f]);
            }
        fill(log_det.data(), 0.0, n);
        for (Index start = 0; start < n_missing; start += FACTORS)
            for (Index c = 0; c < n; ++c) {
                double factors = 1.0;
                for (Index i = start; i < std::min(start + FACTORS, n_missing); ++i) factors *= inverse_pivot(i)[c];
                log_det[c] += 0.5 * std::log(factors);
            }
    }
};
