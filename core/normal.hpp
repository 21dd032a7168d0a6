// The standard normal distribution: quantiles, and 64 uniform numbers as normal ones.
#pragma once
#include "sobol.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

// One polynomial of degree seven over another; coefficients from the constant on.
inline double ratio(const double (&above)[8], const double (&below)[8], double x) {
    const auto polynomial = [x](const double* c) {
        return (((((((c[7] * x + c[6]) * x + c[5]) * x + c[4]) * x + c[3]) * x + c[2]) * x + c[1]) * x) + c[0];
    };
    return polynomial(above) / polynomial(below);
}

// The quantile of a u in the lower tail, at most 0.075: Wichura's AS 241, to about 1e-15; finite at 0, too.
inline double lower_quantile(double u) {
    constexpr double far[2][8] = {
        {1.42343711074968357734, 4.63033784615654529590, 5.76949722146069140550, 3.64784832476320460504,
         1.27045825245236838258, 0.241780725177450611770, 2.27238449892691845833e-2, 7.74545014278341407640e-4},
        {1.0, 2.05319162663775882187, 1.67638483018380384940, 0.689767334985100004550,
         0.148103976427480074590, 1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9}};
    constexpr double farthest[2][8] = {
        {6.65790464350110377720, 5.46378491116411436990, 1.78482653991729133580, 0.296560571828504891230,
         2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7},
        {1.0, 0.599832206555887937690, 0.136929880922735805310, 1.48753612908506148525e-2,
         7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15}};
    const double r = u > 0.0 ? std::sqrt(-std::log(u)) : std::numeric_limits<double>::infinity();
    if (r <= 5.0) return -ratio(far[0], far[1], r - 1.6);
    return -ratio(farthest[0], farthest[1], std::min(r, 40.0) - 5.0);
}

// The quantile of any u between 0 and 1.
inline double normal_quantile(double u) {
    constexpr double near[2][8] = {
        {3.3871328727963666080, 133.14166789178437745, 1971.5909503065514427, 13731.693765509461125,
         45921.953931549871457, 67265.770927008700853, 33430.575583588128105, 2509.0809287301226727},
        {1.0, 42.313330701600911252, 687.18700749205790830, 5394.1960214247511077,
         21213.794301586595867, 39307.895800092710610, 28729.085735721942674, 5226.4952788528545610}};
    const double q = u - 0.5;
    if (std::fabs(q) <= 0.425) return q * ratio(near[0], near[1], 0.180625 - q * q);
    return q < 0.0 ? lower_quantile(u) : -lower_quantile(1.0 - u);
}

// The table of the normal quantile has 2^12 cells; the eight at either end are left to the formula.
constexpr Index QUANTILE_CELLS = 1 << 12;
constexpr double TAIL = 8.0 / QUANTILE_CELLS;

// Quantiles at multiples of 2^-12. The ends are never used; finite numbers keep the interpolation free of NaN.
inline const double* quantile_table() {
    static const auto table = [] {
        std::array<double, QUANTILE_CELLS + 1> out;
        constexpr double least = 0.5 / QUANTILE_CELLS;
        for (Index i = 0; i <= QUANTILE_CELLS; ++i)
            out[i] = normal_quantile(std::min(std::max(double(i) / QUANTILE_CELLS, least), 1.0 - least));
        return out;
    }();
    return table.data();
}

// Standard normals of the 64 uniform numbers of a word: by linear interpolation, in the tails by the formula.
inline void normals(const double* uniform, const double* table, double* out) {
    double lowest = 1.0, highest = 0.0;
    for (Index t = 0; t < WORD; ++t) {
        const double place = uniform[t] * QUANTILE_CELLS;
        const auto cell = std::int32_t(place);
        out[t] = table[cell] + (place - cell) * (table[cell + 1] - table[cell]);
    }
    for (Index t = 0; t < WORD; ++t) {
        lowest = std::min(lowest, uniform[t]);
        highest = std::max(highest, uniform[t]);
    }
    if (lowest >= TAIL && highest < 1.0 - TAIL) return;
    for (Index t = 0; t < WORD; ++t) {
        if (uniform[t] < TAIL) out[t] = lower_quantile(uniform[t]);
        else if (uniform[t] >= 1.0 - TAIL) out[t] = -lower_quantile(1.0 - uniform[t]);
    }
}
