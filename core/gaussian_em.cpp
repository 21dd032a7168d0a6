// EM for Gaussian mixtures on rows with missing values: inverses, log densities, conditional moments, expectations.
//
// In EM, E[log p] takes the place of log p for an observed score z_j with a variance v_j of its own. It lowers log p by
// v_j (S_oo^-1)_jj / 2, and the expected second moments grow by v_j g g', where g is the change of all variables with z_j:
// 1 at j, -P_mm^-1 P_mj at the missing values. What depends on the pattern of missing values alone is computed once for
// consecutive rows that share it: O(m^3 + repeats m^2) a pattern, O(m^2 + d) a row, in each component.
#include "gaussian.hpp"

#include "module.hpp"

namespace {

// Smaller shares are negligible: below the rounding errors of sums over rows.
constexpr double NO_SHARE = 1e-12;

// out[c] += factor * sum of x_p[c] y_p for rows p from `first` to `last` of x, c from `from` to `to` (multiples of four).
// The factors y_p are `stride` apart, as rows of x are.
void add_rows(double* out, const double* x, const double* y, double factor, Index stride, Index first, Index last, Index from, Index to) {
    const auto columns = [&](auto lanes, Index c) {
        auto sum = decltype(lanes)::load(out + c);
        for (Index p = first; p < last; ++p) {
            const Four scale = spread(factor * y[p * stride]);
            for (std::size_t f = 0; f < sizeof sum / sizeof scale; ++f)
                sum.x[f] = sum.x[f] + scale * load(x + p * stride + c + Index(f) * AT_ONCE);
        }
        sum.store(out + c);
    };
    Index c = from;
    for (; c + 4 * AT_ONCE <= to; c += 4 * AT_ONCE) columns(Lanes<4>{}, c);
    for (; c + 2 * AT_ONCE <= to; c += 2 * AT_ONCE) columns(Lanes<2>{}, c);
    for (; c < to; c += AT_ONCE) columns(Lanes<1>{}, c);
}

// Inverses and log determinants of covariances, by Cholesky factors: O(d^3) each. (Not by LAPACK, whose threads would
// compete with ours and whose bits depend on their number.) A matrix that is not positive definite becomes NaN.
void invert(nb::object covariance_, nb::object precision_, nb::object log_det_) {
    Arguments arguments;
    auto covariance = arguments.array<const double, 3>("covariance", covariance_, {"components", "variables", "variables"});
    auto precision = arguments.array<double, 3>("precision", precision_, {"components", "variables", "variables"});
    auto log_det = arguments.array<double, 1>("log_det", log_det_, {"components"});
    nb::gil_scoped_release unlocked;
    const Index d = covariance[1], width = d + (AT_ONCE - d % AT_ONCE) % AT_ONCE;
    const auto down = [](Index i) { return i - i % AT_ONCE; };
    Scratch<double> upper(width * width), inverse(width * width), sum(width);
    for (Index k = 0; k < covariance[0]; ++k) {
        // S = U' U, a row of U at a time, and V = U'^-1, which is lower triangular.
        std::fill(upper.begin(), upper.end(), 0.0);
        std::fill(inverse.begin(), inverse.end(), 0.0);
        log_det(k) = 0.0;
        for (Index i = 0; i < d; ++i) {
            double *row = upper.data() + i * width, *own = inverse.data() + i * width;
            for (Index j = i; j < d; ++j) row[j] = covariance(k, j, i);
            add_rows(row, upper.data(), upper.data() + i, -1.0, width, 0, i, down(i), width);
            const double root = std::sqrt(row[i]), scale = 1.0 / root;
            log_det(k) += 2.0 * std::log(root);
            times(row + down(i), scale, width - down(i));
            add_rows(own, inverse.data(), upper.data() + i, -1.0, width, 0, i, 0, down(i + AT_ONCE - 1));
            own[i] = 1.0;
            times(own, scale, down(i) + AT_ONCE);
        }
        // P = V' V
        for (Index i = 0; i < d; ++i) {
            std::fill(sum.begin(), sum.end(), 0.0);
            add_rows(sum.data(), inverse.data(), inverse.data() + i, 1.0, width, i, d, 0, down(i) + AT_ONCE);
            for (Index j = 0; j <= i; ++j) precision(k, i, j) = precision(k, j, i) = sum[j];
        }
    }
}

// Add log (weight p(z_o)) of every row and component to out.
void log_joint(nb::object z_, nb::object variance_, nb::object packed_, nb::object sharpness_, nb::object out_) {
    Arguments arguments;
    auto z = arguments.array<const double, 2>("z", z_, {"rows", "variables"});
    auto variance = arguments.array<const double, 2>("variance", variance_, {"rows", Dim::any()});
    const auto packed = arguments.record<PackedComponents>("packed", packed_);
    auto sharpness = arguments.array<const double, 2>("sharpness", sharpness_, {"variables", "components"});
    auto out = arguments.array<double, 2>("out", out_, {"rows", "components"});
    Arguments::require(variance[1] == 0 || variance[1] == z[1], "variance must have one value for each of z, or none");
    nb::gil_scoped_release unlocked;
    with_constant(packed.mean[1], [&](auto n) {
        Conditional<decltype(n)> given(packed, n, most_missing(z.data, z[0], z[1]));
        Scratch<double> joint(n);
        for (Index row = 0; row < z[0]; ++row) {
            given.read(z.at(row));
            given.project(z.at(row));
            if (variance[1] > 0) given.add_sharpness(variance.at(row), sharpness);
            std::copy_n(out.at(row), out[1], joint.data());
            given.add_log(joint.data());
            std::copy_n(joint.data(), out[1], out.at(row));
        }
    });
}

// Conditional moments of all variables in each component: mean becomes z with missing values at their expectation;
// covariance is written at the missing values only.
void moments(nb::object z_, nb::object packed_, nb::object mean_, nb::object covariance_) {
    Arguments arguments;
    auto z = arguments.array<const double, 2>("z", z_, {"rows", "variables"});
    const auto packed = arguments.record<PackedComponents>("packed", packed_);
    auto mean = arguments.array<double, 3>("mean", mean_, {"rows", "components", "variables"});
    auto covariance = arguments.array<double, 4>("covariance", covariance_, {"rows", "components", "variables", "variables"});
    nb::gil_scoped_release unlocked;
    with_constant(packed.mean[1], [&](auto n) {
        const Index most = most_missing(z.data, z[0], z[1]);
        Conditional<decltype(n)> given(packed, n, most);
        Scratch<double> inverse(most * most * n);
        for (Index row = 0; row < z[0]; ++row) {
            if (given.read(z.at(row))) given.invert(inverse.data());
            given.project(z.at(row));
            given.back(given.solved.data());
            const std::vector<Index>& missing = given.pattern.missing;
            for (Index k = 0; k < mean[1]; ++k) {
                for (Index j = 0; j < z[1]; ++j) mean(row, k, j) = z(row, j);
                for (Index i = 0; i < Index(missing.size()); ++i) {
                    mean(row, k, missing[i]) = packed.mean(missing[i], k) - given.solved[i * n + k];
                    for (Index j = 0; j <= i; ++j) {
                        const double value = inverse[(i * most + j) * n + k];
                        covariance(row, k, missing[i], missing[j]) = covariance(row, k, missing[j], missing[i]) = value;
                    }
                }
            }
        }
    });
}

// z - mean of every component, 0 at missing values.
void residuals(nb::object z_, nb::object mean_, nb::object out_) {
    Arguments arguments;
    auto z = arguments.array<const double, 2>("z", z_, {"rows", "variables"});
    auto mean = arguments.array<const double, 2>("mean", mean_, {"components", "variables"});
    auto out = arguments.array<double, 3>("out", out_, {"rows", "components", "variables"});
    nb::gil_scoped_release unlocked;
    for (Index n = 0; n < z[0]; ++n)
        for (Index k = 0; k < mean[0]; ++k) {
            const double *x = z.at(n), *middle = mean.at(k);
            double* to = out.at(n, k);
            for (Index j = 0; j < z[1]; ++j) to[j] = std::isnan(x[j]) ? 0.0 : x[j] - middle[j];
        }
}

struct Rows {
    View<const double, 2> z, variance;
    View<const double, 1> weight;
    View<const std::int64_t, 1> repeats;
};

struct Sums {
    View<double, 2> first;
    View<double, 3> second;
    View<std::int64_t, 1> filled;
};

// The contribution of consecutive rows with one pattern to the expected second moments: their shares are summed first
// and multiplied once.
template <class N>
class SecondMoments {
  public:
    SecondMoments(Conditional<N>& given, View<const std::int64_t, 1> repeats, View<double, 3> out)
        : given_(given), repeats_(repeats), out_(out), share_(given.n), inverse_(given.most * given.most * given.n),
          is_known_(repeats[0]), slope_(repeats[0] * given.most * given.n), sharpness_(repeats[0] * given.n),
          spread_(repeats[0] * given.n) {}

