// 64 draws as the bits of a word: which of 64 numbers are below a limit, and sums over the draws whose bits are set.
//
// Compilers do not turn loops of comparisons into masks, so comparisons use intrinsics for x86-64-v3; elsewhere flags of
// one byte each become bits by a multiplication.
#pragma once
#include "bits.hpp"
#include "sobol.hpp"
#include "vectors.hpp"

#ifdef __AVX2__
#include <immintrin.h>
#endif

// Words that are handled together.
constexpr Index LANES = AT_ONCE;
constexpr Index DRAWS = LANES * WORD;

typedef Word FourWords __attribute__((vector_size(32)));

inline FourWords load_words(const Word* x) {
    FourWords out;
    std::memcpy(&out, x, sizeof out);
    return out;
}
inline void store_words(Word* out, FourWords x) { std::memcpy(out, &x, sizeof x); }

// The lowest bits of 64 bytes.
inline Word bits_of_flags(const std::uint8_t* flags) {
    Word out = 0;
    for (int i = 0; i < 8; ++i) {
        Word eight;
        std::memcpy(&eight, flags + 8 * i, sizeof eight);
        out |= (eight & 0x0101010101010101) * 0x0102040810204080 >> 56 << (8 * i);
    }
    return out;
}

// Which of 64 numbers are below a limit. The bits of a group of draws are its byte, in some fixed order.
inline Word below(const double* x, double limit) {
#ifdef __AVX2__
    const __m256d limits = _mm256_set1_pd(limit);
    const auto four = [&](int i) { return _mm256_castpd_si256(_mm256_cmp_pd(_mm256_loadu_pd(x + 4 * i), limits, _CMP_LT_OQ)); };
    // Masks of 8 bytes become such of 4, of 2 and of 1; a group's are together in the end.
    const auto group = [&](int g) { return _mm256_blend_epi32(four(2 * g), four(2 * g + 1), 0xAA); };
    const auto half = [&](int g) {
        const __m256i first = _mm256_packs_epi32(group(g), group(g + 1)), last = _mm256_packs_epi32(group(g + 2), group(g + 3));
        const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        return Word(std::uint32_t(_mm256_movemask_epi8(_mm256_permutevar8x32_epi32(_mm256_packs_epi16(first, last), order))));
    };
    return half(0) | half(4) << 32;
#else
    std::uint8_t flags[WORD];
    for (Index i = 0; i < WORD; ++i) flags[i] = x[i] < limit;
    return bits_of_flags(flags);
#endif
}

// Which of 64 bytes are below a limit, which is not 0.
inline Word below(const std::uint8_t* x, std::uint8_t limit) {
#ifdef __AVX2__
    const __m256i largest = _mm256_set1_epi8(char(limit - 1));
    const auto half = [&](const std::uint8_t* some) {
        const __m256i own = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(some));
        return Word(std::uint32_t(_mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_min_epu8(own, largest), own))));
    };
    return half(x) | half(x + 32) << 32;
#else
    std::uint8_t flags[WORD];
    for (Index i = 0; i < WORD; ++i) flags[i] = x[i] < limit;
    return bits_of_flags(flags);
#endif
}

// Octets of ones where bits are set, zeros elsewhere.
inline void bytes_of(Word bits, std::uint8_t* out) {
    for (Index i = 0; i < WORD; i += 8) {
        // Eight bits, each in a byte of its own; then all ones where it is not 0.
        const Word eight = (bits >> i & 0xFF) * 0x0101010101010101 & 0x8040201008040201;
        const Word ones = (((eight & 0x7F7F7F7F7F7F7F7F) + 0x7F7F7F7F7F7F7F7F) | eight) >> 7 & 0x0101010101010101;
        const Word bytes = ones * 0xFF;
        std::memcpy(out + i, &bytes, sizeof bytes);
    }
}

// Add each of n numbers to those of 64 sums whose bits are set in its word; one more word may be read after the last. In
// order, to as many sums as fit registers at once.
inline void add_where(double* out, const Word* words, const double* values, Index n) {
    typedef std::int64_t Mask __attribute__((vector_size(32)));
    constexpr Index PART = 32;
    const Mask low = {1, 2, 4, 8}, high = {16, 32, 64, 128};
    for (Index first = 0; first < WORD; first += PART) {
        Four sum[PART / AT_ONCE];
        for (Index i = 0; i < PART / AT_ONCE; ++i) sum[i] = load(out + first + i * AT_ONCE);
        for (Index entry = 0; entry < n; ++entry) {
            const char* bytes = reinterpret_cast<const char*>(words + entry) + first / 8;
            const Mask value = (Mask)spread(values[entry]);
            for (Index i = 0; i < PART / 8; ++i) {
                std::int64_t eight;
                std::memcpy(&eight, bytes + i, sizeof eight);  // its lowest byte matters
                const Mask all = {eight, eight, eight, eight};
                sum[2 * i] = sum[2 * i] + (Four)(((all & low) == low) & value);
                sum[2 * i + 1] = sum[2 * i + 1] + (Four)(((all & high) == high) & value);
            }
        }
        for (Index i = 0; i < PART / AT_ONCE; ++i) store(out + first + i * AT_ONCE, sum[i]);
    }
}

inline void add_where(std::int32_t* out, const Word* words, const std::int32_t* values, Index n) {
    typedef std::int32_t Eight __attribute__((vector_size(32)));
    const Eight bit = {1, 2, 4, 8, 16, 32, 64, 128};
    Eight sum[WORD / 8];
    std::memcpy(sum, out, sizeof sum);
    for (Index entry = 0; entry < n; ++entry) {
        const char* bytes = reinterpret_cast<const char*>(words + entry);
        const std::int32_t x = values[entry];
        const Eight value = {x, x, x, x, x, x, x, x};
        for (Index i = 0; i < WORD / 8; ++i) {
            std::int32_t eight;
            std::memcpy(&eight, bytes + i, sizeof eight);
            const Eight all = {eight, eight, eight, eight, eight, eight, eight, eight};
#ifdef __AVX2__
            sum[i] += (Eight)_mm256_sign_epi32((__m256i)value, (__m256i)(all & bit));
#else
            sum[i] += ((all & bit) == bit) & value;
#endif
        }
    }
    std::memcpy(out, sum, sizeof sum);
}

// Add each of n numbers to eight sums, times the number of set bits in each byte of its word: the draws of each group.
inline void add_counts(double* out, const Word* words, const double* values, Index n) {
    static_assert(GROUPS == 8 && SIZE == 8, "a byte for each group");
    Four first = load(out), last = load(out + 4);
    for (Index i = 0; i < n; ++i) {
        Word c = words[i];
        c -= c >> 1 & 0x5555555555555555;
        c = (c & 0x3333333333333333) + (c >> 2 & 0x3333333333333333);
        c = (c + (c >> 4)) & 0x0F0F0F0F0F0F0F0F;
#ifdef __AVX2__
        const __m256i counts = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(std::int64_t(c)));
        const Four low = _mm256_cvtepi32_pd(_mm256_castsi256_si128(counts)), high = _mm256_cvtepi32_pd(_mm256_extracti128_si256(counts, 1));
#else
        const auto count = [&](int g) { return double(std::int32_t(c >> (8 * g) & 0xFF)); };
        const Four low = {count(0), count(1), count(2), count(3)}, high = {count(4), count(5), count(6), count(7)};
#endif
        const Four value = spread(values[i]);
        first = first + low * value;
        last = last + high * value;
    }
    store(out, first);
    store(out + 4, last);
}
