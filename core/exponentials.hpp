// Exponentials in loops that vectorise: several times as fast as the library function's.
#pragma once
#include "vectors.hpp"

#include <cmath>

// For smaller arguments an exponential is 0: the smallest normal number is about exp(-708).
constexpr double LEAST = -700.0;
// Bound of standardised values: the squares of larger ones, times a precision, might overflow.
constexpr double FARTHEST = 1e100;

// exp(y) for y <= 0, to a relative error of about 1e-14: 2^m exp(f) with m whole and f at most log(2) / 2 from 0.
inline double exponential(double y) {
    constexpr double LOG2_E = 1.4426950408889634, LN_2_HIGH = 0.693147180369123816490, LN_2_LOW = 1.90821492927058770002e-10;
    const bool some = y > LEAST;
    y = some ? y : 0.0;
    const double m = std::floor(y * LOG2_E + 0.5), f = (y - m * LN_2_HIGH) - m * LN_2_LOW;
    // Taylor series: the first omitted term is below 1e-16.
    const double e =
        1 + f * (1 + f * (1.0 / 2 + f * (1.0 / 6 + f * (1.0 / 24 + f * (1.0 / 120 + f * (1.0 / 720 + f * (1.0 / 5040 + f * (
        1.0 / 40320 + f * (1.0 / 362880 + f * (1.0 / 3628800 + f * (1.0 / 39916800 + f * (1.0 / 479001600))))))))))));
    std::uint64_t bits;  // a shift of a negative number is not defined
    std::memcpy(&bits, &e, sizeof bits);
    bits += std::uint64_t(std::int32_t(m)) << 52;
    double out;
    std::memcpy(&out, &bits, sizeof out);
    return some ? out : 0.0;
}

// The same for four numbers. A number of 1.5 * 2^52 and more has no fraction, and its low bits are its whole part.
inline Four exponential(Four y) {
    typedef std::uint64_t FourWhole __attribute__((vector_size(32)));
    constexpr double LOG2_E = 1.4426950408889634, LN_2_HIGH = 0.693147180369123816490, LN_2_LOW = 1.90821492927058770002e-10;
    constexpr double COEFFICIENTS[] = {1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720,
                                       1.0 / 120,      1.0 / 24,      1.0 / 6,      1.0 / 2,     1.0,        1.0};
    const Four whole = spread(0x1.8p52);
    const FourWhole some = (FourWhole)(y > spread(LEAST));
    y = (Four)((FourWhole)y & some);
    const Four shifted = y * spread(LOG2_E) + whole, m = shifted - whole;
    const Four f = (y - m * spread(LN_2_HIGH)) - m * spread(LN_2_LOW);
    Four e = spread(1.0 / 479001600);
    for (double each : COEFFICIENTS) e = spread(each) + f * e;
    return (Four)(((FourWhole)e + ((FourWhole)shifted << 52)) & some);
}

// x[:n] = exp(x - peak) for x <= peak.
inline void exponentials(double* x, const double* peak, Index n) {
    for (Index i = 0; i < n; ++i) x[i] = exponential(x[i] - peak[i]);
}