    // (S_oo^-1)_jj of the e-th variable with repeated values, which is observed.
    const double* sharpness(Index e) {
        const Index n = given_.n, j = repeats_(e);
        double *own = sharpness_.data() + e * n, *slope = slope_.data() + e * given_.most * n;
        if (!is_known_[e]) {
            is_known_[e] = true;
            const std::vector<Index>& missing = given_.pattern.missing;
            for (Index i = 0; i < Index(missing.size()); ++i) copy(slope + i * n, given_.packed.blocks.at(missing[i], j), n);
            given_.forward(slope);
            copy(own, given_.packed.blocks.at(j, j), n);
            given_.subtract_squares(slope, own);
            given_.back(slope);
        }
        return own;
    }
    // Add a row, by its shares (n,).
    void add_row(const double* share, const double* variance) {
        const Index n = given_.n;
        add(share_.data(), share, n);
        for (Index e = 0; e < repeats_[0]; ++e)
            if (variance[repeats_(e)] > 0.0) add_times(spread_.data() + e * n, share, variance[repeats_(e)], n);
    }
    // Write the sums over the rows of a pattern, before the next pattern is read.
    void flush() {
        const std::vector<Index>& missing = given_.pattern.missing;
        const Index n = given_.n, most = given_.most, n_missing = Index(missing.size());
        given_.invert(inverse_.data());
        for (Index i = 0; i < n_missing; ++i)
            for (Index j = 0; j <= i; ++j)
                add_product(out_.at(missing[i], missing[j]), share_.data(), inverse_.data() + (i * most + j) * n);
        for (Index e = 0; e < repeats_[0]; ++e) {
            if (!is_known_[e]) continue;
            const Index own = repeats_(e);
            const double *slope = slope_.data() + e * most * n, *part = spread_.data() + e * n;
            add(out_.at(own, own), part, n);
            for (Index i = 0; i < n_missing; ++i) {
                double* to = out_.at(std::max(missing[i], own), std::min(missing[i], own));
                product(scaled_.data(), part, slope + i * n, n);
                difference(to, to, scaled_.data(), n);
                for (Index j = 0; j <= i; ++j) add_product(out_.at(missing[i], missing[j]), scaled_.data(), slope + j * n);
            }
        }
        std::fill(share_.begin(), share_.end(), 0.0);
        std::fill(spread_.begin(), spread_.end(), 0.0);
        std::fill(is_known_.begin(), is_known_.end(), false);
    }

