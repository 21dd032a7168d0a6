// Operations on vectors whose length is a multiple of four, and memory that they are quick in.
//
// A vector type is used instead of auto-vectorisation: sums then have one order wherever arrays lie in memory, and loops
// of 16 or 32 elements have no remainders.
#pragma once
#include "views.hpp"

#include <new>
#ifdef __AVX2__
#include <immintrin.h>
#endif

constexpr Index AT_ONCE = 4;
constexpr std::size_t CACHE_LINE = 64;

typedef double Four __attribute__((vector_size(32)));
// Results of comparisons of two Fours: -1 where true, else 0.
typedef std::int64_t FourMasks __attribute__((vector_size(32)));

inline Four load(const double* x) {
    Four out;
    std::memcpy(&out, x, sizeof out);
    return out;
}
inline void store(double* out, Four x) { std::memcpy(out, &x, sizeof x); }
inline Four spread(double x) { return Four{x, x, x, x}; }
// Masks of four booleans.
inline FourMasks load(const bool* x) {
#ifdef __AVX2__
    std::int32_t bytes;
    std::memcpy(&bytes, x, sizeof bytes);
    return -reinterpret_cast<FourMasks>(_mm256_cvtepi8_epi64(_mm_cvtsi32_si128(bytes)));
#else
    return FourMasks{-std::int64_t(x[0]), -std::int64_t(x[1]), -std::int64_t(x[2]), -std::int64_t(x[3])};
#endif
}
inline double total(Four x) { return (x[0] + x[2]) + (x[1] + x[3]); }

inline void fill(double* out, double value, Index n) {
    for (Index k = 0; k < n; k += AT_ONCE) store(out + k, spread(value));
}
inline void copy(double* out, const double* x, Index n) {
    for (Index k = 0; k < n; k += AT_ONCE) store(out + k, load(x + k));
}
// out = x * y; out may be one of the two.
inline void product(double* out, const double* x, const double* y, Index n) {
    for (Index k = 0; k < n; k += AT_ONCE) store(out + k, load(x + k) * load(y + k));
}
inline void difference(double* out, const double* x, const double* y, Index n) {
    for (Index k = 0; k < n; k += AT_ONCE) store(out + k, load(x + k) - load(y + k));
}
inline void add(double* out, const double* x, Index n) {
    for (Index k = 0; k < n; k += AT_ONCE) store(out + k, load(out + k) + load(x + k));
}
inline void add_times(double* out, const double* x, double factor, Index n) {
    for (Index k = 0; k < n; k += AT_ONCE) store(out + k, load(out + k) + load(x + k) * spread(factor));
}
inline void times(double* out, double factor, Index n) {
    for (Index k = 0; k < n; k += AT_ONCE) store(out + k, load(out + k) * spread(factor));
}
inline double sum(const double* x, Index n) {
    Four out = spread(0.0);
    for (Index k = 0; k < n; k += AT_ONCE) out = out + load(x + k);
    return total(out);
}
inline double dot(const double* x, const double* y, Index n) {
    Four out = spread(0.0);
    for (Index k = 0; k < n; k += AT_ONCE) out = out + load(x + k) * load(y + k);
    return total(out);
}

// Scratch memory aligned to a cache line: accesses across two lines take longer.
template <class T>
struct Aligned {
    using value_type = T;
    Aligned() = default;
    template <class U>
    Aligned(const Aligned<U>&) {}
    T* allocate(std::size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t(CACHE_LINE))); }
    void deallocate(T* p, std::size_t) { ::operator delete(p, std::align_val_t(CACHE_LINE)); }
    template <class U>
    bool operator==(const Aligned<U>&) const { return true; }
    template <class U>
    bool operator!=(const Aligned<U>&) const { return false; }
};
template <class T>
using Scratch = std::vector<T, Aligned<T>>;

// One of two, without a branch: compilers turn "?:" into one, which is mispredicted if it depends on data.
template <class T>
T* choose(bool first, T* one, T* other) {
    const auto mask = -std::uintptr_t(first);
    return reinterpret_cast<T*>((reinterpret_cast<std::uintptr_t>(one) & mask) | (reinterpret_cast<std::uintptr_t>(other) & ~mask));
}

// A number known at compile time. (Not std::integral_constant: calls of copy and fill would find the library's.)
template <Index VALUE>
struct Constant {
    static constexpr Index value = VALUE;
    constexpr operator Index() const { return VALUE; }
};

// Call f with a number known at compile time, if it is a common one: loops over components then have no remainders and
// are unrolled.
template <class F>
decltype(auto) with_constant(Index n, F&& f) {
    switch (n) {
        case 4: return f(Constant<4>{});
        case 8: return f(Constant<8>{});
        case 12: return f(Constant<12>{});
        case 16: return f(Constant<16>{});
        case 32: return f(Constant<32>{});
        default: return f(n);
    }
}

// The same where the number is often 1.
template <class F>
decltype(auto) with_constant_or_one(Index n, F&& f) {
    return n == 1 ? f(Constant<1>{}) : with_constant(n, f);
}
