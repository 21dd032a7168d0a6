// The standard normal distribution of arrays: O(1) a number.
#include "normal.hpp"

#include "module.hpp"

namespace {

// P(Z < z). In the tails by erfc, whose relative error stays that of rounding.
double normal_cdf(double z) {
    constexpr double root_half = 0.70710678118654752440;
    const double x = z * root_half;
    if (std::fabs(x) < 1.0) return 0.5 + 0.5 * std::erf(x);
    const double tail = 0.5 * std::erfc(std::fabs(x));
    return x > 0.0 ? 1.0 - tail : tail;
}

void cdf(nb::object z_, nb::object out_) {
    Arguments arguments;
    auto z = arguments.array<const double, 1>("z", z_, {"numbers"});
    auto out = arguments.array<double, 1>("out", out_, {"numbers"});
    nb::gil_scoped_release unlocked;
    for (Index i = 0; i < z[0]; ++i) out(i) = normal_cdf(z(i));
}

void quantile(nb::object u_, nb::object out_) {
    Arguments arguments;
    auto u = arguments.array<const double, 1>("u", u_, {"numbers"});
    auto out = arguments.array<double, 1>("out", out_, {"numbers"});
    nb::gil_scoped_release unlocked;
    for (Index i = 0; i < u[0]; ++i) out(i) = normal_quantile(u(i));
}

}  // namespace

void bind_normal(nb::module_& m) {
    m.def("cdf", &cdf, nb::arg("z"), nb::arg("out"), "The distribution function of the standard normal.");
    m.def("quantile", &quantile, nb::arg("u"), nb::arg("out"), "The inverse of cdf, for numbers between 0 and 1.");
}