  private:
    Conditional<N>& given_;
    View<const std::int64_t, 1> repeats_;
    View<double, 3> out_;
    Scratch<double> share_;      // (n,) sums of the rows' shares
    Scratch<double> inverse_;    // (most, most, n) P_mm^-1
    std::vector<char> is_known_;
    Scratch<double> slope_;      // (repeats, most, n) P_mm^-1 P_mj
    Scratch<double> sharpness_;  // (repeats, n)
    Scratch<double> spread_;     // (repeats, n) sums of shares times variances
    Scratch<double> scaled_ = Scratch<double>(given_.n);

    void add_product(double* out, const double* x, const double* y) const {
        for (Index c = 0; c < given_.n; c += AT_ONCE) store(out + c, load(out + c) + load(x + c) * load(y + c));
    }
};

template <class N>
void expect(N n, const Rows& rows, const PackedComponents& packed, View<double, 3> residual, View<double, 3> product,
            View<double, 2> joint, View<double, 1> log_density, const Sums& sums) {
    const Index d = rows.z[1], k_all = packed.log_weight[0];
    Conditional<N> given(packed, n, most_missing(rows.z.data, rows.z[0], d));
    SecondMoments<N> second(given, rows.repeats, sums.second);
    const std::vector<Index>& missing = given.pattern.missing;
    Scratch<double> share(n), no_variance(d);
    for (Index row = 0; row < rows.z[0]; ++row) {
        const double *z = rows.z.at(row), *variance = rows.repeats[0] ? rows.variance.at(row) : no_variance.data();
        if (given.pattern.differs(z)) {
            if (row > 0) second.flush();
            given.read(z);
        }
        const Index n_missing = Index(missing.size());
        double *r = residual.at(row), *times = product.at(row);  // (k, d) of this row
        // L^-1 P_mo r_o and the squared distances, from r and P r.
        for (Index k = 0; k < k_all; ++k) {
            share[k] = joint(row, k);
            Four parts = spread(0.0);
            Index j = 0;
            for (; j + AT_ONCE <= d; j += AT_ONCE) parts = parts + load(r + k * d + j) * load(times + k * d + j);
            double own = total(parts);
            for (; j < d; ++j) own += r[k * d + j] * times[k * d + j];
            given.distance[k] = own;
            for (Index i = 0; i < n_missing; ++i) given.solved[i * n + k] = times[k * d + missing[i]];
        }
        if (n_missing > 0) {
            given.forward(given.solved.data());
            given.subtract_solved();
        }
        for (Index e = 0; e < rows.repeats[0]; ++e) {
            const double v = variance[rows.repeats(e)];
            if (v > 0.0) add_times(given.distance.data(), second.sharpness(e), v, n);
        }
        given.add_log(share.data());
        log_density(row) = normalise(share.data(), k_all, n);
        if (n_missing > 0) given.back(given.solved.data());
        for (Index k = 0; k < k_all; ++k) {
            const double part = joint(row, k) = share[k] *= rows.weight(row);
            if (!(part > NO_SHARE * rows.weight(row))) {
                share[k] = 0.0;
                continue;
            }
            for (Index i = 0; i < n_missing; ++i) r[k * d + missing[i]] = -given.solved[i * n + k];
            const Index at = sums.filled(k)++;  // rows up to this one have been read, so they may be overwritten
            double *first = sums.first.at(k), *to = residual.at(at, k), *scaled = product.at(at, k);
            const double* own = r + k * d;
            Index j = 0;
            for (; j + AT_ONCE <= d; j += AT_ONCE) {
                const Four x = load(own + j), y = spread(part) * x;
                store(first + j, load(first + j) + y);
                store(scaled + j, y);
                store(to + j, x);
            }
            for (; j < d; ++j) {
                const double x = own[j], y = part * x;
                first[j] += y;
                scaled[j] = y;
                to[j] = x;
            }
        }
        second.add_row(share.data(), variance);
    }
    if (rows.z[0] > 0) second.flush();
}

// EM's expectation step over rows, without the sums that are products of matrices.
void expectations(nb::object rows_z, nb::object rows_variance, nb::object rows_weight, nb::object repeats_, nb::object packed_,
                  nb::object residual_, nb::object product_, nb::object joint_, nb::object log_density_, nb::object first_,
                  nb::object second_, nb::object filled_) {
    Arguments arguments;
    Rows rows;
    rows.z = arguments.array<const double, 2>("z", rows_z, {"rows", "variables"});
    rows.variance = arguments.array<const double, 2>("variance", rows_variance, {"rows", Dim::any()});
    rows.weight = arguments.array<const double, 1>("weight", rows_weight, {"rows"});
    rows.repeats = arguments.array<const std::int64_t, 1>("repeats", repeats_, {Dim::any()});
    const auto packed = arguments.record<PackedComponents>("packed", packed_);
    auto residual = arguments.array<double, 3>("residual", residual_, {"rows", "components", "variables"});
    auto product = arguments.array<double, 3>("product", product_, {"rows", "components", "variables"});
    auto joint = arguments.array<double, 2>("joint", joint_, {"rows", "components"});
    auto log_density = arguments.array<double, 1>("log_density", log_density_, {"rows"});
    Sums sums;
    sums.first = arguments.array<double, 2>("first", first_, {"components", "variables"});
    sums.second = arguments.array<double, 3>("second", second_, {"variables", "variables", "padded"});
    sums.filled = arguments.array<std::int64_t, 1>("filled", filled_, {"components"});
    Arguments::require(rows.repeats[0] == 0 || rows.variance[1] == rows.z[1], "variance must have one value for each of z");
    for (Index e = 0; e < rows.repeats[0]; ++e)
        Arguments::require(rows.repeats(e) >= 0 && rows.repeats(e) < rows.z[1], "repeats must be numbers of variables");
    nb::gil_scoped_release unlocked;
    std::fill_n(sums.filled.data, sums.filled[0], 0);
    with_constant(packed.mean[1], [&](auto n) { expect(n, rows, packed, residual, product, joint, log_density, sums); });
}

}  // namespace

void bind_gaussian_em(nb::module_& m) {
    m.def("invert", &invert, nb::arg("covariance"), nb::arg("precision"), nb::arg("log_det"),
          "Inverses (k, d, d) and log determinants (k,) of covariances.");
    m.def("log_joint", &log_joint, nb::arg("z"), nb::arg("variance"), nb::arg("packed"), nb::arg("sharpness"), nb::arg("out"),
          "Add log (weight p(z_o)) of every row and component to out (rows, k).");
    m.def("moments", &moments, nb::arg("z"), nb::arg("packed"), nb::arg("mean"), nb::arg("covariance"),
          "Conditional means (rows, k, d) and covariances (rows, k, d, d) of all variables in each component.");
    m.def("residuals", &residuals, nb::arg("z"), nb::arg("mean"), nb::arg("out"),
          "Write z - mean of every component, 0 at missing values, to out (rows, k, d).");
    m.def("expectations", &expectations, nb::arg("z"), nb::arg("variance"), nb::arg("weight"), nb::arg("repeats"),
          nb::arg("packed"), nb::arg("residual"), nb::arg("product"), nb::arg("joint"), nb::arg("log_density"), nb::arg("first"),
          nb::arg("second"), nb::arg("filled"), R"(EM's expectation step over rows, but for sums that are products of matrices.

In: scores z (rows, d), their variances (rows, d) (0 at missing values; (rows, 0) if there are none), the rows' weights,
the numbers of the variables whose scores have variances; residuals (rows, k, d), their product with the precisions, and
in joint (rows, k) what other variables add to the log joint density.
Out: for each component, in residual those of rows that it has a share of, one after the other, with missing values at
their expectation, and in product the same times the shares; filled (k,) says how many. joint becomes responsibilities,
times the rows' weights; log_density (rows,) log p of the observed part. To first (k, d) residuals are added, to second
(d, d, padded), lower triangle, what conditional and own variances add to their products, times the shares.)");
}
